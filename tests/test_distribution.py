"""What goes to the package index: whole, nothing else in it, and working in a clean environment."""

import json
import os
import re
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.metadata import Metadata

import fedtranscribe

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
NAME = f"fedtranscribe-{fedtranscribe.__version__}"
MEGABYTE = 1_000_000
IN_SDIST = {
    ".gitignore",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "PKG-INFO",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "client",
    "demo.toml",
    "docs",
    "fedtranscribe",
    "mkdocs.yml",
    "pyproject.toml",
    "server",
    "simulations",
    "tests",
}


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**clean, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, out: Path, *options: str) -> None:
    """As `make dist` does; the build's requirements are those of the tests."""
    run(sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", out, cwd=source)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git knows of this checkout, and what a developer may have lying in it."""
    source = tmp_path_factory.mktemp("source")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            place = source / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes((ROOT / name).read_bytes())
    for name in (
        "client/wheels/pip.conf",
        "server/wheels/own-1.0-py3-none-any.whl",
        "runs/scans/private/teachers.json",
        "data/scans.npz",
        ".venv/bin/python",
        "dist/old.whl",
        "site/index.html",
        "simulations/dirichlet_mnist/__pycache__/x.cpython-311.pyc",
        "notes.txt",
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("private")
    return source


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    build(source, out)
    names = {f"{NAME}.tar.gz", f"{NAME}-py3-none-any.whl"}
    assert {path.name for path in out.iterdir()} == names
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"{NAME}-py3-none-any.whl"


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_sdist_holds_what_it_should_and_nothing_else(built: Path) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        sizes = {m.name.removeprefix(f"{NAME}/"): m.size for m in archive if m.isfile()}
    assert {name.split("/")[0] for name in sizes} == IN_SDIST
    for name in sizes:
        parts = set(Path(name).parts)
        assert not parts & {".venv", "__pycache__", "runs/", "dist", "site", "wheels"}, name
        assert not name.startswith(("runs/", "data/")), name
    assert max(sizes.values()) < MEGABYTE / 2
    assert sum(sizes.values()) < 8 * MEGABYTE
    assert (built / f"{NAME}.tar.gz").stat().st_size < 3 * MEGABYTE


def test_the_wheel_of_the_sdist_is_that_of_the_checkout(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    build(source, tmp_path, "--wheel")
    (direct,) = tmp_path.glob("*.whl")
    assert contents(direct) == contents(wheel)


def test_the_wheel_holds_what_commands_look_for(wheel: Path) -> None:
    names = set(contents(wheel))
    for folder in ("simulations", "client", "server"):
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT)
            if path.is_file() and not {"__pycache__", "wheels"} & set(name.parts):
                assert f"fedtranscribe/{name}" in names
    assert "fedtranscribe/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"fedtranscribe", f"{NAME}.dist-info"}
    assert not [name for name in names if "wheels" in name or "__pycache__" in name]


def test_metadata_are_valid_and_the_readme_is_the_description(wheel: Path) -> None:
    raw = contents(wheel)[f"{NAME}.dist-info/METADATA"]
    metadata = Metadata.from_email(raw, validate=True)
    assert metadata.name == "fedtranscribe"
    assert str(metadata.version) == fedtranscribe.__version__
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == ["LICENSE"]
    assert metadata.description_content_type == "text/markdown"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert (metadata.description or "").strip() == readme.strip()
    extras = set(metadata.provides_extra or [])
    assert {"federation", "research", "digits", "evaluation"} <= extras


# ---------------------------------------------------------------- installed


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; what it depends on is lent by the one that runs the tests."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    packages = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home
        ).strip()
    )
    # A path, not a site folder: its own .pth files, such as an editable install, do not count.
    lent = [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()
    (packages / "lent.pth").write_text("\n".join(lent))
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"),
        *("--no-index", "--ignore-installed", wheel),
        cwd=home,
    )
    return home


def test_it_imports_from_where_it_was_installed(installed: Path) -> None:
    code = "import fedtranscribe as f; print(f.__version__, f.__file__)"
    version, place = run(installed / "bin" / "python", "-c", code, cwd=installed).split()
    assert version == fedtranscribe.__version__
    assert Path(place).is_relative_to(installed)


def test_the_command_says_its_version_and_helps(installed: Path) -> None:
    command = installed / "bin" / "fedtranscribe"
    assert (
        run(command, "--version", cwd=installed) == f"fedtranscribe {fedtranscribe.__version__}\n"
    )
    assert "transcribe" in run(command, "--help", cwd=installed)


def test_a_folder_to_deploy_is_made(installed: Path, tmp_path: Path) -> None:
    for kind, file in (("client", "monitoring/alerts.yaml"), ("server", "app/pyproject.toml")):
        run(installed / "bin" / "fedtranscribe", "deploy", "init", kind, kind, cwd=tmp_path)
        assert (tmp_path / kind / file).is_file()


def test_a_transcription_ends(installed: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = rng.integers(0, 80, (60, 28, 28)) + 60 * labels[:, None, None]
    ids = np.array([f"patient-{i}" for i in range(60)])
    np.savez(tmp_path / "tiny.npz", images=images.astype("u1"), labels=labels, ids=ids, classes=3)
    said = run(
        *(installed / "bin" / "fedtranscribe", "transcribe", "--data", "tiny.npz", "--out", "run"),
        *("--epsilon", "50", "--budget", "51", "--no-generator", "--descent-rounds", "0"),
        *("--device", "cpu", "--force", "--json"),
        cwd=tmp_path,
        FEDTRANSCRIBE_HOME=str(tmp_path / "home"),
    )
    assert json.loads(said)["epsilon"] <= 50
    assert (tmp_path / "run" / "student.safetensors").is_file()


# ---------------------------------------------------------------- beside the package


@pytest.mark.parametrize(
    "name", ["client/Dockerfile", "client/Dockerfile.cuda", "server/Dockerfile"]
)
def test_the_images_sbom_names_every_package(name: str, tmp_path: Path) -> None:
    """The command of the Dockerfile, on the environment of the tests."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    (options,) = re.findall(r"cyclonedx-py environment (.*)", text)
    *options, at, to, python = options.split()
    assert (at, to) == ("-o", "/opt/fedtranscribe/sbom.cdx.json")
    assert python == "/opt/fedtranscribe/bin/python"
    if name != "client/Dockerfile":
        return
    out = tmp_path / "sbom.cdx.json"
    tool = (sys.executable, "-m", "cyclonedx_py", "environment")
    run(*tool, *options, at, out, sys.executable, cwd=tmp_path)
    sbom = json.loads(out.read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    listed: dict[str, Any] = {part["name"]: part for part in sbom["components"]}
    assert listed["fedtranscribe"]["licenses"]
    assert {"torch", "numpy", "flwr", "dp-accounting", "prometheus_client"} <= set(listed)
    assert listed["numpy"]["version"] == np.__version__
    assert listed["numpy"]["purl"] == f"pkg:pypi/numpy@{np.__version__}"
