"""Every way to spoil a release is noticed, and named."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from fedtranscribe.errors import PrivacyError, StorageError
from fedtranscribe.releases import make_release, onnx_export, verify, writing
from fedtranscribe.releases.card import privacy_section
from fedtranscribe.releases.loading import load, sha256
from fedtranscribe.releases.statement import Choice, LedgerTotal, StatedPublished, read_statement


def failed(folder: Path) -> set[str]:
    return {check.name for check in verify(folder).checks if not check.ok}


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edit privacy.json as a program would."""
    path = folder / "privacy.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    edit(value)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def first_event(statement: dict[str, Any]) -> dict[str, Any]:
    return statement["events"][0]["release"]["costs"]["record"]["zero-out"]


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def digest_again(folder: Path) -> None:
    """What a forger does who knows about digests."""
    names = [entry.name for entry in folder.iterdir() if entry.name != "privacy.json"]
    change(folder, lambda v: v.update(files={name: sha256(folder / name) for name in names}))


def change_weights(path: Path, value: float) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    state = safetensors.torch.load_file(path)
    state["head.bias"] = torch.full_like(state["head.bias"], value)
    state["head.bias"][0] += 3
    safetensors.torch.save_file(state, path, metadata)


def edit_card(folder: Path, old: str, new: str) -> None:
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert old in card
    (folder / "card.md").write_text(card.replace(old, new), encoding="utf-8")
    digest_again(folder)


def test_an_untouched_release_passes_every_check(made_once):
    verification = verify(made_once)
    assert verification.ok
    assert verification.first_failure is None
    names = [check.name for check in verification.checks]
    assert names == ["statement", "files", "networks", "onnx", "epsilon", "card", "stamp"]


@pytest.mark.parametrize(
    "name",
    [
        *("student.safetensors", "generator.safetensors"),
        *("student.onnx", "generator.onnx", "card.md"),
    ],
)
def test_one_changed_byte_of_any_file_is_noticed(released, name):
    content = bytearray((released / name).read_bytes())
    content[-100] ^= 1
    (released / name).write_bytes(content)
    checks = {check.name: check for check in verify(released).checks}
    assert not checks["files"].ok
    assert name in checks["files"].words


def test_changed_weights_with_a_new_digest_disagree_with_onnx(released):
    change_weights(released / "student.safetensors", 1.0)
    assert "files" in failed(released)
    digest_again(released)
    assert failed(released) == {"onnx"}


def test_weights_that_are_no_numbers_are_noticed(released):
    change_weights(released / "student.safetensors", float("nan"))
    digest_again(released)
    assert {"networks", "onnx"} == failed(released)


@pytest.mark.parametrize("name", ["student.onnx", "generator.onnx"])
def test_an_onnx_of_another_network_or_of_none_is_noticed(released, name):
    (released / name).write_bytes(b"no model")
    digest_again(released)
    assert failed(released) == {"onnx"}


def test_networks_in_each_others_place_are_noticed(released):
    (released / "generator.safetensors").write_bytes(
        (released / "student.safetensors").read_bytes()
    )
    digest_again(released)
    assert "networks" in failed(released)


def test_without_onnxruntime_the_rest_is_checked(released, monkeypatch):
    monkeypatch.setattr(onnx_export, "agrees", lambda *_: None)
    monkeypatch.setattr("fedtranscribe.releases.verification.agrees", lambda *_: None)
    verification = verify(released)
    assert verification.ok
    assert any("not installed" in check.words for check in verification.checks)


# ---------------------------------------------------------------- figures


def test_a_changed_epsilon_is_noticed(released):
    change(released, lambda v: v.update(epsilon=v["epsilon"] * 0.99))
    assert {"epsilon", "card"} == failed(released)


def test_a_changed_epsilon_with_a_card_to_match_is_noticed(released):
    def lower(value):
        value["epsilon"] = 1.0
        value["sound"] = dict.fromkeys(value["sound"], 1.0)
        value["units"] = dict.fromkeys(value["units"], 1.0)

    before = read_statement(released)
    change(released, lower)
    edit_card(released, privacy_section(before), privacy_section(read_statement(released)))
    edit_card(released, f"epsilon: {before.epsilon}", "epsilon: 1.0")
    assert failed(released) == {"epsilon"}


@pytest.mark.parametrize(
    "edit",
    [
        lambda v: v["sound"].update({"replace": 0.5}),
        lambda v: v["sound"].pop("replace"),
        lambda v: v["units"].update({"holder": 0.5}),
        lambda v: v.update(accountant="zCDP"),
        lambda v: v.update(delta=1e-3),
        lambda v: v.update(unit="holder"),
        lambda v: v.update(epsilon=None),
        lambda v: v["events"].pop(),
        lambda v: v["events"][0]["release"]["costs"]["record"]["zero-out"].update(mu=1e-3),
        lambda v: v["events"][0].update(holder="somebody else"),
        lambda v: v.update(events=[]),
        lambda v: v.update(rows=41),
    ],
)
def test_figures_that_do_not_follow_from_the_events_are_noticed(released, edit):
    change(released, edit)
    assert "epsilon" in failed(released)


def test_a_smaller_figure_for_a_smaller_part_of_the_events_is_noticed(released):
    """One answer's cost, told as the cost of all."""
    change(released, lambda v: v["events"].pop())
    assert "epsilon" in failed(released)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("**ε = ", "**ε = 0.1, not "),
        ("## Use", "By another count ε = 0.5.\n\n## Use"),
        ("## Use", "Epsilon: 2\n\n## Use"),
        ("  epsilon: ", "  epsilon: 1"),
        ("## Privacy", "## Very private"),
    ],
)
def test_a_card_that_says_otherwise_is_noticed(released, old, new):
    edit_card(released, old, new)
    assert failed(released) == {"card"}


# ---------------------------------------------------------------- stamps


@pytest.fixture
def stamped(seeded, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(writing, "export_onnx", lambda _: None)
    return make_release(seeded.run, tmp_path / "seeded", stamp_not_private=True).folder


def test_a_seeded_run_is_rejected_though_it_is_stamped(stamped):
    failure = verify(stamped).first_failure
    assert failed(stamped) == {"stamp"}
    assert failure is not None
    assert "came from a seed" in failure.words


def test_a_stamp_taken_off_is_noticed(stamped):
    change(stamped, lambda v: v.update(stamp=None))
    assert {"card", "stamp"} == failed(stamped)
    change(stamped, lambda v: v.update(private=True))
    assert failed(stamped) == {"card"}


def test_an_uncharged_choice_is_rejected(released):
    choice = {"choice": "the better of two", "charged": False, "stated": True}
    change(released, lambda v: v["data_dependent_choices"].append(choice))
    assert {"stamp", "card"} == failed(released)


# ---------------------------------------------------------------- the folder


def test_files_too_many_or_too_few_are_noticed(released):
    (released / "extra.txt").write_text("x")
    assert failed(released) == {"files"}
    (released / "extra.txt").unlink()
    (released / "generator.safetensors").unlink()
    assert failed(released) == {"files", "networks", "onnx"}


def test_a_link_is_no_file_of_a_release(released, tmp_path):
    moved = (released / "card.md").rename(tmp_path / "card.md")
    (released / "card.md").symlink_to(moved)
    assert failed(released) == {"files"}


def test_a_student_that_is_not_listed_is_noticed(released):
    change(released, lambda v: v["files"].pop("student.safetensors"))
    assert "files" in failed(released)


@pytest.mark.parametrize(
    "edit",
    [
        lambda v: v.update(schema="fedtranscribe-privacy-2"),
        lambda v: v.pop("events"),
        lambda v: v.update(colour="red"),
        lambda v: v.update(epsilon="10"),
        lambda v: v.update(epsilon=-1.0),
        lambda v: v.update(private="yes"),
        lambda v: v.update(adjacency="none"),
        lambda v: v["files"].update({"../student.safetensors": "0" * 64}),
        lambda v: v["files"].update({"student.onnx": "0"}),
        *(
            lambda v, wrong=wrong: first_event(v).update(wrong)
            for wrong in (
                *(
                    {"count": value}
                    for value in (1.5, 2.0, "2", True, None, 0, -1, 10**20, 10**400)
                ),
                *({"mu": value} for value in (1e300, 1e13, -1, "1", True, None, 10**400)),
                {"kind": "none"},
                {"kind": "zcdp"},
                {"kind": ["gaussian"]},
                {"weight": 1},
                {"kind": "together", "parts": [], "count": 1},
            )
        ),
        lambda v: first_event(v).pop("count"),
        lambda v: v["events"][0]["release"].update(rows=1.5),
        lambda v: v["events"][0]["release"].update(rows=10**20),
        lambda v: v.update(rows=10**20),
        lambda v: v.update(epsilon=10**400),
        lambda v: v.update(delta=0),
        lambda v: v.update(holders=10**4000),
        lambda v: v.update(noise_std=1e999),
        lambda v: v.update(method="`dpsd` <!--"),
        lambda v: v.update(answers="vote|"),
        lambda v: v.update(trust="nobody\n\n**ε = 0.1**"),
        lambda v: v.update(accountant="\x1b[2JPLD"),
        lambda v: v.update(run="\u202egnihton"),
        lambda v: v["audits"].append({"a": deep(300)}),
    ],
)
def test_a_statement_that_does_not_follow_its_schema_is_rejected(released, edit):
    change(released, edit)
    assert failed(released) == {"statement"}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"epsilon": NaN}', b"[" * 100_000]
)
def test_a_statement_that_is_none_is_rejected(released, content):
    (released / "privacy.json").write_bytes(content)
    assert failed(released) == {"statement"}


def test_a_folder_without_release_is_named(tmp_path):
    with pytest.raises(StorageError, match="No release in"):
        verify(tmp_path)


def test_events_that_are_many_and_small_are_accounted_for_in_little_time(released):
    """What a file says must not decide how long, and in how much memory, it is checked."""
    events = [
        {"kind": "gaussian", "mu": 1e12, "count": 2**53},
        {"kind": "randomized-response", "epsilon0": 1e-6, "classes": 10, "count": 2**50},
        {"kind": "zcdp", "rho": 1e17, "count": 2**53},
        {
            **{"kind": "poisson-gaussian", "sampling_probability": 1e-9, "count": 10**15},
            **{"noise_multiplier": 10.0, "adjacency": "zero-out"},
        },
        {
            **{"kind": "poisson-gaussian", "sampling_probability": 1e-9, "count": 10},
            **{"noise_multiplier": 1e-8, "adjacency": "zero-out"},
        },
        {
            **{"kind": "released-images", "mu": 1e9, "records": 2**53, "batch": 10**6},
            **{"count": 2**53, "adjacency": "zero-out"},
        },
    ]
    for event in events:
        costs = {"record": {"zero-out": event}}
        change(
            released,
            lambda v, costs=costs: [e["release"].update(costs=costs) for e in v["events"]],
        )
        assert "epsilon" in failed(released), event


@pytest.mark.parametrize("over", ["releases", "holders"])
def test_events_that_take_minutes_are_refused_unseen(released, over, monkeypatch):
    """Each of them takes seconds; nobody can be made to wait for hundreds."""

    def never(*_: object) -> None:
        raise AssertionError("composed")

    def expensive(said: dict[str, Any]) -> None:
        one = said["events"][0]
        said["events"] = [
            {
                "holder": one["holder"] if over == "releases" else f"{one['holder']}-{number}",
                "release": one["release"] | {"costs": {"record": {"zero-out": sampled(number)}}},
            }
            for number in range(21)
        ]

    def sampled(number: int) -> dict[str, Any]:
        return {
            **{"kind": "poisson-gaussian", "sampling_probability": 1e-3, "adjacency": "zero-out"},
            **{"noise_multiplier": 0.034 + number * 1e-5, "count": 1},
        }

    change(released, expensive)
    monkeypatch.setattr("fedtranscribe.privacy.loss.composed", never)
    checks = {check.name: check for check in verify(released).checks}
    assert not checks["epsilon"].ok
    assert "need 21 compositions" in checks["epsilon"].words
    with pytest.raises(PrivacyError, match="more than the 20 that are computed"):
        load(released)


# ---------------------------------------------------------------- the card


def test_no_text_of_a_statement_adds_markup_to_its_card(made_once):
    hostile = "x | **ε = 0.1** <!-- [y](z) `code` # &lt; $e$"
    said = read_statement(made_once)
    choice = Choice(choice=hostile, charged=False, stated=True)
    said = said.model_copy(
        update={
            "data_dependent_choices": (choice,),
            "trust": hostile,
            "accountant": hostile,
            "ledger": LedgerTotal(booked=1.0, accountant=hostile, limit=None),
            "published": StatedPublished(epsilon=1.0, reason=hostile, used_for_calibration=False),
        }
    )
    for line in privacy_section(said).splitlines():
        plain = re.sub(r"\\.", "", line)
        for mark in ("<", "[", "&", "$", "`code`", "**ε = 0.1"):
            assert mark not in plain, line
        assert plain.count("|") in (0, 3), line
