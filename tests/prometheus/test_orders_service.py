# SPDX-License-Identifier: Apache-2.0
"""The reference service: container, Compose, Kubernetes, Prometheus and Grafana fit together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "examples" / "orders_service"


def load(name: str) -> Any:
    return yaml.safe_load((SERVICE / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def compose() -> dict[str, dict[str, Any]]:
    return load("docker-compose.yml")["services"]


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((SERVICE / "kubernetes.yaml").read_text(encoding="utf-8"))
    return {f"{document['kind']} {document['metadata']['name']}": document for document in documents}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return manifests["Deployment orders"]["spec"]["template"]


class TestKubernetes:
    def test_every_document_follows_the_schema_of_kubernetes(self, manifests: dict[str, Any]) -> None:
        names = {"Secret orders-bmq", "Deployment orders", "Deployment mailer", "PodDisruptionBudget orders"}
        assert set(manifests) == names
        for document in manifests.values():
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)

    def test_every_selector_finds_the_pods(self, manifests: dict[str, Any], pod: dict[str, Any]) -> None:
        labels = pod["metadata"]["labels"]
        for name in ("Deployment orders", "PodDisruptionBudget orders"):
            assert manifests[name]["spec"]["selector"]["matchLabels"].items() <= labels.items()
        mailer = manifests["Deployment mailer"]["spec"]
        mail = mailer["template"]["metadata"]["labels"].items()
        assert mailer["selector"]["matchLabels"].items() <= mail
        assert not mail <= labels.items(), "each deployment owns its pods"

    def test_liveness_does_not_depend_on_the_broker(self, pod: dict[str, Any]) -> None:
        (container,) = pod["spec"]["containers"]
        paths = {name: probe["httpGet"]["path"] for name, probe in container.items() if "Probe" in name}
        assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
        (port,) = container["ports"]
        assert all(
            probe["httpGet"]["port"] == port["name"] for name, probe in container.items() if "Probe" in name
        )
        assert port["containerPort"] == 8080


class TestCompose:
    def test_the_file_follows_the_compose_specification(self) -> None:
        run = subprocess.run(
            [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
             str(SERVICE / "docker-compose.yml")],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout

    def test_ports_are_open_to_this_machine_only_and_every_file_exists(self, compose: dict[str, Any]) -> None:
        ports = [port for service in compose.values() for port in service.get("ports", [])]
        assert len(ports) == 5
        assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)
        mounted = {each.split(":")[0] for service in compose.values() for each in service.get("volumes", [])}
        files = mounted - set(load("docker-compose.yml")["volumes"])
        assert len(files) == 4
        builds = [service["build"] for service in compose.values() if "build" in service]
        files |= {f"{each['context']}/{each['dockerfile']}" for each in builds}
        assert [each for each in files if not (SERVICE / each).exists()] == []

    def test_the_mailer_is_healthy_while_its_file_is_young(
        self, compose: dict[str, Any], manifests: dict[str, Any], tmp_path: Path
    ) -> None:
        mailer = compose["mailer"]
        file = mailer["environment"]["MAILER_READY_FILE"]
        kind, *command = mailer["healthcheck"]["test"]
        assert (kind, command[:2]) == ("CMD", ["python", "-c"])
        (container,) = manifests["Deployment mailer"]["spec"]["template"]["spec"]["containers"]
        assert container["readinessProbe"]["exec"]["command"] == command
        assert f"'{file}'" in command[2]
        mine = tmp_path / "ready"
        check = command[2].replace(f"'{file}'", repr(str(mine)))
        with pytest.raises(FileNotFoundError):
            exec(check, {})
        mine.touch()
        exec(check, {})
        os.utime(mine, (0, 0))
        with pytest.raises(AssertionError):
            exec(check, {})
