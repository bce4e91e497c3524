"""Settings of a tiny synthesis, and how tests change them."""

from typing import Any

from fedtranscribe.config import DpPromiseOptions, SynthesizeSettings

TINY: dict[str, Any] = {
    "boundary": 980,
    "phase1_batch": 4,
    "phase1_epochs": 0.25,
    "phase2_batch": 4,
    "phase2_epochs": 0.25,
    "copies": 2,
}


def told(settings: SynthesizeSettings, **changes: Any) -> SynthesizeSettings:
    """The same settings but for some; those of dp-promise by their own name."""
    own = {
        name: changes.pop(name) for name in list(changes) if name in DpPromiseOptions.model_fields
    }
    promise = settings.dp_promise.model_copy(update=own)
    return settings.model_copy(update={**changes, "dp_promise": promise})
