"""The images built, and a deployment run in them: TLS, node keys, masked sums, votes, restarts.

By hand, as root: `make test-images`. Half an hour, of which building is most.
"""

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.containers import (
    EVERYBODY,
    LINK,
    NAMES,
    SERVER,
    Containers,
    built_wheel,
    node,
    service,
    wheel_of_version,
    why_no_engine,
)

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(why_no_engine()), reason=why_no_engine()),
]

_RECORDS = 1_300
_STATUS = "print(open('/proc/self/status').read())"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Containers]:
    """Server and three holders, built, started, registered and healthy."""
    place = Containers(tmp_path_factory.mktemp("images"))
    place.prepare(built_wheel(), _RECORDS)
    place.fedtranscribe("deploy", "check", "server", SERVER, "--name", "localhost")
    for name in NAMES:
        place.fedtranscribe("deploy", "check", "client", name)
        place.fedtranscribe("holder", "policy", "check", f"{name}/policy.toml")
    place.hand_over()
    try:
        place.start()
        yield place
    finally:
        place.remove()


@pytest.mark.parametrize("container", EVERYBODY)
def test_containers_have_no_root_no_capabilities_and_nothing_to_write(
    place: Containers, container: str
) -> None:
    said = dict(
        line.split(":", 1) for line in place.inside(container, _STATUS).splitlines() if ":" in line
    )
    users = {"holder": "10001", "superlink": "49999", "supernode": "49999"}
    assert set(said["Uid"].split()) == {users[container.split("_")[1]]}
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(said[name], 16) == 0, name
    assert said["NoNewPrivs"].strip() == "1"
    code = (
        "import os\n"
        "for path in ('/x', '/opt/fedtranscribe/x', '/holder/x', '/server/x', '/etc/x'):\n"
        "    try:\n"
        "        open(path, 'w')\n"
        "        print('wrote', path)\n"
        "    except OSError as error:\n"
        "        pass\n"
        "open('/tmp/x', 'w').close(); os.remove('/tmp/x'); print('only there')"
    )
    assert place.inside(container, code).strip() == "only there"
    missing = "import importlib.util as u; print(u.find_spec('pip'))"
    assert place.inside(container, missing).strip() == "None", "what pip needs stays behind"


@pytest.mark.parametrize("name", NAMES)
def test_the_service_has_no_network(place: Containers, name: str) -> None:
    lines = place.inside(service(name), "print(open('/proc/net/dev').read())").splitlines()
    assert [line.split(":")[0].strip() for line in lines if ":" in line] == ["lo"]


@pytest.mark.parametrize("name", NAMES)
def test_the_supernode_can_open_nothing_of_the_holders(place: Containers, name: str) -> None:
    code = (
        "import os\n"
        "found = [os.path.join(at, n) for at, _, names in os.walk('/holder') for n in names]\n"
        "print(sorted(found))\n"
        "try:\n"
        "    open('/holder/socket/x', 'w')\n"
        "    print('wrote')\n"
        "except OSError:\n"
        "    print(sorted(os.listdir('/node')))"
    )
    seen, inside = place.inside(node(name), code).splitlines()
    sockets = [f"/holder/socket/holder.sock{end}" for end in ("", ".health", ".lock")]
    assert seen == str(sockets)
    assert inside == "['certificates', 'keys']"


def test_secrets_are_files_of_their_owner_alone(place: Containers) -> None:
    secrets = {f"{SERVER}/certificates/server.key": 49999}
    for name in NAMES:
        secrets |= {f"{name}/keys/node": 49999, f"{name}/ledger/key": 10001}
        secrets |= {f"{name}/ledger/ledger.sqlite": 10001, f"{name}/ledger/records.npz": 10001}
    for path, owner in secrets.items():
        facts = (place.home / path).stat()
        assert (stat.S_IMODE(facts.st_mode), facts.st_uid) == (0o600, owner), path


def test_masked_sums_end_in_a_release(place: Containers) -> None:
    run = place.run("sums")
    assert place.await_run(run, 900) == "finished:completed", place.logs(LINK)
    result = json.loads((place.home / SERVER / "runs" / "sums" / "metrics.json").read_text())
    assert (result["noise"], result["start"]) == ("secagg", "moments")
    assert result["epsilon"] == pytest.approx(10.0)
    assert result["answered_rounds"] == dict.fromkeys(NAMES, 2)
    check_release(place, "sums")


def test_votes_go_on_through_a_restart_of_every_container(place: Containers) -> None:
    settings = {"start": "none", "student": "cnn-small", "rows": 600, "dpsd.round-rows": 200}
    few = {
        "with-generator": True,
        "dpsd.pretrain-steps": 5,
        "dpsd.student-steps": 5,
        "dpsd.finish-steps": 20,
        "quorum": 2,
        "timeout": 300.0,
    }
    run = place.run("votes", **settings, **few)
    folder = place.home / SERVER / "runs" / "votes"
    told = folder / "progress.jsonl"
    place.wait(
        lambda: told.exists() and "rows answered" in told.read_text(), 600, "an answer", LINK
    )
    for name in NAMES:
        place.podman("restart", "--time", "30", service(name), node(name))
    place.podman("restart", "--time", "30", LINK)
    place.wait_healthy(*EVERYBODY)
    ended = place.await_run(run, 900)
    if ended != "finished:completed":
        # Flower ends the run of a SuperLink that is restarted; what it had learned is kept.
        run = place.run("votes", **settings, **few, resume=True)
        assert place.await_run(run, 900) == "finished:completed", place.logs(LINK)
    result = json.loads((folder / "metrics.json").read_text())
    assert (result["rows"], result["epsilon"]) == (600, pytest.approx(10.0))
    check_release(place, "votes")


def test_ledgers_are_proved_from_outside(place: Containers) -> None:
    for name in NAMES:
        said = place.fedtranscribe("holder", "ledger", "verify", f"{name}/ledger/ledger.sqlite")
        assert re.search(r"proved\s+│ True", said), said
        # Only the container sees the service's socket.
        asked = ("fedtranscribe", "holder", "status", "--policy", "/holder/policy.toml")
        assert "highest limit" in place.podman("exec", service(name), *asked)


@pytest.mark.parametrize("container", EVERYBODY)
def test_nothing_is_written_outside_the_volumes(place: Containers, container: str) -> None:
    changed = place.podman("diff", "--format", "json", container)
    told = json.loads(changed or "{}")
    written = [p for p in (told.get("changed") or []) + (told.get("added") or []) if p != "/etc"]
    # Mount points, which the engine makes.
    assert all(p.startswith(("/holder", "/node", "/server", "/run", "/tmp")) for p in written)
    assert not told.get("deleted")


def test_a_stopped_service_is_unhealthy(place: Containers) -> None:
    name = NAMES[0]
    place.podman("stop", "--time", "30", service(name))
    assert not place.healthy(service(name))
    place.podman("start", service(name))
    place.wait_healthy(service(name))


def test_a_node_is_upgraded_and_rolled_back_with_its_ledger(
    place: Containers, tmp_path: Path
) -> None:
    """One of three holders runs the next version for a while, and answers a run under it."""
    name = NAMES[0]
    before = place.ledger(name)
    old = place.version_of(name)
    place.use_wheel(name, wheel_of_version(f"{old}.post1", tmp_path), f"{old}.post1")
    place.compose(name, "build", "holder")
    place.compose(name, "stop", "--timeout", "30")
    place.compose(name, "up", "--no-build", "--detach")
    place.wait_healthy(service(name), node(name))
    assert place.version_inside(name) == f"{old}.post1"
    assert place.ledger(name) == before
    run = place.run("upgraded")
    assert place.await_run(run, 900) == "finished:completed", place.logs(LINK)
    spent = place.ledger(name)
    assert spent["entries"] > before["entries"]

    place.compose(name, "stop", "--timeout", "30")
    place.set_environment(name, FEDTRANSCRIBE_VERSION=old)
    place.compose(name, "up", "--no-build", "--detach")
    place.wait_healthy(service(name), node(name))
    assert place.version_inside(name) == old
    assert place.ledger(name) == spent, "what the newer version spent stays spent"


def test_a_backup_is_restored_only_as_the_docs_say(place: Containers) -> None:
    name = NAMES[1]
    ledger, backup = place.home / name / "ledger", place.home / f"{name}-backup"
    place.podman("stop", "--time", "30", service(name))
    shutil.copytree(ledger, backup, copy_function=copy_with_owner)
    place.podman("start", service(name))
    place.wait_healthy(service(name))
    then = place.ledger(name)
    assert place.await_run(place.run("after"), 900) == "finished:completed", place.logs(LINK)
    now = place.ledger(name)
    assert now["entries"] > then["entries"]

    # The ledger of the backup beside the head file of today: refused.
    place.podman("stop", "--time", "30", service(name))
    today = place.home / f"{name}-today"
    shutil.copytree(ledger, today, copy_function=copy_with_owner)
    copy_with_owner(backup / "ledger.sqlite", ledger / "ledger.sqlite")
    place.podman("start", service(name))
    place.wait(
        lambda: "an older copy was put back" in place.logs(service(name)),
        120,
        "a refusal",
        service(name),
    )
    assert not place.healthy(service(name))

    # The whole folder, as if the original were gone: it starts, and states an older head.
    place.podman("stop", "--time", "30", service(name))
    for path in backup.iterdir():
        if path.is_file():
            copy_with_owner(path, ledger / path.name)
    place.podman("start", service(name))
    place.wait_healthy(service(name))
    assert place.ledger(name) == then, "only the heads that went out show what is missing"

    place.podman("stop", "--time", "30", service(name))
    for path in today.iterdir():
        if path.is_file():
            copy_with_owner(path, ledger / path.name)
    place.podman("start", service(name))
    place.wait_healthy(service(name))
    assert place.ledger(name) == now


def copy_with_owner(source: Path | str, target: Path | str) -> None:
    """As `cp --archive` does."""
    shutil.copy2(source, target)
    facts = Path(source).stat()
    os.chown(target, facts.st_uid, facts.st_gid)


def check_release(place: Containers, out: str) -> None:
    """The run's folder, copied from the server's volume, makes a release that verifies."""
    copy = place.home / f"{out}-copied"
    shutil.copytree(place.home / SERVER / "runs" / out, copy)
    place.fedtranscribe("release", str(copy))
    place.fedtranscribe("release", "verify", str(copy / "release"))
