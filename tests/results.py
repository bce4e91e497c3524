"""Results for tests that need none of a true run."""

from typing import Any

from fedtranscribe.results.result import Result


def result_of(**keys: Any) -> Result:
    """A result with these keys of `metrics.json`; the few that every result has are filled in."""
    least = {"run": "run-1", "epsilon": None, "delta": 1e-5, "settings": {}}
    return Result.model_validate({**least, **keys})


def changed(result: Result, **keys: Any) -> Result:
    """The same with other keys."""
    return Result.model_validate({**result.to_json(), **keys})
