"""`--public-data` that are the private records: refused before anything is trained or spent."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedtranscribe.config import TranscribeSettings
from fedtranscribe.data import load
from fedtranscribe.errors import ConfigError
from fedtranscribe.runs.preparation import prepare


def refuse(settings: TranscribeSettings, public: str | Path, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        prepare(settings.model_copy(update={"public_data": str(public)}))
    for name in (f"public_data={str(public)!r}", f"data={settings.data!r}", "choose another set"):
        assert name in str(error.value)


def nothing_was_spent(folder: Path) -> bool:
    return not [*folder.rglob("*.sqlite*"), *folder.rglob("teacher-*")]


@pytest.mark.long
@pytest.mark.parametrize("source", ["moments", "teachers"])
def test_the_digits_are_not_public_beside_the_digits(source, own_home: Path):
    """A student that was pre-trained on its 4,000 records got 98.9 % of them right at ε = 1."""
    settings = TranscribeSettings(data="digits", source=source, epsilon=1.0)
    refuse(settings, "digits", "data_id 'digits' is that of")
    assert not own_home.exists()


@pytest.mark.long
def test_a_copy_of_the_digits_under_another_name(tmp_path: Path):
    whole = load("digits")
    images = np.concatenate([part.images.numpy() for part in (whole.test, whole.train)])
    labels = np.concatenate([part.labels.numpy() for part in (whole.test, whole.train)])
    np.savez(tmp_path / "handwriting.npz", images=images, labels=labels, classes=10)
    refuse(TranscribeSettings(data="digits"), tmp_path / "handwriting.npz", "exactly those of")


def test_a_copy_a_link_and_another_spelling(
    tiny_settings: TranscribeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert tiny_settings.data is not None
    copy = shutil.copy(tiny_settings.data, tmp_path / "public.npz")
    refuse(tiny_settings, copy, "exactly those of")
    link = tmp_path / "link.npz"
    link.symlink_to(tiny_settings.data)
    refuse(tiny_settings, link, "the file or folder of")
    monkeypatch.chdir(tmp_path)
    for spelled in ("tiny.npz", "./tiny.npz"):
        refuse(tiny_settings, spelled, "the file or folder of")
    refuse(tiny_settings.model_copy(update={"data": "./tiny.npz"}), "tiny.npz", "the file or")
    assert nothing_was_spent(tmp_path)


def test_other_images_are_public(tiny_settings: TranscribeSettings, tmp_path: Path):
    assert tiny_settings.data is not None
    images = 255 - np.load(tiny_settings.data)["images"]
    np.savez(tmp_path / "public.npz", images=images, labels=np.arange(60) % 3, classes=3)
    other = tiny_settings.model_copy(update={"public_data": str(tmp_path / "public.npz")})
    assert prepare(other).public is not None
