# SPDX-License-Identifier: Apache-2.0
"""The dashboard in the documentation uses existing metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import bmq
from bmq.prometheus import exposition
from tests.integration.steps import NewUri

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "assets" / "grafana-dashboard.json").read_text(encoding="utf-8")
)
TARGETS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
# Prometheus adds it to everything it scrapes.
ADDED = {"job"}
SELECTED = re.compile(r"(bmq_\w+)\{([^}]*)\}(\[\$__rate_interval\])?")


@pytest.fixture
async def exported(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> dict[str, tuple[str, set[str]]]:
    """The type and the labels of every sample there is."""
    queue = await bmq_session.open_queue(bmq_new_queue_uri("bmq.test.small.priority"), write=True)
    await queue.post_many([b"x"] * 13)  # some are refused
    return {
        sample.name: (family.type, set(sample.labels))
        for family in text_string_to_metric_families(exposition(bmq_session).decode())
        for sample in family.samples
    }


async def test_every_query_finds_its_metrics_and_labels(
    exported: dict[str, tuple[str, set[str]]],
) -> None:
    for title, target in TARGETS:
        expression = target["expr"]
        found = SELECTED.findall(expression)
        assert found, (title, expression)
        assert len(found) == expression.count("bmq_")
        for name, selectors, over_time in found:
            kind, labels = exported[name]
            # Rates are taken of what only grows, and of nothing else.
            assert bool(over_time) == (kind in ("counter", "histogram")), expression
            labels = labels | ADDED
            assert set(re.findall(r"(\w+)=~", selectors)) <= labels, expression
            for grouped in re.findall(r"by \(([^)]*)\)", expression):
                assert set(grouped.split(", ")) <= labels, expression
                assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set(grouped.split(", "))


async def test_every_metric_by_queue_is_shown(
    exported: dict[str, tuple[str, set[str]]],
) -> None:
    shown = {name for _, target in TARGETS for name, *_ in SELECTED.findall(target["expr"])}
    messages = {name for name in exported if "messages" in name and name != "bmq_revived_messages_total"}
    assert messages - shown == {"bmq_acknowledged_messages_total"}  # posted ones that were not refused
