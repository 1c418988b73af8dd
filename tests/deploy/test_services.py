"""What starts a server elsewhere: a unit, a container file, manifests. Their paths, flags and files are ours."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.cli import app
from headway.cli.layers import Layers
from headway.gateway.app import create_app
from headway.gateway.fleet.app import ROUTES
from headway.gateway.tenancy.keys import KeyFile
from tests.deploy.exported import DEPLOY, asked, exported
from tests.gateway.fake import FakeBackend

ROOT = DEPLOY.parent
MANIFESTS = {
    f"{path.name} {document['kind']}": document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
}
CONTAINERS = {
    name: container
    for name, one in MANIFESTS.items()
    if one["kind"] in {"Deployment", "StatefulSet"}
    for container in one["spec"]["template"]["spec"]["containers"]
}


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def instructions() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines_of(DEPLOY / "container" / "Containerfile"):
        word, _, rest = line.partition(" ")
        found.setdefault(word, []).append(rest.strip())
    return found


def check_serve(arguments: list[str]) -> None:
    """That `headway serve` takes them. Nothing is served."""
    command, bound, _ = app.parse_args(["serve", *arguments], exit_on_error=False, print_error=False)
    assert command.__name__ == "serve"
    assert bound.arguments


# -- systemd -----------------------------------------------------------------------------------------------------------


def test_the_unit_is_one(tmp_path: Path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    unit = tmp_path / "headway.service"
    unit.write_text(
        (DEPLOY / "systemd" / "headway.service").read_text().replace("/opt/headway/bin/headway", sys.executable)
    )
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if "headway" in line]
    assert (done.returncode, complaints) == (0, [])


def test_the_unit_starts_what_there_is_and_waits_for_its_drain():
    said = dict(line.split("=", 1) for line in lines_of(DEPLOY / "systemd" / "headway.service") if "=" in line)
    command = shlex.split(said["ExecStart"])
    assert command[:2] == ["/opt/headway/bin/headway", "serve"]
    check_serve(command[2:])
    drain_s = Layers(None, DEPLOY / "systemd" / "headway.toml", {}).read().config.drain_timeout
    assert float(said["TimeoutStopSec"]) > drain_s


def test_its_configuration_is_read():
    effective = Layers(None, DEPLOY / "systemd" / "headway.toml", {}).read()
    assert effective.is_gateway
    assert len(effective.tables.workers) == 2


class Scratch:
    """The steps of deploy/README.md, done under a folder instead of /: users are noted, packages are those here."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.users: set[str] = set()
        self.owners: dict[str, str] = {}  # of folders, by their real path
        self.ran_as: dict[str, list[str]] = {}
        self.enabled = ""

    def step(self, words: list[str]) -> None:
        name, rest = words[0], words[1:]
        if name == "useradd":
            self.users.add(rest[-1])
        elif name == "python3":
            assert rest[:2] == ["-m", "venv"]
            program = self.under(f"{rest[2]}/bin/headway")
            program.parent.mkdir(parents=True)
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -m headway "$@"\n')
            program.chmod(0o755)
        elif name.endswith("/bin/pip"):
            assert self.under(name).parent.exists()
        elif name == "install":
            self._install(rest)
        elif name == "runuser":
            assert (rest[0], rest[2]) == ("-u", "--")
            self.ran_as[rest[1]] = rest[3:]
            done = subprocess.run(self._here(rest[3:]), capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
        elif name == "systemctl":
            self.enabled = rest[-1]
        else:
            raise AssertionError(words)

    def under(self, path: str) -> Path:
        return self.root / path.removeprefix("/")

    def _install(self, words: list[str]) -> None:
        kept = list(words)
        while "-o" in kept or "-g" in kept:
            at = next(place for place, word in enumerate(kept) if word in ("-o", "-g"))
            assert kept[at + 1] in self.users
            self.owners[words[-1]] = kept[at + 1]
            del kept[at : at + 2]
        if "-d" not in kept:
            self.under(words[-1]).parent.mkdir(parents=True, exist_ok=True)  # as /etc/systemd/system is
        subprocess.run(["install", *self._here(kept)], cwd=ROOT, check=True, timeout=60)

    def _here(self, words: list[str]) -> list[str]:
        return [str(self.under(word)) if word.startswith("/") else word for word in words]


def test_after_its_steps_the_unit_finds_all_that_it_names(tmp_path: Path):
    page = (DEPLOY / "README.md").read_text()
    (steps,) = re.findall(r"## With systemd\n.*?```sh\n(.*?)```", page, re.DOTALL)
    done = Scratch(tmp_path)
    for line in steps.splitlines():
        done.step(shlex.split(line))
    unit = done.under(f"/etc/systemd/system/{done.enabled}.service")
    said = dict(line.split("=", 1) for line in lines_of(unit) if "=" in line)
    program, *arguments = shlex.split(said["ExecStart"])
    assert done.under(program).exists()
    config = Layers(None, done.under(arguments[arguments.index("--config") + 1]), {}).read().config
    # The server reads the keys, and its own user alone can: they are made as that user, in a folder of its own.
    user = said["User"]
    assert "DynamicUser" not in said
    assert user in done.users
    assert config.api_keys is not None
    keys = Path(config.api_keys)
    assert list(done.ran_as) == [user]
    assert str(keys) in done.ran_as[user]
    assert str(keys.parent) == f"/var/lib/{said['StateDirectory']}"
    assert done.owners[str(keys.parent)] == user
    assert [key.tenant for key in KeyFile(done.under(str(keys))).read()] == ["acme"]
    assert done.under(str(keys)).stat().st_mode & 0o777 == 0o600


# -- what is said to be typed ------------------------------------------------------------------------------------------


COMMANDS = sorted(
    {
        command
        for path in DEPLOY.rglob("*")
        if path.suffix in {".yaml", ".yml", ".toml", ".service", ".md", ""} and path.is_file()
        for command in (
            # In backticks, also over two lines of a comment; or all of a comment's line.
            *(re.sub(r"\s*\n\s*#?\s*", " ", found) for found in re.findall(r"`(headway [^`]+)`", path.read_text())),
            *re.findall(r"^\s*# (headway [a-z].*?)(?:;.*)?$", path.read_text(), re.MULTILINE),
        )
    }
)


def test_commands_in_comments_are_read():
    assert "headway keys create acme --api-keys keys.jsonl" in COMMANDS
    assert any("--admin" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_told_is_one(command: str):
    _, bound, _ = app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
    assert bound is not None


# -- a container -------------------------------------------------------------------------------------------------------


def test_what_the_image_copies_is_there():
    copies = [shlex.split(rest) for rest in instructions()["COPY"]]
    for words in copies:
        if words[0].startswith("--from="):
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source


def test_the_image_s_command_is_one_of_ours():
    (entry,) = instructions()["ENTRYPOINT"]
    command: list[str] = json.loads(entry)
    assert command[:2] == ["headway", "serve"]
    check_serve([*command[2:], "smollm2-135m"])


def test_the_image_runs_as_nobody_special():
    assert instructions()["USER"] == ["10001"]


# -- kubernetes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_s_flags_are_ours(name: str):
    container = CONTAINERS[name]
    check_serve(container["args"])
    pod = MANIFESTS[name]["spec"]["template"]["spec"]
    assert "--drain-timeout" in container["args"] or "--config" in container["args"]
    assert pod["terminationGracePeriodSeconds"] > 45


@pytest.mark.parametrize("name", CONTAINERS)
def test_probes_ask_for_routes_that_there_are(name: str):
    container = CONTAINERS[name]
    gateway = {path for _, path, _ in ROUTES}
    engine = {resource.canonical for resource in create_app(FakeBackend()).router.resources()}
    routes = gateway if "gateway" in name else engine
    ports = {port["name"] for port in container["ports"]}
    probes = {key: probe["httpGet"] for key, probe in container.items() if key.endswith("Probe")}
    assert {"readinessProbe", "livenessProbe"} <= set(probes)
    for probe in probes.values():
        assert probe["path"] in routes
        assert probe["port"] in ports
    # A server that drains, or whose workers are away, is no reason to kill it.
    assert probes["livenessProbe"]["path"] == "/health"
    assert probes["readinessProbe"]["path"] == "/ready"


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_image_s_user_can_write_to_its_volume(name: str):
    """A volume of blocks is root's, until Kubernetes gives it to a group."""
    one = MANIFESTS[name]
    if one["spec"].get("volumeClaimTemplates"):
        context = one["spec"]["template"]["spec"]["securityContext"]
        assert [str(context["fsGroup"])] == instructions()["USER"]


def test_the_gateway_s_configuration_is_read_and_knows_every_engine(tmp_path: Path):
    config = tmp_path / "headway.toml"
    config.write_text(MANIFESTS["gateway.yaml ConfigMap"]["data"]["headway.toml"])
    effective = Layers(None, config, {}).read()
    (service,) = (one for name, one in MANIFESTS.items() if name == "engines.yaml Service")
    engines = MANIFESTS["engines.yaml StatefulSet"]
    most = MANIFESTS["autoscale-hpa.yaml HorizontalPodAutoscaler"]["spec"]["maxReplicas"]
    pods = [
        f"http://{engines['metadata']['name']}-{number}.{service['metadata']['name']}:8000" for number in range(most)
    ]
    assert [table.url for table in effective.tables.workers] == pods
    assert effective.config.max_replicas == most
    assert engines["spec"]["serviceName"] == service["metadata"]["name"]


@pytest.mark.parametrize("name", ["autoscale-hpa.yaml HorizontalPodAutoscaler", "autoscale-keda.yaml ScaledObject"])
def test_the_autoscalers_follow_a_metric_that_is_exported(name: str):
    spec: dict[str, Any] = MANIFESTS[name]["spec"]
    assert spec["scaleTargetRef"]["name"] == MANIFESTS["engines.yaml StatefulSet"]["metadata"]["name"]
    names = asked(re.sub(r"'|\"", " ", json.dumps(spec)))
    assert names == {"headway_desired_replicas"}
    assert names <= exported()


def test_manifests_that_belong_together_agree():
    for name, container in CONTAINERS.items():
        one = MANIFESTS[name]
        assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
        volumes = {volume["name"] for volume in one["spec"]["template"]["spec"].get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    for name, service in MANIFESTS.items():
        if service["kind"] == "Service":
            pods = [
                one["spec"]["template"]["metadata"]["labels"] for key, one in MANIFESTS.items() if key in CONTAINERS
            ]
            assert service["spec"]["selector"] in pods, name
