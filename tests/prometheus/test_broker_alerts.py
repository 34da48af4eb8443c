# SPDX-License-Identifier: Apache-2.0
"""The alert rules, the dashboard of brokers and the KEDA example use existing metrics and labels.

``promtool test rules tests/prometheus/alerts.test.yml`` tests the rules themselves, and ``docs/alerts.py``
causes every alert.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric

from bmq.cli.exporter import Exporter
from bmq.cli.target import BrokerTarget
from bmq.client.address import parse_addresses
from tests.fakes.cluster import RecordedCluster
from tests.sweeps import sweep

ROOT = Path(__file__).parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "docs/assets/alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
TESTS: list[dict[str, Any]] = yaml.safe_load(
    (ROOT / "tests/prometheus/alerts.test.yml").read_text(encoding="utf-8")
)["tests"]
DASHBOARD = json.loads((ROOT / "docs/assets/grafana-brokers.json").read_text(encoding="utf-8"))
KEDA = yaml.safe_load((ROOT / "examples/keda/scaledobject.yaml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "operate" / "alerts.md").read_text(encoding="utf-8")
EXPRESSIONS = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    },
    "KEDA": KEDA["spec"]["triggers"][0]["metadata"]["query"],
}
# The recorded nodes are without files.
UNRECORDED = {f"bmq_cluster_partition_{what}_bytes" for what in ("offset", "outstanding", "size")}
SELECTED = re.compile(r"(bmq_\w+)(?:\{([^}]*)\})?(\[)?")


@pytest.fixture
async def exported() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of every metric of the exporter."""
    with RecordedCluster() as cluster:
        uri = cluster.uris("node0", "proxy")
        exporter = Exporter(
            BrokerTarget(uri, "bmq exporter", 5.0),
            parse_addresses(uri),
            interval=15.0,
            max_queues=10,
            max_apps=10,
            max_details=10,
            only=frozenset(),
        )
        await exporter.ask_all()
        found: list[Metric] = list(exporter.collect())
        await exporter.close()
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            set().union(*(sample.labels for sample in family.samples)),
        )
        for family in found
    }


async def test_every_expression_uses_existing_metrics_and_labels(
    exported: dict[str, tuple[str, set[str]]],
) -> None:
    for name, expression in EXPRESSIONS.items():
        found = SELECTED.findall(re.sub(r'"[^"]*"', '""', expression))
        assert found, name
        for metric, selectors, over_time in found:
            if metric in UNRECORDED:
                continue
            kind, labels = exported[metric]
            assert not (kind == "counter" and not over_time), f"{name}: {metric} without a rate"
            # The recorded nodes are without undelivered messages of some reasons.
            if labels:
                assert set(re.findall(r"(\w+)[=!]~?", selectors)) <= labels, (name, metric)


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
