"""Flower apps as folders, and the settings they know; nothing here needs Flower."""

from pathlib import Path

import pytest

from fedtranscribe.errors import ConfigError
from fedtranscribe.flower import apps
from fedtranscribe.flower.apps import App, find_app, known_apps

TOY = Path(__file__).parent / "toy_app"


@pytest.fixture
def toy() -> App:
    return find_app(str(TOY))


def test_a_folder_is_an_app(toy: App) -> None:
    assert toy.name == "toy_app"
    assert toy.folder == TOY
    assert toy.defaults["epsilon"] == 10.0
    assert toy.defaults["data-root"] == ""


@pytest.mark.parametrize(
    ("pair", "key", "value"),
    [
        ("epsilon=5", "epsilon", 5.0),
        ("epsilon=1e-2", "epsilon", 0.01),
        ("epsilon=.5", "epsilon", 0.5),
        ("rows=2_000", "rows", 2000),
        ("central=true", "central", True),
        ("mode=vote", "mode", "vote"),
        ('mode="vote"', "mode", "vote"),
        ("note=3", "note", "3"),
        ("note=it's \"x\" = 'y'", "note", "it's \"x\" = 'y'"),
        ("note=", "note", ""),
    ],
)
def test_values_take_the_type_of_the_default(toy: App, pair: str, key: str, value: object) -> None:
    chosen = toy.settings([pair])
    assert chosen == {key: value}
    assert type(chosen[key]) is type(value)


def test_underscores_are_understood_and_paths_become_absolute(
    toy: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert toy.settings(["data_root=sets"]) == {"data-root": str(tmp_path / "sets")}
    assert toy.settings(["data-root="]) == {"data-root": ""}
    monkeypatch.setenv("HOME", str(tmp_path))
    assert toy.settings(["data-root=~/sets"]) == {"data-root": str(tmp_path / "sets")}


def test_every_wrong_pair_is_named_at_once(toy: App) -> None:
    pairs = ["epsilom=5", "rows=many", "rows=2.5", "central=1", "epsilon=true", "loose"]
    with pytest.raises(ConfigError) as caught:
        toy.settings(pairs)
    said = str(caught.value)
    for part in [
        "'epsilom' (did you mean epsilon?)",
        "rows=many: expected a whole number",
        "rows=2.5: expected a whole number",
        "central=1: expected true or false",
        "epsilon=true: expected a number",
        "key=value, not 'loose'",
        "Settings of toy_app: central, data-root, epsilon",
    ]:
        assert part in said


def test_a_setting_given_twice_is_refused(toy: App) -> None:
    with pytest.raises(ConfigError, match="rows is given twice"):
        toy.settings(["rows=1", "rows=2"])


def write_app(folder: Path, config: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f"[tool.flwr.app.config]\n{config}\n")
    return folder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package in an otherwise empty checkout."""
    package = tmp_path / "checkout" / "fedtranscribe"
    package.mkdir(parents=True)
    monkeypatch.setattr(apps, "__file__", str(package / "flower" / "apps.py"))
    return package


def test_names_are_looked_up_in_the_wheel_and_else_in_the_checkout(package: Path) -> None:
    beside = write_app(package.parent / "simulations" / "dirichlet_a", 'out = ""')
    (package.parent / "simulations" / "notes").mkdir()
    assert known_apps() == {"dirichlet_a": beside}
    assert find_app("dirichlet_a").folder == beside
    packaged = write_app(package / "simulations" / "dirichlet_a", 'out = ""')
    assert find_app("dirichlet_a").folder == packaged


def test_an_unknown_name_lists_the_known_ones(package: Path) -> None:
    with pytest.raises(ConfigError, match="none are installed"):
        find_app("dirichlet_mnist")
    write_app(package / "simulations" / "dirichlet_mnist", 'out = ""')
    with pytest.raises(ConfigError, match=r"did you mean dirichlet_mnist\?"):
        find_app("dirichlet_mnits")


def test_nested_settings_are_flat_as_in_flower(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", 'out = ""\n[tool.flwr.app.config.dpsd]\nround-rows = 5')
    app = find_app(str(folder))
    assert app.settings(["dpsd.round_rows=6"]) == {"dpsd.round-rows": 6}


def test_an_app_that_takes_no_run_folder_is_not_ours(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", "rounds = 3")
    with pytest.raises(ConfigError, match="a setting 'out'"):
        find_app(str(folder))


def test_a_settings_file_gives_way_to_what_is_typed(toy: App, tmp_path: Path) -> None:
    path = tmp_path / "paper.toml"
    path.write_text('rows = 500\nepsilon = 2\nmode = "vote"\ncentral = true\n')
    typed = ["rows=100"]
    chosen = toy.settings([*toy.profile(path, typed), *typed])
    assert chosen == {"rows": 100, "epsilon": 2.0, "mode": "vote", "central": True}


def test_a_settings_file_is_checked_like_the_command_line(toy: App, tmp_path: Path) -> None:
    path = tmp_path / "paper.toml"
    path.write_text("epsilom = 2\n")
    with pytest.raises(ConfigError, match="did you mean epsilon"):
        toy.settings(toy.profile(path, []))
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        toy.profile(tmp_path / "absent.toml", [])


@pytest.mark.parametrize("name", sorted(known_apps()))
def test_the_profile_of_every_app_fits_it(name: str) -> None:
    app = find_app(name)
    chosen = app.settings(app.profile(app.folder / "paper.toml", []))
    if app.defaults["method"] == "feddpsd":
        assert chosen["teacher"] == "resnet34"
    else:
        assert chosen["training.profile"] == "paper"
