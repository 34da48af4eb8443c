"""The compose file and the configuration of the real broker are what they should be."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bmq.broker.builtin import builtin_domains
from bmq.broker.domain import DomainConfig, parse_domain
from bmq.broker.server import Broker

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOMAINS = DOCKER / "single-node" / "etc" / "domains"
CONFIGURATIONS = ["single-node", "cluster"]
#: What a service may have, of the compose specification, as far as it is used here.
SERVICE_KEYS = {
    "image": str, "platform": str, "build": dict, "init": bool, "stop_grace_period": str, "healthcheck": dict,
    "profiles": list, "volumes": list, "hostname": str, "command": list, "ports": list,
}  # fmt: skip


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return compose["services"]


class TestCompose:
    def test_it_has_what_the_specification_knows(self, compose: dict[str, Any]) -> None:
        assert {key for key in compose if not key.startswith("x-")} == {"name", "services"}
        for service in services(compose).values():
            assert set(service) <= set(SERVICE_KEYS)
            for key, value in service.items():
                assert isinstance(value, SERVICE_KEYS[key]), key
            assert set(service["healthcheck"]) == {"test", "interval", "timeout", "retries", "start_period"}
            for key in ("interval", "timeout", "start_period"):
                assert re.fullmatch(r"\d+s", service["healthcheck"][key])
            assert all(isinstance(word, str) for word in service["healthcheck"]["test"] + service["command"])

    def test_one_node_by_default_and_three_in_a_profile(self, compose: dict[str, Any]) -> None:
        profiles = {name: service.get("profiles", []) for name, service in services(compose).items()}
        assert profiles == {
            "broker": [],
            "node1": ["cluster"],
            "node2": ["cluster"],
            "node3": ["cluster"],
        }

    def test_ports_are_loopback_only_and_different(self, compose: dict[str, Any]) -> None:
        ports = [port for service in services(compose).values() for port in service["ports"]]
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+:30114", port) for port in ports)
        assert len(set(ports)) == len(services(compose))

    def test_the_broker_is_built_from_a_pinned_release(self, compose: dict[str, Any]) -> None:
        for service in services(compose).values():
            repository, _, tag = service["build"]["context"].partition("#")
            assert repository == "https://github.com/bloomberg/blazingmq.git"
            assert re.fullmatch(r"v\d+\.\d+\.\d+", tag)
            assert service["image"].endswith(f":{tag}")

    def test_what_is_mounted_exists_and_is_read_only(self, compose: dict[str, Any]) -> None:
        for service in services(compose).values():
            mounted = {}
            for volume in service["volumes"]:
                source, target, mode = volume.split(":")
                assert (ROOT / source).exists(), source
                assert mode == "ro"
                mounted[target] = ROOT / source
            directory = mounted.get("/etc/local/bmq")
            for name in ("bmqbrkrcfg.json", "clusters.json", "domains"):
                assert (directory / name if directory else mounted[f"/etc/local/bmq/{name}"]).exists()

    def test_each_node_is_one_of_its_cluster(self, compose: dict[str, Any]) -> None:
        hosts = {service["hostname"] for service in services(compose).values()}
        nodes = {
            node["name"]
            for name in CONFIGURATIONS
            for node in configuration(name, "clusters.json")["myClusters"][0]["nodes"]
        }
        assert hosts == nodes

    def test_the_health_check_opens_a_queue_there_is(self, compose: dict[str, Any]) -> None:
        for service in services(compose).values():
            test = service["healthcheck"]["test"]
            domain = test[test.index("--queueuri") + 1].removeprefix("bmq://").partition("/")[0]
            assert (DOMAINS / f"{domain}.json").exists()


def configuration(name: str, file: str) -> dict[str, Any]:
    return json.loads((DOCKER / name / "etc" / file).read_text())


class TestConfiguration:
    @pytest.mark.parametrize("name", CONFIGURATIONS)
    def test_subscriptions_are_switched_on(self, name: str) -> None:
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
        for path in DOMAINS.glob("*.json"):
            assert json.loads(path.read_text())["definition"]["location"] == cluster["name"]

    def test_the_domains_are_the_built_in_ones(self) -> None:
        parsed = {path.stem: parse_domain(path.stem, path.read_bytes()) for path in DOMAINS.glob("*.json")}
        assert all(isinstance(domain, DomainConfig) for domain in parsed.values())
        assert parsed == builtin_domains()

    def test_the_files_are_what_the_script_writes(self) -> None:
        spec = importlib.util.spec_from_file_location("domains", DOCKER / "domains.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert {path.name: path.read_text() for path in DOMAINS.glob("*.json")} == module.contents()

    async def test_an_embedded_broker_reads_the_very_same_directory(self) -> None:
        async with Broker(config_dir=DOCKER / "single-node" / "etc") as broker:
            assert set(broker.source.names()) == set(builtin_domains())


def test_without_docker_make_integration_says_what_to_do(tmp_path: Path) -> None:
    for tool in ("dirname", "bash"):
        found = subprocess.run(["which", tool], capture_output=True, text=True, check=True).stdout.strip()
        (tmp_path / tool).symlink_to(found)
    run = subprocess.run(
        [str(tmp_path / "bash"), str(DOCKER / "integration"), "python"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "make integration needs Docker with its compose plugin" in run.stderr
    assert "BMQ_BROKER_URI=tcp://HOST:PORT" in run.stderr
