# SPDX-License-Identifier: Apache-2.0
"""Dead letters that are posted again, and delayed messages that are cancelled."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

import bmq
from bmq.broker import DomainConfig, Limits, Mode
from bmq.console import taking
from bmq.conventions import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_GUID, DEAD_QUEUE, DESTINATION, DUE, ORIGIN
from tests.console.conftest import Serve
from tests.console.test_server import ORDERS, _post

DEAD = f"{ORDERS}.dead"
LATER = f"{ORDERS}.delayed"
FIRST = "0123456789ABCDEF0123456789ABCDEF"
OTHER = "F123456789ABCDEF0123456789ABCDEF"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "_IDLE", 0.2)


async def _dead(session: bmq.Session, first: str = FIRST, origin: str = ORDERS) -> str:
    queue = await session.open_output(DEAD)
    properties: dict[str, Any] = {DEAD_QUEUE: origin, DEAD_GUID: first, DEAD_ATTEMPTS: 3, DEAD_ERROR: "e: f"}
    return str((await queue.post(b"order", properties=properties | {"CustomerId": 7})).guid)


async def test_a_dead_letter_is_posted_again(
    http: aiohttp.ClientSession, serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    other, guid = await _dead(session, OTHER), await _dead(session)
    await session.open_queue(ORDERS, write=True)
    done = await _post(http, await serve(), "api/again", uri=DEAD, guid=guid, first=FIRST)
    assert done["uri"] == ORDERS
    (stored,) = broker.queues[ORDERS].messages
    assert (stored.guid, stored.payload) == (done["guid"], b"order")
    assert dict(stored.properties) == {"CustomerId": 7, ORIGIN: FIRST}
    assert [each.guid for each in broker.queues[DEAD].messages] == [other]
    assert broker.queues[DEAD].pushed == 1, "the other letter was not taken"


async def test_a_dead_letter_is_edited(
    http: aiohttp.ClientSession, serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    guid = await _dead(session)
    body = {"text": "repaired", "properties": [{"name": "CustomerId", "type": "int64", "value": "8"}]}
    await _post(http, await serve(), "api/again", uri=DEAD, guid=guid, first=FIRST, **body)
    (stored,) = broker.queues[ORDERS].messages
    assert (stored.payload, dict(stored.properties)) == (b"repaired", {"CustomerId": 8})
    assert len(broker.queues[DEAD]) == 0


async def test_a_refused_post_keeps_the_dead_letter(
    http: aiohttp.ClientSession, serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    broker.add_domain(DomainConfig("small", Mode.PRIORITY, queue_limits=Limits(messages=1)))
    await (await session.open_queue("bmq://small/q", write=True)).post_many([b"x"] * 2)
    guid = await _dead(session, origin="bmq://small/q")
    console = await serve()
    said = await _post(http, console, "api/again", 409, uri=DEAD, guid=guid, first=FIRST)
    assert "LIMIT_MESSAGES" in said["error"]
    assert [each.guid for each in broker.queues[DEAD].messages] == [guid]
    for first, status in ((OTHER, 409), ("x", 400), ('" || true || "', 400)):
        await _post(http, console, "api/again", status, uri=DEAD, guid=guid, first=first)
    assert len(broker.queues[DEAD]) == 1


async def test_a_delayed_message_is_cancelled(
    http: aiohttp.ClientSession, serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    queue = await session.open_queue(LATER, read=True, write=True, default_subscription=False)
    await queue.subscribe(f"{DUE} <= 5").open()  # a mover
    kept, guid = [
        (await queue.post(b"x", properties={DUE: due, DESTINATION: ORDERS})).guid for due in (10, 20)
    ]
    console = await serve()
    await _post(http, console, "api/cancel", uri=LATER, guid=guid, due="20")
    assert [each.guid for each in broker.queues[LATER].messages] == [kept]
    said = await _post(http, console, "api/cancel", 409, uri=LATER, guid=guid, due="20")
    assert "Nothing was changed" in said["error"]
    for due in ("", "-1", "1 || true", "9" * 16):
        await _post(http, console, "api/cancel", 400, uri=LATER, guid=kept, due=due)
    assert len(broker.queues[LATER]) == 1


@pytest.mark.parametrize("path", ["api/again", "api/cancel"])
async def test_taking_is_guarded_as_other_changes(
    http: aiohttp.ClientSession, serve: Serve, broker: bmq.broker.Broker, session: bmq.Session, path: str
) -> None:
    guid = await _dead(session)
    body = {"uri": DEAD, "guid": guid, "first": FIRST, "due": "1"}
    said = await _post(http, await serve(read_only=True), path, 403, **body)
    assert "--read-only" in said["error"]
    console = await serve()
    for headers, status in (
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ):
        async with http.post(console.url + path, json=body, headers=headers) as response:
            assert response.status == status
    async with http.post(console.url + path, data=b"[]", headers={"Content-Type": "application/json"}) as bad:
        assert bad.status == 400
    assert len(broker.queues[DEAD]) == 1


@pytest.mark.parametrize(("path", "status"), [("contents", 409), ("again", 409), ("cancel", 200)])
async def test_no_action_stops_a_reader_of_the_queue(
    http: aiohttp.ClientSession,
    serve: Serve,
    broker: bmq.broker.Broker,
    session: bmq.Session,
    path: str,
    status: int,
) -> None:
    """A returned message would stop all messages behind it; two messages have the same due time here."""
    queue = await session.open_queue(LATER, read=True, write=True, default_subscription=False)
    reader = await queue.subscribe(f"{DUE} <= 15")
    properties: dict[str, Any] = {DUE: 20, DEAD_QUEUE: ORDERS, DEAD_GUID: FIRST, DESTINATION: ORDERS}
    _, guid = [str((await queue.post(b"x", properties=properties)).guid) for _ in range(2)]
    held = await queue.post(b"x", properties={DUE: 10})
    assert (await reader.receive(30)).guid == held.guid
    body = {"uri": LATER, "guid": guid, "guids": [guid], "app": "", "first": FIRST, "due": "20"}
    await _post(http, await serve(), f"api/{path}", status, **body)
    assert len(broker.queues[LATER]) == (2 if path == "cancel" else 3)
    await queue.post(b"y", properties={DUE: 1})
    assert (await reader.receive(30)).data == b"y"
    assert broker.queues[LATER].pushed == 2, "no message was taken"


async def test_a_message_that_a_mover_may_hold_is_not_cancelled(
    http: aiohttp.ClientSession, serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    queue = await session.open_queue(LATER, read=True, write=True, default_subscription=False)
    mover = await queue.subscribe(f"{DUE} <= 15")
    guid = (await queue.post(b"x", properties={DUE: 10, DESTINATION: ORDERS})).guid
    await mover.receive(30)
    said = await _post(http, await serve(), "api/cancel", 409, uri=LATER, guid=guid, due="10")
    assert "a reader may hold the message" in said["error"]
    assert len(broker.queues[LATER]) == 1
