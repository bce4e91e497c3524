"""What `release push` would send, what it sends, and what it refuses. Nothing here asks a hub."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError

from fedtranscribe import cli
from fedtranscribe.errors import ConfigError, HubError, PrivacyError, StorageError
from fedtranscribe.releases import make_release, plan_push, pushing, verify
from fedtranscribe.releases.statement import LOUD

NAME = "example/scans-student"


@dataclass
class Info:
    private: bool


@dataclass
class Commit:
    commit_url: str = "https://hub.example/commit/1"


@dataclass
class Hub:
    """As `HfApi`, as far as a push needs it."""

    private: bool = True
    files: list[str] = field(default_factory=lambda: [".gitattributes"])
    calls: list[str] = field(default_factory=list)
    sent: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    failure: Exception | None = None

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> None:
        if self.failure is not None:
            raise self.failure
        assert exist_ok
        self.calls.append("create_repo")
        self.asked = {"name": name, "private": private}

    def repo_info(self, name: str) -> Info:
        return Info(self.private)

    def create_branch(self, name: str, *, branch: str, exist_ok: bool) -> None:
        self.calls.append(f"create_branch {branch}")

    def list_repo_files(self, name: str, *, revision: str) -> list[str]:
        return self.files

    def create_commit(
        self, name: str, operations: Any, *, commit_message: str, revision: str
    ) -> Commit:
        self.calls.append("create_commit")
        self.asked |= {"message": commit_message, "revision": revision}
        self.sent = {each.path_in_repo: each.path_or_fileobj for each in operations}
        return Commit()


def answered(status: int) -> HfHubHTTPError:
    class Response:
        status_code = status

    error = HfHubHTTPError.__new__(HfHubHTTPError)
    Exception.__init__(error, "Bearer hf_secret")
    error.response = Response()  # pyright: ignore[reportAttributeAccessIssue]
    return error


def test_what_is_sent_is_the_release_and_its_card_by_the_hubs_name(released, tmp_path):
    hub = Hub()
    assert pushing.push(plan_push(released, NAME), hub) == "https://hub.example/commit/1"
    there = {entry.name: entry.read_bytes() for entry in released.iterdir()}
    assert hub.sent == {**there, "README.md": there["card.md"]}
    assert hub.asked["private"] is True
    assert hub.asked["revision"] == "main"
    assert hub.asked["message"].startswith("Release of run-")
    assert hub.calls == ["create_repo", "create_commit"]
    # What somebody downloads is a release again.
    copy = tmp_path / "downloaded"
    copy.mkdir()
    (copy / ".gitattributes").write_text("*.safetensors filter=lfs")
    (copy / ".cache").mkdir()
    for name, content in hub.sent.items():
        (copy / name).write_bytes(content)
    assert verify(copy).ok
    (copy / "README.md").write_text("ε = 0.1")
    assert verify(copy).first_failure is not None


@pytest.mark.long
def test_a_run_may_be_named_instead_of_its_release(run):
    with pytest.raises(StorageError, match=r"has no release; run: fedtranscribe release"):
        plan_push(run, NAME)
    make_release(run)
    assert plan_push(run, NAME).folder == run / "release"
    assert plan_push(run / "release", NAME).folder == run / "release"


def test_the_cards_header_is_metadata_as_hubs_want_it(made_once):
    plan = plan_push(made_once, NAME)
    written = ModelCard(plan.files["README.md"].decode()).data
    assert isinstance(written, ModelCardData)
    again = ModelCardData(**written.to_dict())
    assert again.to_dict() == plan.metadata
    assert again.library_name == "fedtranscribe"
    assert again.pipeline_tag == "image-classification"
    assert again.tags is not None
    assert all(isinstance(tag, str) for tag in again.tags)
    assert plan.metadata["fedtranscribe"]["private"] is True


@pytest.mark.parametrize("name", ["scans", "a/b/c", "a b/c", "../x", "a/", "https://a/b"])
def test_names_that_no_repository_has(made_once, name):
    with pytest.raises(ConfigError, match="OWNER/NAME"):
        plan_push(made_once, name)


def test_a_release_that_was_changed_is_not_sent(released):
    (released / "card.md").write_text("ε = 0.1", encoding="utf-8")
    with pytest.raises(PrivacyError, match=r"rejected \(files\)"):
        plan_push(released, NAME, stamp_not_private=True)


@pytest.mark.usefixtures("without_onnx")
def test_a_stamped_release_takes_insistence(seeded, tmp_path):
    made = make_release(seeded.run, tmp_path / "stamped", stamp_not_private=True)
    with pytest.raises(PrivacyError, match="add --stamp-not-private"):
        plan_push(made.folder, NAME)
    plan = plan_push(made.folder, NAME, stamp_not_private=True)
    assert plan.stamp is not None
    assert plan.stamp.startswith(LOUD)
    assert plan.metadata["fedtranscribe"]["private"] is False


def test_a_private_release_does_not_go_into_a_public_repository(made_once):
    hub = Hub(private=False)
    with pytest.raises(ConfigError, match="public already; pass --public"):
        pushing.push(plan_push(made_once, NAME), hub)
    assert hub.sent == {}
    pushing.push(plan_push(made_once, NAME, private=False), hub)
    assert hub.sent


def test_a_repository_with_other_files_is_refused(made_once):
    hub = Hub(files=[".gitattributes", "card.md", "train.py"])
    with pytest.raises(ConfigError, match=r"'train\.py', which is not part of this release"):
        pushing.push(plan_push(made_once, NAME), hub)
    assert hub.sent == {}


def test_a_branch_is_created_and_the_message_is_the_users(made_once):
    hub = Hub()
    pushing.push(plan_push(made_once, NAME, revision="v1", message="First"), hub)
    assert hub.calls == ["create_repo", "create_branch v1", "create_commit"]
    assert (hub.asked["revision"], hub.asked["message"]) == ("v1", "First")


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (answered(401), "hf auth login"),
        (answered(403), "may not write there"),
        (answered(404), "check the name"),
        (answered(500), "try again later"),
        (ConnectionError("hf_secret"), r"\(ConnectionError\); connect to a network"),
    ],
)
def test_what_the_hub_answers_names_the_fix_and_no_token(made_once, failure, words):
    with pytest.raises(HubError, match=words) as caught:
        pushing.push(plan_push(made_once, NAME), Hub(failure=failure))
    assert "hf_secret" not in str(caught.value)


def test_the_command_sends_nothing_unless_it_is_said(made_once, monkeypatch, capsys):
    hub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    asked = ["release", "push", str(made_once), NAME]
    assert cli.run(asked) == 0
    shown = capsys.readouterr().out
    assert "Nothing was sent; add --yes to push." in shown
    assert "README.md" in shown
    assert "image-classification" in shown
    assert hub.calls == []
    assert cli.run([*asked, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["pushed"] is False
    assert planned["private"] is True
    sizes = {entry.name: entry.stat().st_size for entry in Path(made_once).iterdir()}
    assert planned["files"] == {**sizes, "README.md": sizes["card.md"]}
    assert cli.run([*asked, "--yes", "--public", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["pushed"], done["private"]) == (True, False)
    assert done["commit"] == "https://hub.example/commit/1"
    assert set(hub.sent) == set(done["files"])


def test_without_the_hubs_library_the_extra_is_named(made_once, monkeypatch):
    monkeypatch.setattr(pushing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"fedtranscribe\[hub\]"):
        plan_push(made_once, NAME)
