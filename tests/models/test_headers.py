"""What a network's file claims costs no more than what it holds."""

import contextlib
import json
import math
import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedtranscribe.errors import ConfigError, ModelError, ModelMismatchError
from fedtranscribe.models import Generator, build, load_network, load_state, save_network
from fedtranscribe.models.diffusion import (
    MOST_GUIDANCE,
    MOST_STEPS,
    Sampling,
    Schedule,
    Synthesizer,
    load_synthesizer,
    save_synthesizer,
)
from fedtranscribe.models.unet import make_unet
from fedtranscribe.models.weights import read_metadata

LOADERS = {"student": load_network, "generator": load_network, "denoiser": load_synthesizer}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("networks")
    paths = {name: folder / f"{name}.safetensors" for name in LOADERS}
    save_network(build("cnn-small", 3, 1, 28), paths["student"])
    save_network(Generator(8, 1, 28, 4), paths["generator"])
    model = Synthesizer(make_unet("tiny", 1, 8, 3), Schedule(50), Sampling(5), True)
    save_synthesizer(model, paths["denoiser"])
    return paths


def header_of(path: Path) -> dict:
    return json.loads(read_metadata(path)["network"])


def with_header(path: Path, header: str, to: Path) -> Path:
    save_file(load_file(path), to, {"network": header})
    return to


@contextlib.contextmanager
def little_memory(mib: int = 1_000):
    """What is asked for beyond this fails at once, instead of filling the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + mib * 2**20, limits[1])
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


WRONG = [
    *(
        ("student", {name: value})
        for name in ("classes", "channels", "size")
        for value in (10**9, 100_000, 4_000, 0, -1, True, 3.0, "3", None, math.inf, math.nan)
    ),
    ("student", {"architecture": "cnn-wide"}),
    ("student", {"architecture": "resnet18", "classes": 90_000}),
    ("student", {"architecture": "scatter", "size": 4_000, "channels": 4_000}),
    ("student", {"architecture": "[/x]"}),
    ("student", {"kind": "generator"}),
    ("student", {"colour": "red"}),
    *(
        ("generator", {name: value})
        for name in ("latent_dim", "width", "channels", "size")
        for value in (10**9, 900_000, 4_000, 64, 0, math.inf, "8")
    ),
    *(
        ("denoiser", {name: value})
        for name in ("classes", "channels", "size")
        for value in (10**9, 900_000, 4_000, -1, math.inf)
    ),
    ("denoiser", {"unet": "large"}),
    ("denoiser", {"conditional": 1}),
    *(
        ("denoiser", {"schedule": {"steps": 50, "first": 1e-4, "last": 2e-2, **wrong}})
        for wrong in (
            *({"steps": value} for value in (10**6, 10**12, 0, 4, 50.0, "50", math.inf)),
            *({"last": value} for value in (math.nan, math.inf, 1.0, 0.0)),
            {"more": 1},
        )
    ),
    *(
        ("denoiser", {"sampling": {**Sampling(5).__dict__, **wrong}})
        for wrong in (
            *({"steps": value} for value in (10**6, 51, 0, 5.0, True)),
            *({"guidance": value} for value in (math.nan, math.inf, -1.0, 1e300)),
            {"eta": math.nan},
            {"clip": "no"},
            {"spacing": "wide"},
        )
    ),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=str)
def test_a_header_that_does_not_fit_its_tensors_takes_no_memory(files, tmp_path, name, wrong):
    header = json.dumps(header_of(files[name]) | wrong)
    path = with_header(files[name], header, tmp_path / "n.safetensors")
    with little_memory(), pytest.raises(ModelError):
        LOADERS[name](path)


@pytest.mark.parametrize("name", LOADERS)
def test_untouched_files_and_what_is_no_header_at_all(files, tmp_path, name):
    LOADERS[name](files[name])
    for header in ("", "[]", "null", "{", "[" * 100_000, '{"a":' * 100_000, "1e999"):
        path = with_header(files[name], header, tmp_path / "n.safetensors")
        with pytest.raises(ModelError, match="does not say which network"):
            LOADERS[name](path)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([10**9, 10**400, 64, 4096, 10**6])
    | st.lists(st.integers(), max_size=3)
)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(name=st.sampled_from(sorted(LOADERS)), data=st.data())
def test_a_changed_header_is_refused_or_means_the_same_network(files, name, data):
    header = header_of(files[name])
    table = data.draw(st.sampled_from([header, *(v for v in header.values() if type(v) is dict)]))
    key = data.draw(st.sampled_from(sorted(table)))
    table[key] = data.draw(VALUES)
    path = with_header(files[name], json.dumps(header), files[name].with_name("mutated"))
    path = path.rename(path.with_suffix(".safetensors"))
    with little_memory(), contextlib.suppress(ModelError):
        LOADERS[name](path)


def test_steps_and_guidance_are_bounded_wherever_they_come_from():
    for make in (Schedule, Sampling):
        make(MOST_STEPS)
        with pytest.raises(ConfigError, match=str(MOST_STEPS)):
            make(MOST_STEPS + 1)
    for guidance in (math.nan, math.inf, 2 * MOST_GUIDANCE):
        with pytest.raises(ConfigError, match="guidance"):
            Sampling(guidance=guidance)


def test_a_number_that_is_finite_only_in_the_file_is_refused(files, tmp_path):
    state = load_file(files["student"])
    state["head.bias"] = torch.full_like(state["head.bias"], 1e300, dtype=torch.float64)
    path = tmp_path / "n.safetensors"
    save_file(state, path, {"network": json.dumps(header_of(files["student"]))})
    with pytest.raises(ModelError, match="NaN or infinity"):
        load_network(path)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_weights_that_are_no_floats_are_refused(files, tmp_path, dtype):
    state = load_file(files["student"])
    state["head.bias"] = state["head.bias"].to(dtype)
    path = tmp_path / "n.safetensors"
    save_file(state, path, {"network": json.dumps(header_of(files["student"]))})
    with pytest.raises(ModelError, match=r"head\.bias"):
        load_network(path)


@pytest.mark.filterwarnings("ignore:.*parse")
@pytest.mark.parametrize("kind", ["expanded", "sparse"])
def test_a_view_of_a_few_numbers_is_not_unfolded(tmp_path, kind):
    if kind == "expanded":
        tensor = torch.zeros(1).expand(10**6, 10**6)
    else:
        places = torch.zeros(2, 1, dtype=torch.int64)
        tensor = torch.sparse_coo_tensor(places, torch.ones(1), (10**9, 10**9))
    torch.save({"a": tensor}, tmp_path / "w.pt")
    with little_memory(), pytest.raises(ModelError, match="stored in full"):
        load_state(tmp_path / "w.pt")


def test_the_width_of_scattering_is_found_without_pixels():
    from fedtranscribe.models.fixed_features import SCATTER, coefficient_count

    with little_memory():
        assert coefficient_count(SCATTER, 3, 4_096) == 3 * 81 * 64


def test_torchvisions_last_layer_is_looked_at_first(tmp_path):
    network = build("regnet_x_400mf", 3, 3, 32)
    save_network(network, tmp_path / "n.safetensors")
    assert load_network(tmp_path / "n.safetensors").size == 32
    header = header_of(tmp_path / "n.safetensors") | {"classes": 60_000}
    path = with_header(tmp_path / "n.safetensors", json.dumps(header), tmp_path / "m.safetensors")
    with pytest.raises(ModelMismatchError, match="60000 classes"):
        load_network(path)
