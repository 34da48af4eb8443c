# SPDX-License-Identifier: Apache-2.0
"""Instrumentation of programs without their knowledge; names, and the extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import code_attributes, messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.schemas import Schemas

from bmq.otel import OpenTelemetry, names
from bmq.otel.instrumentor import BmqInstrumentor
from bmq.testing import BackgroundBroker
from tests.integration.steps import TIMEOUT
from tests.otel.conftest import Service

URI = "bmq://bmq.test.mem.priority/q"
PROGRAM = f"""
import os, bmq

async def main():
    async with bmq.connect(os.environ["BROKER"]) as session:
        queue = await session.open_queue({URI!r}, read=True, write=True)
        await queue.post(b"x")
        async with await queue.receive():
            pass

bmq.run(main())
"""


@pytest.fixture
def instrumentor() -> Iterator[BmqInstrumentor]:
    instrumentor = BmqInstrumentor()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


async def test_sessions_made_meanwhile_are_instrumented(
    instrumentor: BmqInstrumentor, service: Callable[..., Service], bmq_connect: Any, bmq_queue_uri: str
) -> None:
    before, seen = await bmq_connect(), service()
    instrumentor.instrument(tracer_provider=seen.provider, meter_provider=seen.meters, attach=False)
    session = await bmq_connect()
    instrumentor.uninstrument()
    assert (before.interceptors, (await bmq_connect()).interceptors) == ((), ())
    (interceptor,) = session.interceptors
    assert isinstance(interceptor, OpenTelemetry)
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b"x")
    async with await queue.receive(timeout=TIMEOUT):
        pass
    assert [span.name.split()[0] for span in seen.spans()] == ["post", "receive", "confirm"]


def test_entry_point_names_the_instrumentor() -> None:
    found = entry_points(group="opentelemetry_instrumentor", name="bmq")
    assert {point.load() for point in found} == {BmqInstrumentor}


def test_opentelemetry_instrument_traces_a_program(tmp_path: Path) -> None:
    """The command runs a program unchanged; the SDK prints its exports."""
    program = tmp_path / "service.py"
    program.write_text(PROGRAM)
    command = Path(sys.executable).parent / "opentelemetry-instrument"
    exporters = ["--traces_exporter=console", "--metrics_exporter=none", "--logs_exporter=none"]
    with BackgroundBroker() as broker:
        done = subprocess.run(
            [str(command), *exporters, sys.executable, str(program)],
            env=os.environ | {"BROKER": broker.uri},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    decoder, text, spans = json.JSONDecoder(), done.stdout.strip(), []
    while text:
        span, end = decoder.raw_decode(text)
        spans.append(span)
        text = text[end:].lstrip()
    spans = [span for span in spans if not span["name"].startswith("bmq.")]
    assert [span["name"] for span in spans] == [f"{each} {URI}" for each in ("post", "receive", "confirm")]
    assert len({span["context"]["trace_id"] for span in spans}) == 1


ATTRIBUTES = {
    names.SYSTEM: messaging_attributes.MESSAGING_SYSTEM,
    names.OPERATION_NAME: messaging_attributes.MESSAGING_OPERATION_NAME,
    names.OPERATION_TYPE: messaging_attributes.MESSAGING_OPERATION_TYPE,
    names.DESTINATION_NAME: messaging_attributes.MESSAGING_DESTINATION_NAME,
    names.SUBSCRIPTION_NAME: messaging_attributes.MESSAGING_DESTINATION_SUBSCRIPTION_NAME,
    names.CONSUMER_GROUP_NAME: messaging_attributes.MESSAGING_CONSUMER_GROUP_NAME,
    names.MESSAGE_ID: messaging_attributes.MESSAGING_MESSAGE_ID,
    names.BODY_SIZE: messaging_attributes.MESSAGING_MESSAGE_BODY_SIZE,
    names.BATCH_MESSAGE_COUNT: messaging_attributes.MESSAGING_BATCH_MESSAGE_COUNT,
    names.ERROR_TYPE: error_attributes.ERROR_TYPE,
    names.FUNCTION_NAME: code_attributes.CODE_FUNCTION_NAME,
    names.OPERATION_DURATION: messaging_metrics.MESSAGING_CLIENT_OPERATION_DURATION,
    names.SENT_MESSAGES: messaging_metrics.MESSAGING_CLIENT_SENT_MESSAGES,
    names.CONSUMED_MESSAGES: messaging_metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES,
    names.PROCESS_DURATION: messaging_metrics.MESSAGING_PROCESS_DURATION,
    names.SCHEMA_URL: Schemas.V1_44_0.value,
}


def test_names_are_those_of_the_conventions() -> None:
    assert [*ATTRIBUTES] == [*ATTRIBUTES.values()]
    known = {each.value for each in messaging_attributes.MessagingOperationTypeValues}
    assert set(names.OPERATIONS.values()) <= known


def test_only_the_api_is_needed() -> None:
    program = (
        "import sys, bmq.otel; bmq.otel.OpenTelemetry();"
        "parts = 'opentelemetry.sdk', 'opentelemetry.instrumentation';"
        "print([name for name in sys.modules if name.startswith(parts)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_import_without_the_api_names_the_package() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import bmq.otel"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: bmq.otel needs opentelemetry-api, which is not installed: "
        "pip install 'bmq[otel]'"
    )
