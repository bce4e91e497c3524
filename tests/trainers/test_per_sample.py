import pytest
import torch
from dpsgd_nets import (
    denoising_loss,
    gradients_one_by_one,
    squared_loss,
    tiny_unet,
    unet_inputs,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedtranscribe.errors import ConfigError, ModelMismatchError
from fedtranscribe.trainers.per_sample import Backend, record_gradients

BACKENDS = list(Backend)


def assert_agree(net, loss, inputs, backends=BACKENDS):
    wanted = gradients_one_by_one(net, loss, inputs)
    scale = max(float(g.abs().max()) for g in wanted)
    for backend in backends:
        found = record_gradients(backend, net, loss)(inputs)
        for g, w in zip(found, wanted, strict=True):
            torch.testing.assert_close(g, w, atol=1e-4 * max(scale, 1e-3), rtol=1e-4, msg=backend)


@st.composite
def image_nets(draw):
    """A convolution, a norm, and what its shapes allow after them."""
    groups = draw(st.sampled_from([1, 2]))
    width, given_channels = 2 * draw(st.integers(1, 3)), 2
    kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    padding = draw(st.sampled_from([0, 1, 2, "same", "valid"]))
    stride = 1 if padding == "same" else draw(st.integers(1, 2))
    return nn.Sequential(
        nn.Conv2d(
            given_channels,
            width,
            kernel,
            stride,
            padding,
            dilation,
            groups,
            bias=draw(st.booleans()),
        ),
        nn.GroupNorm(2, width),
        nn.ReLU(),
        nn.Conv2d(width, 2, 1),
    )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@settings(max_examples=40, deadline=None, derandomize=True)
@given(image_nets(), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(0, 999))
def test_back_ends_agree_on_convolutions(net, records, copies, channels_last, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(records, copies, 2, 6, 7, generator=rng)
    if channels_last:
        x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    with torch.no_grad():
        y = torch.randn(net(x.flatten(0, 1)).shape, generator=rng).unflatten(0, (records, copies))
    assert_agree(net, squared_loss, (x, y))


class Words(nn.Module):
    """Token indices [r, t] -> [r, t, 2], through most kinds of layers, one of them twice."""

    def __init__(self, width: int, padding_idx: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(6, width, padding_idx=padding_idx)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.along = nn.Conv1d(width, width, 3, padding=1, groups=width)
        self.out = nn.Linear(width, 2, bias=False)
        self.unused = nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.mix(self.norm(self.words(tokens))).tanh()
        x = x + self.along(x.transpose(1, 2)).transpose(1, 2)
        return self.out(self.mix(x))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([None, 2]),
    st.integers(0, 999),
)
def test_back_ends_agree_on_words(records, copies, length, width, padding_idx, seed):
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 6, (records, copies, length), generator=rng)
    target = torch.randn(records, copies, length, 2, generator=rng)
    # Opacus alone would train the padding, and is refused.
    backends = BACKENDS if padding_idx is None else [Backend.CONTRACTED, Backend.FUNCTIONAL]
    assert_agree(Words(width, padding_idx), squared_loss, (tokens, target), backends)


@pytest.mark.parametrize(("records", "copies"), [(1, 1), (3, 2), (1, 4)])
def test_back_ends_agree_on_a_unet_with_a_frozen_part(records, copies):
    # Attention hands on images with channels last, where Opacus alone would err.
    assert_agree(tiny_unet(), denoising_loss, unet_inputs(records, copies))


def test_back_ends_agree_on_tied_weights():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    assert_agree(net, squared_loss, (x, x.flip(0)))


def test_activations_may_work_in_place():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
    x = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0))
    # torch lets no layer with a backward hook, as Opacus has them, be followed by such a one.
    assert_agree(net, squared_loss, (x, x), [Backend.CONTRACTED, Backend.FUNCTIONAL])


def test_three_dimensional_convolutions_are_contracted():
    net = nn.Conv3d(2, 3, (1, 2, 3), padding=(0, 1, 1))
    x = torch.randn(2, 2, 2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(2, 2, 3, 3, 5, 5)
    assert_agree(net, squared_loss, (x, y), [Backend.CONTRACTED, Backend.FUNCTIONAL])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_broken_record_leaves_its_neighbours_alone(backend, bad):
    net, (images, *rest) = tiny_unet(), unet_inputs(3, 2)
    compute = record_gradients(backend, net, denoising_loss)
    good = compute((images, *rest))
    images = images.clone()
    images[1, 0, 0, 3, 3] = bad
    broken = compute((images, *rest))
    for g, b in zip(good, broken, strict=True):
        torch.testing.assert_close(b[[0, 2]], g[[0, 2]], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_left_on_the_network(backend):
    net = tiny_unet()
    before = {name: p.clone() for name, p in net.state_dict().items()}
    record_gradients(backend, net, denoising_loss)(unet_inputs(2, 2))
    assert all(p.grad is None for p in net.parameters())
    assert all(getattr(p, "grad_sample", None) is None for p in net.parameters())
    assert all(
        not (m._forward_hooks or m._forward_pre_hooks or m._backward_hooks) for m in net.modules()
    )
    assert all(torch.equal(p, before[name]) for name, p in net.state_dict().items())
    assert not net.time_embedding.linear_1.weight.requires_grad
    assert net.conv_in.weight.requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm2d(2), "BatchNorm2d at '1'.*mixes the records"),
        (nn.InstanceNorm2d(2, track_running_stats=True), "InstanceNorm2d at '1'.*statistics"),
        (nn.Embedding(2, 2, max_norm=1.0), "max_norm"),
        (nn.Embedding(2, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
    ],
)
def test_layers_that_mix_records_or_keep_them_are_refused(backend, layer, words):
    with pytest.raises(ModelMismatchError, match=words):
        record_gradients(backend, nn.Sequential(nn.Conv2d(1, 2, 1), layer), squared_loss)


def test_layers_that_a_back_end_does_not_know_are_refused_by_name():
    circular = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"))
    for backend in (Backend.CONTRACTED, Backend.OPACUS):
        with pytest.raises(ModelMismatchError, match=r"'0'.*backend=functional"):
            record_gradients(backend, circular, squared_loss)
    with pytest.raises(ModelMismatchError, match="padding_idx=None at '0'"):
        record_gradients(Backend.OPACUS, nn.Sequential(nn.Embedding(2, 2, 0)), squared_loss)
    x = torch.randn(2, 2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert_agree(circular, squared_loss, (x, x), [Backend.FUNCTIONAL])
    with pytest.raises(ModelMismatchError, match="ConvTranspose2d at '0'"):
        record_gradients(
            Backend.CONTRACTED, nn.Sequential(nn.ConvTranspose2d(1, 1, 2)), squared_loss
        )


def test_opacus_wants_training_mode():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    compute = record_gradients(Backend.OPACUS, net, squared_loss)
    net[1].eval()
    with pytest.raises(ConfigError, match="layer '1' in training mode"):
        compute((torch.ones(1, 1, 2), torch.ones(1, 1, 2)))


def test_inputs_changed_in_place_are_noticed():
    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x) * 2
            y = self.second(hidden)
            return y + hidden.mul_(0.5)

    compute = record_gradients(Backend.CONTRACTED, Overwriting(), squared_loss)
    with pytest.raises(ModelMismatchError, match=r"'second'.*in place"):
        compute((torch.ones(1, 1, 2), torch.ones(1, 1, 2)))


def test_a_layer_that_does_not_see_rows_first_is_refused():
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.transpose(0, 1)).transpose(0, 1)

    compute = record_gradients(Backend.CONTRACTED, Turned(), squared_loss)
    with pytest.raises(ModelMismatchError, match=r"rows first at 'linear'"):
        compute((torch.ones(1, 2, 5, 2), torch.ones(1, 2, 5, 2)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_loss_per_row_and_something_to_train(backend):
    net = nn.Linear(2, 2)
    inputs = (torch.ones(2, 3, 2), torch.ones(2, 3, 2))
    with pytest.raises(ConfigError, match="one loss for each"):
        record_gradients(backend, net, lambda n, x, y: (n(x) - y).square().mean())(inputs)
    with pytest.raises(ConfigError, match="Expected a trainable parameter"):
        record_gradients(backend, net.requires_grad_(False), squared_loss)
