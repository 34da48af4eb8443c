# SPDX-License-Identifier: Apache-2.0
"""One member and its buckets, at an embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import pytest

import bmq
from bmq.groups import Full, Gained, GroupEvent, Lost, Reason, key_bucket
from bmq.testing import FaultProxy
from tests.waiting import eventually

Connect = Callable[..., Awaitable[bmq.Session]]
INT64_MIN = -(2**63)


@pytest.fixture
async def writer(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


@pytest.fixture
async def reader(bmq_connect: Connect, bmq_queue_uri: str) -> bmq.Queue:
    return await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)


@pytest.fixture
async def another(bmq_connect: Connect, bmq_queue_uri: str) -> bmq.Queue:
    return await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)


async def post(queue: bmq.Queue, *keys: int) -> None:
    report = await queue.post_many(bmq.PutMessage(b"%d" % key, {"k": key}) for key in keys)
    report.raise_for_failures()


async def take(group: bmq.groups.Group, count: int) -> list[int]:
    """Receive and confirm."""
    taken: list[int] = []
    for _ in range(count):
        message = await group.receive(timeout=20)
        taken.append(int(message.data))
        message.confirm()
    return taken


class TestSharing:
    async def test_each_bucket_goes_to_the_member_named_by_the_ranking(
        self, writer: bmq.Queue, reader: bmq.Queue, another: bmq.Queue
    ) -> None:
        async with (
            reader.group("k", member="a", buckets=16, coordination="none") as a,
            another.group("k", member="b", buckets=16, coordination="none") as b,
        ):
            await post(writer, *range(-32, 32))
            owners = bmq.groups.owners(["a", "b"], 16)
            for group in (a, b):
                expected = [key for key in range(-32, 32) if owners[key % 16] == group.member]
                assert sorted(await take(group, len(expected))) == expected
                assert group.owned == {key % 16 for key in expected}
                assert group.receive_nowait() is None

    async def test_the_lowest_number_has_a_bucket(self, writer: bmq.Queue, reader: bmq.Queue) -> None:
        async with reader.group("k", buckets=16, coordination="none") as group:
            await post(writer, INT64_MIN, INT64_MIN + 5, 2**63 - 1)
            messages = [await group.receive(timeout=20) for _ in range(3)]
            assert {int(m.data): group.bucket_of(m) for m in messages} == {
                INT64_MIN: 0,
                INT64_MIN + 5: 5,
                2**63 - 1: 15,
            }

    async def test_keys_of_any_kind_use_the_property_set_by_post(
        self, writer: bmq.Queue, reader: bmq.Queue
    ) -> None:
        await writer.post(b"a", key="order-17")
        await writer.post_nowait(b"b", key=b"\xff", properties={"x": 1}, tags=["t"])
        await writer.post_many([bmq.PutMessage(b"c", key=-5), bmq.PutMessage(b"d", {"y": 2}, key="é")])
        async with reader.group(buckets=16, coordination="none") as group:
            got = {m.data: m for m in [await group.receive(timeout=20) for _ in range(4)]}
            for data, key in ((b"a", "order-17"), (b"b", b"\xff"), (b"c", -5), (b"d", "é")):
                assert got[data].properties["bmq_bucket"] == key_bucket(key)
                assert group.bucket_of(got[data]) == key_bucket(key) % 16
            assert got[b"b"].properties["x"] == 1
            assert got[b"b"].tags == {"t"}
            assert got[b"d"].properties["y"] == 2

    async def test_messages_without_a_key_are_in_no_bucket(
        self, writer: bmq.Queue, reader: bmq.Queue, another: bmq.Queue
    ) -> None:
        async with (
            reader.group("k", buckets=16, coordination="none") as a,
            another.group("k", buckets=16, coordination="none") as b,
        ):
            await writer.post_many([b"none"] * 4)
            for group in (a, b):
                messages = [await group.receive(timeout=20) for _ in range(2)]
                assert [group.bucket_of(message) for message in messages] == [None, None]
                assert not group.owned

    async def test_keyless_messages_stay_in_the_queue_without_a_consumer(
        self, writer: bmq.Queue, reader: bmq.Queue
    ) -> None:
        async with reader.group("k", keyless=False, buckets=16, coordination="none") as group:
            await writer.post(b"none")
            await post(writer, 1)
            assert await take(group, 1) == [1]
            assert group.receive_nowait() is None

    async def test_two_members_of_one_name_share_no_bucket(
        self, writer: bmq.Queue, reader: bmq.Queue, another: bmq.Queue
    ) -> None:
        async with (
            reader.group("k", member="twin", buckets=16, coordination="none") as one,
            another.group("k", member="twin", buckets=16, coordination="none") as two,
        ):
            await post(writer, *range(160))
            await eventually(lambda: sum(c.buffered for q in (reader, another) for c in q.consumers) > 100)
            received: list[set[int]] = []
            for group in (one, two):
                buckets: set[int] = set()
                while (message := group.receive_nowait()) is not None:
                    buckets.add(int(message.data) % 16)
                received.append(buckets)
            assert not received[0] & received[1]

    async def test_an_expression(self, writer: bmq.Queue, reader: bmq.Queue) -> None:
        vip = bmq.P("vip") == True  # noqa: E712
        async with reader.group("k", expression=vip, buckets=16, coordination="none") as group:
            await writer.post(b"1", properties={"k": 1, "vip": False})
            await writer.post(b"2", properties={"k": 1, "vip": True})
            assert await take(group, 1) == [2]

    async def test_messages_of_a_bucket_arrive_in_order(self, writer: bmq.Queue, reader: bmq.Queue) -> None:
        async with reader.group("k", buckets=4, coordination="none") as group:
            await post(writer, *range(2000))
            taken = await take(group, 2000)
        for bucket in range(4):
            assert [key for key in taken if key % 4 == bucket] == list(range(bucket, 2000, 4))


class TestHandover:
    async def test_leaving_member_finishes_its_messages_and_the_rest_comes_in_order(
        self, writer: bmq.Queue, reader: bmq.Queue, another: bmq.Queue
    ) -> None:
        assert bmq.groups.owners(["a", "b"], 1) == {0: "a"}
        first, second = (
            reader.group("k", buckets=1, member="a", coordination="none"),
            another.group("k", buckets=1, member="b", coordination="none"),
        )
        async with first:
            await post(writer, *range(100))
            async with await first.receive(timeout=20):
                leaving = asyncio.create_task(first.close())
                await second.open()
                await post(writer, *range(100, 200))
                assert not leaving.done()
            await leaving
        assert await take(second, 199) == list(range(1, 200))
        with pytest.raises(bmq.QueueClosed, match="has left the group"):
            await first.receive()
        await second.close()

    async def test_messages_returned_by_a_leaving_member_come_before_newer_ones(
        self, writer: bmq.Queue, reader: bmq.Queue, another: bmq.Queue
    ) -> None:
        first, second = (
            reader.group("k", buckets=1, member="a", coordination="none"),
            another.group("k", buckets=1, member="b", coordination="none"),
        )
        await first.open()
        await second.open()
        posted = 0
        stop = asyncio.Event()

        async def keep_posting() -> None:
            nonlocal posted
            while not stop.is_set():
                await post(writer, posted)
                posted += 1

        posting = asyncio.create_task(keep_posting())
        await eventually(lambda: posted > 50)
        await first.close()
        seen = posted
        await eventually(lambda: posted > seen + 50)
        stop.set()
        await posting
        assert await take(second, posted) == list(range(posted))
        await second.close()

    async def test_a_loop_ends_when_the_member_leaves(self, writer: bmq.Queue, reader: bmq.Queue) -> None:
        group = reader.group("k", buckets=16, coordination="none")
        taken: list[int] = []

        async def loop() -> None:
            async for message in group:
                taken.append(int(message.data))
                message.confirm()

        task = asyncio.create_task(loop())
        await post(writer, 1, 2, 3)
        await eventually(lambda: len(taken) == 3)
        await group.close()
        await task
        await group.close()
        assert reader.closed

    async def test_reconnect_drops_undelivered_messages_instead_of_duplicating_them(
        self, bmq_proxy: FaultProxy, bmq_broker: bmq.broker.Broker, bmq_connect: Connect, bmq_queue_uri: str
    ) -> None:
        happened: list[GroupEvent] = []
        writer = await (await bmq_connect(bmq_broker.uri)).open_queue(bmq_queue_uri, write=True)
        reader = await (await bmq_connect(reconnect_delays=lambda: iter([0.0] * 100))).open_queue(
            bmq_queue_uri, read=True
        )
        async with reader.group("k", buckets=2, on_event=happened.append, coordination="none") as group:
            await post(writer, *range(20))
            assert sorted(await take(group, 3))
            await eventually(lambda: sum(c.buffered for c in reader.consumers) >= 15)
            bmq_proxy.cut()
            await eventually(lambda: any(isinstance(event, Lost) for event in happened))
            assert not group.owned
            rest = await take(group, 17)
            assert group.receive_nowait() is None
            assert group.owned == {0, 1}
        assert len(set(rest)) == 17
        for bucket in (0, 1):
            keys = [key for key in rest if key % 2 == bucket]
            assert keys == sorted(keys)
        lost = [event for event in happened if isinstance(event, Lost)]
        assert {event.reason for event in lost[:2]} == {Reason.DISCONNECTED}


class TestHooks:
    async def test_load_before_the_first_message_and_drop_after_the_last(
        self, writer: bmq.Queue, reader: bmq.Queue
    ) -> None:
        said: list[str] = []
        loading = asyncio.Event()

        async def load(bucket: int) -> None:
            said.append(f"load {bucket}")
            if bucket == 1:
                await loading.wait()
            said.append(f"loaded {bucket}")

        def drop(bucket: int) -> None:
            said.append(f"drop {bucket}")

        async with reader.group(
            "k", on_assigned=load, on_revoked=drop, buckets=16, coordination="none"
        ) as group:
            await post(writer, 1, 2)
            assert await take(group, 1) == [2]  # bucket 1 is still being loaded
            assert group.owned == {2}
            loading.set()
            assert await take(group, 1) == [1]
            assert group.owned == {1, 2}
        assert said.index("loaded 1") > said.index("loaded 2")
        assert sorted(said[-2:]) == ["drop 1", "drop 2"]
        assert len(said) == 6

    async def test_quiet_bucket_counts_as_gone_unless_a_message_is_in_progress(
        self, writer: bmq.Queue, reader: bmq.Queue
    ) -> None:
        happened: list[GroupEvent] = []
        dropped: list[int] = []
        async with reader.group(
            "k",
            on_event=happened.append,
            on_revoked=dropped.append,
            idle_after=0.05,
            buckets=16,
            coordination="none",
        ) as group:
            await post(writer, 1, 2)
            messages = [await group.receive(timeout=20) for _ in range(2)]
            held = next(message for message in messages if message.data == b"1")
            next(message for message in messages if message.data == b"2").confirm()
            await eventually(lambda: Lost(2, Reason.IDLE, 0) in happened)
            await eventually(lambda: dropped == [2])
            assert group.owned == {1}
            assert group.unconfirmed == {1: 1}
            held.confirm()
            await eventually(lambda: dropped == [2, 1])
            await post(writer, 2)
            assert await take(group, 1) == [2]
            assert [event for event in happened if isinstance(event, Gained)].count(Gained(2)) == 2

    async def test_drop_waits_for_messages_in_progress(
        self, bmq_proxy: FaultProxy, bmq_connect: Connect, bmq_queue_uri: str
    ) -> None:
        dropped: list[int] = []
        session = await bmq_connect(reconnect_delays=lambda: iter([0.0] * 100))
        reader = await session.open_queue(bmq_queue_uri, read=True, write=True)
        lost = asyncio.Event()
        async with reader.group(
            "k",
            buckets=1,
            on_revoked=dropped.append,
            on_event=lambda e: lost.set() if isinstance(e, Lost) else None,
            coordination="none",
        ) as group:
            await post(reader, 1)
            message = await group.receive(timeout=20)
            bmq_proxy.cut()
            await asyncio.wait_for(lost.wait(), 20)
            await reader.flush()
            assert not dropped
            message.confirm()
            assert group.receive_nowait() is None
            await eventually(lambda: dropped == [0])

    async def test_exceptions_of_hooks_reach_the_receiver(self, writer: bmq.Queue, reader: bmq.Queue) -> None:
        def load(bucket: int) -> None:
            raise LookupError(f"no state of {bucket}")

        async with reader.group("k", on_assigned=load, buckets=16, coordination="none") as group:
            await post(writer, 3)
            with pytest.raises(LookupError, match="no state of 3"):
                await group.receive(timeout=20)

    async def test_settle_lets_a_bucket_wait(self, writer: bmq.Queue, reader: bmq.Queue) -> None:
        async with reader.group("k", settle=0.1, buckets=16, coordination="none") as group:
            now = asyncio.get_running_loop().time
            began = now()
            await post(writer, 1)
            await take(group, 1)
            assert now() - began >= 0.1


class TestWindows:
    async def test_full_bucket_is_logged(
        self, writer: bmq.Queue, reader: bmq.Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        happened: list[GroupEvent] = []
        async with reader.group(
            "k", buckets=2, on_event=happened.append, max_unconfirmed_messages=10, coordination="none"
        ) as group:
            assert "a window of 10 messages for each bucket" in caplog.text
            await post(writer, *range(0, 40, 2))
            held = [await group.receive(timeout=20)]
            await eventually(lambda: reader.consumers[0].buffered + len(held) >= 10)
            while (message := group.receive_nowait()) is not None:
                held.append(message)
            held += [await self._next(group, held)]
            await eventually(lambda: any(isinstance(event, Full) for event in happened))
            assert "puts messages aside" in caplog.text
            full = next(event for event in happened if isinstance(event, Full))
            assert (full.bucket, full.window) == (0, 10)
            assert full.unconfirmed >= 8

    @staticmethod
    async def _next(group: bmq.groups.Group, held: list[bmq.Message]) -> bmq.Message:
        for message in held[:5]:
            message.confirm()
        return await group.receive(timeout=20)

    async def test_the_default_windows_cause_no_warning(
        self, reader: bmq.Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            async with reader.group("k", buckets=16, coordination="none"):
                pass
        assert not caplog.records


class TestReceiving:
    async def test_receive_times_out(self, reader: bmq.Queue) -> None:
        async with reader.group("k", buckets=16, coordination="none") as group:
            with pytest.raises(bmq.TimedOut, match=r"arrived within 0\.01 s"):
                await group.receive(timeout=0.01)

    async def test_cancelled_receive_loses_no_message(self, writer: bmq.Queue, reader: bmq.Queue) -> None:
        async with reader.group("k", buckets=16, coordination="none") as group:
            for number in range(20):
                receiving = asyncio.create_task(group.receive())
                await asyncio.sleep(0)
                await post(writer, number)
                receiving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    message = await receiving
                    assert int(message.data) == number
                    continue
                assert await take(group, 1) == [number]


class TestMisuse:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"buckets": 0}, "buckets must be an integer from 1 to 512"),
            ({"buckets": 513}, "buckets must be an integer from 1 to 512"),
            ({"weight": 0.0}, "weight must be a number, at least 0.01"),
            ({"weight": 101.0}, "weight must be a number, at least 0.01"),
            ({"settle": -1.0}, "settle must be a number of seconds, at least 0"),
            ({"idle_after": 0.0}, "idle_after must be a number of seconds, more than 0"),
        ],
    )
    async def test_arguments(self, reader: bmq.Queue, arguments: dict[str, float], says: str) -> None:
        with pytest.raises(bmq.UsageError, match=says):
            reader.group("k", **arguments, coordination="none")  # type: ignore[arg-type]

    async def test_a_queue_opened_for_writing(self, writer: bmq.Queue) -> None:
        with pytest.raises(bmq.UsageError, match="not opened for reading"):
            writer.group("k", buckets=16, coordination="none")

    async def test_a_queue_with_another_subscription(self, reader: bmq.Queue) -> None:
        async with reader.subscribe("x == 1"):
            with pytest.raises(bmq.UsageError, match="has other subscriptions"):
                await reader.group("k", buckets=16, coordination="none").open()

    async def test_a_message_of_another_queue_is_refused(
        self, writer: bmq.Queue, reader: bmq.Queue, another: bmq.Queue
    ) -> None:
        await post(writer, 1)
        message = await reader.receive(timeout=20)
        with pytest.raises(bmq.UsageError, match="not received from this group"):
            another.group("k", buckets=16, coordination="none").bucket_of(message)

    async def test_a_closed_queue_ends_the_group(self, reader: bmq.Queue) -> None:
        group = reader.group("k", buckets=16, coordination="none")
        receiving = asyncio.create_task(group.receive())
        await eventually(lambda: reader.consumers)
        await reader.session.close()
        with pytest.raises(bmq.QueueClosed):
            await receiving
