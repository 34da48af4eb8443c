# SPDX-License-Identifier: Apache-2.0
"""The embedded broker's filter before each delivery, as Pulsar's proposal describes it; off by default."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

import bmq
from bmq.broker import (
    Broker,
    DomainConfig,
    FilteredConsumer,
    Limits,
    Mode,
    TagConsumerFilter,
    _consumer_filter,
)

ROOM = Limits(1000, 2**20)
PRIORITY = DomainConfig("filtered", Mode.PRIORITY, message_ttl=300, domain_limits=ROOM, queue_limits=ROOM)
FANOUT = replace(PRIORITY, name="fanned", mode=Mode.FANOUT, app_ids=("foo", "bar"))

URGENT = {"tag0": "urgent", "tag1": "compressed"}
HALF = {"tag0": "urgent", "tag1": "uncompressed"}
ONE = {"tag0": "urgent"}
MIXED_UP = {"priority": "urgent", "mytag": "compressed"}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(builtin=False) as broker:
        yield broker


@pytest.fixture
async def session(broker: Broker) -> AsyncIterator[bmq.Session]:
    broker.add_domain(PRIORITY)
    broker.add_domain(FANOUT)
    async with bmq.connect(broker.uri) as session:
        yield session


async def post(queue: bmq.Queue, **messages: Mapping[str, Any]) -> None:
    items = [bmq.PutMessage(name.encode(), properties) for name, properties in messages.items()]
    (await queue.post_many(items)).raise_for_failures()


@pytest.mark.statement("5.12")
@pytest.mark.parametrize("filtered", [False, True])
async def test_without_a_filter_no_function_of_the_filter_is_called(broker: Broker, filtered: bool) -> None:
    domain = replace(PRIORITY, consumer_filter=TagConsumerFilter({}) if filtered else None)
    broker.add_domain(domain)
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == _consumer_filter.__file__

    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue("bmq://filtered/q", read=True, write=True)
        sys.setprofile(count)
        try:
            await post(queue, one=URGENT, two=ONE, end={})
            assert await names(queue) == ["one", "two"]
        finally:
            sys.setprofile(None)
    assert bool(calls) is filtered


async def names(queue: bmq.Queue | bmq.Consumer, until: str = "end") -> list[str]:
    found: list[str] = []
    while until not in found:
        message = await queue.receive(20)
        message.confirm()
        found.append(message.data.decode())
    return found[:-1]


@pytest.mark.statement("5.3", "5.4", "5.5", "5.7", "5.8")
@pytest.mark.parametrize(
    ("metadata", "passing"),
    [
        ({"anytag1": "urgent", "anytag2": "compressed"}, ["urgent", "half", "one"]),
        ({"alltag1": "urgent", "alltag2": "compressed"}, ["urgent"]),
        ({"anytag": "urgent", "alltagX": "uncompressed"}, ["half"]),
        ({"anytag1": "compressed", "alltag1": "compressed"}, ["urgent"]),  # overlap is allowed
        ({"anytag1": "late"}, []),
        (
            {"Anytag1": "late", "name": "worker", "tag0": "late"},
            ["urgent", "half", "one", "mixed_up", "none"],
        ),
        ({}, ["urgent", "half", "one", "mixed_up", "none"]),
    ],
)
async def test_tags_as_in_the_proposal(
    broker: Broker, session: bmq.Session, metadata: dict[str, str], passing: list[str]
) -> None:
    """Plain Pulsar properties, any keys that begin with tag, and as many values as one likes; what does not
    match is dropped for the subscriber, and gone."""
    tags = TagConsumerFilter({"": metadata})

    def or_end(consumer: FilteredConsumer, properties: Mapping[str, Any]) -> bool:
        return "end" in properties or tags(consumer, properties)

    broker.add_domain(replace(PRIORITY, consumer_filter=or_end))
    queue = await session.open_queue("bmq://filtered/q", read=True, write=True)
    await post(queue, urgent=URGENT, half=HALF, one=ONE, mixed_up=MIXED_UP, none={"x": 1}, end={"end": True})
    assert await names(queue) == passing
    await queue.flush()
    await queue.close()
    assert len(broker.queues["bmq://filtered/q"].messages) == 0


@pytest.mark.statement("5.8")
async def test_all_messages_are_delivered_without_a_filter(session: bmq.Session) -> None:
    queue = await session.open_queue("bmq://filtered/q", read=True, write=True)
    await post(queue, urgent=URGENT, none={"x": 1}, end={})
    assert await names(queue) == ["urgent", "none"]


@pytest.mark.statement("5.8")
async def test_each_application_is_filtered_separately(broker: Broker, session: bmq.Session) -> None:
    broker.add_domain(replace(FANOUT, consumer_filter=TagConsumerFilter({"foo": {"anytag": "urgent"}})))
    writer = await session.open_queue("bmq://fanned/q", write=True)
    foo, bar = [await session.open_queue(f"bmq://fanned/q?id={app}", read=True) for app in ("foo", "bar")]
    await post(writer, urgent=URGENT, none={"x": 1}, end={"tag": "urgent"})
    assert await names(foo) == ["urgent"]
    assert await names(bar) == ["urgent", "none"]


@pytest.mark.statement("5.8")
async def test_any_function_with_the_consumer_as_argument_is_a_filter(
    broker: Broker, session: bmq.Session
) -> None:
    asked: list[FilteredConsumer] = []

    def small(consumer: FilteredConsumer, properties: Mapping[str, Any]) -> bool:
        asked.append(consumer)
        return "size" not in properties or properties["size"] < 10

    broker.add_domain(replace(PRIORITY, consumer_filter=small))
    queue = await session.open_queue(
        "bmq://filtered/q", read=True, write=True, subscriptions=["size > 0", "end"]
    )
    sized, last = queue.consumers
    await post(queue, a={"size": 5}, b={"size": 50}, c={"size": 6}, end={"end": True})
    assert await names(last) == []
    assert await names(sized, "c") == ["a"]
    assert {each.expression for each in asked} == {"size > 0", "end"}
    assert {(each.queue, each.app_id) for each in asked} == {("bmq://filtered/q", "")}
    assert all(each.client for each in asked)


async def test_filter_is_called_before_redelivery_and_can_be_changed(
    broker: Broker, session: bmq.Session
) -> None:
    first = await session.open_queue("bmq://filtered/q", read=True, write=True)
    await post(first, urgent=URGENT, none={"x": 1})
    for _ in range(2):
        await first.receive(20)
    broker.add_domain(replace(PRIORITY, consumer_filter=TagConsumerFilter({"": {"anytag": "urgent"}})))
    await first.close()
    again = await session.open_queue("bmq://filtered/q", read=True, write=True)
    await post(again, dropped={}, end={"tag": "urgent"})
    assert await names(again) == ["urgent"]
    broker.add_domain(PRIORITY)
    await post(again, dropped={}, end={})
    assert await names(again) == ["dropped"]


async def test_broadcast_messages_are_filtered(broker: Broker, session: bmq.Session) -> None:
    broker.add_domain(
        DomainConfig("cast", Mode.BROADCAST, consumer_filter=TagConsumerFilter({"": {"anytag": "urgent"}}))
    )
    queue = await session.open_queue("bmq://cast/q", read=True, write=True, default_subscription=True)
    await post(queue, none={}, urgent=URGENT, end={"tag": "urgent"})
    assert await names(queue) == ["urgent"]


async def test_a_failing_filter_passes_the_message_and_is_logged(
    broker: Broker, session: bmq.Session, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(consumer: FilteredConsumer, properties: Mapping[str, Any]) -> bool:
        raise LookupError("no such tag")

    broker.add_domain(replace(PRIORITY, consumer_filter=broken))
    queue = await session.open_queue("bmq://filtered/q", read=True, write=True)
    with caplog.at_level(logging.ERROR, "bmq.broker"):
        await post(queue, a={}, end={})
        assert await names(queue) == ["a"]
    assert "the consumer filter of bmq://filtered/q failed" in caplog.text
