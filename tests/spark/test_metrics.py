# SPDX-License-Identifier: Apache-2.0
"""The metrics of streaming queries."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

import bmq
from bmq.spark import QueryMetrics

QUEUE = "bmq://d/orders"


class Query:
    """Spark's events for a listener, about one query."""

    def __init__(self, metrics: QueryMetrics, name: str | None = "orders", id: str | None = None) -> None:
        self.metrics = metrics
        self.about = {"id": id or str(uuid.uuid4()), "runId": str(uuid.uuid4()), "name": name}
        metrics.onQueryStarted(QueryStartedEvent.fromJson({**self.about, "timestamp": "now"}))

    def progress(self, rows: int, milliseconds: int, latest: Any = None, written: int = -1) -> None:
        source = {
            "description": "bmq",
            "startOffset": "null",
            "endOffset": {"messages": rows},
            "latestOffset": latest,
            "numInputRows": rows,
        }
        source |= dict.fromkeys(("inputRowsPerSecond", "processedRowsPerSecond"), 1.0)
        progress = {
            **self.about,
            "timestamp": "now",
            "batchId": 0,
            "batchDuration": milliseconds + 1,
            "durationMs": {"triggerExecution": milliseconds},
            "stateOperators": [],
            "sources": [source],
            "sink": {"description": "bmq", "numOutputRows": written},
        }
        self.metrics.onQueryProgress(QueryProgressEvent.fromJson({"progress": progress}))

    def ends(self, exception: str | None = None) -> None:
        event = {**self.about, "exception": exception, "errorClassOnException": None}
        self.metrics.onQueryTerminated(QueryTerminatedEvent.fromJson(event))


def play(metrics: QueryMetrics) -> Query:
    """A query with two batches, the second longer than all buckets."""
    query = Query(metrics)
    query.progress(100, 200, {"messages": 100}, written=90)
    query.progress(50, 700_000, json.dumps({"messages": 150, "dropped": {QUEUE: 2}}))
    return query


def test_batches_rows_and_failures_are_counted() -> None:
    metrics = QueryMetrics()
    query = play(metrics)
    stats = metrics.queries()["orders"]
    assert (stats.batches, stats.input_rows, stats.output_rows, stats.seconds) == (2, 150, 90, 700.2)
    assert (stats.last_seconds, stats.running, stats.failures) == (700.0, 1, 0)
    assert stats.dropped == {QUEUE: 2}
    query.ends("it failed")
    again = Query(metrics)
    again.progress(1, 1, "no json")
    again.ends()
    stats = metrics.queries()["orders"]
    assert (stats.batches, stats.running, stats.failures) == (3, 0, 1)


def test_queries_without_names_have_their_ids_as_labels() -> None:
    metrics = QueryMetrics(max_queries=1)
    one = str(uuid.uuid4())
    first = Query(metrics, None, one)
    first.progress(1, 1)
    first.ends()
    Query(metrics, None, one).progress(1, 1)  # again, from its checkpoint
    for _ in range(2):
        Query(metrics).progress(10, 1)
    stats = metrics.queries()
    assert {name: each.input_rows for name, each in stats.items()} == {one: 2, "other": 20}
    assert {name: each.running for name, each in stats.items()} == {one: 1, "other": 2}
    with pytest.raises(bmq.UsageError, match=r"max_queries must be an integer from 0 to .*, not -1"):
        QueryMetrics(max_queries=-1)


def test_prometheus_reads_the_metrics() -> None:
    metrics = QueryMetrics()
    play(metrics)
    lines = metrics.exposition().decode().splitlines()
    about = 'query="orders"'
    for line in (
        f"bmq_spark_batches_total{{{about}}} 2.0",
        f"bmq_spark_input_rows_total{{{about}}} 150.0",
        f"bmq_spark_output_rows_total{{{about}}} 90.0",
        f"bmq_spark_failed_queries_total{{{about}}} 0.0",
        f"bmq_spark_running_queries{{{about}}} 1.0",
        f'bmq_spark_dropped_messages_total{{{about},queue="{QUEUE}"}} 2.0',
        f'bmq_spark_batch_seconds_bucket{{le="0.1",{about}}} 0.0',
        f'bmq_spark_batch_seconds_bucket{{le="0.25",{about}}} 1.0',
        f'bmq_spark_batch_seconds_bucket{{le="+Inf",{about}}} 2.0',
        f"bmq_spark_batch_seconds_sum{{{about}}} 700.2",
    ):
        assert line in lines


def test_opentelemetry_reads_the_metrics() -> None:
    reader, metrics = InMemoryMetricReader(), QueryMetrics()
    metrics.observe(MeterProvider([reader]))
    play(metrics)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name.removeprefix("bmq.spark."): (dict(point.attributes or {}), getattr(point, "value", point))
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    about, durations = found.pop("batch_seconds")
    assert (about, durations.count, durations.sum) == ({"query": "orders"}, 2, 700.2)
    assert found.pop("dropped_messages") == ({"query": "orders", "queue": QUEUE}, 2)
    counts = {"batches": 2, "input_rows": 150, "output_rows": 90, "failed_queries": 0, "running_queries": 1}
    assert found == {name: ({"query": "orders"}, count) for name, count in counts.items()}
