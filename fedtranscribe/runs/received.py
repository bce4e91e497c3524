"""A trained network as a server receives it: what it recomputes before it believes the holder.

Guarantee:
    ε that the server writes down is that of the release that came with the network, under the
    run's own δ and adjacency, worked out here. A holder that claims another is refused. Whether it
    booked that release, and trained as it says, is its own word: nobody else sees its records.
"""

import hashlib
import math

from fedtranscribe.config import FederationSettings
from fedtranscribe.errors import ProtocolError, UnsupportedAdjacencyError
from fedtranscribe.models.diffusion import Synthesizer
from fedtranscribe.privacy.accountant import quote, sound_table
from fedtranscribe.privacy.release_plan import Release
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.result_parts import StatedGuarantee
from fedtranscribe.wire.trainings import TrainedNetwork

# Two machines may round a sum of many numbers in other ways.
_ROUNDING = 1e-6
_MOST_RECORDS = 2**53


def expect_described(holder: str, trained: TrainedNetwork) -> None:
    """Refuse a network that is not the one that its holder describes, before it is written.

    Raises:
        ProtocolError: its digest or its number of records is wrong.
    """
    told = trained.facts.diffusion
    if hashlib.sha256(trained.network).hexdigest() != told.sha256:
        raise ProtocolError(f"The network of holder {holder} is not the one that it describes.")
    if not 1 <= told.records <= _MOST_RECORDS:
        raise ProtocolError(f"Holder {holder} says that it has {told.records} records.")


def expect_shape(holder: str, trained: TrainedNetwork, model: Synthesizer) -> None:
    """Refuse a network of other images or classes than its holder says.

    Raises:
        ProtocolError: names both.
    """
    told, network = trained.facts.diffusion, model.denoiser
    said = told.channels, told.size, told.classes
    got = network.channels, network.size, model.classes
    if said != got:
        raise ProtocolError(
            f"Holder {holder} describes a network of {_shape(said)}, and sent one of {_shape(got)}."
        )


def verified(settings: FederationSettings, holder: str, trained: TrainedNetwork) -> StatedGuarantee:
    """What a holder says its training cost, once it follows from the release that it sent.

    Raises:
        ProtocolError: another method, δ, unit or adjacency than was asked for, or another ε.
    """
    told, asked = trained.facts.guarantee, Adjacency(settings.training.adjacency)
    said = trained.facts.method, told.delta, told.unit, told.adjacency
    if said != (settings.method, settings.delta, Unit.RECORD, asked):
        raise ProtocolError(
            f"Holder {holder} trained with method={said[0]}, delta={said[1]}, unit={said[2]}, "
            f"adjacency={said[3]}; that is not what it was asked for."
        )
    release = Release.from_json(dict(trained.release))
    try:
        epsilon, accountant = quote([release.event(Unit.RECORD, asked)], settings.delta)
    except UnsupportedAdjacencyError as error:
        raise ProtocolError(f"Holder {holder}: {error}") from None
    if told.epsilon is None or not math.isclose(told.epsilon, epsilon, rel_tol=_ROUNDING):
        raise ProtocolError(
            f"Holder {holder} says that its training cost ε = {told.epsilon}; what it booked costs "
            f"{epsilon:.6g}."
        )
    sound = sound_table([release], Unit.RECORD, settings.delta)
    words = told.model_dump(exclude={"units"}, exclude_unset=True)
    figures = {"epsilon": epsilon, "accountant": accountant, "sound": sound}
    return StatedGuarantee.model_validate({**words, **figures})


def _shape(shape: tuple[int, int, int]) -> str:
    channels, side, classes = shape
    return f"{channels}x{side}x{side}, {classes} classes"
