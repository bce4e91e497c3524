"""A plan for sums over records: moments for the student and, with a share, its generator's."""

import math
from collections.abc import Mapping

from fedtranscribe.errors import ConfigError
from fedtranscribe.methods.mixture import QuestionShape, fits, picked_cuts, question_shapes
from fedtranscribe.methods.sharpening import AXES as SHARPENED
from fedtranscribe.methods.sharpening import WORTH_SHARPENING, cost_of
from fedtranscribe.models.fixed_features import FIXED, features_for, row_length, row_width
from fedtranscribe.noise.bounds import Bound
from fedtranscribe.noise.masked import masked_noise_std
from fedtranscribe.privacy.calibrate import ROUNDING
from fedtranscribe.privacy.closed_forms import gaussian_mu
from fedtranscribe.privacy.forecasts import in_short, moments_forecast
from fedtranscribe.privacy.release_plan import NoisePlan
from fedtranscribe.privacy.units import Adjacency, NoiseMode, Unit
from fedtranscribe.privacy.zcdp import zcdp_rho
from fedtranscribe.questions.capabilities import Capabilities
from fedtranscribe.questions.descent import gradients_bound
from fedtranscribe.questions.mixture import mixture_bound, products_bound
from fedtranscribe.questions.moments import moments_bound
from fedtranscribe.questions.question import MOST_NUMBERS, Kind, triangle_length
from fedtranscribe.rounds.plan import Asked, Part, Plan
from fedtranscribe.text import counted

# Of μ², which adds up: the first question about moments only has to show which axes matter.
_FIRST_SHARE = 0.3
# What of the student's budget moments had where the verdicts of forecasts were found.
_FORECAST_SHARE = 0.5
# Of the budget of sums, for a generator of grey images and of colour ones; and of grey ones where
# the student's sums would stand so far above their noise that it hardly misses half of its budget.
_GREY_SHARE, _COLOUR_SHARE, _AMPLE_SHARE = 0.3, 0.1, 0.5
_AMPLE = 100.0
# Of the generator's budget, to sharpen it.
_SHARPEN_SHARE = 0.6
# Below so many times its noise, a class of a mixture shows nothing that tells it from others.
_WORTH_A_MIXTURE = 3.0
# Rounds of gradients, and their share of the student's budget. Where a class of usual size stands
# less than so many times above the noise of the moments, noise makes more rounds worse.
_DESCENT_ROUNDS, _FEW_ROUNDS, _DESCENT_SHARE = 20, 10, 0.7
_WORTH_MORE_ROUNDS = 4.0
# All records together have to stand so many times above the noise of their second moments, before
# products of the features on which they differ most are worth the noise that these bring.
_PRODUCTS, _WORTH_PRODUCTS = 30, 200.0


def sums_plan(asked: Asked, roster: Mapping[str, Capabilities], share: float = 1.0) -> Plan:
    """Two questions about moments, rounds of gradients, those of a mixture; all of a share."""
    settings, facts = asked.settings, next(iter(roster.values()))
    if settings.unit != Unit.RECORD:
        raise ConfigError(
            f"Expected unit=record with moments, got {settings.unit}: a sum over records hides no "
            "whole holder."
        )
    # Rows have an entry for the constant as well.
    width, whole = _width(asked, facts), share * asked.left
    ours, why = mixture_share(asked, roster)
    hidden = _hidden(asked, roster, ours * whole) if ours else ""
    if hidden:
        ours, why = 0.0, hidden
    student = (1 - ours) * whole
    first = student * (1 - _DESCENT_SHARE)
    stands = _above_noise(
        _moments_part(asked, roster, first * (1 - _FIRST_SHARE), width, facts.classes),
        roster,
        facts.classes,
    )
    rounds, gradients = _descent_rounds(asked, roster, share, stands)
    clear = stands * facts.classes >= _WORTH_PRODUCTS
    products = _PRODUCTS if rounds and clear and _is_ours(asked, facts) else 0
    first = first if rounds else student
    entries = row_length(width - 1, products)
    moments = (
        _moments_part(asked, roster, first * _FIRST_SHARE, width, None),
        _moments_part(asked, roster, first * (1 - _FIRST_SHARE), entries, facts.classes),
    )
    descent: tuple[Part, ...] = ()
    if rounds:
        bound = gradients_bound(entries, facts.classes)
        noise = sums_noise(asked, roster, (student - first) / rounds, bound)
        descent = (Part(Kind.DESCENT, 1, noise, entries, facts.classes),) * rounds
        gradients += _seen_of_gradients(descent[0], roster, facts.classes)
    mixture, words = (), why
    if ours:
        sharpening, about = _sharpening(asked, roster, ours * whole, min(width, SHARPENED + 1))
        left = 1 - _SHARPEN_SHARE * len(sharpening)
        mixture, shows = _mixture_parts(asked, roster, left * ours * whole)
        mixture = *mixture, *sharpening
        words = f"{ours * whole:.0%} of the budget goes to a generator ({why}): {shows}"
        words = "; ".join(filter(None, (words, about)))
    usual = _FORECAST_SHARE * student if rounds else student
    told = _moments_part(asked, roster, usual * (1 - _FIRST_SHARE), width, facts.classes)
    std = told.combined_std(len(roster))
    outlook = moments_forecast(_declared(roster), facts.classes, width, std)
    words = "; ".join(filter(None, (_of_labels(facts), _of_products(products), gradients, words)))
    parts, spent = (*moments, *descent, *mixture), ours * whole
    return Plan(
        parts,
        roster,
        settings.delta,
        outlook,
        None,
        words,
        mixture_share=spent,
        products=products,
        shows_nothing=bool(hidden),
    )


def _of_products(products: int) -> str:
    """What features the student has besides its own, in words."""
    if not products:
        return ""
    count = products * (products + 1) // 2
    return f"the student sees {count} products of its {products} leading features, too"


def _of_labels(facts: Capabilities) -> str:
    """How several labels of a record count, in words."""
    if not facts.multilabel:
        return ""
    return "all labels of an image together count as one does: its label vector is cut to norm 1"


def _descent_rounds(
    asked: Asked, roster: Mapping[str, Capabilities], share: float, stands: float
) -> tuple[int, str]:
    """How many gradients are asked for; with what the run says of them.

    `stands` says how far a class is above the noise of the moments.
    """
    asked_rounds = asked.settings.descent_rounds
    without = next((n for n, f in roster.items() if Kind.DESCENT not in f.kinds), None)
    if asked_rounds and without is not None:
        raise ConfigError(
            f"Holder {without} allows no gradients; set descent_rounds=0, or have its operator "
            "allow the kind descent."
        )
    if asked_rounds and share < 1:
        raise ConfigError(
            f"Expected descent_rounds=0 where teachers are asked after sums, got {asked_rounds}: "
            "their answers make a new student; or set teachers_share=0."
        )
    if asked_rounds == 0 or share < 1:
        return 0, ""
    if without is not None:
        return 0, f"no gradients are asked for: holder {without} does not allow them"
    usual = _DESCENT_ROUNDS if stands >= _WORTH_MORE_ROUNDS else _FEW_ROUNDS
    rounds = asked_rounds or usual
    asked_in = f"{counted(rounds, 'round')} of gradients {'gets' if rounds == 1 else 'get'}"
    return rounds, f"{asked_in} {_DESCENT_SHARE:.0%} of the student's budget"


def _seen_of_gradients(part: Part, roster: Mapping[str, Capabilities], classes: int) -> str:
    """How far the records of a class, all missed alike, stand above the noise of their gradient."""
    if not _declared(roster):
        return ""
    noise = part.combined_std(len(roster)) * math.sqrt(part.width)
    ratio = in_short(_declared(roster) / classes / noise)
    return f" (a class that the student misses is {ratio} times as strong as the noise of each)"


def mixture_share(asked: Asked, roster: Mapping[str, Capabilities]) -> tuple[float, str]:
    """Of the budget of sums, in μ² (under masks ρ), what a mixture gets; with the reason."""
    settings, facts = asked.settings, next(iter(roster.values()))
    asked_share = settings.mixture_share if settings.with_generator else 0.0
    without = next((n for n, f in roster.items() if Kind.MIXTURE not in f.kinds), None)
    if asked_share and without is not None:
        raise ConfigError(
            f"Holder {without} allows no mixture; set mixture_share=0, or have its operator "
            "allow it."
        )
    if asked_share == 0:
        return 0.0, ""
    if not fits(facts.channels, facts.size, facts.groups):
        if asked_share:
            raise ConfigError(
                f"Expected fewer classes for a mixture, got {facts.classes:,}: its sums would be "
                "too long; set mixture_share=0."
            )
        return 0.0, f"no mixture is asked for: {facts.classes:,} classes are too many for one"
    if without is not None:
        return 0.0, f"no mixture is asked for: holder {without} does not allow it"
    if asked_share is not None:
        return asked_share, "as mixture_share sets it"
    share = _COLOUR_SHARE if facts.channels > 1 else _GREY_SHARE
    if facts.channels == 1 and _stands_alone(asked, roster) >= _AMPLE:
        share = _AMPLE_SHARE
    return share, "the student keeps the rest"


def _width(asked: Asked, facts: Capabilities) -> int:
    features = features_for(asked.settings.student, facts.channels)
    return row_width(features, facts.channels, facts.size)


def _is_ours(asked: Asked, facts: Capabilities) -> bool:
    """Whether the student's features are our own, and no public network's."""
    return features_for(asked.settings.student, facts.channels) in FIXED


def _stands_alone(asked: Asked, roster: Mapping[str, Capabilities]) -> float:
    """How far a class would stand above the noise of moments that had the whole budget."""
    facts = next(iter(roster.values()))
    width = _width(asked, facts)
    part = _moments_part(asked, roster, asked.left * (1 - _FIRST_SHARE), width, facts.classes)
    return _above_noise(part, roster, facts.classes)


def _above_noise(part: Part, roster: Mapping[str, Capabilities], blocks: int) -> float:
    """Records of a block of usual size, in terms of the largest eigenvalue of noise alone."""
    edge = part.combined_std(len(roster)) * math.sqrt(2 * part.width)
    return _declared(roster) / blocks / edge


def _moments_part(
    asked: Asked,
    roster: Mapping[str, Capabilities],
    share: float,
    width: int,
    classes: int | None,
) -> Part:
    noise = sums_noise(asked, roster, share, moments_bound(width, classes))
    return Part(Kind.MOMENTS, 1, noise, width, classes)


def _mixture_parts(
    asked: Asked, roster: Mapping[str, Capabilities], share: float
) -> tuple[tuple[Part, ...], str]:
    """The questions of a mixture, and in words what they can show."""
    facts = next(iter(roster.values()))
    shape = facts.channels, facts.size, facts.groups
    cuts = picked_cuts(*shape, lambda asked_of: _stands(asked, roster, share, asked_of))
    shapes = question_shapes(*shape, cuts)
    words = f"a mixture of {2**cuts} {'Gaussian' if cuts == 0 else 'Gaussians'} per class"
    if _declared(roster):
        words += f", each {in_short(_stands(asked, roster, share, shapes[-2]))} times as strong as"
        words += " its noise"
    return tuple(_mixture_part(asked, roster, share, shape) for shape in shapes), words


def _hidden(asked: Asked, roster: Mapping[str, Capabilities], share: float) -> str:
    """Why a mixture would show nothing, in words; empty where it does, or the user asks for it."""
    facts = next(iter(roster.values()))
    of_classes = question_shapes(facts.channels, facts.size, facts.groups, 0)[1]
    stands = _stands(asked, roster, share, of_classes)
    # Where nobody says how many records there are, nothing can be said.
    if asked.settings.mixture_share is not None or not 0 < stands < _WORTH_A_MIXTURE:
        return ""
    return (
        "no mixture is asked for, and the student gets its budget: in pictures a class would be "
        f"only {in_short(stands)} times as strong as the noise; it takes {_WORTH_A_MIXTURE:g} "
        "times, so more records or a larger ε "
        f"(mixture_share={_GREY_SHARE:g} makes one all the same)"
    )


def _mixture_part(
    asked: Asked, roster: Mapping[str, Capabilities], share: float, shape: QuestionShape
) -> Part:
    bound = mixture_bound(shape.width, shape.blocks)
    noise = sums_noise(asked, roster, share * shape.share, bound)
    return Part(Kind.MIXTURE, 1, noise, shape.width, shape.blocks)


def _stands(
    asked: Asked, roster: Mapping[str, Capabilities], share: float, shape: QuestionShape
) -> float:
    """How far a block of a mixture's question stands above its noise."""
    assert shape.blocks is not None
    return _above_noise(_mixture_part(asked, roster, share, shape), roster, shape.blocks)


def _sharpening(
    asked: Asked, roster: Mapping[str, Capabilities], share: float, width: int
) -> tuple[tuple[Part, ...], str]:
    """The question of class moments, where it is worth its budget; with what the run says of it."""
    settings, facts = asked.settings, next(iter(roster.values()))
    without = next((n for n, f in roster.items() if Kind.CLASS_MOMENTS not in f.kinds), None)
    if not _is_ours(asked, facts):
        return (), ""
    if not settings.sharpen:
        return (), "its images are not sharpened, as sharpen=false sets it"
    if without is not None:
        return (), f"its images are not sharpened: holder {without} allows no class moments"
    classes = facts.groups
    if classes * triangle_length(width) > MOST_NUMBERS:
        return (), f"its images are not sharpened: {classes:,} classes are too many for that"
    noise = sums_noise(asked, roster, share * _SHARPEN_SHARE, products_bound(width, classes))
    part = Part(Kind.CLASS_MOMENTS, 1, noise, width, classes)
    stands = _above_noise(part, roster, classes)
    if stands < WORTH_SHARPENING:
        return (), (
            "its images are not sharpened: a class would be only "
            f"{in_short(stands)} times as strong as the noise"
        )
    takes = cost_of(classes, facts.channels, facts.size, settings.dpsd.sharpen_steps)
    return (part,), (
        f"{_SHARPEN_SHARE:.0%} of that sharpens its images by features of each class "
        f"({in_short(stands)} times as strong as their noise), which takes {takes} in the end"
    )


def _declared(roster: Mapping[str, Capabilities]) -> int:
    """Records of all holders; 0 where one does not say."""
    declared = [holder.records for holder in roster.values()]
    return sum(declared) if all(declared) else 0


def sums_noise(
    asked: Asked, roster: Mapping[str, Capabilities], share: float, bound: Bound
) -> NoisePlan:
    """Noise under which one answer costs its share of the budget under zero-out."""
    settings, holders = asked.settings, len(roster)
    if asked.mode is NoiseMode.SECAGG:
        failures = asked.failures(roster)
        rho = share * zcdp_rho(settings.epsilon, settings.delta)
        std = masked_noise_std(rho, 1, bound, Unit.RECORD, holders, sum(failures))
        return NoisePlan(asked.mode, std, holders, *failures)
    mu = math.sqrt(share) * gaussian_mu(settings.epsilon, settings.delta)
    tau = bound.moves[Unit.RECORD][Adjacency.ZERO_OUT] * (1 + ROUNDING) / mu
    per_holder = math.sqrt(holders) if asked.mode is NoiseMode.LOCAL else holders
    return NoisePlan(asked.mode, tau / per_holder, holders)
