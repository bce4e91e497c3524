"""Which mechanism answers pass through, by the public plan that holder and server agree on."""

from fedtranscribe.errors import ConfigError
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.gaussian import CentralNoise, LocalNoise
from fedtranscribe.noise.masked import MaskedShare
from fedtranscribe.noise.randomized_labels import ExponentialVoteLabels, TopKRandomizedResponse
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import NoiseMode

Labels = TopKRandomizedResponse | ExponentialVoteLabels


Mechanism = LocalNoise | CentralNoise | MaskedShare | Labels


def gaussian_mechanism(bound: Bound, plan: NoisePlan) -> LocalNoise | CentralNoise | MaskedShare:
    """Noise on bounded vectors, where the plan places it."""
    if plan.mode is NoiseMode.LOCAL:
        return LocalNoise(bound, plan.strength, plan.holders)
    if plan.mode is NoiseMode.CENTRAL:
        return CentralNoise(bound, plan.strength, plan.holders)
    return MaskedShare(bound, plan.strength, plan.holders, plan.tolerated)


def label_mechanism(shards: int, k: int, plan: NoisePlan) -> Labels:
    """Labels that are private by themselves: of one teacher, or of an ensemble's votes.

    Raises:
        ConfigError: another mode than `local`; a label has no noise that somebody else could add.
    """
    if plan.mode is not NoiseMode.LOCAL:
        raise ConfigError(f"Expected noise mode local with label answers, got {plan.mode}.")
    if shards == 1:
        return TopKRandomizedResponse(plan.strength, k)
    return ExponentialVoteLabels(plan.strength, k)
