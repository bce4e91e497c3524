"""The data holder's side of private moments: ledger first, then records, then the answer."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedtranscribe.data import ImageSet
from fedtranscribe.errors import ConfigError, CorruptLedgerError, ModelMismatchError
from fedtranscribe.exchange import Moments, MomentsQuery
from fedtranscribe.mechanisms import MomentSums, NoiseSource, NoisyMoments, OsNoise, moment_sums
from fedtranscribe.models.scattering import Scattering, coefficient_count, unit_rows_of
from fedtranscribe.privacy.answering import answer_once
from fedtranscribe.privacy.ledger import Ledger

_BATCH = 200


class MomentsHolder:
    """Tells noisy moments of its records' features, each query once.

    Args:
        images: the holder's private records.
        ledger: the budget book of the DATA, open for writing.
        run: name under which the ledger books.
        device: where to compute features.
        noise: OS entropy unless a test says otherwise.

    Guarantee:
        That of `NoisyMoments`, for the sum of everything the ledger has booked. Features of a
        record depend on the record and the public query alone: blocks of records always have one
        shape, because kernels round by it. Records of one id share one record's weight. The order
        is that of `answer_once`.
    """

    def __init__(
        self,
        images: ImageSet,
        ledger: Ledger,
        run: str,
        *,
        device: torch.device,
        noise: NoiseSource | None = None,
    ) -> None:
        self.images = images
        self.ledger = ledger
        self.run = run
        self.noise = noise or OsNoise()
        self._device = device

    def answer(self, query: MomentsQuery, mechanism: NoisyMoments) -> Moments:
        """Answer one query, once: charged once, replayable for ever.

        Raises:
            ConfigError, ModelMismatchError: the public query does not fit; nothing was booked.
            BudgetExhaustedError: the holder's limit would be exceeded; nothing was booked.
            QueryConflictError: the id was used for another query.
        """
        self._check_public_part(query, mechanism)

        def compute() -> bytes:
            classes = self.images.classes if query.by_class else None
            sums = moment_sums(self._blocks(query), query.map.shape[1] + 1, classes)
            return _encode(mechanism.privatise(sums, self.noise.for_query(query.id)))

        bound_to = f"{query.digest()} {mechanism.noise_std.hex()}"
        release = mechanism.release(positional_ids=self.images.positional)
        stored, head = answer_once(self.ledger, query.id, bound_to, release, self.run, compute)
        return self._decode(stored, query, (head.sequence, head.hash))

    def _check_public_part(self, query: MomentsQuery, mechanism: NoisyMoments) -> None:
        if query.by_class != mechanism.by_class:
            raise ConfigError("Expected a mechanism for the moments that the query asks for.")
        shape = self.images.channels, self.images.size
        raw = coefficient_count(*shape)
        if len(query.centre) != raw:
            raise ModelMismatchError(
                f"Expected a centre of {raw} coefficients for images of {shape[0]}x{shape[1]}x"
                f"{shape[1]}, got {len(query.centre)}."
            )

    @torch.no_grad()
    def _blocks(self, query: MomentsQuery) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, labels and weights, some records at a time; the last block is filled with zeros."""
        scattering = Scattering().to(self._device)
        times = Counter(self.images.ids)
        weights = torch.tensor([1 / times[i] for i in self.images.ids], dtype=torch.float64)
        centre, mapped = query.centre.to(self._device), query.map.to(self._device)
        for picked in torch.arange(len(self.images)).split(_BATCH):
            images = self.images.images[picked]
            filled = torch.cat([images, images.new_zeros(_BATCH - len(images), *images.shape[1:])])
            pixels = filled.to(self._device).float() / 255
            # In float32; `moment_sums` bounds rows in float64, whatever they are.
            rows = unit_rows_of(scattering(pixels), centre, mapped)[: len(images)]
            yield rows, self.images.labels[picked], weights[picked]

    def _decode(self, stored: bytes, query: MomentsQuery, head: tuple[int, str]) -> Moments:
        width = query.map.shape[1] + 1
        classes = self.images.classes if query.by_class else 0
        values = np.frombuffer(stored, dtype=np.float64)
        if len(values) != width * (width + classes):
            raise CorruptLedgerError(
                f"A stored answer has {len(values)} values, expected {width * (width + classes)}; "
                "the ledger was not written by this version."
            )
        both = torch.from_numpy(values.copy()).reshape(width, width + classes)
        by_class = both[:, width:].contiguous() if query.by_class else None
        return Moments(query.id, both[:, :width].contiguous(), by_class, head)


def _encode(sums: MomentSums) -> bytes:
    parts = [sums.second] if sums.by_class is None else [sums.second, sums.by_class]
    return torch.cat(parts, dim=1).contiguous().numpy().tobytes()
