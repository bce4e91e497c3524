import numpy as np
import pytest
import torch

from fedtranscribe.data.validation import to_images, to_labels
from fedtranscribe.errors import InvalidDataError


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 8, 8), (5, 1, 8, 8)),
        ((5, 8, 8, 1), (5, 1, 8, 8)),
        ((5, 8, 8, 3), (5, 3, 8, 8)),
        ((5, 3, 8, 8), (5, 3, 8, 8)),
    ],
)
def test_layouts(shape, expected):
    assert to_images(np.zeros(shape, dtype=np.uint8), "x").shape == expected


def test_channels_last_is_moved_and_not_reshaped():
    raw = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    assert torch.equal(to_images(raw, "x")[1, 2], torch.from_numpy(raw[1, :, :, 2].copy()))


def test_floats_are_scaled_by_their_type_and_never_by_their_largest_value():
    dim = np.full((1, 4, 4), 0.5)
    assert to_images(dim, "x").unique().tolist() == [128]
    assert to_images(np.ones((1, 4, 4), dtype=np.int64), "x").unique().tolist() == [1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_pixels_are_refused(value):
    raw = np.zeros((3, 4, 4))
    raw[1, 2, 3] = value
    with pytest.raises(InvalidDataError, match="NaN or infinity"):
        to_images(raw, "scan.npz images")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (np.full((1, 4, 4), 17.0), r"within \[0, 1\]"),
        (np.full((1, 4, 4), -0.1), r"within \[0, 1\]"),
        (np.full((1, 4, 4), 256), r"within \[0, 255\]"),
        (np.full((1, 4, 4), -1), r"within \[0, 255\]"),
        (np.zeros((4, 4), dtype=np.uint8), "shape"),
        (np.zeros((0, 4, 4), dtype=np.uint8), "shape"),
        (np.zeros((1, 4, 4, 5), dtype=np.uint8), "1 or 3 channels"),
        (np.full((1, 4, 4), "a"), "numeric"),
    ],
)
def test_bad_pixels_are_refused(raw, words):
    with pytest.raises(InvalidDataError, match=words):
        to_images(raw, "x")


def test_labels_as_integers_whole_floats_or_a_column():
    for raw in (np.array([0, 2, 1], dtype=np.uint8), np.array([0.0, 2.0, 1.0])):
        assert to_labels(raw, "y").tolist() == [0, 2, 1]
        assert to_labels(raw[:, None], "y").tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (np.zeros((3, 2), dtype=np.int64), "one class number per image"),
        (np.array([0.5, 1.0]), "whole"),
        (np.array([np.nan, 1.0]), "whole"),
        (np.array(["cat", "dog"]), "class numbers"),
    ],
)
def test_bad_labels_are_refused(raw, words):
    with pytest.raises(InvalidDataError, match=words):
        to_labels(raw, "y")
