"""A release to a repository on the Hugging Face hub: planned here, sent only by `push`.

Guarantee
    What is sent are the files that `privacy.json` lists, that statement itself, and the card once
    more as `README.md`, the name under which the hub shows it. Each file's bytes are read once,
    compared with the digest in the statement, and sent from memory.
"""

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtranscribe.config.catalogue import release_in
from fedtranscribe.errors import ConfigError, HubError, PrivacyError, StorageError
from fedtranscribe.releases.loading import HUB_CARD, HUB_FILES
from fedtranscribe.releases.statement import (
    CARD,
    STATEMENT,
    PrivacyStatement,
    read_statement,
    stamp_of,
)
from fedtranscribe.releases.verification import verify
from fedtranscribe.text import expect_repository

_MAIN = "main"


@dataclass(frozen=True)
class PushPlan:
    """What would be sent."""

    folder: Path  # the release's
    repository: str  # OWNER/NAME
    private: bool  # whether only its owner may see the repository
    revision: str  # branch
    message: str  # of the commit
    files: Mapping[str, bytes]  # content by name in the repository
    metadata: Mapping[str, Any]  # of the card, as the hub reads it
    stamp: str | None  # why the release must not be taken for private; None if it may be


def plan_push(
    path: Path,
    repository: str,
    *,
    private: bool = True,
    revision: str = _MAIN,
    message: str | None = None,
    stamp_not_private: bool = False,
) -> PushPlan:
    """Verify a release, and say what a push would send; nothing is sent, and nobody is asked."""
    expect_repository(repository)
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError("A push needs huggingface-hub: pip install 'fedtranscribe[hub]'.")
    folder = release_in(path)
    _expect_verified(folder, stamp_not_private)
    statement = read_statement(folder)
    files = _contents(folder, statement)
    return PushPlan(
        folder,
        repository,
        private,
        revision,
        message or f"Release of {statement.run}",
        files,
        _metadata(files[CARD]),
        statement.stamp,
    )


def push(plan: PushPlan, api: Any = None) -> str:
    """Send what was planned, in one commit."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = api or HfApi()
    name = plan.repository
    with _hub_errors(name):
        api.create_repo(name, private=plan.private, exist_ok=True)
        if plan.private and not api.repo_info(name).private:
            raise ConfigError(
                f"The repository {name} is public already; pass --public, or choose another one."
            )
        if plan.revision != _MAIN:
            api.create_branch(name, branch=plan.revision, exist_ok=True)
        there = set(api.list_repo_files(name, revision=plan.revision))
        strange = sorted(there - set(plan.files) - HUB_FILES)
        if strange:
            raise ConfigError(
                f"The repository {name} holds {strange[0]!r}, which is not part of this release; "
                "remove it there, or choose another repository."
            )
        commit = api.create_commit(
            name,
            [CommitOperationAdd(file, content) for file, content in plan.files.items()],
            commit_message=plan.message,
            revision=plan.revision,
        )
    return str(commit.commit_url)


def _expect_verified(folder: Path, stamp_not_private: bool) -> None:
    verification = verify(folder)
    failed = [check for check in verification.checks if not check.ok]
    if not failed:
        return
    first = failed[0]
    if [check.name for check in failed] == ["stamp"]:
        statement = read_statement(folder)
        if statement.stamp is not None and statement.stamp == stamp_of(statement):
            if stamp_not_private:
                return
            raise PrivacyError(
                f"The release in {folder} is not private ({first.words}). Make a release of "
                "another run, or add --stamp-not-private to push it with its stamp."
            )
    raise PrivacyError(f"The release in {folder} is rejected ({first.name}): {first.words}.")


def _contents(folder: Path, statement: PrivacyStatement) -> dict[str, bytes]:
    files = {}
    try:
        for name, digest in sorted(statement.files.items()):
            files[name] = (folder / name).read_bytes()
            if hashlib.sha256(files[name]).hexdigest() != digest:
                raise PrivacyError(f"{name} in {folder} has changed just now; verify it again.")
        files[STATEMENT] = (folder / STATEMENT).read_bytes()
    except OSError as error:
        raise StorageError(f"Cannot read {folder}: {error.strerror or error}.") from None
    return {HUB_CARD: files[CARD], **files}


def _metadata(card: bytes) -> dict[str, Any]:
    from huggingface_hub import ModelCard

    return ModelCard(card.decode("utf-8")).data.to_dict()


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """What the hub answers, as an error that names the fix; never the token."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except ConfigError:
        raise
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        raise HubError(f"The hub refuses to take {repository} ({status}): {_fix(status)}") from None
    except Exception as error:  # of whatever library carries the requests
        raise HubError(
            f"Cannot reach the hub for {repository} ({type(error).__name__}); connect to a "
            "network, or unset HF_HUB_OFFLINE."
        ) from None


def _fix(status: int | None) -> str:
    if status == 401:
        return "log in with `hf auth login`, or set HF_TOKEN to a token that may write."
    if status == 403:
        return "your token may not write there; create one that may, or choose another owner."
    if status == 404:
        return "no such owner or repository, or your token may not see it; check the name."
    if status == 409:
        return "somebody else is writing to it; try again."
    return "try again later, or upload the folder by hand."
