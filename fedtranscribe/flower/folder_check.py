"""What is wrong with a holder's or a server's folder, found before anything is started.

Each check has a name, a verdict, what was found, and the fix. All are made, so that one look
tells everything; none changes a file.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from fedtranscribe.errors import ConfigError
from fedtranscribe.files import who_may_open, who_may_reach
from fedtranscribe.flower import folders
from fedtranscribe.flower.certificates import (
    CA_CERTIFICATE,
    CA_KEY,
    LOOPBACK,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    public_path,
    read_private,
    read_public,
)
from fedtranscribe.flower.tls import (
    Certificate,
    UnreachableError,
    fault_in_memory,
    fault_of_pair,
    fault_of_server,
    read_certificate,
)
from fedtranscribe.text import counted

SOON_DAYS = 30
_RENEW = "fedtranscribe deploy certs renew, then start the SuperLink again"
_ASK_CA = "ask the operator for the ca.crt of the federation"
_NEW_KEY = "fedtranscribe deploy keys create {path}, and have {path}.pub registered"


class FolderVerdict(StrEnum):
    """How a check ended; a warning is no fault yet."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "not ok"


@dataclass(frozen=True)
class FolderCheck:
    """One check."""

    name: str  # what was looked at
    verdict: FolderVerdict  # how it ended
    found: str  # what was found
    fix: str = ""  # what to do about it; empty if nothing


def check_client(folder: Path, connect: bool = False) -> list[FolderCheck]:
    """Check a data holder's folder."""
    return list(_client(folder, connect))


def check_server(folder: Path, names: Sequence[str] = ()) -> list[FolderCheck]:
    """Check a server's folder."""
    return list(_server(folder, names))


# -------------------------------------------------------------------- a data holder's


def check_node(folder: Path, superlink: str) -> list[FolderCheck]:
    """Check what a SuperNode needs, in a folder that has nothing of the holder service's.

    A server that does not answer yet is a warning: the SuperNode will wait for it.
    """
    return [*_credentials(folder), *_server_of(folder, superlink, FolderVerdict.WARNING)]


def _client(folder: Path, connect: bool) -> Iterator[FolderCheck]:
    yield from _policy(folder / folders.POLICY)
    yield from _credentials(folder)
    superlink = folders.read_environment(folder).get("SUPERLINK", "")
    yield from _server_of(folder, superlink, FolderVerdict.FAULT if connect else None)


def _credentials(folder: Path) -> Iterator[FolderCheck]:
    roots = folder / folders.CERTIFICATES / CA_CERTIFICATE
    yield from _certificate(roots, authority=True, fix=_ASK_CA)
    yield from _node_key(folder / folders.KEYS / folders.NODE_KEY)


def _server_of(
    folder: Path, address: str, unreachable: FolderVerdict | None
) -> Iterator[FolderCheck]:
    """The address, and what the server there presents; None: do not ask it."""
    host, _, port = address.rpartition(":")
    named = bool(host) and port.isdecimal() and 0 < int(port) < 65_536
    yield _verdict(
        "server's address",
        None if named else f"SUPERLINK={address!r} is no host:port",
        address,
        "write SUPERLINK=host:port into .env",
    )
    if not named or unreachable is None:
        return
    name, fix = f"TLS with {address}", "check address and ca.crt with the operator"
    roots = folder / folders.CERTIFICATES / CA_CERTIFICATE
    try:
        fault = fault_of_server(host.strip("[]"), int(port), roots)
    except UnreachableError as error:
        yield FolderCheck(
            name, unreachable, f"nobody answers: {error}", "check address and firewall"
        )
        return
    yield _verdict(name, fault, "the server's certificate is trusted", fix)


def _policy(path: Path) -> Iterator[FolderCheck]:
    # The policy's types come with torch, which takes seconds to import.
    from fedtranscribe.holder.holder_file import HolderFile

    try:
        file = HolderFile.read(path)
    except ConfigError as error:
        yield FolderCheck("policy", FolderVerdict.FAULT, str(error), f"correct {path}")
        return
    limits = f"ε {file.epsilon:g} at δ {file.delta:g} per {file.unit}, {file.noise} noise"
    yield FolderCheck("policy", FolderVerdict.OK, f"{file.holder.name}: {limits}")
    place = file.holder
    if place.teachers is not None:
        yield _folder("teachers", place.teachers, FolderVerdict.FAULT, writable=False)
    if place.records is not None and (file.needs_records or file.summed is not None):
        yield _private("records", place.records)
    yield _folder("ledger's folder", place.ledger.parent, FolderVerdict.FAULT)
    yield _folder("socket's folder", place.socket.parent)


def _node_key(path: Path) -> Iterator[FolderCheck]:
    fix = _NEW_KEY.format(path=path)
    try:
        key = read_private(path)
    except ConfigError as error:
        yield FolderCheck("node key", FolderVerdict.FAULT, str(error), fix)
        return
    fault = None if key.usable else f"{key.kind}, expected ecdsa-sha2-nistp384"
    yield _verdict("node key", fault, f"{key.kind} {key.fingerprint}", fix)
    yield _mode("node key's mode", path)
    try:
        public = read_public(public_path(path))
    except ConfigError as error:
        yield FolderCheck("node key's public half", FolderVerdict.FAULT, str(error), fix)
        return
    yield _verdict(
        "node key's public half",
        None if public == key else f"{public_path(path)} belongs to another key",
        public.fingerprint,
        fix,
    )


# -------------------------------------------------------------------- a server's


def _server(folder: Path, names: Sequence[str]) -> Iterator[FolderCheck]:
    home = folder / folders.CERTIFICATES
    roots, certificate, key = (
        home / name for name in (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY)
    )
    make = f"fedtranscribe deploy certs create {home} --name HOST"
    yield from _certificate(roots, authority=True, fix=make)
    yield from _certificate(certificate, authority=False, fix=make)
    yield _mode("server.key's mode", key)
    pair = fault_of_pair(certificate, key)
    yield _verdict("server.key belongs to server.crt", pair, "they belong together", make)
    if pair is None:
        yield from _trusted(certificate, key, roots, names)
    yield _verdict(
        "authority's key",
        f"{home / CA_KEY} lies on the server" if (home / CA_KEY).exists() else None,
        "not on the server",
        "keep it elsewhere: anyone who has it can pose as the server",
        fault_is=FolderVerdict.WARNING,
    )
    yield _folder("state", folder / folders.STATE, FolderVerdict.WARNING)
    yield _folder("runs", folder / folders.RUNS)


def _trusted(
    certificate: Path, key: Path, roots: Path, names: Sequence[str]
) -> Iterator[FolderCheck]:
    """Whether holders will trust the server: at all, then under each name."""
    try:
        own = read_certificate(certificate).names
    except ConfigError:
        return
    fault = fault_in_memory(certificate, key, roots, next(iter(own), "localhost"))
    yield _verdict(
        "server.crt under ca.crt",
        fault,
        "a holder with this ca.crt trusts it",
        "use the ca.crt that signed it, or make a new certificate",
    )
    if fault is not None:
        return
    for name in dict.fromkeys([*names, LOOPBACK[1]]):
        yield _verdict(
            f"name {name}",
            fault_in_memory(certificate, key, roots, name),
            "in server.crt",
            "make a certificate with this --name too"
            if name in names
            else "the ServerApp asks its SuperLink over loopback: add --name 127.0.0.1",
        )


# -------------------------------------------------------------------- what both share


def _certificate(path: Path, authority: bool, fix: str) -> Iterator[FolderCheck]:
    try:
        found = read_certificate(path)
    except ConfigError as error:
        yield FolderCheck(path.name, FolderVerdict.FAULT, str(error), fix)
        return
    if authority and not found.authority:
        yield FolderCheck(
            path.name, FolderVerdict.FAULT, "it is not an authority's certificate", fix
        )
        return
    yield FolderCheck(path.name, FolderVerdict.OK, f"{found.subject}, {found.fingerprint[:23]}…")
    yield _expiry(found, fix if authority else _RENEW)


def _expiry(found: Certificate, fix: str) -> FolderCheck:
    name, day, left = f"{found.path.name}'s end", f"{found.not_after:%Y-%m-%d}", found.days_left()
    if left < 0:
        return FolderCheck(name, FolderVerdict.FAULT, f"it expired on {day}", fix)
    if left <= SOON_DAYS:
        return FolderCheck(
            name, FolderVerdict.WARNING, f"it expires on {day}, in {counted(left, 'day')}", fix
        )
    return FolderCheck(name, FolderVerdict.OK, f"good until {day}")


def _mode(name: str, path: Path) -> FolderCheck:
    def fault(found: os.stat_result) -> _Wrong | None:
        # A cluster hands secrets to a group, as files of root's.
        ours = found.st_uid == os.geteuid()
        forbidden = stat.S_IRWXO | (stat.S_IRWXG if ours else 0)
        return _too_open(found, forbidden, f"chmod 600 {path}", FolderVerdict.FAULT)

    return _guarded(name, path, fault)


def _folder(
    name: str, path: Path, open_is: FolderVerdict | None = None, writable: bool = True
) -> FolderCheck:
    """A folder that this user can use; `open_is` is what it means that others or its group may.

    One that is only read has to hold something already.
    """

    def fault(found: os.stat_result) -> _Wrong | None:
        if not stat.S_ISDIR(found.st_mode):
            return _Wrong("it is no folder", f"make it: mkdir -p {path}")
        if not os.access(path, os.R_OK | os.X_OK | (os.W_OK if writable else 0)):
            return _Wrong("this user may not use it", f"give it to the service's user: {path}")
        if not writable and not any(path.iterdir()):
            return _Wrong("it is empty", f"fedtranscribe teacher train --data … --out {path}")
        who = who_may_open(path) if open_is is not None else None
        if open_is is None or who is None:
            return None
        return _open_to(who, found, f"chmod 700 {path}", open_is)

    return _guarded(name, path, fault)


def _private(name: str, path: Path) -> FolderCheck:
    """A file or folder that this user can read, and nobody else."""

    def fault(found: os.stat_result) -> _Wrong | None:
        # A folder is listed, too.
        wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(found.st_mode) else 0)
        if not os.access(path, wanted):
            return _Wrong("this user may not read it", f"give it to the service's user: {path}")
        who = who_may_reach(path)
        return (
            None
            if who is None
            else _open_to(who, found, f"chmod -R go= {path}", FolderVerdict.FAULT)
        )

    return _guarded(name, path, fault)


def _too_open(
    found: os.stat_result, forbidden: int, fix: str, verdict: FolderVerdict
) -> "_Wrong | None":
    wrong = stat.S_IMODE(found.st_mode) & forbidden
    return _open_to("others", found, fix, verdict) if wrong else None


def _open_to(who: str, found: os.stat_result, fix: str, verdict: FolderVerdict) -> "_Wrong":
    mode = stat.S_IMODE(found.st_mode)
    return _Wrong(f"{who} may open it (mode {mode:o})", fix, verdict)


def _guarded(
    name: str, path: Path, fault: "Callable[[os.stat_result], _Wrong | None]"
) -> FolderCheck:
    try:
        wrong = fault(path.stat())
    except OSError as error:
        words = (error.strerror or "its mode cannot be read").lower()
        wrong = _Wrong(words, f"make {path}, or correct its path")
    if wrong is None:
        return FolderCheck(name, FolderVerdict.OK, str(path))
    return FolderCheck(name, wrong.verdict, f"{path}: {wrong.words}", wrong.fix)


class _Wrong(NamedTuple):
    words: str
    fix: str
    verdict: FolderVerdict = FolderVerdict.FAULT


def _verdict(
    name: str, fault: str | None, good: str, fix: str, fault_is: FolderVerdict = FolderVerdict.FAULT
) -> FolderCheck:
    return (
        FolderCheck(name, FolderVerdict.OK, good)
        if fault is None
        else FolderCheck(name, fault_is, fault, fix)
    )


def first_fault(checks: Iterable[FolderCheck]) -> FolderCheck | None:
    """The first check that failed; a warning has not."""
    return next((check for check in checks if check.verdict is FolderVerdict.FAULT), None)
