"""Private records, their images, their own random numbers, and DP-SGD on batches of them.

A training draws time steps, target noise and dropped labels for every row. For public images one
stream, seeded in public, serves them all. For private records it must not: were the numbers handed
out by the place in the batch, one record's coin would shift everybody else's, and an observer who
knows the stream could read from the sum how many records took part.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.sources import BitSource, NoiseSource
from fedtranscribe.privacy.diffusion import DpSgdPlan
from fedtranscribe.trainers.per_sample import Backend, Inputs, Loss
from fedtranscribe.trainers.private_steps import DpSgdStep, PoissonBatches

KEY_WORDS = 4
"""64-bit words in a key of `OwnDraws`."""


class Draws(Protocol):
    """Random numbers for n rows; each call gives fresh ones."""

    def integers(self, values: range) -> Tensor:
        """Uniform in `values`, int64 [n]."""
        ...

    def uniform(self) -> Tensor:
        """Uniform in [0, 1), float32 [n]."""
        ...

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal, float32 [n, *shape]."""
        ...


class SharedDraws:
    """One stream for all rows: for public rows, and for post-processing."""

    def __init__(self, rng: torch.Generator, rows: int) -> None:
        self._rng, self._rows = rng, rows

    def integers(self, values: range) -> Tensor:
        """Uniform in `values`, int64 [n]."""
        rng, shape = self._rng, (self._rows,)
        return torch.randint(values.start, values.stop, shape, generator=rng, device=rng.device)

    def uniform(self) -> Tensor:
        """Uniform in [0, 1), float32 [n]."""
        return torch.rand(self._rows, generator=self._rng, device=self._rng.device)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal, float32 [n, *shape]."""
        rng = self._rng
        return torch.randn(self._rows, *shape, generator=rng, device=rng.device)


class OwnDraws:
    """A stream of its own for each private record of a step.

    Args:
        key: secret, of one step of one training, and of nothing else: `KEY_WORDS` words of a
            `BitSource`.
        records: int64 [b], distinct.
        copies: K rows for each record, one after the other, so that n = b K.
        device: where the numbers are drawn; the streams of another kind of device differ.

    Guarantee:
        What a record gets is a function of the key and the record alone: of neither its place in
        the batch nor of who else is there, nor of how the batch is cut into parts. With the coins
        of all others fixed, two data sets that differ in one record show the same numbers to all
        others; so the sum of a step differs in that record's term only, which is what the proof of
        the Poisson-sampled Gaussian (`PoissonGaussian`) compares.
        A record's seed is keyed BLAKE2b of it. On a CPU torch uses 32 bits of a seed, so that two
        records may share a stream with probability 2⁻³². That is a matter of chance, not of data.
    """

    def __init__(self, key: bytes, records: Tensor, copies: int, device: torch.device) -> None:
        self._streams = [_stream(key, record, device) for record in records.tolist()]
        self._copies, self._device = copies, device

    def integers(self, values: range) -> Tensor:
        """Uniform in `values`, int64 [b K]."""
        out = self._empty(dtype=torch.int64)
        for rows, stream in zip(out, self._streams, strict=True):
            rows.random_(values.start, values.stop, generator=stream)
        return out.flatten()

    def uniform(self) -> Tensor:
        """Uniform in [0, 1), float32 [b K]."""
        out = self._empty(dtype=torch.float32)
        for rows, stream in zip(out, self._streams, strict=True):
            rows.uniform_(generator=stream)
        return out.flatten()

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal, float32 [b K, *shape]."""
        out = self._empty(*shape, dtype=torch.float32)
        for rows, stream in zip(out, self._streams, strict=True):
            rows.normal_(generator=stream)
        return out.flatten(0, 1)

    def _empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        rows = (len(self._streams), self._copies)
        return torch.empty(*rows, *shape, dtype=dtype, device=self._device)


def _stream(key: bytes, record: int, device: torch.device) -> torch.Generator:
    words = record.to_bytes(8, "big")
    seed = hashlib.blake2b(words, key=key, digest_size=8).digest()
    # torch takes signed seeds.
    return torch.Generator(device).manual_seed(int.from_bytes(seed, "big") >> 1)


class RecordImages:
    """Private images and labels; all images of one id are one record.

    Args:
        images: float32 [N, c, h, w] in [-1, 1].
        labels: int64 [N].
        ids: one per image; None where every image is a record of its own.

    Guarantee:
        Unit: record, which is an id with all of its images. One image of a record is drawn for
        each row that asks for it, afresh from the record's own stream, so that its images
        share one coin and one clipped gradient; as an average over time, they count alike. Which
        image was drawn is as secret as the images.
    """

    def __init__(self, images: Tensor, labels: Tensor, ids: Sequence[str] | None = None) -> None:
        if ids is not None and len(ids) != len(images):
            raise ConfigError(f"Expected one id per image, got {len(ids)} for {len(images)}.")
        self._images, self._labels = images, labels
        numbers: dict[str, int] = {}
        record_of = [
            numbers.setdefault(i, len(numbers)) for i in ids or map(str, range(len(images)))
        ]
        records = torch.tensor(record_of)
        # The images of record r: rows first[r] .. first[r] + count[r] of `order`.
        self._order = records.argsort(stable=True)
        self._count = records.bincount()
        self._first = self._count.cumsum(0) - self._count

    def __len__(self) -> int:
        """How many records there are; public."""
        return len(self._count)

    def pick(self, records: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """An image [n, c, h, w] of each record [n], by its own stream, and its label [n]."""
        which = (draws.uniform().cpu().double() * self._count[records]).long()
        rows = self._order[self._first[records] + which]
        return self._images[rows], self._labels[rows]


Prepare = Callable[[Tensor, Tensor, Draws], Inputs]
"""(x_0 [n, c, h, w], labels [n], random numbers of these n rows) -> what the loss takes, each
[n, ...]; row by row, and with no other randomness than that."""

# Rows at a time where no per-record gradient is needed.
_PLAIN_ROWS = 512


@dataclass(eq=False)
class PrivateRecords:
    """Private images and labels, and the plan that every training on them follows.

    Guarantee:
        Each training, by its name, is a DP-SGD of `plan` when `protected` (see `DpSgdPlan` and
        `DpSgdStep`); a step's Poisson batch and noise belong to its name and number alone. What
        `prepare` makes of a row may depend on that row, the record's own random numbers
        (`OwnDraws`, under a key that is drawn for the step and thrown away), and networks that are
        public or private outputs: it is inside the record's clipped term. No public stream is
        touched, so that none reveals afterwards how many records took part.
    """

    images: RecordImages  # as many records as the plan has
    plan: DpSgdPlan  # of each training
    _: KW_ONLY
    protected: bool  # clip and add noise; otherwise steps are those of ordinary training
    noise: NoiseSource  # of DP-SGD; as it is for steps that are not protected
    bits: BitSource  # coins of the batches, and keys of the records' own streams
    backend: Backend  # of the per-record gradients
    physical_batch: int | None  # records at a time in DP-SGD; None measures it for each training
    device: torch.device  # of the networks
    # The physical batch of each training that was measured, by name.
    measured: dict[str, int | None] = field(default_factory=dict)

    def step(
        self,
        name: str,
        done: int,
        network: nn.Module,
        loss: Loss,
        prepare: Prepare,
        optimiser: torch.optim.Optimizer,
    ) -> None:
        """One step of one training.

        Args:
            name: of the training.
            done: its steps before this one.
            network: that learns.
            loss: (network, *rows) -> losses [rows], as `prepare` makes the rows.
            prepare: makes the rows of the loss, with all of its randomness.
            optimiser: of the network.
        """
        plan = self.plan
        if not self.protected:
            parts = self.parts(name, done)
            self._plain_step((loss(network, *prepare(*part)) for part in parts), optimiser)
            return
        key = self._key(name, done)

        def draw(indices: Tensor) -> Inputs:
            rows = prepare(*self._copies(indices, key))
            return tuple(tensor.unflatten(0, (-1, plan.multiplicity)) for tensor in rows)

        step = DpSgdStep(
            network,
            plan,
            loss,
            self.backend,
            self.noise.for_query(f"{name}/{done}"),
            self.measured.get(name, self.physical_batch),
            taken=done,
        )
        step.step(optimiser, draw, self._poisson(name, done))
        self.measured[name] = step.physical_batch

    def parts(self, name: str, done: int) -> Iterator[tuple[Tensor, Tensor, Draws]]:
        """What `prepare` takes of one step's batch, K times each, some records at a time."""
        indices, key = self._poisson(name, done), self._key(name, done)
        for part in indices.split(max(1, _PLAIN_ROWS // self.plan.multiplicity)):
            if len(part):
                yield self._copies(part, key)

    def _plain_step(self, losses: Iterable[Tensor], optimiser: torch.optim.Optimizer) -> None:
        """Without clipping and noise; NOT private."""
        total = self.plan.batch * self.plan.multiplicity
        optimiser.zero_grad()
        for part in losses:
            (part.sum() / total).backward()
        optimiser.step()

    def _poisson(self, name: str, done: int) -> Tensor:
        return PoissonBatches(self.plan, self.bits.for_query(f"{name}/{done}")).draw()

    def _key(self, name: str, done: int) -> bytes:
        return self.bits.for_query(f"{name}/{done}/rows").words(KEY_WORDS).tobytes()

    def _copies(self, indices: Tensor, key: bytes) -> tuple[Tensor, Tensor, Draws]:
        """On the device, each record K times in a row, with its own random numbers."""
        copies = self.plan.multiplicity
        draws = OwnDraws(key, indices, copies, self.device)
        images, labels = self.images.pick(indices.repeat_interleave(copies), draws)
        return images.to(self.device), labels.to(self.device), draws
