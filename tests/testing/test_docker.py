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

from bmq.broker._server import Broker
from bmq.broker.domain_config import DomainConfig, builtin_domains, parse_domain

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
CONFIGURATIONS = ["single-node", "cluster"]
#: What runs against a real broker.
SUITES = "tests/integration tests/cli/test_bystander.py tests/subscriptions/through_broker"
#: Services with a real broker.
REAL = ["broker", "node1", "node2", "node3"]


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
    def test_one_node_by_default_and_the_others_in_profiles(self, compose: dict[str, Any]) -> None:
        profiles = {name: service.get("profiles", []) for name, service in services(compose).items()}
        assert profiles == {
            "broker": [],
            "node1": ["cluster"],
            "node2": ["cluster"],
            "node3": ["cluster"],
            "embedded": ["embedded"],
        }

    def test_the_health_check_opens_a_queue_that_the_service_can_have(self, compose: dict[str, Any]) -> None:
        for service in real(compose).values():
            test = service["healthcheck"]["test"]
            domain = test[test.index("--queueuri") + 1].removeprefix("bmq://").partition("/")[0]
            file = configuration_of(service) / "domains" / f"{domain}.json"
            storage = json.loads(file.read_text())["definition"]["parameters"]["storage"]["config"]
            assert storage == {"fileBacked": {}}


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

    async def test_a_broker_is_healthy_also_if_it_wants_a_password_and_a_missing_one_is_not(self) -> None:
        async with Broker() as broker, Broker(auth={"alice": "secret"}) as other:
            assert await self.healthy(broker.uri) == (0, "")
            status, _ = await self.healthy(other.uri)
            assert status == 0
            uri = other.uri
        status, complaint = await self.healthy(uri)
        assert status == 1
        assert complaint.startswith(f"could not connect to {uri}")

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


def configuration(name: str, file: str) -> dict[str, Any]:
    return json.loads((DOCKER / name / "etc" / file).read_text())


def domains(name: str) -> list[Path]:
    return sorted((DOCKER / name / "etc" / "domains").glob("*.json"))


class TestConfiguration:
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
