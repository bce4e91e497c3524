"""The images built, and a deployment run in them: TLS, node keys, masked sums, votes, restarts.

By hand, as root: `make test-images`. Half an hour, of which building is most.
"""

import json
import re
import shutil
import stat
from collections.abc import Iterator

import pytest

from tests.images.containers import NAMES, ROOT, SERVER, Containers, why_no_engine

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(why_no_engine()), reason=why_no_engine()),
]

_RECORDS = 1_300
_LINK = f"{SERVER}_superlink_1"
_STATUS = "print(open('/proc/self/status').read())"


def service(name: str) -> str:
    return f"{name}_holder_1"


def node(name: str) -> str:
    return f"{name}_supernode_1"


EVERYBODY = [_LINK, *map(service, NAMES), *map(node, NAMES)]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Containers]:
    """Server and three holders, built, started, registered and healthy."""
    (wheel,) = (ROOT / "dist").glob("fedtranscribe-*.whl")
    place = Containers(tmp_path_factory.mktemp("images"))
    place.prepare(wheel, _RECORDS)
    place.fedtranscribe("deploy", "check", "server", SERVER, "--name", "localhost")
    for name in NAMES:
        place.fedtranscribe("deploy", "check", "client", name)
        place.fedtranscribe("holder", "policy", "check", f"{name}/policy.toml")
    place.hand_over()
    try:
        place.compose(SERVER, "up", "--build", "--detach")
        place.wait(lambda: place.healthy(_LINK), 300, "the server's health", _LINK)
        for name in NAMES:
            public = f"{name}/keys/node.pub"
            place.flwr("supernode", "register", public, "fedtranscribe", "--name", name)
            # Holders have one image; the first one builds it.
            build = ["--build"] if name == NAMES[0] else ["--no-build"]
            place.compose(name, "up", *build, "--detach")
        for container in EVERYBODY:
            place.wait(lambda c=container: place.healthy(c), 300, "health", container)
        yield place
    finally:
        for project in (*NAMES, SERVER):
            place.compose(project, "down", "--volumes", "--timeout", "5", code=None)


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
    assert place.await_run(run, 900) == "finished:completed", place.logs(_LINK)
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
        lambda: told.exists() and "rows answered" in told.read_text(), 600, "an answer", _LINK
    )
    for name in NAMES:
        place.podman("restart", "--time", "30", service(name), node(name))
    place.podman("restart", "--time", "30", _LINK)
    for container in EVERYBODY:
        place.wait(lambda c=container: place.healthy(c), 300, "health again", container)
    ended = place.await_run(run, 900)
    if ended != "finished:completed":
        # Flower ends the run of a SuperLink that is restarted; what it had learned is kept.
        run = place.run("votes", **settings, **few, resume=True)
        assert place.await_run(run, 900) == "finished:completed", place.logs(_LINK)
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
    place.wait(lambda: place.healthy(service(name)), 120, "health", service(name))


def check_release(place: Containers, out: str) -> None:
    """The run's folder, copied from the server's volume, makes a release that verifies."""
    copy = place.home / f"{out}-copied"
    shutil.copytree(place.home / SERVER / "runs" / out, copy)
    place.fedtranscribe("release", str(copy))
    place.fedtranscribe("release", "verify", str(copy / "release"))
