# SPDX-License-Identifier: Apache-2.0
"""The reference service: container, Compose, Kubernetes, Prometheus and Grafana fit together."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import bmq
from bmq.prometheus import exposition
from tests.integration.steps import NewUri

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "examples" / "orders_service"
GRACE = 20
METRIC = re.compile(r"\bbmq_\w+")


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


def test_the_service_has_the_grace_of_the_manifests() -> None:
    assert f" grace={GRACE}," in (SERVICE / "service.py").read_text(encoding="utf-8")


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

    def test_the_mailer_runs_as_the_service_does(
        self, manifests: dict[str, Any], pod: dict[str, Any]
    ) -> None:
        mailer = manifests["Deployment mailer"]["spec"]["template"]["spec"]
        assert mailer["securityContext"] == pod["spec"]["securityContext"]
        (ours,), (theirs,) = mailer["containers"], pod["spec"]["containers"]
        for name in ("image", "securityContext"):
            assert ours[name] == theirs[name]
        own = [each for each in ours["env"] if each not in theirs["env"]]
        assert [each["name"] for each in own] == ["MAILER_READY_FILE"]

    def test_the_probe_of_the_mailer_reads_the_file_of_the_mailer(self, manifests: dict[str, Any]) -> None:
        (container,) = manifests["Deployment mailer"]["spec"]["template"]["spec"]["containers"]
        (file,) = [each["value"] for each in container["env"] if each["name"] == "MAILER_READY_FILE"]
        command = container["readinessProbe"]["exec"]["command"]
        assert f"'{file}'" in command[-1]
        (mount,) = container["volumeMounts"]
        assert Path(file).parent == Path(mount["mountPath"]), "the rest of the file system is read-only"

    def test_liveness_does_not_depend_on_the_broker(self, pod: dict[str, Any]) -> None:
        (container,) = pod["spec"]["containers"]
        paths = {name: probe["httpGet"]["path"] for name, probe in container.items() if "Probe" in name}
        assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
        (port,) = container["ports"]
        assert all(
            probe["httpGet"]["port"] == port["name"] for name, probe in container.items() if "Probe" in name
        )
        assert port["containerPort"] == 8080

    def test_handlers_may_finish_before_the_kill(self, pod: dict[str, Any]) -> None:
        assert pod["spec"]["terminationGracePeriodSeconds"] > GRACE

    @pytest.mark.parametrize("variable", ["BMQ_PASSWORD", "ORDERS_DATABASE"])
    def test_the_secret_has_the_values(
        self, manifests: dict[str, Any], pod: dict[str, Any], variable: str
    ) -> None:
        (container,) = pod["spec"]["containers"]
        variables = {each["name"]: each for each in container["env"]}
        reference = variables[variable]["valueFrom"]["secretKeyRef"]
        secret = manifests["Secret orders-bmq"]
        assert reference["name"] == secret["metadata"]["name"]
        assert reference["key"] in secret["stringData"]


class TestCompose:
    def test_the_file_follows_the_compose_specification(self) -> None:
        run = subprocess.run(
            [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
             str(SERVICE / "docker-compose.yml")],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout

    def test_ports_are_open_to_this_machine_only(self, compose: dict[str, Any]) -> None:
        ports = [port for service in compose.values() for port in service.get("ports", [])]
        assert len(ports) == 5
        assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)

    def test_every_file_of_a_container_exists(self, compose: dict[str, Any]) -> None:
        sources = {
            volume.split(":")[0] for service in compose.values() for volume in service.get("volumes", [])
        }
        named = set(load("docker-compose.yml")["volumes"])
        assert named < sources
        assert len(sources - named) == 4
        for source in sources - named:
            assert (SERVICE / source).exists(), source
        for service in compose.values():
            if "build" in service:
                assert (SERVICE / service["build"]["context"] / service["build"]["dockerfile"]).is_file()

    def test_the_images_are_pinned_to_a_version(self, compose: dict[str, Any]) -> None:
        for name in ("prometheus", "grafana", "jaeger"):
            assert re.search(r":v?\d+\.\d+\.\d+\}$", compose[name]["image"])

    def test_the_mailer_is_healthy_while_its_file_is_young(
        self, compose: dict[str, Any], manifests: dict[str, Any], tmp_path: Path
    ) -> None:
        mailer = compose["mailer"]
        file = mailer["environment"]["MAILER_READY_FILE"]
        kind, python, option, code = mailer["healthcheck"]["test"]
        assert (kind, python, option) == ("CMD", "python", "-c")
        (container,) = manifests["Deployment mailer"]["spec"]["template"]["spec"]["containers"]
        assert container["readinessProbe"]["exec"]["command"] == [python, option, code]
        assert f"'{file}'" in code
        mine = tmp_path / "ready"
        check = code.replace(f"'{file}'", repr(str(mine)))
        with pytest.raises(FileNotFoundError):
            exec(check, {})
        mine.touch()
        exec(check, {})
        os.utime(mine, (0, 0))
        with pytest.raises(AssertionError):
            exec(check, {})

    def test_traces_go_to_jaeger_with_the_profile_only(self, compose: dict[str, Any]) -> None:
        assert compose["jaeger"]["profiles"] == ["tracing"]
        for name in ("orders", "mailer"):
            environment = compose[name]["environment"]
            assert environment["OTEL_TRACES_EXPORTER"] == "${COMPOSE_PROFILES:+otlp}"
            assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://jaeger:4318"
            assert environment["OTEL_SERVICE_NAME"] == name
            assert "jaeger" not in compose[name]["depends_on"]
            assert compose[name]["entrypoint"][0] == "opentelemetry-instrument"

    def test_handlers_may_finish_before_the_kill(self, compose: dict[str, Any]) -> None:
        assert int(compose["orders"]["stop_grace_period"].removesuffix("s")) > GRACE


def test_the_replicas_of_compose_share_the_database_of_the_container(compose: dict[str, Any]) -> None:
    (volume,) = compose["orders"]["volumes"]
    dockerfile = (SERVICE / "Dockerfile").read_text(encoding="utf-8")
    assert f"sqlite+aiosqlite:///{volume.split(':')[1]}/" in dockerfile


def test_the_container_has_what_it_copies() -> None:
    dockerfile = (SERVICE / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    copied = [
        line.split()[1:-1]
        for line in dockerfile.splitlines()
        if line.startswith("COPY ") and "--from" not in line
    ]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = [each.removeprefix("!") for each in ignored if each.startswith("!")]
    for pattern in (name for names in copied for name in names):
        assert list(ROOT.glob(pattern)), pattern
        assert any(fnmatch(pattern, each) for each in sent), f"{pattern} is not sent to the engine"
    assert 'ENTRYPOINT ["bmq", "run", "service:app"]' in dockerfile
    modules = {path.name for path in SERVICE.glob("*.py") if not path.name.startswith("test_")}
    assert {Path(name).name for names in copied for name in names} >= modules


def test_prometheus_finds_every_replica_of_the_service(compose: dict[str, Any]) -> None:
    prometheus = load("prometheus/prometheus.yml")
    (scrape,) = prometheus["scrape_configs"]
    (discovery,) = scrape["dns_sd_configs"]
    assert set(discovery["names"]) <= set(compose)
    assert discovery["port"] == 8080
    for name in prometheus["rule_files"]:
        assert (SERVICE / "prometheus" / name).is_file()


async def test_alerts_ask_for_metrics_that_exist(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> None:
    queue = await bmq_session.open_queue(bmq_new_queue_uri("bmq.test.small.priority"), write=True)
    await queue.post_many([b"x"] * 13)  # some are refused
    known = set(METRIC.findall(exposition(bmq_session).decode()))
    (group,) = load("prometheus/alerts.yml")["groups"]
    asked = [name for rule in group["rules"] for name in METRIC.findall(rule["expr"])]
    assert len(asked) == len(group["rules"])
    assert set(asked) <= known


def test_grafana_opens_the_dashboard_with_its_data(compose: dict[str, Any]) -> None:
    (source,) = load("grafana/datasources.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = load("grafana/dashboards.yml")["providers"]
    folder = provider["options"]["path"]
    volumes = [volume.split(":") for volume in compose["grafana"]["volumes"]]
    (mounted,) = [volume for volume in volumes if Path(volume[1]).parent == Path(folder)]
    provisioning = compose["grafana"]["environment"]["GF_PATHS_PROVISIONING"]
    provisioned = {volume[0]: Path(volume[1]).parent for volume in volumes if volume != mounted}
    assert provisioned == {
        f"./grafana/{kind}.yml": Path(provisioning) / kind for kind in ("datasources", "dashboards")
    }
    assert compose["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == mounted[1]
    dashboard = json.loads((SERVICE / mounted[0]).read_text(encoding="utf-8"))
    assert dashboard["templating"]["list"][0]["query"] == source["type"]
