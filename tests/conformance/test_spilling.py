# SPDX-License-Identifier: Apache-2.0
"""The effect of a full subscription on others, as docs/subscriptions/routing.md describes it.

The predictions of :class:`bmq.subscriptions.RoutingTable` are compared with a broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from bmq.subscriptions import Expression, Route, RoutingTable
from bmq.wire.properties import PropertyInput
from tests.conformance.raw import Raw, subscription


class Sub(NamedTuple):
    """A consumer with one subscription; ``text`` "" matches every message."""

    name: str
    text: str
    priority: int
    window: int = 100


A, B = Sub("A", "x >= 0", 10, 1), Sub("B", "x > -1", 5)
ONE, TWO = Sub("A", "x == 1", 10, 1), Sub("D", "x == 2", 5)
MIXED = [1, 1, 2, 2, 1, 2]

SCENARIOS = {
    "two priorities": ([A, B], range(6), {"A": [0]}),
    "a third beside the full one": (
        [A, B, Sub("C", "x == 100", 10)],
        range(6),
        {"A": [0], "B": [2, 3, 4, 5]},
    ),
    "the same, the third first": ([Sub("C", "x == 100", 10), A, B], range(6), {"A": [0], "B": [2, 3, 4, 5]}),
    "a third above": ([A, B, Sub("C", "x == 100", 20)], range(6), {"A": [0], "B": [2, 3, 4, 5]}),
    "a third between": ([A, B, Sub("C", "x == 100", 7)], range(6), {"A": [0]}),
    "a third below": ([A, B, Sub("C", "x == 100", 1)], range(6), {"A": [0]}),
    "the same text below": (
        [A, B._replace(text=A.text), Sub("C", "x == 100", 10)],
        range(6),
        {"A": [0]},
    ),
    "one priority": ([A, B._replace(priority=10)], range(6), {"A": [0], "B": [1, 2, 3, 4, 5]}),
    "another filter below": ([ONE, TWO], MIXED, {"A": [1]}),
    "another filter below, served first": ([ONE, TWO], [2, *MIXED], {"A": [1], "D": [2]}),
    "another filter of one priority": ([ONE, TWO._replace(priority=10)], MIXED, {"A": [1], "D": [2, 2, 2]}),
    "another filter above": ([ONE, TWO._replace(priority=20)], MIXED, {"A": [1], "D": [2, 2, 2]}),
    "everything below a full filter": ([ONE, Sub("S", "", -100)], MIXED, {"A": [1]}),
    "everything below two filters": (
        [ONE, TWO._replace(priority=10), Sub("S", "", -100)],
        [1, 1, 1, 2, 3, 1, 2],
        {"A": [1], "D": [2, 2], "S": [1, 3, 1]},
    ),
}


def foretold(subs: list[Sub], posted: list[int]) -> dict[str, list[int]]:
    """Return a routing table's predictions, message by message, without confirmations."""
    got: dict[str, list[int]] = {sub.name: [] for sub in subs}
    waited_for: set[str] = set()
    for x in posted:
        decision = RoutingTable(
            Route(
                Expression(s.text) if s.text else None, s.priority, s.name, full=len(got[s.name]) >= s.window
            )
            for s in subs
        ).route({"x": x})
        if decision.stops:
            break
        if decision.waits:
            matching = {
                step.active[0].name for step in decision.steps if step.verdict == "matches, but is full"
            }
            if matching <= waited_for:
                for route in decision.spills[:1]:
                    got[route.name].append(x)
            waited_for |= matching
        elif decision.route is not None:
            got[decision.route.name].append(x)
    return {name: numbers for name, numbers in got.items() if numbers}


@pytest.mark.statement("1.17")
@pytest.mark.parametrize(("subs", "posted", "expected"), SCENARIOS.values(), ids=SCENARIOS)
async def test_a_full_subscription_spills_as_measured(
    client: Callable[..., Awaitable[Raw]],
    bmq_queue_uri: str,
    subs: list[Sub],
    posted: list[int],
    expected: dict[str, list[int]],
) -> None:
    producer = await client()
    await producer.open(bmq_queue_uri, read=False)
    consumers: dict[str, Raw] = {}
    for sub in subs:
        consumer = consumers[sub.name] = await client()
        await consumer.open(bmq_queue_uri, write=False)
        await consumer.configure(0, subscription(1, sub.text, priority=sub.priority, messages=sub.window))
    for x in posted:
        producer.post(b"%d" % x, properties={"x": x})
    await producer.acks(len(posted))
    got = {
        name: [int(payload) for payload in await consumer.payloads(len(expected.get(name, ())))]
        for name, consumer in consumers.items()
    }
    assert {name: numbers for name, numbers in got.items() if numbers} == expected
    for consumer in consumers.values():
        assert await consumer.no_push()
    assert foretold(subs, list(posted)) == expected


#: Expressions of which the documentation says that they never match, are never false, or end in an error.
NEVER = [
    "x == 1 && x == 2",
    "x > 5 && x < 6",
    'x < ""',
    "x < x",
    'x + 1 == "a"',
    "x == 1 && 2",
    "(x == 1) == (y == 2)",
    "x / 0 == 1",
    r'x == "a\"b"',
]
ALWAYS = ["x != 1 || x != 2", "x == x"]
VALUES: list[PropertyInput] = [-1, 0, 1, 2, 5, 6, 2**40, "", "a", 'a"b', "1", True, False]


@pytest.mark.statement("2.4", "2.6")
@pytest.mark.parametrize("text", NEVER)
async def test_never_matching_expressions_receive_no_message(
    client: Callable[..., Awaitable[Raw]], bmq_queue_uri: str, text: str
) -> None:
    raw = await client()
    await raw.open(bmq_queue_uri)
    await raw.configure(0, subscription(1, text), subscription(2, "end == true"))
    for value in VALUES:
        raw.post(b"-", properties={"x": value, "y": 2})
    raw.post(b"-", properties={"y": 2})
    raw.post(b"end", properties={"end": True})
    last = await raw.push()
    assert (last.payload, last.push.sub_ids) == (b"end", (2,))


@pytest.mark.statement("2.4")
@pytest.mark.parametrize("text", ALWAYS)
async def test_expressions_that_are_never_false_match_all_messages(
    client: Callable[..., Awaitable[Raw]], bmq_queue_uri: str, text: str
) -> None:
    raw = await client()
    await raw.open(bmq_queue_uri)
    await raw.configure(0, subscription(1, text))
    numbers = [value for value in VALUES if isinstance(value, int) and not isinstance(value, bool)]
    for value in numbers:
        raw.post(b"%d" % value, properties={"x": value})
    assert await raw.payloads(len(numbers)) == [b"%d" % value for value in numbers]
