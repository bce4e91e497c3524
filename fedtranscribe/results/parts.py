"""Parts of a run's result: frozen types that lie flat in JSON, and why they may be public."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    field_validator,
    model_serializer,
    model_validator,
)

from fedtranscribe.errors import UnsupportedAdjacencyError
from fedtranscribe.privacy.ledger import ACCOUNTANT, Ledger
from fedtranscribe.privacy.units import Adjacency, Unit
from fedtranscribe.results.allowed import Listed, Why

FLAT: Final = "its keys are stored among those of the whole"
"""Marks a field, `Annotated[ResultPart, FLAT]`, whose part has no key of its own in JSON."""


class ResultPart(BaseModel):
    """Base of all: immutable, and names that it does not know are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """As a file has it: what nobody said is left out, what was said to be nothing is null."""
        return self.model_dump(mode="json", exclude_unset=True)


class Whole(ResultPart):
    """Base of types with flat parts; a part is there if one of its keys is."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        found = dict(content)
        for name, part in _flat_parts(cls):
            own = {key: content[key] for key in part.model_fields if key in content}
            if own:
                found.setdefault(name, own)
        return found

    @model_serializer(mode="wrap")
    def _spread(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped, flat = handler(self), dict(_flat_parts(type(self)))
        spread: dict[str, Any] = {}
        for name, value in dumped.items():
            spread |= (value or {}) if name in flat else {name: value}
        return spread


def listed(kind: type[ResultPart]) -> Listed:
    """Keys of a type's JSON by the reason that its fields give, as `allowed.why` reads them."""
    found: defaultdict[Why, list[str]] = defaultdict(list)
    for pattern, reason in _patterns(kind, ""):
        found[reason].append(pattern)
    return {reason: " ".join(patterns) for reason, patterns in found.items()}


def _patterns(kind: type[ResultPart], above: str) -> Iterator[tuple[str, Why]]:
    for name, field in kind.model_fields.items():
        part = _part_of(field.annotation)
        if part is not None:
            yield from _patterns(part, above if FLAT in field.metadata else f"{above}{name}.")
            continue
        reasons = [mark for mark in field.metadata if isinstance(mark, Why)]
        if len(reasons) != 1:
            raise TypeError(f"{kind.__name__}.{name} has to say once why it may be published.")
        yield f"{above}{name}{_below(field.annotation)}", reasons[0]


def _flat_parts(kind: type[BaseModel]) -> Iterator[tuple[str, type[ResultPart]]]:
    for name, field in kind.model_fields.items():
        part = _part_of(field.annotation)
        if part is not None and FLAT in field.metadata:
            yield name, part


def _part_of(annotation: Any) -> type[ResultPart] | None:
    """The type of a part, be it optional or not."""
    kinds = (kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, ResultPart)), None)


def _below(annotation: Any) -> str:
    """What follows a key whose value is a mapping: any names, or any tree."""
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is dict:
            return ".**" if get_args(kind)[1] is Any else ".*"
    return ""


OWN_LABELS = "those of the records"
"""What a result says of labels that mean classes; anything else is no task to be tested on."""


class PublishedFigure(ResultPart):
    """The paper's own figure for the same noise, and why it is no guarantee."""

    epsilon: Annotated[float | None, Why.COST]
    reason: Annotated[str, Why.COST]

    @field_validator("epsilon")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        """Null in JSON where the formula has no finite value."""
        return value if value is not None and math.isfinite(value) else None


class StatedGuarantee(ResultPart):
    """What a run cost the records that it learned from."""

    epsilon: Annotated[float | None, Why.COST]  # the headline; None where there is no guarantee
    delta: Annotated[float, Why.COST]
    unit: Annotated[Unit, Why.SETTING] = Unit.RECORD
    adjacency: Annotated[Adjacency, Why.COST] = Adjacency.ZERO_OUT
    accountant: Annotated[str | None, Why.COST] = None
    # ε of the unit, by adjacency
    sound: Annotated[dict[Adjacency, float | None], Why.COST] = Field(default_factory=dict)
    # ε under the adjacency, by unit
    units: Annotated[dict[Unit, float | None], Why.COST] = Field(default_factory=dict)
    published: PublishedFigure | None = None
    # false if noise came from a seed; None where a run of an early version does not say
    private: Annotated[StrictBool | None, Why.COST] = None
    stamp: Annotated[str | None, Why.COST] = None  # why a network must not be taken for private
    caveats: Annotated[tuple[str, ...], Why.COST] = ()  # the same, one by one

    @property
    def held(self) -> float | None:
        """ε that holds: none for a baseline, and none with seeded noise, whatever was printed."""
        return self.epsilon if self.private else None

    @property
    def cost(self) -> str:
        """What a run will cost, with both figures: printed before anything is spent."""
        formula = ""
        if self.published is not None:
            figure = self.published.epsilon
            prints = "no finite figure" if figure is None else f"{figure:.4g}"
            formula = f"; the published formula prints {prints}, which is no guarantee"
        if self.epsilon is None:
            return f"this run has NO guarantee: ε is infinite{formula}; no ledger books it"
        others = [
            f"{adjacency} {value:.4g}"
            for adjacency, value in self.sound.items()
            if adjacency is not self.adjacency and value is not None
        ]
        return (
            f"this run costs ε = {self.epsilon:.4g} ({self.unit}, {self.adjacency}, "
            f"δ = {self.delta:g}, {self.accountant}{'; ' * bool(others)}{', '.join(others)})"
            f"{formula or '; no published formula counts moments'}"
        )

    def __str__(self) -> str:
        """The headline in one sentence."""
        if self.epsilon is None:
            return "no guarantee: ε is infinite"
        stated = f"ε = {self.epsilon:.4g} at δ = {self.delta:g} ({self.unit}, {self.adjacency})"
        return stated if self.private is not False else f"NOT PRIVATE; its plan costs {stated}"


class Answers(ResultPart):
    """What was asked of teachers, or of sums over records, and the noise on it."""

    # kind of the answers: vote, data, label or moments
    privacy: Annotated[str | None, Why.SETTING] = None
    # moments, where teachers were asked after sums over the records, or might have been
    start: Annotated[str | None, Why.SETTING] = None
    # per coordinate; None where labels were drawn
    noise_std: Annotated[float | None, Why.COST] = None
    # as `noise_std`, of every sum over records that the plan asks, in this order
    sums_stds: Annotated[tuple[float, ...], Why.COST] = ()
    # twice the nats that all answers together can carry
    signal: Annotated[float | None, Why.COST] = None
    noise: Annotated[str | None, Why.SETTING] = None  # where it was added, in a federation
    teachers: Annotated[int | None, Why.SETTING] = None  # of the one holder that there was


class MixtureFacts(ResultPart):
    """The generator that sums over the records made."""

    share: Annotated[float, Why.COST]  # of the whole budget, that it got
    components: Annotated[int, Why.SETTING]  # Gaussians per class
    # whether its images are sharpened by features of each class
    sharpened: Annotated[bool, Why.SETTING] = False


class PublicFeatures(ResultPart):
    """The public network that a student's features are of."""

    network: Annotated[str, Why.SETTING]  # its name
    side: Annotated[int, Why.SETTING]  # pixels a side that images are brought to
    sha256: Annotated[str, Why.SETTING]  # of the file of its weights
    # who declares that these weights never saw the private records
    declared_by: Annotated[str, Why.SETTING]


class DeclaredTeachers(ResultPart):
    """On whose word the guarantee of answers of teachers rests, by holder."""

    # who declares that networks trained elsewhere learned from disjoint shards
    shards: Annotated[dict[str, str], Why.SETTING] = Field(default_factory=dict)
    # who declares that the weights teachers began with never saw the private records
    weights: Annotated[dict[str, str], Why.SETTING] = Field(default_factory=dict)


class Federation(ResultPart):
    """Who took part in a federated run, and what went over the wire."""

    holders: Annotated[int, Why.SETTING]  # that the run had
    # teachers by holder
    shards: Annotated[dict[str, int], Why.SETTING] = Field(default_factory=dict)
    # by holder
    answered_rounds: Annotated[dict[str, int], Why.PROGRESS] = Field(default_factory=dict)
    # of masked rounds that were given up, asked anew and charged again
    abandoned_rows: Annotated[int, Why.PROGRESS] = 0
    # why a holder took part no more
    left: Annotated[dict[str, str], Why.PROGRESS] = Field(default_factory=dict)
    stopped: Annotated[str | None, Why.PROGRESS] = None  # why the run ended before its plan did
    bytes: Annotated[int | None, Why.PROGRESS] = None  # of all messages
    trust: Annotated[str | None, Why.SETTING] = None  # whom the holders had to trust
    holder: Annotated[str | None, Why.SETTING] = None  # that trained the network, where one did


class PrivateStart(ResultPart):
    """What a training on private records began with."""

    share: Annotated[float, Why.SETTING]  # of μ², for the mixture
    components: Annotated[int, Why.SETTING]  # Gaussians per class
    noise: Annotated[tuple[float, ...], Why.COST]  # std on each question's sums
    # images of the mixture that the network was pre-trained on
    samples: Annotated[int, Why.SETTING]
    epsilon_of_start: Annotated[float, Why.COST]  # ε of the mixture alone
    # ε of the rest alone; both together cost less than the sum
    epsilon_of_training: Annotated[float, Why.COST]


class Diffusion(ResultPart):
    """A diffusion model that was trained on the records themselves."""

    sigma: Annotated[float, Why.COST]  # noise multiplier of every step; 0 without noise
    steps: Annotated[dict[str, int], Why.SETTING]  # by stage
    records: Annotated[int, Why.SETTING]  # ids in the data
    classes: Annotated[int, Why.SETTING]  # that images can be asked for; 0 for none
    labels: Annotated[str, Why.SETTING] = OWN_LABELS  # what they mean
    channels: Annotated[int, Why.SETTING]
    size: Annotated[int, Why.SETTING]
    unet: Annotated[str, Why.SETTING]
    sampling: Annotated[dict[str, Any], Why.SETTING]  # how images are drawn
    sha256: Annotated[str, Why.OUTPUT]  # of the network's file
    resolved: Annotated[dict[str, Any], Why.SETTING]  # settings of the method
    private_start: PrivateStart | None = None  # None without one


class CountedGenerator(ResultPart):
    """The run whose samples a student learned from as well."""

    run: Annotated[str, Why.SETTING]
    # of its records; None where its folder does not say
    data_id: Annotated[str | None, Why.SETTING]
    # whether its cost is part of ε, because the records may be the same
    counted: Annotated[StrictBool, Why.SETTING]
    epsilon_of_answers: Annotated[float, Why.COST]  # ε without it


class LedgerLimit(ResultPart):
    """The ε of all runs on the data: the highest limit that their ledger had."""

    epsilon: Annotated[float | None, Why.COST]
    delta: Annotated[float, Why.COST]
    unit: Annotated[Unit, Why.COST]
    adjacency: Annotated[Adjacency, Why.COST]


class LedgerFacts(ResultPart):
    """What the ledger of the data said when a run ended."""

    # by all runs so far; None where one has no cost in this unit and adjacency
    booked: Annotated[float | None, Why.COST]
    accountant: Annotated[str, Why.COST]
    limit: LedgerLimit | None  # None where the ledger bounds nothing

    @classmethod
    def of(cls, ledger: Ledger, delta: float, unit: Unit, adjacency: Adjacency) -> Self:
        """Read them from an open ledger; the limit, where there is one, is what is called ε."""
        highest = ledger.highest
        try:
            booked = ledger.total(delta, unit, adjacency).epsilon
        except UnsupportedAdjacencyError:
            booked = None
        limit = None
        if highest is not None and highest.fixed:
            limit = LedgerLimit.model_validate(highest.to_json())
        return cls(booked=booked, accountant=ACCOUNTANT, limit=limit)


class Accuracy(ResultPart):
    """On a benchmark's public test set: of students, and of what learned from released images.

    Teachers and ensembles have no field. They are functions of private records that nobody was
    charged for, not even on benchmarks.
    """

    student: Annotated[float | None, Why.BENCHMARK] = None
    public_set_alone: Annotated[float | None, Why.BENCHMARK] = None
    downstream: Annotated[float | None, Why.BENCHMARK] = None

    @classmethod
    def of(cls, scores: Mapping[str, float]) -> Self:
        """Those of all accuracies of a run that may leave `private/`."""
        return cls.model_validate(scores)


class AccuracyCurve(ResultPart):
    """Accuracy over answered rows; empty where it may not be told."""

    rows: Annotated[tuple[int, ...], Why.BENCHMARK] = ()
    accuracy: Annotated[tuple[float, ...], Why.BENCHMARK] = ()
