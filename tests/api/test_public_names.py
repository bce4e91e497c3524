"""What `import fedtranscribe` offers, and that it stays light."""

import subprocess
import sys

import pytest

import fedtranscribe as ft

NAMES = [
    "FedtranscribeError",
    "Release",
    "Run",
    "__version__",
    "evaluate",
    "load",
    "release",
    "simulate",
    "synthesize",
    "transcribe",
]


def test_the_public_names_are_exactly_these():
    assert ft.__all__ == NAMES == dir(ft)
    assert all(getattr(ft, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="no attribute 'transcribbe'"):
        ft.transcribbe  # noqa: B018
    starred: dict[str, object] = {}
    exec("from fedtranscribe import *", starred)
    assert set(NAMES) <= set(starred)


def test_every_public_function_says_what_it_takes():
    for name in ("evaluate", "load", "release", "simulate", "synthesize", "transcribe"):
        function = getattr(ft, name)
        assert "Args:" in function.__doc__, name
        missing = set(function.__annotations__) - {"return"}
        assert {one for one in missing if one not in function.__doc__} == set(), name
        assert "return" in function.__annotations__, name


def test_importing_it_imports_nothing_heavy():
    code = "import fedtranscribe, sys; print({'flwr', 'ray', 'torch', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
