# SPDX-License-Identifier: Apache-2.0
"""The problems that the console finds, each caused on a broker."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

import bmq
from bmq.admin import DomainInfo, QueueStatistics, StoredQueue, Usage
from bmq.admin.explanation import QueueReader
from bmq.admin.watch import DomainFigures, QueueFigures
from bmq.broker import DomainConfig, Limits, Mode
from bmq.console import Console
from bmq.console.findings import DeadLetters, QueueFinding
from bmq.console.source import RemoteBroker
from bmq.console.watch import _Sight
from bmq.groups.buckets import group_of
from tests.console.conftest import Serve
from tests.console.test_server import ORDERS, PRICES, _get, _live, _until
from tests.sweeps import sweep


def test_expired_messages_are_counted_from_poll_to_poll() -> None:
    sight = _Sight()
    sight.expire(40, 1000.0)
    assert sight.expired == 0, "expired before the console began"
    sight.expire(43, 1001.0)
    sight.expire(43, 1002.0)
    sight.expire(45, 1200.0)
    assert sight.expired == 5
    sight.expire(0, 1499.0)
    assert sight.expired == 5
    sight.expire(0, 1501.0)
    assert sight.expired == 0


def test_patterns_name_the_queues_with_dead_letters() -> None:
    assert "bmq://shop/orders.dead" in DeadLetters()
    assert "bmq://shop/orders.failed" not in DeadLetters()
    ours = DeadLetters(["bmq://shop/*.failed", "bmq://lost/*"])
    assert "bmq://shop/orders.failed" in ours
    assert "bmq://lost/anything" in ours
    assert "bmq://other/orders.failed" not in ours
    assert "bmq://shop/orders.dead" not in ours


@sweep("given", ["*.dead", [""], [3], None])
def test_a_malformed_pattern_is_refused(given: Any) -> None:
    with pytest.raises(bmq.UsageError, match="dead_letters"):
        Console(RemoteBroker("tcp://localhost:1"), dead_letters=given)


@sweep(
    "queue, domain, limits, use",
    [
        ((85, 10), (85, 10), ((0, 0), (100, 0)), (0.85, "queue", False)),
        ((100, 0), (100, 0), ((0, 0), (100, 0)), (1.0, "queue", False)),
        ((101, 0), (101, 0), ((0, 0), (100, 0)), (1.01, "queue", True)),
        ((1, 1), (9, 95), ((10, 100), (100, 1000)), (0.95, "domain", False)),
        ((9, 9), (9, 9), ((0, 0), (0, 0)), (0.0, "", False)),
    ],
)
def test_the_use_of_a_quota(queue: Any, domain: Any, limits: Any, use: Any) -> None:
    of_domain, of_queue = (dict(zip(("messages", "bytes"), limit, strict=True)) for limit in limits)
    stored = (
        StoredQueue("bmq://d/q", queue[0], queue[1], False),
        StoredQueue("bmq://d/other", domain[0] - queue[0], domain[1] - queue[1], False),
    )
    storage = {"domainLimits": of_domain, "queueLimits": of_queue}
    info = DomainInfo("d", "c", "priority", (), {"storage": storage}, Usage(0, 0, 0, 0), stored)
    assert QueueFigures("bmq://d/q", "d", domain=DomainFigures(info, 2)).use() == use


def _kinds_of(line: Any) -> dict[str, tuple[str, str]]:
    return {
        each["uri"]: (each["finding"]["kind"], each["finding"]["level"])
        for each in line["queues"]
        if each["finding"]
    }


async def test_problems_of_queues_over_the_wire(
    http: aiohttp.ClientSession, serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    broker.add_domain(DomainConfig("small", Mode.PRIORITY, queue_limits=Limits(messages=20)))
    for name, number in (("full", 21), ("near", 17)):
        queue = await session.open_queue(f"bmq://small/{name}", read=True, write=True)
        await queue.post_many([b"x"] * number)
    dead = await session.open_queue(f"{ORDERS}.dead", write=True)
    await dead.post(b"x")
    await (await session.open_queue(PRICES, write=True)).post(b"x")
    orders = await session.open_queue(ORDERS, read=True, write=True)
    await orders.subscribe("CustomerId >= 1000").open()
    await orders.post(b"x", properties={"CustomerId": 7})
    console = await serve()
    wanted = {
        "bmq://small/full": ("full", "critical"),
        "bmq://small/near": ("near", "warning"),
        f"{ORDERS}.dead": ("dead", "warning"),
        PRICES: ("unread", "critical"),
        ORDERS: ("unmatched", "critical"),
    }
    async with _live(http, console) as lines:
        line = await _until(lines, lambda line: wanted.items() <= _kinds_of(line).items())
        for queue in line["queues"]:
            assert queue["finding"]["text"]
            assert queue["finding"]["remedy"]
            assert queue["finding"]["since"] <= line["time"]
        await orders.subscribe().open()
        await _until(lines, lambda line: ORDERS not in _kinds_of(line))
    facts = await _get(http, console, "api/queue", uri=PRICES)
    assert [each["title"] for each in facts["findings"]] == [
        f"No readers for application {app}" for app in ("foo", "bar", "baz")
    ]


async def test_missing_confirmations_and_a_reader_without_a_turn(
    http: aiohttp.ClientSession,
    serve: Serve,
    broker: bmq.broker.Broker,
    session: bmq.Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bmq.console.findings.LONG", 0.0)
    queue = await session.open_queue(ORDERS, read=True, write=True)
    consumer = await queue.subscribe().open()
    await queue.post(b"x")
    await consumer.receive(20)
    console = await serve()
    async with _live(http, console) as lines:
        await _until(lines, lambda line: _kinds_of(line) == {ORDERS: ("unconfirmed", "warning")})
    async with bmq.connect(broker.uri, process_name="scratch") as second:
        other = await second.open_queue(ORDERS, read=True)
        await other.subscribe(priority=10).open()
        facts = await _get(http, console, "api/queue", uri=ORDERS)
    found = {each["kind"]: each["text"] for each in facts["findings"]}
    assert found.keys() == {"unconfirmed", "outranked"}
    assert "scratch" in found["outranked"]
    assert "(10 instead of 0)" in found["outranked"]


async def test_readers_at_their_limit(
    http: aiohttp.ClientSession, serve: Serve, session: bmq.Session
) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    await queue.subscribe(max_unconfirmed_messages=1).open()
    await queue.post_many([b"x"] * 3)
    async with _live(http, await serve()) as lines:
        await _until(lines, lambda line: _kinds_of(line) == {ORDERS: ("limit", "warning")})


async def test_messages_held_back(http: aiohttp.ClientSession, serve: Serve, session: bmq.Session) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    await queue.subscribe("CustomerId >= 1000", max_unconfirmed_messages=1).open()
    await queue.subscribe("CustomerId < 1000").open()
    await queue.post_many([bmq.PutMessage(b"x", {"CustomerId": 2000}) for _ in range(3)])
    (finding,) = (await _get(http, await serve(), "api/queue", uri=ORDERS))["findings"]
    assert (finding["kind"], finding["level"]) == ("held", "warning")


async def test_a_delay_queue_with_a_mover_has_no_problem(
    http: aiohttp.ClientSession, serve: Serve, session: bmq.Session
) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    await queue.subscribe("bmq_due <= 5").open()
    await queue.post(b"x", properties={"bmq_due": 10})
    assert (await _get(http, await serve(), "api/queue", uri=ORDERS))["findings"] == []


# ---- groups


class _Subscription:
    def __init__(self, expression: str) -> None:
        self.expression = expression


class _Reader:
    def __init__(self, client: str, expression: str) -> None:
        self.client = client
        self.subscription = _Subscription(expression)


def _group(*readers: tuple[str, str]) -> Any:
    found: list[QueueReader] = [_Reader(*each) for each in readers]  # type: ignore[misc]
    return group_of(found)


def test_members_and_buckets_of_a_group() -> None:
    group = _group(
        ("b", "bmq_bucket % 4 == 0"), ("a", "bmq_bucket % 4 == 3 && (x == 1)"), ("a", "!exists(bmq_bucket)")
    )
    assert group == {
        "size": 4,
        "members": [{"name": "a", "buckets": [3]}, {"name": "b", "buckets": [0]}],
        "free": [1, 2],
    }
    assert _group(("a", "(key - 3) % 4 == 0"), ("a", "key % 4 == 0"))["free"] == [1, 2]


def test_an_expression_for_many_buckets_adds_none() -> None:
    single = [("a", f"bmq_bucket % 4 == {bucket}") for bucket in (0, 2, 3)]
    group = _group(("a", "bmq_bucket % 2 == 0"), *single, ("b", "bmq_bucket % 4 == 1"))
    assert group["size"] == 4
    assert [each["buckets"] for each in group["members"]] == [[0, 2, 3], [1]]
    assert _group(("a", "bmq_bucket % 2 == 1"), *single) is None
    assert _group(("b", "bmq_bucket % 3 == 0"), *single) is None


@sweep(
    "expression",
    ["", "x > 1", "bmq_bucket % 0 == 0", "bmq_bucket % 999999999 == 3", "bmq_bucket % 4 == 4", "a" * 3000],
)
def test_other_readers_are_no_group(expression: str) -> None:
    assert _group(("a", expression)) is None


async def test_a_group_is_shown(http: aiohttp.ClientSession, serve: Serve, session: bmq.Session) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True, default_subscription=False)
    for bucket in (0, 1):
        await queue.subscribe(f"bmq_bucket % 3 == {bucket}").open()
    (app,) = (await _get(http, await serve(), "api/queue", uri=ORDERS))["apps"]
    assert (app["group"]["size"], app["group"]["free"]) == (3, [2])
    assert [each["buckets"] for each in app["group"]["members"]] == [[0, 1]]


def _sight(asked: float, *, confirmed: float = 0.0, suspected: bool = False) -> _Sight:
    sight = _Sight(asked=asked)
    sight.confirmed.append(confirmed)
    if suspected:
        sight.suspected = QueueFinding("unmatched", "critical", "", "", "")
    return sight


def test_suspicious_queues_are_asked_about_first_and_all_in_the_end() -> None:
    read, unread, late = [
        QueueFigures("bmq://d/q", "d", statistics=QueueStatistics("bmq://d/q", "d", **counted))
        for counted in ({"consumers": 1, "posted": 5}, {"posted": 5}, {"posted": 0})
    ]
    moving, standing = _sight(90, confirmed=3), _sight(90)
    suspected, new = _sight(90, suspected=True), _sight(0)
    at = 100.0
    assert moving.urgency(read, at) < standing.urgency(read, at) < suspected.urgency(read, at)
    assert standing.urgency(unread, at) == suspected.urgency(read, at)
    assert standing.urgency(late, at) == standing.urgency(read, at)
    grown = _sight(90)
    grown.grown = True
    assert grown.urgency(late, at) == suspected.urgency(read, at)
    assert new.urgency(read, 1000.0) > _sight(990).urgency(read, 1000.0)
    assert _sight(0, confirmed=3).urgency(read, 1000.0) > _sight(960).urgency(read, 1000.0), (
        "no queue starves"
    )
