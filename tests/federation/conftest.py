"""A federation of tiny holders that lives in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedtranscribe.config import DpsdSettings, FederationSettings, TeacherSettings
from fedtranscribe.data import DataSplit, load
from fedtranscribe.data.partitions import holder_name
from fedtranscribe.holder.node import Node
from fedtranscribe.holder.policy import HolderPolicy
from fedtranscribe.methods.dpsd import DPSD
from fedtranscribe.methods.moments import MomentsMethod
from fedtranscribe.models import fixed_features
from fedtranscribe.noise.sources import SeededBits, SeededNoise
from fedtranscribe.runs.simulation import open_holder, partitions

HOLDERS = 3

OpenNodes = Callable[..., list[Node]]


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a grid takes as long as the rest of a tiny run."""
    for module in ("learning", "pooled"):
        monkeypatch.setattr(f"fedtranscribe.runs.{module}.figures_available", lambda: False)


@pytest.fixture
def settings(tiny_data: Path) -> FederationSettings:
    """Three holders of two shards; a whole run in a second or two."""
    return FederationSettings(
        data=str(tiny_data),
        holders=HOLDERS,
        alpha=10.0,
        shards=2,
        teacher="cnn-small",
        student="cnn-small",
        rows=30,
        retries=1,
        retry_after=0.0,
        noise="central",
        force=True,
        device="cpu",
        teachers=TeacherSettings(steps=2, batch=4),
        dpsd=DpsdSettings(
            round_rows=10,
            batch=8,
            student_steps=2,
            finish_steps=2,
            generator_steps=1,
            latent_dim=8,
            generator_width=4,
            pretrain_steps=2,
            moments_steps=2,
            public_share=0.5,
        ),
    )


@dataclass(frozen=True)
class Case:
    """What a run asks; the same faults do the same to it, whatever that is.

    `mechanism` is what ledgers call its answers under masks.
    """

    settings: FederationSettings
    rounds: int
    rows: int
    names: str
    method: type[Any]
    mechanism: str

    def query_id(self, number: int) -> str:
        return f"run-fixed/{self.names.format(number)}"


@pytest.fixture(params=["votes", "sums"])
def either(request: pytest.FixtureRequest, settings: FederationSettings) -> Iterator[Case]:
    """Votes of teachers, or sums over records; these are short ones, of few features."""
    if request.param == "votes":
        yield Case(settings, 3, 30, "{:06d}", DPSD, "secagg-mean-votes")
        return
    chosen = settings.model_copy(update={"student": None, "descent_rounds": 0, "mixture_share": 0})
    with _coarse_features():
        yield Case(chosen, 2, 2, "moments-{}", MomentsMethod, "secagg-moments")


@contextmanager
def _coarse_features() -> Iterator[None]:
    """Instead of wavelet features, some that cost next to nothing."""
    coarse = replace(
        fixed_features._FIXED["scatter"],
        make=lambda channels: nn.Sequential(nn.AvgPool2d(4), nn.Flatten()),
        width=20,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fixed_features._FIXED, "scatter", coarse)
        fixed_features.coefficient_count.cache_clear()
        yield
    fixed_features.coefficient_count.cache_clear()


@pytest.fixture
def split(settings: FederationSettings) -> DataSplit:
    return load(settings.data)


@pytest.fixture
def open_nodes(split: DataSplit, tmp_path: Path) -> OpenNodes:
    """Opens the holders of some settings; `policies` says otherwise for one of them."""

    def opener(
        settings: FederationSettings,
        policies: dict[int, HolderPolicy] | None = None,
        folder: str = "holders",
        **options: Any,
    ) -> list[Node]:
        noise, bits = options.pop("noise", SeededNoise(7)), options.pop("bits", SeededBits(7))
        return [
            open_holder(
                settings,
                part,
                number,
                tmp_path / folder / holder_name(number),
                policy=(policies or {}).get(number),
                noise=noise.for_query(holder_name(number)),
                bits=bits.for_query(holder_name(number)) if bits else None,
            )
            for number, part in enumerate(partitions(settings, split.train))
        ]

    return opener
