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
