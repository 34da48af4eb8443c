# SPDX-License-Identifier: Apache-2.0
"""One member and its buckets, at an embedded broker."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

import bmq
from bmq.groups import Full, GroupEvent, Lost, Reason, key_bucket
from bmq.testing import FaultProxy
from tests.groups.conftest import Connect, Open, post
from tests.sweeps import sweep
from tests.waiting import eventually


async def take(group: bmq.groups.Group, count: int) -> list[int]:
    """Receive and confirm."""
    taken: list[int] = []
    for _ in range(count):
        message = await group.receive(timeout=20)
        taken.append(int(message.data))
        message.confirm()
    return taken


class TestSharing:
    async def test_keys_of_any_kind_use_the_property_set_by_post(
        self, writer: bmq.Queue, reader: bmq.Queue
    ) -> None:
        await writer.post(b"a", key="order-17")
        await writer.post_nowait(b"b", key=b"\xff", properties={"x": 1}, tags=["t"])
        await writer.post_many([bmq.PutMessage(b"c", key=-5), bmq.PutMessage(b"d", {"y": 2}, key="é")])
        async with reader.group(buckets=16) as group:
            got = {m.data: m for m in [await group.receive(timeout=20) for _ in range(4)]}
            for data, key in ((b"a", "order-17"), (b"b", b"\xff"), (b"c", -5), (b"d", "é")):
                assert got[data].properties["bmq_bucket"] == key_bucket(key)
                assert group.bucket_of(got[data]) == key_bucket(key) % 16
            assert got[b"b"].properties["x"] == 1
            assert got[b"b"].tags == {"t"}
            assert got[b"d"].properties["y"] == 2

    async def test_messages_without_a_key_are_in_no_bucket(
        self, writer: bmq.Queue, open_reader: Open
    ) -> None:
        one, two = [(await open_reader()).group("k", buckets=16) for _ in range(2)]
        async with one as a, two as b:
            await writer.post_many([b"none"] * 4)
            for group in (a, b):
                messages = [await group.receive(timeout=20) for _ in range(2)]
                assert [group.bucket_of(message) for message in messages] == [None, None]

    async def test_an_expression(self, writer: bmq.Queue, reader: bmq.Queue) -> None:
        vip = bmq.P("vip") == True  # noqa: E712
        async with reader.group("k", expression=vip, buckets=16) as group:
            await writer.post(b"1", properties={"k": 1, "vip": False})
            await writer.post(b"2", properties={"k": 1, "vip": True})
            assert await take(group, 1) == [2]


class TestHandover:
    async def test_leaving_member_finishes_its_messages_and_the_rest_comes_in_order(
        self, writer: bmq.Queue, open_reader: Open
    ) -> None:
        first, second = [(await open_reader()).group("k", buckets=1) for _ in range(2)]
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

    async def test_reconnect_drops_undelivered_messages_instead_of_duplicating_them(
        self, bmq_proxy: FaultProxy, bmq_broker: bmq.broker.Broker, bmq_connect: Connect, bmq_queue_uri: str
    ) -> None:
        happened: list[GroupEvent] = []
        writer = await (await bmq_connect(bmq_broker.uri)).open_queue(bmq_queue_uri, write=True)
        reader = await (await bmq_connect(reconnect_delays=lambda: iter([0.0] * 100))).open_queue(
            bmq_queue_uri, read=True
        )
        async with reader.group("k", buckets=2, lease=0.5, on_event=happened.append) as group:
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
        assert {each.reason for each in happened if isinstance(each, Lost)} > {Reason.DISCONNECTED}


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

        async with reader.group("k", on_assigned=load, on_revoked=drop, buckets=3) as group:
            await post(writer, 1, 2)
            assert await take(group, 1) == [2]  # bucket 1 is still being loaded
            assert group.owned == {0, 2}
            loading.set()
            assert await take(group, 1) == [1]
            assert group.owned == {0, 1, 2}
        assert said.index("loaded 1") > said.index("loaded 2")
        assert sorted(said[-3:]) == ["drop 0", "drop 1", "drop 2"]
        assert len(said) == 9

    async def test_exceptions_of_hooks_reach_the_receiver(self, writer: bmq.Queue, reader: bmq.Queue) -> None:
        def load(bucket: int) -> None:
            raise LookupError(f"no state of {bucket}")

        async with reader.group("k", on_assigned=load, buckets=16) as group:
            await post(writer, 3)
            with pytest.raises(LookupError, match="no state of "):
                await group.receive(timeout=20)


class TestWindows:
    async def test_full_bucket_is_logged(
        self, writer: bmq.Queue, reader: bmq.Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        happened: list[GroupEvent] = []
        options: dict[str, Any] = {"on_event": happened.append, "max_unconfirmed_messages": 10}
        async with reader.group("k", buckets=2, **options) as group:
            await post(writer, *range(0, 40, 2))
            held = [await group.receive(timeout=20) for _ in range(20)]
            await post(writer, 40)
            held.append(await group.receive(timeout=20))
            await eventually(lambda: any(isinstance(event, Full) for event in happened))
        assert "messages unconfirmed" in caplog.text
        full = next(event for event in happened if isinstance(event, Full))
        assert (full.bucket, full.window) == (0, 10)
        assert full.unconfirmed >= 8


async def test_receive_times_out(reader: bmq.Queue) -> None:
    async with reader.group("k", buckets=16) as group:
        with pytest.raises(bmq.TimedOut, match=r"arrived within 0\.01 s"):
            await group.receive(timeout=0.01)


class TestMisuse:
    @sweep(
        "arguments, says",
        [
            ({"buckets": 0}, "buckets must be an integer from 1 to 512"),
            ({"buckets": 513}, "buckets must be an integer from 1 to 512"),
            ({"weight": 0.0}, "weight must be a number, at least 0.01"),
            ({"weight": 101.0}, "weight must be a number, at least 0.01"),
            ({"lease": 0}, "lease"),
            ({"control_queue": ""}, "control_queue"),
            ({"control_queue": "bmq://d/q?id=a"}, "control_queue"),
            *(({"lease": 0.5, "take_over_after": each}, "take_over_after") for each in (0, -1, 1.4, "2")),
            *(({"strays": each}, "strays") for each in ("confirm", "", None, 3)),
        ],
    )
    async def test_arguments(self, reader: bmq.Queue, arguments: dict[str, Any], says: str) -> None:
        with pytest.raises(bmq.UsageError, match=says):
            reader.group("k", **arguments)

    async def test_another_queue_or_message(self, writer: bmq.Queue, open_reader: Open) -> None:
        with pytest.raises(bmq.UsageError, match="not opened for reading"):
            writer.group("k", buckets=16)
        await post(writer, 1)
        plain, reader = await open_reader(), await open_reader()
        message = await plain.receive(timeout=20)
        with pytest.raises(bmq.UsageError, match="not received from this group"):
            reader.group("k", buckets=16).bucket_of(message)
        async with reader.subscribe("x == 1"):
            with pytest.raises(bmq.UsageError, match="has other subscriptions"):
                await reader.group("k", buckets=16).open()


async def test_no_bucket_has_room_when_it_is_subscribed_or_when_the_member_leaves(
    bmq_proxy: FaultProxy, reader: bmq.Queue
) -> None:
    """Another member may own the bucket, also after a lost connection; and a replica delivers what fits."""
    sent = bytearray()
    core = reader._connection.core  # the requests themselves: no public name shows them
    data_to_send = core.data_to_send

    def recorded(*arguments: float) -> list[bytes]:
        pieces = data_to_send(*arguments)
        sent.extend(b"".join(pieces))
        return pieces

    core.data_to_send = recorded  # type: ignore[method-assign, assignment]
    async with reader.group("k", buckets=2, lease=0.5) as group:
        await eventually(lambda: len(group.owned) == 2)
        fences = [group.fence(bucket) for bucket in range(2)]
        bmq_proxy.cut()
        await eventually(lambda: len(group.owned) == 2 and group.fence(0) not in fences)
    for connection in sent.split(b"clientIdentity"):
        windows: dict[str, list[int]] = {}
        for found in re.finditer(rb'(?<="streamParameters":)\{', connection):
            text = connection[found.start() :].decode("latin-1")
            for each in json.JSONDecoder().raw_decode(text)[0].get("subscriptions", ()):
                window = each["consumers"][0].get("maxUnconfirmedMessages", 0)
                windows.setdefault(each["expression"].get("text", ""), []).append(window)
        buckets = [each for text, each in windows.items() if "% 2" in text and "k" in text]
        assert len(buckets) == 2, windows
        assert all(each[0] == 0 and max(each) > 0 for each in buckets), windows
    assert [each[-1] for each in windows.values()] == [0] * len(windows)
