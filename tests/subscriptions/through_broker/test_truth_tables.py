# SPDX-License-Identifier: Apache-2.0
"""Tags of Pulsar and CMQ with a broker; unmatched messages are kept, or discarded as Pulsar and CMQ do.

test_tags.py has the whole tables.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

import bmq
from bmq.subscriptions import pulsar_properties, with_pulsar_tags
from tests.subscriptions.through_broker.scene import Scene, names

discarding = pytest.mark.parametrize("discard", [False, True], ids=["kept", "discarded"])


PULSAR = bmq.TagFilter(any_of=["urgent"], all_of=["eu"])
MIGRATED = bmq.TagFilter.from_pulsar({"anytag0": "urgent", "alltag0": "eu", "name": "reader"})
CMQ = bmq.subscriptions.CmqTags("imac", "xiaomi")


@discarding
@pytest.mark.parametrize(
    ("wanted", "message", "match"),
    [
        (PULSAR, bmq.PutMessage(b"message", tags={"urgent", "eu", "extra"}), True),
        (PULSAR, bmq.PutMessage(b"message", tags={"urgent"}), False),
        (PULSAR, bmq.PutMessage(b"message", tags={"eu"}), False),
        (MIGRATED, bmq.PutMessage(b"message", with_pulsar_tags(pulsar_properties({"urgent", "eu"}))), True),
        (MIGRATED, bmq.PutMessage(b"message", with_pulsar_tags(pulsar_properties({"urgent"}))), False),
        (CMQ, bmq.PutMessage(b"message", tags={"apple", "imac"}), True),
        (CMQ, bmq.PutMessage(b"message", tags={"apple"}), False),
        (CMQ, bmq.PutMessage(b"message"), False),
        (bmq.subscriptions.CmqTags(), bmq.PutMessage(b"message"), True),
    ],
)
@pytest.mark.statement("5.3", "5.5", "5.6", "6.1", "6.3", "6.4")
async def test_the_broker_follows_the_truth_tables(
    scene: Scene, wanted: bmq.TagFilter, message: bmq.PutMessage, match: bool, discard: bool
) -> None:
    """Post a message between two matching messages, and observe its fate."""
    sure = bmq.PutMessage(b"sure", tags=wanted.any_of | wanted.all_of)
    queue = await scene.reader()
    async with queue.subscribe(wanted, discard_unmatched=discard) as consumer:
        (await scene.producer.post_many([sure, message, sure])).raise_for_failures()
        expected = ["sure", "message", "sure"] if match else ["sure", "sure"]
        assert await names(consumer, len(expected)) == expected
        assert consumer.receive_nowait() is None
    await queue.close()
    assert await scene.left() == ([] if match or discard else ["message"])


@pytest.mark.parametrize("uri", ["bmq.test.mem.fanout"], indirect=True)
@pytest.mark.parametrize(
    ("subscribers", "expected"),
    [
        ({"foo": {"apple"}, "bar": {"xiaomi"}, "baz": ()}, [1, 0, 1]),
        (dict.fromkeys(("foo", "bar", "baz"), ()), [1, 1, 1]),
    ],
)
@pytest.mark.statement("6.3", "6.16")
async def test_applications_of_cmq_with_and_without_tags(
    scene: Scene, subscribers: dict[str, Collection[str]], expected: list[int]
) -> None:
    topic = scene.uri
    consumers: dict[str, bmq.Consumer] = {}
    for app_id, tags in subscribers.items():
        scene.uri = f"{topic}?id={app_id}"
        wanted = bmq.subscriptions.CmqTags(*tags)
        consumers[app_id] = await (await scene.reader()).subscribe(wanted, discard_unmatched=True)
    for number in range(20):
        await scene.producer.post(b"%d" % number, tags={"apple", "imac", "iphone", "macbook"})
    await scene.producer.post(b"end", tags={"apple", "xiaomi"})
    for consumer, match in zip(consumers.values(), expected, strict=True):
        assert await names(consumer, 20 * match + 1) == [*map(str, range(20 * match)), "end"]


@discarding
@pytest.mark.statement("5.7")
async def test_more_tags_than_one_expression_are_selected(scene: Scene, discard: bool) -> None:
    wanted = bmq.TagFilter(any_of=[f"t{n}" for n in range(23)], all_of=["eu"])
    queue = await scene.reader()
    async with queue.subscribe(wanted, discard_unmatched=discard) as consumer:
        assert len(consumer.expressions) == 6
        assert queue.consumers == [consumer]
        for n in range(25):
            await scene.producer.post(b"%d" % n, tags={f"t{n}", "eu"})
            await scene.producer.post(b"elsewhere", tags={f"t{n}", "us"})
        await scene.producer.post(b"twice", tags={"t0", "t22", "eu"})
        expected = [*map(str, range(23)), "twice"]
        assert sorted(await names(consumer, 24)) == sorted(expected)
        assert consumer.receive_nowait() is None
    await queue.close()
    assert sorted(await scene.left()) == ([] if discard else ["23", "24", *["elsewhere"] * 25])


@pytest.mark.parametrize("share", [100, 10, 1, 0])
@pytest.mark.statement("5.9", "5.10", "5.11", "5.13")
async def test_only_matching_messages_are_sent(scene: Scene, share: int) -> None:
    queue = await scene.reader()
    async with queue.subscribe(bmq.TagFilter(any_of=["priority=urgent"])) as consumer:
        for tag in ("priority=low", "priority=urgent"):
            await scene.producer.post(tag.encode(), tags=[tag])
        assert await names(consumer, 1) == ["priority=urgent"]
        tags = [["priority=urgent"] if n % 100 < share else ["priority=low"] for n in range(200)]
        items = [bmq.PutMessage(b"%d" % n, tags=each) for n, each in enumerate(tags)]
        (await scene.producer.post_many(items)).raise_for_failures()
        wanted = [str(n) for n in range(200) if n % 100 < share]
        assert await names(consumer, len(wanted)) == wanted
        await scene.round_trip(queue)
        assert consumer.receive_nowait() is None
        # Filtered in the broker: unmatched messages are not sent.
        assert queue.stats().received == 1 + 2 * share
