# SPDX-License-Identifier: Apache-2.0
"""The mover: an impossible message does not stop other messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.conventions import delay_queue_of
from bmq.delays import Mover
from tests.poison.poisons import beside
from tests.waiting import eventually

NewUri = Callable[..., str]
UNKNOWN = "bmq://bmq.no.such.domain/nowhere"


@pytest.fixture
async def waiting(bmq_session: bmq.Session, queue: bmq.Queue) -> bmq.Queue:
    return await bmq_session.open_queue(
        delay_queue_of(queue.uri), read=True, write=True, default_subscription=False
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds."""
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE", "_REFUSED", "_UNSURE"):
        monkeypatch.setattr(f"bmq.delays._mover.{name}", 0.005)


@asynccontextmanager
async def moving(queue: bmq.Queue, **options: Any) -> AsyncIterator[Mover]:
    mover = Mover(queue, **options)
    async with beside(mover.run()):
        yield mover


async def post_due(queue: bmq.Queue, destination: str, *payloads: bytes) -> None:
    """Post messages that are due now to a delay queue."""
    properties: dict[str, Any] = {"bmq_due": int(time.time() * 1000), "bmq_destination": destination}
    items = [bmq.PutMessage(payload, properties) for payload in payloads]
    (await queue.post_many(items)).raise_for_failures()


async def test_a_destination_that_opens_slowly_delays_no_other(
    bmq_session: bmq.Session,
    bmq_new_queue_uri: NewUri,
    queue: bmq.Queue,
    waiting: bmq.Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = bmq_new_queue_uri()
    answered = asyncio.Event()
    opened = bmq_session.open_output

    async def output(uri: str) -> bmq.Queue:
        if uri == slow:
            await answered.wait()
        return await opened(uri)

    monkeypatch.setattr(bmq_session, "open_output", output)
    async with moving(waiting) as mover:
        await post_due(waiting, slow, b"slow")
        await post_due(waiting, queue.uri, b"good")
        assert (await queue.receive(timeout=10)).data == b"good"
        assert mover.held == 1
        answered.set()
        await eventually(lambda: mover.moved == 2)


@pytest.mark.usefixtures("quick")
async def test_an_unknown_domain_is_given_up(
    letters: bmq.Queue, waiting: bmq.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bmq.delays._mover._PATIENCE", 0.02)
    async with moving(waiting, allow="*", dead_letters=letters) as mover:
        await post_due(waiting, UNKNOWN, b"one")
        letter = await letters.receive(timeout=10)
        assert letter.data == b"one"
        assert "cannot be opened" in str(letter.properties["bmq_dead_error"])
        await post_due(waiting, UNKNOWN, b"two", b"three")
        found = {(await letters.receive(timeout=10)).data for _ in range(2)}
        assert found == {b"two", b"three"}
        await eventually(lambda: mover.held == 0)
    assert len(caplog.records) == 2


async def test_refused_destinations_take_a_part_of_the_held_messages(
    queue: bmq.Queue, waiting: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight times the limit of held messages, for one unknown domain and for many."""
    async with moving(waiting, allow="*", max_held=20) as mover:
        await post_due(waiting, UNKNOWN, *[b"bad"] * 160)
        for number in range(160):
            await post_due(waiting, f"bmq://bmq.no.such.domain.{number}/nowhere", b"bad")
        await post_due(waiting, queue.uri, b"good")
        assert (await queue.receive(timeout=10)).data == b"good"
        await eventually(lambda: mover.held <= 20)
    assert len(caplog.records) <= 5


@pytest.mark.usefixtures("quick")
async def test_a_clock_that_is_set_back_delays_no_attempt(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, waiting: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    small = await bmq_session.open_queue(bmq_new_queue_uri("bmq.test.small.priority"), read=True, write=True)
    full = (await small.post_many([b"full"] * 20)).acknowledged
    ahead = 600.0
    async with moving(waiting, allow="*", clock=lambda: time.time() + ahead):
        await post_due(waiting, small.uri, b"kept")
        await eventually(lambda: "could not be passed on" in caplog.text)
        ahead = 0.0
        for _ in range(full):
            (await small.receive(timeout=10)).confirm()
        assert (await small.receive(timeout=10)).data == b"kept"
    assert len(caplog.records) == 1


async def test_the_mover_of_an_app_has_its_list_and_its_dead_letters(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri, queue: bmq.Queue
) -> None:
    """Dead letters may go to a queue that the app consumes."""
    dead = bmq_new_queue_uri()
    writer = await bmq_session.open_queue(delay_queue_of(queue.uri), write=True)
    app = bmq.App(bmq_broker.uri, grace=1)
    app.mover(delay_queue_of(queue.uri), allow=queue.uri, dead_letters=dead)
    letters: asyncio.Queue[bmq.Message] = asyncio.Queue()

    @app.consumer(dead)
    async def look(message: bmq.Message) -> None:
        letters.put_nowait(message)

    async with app:
        await post_due(writer, bmq_new_queue_uri(), b"bad")
        await post_due(writer, queue.uri, b"good")
        assert (await queue.receive(timeout=10)).data == b"good"
        assert (await asyncio.wait_for(letters.get(), 10)).data == b"bad"
