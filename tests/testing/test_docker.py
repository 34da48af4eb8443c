# SPDX-License-Identifier: Apache-2.0
"""The compose file and the configuration of the real broker are correct."""

from __future__ import annotations

import asyncio
import fnmatch
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bmq.broker._domain_config import DomainConfig, builtin_domains, parse_domain
from bmq.broker._server import Broker

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
CONFIGURATIONS = ["single-node", "cluster"]
#: What runs against a real broker.
SUITES = "tests/integration tests/cli/test_bystander.py tests/subscriptions/through_broker"
#: Services with a real broker.
REAL = ["broker", "node1", "node2", "node3"]
#: The keys of a service in the compose specification, as used here.
SERVICE_KEYS = {
    "image": str, "platform": str, "build": dict, "init": bool, "stop_grace_period": str, "healthcheck": dict,
    "profiles": list, "volumes": list, "hostname": str, "command": list, "ports": list, "read_only": bool,
}  # fmt: skip
#: ``${NAME:-default}``, as both generations of Compose fill in.
VARIABLE = re.compile(r"\$\{(\w+):-([^}]+)\}")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return compose["services"]


def real(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: services(compose)[name] for name in REAL}


def configuration_of(service: dict[str, Any]) -> Path:
    """The directory that becomes the broker's configuration."""
    (volume,) = service["volumes"]
    source, target, mode = volume.split(":")
    assert (target, mode) == ("/etc/local/bmq", "ro")
    return ROOT / source


class TestCompose:
    def test_compose_file_uses_only_keys_of_compose_1_29(self, compose: dict[str, Any]) -> None:
        assert {key for key in compose if not key.startswith("x-")} == {"services"}
        for service in services(compose).values():
            assert set(service) <= set(SERVICE_KEYS)
            for key, value in service.items():
                assert isinstance(value, SERVICE_KEYS[key]), key
            assert all(isinstance(word, str) for word in service.get("command", []))
        for service in real(compose).values():
            assert set(service["healthcheck"]) == {"test", "interval", "timeout", "retries", "start_period"}
            for key in ("interval", "timeout", "start_period"):
                assert re.fullmatch(r"\d+s", service["healthcheck"][key])
            assert all(isinstance(word, str) for word in service["healthcheck"]["test"])

    def test_one_node_by_default_and_the_others_in_profiles(self, compose: dict[str, Any]) -> None:
        profiles = {name: service.get("profiles", []) for name, service in services(compose).items()}
        assert profiles == {
            "broker": [],
            "node1": ["cluster"],
            "node2": ["cluster"],
            "node3": ["cluster"],
            "embedded": ["embedded"],
        }

    def test_ports_are_loopback_only_and_different(self, compose: dict[str, Any]) -> None:
        ports = [port for service in services(compose).values() for port in service["ports"]]
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+:30114", port) for port in ports)
        assert len(set(ports)) == len(services(compose))

    def test_the_broker_is_an_image_that_is_named_or_built_from_a_pinned_release(
        self, compose: dict[str, Any]
    ) -> None:
        for service in real(compose).values():
            repository, _, tag = service["build"]["context"].partition("#")
            assert repository == "https://github.com/bloomberg/blazingmq.git"
            assert re.fullmatch(r"v\d+\.\d+\.\d+", tag)
            image = VARIABLE.fullmatch(service["image"])
            assert image is not None
            assert image[1] == "BMQ_BROKER_IMAGE"
            assert image[2].endswith(f":{tag}")

    def test_every_service_has_its_configuration(self, compose: dict[str, Any]) -> None:
        for service in real(compose).values():
            for name in ("bmqbrkrcfg.json", "clusters.json", "domains"):
                assert (configuration_of(service) / name).exists()

    def test_each_node_belongs_to_its_cluster(self, compose: dict[str, Any]) -> None:
        for service in real(compose).values():
            (cluster,) = json.loads((configuration_of(service) / "clusters.json").read_text())["myClusters"]
            assert service["hostname"] in {node["name"] for node in cluster["nodes"]}

    def test_the_health_check_opens_a_queue_that_the_service_can_have(self, compose: dict[str, Any]) -> None:
        for service in real(compose).values():
            test = service["healthcheck"]["test"]
            domain = test[test.index("--queueuri") + 1].removeprefix("bmq://").partition("/")[0]
            file = configuration_of(service) / "domains" / f"{domain}.json"
            storage = json.loads(file.read_text())["definition"]["parameters"]["storage"]["config"]
            assert storage == {"fileBacked": {}}

    def test_the_embedded_broker_is_built_from_here(self, compose: dict[str, Any]) -> None:
        build = services(compose)["embedded"]["build"]
        assert (ROOT / build["context"]).resolve() == ROOT
        dockerfile = (ROOT / build["dockerfile"]).read_text()
        for argument in build["args"]:
            assert f"ARG {argument}" in dockerfile


class TestBrokerImage:
    """The image of ``bmq broker``."""

    HEALTHY = DOCKER / "bmq-broker" / "healthy.py"

    def test_inputs_of_the_image_are_not_ignored(self) -> None:
        dockerfile = (DOCKER / "bmq-broker" / "Dockerfile").read_text()
        patterns = (ROOT / ".dockerignore").read_text().splitlines()
        allowed = [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]
        lines = re.findall(r"^COPY (\w.*) \S+$", dockerfile, re.MULTILINE)
        copied = [path for line in lines for path in line.split()]
        assert {"pyproject.toml", "README.md", "LICENSE", "bmq", "pyspark_bmq"} < set(copied)
        for path in copied:
            assert (ROOT / path).exists()
            assert any(path == each or fnmatch.fnmatch(path, f"{each}/*") for each in allowed), path

    def test_image_runs_as_an_unprivileged_user_with_a_health_check(self) -> None:
        dockerfile = (DOCKER / "bmq-broker" / "Dockerfile").read_text()
        final = dockerfile.rpartition("\nFROM ")[2]
        user = re.search(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
        assert user is not None
        assert int(user[1]) > 0
        assert "HEALTHCHECK" in final
        assert json.loads(final[final.index("ENTRYPOINT") :].removeprefix("ENTRYPOINT"))[:2] == [
            "bmq",
            "broker",
        ]

    async def healthy(self, uri: str, *seconds: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(self.HEALTHY),
            uri,
            *seconds,
            stderr=asyncio.subprocess.PIPE,
            # The variable must not redirect the check.
            env={**os.environ, "PYTHONPATH": str(ROOT), "BMQ_BROKER_URI": "tcp://127.0.0.1:1"},
        )
        _, complaint = await process.communicate()
        return process.returncode, complaint.decode()

    async def test_a_broker_that_answers_is_healthy(self) -> None:
        async with Broker() as broker:
            assert await self.healthy(broker.uri) == (0, "")

    async def test_a_broker_that_wants_a_password_is_healthy(self) -> None:
        async with Broker(auth={"alice": "secret"}) as broker:
            status, _ = await self.healthy(broker.uri)
        assert status == 0

    async def test_a_silent_broker_is_not_healthy(self) -> None:
        connected: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            status, complaint = await self.healthy(f"tcp://127.0.0.1:{port}", "0.5")
            assert connected
            connected[0].close()
        assert status == 1
        assert complaint.startswith(f"tcp://127.0.0.1:{port} did not answer within 0.")

    async def test_a_missing_broker_is_not_healthy(self) -> None:
        async with Broker() as broker:
            uri = broker.uri
        status, complaint = await self.healthy(uri)
        assert status == 1
        assert complaint.startswith(f"could not connect to {uri}")


def configuration(name: str, file: str) -> dict[str, Any]:
    return json.loads((DOCKER / name / "etc" / file).read_text())


def domains(name: str) -> list[Path]:
    return sorted((DOCKER / name / "etc" / "domains").glob("*.json"))


class TestConfiguration:
    @pytest.mark.parametrize("name", CONFIGURATIONS)
    def test_subscriptions_are_enabled(self, name: str) -> None:
        app = configuration(name, "bmqbrkrcfg.json")["appConfig"]
        assert app["configureStream"] is True
        assert app["advertiseSubscriptions"] is True

    @pytest.mark.parametrize("name", CONFIGURATIONS)
    def test_nodes_listen_where_clients_look(self, name: str) -> None:
        interface = configuration(name, "bmqbrkrcfg.json")["appConfig"]["networkInterfaces"]["tcpInterface"]
        (cluster,) = configuration(name, "clusters.json")["myClusters"]
        for node in cluster["nodes"]:
            endpoint = node["transport"]["tcp"]["endpoint"]
            assert endpoint == f"tcp://{node['name']}:{interface['port']}"
        assert len({node["id"] for node in cluster["nodes"]}) == len(cluster["nodes"])

    @pytest.mark.parametrize("name", CONFIGURATIONS)
    def test_the_domains_are_of_that_cluster(self, name: str) -> None:
        (cluster,) = configuration(name, "clusters.json")["myClusters"]
        for path in domains(name):
            assert json.loads(path.read_text())["definition"]["location"] == cluster["name"]

    def test_the_domains_are_the_built_in_ones(self) -> None:
        parsed = {path.stem: parse_domain(path.stem, path.read_bytes()) for path in domains("single-node")}
        assert all(isinstance(domain, DomainConfig) for domain in parsed.values())
        assert parsed == builtin_domains()

    def test_cluster_domains_differ_only_in_storage(self) -> None:
        assert {path.name for path in domains("cluster")} == {path.name for path in domains("single-node")}
        for path in domains("cluster"):
            here = json.loads(path.read_text())
            there = configuration("single-node", f"domains/{path.name}")
            parameters = here["definition"]["parameters"]
            # A cluster keeps only broadcast messages in memory: other queues are refused, or crash a node.
            kept = "inMemory" if "broadcast" in parameters["mode"] else "fileBacked"
            assert parameters["storage"]["config"] == {kept: {}}
            there["definition"]["parameters"]["storage"]["config"] = {kept: {}}
            assert here == there

    @pytest.mark.parametrize("name", CONFIGURATIONS)
    def test_files_equal_the_output_of_the_script(self, name: str) -> None:
        spec = importlib.util.spec_from_file_location("domains", DOCKER / "domains.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert {path.name: path.read_text() for path in domains(name)} == module.contents(name)

    async def test_an_embedded_broker_reads_the_same_directory(self) -> None:
        async with Broker(config_dir=DOCKER / "single-node" / "etc") as broker:
            assert set(broker._source.names()) == set(builtin_domains())


def path_with(directory: Path, **scripts: str) -> Path:
    """Return a directory for PATH with these programs, and the requirements of a script."""
    for tool in ("dirname", "bash", "sleep"):
        found = subprocess.run(["which", tool], capture_output=True, text=True, check=True).stdout.strip()
        (directory / tool).symlink_to(found)
    for name, text in scripts.items():
        program = directory / name.replace("_", "-")
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    return directory


def integration(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(path / "bash"), str(DOCKER / "integration"), str(path / "python"), "-k", "something"],
        env={"PATH": str(path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


#: Answers like Docker with healthy containers, and records the commands.
ENGINE = """case "$*" in
*Health*) echo healthy ;;
*Running*) echo true ;;
*ps\\ -q*) echo container ;;
*version | info) ;;
*) echo "$*" >>"$SAID" ;;
esac"""
#: The second node is the primary.
PYTHON = 'if [[ $1 == - ]]; then echo "${3:-$2}"; else echo "$BMQ_BROKER_URI: $*" >>"$SAID"; fi'


class TestMakeIntegration:
    def test_missing_docker_is_reported_with_a_remedy(self, tmp_path: Path) -> None:
        run = integration(path_with(tmp_path))
        assert run.returncode == 1
        assert "make integration needs Docker with Compose" in run.stderr
        assert "BMQ_BROKER_URI=tcp://HOST:PORT" in run.stderr

    def test_missing_docker_engine_is_reported(self, tmp_path: Path) -> None:
        run = integration(path_with(tmp_path, docker="[[ $1 == compose ]]"))
        assert run.returncode == 1
        assert "needs a running Docker engine" in run.stderr

    def test_the_compose_plugin_is_used(self, tmp_path: Path) -> None:
        path = path_with(tmp_path, docker=ENGINE, python=PYTHON)
        run = integration(path, SAID=str(tmp_path / "said"))
        assert run.returncode == 0, run.stderr
        assert (tmp_path / "said").read_text().splitlines() == [
            "compose up --detach broker",
            f"tcp://127.0.0.1:30114: -m pytest {SUITES} -k something",
            ": -m conformance broker tcp://127.0.0.1:30114 --quiet",
            "compose down --volumes",
        ]

    def test_the_older_compose_program_is_used(self, tmp_path: Path) -> None:
        path = path_with(
            tmp_path, docker=f"[[ $1 == compose ]] && exit 1\n{ENGINE}", docker_compose=ENGINE, python=PYTHON
        )
        run = integration(path, SAID=str(tmp_path / "said"), PROFILE="cluster")
        assert run.returncode == 0, run.stderr
        assert (tmp_path / "said").read_text().splitlines() == [
            "--profile cluster up --detach node1 node2 node3",
            f"tcp://127.0.0.1:30134: -m pytest {SUITES} -k something",
            ": -m conformance broker tcp://127.0.0.1:30134 --quiet",
            "tcp://127.0.0.1:30124: -m pytest tests/integration/features/test_groups.py",
            "tcp://127.0.0.1:30144: -m pytest tests/integration/features/test_groups.py",
            "--profile cluster down --volumes",
        ]

    def test_last_output_of_an_ended_broker_is_reported(self, tmp_path: Path) -> None:
        docker = """case "$*" in
*Health*) echo unhealthy ;;
*Running*) echo false ;;
*logs*) echo "cannot open storage" ;;
*ps\\ -q*) echo container ;;
esac"""
        run = integration(path_with(tmp_path, docker=docker, python="exit 0"))
        assert run.returncode == 1
        assert "cannot open storage" in run.stderr
        assert "broker did not become healthy" in run.stderr

    def test_an_unknown_profile_is_refused(self, tmp_path: Path) -> None:
        run = integration(path_with(tmp_path, docker=ENGINE), PROFILE="large")
        assert run.returncode == 1
        assert "not 'large'" in run.stderr
