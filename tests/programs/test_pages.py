# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation work, copied unchanged into an empty folder."""

from __future__ import annotations

import configparser
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import pages
from tests.ports import reserved_port

DOCS = Path(__file__).parent.parent.parent / "docs"
#: Pages that run as shown; of one page, some sections do.
GUIDES = [
    "migrate/blazingmq", "migrate/kafka", "migrate/rabbitmq", "operate/deploy", "operate/security",
    "operate/tuning", "operate/domains", "operate/observe#logging", "operate/observe#recipes", "guides/post",
    "guides/receive", "guides/select", "guides/workers-recipes", "guides/testing",
]  # fmt: skip
TUTORIAL = sorted((DOCS / "start" / "tutorial").glob("*.md"))
LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"
ORDERS_SERVICE = DOCS.parent / "examples" / "orders_service"
#: The files that a reader of the tutorial has at its end.
SERVICE = [
    file
    for file in sorted(ORDERS_SERVICE.rglob("*"))
    if file.suffix in {".py", ".yml", ".yaml"} or file.name == "Dockerfile"
]


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with contextlib.ExitStack() as held:
        yield [held.enter_context(reserved_port()) for _ in pages.PORTS]


@pytest.mark.timeout(600)
def test_the_tutorial_builds_the_orders_service(tmp_path: Path, ports: list[int]) -> None:
    assert [page.stem[0] for page in TUTORIAL] == list("1234567")
    for page in TUTORIAL:
        # The service takes the broker's address from the environment; a test has no broker.
        broker = "$ bmq broker" in page.read_text(encoding="utf-8")
        variables = {"BMQ_BROKER_URI": f"tcp://localhost:{ports[0]}"} if broker else {}
        assert pages.run(page, tmp_path, ports, variables), page.name
    for file in SERVICE:
        name = file.relative_to(ORDERS_SERVICE).as_posix()
        expected = file.read_text(encoding="utf-8").removeprefix(LICENSE)
        for shown, free in zip(pages.PORTS, ports, strict=True):
            expected = expected.replace(shown, str(free))
        assert (tmp_path / name).read_text(encoding="utf-8") == expected, name


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", GUIDES)
def test_guide_works_when_copied(name: str, tmp_path: Path, ports: list[int]) -> None:
    path, _, section = name.partition("#")
    page = DOCS / f"{path}.md"
    assert pages.run(pages.section(page, section) if section else page, tmp_path, ports)


def test_a_deployment_waits_longer_than_its_service_and_uses_the_right_probes(
    tmp_path: Path, ports: list[int]
) -> None:
    pages.run(DOCS / "operate" / "deploy.md", tmp_path, ports)
    grace = int(re.findall(r"grace=(\d+)", (tmp_path / "service.py").read_text(encoding="utf-8"))[0])
    pod = yaml.safe_load((tmp_path / "deployment.yaml").read_text(encoding="utf-8"))["spec"]["template"][
        "spec"
    ]
    assert pod["terminationGracePeriodSeconds"] > grace
    container = pod["containers"][0]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(tmp_path / "orders.service", encoding="utf-8")
    assert int(unit["Service"]["TimeoutStopSec"]) > grace
    assert unit["Service"]["ExecStart"].endswith("bmq run service:app")
