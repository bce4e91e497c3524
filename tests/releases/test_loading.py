"""A release in use: in this process, and in a fresh one that knows nothing of the run."""

import json
import subprocess
import sys
import warnings

import pytest
import torch

import fedtranscribe
from fedtranscribe.errors import (
    ConfigError,
    InvalidDataError,
    ModelMismatchError,
    PrivacyError,
    StorageError,
)
from fedtranscribe.releases import make_release
from fedtranscribe.runs.finished import FinishedRun

IN_A_FRESH_PROCESS = """
import sys
import warnings
import fedtranscribe
assert "torch" not in sys.modules, "importing the package must not wait for torch"
release = fedtranscribe.load(sys.argv[1])
for extra in ("huggingface_hub", "jinja2", "onnx", "onnxscript", "onnxruntime", "sklearn"):
    assert extra not in sys.modules, extra
images, labels = release.sample(30, seed=5)
assert (release.predict(images) == labels).all()
print(release.privacy.epsilon, images.sum().item(), labels.tolist(), sep=";")
"""


@pytest.mark.long
def test_a_fresh_process_loads_predicts_and_draws_samples(made_once, own):
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_A_FRESH_PROCESS, str(made_once)],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    epsilon, total, labels = process.stdout.strip().split(";")
    assert float(epsilon) == pytest.approx(
        json.loads((own.run / "metrics.json").read_text())["epsilon"]
    )
    images, expected = FinishedRun.open(own.run).synthesise(30, seed=5)
    assert int(total) == int(images.sum())
    assert labels == str(expected.tolist())


def test_bytes_and_numbers_in_0_to_1_are_predicted_alike(made_once):
    release = fedtranscribe.load(str(made_once))
    images, labels = release.sample(300, seed=1)
    assert images.dtype == torch.uint8
    assert torch.equal(release.predict(images.float() / 255), labels)
    assert torch.equal(release.predict(images.double() / 255), labels)
    assert torch.equal(release.predict(images.long()), labels)
    assert release.predict(images[:0]).shape == (0,)
    again, _ = release.sample(300, seed=1)
    assert torch.equal(images, again)
    assert not torch.equal(release.sample(300)[0], release.sample(300)[0])


def test_probabilities_go_with_the_classes(made_once):
    release = fedtranscribe.load(made_once)
    images, labels = release.sample(300, seed=1)
    likely = release.probabilities(images)
    assert likely.dtype == torch.float32
    assert torch.allclose(likely.sum(1), torch.ones(300), atol=1e-5)
    assert torch.equal(likely.argmax(1), labels)
    assert torch.equal(release.probabilities(images.float() / 255), likely)
    assert release.probabilities(images[:0]).shape == (0, likely.shape[1])


@pytest.mark.parametrize(
    ("images", "error"),
    [
        (torch.zeros(2, 3, 28, 28), ModelMismatchError),
        (torch.zeros(28, 28), ModelMismatchError),
        (torch.zeros(2, 1, 28, 28, dtype=torch.bool), InvalidDataError),
        (torch.full((2, 1, 28, 28), 256), InvalidDataError),
        (torch.full((2, 1, 28, 28), -1), InvalidDataError),
        (torch.full((2, 1, 28, 28), 255.0), InvalidDataError),
        (torch.full((2, 1, 28, 28), float("nan")), InvalidDataError),
        (torch.full((2, 1, 28, 28), -0.1), InvalidDataError),
    ],
)
def test_images_that_do_not_fit_are_refused(made_once, images, error):
    release = fedtranscribe.load(made_once)
    for ask in (release.predict, release.probabilities):
        with pytest.raises(error, match="Expected images"):
            ask(images)


def test_too_few_samples_are_refused(made_once):
    with pytest.raises(ConfigError, match="n=0"):
        fedtranscribe.load(made_once).sample(0)


def test_a_changed_file_is_refused_unless_nobody_looks(released):
    card = released / "card.md"
    card.write_text(card.read_text(encoding="utf-8") + "more", encoding="utf-8")
    with pytest.raises(PrivacyError, match=r"card\.md was changed"):
        fedtranscribe.load(released)
    assert fedtranscribe.load(released, verify=False).student.classes == 3


def test_an_absent_file_and_an_absent_release_are_named(released, tmp_path):
    (released / "generator.safetensors").unlink()
    for verify in (True, False):
        with pytest.raises(StorageError, match=r"lacks 'generator\.safetensors'"):
            fedtranscribe.load(released, verify=verify)
    with pytest.raises(StorageError, match="No release in"):
        fedtranscribe.load(tmp_path / "absent")


@pytest.mark.usefixtures("without_onnx")
def test_a_stamped_release_warns_and_one_without_generator_says_so(fedavg, tmp_path):
    folder = make_release(fedavg.run, tmp_path / "release", stamp_not_private=True).folder
    with pytest.warns(UserWarning, match="NOT PRIVATE") as caught:
        release = fedtranscribe.load(folder)
    assert caught[0].filename == __file__
    assert release.generator is None
    with pytest.raises(ConfigError, match=r"fedavg.* has no generator"):
        release.sample(1)
    assert release.predict(torch.zeros(1, 1, 28, 28)).shape == (1,)


# ---------------------------------------------------------------- edited statements


def edit(folder, **changes):
    path = folder / "privacy.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    value |= {name: change(value[name]) for name, change in changes.items()}
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": lambda e: e / 2}, "states ε"),
        ({"epsilon": lambda e: e / 2, "sound": lambda s: {k: v / 2 for k, v in s.items()}}, "ε"),
        ({"sound": lambda s: s | {"replace": s["replace"] / 2}}, r"sound\.replace states"),
        ({"sound": lambda s: s | {"zero-out": 0.1}}, "another ε under zero-out"),
        ({"units": lambda s: s | {"holder": 0.1}}, r"units\.holder states"),
        ({"delta": lambda d: 10 * d}, "states ε"),
        ({"events": lambda e: e[:-1]}, "states ε"),
        ({"events": lambda e: [*e, *e]}, "states ε"),
        ({"accountant": lambda a: "zCDP"}, "names the accountant"),
        ({"private": lambda p: False}, "stamp"),
        ({"stamp": lambda s: "not private"}, "stamp"),
    ],
)
def test_a_statement_that_its_events_contradict_is_not_loaded(released, changes, words):
    edit(released, **changes)
    with pytest.raises(PrivacyError, match=words):
        fedtranscribe.load(released)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert fedtranscribe.load(released, verify=False).student is not None


def test_what_is_no_event_is_not_loaded_even_unverified(released):
    def halve(events):
        events[0]["release"]["costs"]["record"]["zero-out"]["count"] = 1.5
        return events

    edit(released, events=halve)
    for verify in (True, False):
        with pytest.raises(PrivacyError, match=r"count=1\.5"):
            fedtranscribe.load(released, verify=verify)
