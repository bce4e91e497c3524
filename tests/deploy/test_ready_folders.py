"""What `deploy init` writes: whole, safe by default, and not out of date."""

import json
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import fedtranscribe
from fedtranscribe.config import read_toml
from fedtranscribe.errors import StorageError
from fedtranscribe.flower.folders import FolderKind, init, read_environment, template
from fedtranscribe.holder.holder_file import HolderFile, HolderPlace
from fedtranscribe.holder.link import health_socket
from fedtranscribe.holder.policy import HolderPolicy

ROOT = Path(__file__).parents[2]
KINDS = list(FolderKind)
DOCKERFILES = [
    (kind, path.name) for kind in KINDS for path in sorted(template(kind).glob("Dockerfile*"))
]


def load_all(path: Path) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_the_template_is_there(kind: FolderKind, tmp_path: Path) -> None:
    made = init(kind, tmp_path / "made")
    source = template(kind)
    for path in source.rglob("*"):
        name = path.relative_to(source)
        if path.is_file() and "__pycache__" not in name.parts and "wheels" not in name.parts:
            assert (made / name).read_bytes() == path.read_bytes()


def test_private_folders_are_closed(tmp_path: Path) -> None:
    client, server = (init(kind, tmp_path / kind) for kind in KINDS)
    closed = [*(client / n for n in ("keys", "teachers", "ledger")), server / "state"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in closed} == {0o700}


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    made = init(FolderKind.CLIENT, tmp_path / "made")
    (made / "policy.toml").write_text("mine")
    with pytest.raises(StorageError, match="not an empty folder"):
        init(FolderKind.CLIENT, made)
    assert (made / "policy.toml").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="not an empty folder"):
        init(FolderKind.SERVER, tmp_path / "file")


@pytest.mark.parametrize("kind", KINDS)
def test_versions_are_those_of_this_installation(kind: FolderKind, tmp_path: Path) -> None:
    settings = read_environment(init(kind, tmp_path / "made"))
    assert settings["FEDTRANSCRIBE_VERSION"] == fedtranscribe.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", settings["FLWR_VERSION"])


def test_the_policy_is_one_and_explains_every_field(tmp_path: Path) -> None:
    path = init(FolderKind.CLIENT, tmp_path / "made") / "policy.toml"
    file = HolderFile.read(path)
    assert file.policy == HolderPolicy(epsilon=file.epsilon)
    assert file.holder.records == path.parent / "ledger" / "records.npz"
    assert file.holder.teachers is None
    assert file.holder.socket == path.parent / "socket" / "holder.sock"
    lines = path.read_text().splitlines()
    for name in [*HolderPolicy.model_fields, *HolderPlace.model_fields]:
        at = next(i for i, line in enumerate(lines) if re.match(rf"(# )?{name} = ", line))
        assert lines[at - 1].startswith("# "), f"{name} is not explained"
    # What is commented out is valid, too.
    read_toml_text = "\n".join(re.sub(r"^# (\w+ = )", r"\1", line) for line in lines)
    path.write_text(read_toml_text)
    assert HolderFile.read(path).holder.log is not None
    assert set(read_toml(path)["holder"]) == set(HolderPlace.model_fields)


@pytest.mark.parametrize("kind", KINDS)
def test_every_container_has_the_least_that_it_needs(kind: FolderKind) -> None:
    (compose,) = load_all(template(kind) / "compose.yaml")
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", service["user"]), name
        assert "privileged" not in service, name
        # On tmpfs and named places alone can anything be written.
        writable = {v["target"] for v in service["volumes"] if not v.get("read_only")}
        assert writable <= {"/holder/ledger", "/holder/socket", "/server/state", "/server/runs"}


def test_the_supernode_sees_the_socket_and_nothing_else_of_the_holders() -> None:
    (compose,) = load_all(template(FolderKind.CLIENT) / "compose.yaml")
    holder, node = compose["services"]["holder"], compose["services"]["supernode"]
    assert holder["network_mode"] == "none"
    assert "ports" not in node
    targets = {volume["target"] for volume in node["volumes"]}
    assert targets == {"/node/certificates", "/node/keys", "/holder/socket"}
    assert all(volume["read_only"] for volume in node["volumes"])
    assert "/node" not in " ".join(volume["target"] for volume in holder["volumes"])
    (user, group), (other, _) = (s["user"].split(":") for s in (holder, node))
    assert user != other
    assert node["group_add"] == [group]
    owner = (template(FolderKind.CLIENT) / "Dockerfile").read_text()
    assert f"--gid {group} socket" in owner
    assert f"--uid {user} --gid socket" in owner


@pytest.mark.parametrize("kind", KINDS)
def test_the_gpu_is_reserved_in_a_file_of_its_own(kind: FolderKind) -> None:
    (plain,) = load_all(template(kind) / "compose.yaml")
    (gpu,) = load_all(template(kind) / "compose.cuda.yaml")
    assert set(gpu["services"]) <= set(plain["services"])
    (service,) = gpu["services"].values()
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]


def test_metrics_are_mounted_in_a_file_of_their_own() -> None:
    """The holder service alone writes them; the SuperNode sees nothing of them."""
    (metrics,) = load_all(template(FolderKind.CLIENT) / "compose.metrics.yaml")
    assert set(metrics["services"]) == {"holder"}
    assert set(metrics["services"]["holder"]) == {"volumes"}
    (volume,) = metrics["services"]["holder"]["volumes"]
    assert volume == {"type": "bind", "source": "./metrics", "target": "/holder/metrics"}


@pytest.mark.parametrize(("kind", "name"), DOCKERFILES)
def test_images_are_pinned_unprivileged_and_asked_for_their_health(
    kind: FolderKind, name: str
) -> None:
    text = (template(kind) / name).read_text().replace("\\\n", " ")
    words = [line.split(None, 1) for line in text.splitlines() if line and line[0] not in "# "]
    base = [rest for word, rest in words if word == "FROM"]
    official = "supernode" if kind is FolderKind.CLIENT else "superlink"
    chosen = f"${{BASE:-flwr/{official}:${{FLWR_VERSION}}-py3.13-ubuntu24.04}}"
    assert base == [f"{chosen} AS build", chosen], "what pip needs stays behind"
    user = [rest for word, rest in words if word == "USER"][-1]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    (entry,) = (rest for word, rest in words if word == "ENTRYPOINT")
    assert json.loads(entry) == ["fedtranscribe"]
    (health,) = (rest for word, rest in words if word == "HEALTHCHECK")
    assert "fedtranscribe.flower.health" in health
    (command,) = (rest for word, rest in words if word == "CMD")
    assert isinstance(json.loads(command), list)


@pytest.mark.parametrize(("kind", "name"), DOCKERFILES)
def test_versions_in_the_images_are_those_that_the_package_allows(
    kind: FolderKind, name: str
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *extras["federation"], *extras["dev"]]
    allowed = {wanted.name: wanted.specifier for wanted in map(Requirement, listed)}
    pinned = dict(
        re.findall(r"^ARG (\w+)_VERSION=(\S+)$", (template(kind) / name).read_text(), re.M)
    )
    assert set(pinned) == {"FLWR", "TORCH", "CYCLONEDX_BOM"}
    packages = {package: package.lower().replace("_", "-") for package in pinned}
    assert all(version in allowed[packages[package]] for package, version in pinned.items())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_private_goes_to_whoever_builds_the_image(kind: FolderKind) -> None:
    rules = (template(kind) / ".dockerignore").read_text().split("\n")
    assert [rule for rule in rules if rule and rule[0] != "#"] == ["*", "!wheels"]


@pytest.mark.parametrize("kind", KINDS)
def test_pods_are_locked_too(kind: FolderKind) -> None:
    (manifest,) = (template(kind) / "kubernetes").glob("*.yaml")
    (pod,) = (
        d["spec"]["template"]["spec"] for d in load_all(manifest) if d["kind"] == "Deployment"
    )
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["image"].endswith(f":{fedtranscribe.__version__}")
    mounts = {c["name"]: {m["name"] for m in c["volumeMounts"]} for c in pod["containers"]}
    if kind is FolderKind.CLIENT:
        assert mounts["supernode"] & mounts["holder"] == {"socket"}
        assert {"policy", "teachers", "ledger"}.isdisjoint(mounts["supernode"])


def test_the_connection_example_is_what_flower_reads() -> None:
    example = tomllib.loads((template(FolderKind.SERVER) / "connection.example.toml").read_text())
    connection = example["superlink"]["fedtranscribe"]
    assert set(connection) == {"address", "root-certificates"}


def test_every_health_check_asks_where_the_holder_service_tells_it() -> None:
    home = template(FolderKind.CLIENT)
    socket = health_socket(Path("/holder/socket/holder.sock"))
    files = [*home.glob("Dockerfile*"), home / "kubernetes" / "node.yaml"]
    for path in files:
        asked = re.findall(r"unix:([\w./]+)", path.read_text())
        assert set(asked) == {str(socket)}, path
    assert len(files) == 3
