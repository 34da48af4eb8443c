# SPDX-License-Identifier: Apache-2.0
"""The problems that the console finds, each caused on a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import bmq
from bmq.admin import DomainInfo, StoredQueue, Usage
from bmq.admin.watch import DomainFigures, QueueFigures
from bmq.broker import DomainConfig, Limits, Mode
from bmq.console import Console, RemoteBroker
from bmq.console.findings import DeadLetters
from bmq.console.watch import _Sight
from bmq.groups.buckets import group_of
from tests.console.conftest import ORDERS, PRICES, Serve
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


@sweep(
    "patterns, uris",
    [
        ([], {"bmq://shop/orders.dead": True, "bmq://shop/orders.failed": False}),
        (
            [["bmq://shop/*.failed", "bmq://lost/*"]],
            {
                "bmq://shop/orders.failed": True,
                "bmq://lost/anything": True,
                "bmq://other/orders.failed": False,
                "bmq://shop/orders.dead": False,
            },
        ),
    ],
)
def test_patterns_name_the_queues_with_dead_letters(patterns: list[Any], uris: dict[str, bool]) -> None:
    assert {uri: uri in DeadLetters(*patterns) for uri in uris} == uris


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
    serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    broker.add_domain(DomainConfig("small", Mode.PRIORITY, queue_limits=Limits(messages=20)))
    for uri, count in (
        ("bmq://small/full", 21),
        ("bmq://small/near", 17),
        (f"{ORDERS}.dead", 1),
        (PRICES, 1),
    ):
        read = uri.startswith("bmq://small")
        await (await session.open_queue(uri, read=read, write=True)).post_many([b"x"] * count)
    orders = await session.open_queue(ORDERS, read=True, write=True)
    await orders.subscribe("CustomerId >= 1000").open()
    await orders.post(b"x", properties={"CustomerId": 7})
    web = await serve()
    wanted = {
        "bmq://small/full": ("full", "critical"),
        "bmq://small/near": ("near", "warning"),
        f"{ORDERS}.dead": ("dead", "warning"),
        PRICES: ("unread", "critical"),
        ORDERS: ("unmatched", "critical"),
    }
    async with web.live() as until:
        line = await until(lambda line: wanted.items() <= _kinds_of(line).items())
        for queue in line["queues"]:
            assert queue["finding"]["text"]
            assert queue["finding"]["remedy"]
            assert queue["finding"]["since"] <= line["time"]
        await orders.subscribe().open()
        await until(lambda line: ORDERS not in _kinds_of(line))
    assert [each["title"] for each in (await web.get("queue", uri=PRICES))["findings"]] == [
        f"No readers for application {app}" for app in ("foo", "bar", "baz")
    ]


async def test_missing_confirmations_and_a_reader_without_a_turn(
    serve: Serve, broker: bmq.broker.Broker, session: bmq.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.console.findings.LONG", 0.0)
    queue = await session.open_queue(ORDERS, read=True, write=True)
    consumer = await queue.subscribe().open()
    await queue.post(b"x")
    await consumer.receive(20)
    web = await serve()
    async with web.live() as until:
        await until(lambda line: _kinds_of(line) == {ORDERS: ("unconfirmed", "warning")})
    async with bmq.connect(broker.uri, process_name="scratch") as second:
        other = await second.open_queue(ORDERS, read=True)
        await other.subscribe(priority=10).open()
        facts = await web.get("queue", uri=ORDERS)
    found = {each["kind"]: each["text"] for each in facts["findings"]}
    assert found.keys() == {"unconfirmed", "outranked"}
    assert "scratch" in found["outranked"]
    assert "(10 instead of 0)" in found["outranked"]


@pytest.mark.parametrize(
    ("subscriptions", "properties", "problems"),
    [
        ([("", 1)], {"CustomerId": 2000}, [("limit", "warning")]),
        ([("CustomerId >= 1000", 1), ("CustomerId < 1000", 9)], {"CustomerId": 2000}, [("held", "warning")]),
        ([("bmq_due <= 5", 9)], {"bmq_due": 10}, []),
    ],
    ids=["at the limit", "held back", "a mover"],
)
async def test_problems_of_readers(
    serve: Serve,
    session: bmq.Session,
    subscriptions: list[tuple[str, int]],
    properties: dict[str, int],
    problems: list[tuple[str, str]],
) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    for text, limit in subscriptions:
        await queue.subscribe(text, max_unconfirmed_messages=limit).open()
    await queue.post_many([bmq.PutMessage(b"x", dict(properties)) for _ in range(3)])
    found = (await (await serve()).get("queue", uri=ORDERS))["findings"]
    assert [(each["kind"], each["level"]) for each in found] == problems


# ---- groups


@dataclass
class _Reader:
    client: str
    expression: str

    @property
    def subscription(self) -> _Reader:
        return self


def _group(*readers: tuple[str, str]) -> Any:
    return group_of([_Reader(*each) for each in readers])  # type: ignore[misc]


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


async def test_a_group_is_shown(serve: Serve, session: bmq.Session) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True, default_subscription=False)
    for bucket in (0, 1):
        await queue.subscribe(f"bmq_bucket % 3 == {bucket}").open()
    (app,) = (await (await serve()).get("queue", uri=ORDERS))["apps"]
    assert (app["group"]["size"], app["group"]["free"]) == (3, [2])
    assert [each["buckets"] for each in app["group"]["members"]] == [[0, 1]]
