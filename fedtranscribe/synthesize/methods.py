"""The table of methods: a new one is one adapter and one line here."""

from fedtranscribe.errors import ConfigError
from fedtranscribe.synthesize import dp_promise, dp_sad
from fedtranscribe.synthesize.dp_promise import DpPromiseMethod
from fedtranscribe.synthesize.dp_sad import DpSadMethod
from fedtranscribe.synthesize.method import Method

METHODS: dict[str, Method] = {dp_promise.NAME: DpPromiseMethod(), dp_sad.NAME: DpSadMethod()}


def method_named(name: str) -> Method:
    """The adapter of a method.

    Raises:
        ConfigError: there is none.
    """
    if name not in METHODS:
        raise ConfigError(f"No method {name!r}; choose one of {', '.join(METHODS)}.")
    return METHODS[name]
