"""Frozen types whose parts lie flat in JSON, and whose every field says why it may be told.

A program asks for `result.federation`, and gets a part that is there or not; a file has the part's
keys beside all others. What a type has no field for is neither read nor written, so that nothing
gets into a file, or on from an edited one, that nobody has given a reason.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from fedtranscribe.allowed import Listed, Why

FLAT: Final = "its keys are stored among those of the whole"
"""Marks a field, `Annotated[Part, FLAT]`, whose part has no key of its own in JSON."""


class Part(BaseModel):
    """Base of all: immutable, and names that it does not know are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """As a file has it: what nobody said is left out, what was said to be nothing is null."""
        return self.model_dump(mode="json", exclude_unset=True)


class Whole(Part):
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


def listed(kind: type[Part]) -> Listed:
    """Keys of a type's JSON by the reason that its fields give, as `allowed.why` reads them.

    Raises:
        TypeError: a field gives none, or several.
    """
    found: defaultdict[Why, list[str]] = defaultdict(list)
    for pattern, reason in _patterns(kind, ""):
        found[reason].append(pattern)
    return {reason: " ".join(patterns) for reason, patterns in found.items()}


def _patterns(kind: type[Part], above: str) -> Iterator[tuple[str, Why]]:
    for name, field in kind.model_fields.items():
        part = _part_of(field.annotation)
        if part is not None:
            yield from _patterns(part, above if FLAT in field.metadata else f"{above}{name}.")
            continue
        reasons = [mark for mark in field.metadata if isinstance(mark, Why)]
        if len(reasons) != 1:
            raise TypeError(f"{kind.__name__}.{name} has to say once why it may be published.")
        yield f"{above}{name}{_below(field.annotation)}", reasons[0]


def _flat_parts(kind: type[BaseModel]) -> Iterator[tuple[str, type[Part]]]:
    for name, field in kind.model_fields.items():
        part = _part_of(field.annotation)
        if part is not None and FLAT in field.metadata:
            yield name, part


def _part_of(annotation: Any) -> type[Part] | None:
    """The type of a part, be it optional or not."""
    kinds = (kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, Part)), None)


def _below(annotation: Any) -> str:
    """What follows a key whose value is a mapping: any names, or any tree."""
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is dict:
            return ".**" if get_args(kind)[1] is Any else ".*"
    return ""
