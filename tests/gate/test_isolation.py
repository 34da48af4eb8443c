# SPDX-License-Identifier: Apache-2.0
"""An exception inside the core for a request or a post ends only the request or post, never the session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import bmq
import bmq.protocol.client.outbox as outbox
import bmq.protocol.client.requests as requests
from bmq.wire.control import OpenQueue
from bmq.wire.put import LARGE

ONE = "bmq://bmq.test.mem.priority/one"
TWO = "bmq://bmq.test.mem.priority/two"
FATAL = bytes(range(100))


class Planted(Exception):
    """The exception planted in an encoder."""


@pytest.fixture
async def session(bmq_broker: bmq.broker.Broker) -> Any:
    async with bmq.connect(bmq_broker.uri) as session:
        yield session


@pytest.fixture
async def other(session: bmq.Session) -> Any:
    """A queue of the same session; at the end of a test, the connection was never lost."""
    queue = await session.open_queue(TWO, read=True, write=True)
    yield queue
    await queue.post(b"still here")
    async with await queue.receive(timeout=20) as message:
        assert message.data == b"still here"
    assert session.stats().reconnects == 0


def plant(monkeypatch: pytest.MonkeyPatch, doomed: Callable[[Any], bool]) -> None:
    """Make the encoding of some requests fail."""
    encode = requests.encode_json

    def encode_json(message: Any) -> bytes:
        if doomed(message.body):
            raise Planted("cannot be encoded")
        return encode(message)

    monkeypatch.setattr(requests, "encode_json", encode_json)


def plant_in_posts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the encoding of posts with ``FATAL`` fail, alone and among other posts."""
    encode_one, encode_many = outbox.encode_put_event, outbox.encode_puts

    def encode_put_event(queue_id: int, message: Any) -> bytes:
        if FATAL in message[1]:
            raise Planted("cannot be encoded")
        return encode_one(queue_id, message)

    def encode_puts(queue_id: int, messages: Any, *limit: Any) -> Any:
        if any(FATAL in message[1] for message in messages):
            raise Planted("cannot be encoded")
        return encode_many(queue_id, messages, *limit)

    monkeypatch.setattr(outbox, "encode_put_event", encode_put_event)
    monkeypatch.setattr(outbox, "encode_puts", encode_puts)


async def test_a_request_that_cannot_be_encoded_fails_alone(
    session: bmq.Session, other: bmq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        plant(context, lambda body: isinstance(body, OpenQueue) and body.handle_parameters.uri == ONE)
        with pytest.raises(bmq.UsageError, match=r"request to open queue .*/one cannot be sent") as caught:
            await session.open_queue(ONE, read=True)
    assert isinstance(caught.value.__cause__, Planted)
    queue = await session.open_queue(ONE, read=True, write=True)
    first = await queue.subscribe("x == 1")
    with monkeypatch.context() as context:
        plant(context, lambda body: "x == 2" in repr(body))
        with pytest.raises(bmq.UsageError, match="cannot be sent"):
            await queue.subscribe("x == 2")
        assert queue.consumers == [first]
    second = await queue.subscribe("x == 2")
    for value, consumer in ((1, first), (2, second)):
        await queue.post(b"payload", properties={"x": value})
        assert (await consumer.receive(timeout=20)).properties["x"] == value


async def test_a_reopen_that_cannot_be_encoded_closes_only_its_queue(
    bmq_broker: bmq.broker.Broker, session: bmq.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await session.open_queue(ONE, write=True)
    other = await session.open_queue(TWO, write=True)
    events = session.events()
    plant(monkeypatch, lambda body: isinstance(body, OpenQueue) and body.handle_parameters.uri == ONE)
    bmq_broker.faults.disconnect()
    seen: list[str] = []
    async for event in events:
        seen.append(type(event).__name__)
        if isinstance(event, bmq.events.StateRestored):
            break
    assert "QueueReopenFailed" in seen
    assert queue.closed
    await other.post(b"1")


@pytest.mark.parametrize("size", [0, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("posted_before", [0, 2])
async def test_a_post_that_cannot_be_encoded_fails_alone(
    session: bmq.Session,
    other: bmq.Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    size: int,
    posted_before: int,
) -> None:
    queue = await session.open_queue(ONE, write=True)
    for _ in range(posted_before):
        await queue.post(b"one at a time")
    bad = FATAL + bytes(size)
    with monkeypatch.context() as context, caplog.at_level(logging.ERROR):
        plant_in_posts(context)
        with pytest.raises(bmq.PostError, match="could not be encoded"):
            await queue.post(bad)
        futures = [queue.post_nowait(payload) for payload in (b"1", bad, b"2", b"3", bad)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        report = await queue.post_many([bad, b"4", bad, b"5"])
    assert [type(result).__name__ for result in results] == ["Ack", "PostError", "Ack", "Ack", "PostError"]
    failed = results[1]
    assert isinstance(failed, bmq.PostError)
    assert failed.status is bmq.AckStatus.INVALID_ARGUMENT
    assert not failed.retryable
    assert (report.acknowledged, [failure.index for failure in report.failures]) == (2, [0, 2])
    assert queue.unacked == 0
    assert session.stats().unacked_messages == session.stats().unacked_bytes == 0
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert not session.state.name.startswith("CLOS")
