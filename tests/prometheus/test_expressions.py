# SPDX-License-Identifier: Apache-2.0
"""The alert rules, the dashboards and the KEDA example use existing metrics and labels.

``promtool test rules tests/prometheus/alerts.test.yml`` tests the rules themselves, and ``docs/alerts.py``
causes every alert.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import bmq
from bmq.cli.exporter import Exporter
from bmq.cli.target import BrokerTarget
from bmq.client.address import parse_addresses
from bmq.prometheus import exposition
from tests.fakes.cluster import RecordedCluster
from tests.integration.steps import NewUri
from tests.sweeps import sweep

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML


def targets(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The titles and the queries of a dashboard."""
    panels = json.loads((ASSETS / name).read_text(encoding="utf-8"))["panels"]
    return [(panel["title"], target) for panel in panels for target in panel["targets"]]


RULES: list[dict[str, Any]] = [
    rule for group in load(ASSETS / "alerts.yml")["groups"] for rule in group["rules"]
]
TESTS: list[dict[str, Any]] = load(Path(__file__).with_name("alerts.test.yml"))["tests"]
KEDA = load(ROOT / "examples" / "keda" / "scaledobject.yaml")
PAGE = (ROOT / "docs" / "operate" / "alerts.md").read_text(encoding="utf-8")
CLIENT = targets("grafana-dashboard.json")
EXPRESSIONS = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{f"{title} {target['refId']}": target["expr"] for title, target in targets("grafana-brokers.json")},
    "KEDA": KEDA["spec"]["triggers"][0]["metadata"]["query"],
}
# The recorded nodes are without files.
UNRECORDED = {f"bmq_cluster_partition_{what}_bytes" for what in ("offset", "outstanding", "size")}
SELECTED = re.compile(r"(bmq_\w+)(?:\{([^}]*)\})?(\[)?")
Exported = dict[str, tuple[str, set[str]]]


def kinds(families: Iterable[Metric]) -> Exported:
    """Kind and labels of every metric."""
    return {
        sample.name: (family.type, set(sample.labels)) for family in families for sample in family.samples
    }


@pytest.fixture
async def of_brokers() -> Exported:
    """The metrics of the exporter."""
    with RecordedCluster() as cluster:
        uri = cluster.uris("node0", "proxy")
        limits: dict[str, Any] = {"max_queues": 10, "max_apps": 10, "max_details": 10, "only": frozenset()}
        target = BrokerTarget(uri, "bmq exporter", 5.0)
        exporter = Exporter(target, parse_addresses(uri), interval=15.0, **limits)
        await exporter.ask_all()
        found = list(exporter.collect())
        await exporter.close()
    # Without samples, such as of undelivered messages of some reasons, the labels are unknown.
    named = {each.name + ("_total" if each.type == "counter" else ""): each.type for each in found}
    return {name: (kind, set()) for name, kind in named.items()} | kinds(found)


@pytest.fixture
async def of_clients(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> Exported:
    """The metrics of a session."""
    queue = await bmq_session.open_queue(bmq_new_queue_uri("bmq.test.small.priority"), write=True)
    await queue.post_many([b"x"] * 13)  # some are refused
    return kinds(text_string_to_metric_families(exposition(bmq_session).decode()))


async def test_every_expression_about_brokers_uses_existing_metrics_and_labels(of_brokers: Exported) -> None:
    for name, expression in EXPRESSIONS.items():
        found = SELECTED.findall(re.sub(r'"[^"]*"', '""', expression))
        assert found, name
        for metric, selectors, over_time in found:
            if metric in UNRECORDED:
                continue
            kind, labels = of_brokers[metric]
            assert not (kind == "counter" and not over_time), f"{name}: {metric} without a rate"
            if labels:
                assert set(re.findall(r"(\w+)[=!]~?", selectors)) <= labels, (name, metric)


async def test_every_query_about_clients_uses_existing_metrics_and_labels(of_clients: Exported) -> None:
    shown: set[str] = set()
    for title, target in CLIENT:
        expression = target["expr"]
        found = SELECTED.findall(expression)
        assert len(found) == expression.count("bmq_") > 0, (title, expression)
        shown |= {name for name, *_ in found}
        for name, selectors, over_time in found:
            kind, labels = of_clients[name]
            # Rates are taken of what only grows, and of nothing else.
            assert bool(over_time) == (kind in ("counter", "histogram")), expression
            labels = labels | {"job"}  # Prometheus adds it to everything it scrapes.
            assert set(re.findall(r"(\w+)=~", selectors)) <= labels, expression
            for grouped in re.findall(r"by \(([^)]*)\)", expression):
                assert set(grouped.split(", ")) <= labels, expression
                assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set(grouped.split(", "))
    messages = {name for name in of_clients if "messages" in name and name != "bmq_revived_messages_total"}
    assert messages - shown == {"bmq_acknowledged_messages_total"}  # posted ones that were not refused


async def test_alerts_of_the_orders_service_use_existing_metrics(of_clients: Exported) -> None:
    (group,) = load(ROOT / "examples" / "orders_service" / "prometheus" / "alerts.yml")["groups"]
    asked = [name for rule in group["rules"] for name in re.findall(r"\bbmq_\w+", rule["expr"])]
    assert len(asked) == len(group["rules"])
    assert set(asked) <= of_clients.keys()


@sweep("rule", RULES)
def test_every_alert_has_a_section_a_command_and_a_test(rule: dict[str, Any]) -> None:
    name, annotations = rule["alert"], rule["annotations"]
    assert f"\n## {name}\n" in PAGE
    assert annotations["runbook_url"] == f"docs/operate/alerts.md#{name.lower()}"
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    verb = " ".join(annotations["command"].split()[:2])
    assert verb in section
    for part in ("**Meaning.**", "**Command.**", "**Remedy.**"):
        assert part in section, name
    expected = [
        bool(each["exp_alerts"])
        for test in TESTS
        for each in test["alert_rule_test"]
        if each["alertname"] == name
    ]
    assert True in expected, "no test in which the alert fires"


def test_the_keda_example_has_the_members_of_a_scaled_object() -> None:
    assert (KEDA["apiVersion"], KEDA["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert KEDA["spec"]["scaleTargetRef"]["name"]
    (trigger,) = KEDA["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes text only"
    assert {"serverAddress", "query", "threshold"} <= trigger["metadata"].keys()
