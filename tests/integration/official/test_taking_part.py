"""The official client takes part in what `bmq` adds, by the properties that the conventions name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import bmq
from bmq.conventions import waiting_queue
from bmq.delays import Mover
from tests.integration.official.conftest import TIMEOUT, BrokerThread, Client
from tests.waiting import eventually

Connect = Callable[..., Client]
NewUri = Callable[[str], str]

PRIORITY = "bmq.test.mem.priority"


def test_delayed_messages_from_and_to_it(broker: BrokerThread, connect: Connect, new_uri: NewUri) -> None:
    uri, official = new_uri(PRIORITY), connect()
    official.session.open_queue(uri, read=True)
    official.session.open_queue(waiting_queue(uri), write=True)
    due = round(time.time() * 1000) + 500
    by_hand = {"bmq_due": due, "bmq_destination": uri, "CustomerId": 7}
    official.post(waiting_queue(uri), b"by hand", properties=by_hand)

    async def move() -> None:
        async with asyncio.timeout(TIMEOUT), bmq.connect(broker.uri) as session:
            queue = await session.open_queue(uri, write=True)
            await queue.post(b"ours", properties={"CustomerId": 8}, delay=0.2)
            waiting = await session.open_queue(waiting_queue(uri), read=True, default_subscription=False)
            mover = Mover(waiting)
            moving = asyncio.create_task(mover.run())
            await eventually(lambda: mover.moved == 2, TIMEOUT)
            assert time.time() * 1000 >= due
            moving.cancel()

    asyncio.run(move())
    theirs, ours = sorted(official.take(2), key=lambda message: message.data)
    assert (theirs.data, ours.data) == (b"by hand", b"ours")
    assert theirs.properties == {"bmq_due": due, "CustomerId": 7}
    assert ours.properties["CustomerId"] == 8
