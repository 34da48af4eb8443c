# SPDX-License-Identifier: Apache-2.0
"""Lines that hand their messages over to other lines of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import bmq
from tests.waiting import eventually


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)


async def post(queue: bmq.Queue, *numbers: int) -> None:
    for number in numbers:
        await queue.post(b"%d" % number, properties={"n": number})


async def test_messages_keep_their_order_among_those_that_arrived_directly(queue: bmq.Queue) -> None:
    everything = await queue.subscribe(priority=5).open()
    even, odd = await queue.subscribe("n % 2 == 0").open(), await queue.subscribe("n % 2 == 1").open()
    await post(queue, *range(6))
    await eventually(lambda: everything.buffered == 6)
    await everything.configure("n > 100")
    await post(queue, 6, 7, 8)
    await eventually(lambda: (even.buffered, odd.buffered) == (2, 1))
    everything._buffer.hand_over(lambda properties: odd if properties and properties["n"] % 2 else even)
    assert (everything.buffered, even.buffered, odd.buffered) == (0, 5, 4)
    messages = [await even.receive() for _ in range(5)]
    assert [each.data for each in messages] == [b"0", b"2", b"4", b"6", b"8"]
    assert {each.consumer for each in messages} == {even}
    assert [(await odd.receive()).data for _ in range(4)] == [b"1", b"3", b"5", b"7"]
    assert (even.stats().received, odd.stats().received, queue.stats().received) == (5, 4, 9)
    for each in messages:
        each.confirm()
    assert even.stats().confirmed == 5


async def test_without_a_choice_the_expressions_of_the_other_consumers_decide(queue: bmq.Queue) -> None:
    everything = await queue.subscribe(priority=5).open()
    low, high = await queue.subscribe("n > 0").open(), await queue.subscribe("n > 1", priority=3).open()
    paused = queue.subscribe("n > 2", priority=4)
    await paused.pause()
    await post(queue, 0, 1, 2, 3)
    await queue.post(b"no properties")
    await eventually(lambda: everything.buffered == 5)
    seen: list[object] = []

    def choose(properties: Mapping[str, Any] | None) -> bmq.Consumer | None:
        seen.append(properties and dict(properties))
        return paused if properties and properties["n"] == 3 else None

    everything._buffer.hand_over(choose)
    assert seen == [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}, None]
    assert (everything.buffered, low.buffered, high.buffered, paused.buffered) == (0, 1, 2, 0)
    assert queue.unclaimed == 2


@pytest.mark.parametrize(
    ("choose", "error"),
    [
        (lambda: None, TypeError),
        (lambda properties: properties["absent"], KeyError),
    ],
)
async def test_a_failed_choice_moves_no_message(
    queue: bmq.Queue, choose: Any, error: type[Exception]
) -> None:
    everything, other = await queue.subscribe(priority=5).open(), await queue.subscribe("n > 0").open()
    await post(queue, 1, 2)
    await eventually(lambda: everything.buffered == 2)
    with pytest.raises(error):
        everything._buffer.hand_over(choose)
    assert (everything.buffered, other.buffered) == (2, 0)
