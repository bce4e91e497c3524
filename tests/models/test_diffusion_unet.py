import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from fedtranscribe.errors import ConfigError, CorruptWeightsError
from fedtranscribe.models.diffusion import (
    Sampling,
    Schedule,
    Spacing,
    Synthesizer,
    load_synthesizer,
    save_synthesizer,
    to_pixels,
    to_signed,
)
from fedtranscribe.models.unet import Denoiser, UNetSize, make_unet
from fedtranscribe.trainers.denoising import Ema, drop_labels
from fedtranscribe.trainers.records import SharedDraws


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.fixture(scope="module")
def tiny() -> Denoiser:
    return make_unet("tiny", 1, 28, 10)


@pytest.mark.parametrize(
    ("size", "channels", "side", "classes", "millions"),
    [
        ("tiny", 1, 28, 10, 0.28),
        ("small", 1, 28, 10, 1.6),
        ("medium", 1, 28, 10, 6.5),
        ("large", 3, 32, 0, 35.7),
        ("large", 3, 64, 0, 35.7),
    ],
)
def test_sizes_are_those_of_the_paper(
    size: str, channels: int, side: int, classes: int, millions: float
):
    with torch.device("meta"):
        network = make_unet(size, channels, side, classes)
    assert parameters(network) / 1e6 == pytest.approx(millions, rel=0.02)
    attention = [m for m in network.unet.modules() if type(m).__name__ == "Attention"]
    # One level on the way down, the same on the way up, and the middle.
    layers = 1 if size == "tiny" else 2
    assert len(attention) == layers + (layers + 1) + 1


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32), (1, 8)])
def test_a_guess_is_shaped_like_the_image(channels: int, side: int):
    network, x = make_unet("tiny", channels, side, 3), torch.randn(2, channels, side, side)
    guess = network(x, torch.tensor([1, 1000]), torch.tensor([0, 3]))
    assert guess.shape == x.shape
    assert torch.isfinite(guess).all()


def test_the_network_is_told_t_minus_one(tiny: Denoiser):
    told: list[torch.Tensor] = []
    hook = tiny.unet.time_proj.register_forward_hook(lambda m, args, out: told.append(args[0]))
    tiny(torch.zeros(2, 1, 28, 28), torch.tensor([1, 1000]), torch.tensor([0, 10]))
    hook.remove()
    assert told[0].tolist() == [0, 999]


def test_label_null_label_and_step_all_matter(tiny: Denoiser):
    x = torch.randn(1, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def guess(t: int, label: int) -> torch.Tensor:
        return tiny(x, torch.tensor([t]), torch.tensor([label]))

    assert tiny.null_label == 10
    assert not torch.allclose(guess(5, 0), guess(5, 1))
    assert not torch.allclose(guess(5, 0), guess(5, tiny.null_label))
    assert not torch.allclose(guess(5, 0), guess(500, 0))


def test_rows_do_not_meet(tiny: Denoiser):
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    t, labels = torch.tensor([1, 20, 300]), torch.tensor([0, 1, 10])
    other = x.clone()
    other[2] = 50
    with torch.no_grad():
        together, changed = tiny(x, t, labels), tiny(other, t, labels)
    torch.testing.assert_close(together[:2], changed[:2])


def test_the_seed_fixes_the_weights_and_leaves_the_global_generator():
    before = torch.random.get_rng_state()
    one, same, other = (make_unet("tiny", 1, 28, 2, seed=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.unet.conv_in.weight, other.unet.conv_in.weight)


def test_freezing_stops_the_time_embedding_and_nothing_else():
    network = make_unet("tiny", 1, 28, 2)
    network.freeze_time_embedding()
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    layers = ("linear_1", "linear_2")
    assert frozen == {
        f"unet.time_embedding.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")
    }
    assert network.unet.class_embedding.weight.requires_grad


def test_an_unconditional_network_knows_the_null_label_alone():
    network = make_unet("tiny", 1, 28, 0)
    assert network.null_label == 0
    assert network.unet.class_embedding.num_embeddings == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("huge", 1, 28, 10), "tiny, small, medium, large"),
        (("tiny", 0, 28, 10), "channels=0"),
        (("tiny", 1, 28, -1), "classes=-1"),
        (("tiny", 1, 30, 10), "multiple of 4"),
        (("large", 3, 28, 0), "multiple of 8"),
        (("tiny", 1, 4, 10), "size=4"),
    ],
)
def test_impossible_networks_are_refused(arguments: tuple, word: str):
    with pytest.raises(ConfigError, match=word):
        make_unet(*arguments)


def test_labels_are_dropped_at_the_rate_asked_for():
    labels = torch.arange(10).repeat(2_000)
    draws = SharedDraws(torch.Generator().manual_seed(0), len(labels))
    dropped = drop_labels(labels, 10, 0.1, draws)
    assert float((dropped == 10).float().mean()) == pytest.approx(0.1, abs=0.01)
    assert torch.equal(dropped[dropped != 10], labels[dropped != 10])
    assert torch.equal(drop_labels(labels, 10, 0.0, draws), labels)


# ---------------------------------------------------------------- averaged weights


def test_the_mean_is_the_recursion_written_out():
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, 1.0)
    ema, expected = Ema(network, 0.5), 1.0
    for k, value in enumerate([3.0, -2.0, 5.0, 7.0, 11.0, 13.0, 2.0, 8.0, 1.0, 4.0], start=1):
        nn.init.constant_(network.weight, value)
        ema.update_parameters(network)
        kept = min(0.5, (1 + k) / (10 + k))
        expected = kept * expected + (1 - kept) * value
        assert float(ema.network.weight) == pytest.approx(expected)


def test_a_restart_forgets_everything():
    network = nn.Linear(2, 2)
    ema, late = Ema(network, 0.9), nn.Linear(2, 2)
    for _ in range(50):
        ema.update_parameters(network)
    ema.restart(late)
    assert torch.equal(ema.network.weight, late.weight)
    ema.update_parameters(network)
    # Two elevenths are kept after the first step, not nine tenths.
    torch.testing.assert_close(
        ema.network.weight, late.weight.lerp(network.weight, 9 / 11), rtol=1e-5, atol=1e-6
    )


def test_the_copy_is_its_own_and_is_not_trained():
    network = nn.Linear(2, 2)
    ema = Ema(network, 0.9)
    nn.init.zeros_(network.weight)
    assert bool(ema.network.weight.any())
    assert not any(p.requires_grad for p in ema.network.parameters())
    assert not ema.network.training


def test_averaging_goes_on_from_its_state():
    network, fresh = nn.Linear(2, 2), nn.Linear(2, 2)
    ema, other = Ema(network, 0.9), Ema(fresh, 0.9)
    for _ in range(3):
        nn.init.normal_(network.weight)
        ema.update_parameters(network)
    other.load_state_dict(ema.state_dict())
    for one in (ema, other):
        one.update_parameters(network)
    assert torch.equal(ema.network.weight, other.network.weight)


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_a_decay_outside_its_range_is_refused(decay: float):
    with pytest.raises(ConfigError, match="ema_decay"):
        Ema(nn.Linear(1, 1), decay)


# ---------------------------------------------------------------- files and pixels


def model_of(denoiser: Denoiser) -> Synthesizer:
    sampling = Sampling(7, eta=0.5, guidance=1.8, spacing=Spacing.LINSPACE)
    return Synthesizer(denoiser, Schedule(500, 1e-4, 0.028), sampling, conditional=True)


def test_a_file_brings_back_all_that_sampling_needs(tiny: Denoiser, tmp_path: Path):
    path, saved = tmp_path / "model.safetensors", model_of(tiny)
    save_synthesizer(saved, path)
    with safe_open(path, framework="pt") as file:
        assert list(file.metadata()) == ["network"]
        assert json.loads(file.metadata()["network"])["kind"] == "denoiser"
    model = load_synthesizer(path)
    assert (model.schedule, model.sampling) == (saved.schedule, saved.sampling)
    loaded = model.denoiser
    assert model.classes == 10
    assert (loaded.size_name, loaded.classes, loaded.training) == (UNetSize.TINY, 10, False)
    x, t, y = torch.randn(1, 1, 28, 28), torch.tensor([7]), torch.tensor([3])
    with torch.no_grad():
        assert torch.equal(loaded(x, t, y), tiny.eval()(x, t, y))


def test_equal_networks_are_equal_files(tiny: Denoiser, tmp_path: Path):
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_synthesizer(model_of(tiny), first)
    save_synthesizer(model_of(make_unet("tiny", 1, 28, 10)), second)
    assert first.read_bytes() == second.read_bytes()


def test_foreign_and_damaged_files_are_refused(tiny: Denoiser, tmp_path: Path):
    from fedtranscribe.models import Generator, save_network

    foreign, damaged = tmp_path / "generator.safetensors", tmp_path / "damaged.safetensors"
    save_network(Generator(8, 1, 28, 4), foreign)
    save_synthesizer(model_of(tiny), damaged)
    damaged.write_bytes(damaged.read_bytes()[:-1000])
    for path in (foreign, damaged):
        with pytest.raises(CorruptWeightsError, match=path.name):
            load_synthesizer(path)


def test_pixels_survive_the_way_there_and_back():
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    signed = to_signed(pixels)
    assert (float(signed.min()), float(signed.max())) == (-1, 1)
    assert torch.equal(to_pixels(signed), pixels)
    assert to_pixels(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]
