"""Names of classes in a release: they come from outside, so they are bounded and never markup."""

import json
from pathlib import Path

import pytest
import torch

import fedtranscribe
from fedtranscribe.errors import ConfigError, PrivacyError, StorageError
from fedtranscribe.releases import make_release, verify
from fedtranscribe.releases.statement import read_statement

pytestmark = pytest.mark.usefixtures("without_onnx")


def name_classes(run: Path, names: list) -> None:
    result = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**result, "class_names": names}))


def test_odd_names_are_escaped_and_state_no_epsilon(run):
    names = ["*benign*", "[x](http://y) <b>|`", "epsilon = 0.01"]
    name_classes(run, names)
    folder = make_release(run).folder
    assert verify(folder).ok
    assert read_statement(folder).class_names == tuple(names)
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert r"- Classes, from 0: \*benign\*, \[x\]\(http://y\) &lt;b&gt;\|\`" in card
    predicted = fedtranscribe.load(folder).predict(torch.zeros(2, 1, 28, 28), names=True)
    assert set(predicted) <= set(names)
    (folder / "card.md").write_text(card.replace("benign", "malign"), encoding="utf-8")
    assert not verify(folder).ok


def test_a_release_whose_classes_have_no_names(made_once):
    release = fedtranscribe.load(made_once)
    assert release.class_names is None
    with pytest.raises(ConfigError, match="does not name its classes"):
        release.predict(torch.zeros(1, 1, 28, 28), names=True)


@pytest.mark.parametrize("names", [["a", "b"], "abc", [1, 2, 3], ["a", "b", "c\n"], 3])
def test_names_that_do_not_fit_are_not_released(run, names):
    name_classes(run, names)
    with pytest.raises(StorageError, match="damaged"):
        make_release(run)


def test_names_that_were_changed_do_not_fit_the_network(run):
    name_classes(run, ["a", "b", "c"])
    folder = make_release(run).folder
    said = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    (folder / "privacy.json").write_text(json.dumps({**said, "class_names": ["a", "b"]}))
    with pytest.raises(PrivacyError, match="names 2 classes, the network has 3"):
        fedtranscribe.load(folder)
