# SPDX-License-Identifier: Apache-2.0
"""Metrics of streaming queries, for Prometheus and OpenTelemetry.

:class:`QueryMetrics` is a Spark listener that counts the progress of queries."""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.streaming.listener import StreamingQueryListener

from bmq import _checks
from bmq._version import install

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

__all__ = ["QueryMetrics", "QueryStats"]

#: Upper bounds of the buckets for the durations of batches.
BATCH_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

#: Shared name of all queries beyond the limit.
_OTHER = "other"

# Metrics by their source field: name, unit for OpenTelemetry, and description. Prometheus appends "_total".
_COUNTERS = {
    "batches": ("bmq_spark_batches", "{batch}", "Completed batches"),
    "input_rows": ("bmq_spark_input_rows", "{row}", "Rows read"),
    "output_rows": ("bmq_spark_output_rows", "{row}", "Rows written, if the sink counts rows"),
    "failures": ("bmq_spark_failed_queries", "{failure}", "Failures of the query"),
}

_RUNNING = (
    "bmq_spark_running_queries",
    "{query}",
    "Whether the query runs; for several queries, the number of running queries",
)

_DROPPED = ("bmq_spark_dropped_messages", "{message}", "Messages that the broker dropped unread")

_SECONDS = ("bmq_spark_batch_seconds", "s", "Duration of a batch")


@dataclass(slots=True)
class QueryStats:
    """Counts of one query since the listener was added; counters only grow.

    Attributes:
        batches: finished batches; batches without rows count if Spark reports them.
        input_rows: rows read.
        output_rows: rows written, if the sink counts them; foreachBatch does not.
        seconds: total duration of all batches, in seconds.
        buckets: number of batches in each bucket of :data:`BATCH_SECONDS`; the last bucket counts longer
            batches.
        last_seconds: duration of the last batch; None before the first.
        dropped: messages that the broker dropped unread, by queue, since the last start of the query.
        running: number of running instances.
        failures: number of ends with an error.
    """

    batches: int = 0
    input_rows: int = 0
    output_rows: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BATCH_SECONDS) + 1))
    last_seconds: float | None = None
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    running: int = 0
    failures: int = 0


class QueryMetrics(StreamingQueryListener):
    """Counts the work of streaming queries.

    ::

        metrics = QueryMetrics()
        spark.streams.addListener(metrics)
        prometheus_client.REGISTRY.register(metrics)
        metrics.observe()  # or with OpenTelemetry

    A query is identified by its name, or by its id, which survives restarts from a checkpoint. The first
    ``max_queries`` queries have separate names; all others are counted together as ``other``.

    Args:
        max_queries: number of queries with separate names.

    Raises:
        UsageError: ``max_queries`` is negative.
    """

    def __init__(self, *, max_queries: int = 50) -> None:
        super().__init__()
        self._max_queries = _checks.integer("max_queries", max_queries)
        self._lock = threading.Lock()
        self._stats: dict[str, QueryStats] = {}
        # Only the start event has the name of a query.
        self._names: dict[str, str] = {}
        self._recorders: list[Callable[[float, str], None]] = []

    def queries(self) -> dict[str, QueryStats]:
        """Return the counts of each query by name, as a copy. May be called from any thread."""
        with self._lock:
            return {
                name: replace(stats, buckets=list(stats.buckets), dropped=dict(stats.dropped))
                for name, stats in self._stats.items()
            }

    # Spark's callbacks

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Record the start of a query."""
        with self._lock:
            name = self._name(event.name or str(event.id))
            self._names[str(event.runId)] = name
            self._stats[name].running += 1

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Count a batch."""
        progress = event.progress
        seconds = (progress.durationMs or {}).get("triggerExecution", progress.batchDuration) / 1000
        with self._lock:
            name = self._names.get(str(progress.runId)) or self._name(progress.name or str(progress.id))
            stats = self._stats[name]
            stats.batches += 1
            stats.input_rows += progress.numInputRows
            stats.output_rows += max(0, progress.sink.numOutputRows)  # -1: the sink does not count
            stats.seconds += seconds
            stats.last_seconds = seconds
            stats.buckets[bisect_left(BATCH_SECONDS, seconds)] += 1
            stats.dropped.update(_dropped(progress))
        for record in self._recorders:
            record(seconds, name)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to count."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Record the end of a query, and whether it failed."""
        with self._lock:
            name = self._names.pop(str(event.runId), None)
            stats = self._stats[name or self._name(str(event.id))]
            stats.running -= name is not None
            stats.failures += event.exception is not None

    def _name(self, name: str) -> str:
        if name not in self._stats and len(self._stats.keys() - {_OTHER}) >= self._max_queries:
            name = _OTHER
        self._stats.setdefault(name, QueryStats())
        return name

    # Prometheus

    def describe(self) -> Iterable[Any]:
        """Return no descriptions in advance."""
        return []

    def collect(self) -> Iterator[Any]:
        """Return the metrics; ``prometheus_client`` calls this method.

        Raises:
            ModuleNotFoundError: ``prometheus_client`` is not installed.
        """
        core = _prometheus()
        stats = self.queries()
        for name, (metric, _, text) in _COUNTERS.items():
            counter = core.CounterMetricFamily(metric, text, labels=["query"])
            for query, each in stats.items():
                counter.add_metric([query], getattr(each, name))
            yield counter
        running = core.GaugeMetricFamily(_RUNNING[0], _RUNNING[2], labels=["query"])
        dropped = core.CounterMetricFamily(_DROPPED[0], _DROPPED[2], labels=["query", "queue"])
        seconds = core.HistogramMetricFamily(_SECONDS[0], _SECONDS[2], labels=["query"])
        for query, each in stats.items():
            running.add_metric([query], each.running)
            bounds = [*map(str, BATCH_SECONDS), "+Inf"]
            seconds.add_metric(
                [query], list(zip(bounds, accumulate(each.buckets), strict=True)), sum_value=each.seconds
            )
            for queue, count in each.dropped.items():
                dropped.add_metric([query, queue], count)
        yield from (running, dropped, seconds)

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format.

        Raises:
            ModuleNotFoundError: ``prometheus_client`` is not installed.
        """
        core = _prometheus()
        from prometheus_client.exposition import generate_latest

        registry = core.CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    # OpenTelemetry

    def observe(self, meter_provider: Any = None) -> None:
        """Export the metrics to OpenTelemetry from now on.

        Args:
            meter_provider: meter provider; None for the global one.

        Raises:
            ModuleNotFoundError: ``opentelemetry-api`` is not installed.
        """
        try:
            from opentelemetry import metrics
        except ModuleNotFoundError as error:
            raise _missing("opentelemetry-api", "otel", error) from error
        meter = metrics.get_meter("bmq.spark", meter_provider=meter_provider)
        observation = metrics.Observation

        def observed(value: Callable[[QueryStats], Mapping[str, int]]) -> Any:
            def callback(_: Any) -> Iterator[Any]:
                for query, stats in self.queries().items():
                    for queue, count in value(stats).items():
                        about = {"query": query, **({"queue": queue} if queue else {})}
                        yield observation(count, about)

            return callback

        for name, (metric, unit, text) in _COUNTERS.items():

            def counted(stats: QueryStats, name: str = name) -> Mapping[str, int]:
                return {"": getattr(stats, name)}

            meter.create_observable_counter(metric.replace("_", ".", 2), [observed(counted)], unit, text)
        gauge = meter.create_observable_gauge
        gauge(_RUNNING[0].replace("_", ".", 2), [observed(lambda each: {"": each.running})], *_RUNNING[1:])
        name, unit, text = _DROPPED
        meter.create_observable_counter(
            name.replace("_", ".", 2), [observed(lambda each: each.dropped)], unit, text
        )
        durations = meter.create_histogram(
            _SECONDS[0].replace("_", ".", 2),
            *_SECONDS[1:],
            explicit_bucket_boundaries_advisory=list(BATCH_SECONDS),
        )
        self._recorders.append(lambda seconds, query: durations.record(seconds, {"query": query}))


def _dropped(progress: StreamingQueryProgress) -> dict[str, int]:
    """Return the numbers of dropped messages in a query's progress, by queue."""
    found: dict[str, int] = {}
    for source in progress.sources:
        try:
            latest = json.loads(source.latestOffset)
        except (TypeError, ValueError):
            continue  # another kind of source
        given = cast("dict[str, Any]", latest).get("dropped") if isinstance(latest, dict) else None
        if isinstance(given, dict):
            found.update((str(queue), int(count)) for queue, count in cast("dict[str, Any]", given).items())
    return found


def _prometheus() -> Any:
    try:
        from prometheus_client import core
    except ModuleNotFoundError as error:
        raise _missing("prometheus-client", "prometheus", error) from error
    return core


def _missing(package: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"these metrics need {package}, which is not installed: {install(extra)}", name=error.name
    )
