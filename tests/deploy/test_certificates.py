import os
import socket
import ssl
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store

from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.flower.certificates import make_authority, make_server, renew_server
from fedtranscribe.flower.tls import (
    UnreachableError,
    fault_in_memory,
    fault_of_pair,
    fault_of_server,
    holder_context,
    load_chain,
    load_private_key,
    read_certificate,
)
from tests.deploy.conftest import NAME


def fault(home: Path, roots: Path, name: str = NAME) -> str | None:
    return fault_in_memory(home / "server.crt", home / "server.key", roots / "ca.crt", name)


@pytest.fixture
def home(tmp_path: Path, authority: Path) -> Path:
    make_server(tmp_path / "home", authority, [NAME, "10.0.0.5"])
    return tmp_path / "home"


@pytest.mark.parametrize("name", [NAME, "10.0.0.5", "localhost", "127.0.0.1", "::1"])
def test_a_holder_trusts_the_server_under_each_of_its_names(
    home: Path, authority: Path, name: str
) -> None:
    assert fault(home, authority, name) is None


def test_a_second_library_verifies_the_chain_too(home: Path, authority: Path) -> None:
    store = Store(load_chain(authority / "ca.crt"))
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName(NAME))
    leaf = load_chain(home / "server.crt")[0]
    assert verifier.verify(leaf, [])[0] == leaf


def test_a_holder_refuses_other_names_and_other_authorities(
    home: Path, authority: Path, tmp_path: Path
) -> None:
    other = make_authority(tmp_path / "other").parent
    assert "mismatch" in str(fault(home, authority, "elsewhere.example.org"))
    assert "issuer" in str(fault(home, other))


def test_a_certificate_of_the_past_is_refused_and_says_so(
    authority: Path, tmp_path: Path, at: Callable[[int], None]
) -> None:
    at(2020)
    make_server(tmp_path / "old", authority, [NAME], days=30)
    assert read_certificate(tmp_path / "old" / "server.crt").days_left() < 0
    assert "expired" in str(fault(tmp_path / "old", authority))


def test_an_expired_authority_signs_nothing(
    tmp_path: Path, at: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    at(2020)
    make_authority(tmp_path / "old", days=30)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="expired on 2020-01-31"):
        make_server(tmp_path / "new", tmp_path / "old", [NAME])
    assert not (tmp_path / "new").exists()


def test_a_certificate_never_outlives_its_authority(tmp_path: Path) -> None:
    make_authority(tmp_path / "a", days=10)
    make_server(tmp_path / "s", tmp_path / "a", [NAME], days=365)
    end = read_certificate(tmp_path / "s" / "server.crt").not_after
    assert end == read_certificate(tmp_path / "a" / "ca.crt").not_after
    assert end < datetime.now(UTC) + timedelta(days=11)


def test_private_keys_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_authority(tmp_path / "a")
        make_server(tmp_path / "s", tmp_path / "a", [NAME])
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.glob("*/*")}
    assert modes == {"ca.key": 0o600, "server.key": 0o600, "ca.crt": 0o644, "server.crt": 0o644}


def test_curves_and_uses_are_those_that_were_meant(home: Path, authority: Path) -> None:
    ca, server = load_private_key(authority / "ca.key"), load_private_key(home / "server.key")
    assert isinstance(ca, ec.EllipticCurvePrivateKey)
    assert isinstance(server, ec.EllipticCurvePrivateKey)
    assert (ca.curve.name, server.curve.name) == ("secp384r1", "secp256r1")
    root, leaf = read_certificate(authority / "ca.crt"), read_certificate(home / "server.crt")
    assert root.authority
    assert not leaf.authority
    assert leaf.issuer == root.subject
    assert leaf.names == (NAME, "localhost", "10.0.0.5", "127.0.0.1", "::1")


@pytest.mark.parametrize("taken", ["server.key", "server.crt"])
def test_nothing_is_overwritten(tmp_path: Path, authority: Path, taken: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / taken).write_text("mine")
    with pytest.raises(StorageError, match="never overwritten"):
        make_server(tmp_path / "s", authority, [NAME])
    assert [p.name for p in (tmp_path / "s").iterdir()] == [taken]
    assert (tmp_path / "s" / taken).read_text() == "mine"
    secret = (authority / "ca.key").read_bytes()
    with pytest.raises(StorageError, match="never overwritten"):
        make_authority(authority)
    assert (authority / "ca.key").read_bytes() == secret


def test_another_authoritys_ca_crt_is_not_replaced(home: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "other")
    (home / "server.crt").unlink()
    (home / "server.key").unlink()
    with pytest.raises(StorageError, match=r"ca\.crt exists already"):
        make_server(home, tmp_path / "other", [NAME])


def test_renewal_keeps_key_and_names(home: Path, authority: Path) -> None:
    secret, before = (home / "server.key").read_bytes(), read_certificate(home / "server.crt")
    after = read_certificate(renew_server(home, authority, days=7))
    assert (home / "server.key").read_bytes() == secret
    assert after.names == before.names
    assert after.days_left() in (6, 7)
    assert fault(home, authority) is None


def test_renewal_with_another_key_is_refused(home: Path, authority: Path, tmp_path: Path) -> None:
    make_server(tmp_path / "b", authority, [NAME])
    (home / "server.key").write_bytes((tmp_path / "b" / "server.key").read_bytes())
    with pytest.raises(ConfigError, match=r"does not belong to .*server\.key"):
        renew_server(home, authority)


@pytest.mark.parametrize(
    "name", ["https://a.org", "a.org:8000", "", "10.0.0.999", "a..b", "-a.org", "ä.org", "a b"]
)
def test_names_that_no_certificate_can_hold(tmp_path: Path, authority: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="host name or an IP address"):
        make_server(tmp_path / "s", authority, [name])


@pytest.mark.parametrize("days", [0, -1, 40_000])
def test_days_out_of_range(tmp_path: Path, authority: Path, days: int) -> None:
    with pytest.raises(ConfigError, match=f"--days {days}"):
        make_server(tmp_path / "s", authority, [NAME], days)


def test_a_key_of_another_certificate_is_told(home: Path, authority: Path, tmp_path: Path) -> None:
    make_server(tmp_path / "b", authority, [NAME])
    assert fault_of_pair(home / "server.crt", home / "server.key") is None
    assert "mismatch" in str(fault_of_pair(home / "server.crt", tmp_path / "b" / "server.key"))


def test_files_that_are_no_certificate_or_key(home: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    with pytest.raises(ConfigError, match="holds no certificate"):
        load_chain(tmp_path / "x")
    with pytest.raises(ConfigError, match="Cannot read the certificate"):
        load_chain(tmp_path / "absent")
    with pytest.raises(ConfigError, match="holds no private key"):
        load_private_key(home / "server.crt")


def test_a_key_with_a_passphrase_is_refused_without_a_question(home: Path) -> None:
    key = load_private_key(home / "server.key")
    locked = serialization.BestAvailableEncryption(b"secret")
    (home / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    with pytest.raises(ConfigError, match="passphrase"):
        load_private_key(home / "server.key")
    assert "passphrase" in str(fault_of_pair(home / "server.crt", home / "server.key"))


def test_tls_over_loopback(
    home: Path, authority: Path, tmp_path: Path, tls_server: Callable[[Path], int]
) -> None:
    port = tls_server(home)
    context = holder_context(authority / "ca.crt")
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"rows")
        assert secure.recv(100) == b"rows"
        assert secure.version() == "TLSv1.3"
    assert fault_of_server("localhost", port, authority / "ca.crt") is None
    other = make_authority(tmp_path / "other")
    assert "issuer" in str(fault_of_server("127.0.0.1", port, other))
    with pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(
            socket.create_connection(("127.0.0.1", port)), server_hostname="elsewhere.org"
        )


def test_a_server_that_is_not_there_is_another_matter_than_one_that_is_not_trusted(
    authority: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnreachableError, match="refused"):
        fault_of_server("127.0.0.1", port, authority / "ca.crt")
