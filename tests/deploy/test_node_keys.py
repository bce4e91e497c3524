import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedtranscribe.errors import ConfigError, StorageError
from fedtranscribe.flower.certificates import make_node_key, read_private, read_public


def test_both_halves_are_of_the_kind_that_flower_takes(tmp_path: Path) -> None:
    made = make_node_key(tmp_path / "node", "hospital")
    assert made.usable
    assert made == read_public(tmp_path / "node.pub") == read_private(tmp_path / "node")
    secret = serialization.load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    assert isinstance(secret, ec.EllipticCurvePrivateKey)
    assert secret.curve.name == "secp384r1"
    assert (tmp_path / "node").read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert (tmp_path / "node.pub").read_text().endswith(" hospital\n")


def test_flower_itself_reads_them(tmp_path: Path) -> None:
    register = pytest.importorskip("flwr.cli.supernode.register")
    make_node_key(tmp_path / "node")
    assert b"BEGIN PUBLIC KEY" in register.try_load_public_key(tmp_path / "node.pub")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_openssh_shows_the_same_fingerprint_and_makes_keys_that_we_take(tmp_path: Path) -> None:
    made = make_node_key(tmp_path / "node", "hospital")
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", tmp_path / "node"], capture_output=True, text=True, check=True
    ).stdout
    assert shown == f"384 {made.fingerprint} hospital (ECDSA)\n"
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", tmp_path / "theirs"]
    subprocess.run(command, check=True)
    assert read_private(tmp_path / "theirs").usable


def test_the_private_half_is_for_its_owner_alone(tmp_path: Path) -> None:
    make_node_key(tmp_path / "node")
    assert stat.S_IMODE((tmp_path / "node").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "node.pub").stat().st_mode) == 0o644
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["node", "node.pub"]


@pytest.mark.parametrize("taken", ["node", "node.pub"])
def test_a_key_is_never_overwritten(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    with pytest.raises(StorageError, match=f"{taken} exists already"):
        make_node_key(tmp_path / "node")
    assert (tmp_path / taken).read_text() == "mine"


def test_another_curve_is_told_apart(tmp_path: Path) -> None:
    line = ec.generate_private_key(ec.SECP256R1()).public_key()
    (tmp_path / "k.pub").write_bytes(
        line.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    assert not read_public(tmp_path / "k.pub").usable


def test_what_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("nonsense")
    with pytest.raises(ConfigError, match="no private key in OpenSSH's form"):
        read_private(tmp_path / "node")
    with pytest.raises(ConfigError, match="no public key in OpenSSH's form"):
        read_public(tmp_path / "node")
    with pytest.raises(ConfigError, match="Cannot read the key"):
        read_private(tmp_path / "absent")


def test_a_comment_stays_in_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one line"):
        make_node_key(tmp_path / "node", "a\nssh-rsa AAAA")
    assert not (tmp_path / "node").exists()
