# SPDX-License-Identifier: Apache-2.0
"""Services whose spans and metrics are kept in memory, by the real SDK of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from bmq.otel import OpenTelemetry


class Service:
    """A program with a name, as OpenTelemetry sees it."""

    def __init__(self, name: str, sampler: Sampler | None = None, **how: Any) -> None:
        resource = Resource({"service.name": name})
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(resource=resource, sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], resource=resource)
        self.tracer = self.provider.get_tracer("test")
        self.span = self.tracer.start_as_current_span
        self.telemetry = OpenTelemetry(tracer_provider=self.provider, meter_provider=self.meters, **how)

    def spans(self, operations: bool = False) -> list[ReadableSpan]:
        """Return the exported spans of messages and of the program, in the order of their ends.

        Args:
            operations: return the spans of operations on sessions and queues instead.
        """
        finished = self.exporter.get_finished_spans()
        return [span for span in finished if span.name.startswith("bmq.") is operations]

    def named(self, operation: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.name.split(" ")[0] == operation]

    def one(self, operation: str) -> ReadableSpan:
        (span,) = self.named(operation)
        return span

    def points(self, metric: str) -> list[Any]:
        """The data points of a metric."""
        data = self.reader.get_metrics_data()
        found = [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == metric
            for point in each.data.data_points
        ]
        assert found, metric
        return found

    def close(self) -> None:
        self.provider.shutdown()
        self.meters.shutdown()


@pytest.fixture
def service() -> Iterator[Callable[..., Service]]:
    """Makes services."""
    made: list[Service] = []

    def make(name: str = "service", **how: Any) -> Service:
        made.append(Service(name, **how))
        return made[-1]

    yield make
    for each in made:
        each.close()
