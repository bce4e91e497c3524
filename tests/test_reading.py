"""One reader for all JSON and TOML from outside: bounded, and nothing but ValueError goes wrong."""

import ast
import contextlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

import fedtranscribe
from fedtranscribe import files as reading
from fedtranscribe.config import read_toml
from fedtranscribe.errors import ConfigError, FedtranscribeError, StorageError
from fedtranscribe.evaluation.audit_checks import read_events
from fedtranscribe.files import (
    MOST_LEVELS,
    json_objects,
    parse_json,
    parse_toml,
    read_bounded,
    read_json,
    read_object,
)
from fedtranscribe.holder.service import refusals
from fedtranscribe.models.teachers import load_manifest
from fedtranscribe.noise.secagg import Round
from fedtranscribe.privacy.chain import read_head
from fedtranscribe.questions.messages import MOST_TERMS, unpack
from fedtranscribe.questions.refusals import Refusal
from fedtranscribe.results.result import Result
from fedtranscribe.rounds.round_state import RoundProgress
from fedtranscribe.trainers.samples import _releases

# Too deep for the parser; and parsed, but too deep for whoever walks it.
DEEP = ["[" * 100_000, '{"a":' * 100_000, "[" * 800 + "]" * 800, '{"a":' * 800 + "1" + "}" * 800]


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_depth_is_counted_exactly():
    assert parse_json(nested(MOST_LEVELS)) is not None
    with pytest.raises(ValueError, match="too deeply"):
        parse_json(nested(MOST_LEVELS + 1))
    assert parse_toml(f"a = {nested(MOST_LEVELS - 1)}")
    with pytest.raises(ValueError, match="too deeply"):
        parse_toml(f"a = {nested(MOST_LEVELS)}")


@pytest.mark.parametrize("text", DEEP)
def test_a_deep_document_is_an_ordinary_mistake(text: str):
    with pytest.raises(ValueError, match="too deeply"):
        parse_json(text)
    assert list(json_objects([text, b'{"a": 1}'])) == [{"a": 1}]


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "a" + ".a" * 400 + " = 1"])
def test_deep_toml_is_an_ordinary_mistake(tmp_path: Path, text: str):
    (tmp_path / "settings.toml").write_text(text)
    with pytest.raises(ConfigError, match="too deeply"):
        read_toml(tmp_path / "settings.toml")


@pytest.mark.parametrize("text", DEEP)
def test_every_reader_of_a_file_or_message_bears_it(tmp_path: Path, text: str):
    path = tmp_path / "file"
    path.write_text(text)
    assert read_object(path) is None
    assert refusals(path) == {}
    with pytest.raises(Refusal):
        unpack(save({".": np.frombuffer(text.encode(), dtype=np.uint8)}))
    with pytest.raises(FedtranscribeError):
        Round.from_bytes(text.encode())
    with pytest.raises(FedtranscribeError):
        RoundProgress.load(path, "q")
    (tmp_path / "config.toml").touch()
    names = ("metrics.json", "events.jsonl", "manifest.json", "ledger.head", "roster.json")
    for name in names:
        (tmp_path / name).write_text(text)
    for read in (Result.read, read_events, load_manifest, _releases):
        with pytest.raises(FedtranscribeError):
            read(tmp_path)
    with pytest.raises(FedtranscribeError):
        read_head(tmp_path / "ledger")


def test_size_is_bounded_before_anything_is_parsed(tmp_path: Path, monkeypatch):
    path = tmp_path / "file"
    path.write_text('{"a": 1}')
    assert read_bounded(path, 8) == b'{"a": 1}'
    for refused in (lambda: read_bounded(path, 7), lambda: parse_json('{"a": 1}', 7)):
        with pytest.raises(ValueError, match="more than 7 bytes"):
            refused()
    terms = b'"' + b"x" * MOST_TERMS + b'"'
    with pytest.raises(Refusal):
        unpack(save({".": np.frombuffer(terms, dtype=np.uint8)}))
    with path.open("wb") as stream:
        stream.truncate(reading.MOST_BYTES + 1)
    assert read_object(path) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_block(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_json(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_toml(tmp_path / "pipe")
    with pytest.raises(StorageError):
        load_manifest(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(JSON)
def test_any_json_as_a_message_is_read_or_refused(value):
    frame = save({".": np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)})
    with contextlib.suppress(Refusal):
        unpack(frame)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_parsed_or_a_value_error(content):
    for parse in (parse_json, lambda text: parse_toml(text) if isinstance(text, str) else None):
        with contextlib.suppress(ValueError):
            parse(content)


def test_nothing_else_parses_what_comes_from_outside():
    """`json.loads` is for values of our own that go to text and back at once."""
    root = Path(fedtranscribe.__file__).parent
    for path in root.rglob("*.py"):
        if path.name == "files.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            called = ast.unparse(node.func)
            if called in ("json.loads", "json.load", "tomllib.loads", "tomllib.load"):
                inner = ast.unparse(node.args[0])
                assert inner.startswith(("settings.model_dump_json(", "json.dumps(")), (path, inner)
