# SPDX-License-Identifier: Apache-2.0
"""Metrics of streaming queries, for Prometheus and OpenTelemetry.

:class:`QueryMetrics` is a listener of Spark's that counts what the progress of queries says.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

from bmq import _checks

__all__ = ["BATCH_SECONDS", "QueryMetrics", "QueryStats"]

#: The upper bounds of the buckets that the durations of batches are counted in.
BATCH_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
#: The name of queries that have none of their own.
_OTHER = "other"

# Metrics by the field they are made from: the name, its unit for OpenTelemetry, and what it says. Prometheus
# adds "_total".
_COUNTERS = {
    "batches": ("bmq_spark_batches", "{batch}", "Batches that are done"),
    "input_rows": ("bmq_spark_input_rows", "{row}", "Rows read"),
    "output_rows": ("bmq_spark_output_rows", "{row}", "Rows written, where the sink counts them"),
    "failures": ("bmq_spark_failed_queries", "{failure}", "Times that the query ended with an error"),
}
_RUNNING = ("bmq_spark_running_queries", "{query}", "Whether the query runs; of several how many do")
_LAG = ("bmq_spark_lag_messages", "{message}", "Messages that the broker holds (option lag)")
_DROPPED = ("bmq_spark_dropped_messages", "{message}", "Messages that the broker dropped unread")
_SECONDS = ("bmq_spark_batch_seconds", "s", "How long a batch took")


@dataclass(slots=True)
class QueryStats:
    """What one query did since the listener was added; the counters only grow.

    Attributes:
        batches: batches that are done; those without rows count where Spark reports them.
        input_rows: rows read.
        output_rows: rows written, where the sink counts them: not in foreachBatch.
        seconds: how long all batches took.
        buckets: how many batches took up to as many seconds as :data:`BATCH_SECONDS` says, and, last, longer.
        last_seconds: how long the last batch took; None before the first.
        lag: messages that the broker holds, by queue, when it was asked last; with the option ``lag``.
        dropped: messages that the broker dropped unread, by queue, since the query was started last.
        running: how often it runs now.
        failures: how often it ended with an error.
    """

    batches: int = 0
    input_rows: int = 0
    output_rows: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BATCH_SECONDS) + 1))
    last_seconds: float | None = None
    lag: dict[str, int] = field(default_factory=dict[str, int])
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    running: int = 0
    failures: int = 0

    def _copy(self) -> QueryStats:
        return QueryStats(
            self.batches,
            self.input_rows,
            self.output_rows,
            self.seconds,
            list(self.buckets),
            self.last_seconds,
            dict(self.lag),
            dict(self.dropped),
            self.running,
            self.failures,
        )


class QueryMetrics(StreamingQueryListener):
    """Counts what streaming queries do.

    ::

        metrics = QueryMetrics()
        spark.streams.addListener(metrics)
        prometheus_client.REGISTRY.register(metrics)
        metrics.observe()  # or with OpenTelemetry

    A query is known by its name, or by its id, which stays the same when it starts again from its checkpoint.
    The first ``max_queries`` have names of their own, all others together are ``other``.

    Args:
        max_queries: how many queries have names of their own.

    Raises:
        UsageError: ``max_queries`` is negative.
    """

    def __init__(self, *, max_queries: int = 50) -> None:
        super().__init__()
        self._max_queries = _checks.integer("max_queries", max_queries)
        self._lock = threading.Lock()
        self._stats: dict[str, QueryStats] = {}
        # Only the start of a query says its name.
        self._names: dict[str, str] = {}
        self._recorders: list[Callable[[float, str], None]] = []

    def queries(self) -> dict[str, QueryStats]:
        """Return what each query did, by name; a copy. Any thread may ask."""
        with self._lock:
            return {name: stats._copy() for name, stats in self._stats.items()}

    # what Spark calls

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Note that a query runs."""
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
            stats.lag.update(_counts(progress, "lag"))
            stats.dropped.update(_counts(progress, "dropped"))
        for record in self._recorders:
            record(seconds, name)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing is counted where nothing is done."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Note that a query has ended, and whether with an error."""
        with self._lock:
            name = self._names.pop(str(event.runId), None)
            stats = self._stats[name or self._name(str(event.id))]
            stats.running -= name is not None
            stats.failures += event.exception is not None
            if not stats.running:
                stats.lag.clear()

    def _name(self, name: str) -> str:
        if name not in self._stats and len(self._stats.keys() - {_OTHER}) >= self._max_queries:
            name = _OTHER
        self._stats.setdefault(name, QueryStats())
        return name

    # Prometheus

    def describe(self) -> Iterable[Any]:
        """Say nothing of what there will be."""
        return []

    def collect(self) -> Iterator[Any]:
        """Return the metrics for ``prometheus_client``, which calls it.

        Raises:
            ModuleNotFoundError: it is not installed.
        """
        core = _prometheus()
        stats = self.queries()
        for name, (metric, _, text) in _COUNTERS.items():
            counter = core.CounterMetricFamily(metric, text, labels=["query"])
            for query, each in stats.items():
                counter.add_metric([query], getattr(each, name))
            yield counter
        running = core.GaugeMetricFamily(_RUNNING[0], _RUNNING[2], labels=["query"])
        lag = core.GaugeMetricFamily(_LAG[0], _LAG[2], labels=["query", "queue"])
        dropped = core.CounterMetricFamily(_DROPPED[0], _DROPPED[2], labels=["query", "queue"])
        seconds = core.HistogramMetricFamily(_SECONDS[0], _SECONDS[2], labels=["query"])
        for query, each in stats.items():
            running.add_metric([query], each.running)
            bounds = [*map(str, BATCH_SECONDS), "+Inf"]
            seconds.add_metric(
                [query], list(zip(bounds, accumulate(each.buckets), strict=True)), sum_value=each.seconds
            )
            for queue, count in each.lag.items():
                lag.add_metric([query, queue], count)
            for queue, count in each.dropped.items():
                dropped.add_metric([query, queue], count)
        yield from (running, lag, dropped, seconds)

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
        """Hand the metrics to OpenTelemetry, from now on.

        Args:
            meter_provider: counts; None for the one of the process.

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
        gauge(_LAG[0].replace("_", ".", 2), [observed(lambda each: each.lag)], *_LAG[1:])
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


def _counts(progress: StreamingQueryProgress, name: str) -> dict[str, int]:
    """What the sources of a progress say of their queues, under a name."""
    found: dict[str, int] = {}
    for source in progress.sources:
        try:
            latest = json.loads(source.latestOffset)
        except (TypeError, ValueError):
            continue  # another source's
        given = cast("dict[str, Any]", latest).get(name) if isinstance(latest, dict) else None
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
        f"these metrics need {package}, which is not installed: pip install 'bmq[{extra}]'", name=error.name
    )
