# SPDX-License-Identifier: Apache-2.0
"""The wire trace, and the extra fields of log records."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any

import pytest

import bmq
from bmq.wire.event import HEARTBEAT_REQ
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.sweeps import sweep
from tests.waiting import eventually

PROPERTIES = {"Card": "4111-1111"}


async def a_conversation(**options: Any) -> None:
    auth = {"me": "hush-hush"}
    async with (
        bmq.broker.Broker(auth=auth) as broker,
        bmq.connect(broker.uri, credentials=bmq.Credentials.basic("me", "hush-hush"), **options) as session,
    ):
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"top secret", properties=PROPERTIES)
        (await queue.receive(timeout=30)).confirm()


@pytest.mark.parametrize("trace", [bmq.Trace.ON, bmq.Trace.PAYLOADS])
async def test_every_event_is_shown_field_by_field_and_credentials_never(
    caplog: pytest.LogCaptureFixture, trace: bmq.Trace
) -> None:
    with caplog.at_level(logging.DEBUG, "bmq.trace"):
        await a_conversation(trace=trace)
    records = [record for record in caplog.records if record.name == "bmq.trace"]
    assert {record.levelno for record in records} == {logging.DEBUG}
    address = records[0].broker  # type: ignore[attr-defined]
    kinds = {record.getMessage().split("\n")[0].split(f" {address}, ")[0] for record in records}
    for kind in ("AUTHENTICATION", "CONTROL"):
        assert {f"{kind} sent to", f"{kind} received from"} < kinds
    assert {"PUT sent to", "ACK received from", "PUSH received from", "CONFIRM sent to"} < kinds
    text = "\n".join(record.getMessage() for record in records)
    assert "processName" in text
    assert f"uri {URI}" in text
    hidden = ["hush", "bWU6aHVzaC1odXNo"]
    if trace is bmq.Trace.PAYLOADS:
        assert 'payload 10 bytes: "top secret"' in text
        assert "property Card '4111-1111' (STRING)" in text
    else:
        assert "property Card (STRING)" in text
        assert "payload 10 bytes\n" in text + "\n"
        hidden += ["top secret", "4111-1111"]
    for secret in hidden:
        assert secret not in text


PROGRAM = """
import asyncio, sys, bmq

async def main():
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri):
        pass

asyncio.run(main())
print("bmq.wire.anatomy" in sys.modules)
"""


@sweep("value, seen", [("1", True), ("payloads", True), ("0", False), ("", False)])
def test_environment_enables_the_trace(value: str, seen: bool) -> None:
    environment = {**os.environ, "BMQ_TRACE": value}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{seen}\n"  # the reader of whole events is imported only then
    assert ("CONTROL sent to tcp://127.0.0.1:" in done.stderr) is seen


def traced(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The kinds of the traced events, in order."""
    heads = [each.getMessage().split("\n")[0] for each in caplog.records if each.name == "bmq.trace"]
    return [" ".join(head.split(" ")[:2]) for head in heads]


async def test_trace_is_switched_on_and_off_in_a_running_session(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bmq.trace")
    async with opened(peer, write=True, trace=bmq.Trace.OFF) as (session, queue):
        await queue.post(b"before")
        session.set_trace(bmq.Trace.PAYLOADS)
        await queue.post(b"meanwhile")
        session.set_trace(bmq.Trace.ON)
        await queue.post(b"in private")
        session.set_trace(bmq.Trace.OFF)
        await queue.post(b"after")
    assert traced(caplog) == ["PUT sent", "ACK received"] * 2
    assert "meanwhile" in caplog.text
    for hidden in ("before", "private", "after"):
        assert hidden not in caplog.text


async def test_trace_ends_after_the_given_number_of_events(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bmq.trace")
    async with opened(peer, write=True) as (session, queue):
        session.set_trace(bmq.Trace.ON, count=3)
        for _ in range(5):
            await queue.post(b"x")
        assert traced(caplog) == ["PUT sent", "ACK received", "PUT sent"]
        session.set_trace(bmq.Trace.ON, count=1)
        session.set_trace(bmq.Trace.ON, count=2)
        await queue.post(b"x")
        await queue.post(b"x")
    assert traced(caplog)[3:] == ["PUT sent", "ACK received"]


async def test_trace_begins_in_the_middle_of_a_received_event(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bmq.trace")
    async with bmq.connect(peer.uri) as session:
        connection = peer.connection
        assert connection.transport is not None
        before = session.stats().bytes_received
        connection.transport.write(HEARTBEAT_REQ[:5])
        await eventually(lambda: session.stats().bytes_received == before + 5)
        session.set_trace(bmq.Trace.ON, count=2)
        connection.transport.write(HEARTBEAT_REQ[5:])
        await eventually(lambda: len(traced(caplog)) == 2)
    assert traced(caplog) == ["HEARTBEAT_REQ received", "HEARTBEAT_RSP sent"]
    assert "is not an event" not in caplog.text
