# SPDX-License-Identifier: Apache-2.0
"""The truth tables of Pulsar's and CMQ's tags with a broker; unmatched messages are kept or discarded.

Pulsar and CMQ do not keep messages outside a subscriber's filter. A BlazingMQ queue keeps these messages
until
    their confirmation: ``discard_unmatched=True``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import bmq
from bmq.subscriptions import pulsar_properties, with_pulsar_tags
from tests.subscriptions.test_tags import CMQ, PULSAR
from tests.subscriptions.through_broker.scene import Scene, names

discarding = pytest.mark.parametrize("discard", [False, True], ids=["kept", "discarded"])


async def hold(
    scene: Scene, wanted: bmq.TagFilter, message: bmq.PutMessage, *, match: bool, discard: bool
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


@discarding
@pytest.mark.parametrize("row", PULSAR, ids=lambda row: f"row {row[0]}")
@pytest.mark.statement("5.3", "5.5")
async def test_the_broker_follows_the_truth_table_of_pulsar(
    scene: Scene, row: tuple[int, set[str], set[str], set[str], bool], discard: bool
) -> None:
    _, any_of, all_of, tags, match = row
    wanted = bmq.TagFilter(any_of=any_of, all_of=all_of)
    await hold(scene, wanted, bmq.PutMessage(b"message", tags=tags), match=match, discard=discard)


@discarding
@pytest.mark.parametrize("row", PULSAR, ids=lambda row: f"row {row[0]}")
@pytest.mark.statement("5.6")
async def test_pulsar_with_consumers_and_producers_as_they_were(
    scene: Scene, row: tuple[int, set[str], set[str], set[str], bool], discard: bool
) -> None:
    _, any_of, all_of, tags, match = row
    metadata = {f"anytag{n}": tag for n, tag in enumerate(sorted(any_of))}
    metadata |= {f"alltag{n}": tag for n, tag in enumerate(sorted(all_of))}
    wanted = bmq.TagFilter.from_pulsar(metadata)
    message = bmq.PutMessage(b"message", properties=with_pulsar_tags(pulsar_properties(tags)))
    await hold(scene, wanted, message, match=match, discard=discard)


@discarding
@pytest.mark.parametrize("row", CMQ, ids=lambda row: f"row {row[0]}")
@pytest.mark.statement("6.1", "6.3", "6.4")
async def test_the_broker_follows_the_truth_table_of_cmq(
    scene: Scene, row: tuple[int, set[str], set[str], bool], discard: bool
) -> None:
    _, subscribed, tags, match = row
    message = bmq.PutMessage(b"message", tags=tags)
    await hold(scene, bmq.subscriptions.CmqTags(subscribed), message, match=match, discard=discard)


@pytest.mark.parametrize("uri", ["bmq.test.mem.fanout"], indirect=True)
@pytest.mark.statement("6.3")
async def test_cmq_scenario_3_subscribers_with_different_tags(scene: Scene) -> None:
    subscribers = {
        "foo": bmq.subscriptions.CmqTags("apple"),
        "bar": bmq.subscriptions.CmqTags("xiaomi"),
        "baz": bmq.subscriptions.CmqTags(),
    }
    topic = scene.uri
    consumers: dict[str, bmq.Consumer] = {}
    for app_id, tags in subscribers.items():
        scene.uri = f"{topic}?id={app_id}"
        consumers[app_id] = await (await scene.reader()).subscribe(tags, discard_unmatched=True)
    for number in range(20):
        await scene.producer.post(b"%d" % number, tags={"apple", "imac", "iphone", "macbook"})
    await scene.producer.post(b"end", tags={"apple", "xiaomi"})
    hundred = [str(number) for number in range(20)]
    assert await names(consumers["foo"], 21) == [*hundred, "end"]
    assert await names(consumers["bar"], 1) == ["end"]
    assert await names(consumers["baz"], 21) == [*hundred, "end"]


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
@pytest.mark.statement("5.10", "5.13")
async def test_only_matching_messages_are_sent(scene: Scene, share: int) -> None:
    queue = await scene.reader()
    async with queue.subscribe(bmq.TagFilter(any_of=["priority=urgent"])) as consumer:
        tags = [["priority=urgent"] if n % 100 < share else ["priority=low"] for n in range(200)]
        items = [bmq.PutMessage(b"%d" % n, tags=each) for n, each in enumerate(tags)]
        (await scene.producer.post_many(items)).raise_for_failures()
        wanted = [str(n) for n in range(200) if n % 100 < share]
        assert await names(consumer, len(wanted)) == wanted
        await scene.round_trip(queue)
        assert consumer.receive_nowait() is None
        # Filtered in the broker: unmatched messages are not sent.
        assert queue.stats().received == 2 * share


@pytest.mark.statement("5.9")
async def test_the_values_of_tags_may_hold_any_text(scene: Scene) -> None:
    for text in ("priority=urgent", "a b", "ä", "1Y", "_ask"):
        queue = await scene.reader()
        async with queue.subscribe(bmq.TagFilter(any_of=[text])) as consumer:
            await scene.producer.post(b"m", tags=[text])
            assert await names(consumer, 1) == ["m"]
        await queue.close()


@pytest.mark.statement("5.11")
async def test_single_messages_and_batches_are_filtered_alike(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe(bmq.TagFilter(any_of=["a"])) as consumer:
        for tag in ("a", "b", "a"):
            await scene.producer.post(tag.encode(), tags=[tag])
        items = [bmq.PutMessage(tag.encode(), tags=[tag]) for tag in ("b", "a", "b")]
        (await scene.producer.post_many(items)).raise_for_failures()
        assert await names(consumer, 3) == ["a", "a", "a"]
        assert consumer.receive_nowait() is None


@pytest.mark.statement("6.16")
async def test_cmq_scenario_4_without_tags_each_application_gets_all_messages(
    session: bmq.Session, fresh: Callable[..., str]
) -> None:
    uri = fresh("bmq.test.mem.fanout")
    writer = await session.open_queue(uri, write=True)
    readers = [await session.open_queue(f"{uri}?id={app}", read=True) for app in ("foo", "bar", "baz")]
    (await writer.post_many([b"%d" % n for n in range(100)])).raise_for_failures()
    for reader in readers:
        assert await names(reader, 100) == [str(n) for n in range(100)]
