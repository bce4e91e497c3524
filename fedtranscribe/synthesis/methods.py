"""The table of methods: a new one is one adapter and one line here."""

from fedtranscribe.errors import ConfigError
from fedtranscribe.synthesis import dp_promise, dp_sad
from fedtranscribe.synthesis.dp_promise import DpPromiseMethod
from fedtranscribe.synthesis.dp_sad import DpSadMethod
from fedtranscribe.synthesis.method import Method

METHODS: dict[str, Method] = {dp_promise.NAME: DpPromiseMethod(), dp_sad.NAME: DpSadMethod()}


def method_named(name: str) -> Method:
    """The adapter of a method.

    Raises:
        ConfigError: there is none.
    """
    if name not in METHODS:
        raise ConfigError(f"No method {name!r}; choose one of {', '.join(METHODS)}.")
    return METHODS[name]
