# SPDX-License-Identifier: Apache-2.0
"""Messages in no bucket, and members with different options: no member stops, and the log reports them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import bmq
from tests.waiting import eventually

Connect = Callable[..., Awaitable[bmq.Session]]
Open = Callable[[], Awaitable[bmq.Queue]]

#: A key outside of all buckets, and its name in the log.
FORGED: list[tuple[Any, str]] = [("x", "text"), ("", "text"), (True, "true"), (False, "false")]


@pytest.fixture
def open_reader(bmq_connect: Connect, bmq_queue_uri: str) -> Open:
    async def open_reader() -> bmq.Queue:
        return await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)

    return open_reader


async def taken(group: bmq.groups.Group, count: int) -> list[tuple[bytes, int | None]]:
    """Receive and confirm."""
    got: list[tuple[bytes, int | None]] = []
    for _ in range(count):
        message = await group.receive(timeout=10)
        got.append((message.data, group.bucket_of(message)))
        message.confirm()
    return got


class TestUnusableKeys:
    async def test_strays_are_handed_out_without_a_bucket_and_logged_once(
        self, writer: bmq.Queue, open_reader: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        forged = [*FORGED, (-5, "a negative number")]
        for value, _ in forged * 3:
            await writer.post(b"forged", properties={"bmq_bucket": value})
        for value in (10**9, 2**40, b"\x01"):
            await writer.post(b"%r" % value, properties={"bmq_bucket": value})
        await writer.post(b"good", key="k")
        async with (await open_reader()).group(buckets=16) as group:
            got = await taken(group, 3 * len(forged) + 4)
            assert got.count((b"forged", None)) == 3 * len(forged)
            assert dict(got)[b"1000000000"] == 10**9 % 16
            assert dict(got)[b"good"] is not None
            assert group.stats().unusable == {"text": 6, "true": 3, "false": 3, "a negative number": 3}
        lines = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert len(lines) == 4
        assert all("bmq_bucket" in line and "check its producer" in line for line in lines)

    @pytest.mark.parametrize("buckets", [3, 16])
    async def test_a_key_property_of_another_type(
        self, writer: bmq.Queue, open_reader: Open, buckets: int
    ) -> None:
        values = [*(value for value, _ in FORGED), *range(-(2**63), -(2**63) + 20), 5]
        for value in values:
            await writer.post(b"%d" % values.index(value), properties={"k": value})
        async with (await open_reader()).group("k", buckets=buckets) as group:
            assert len(await taken(group, len(values))) == len(values)
            assert group.receive_nowait() is None

    async def test_ten_thousand_strays_do_not_block_a_good_message(
        self, writer: bmq.Queue, open_reader: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        report = await writer.post_many(
            bmq.PutMessage(b"forged", {"k": FORGED[number % 4][0]}) for number in range(10_000)
        )
        report.raise_for_failures()
        await writer.post(b"good", properties={"k": 1})
        async with (await open_reader()).group("k", keyless=False, buckets=16) as group:
            assert await taken(group, 1) == [(b"good", 1)]
            await eventually(lambda: group.stats().strays_held == 10_000, 20)
        assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 3

    async def test_a_function_receives_strays_without_keyless(
        self, writer: bmq.Queue, open_reader: Open, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        """As a dead letter queue would be used."""
        aside = await bmq_session.open_queue(bmq_queue_uri + ".aside", read=True, write=True)

        async def put_aside(message: bmq.Message) -> None:
            await aside.post(message.data, properties=message.properties)

        for value in ("x", True):
            await writer.post(repr(value).encode(), properties={"k": value})
        await writer.post(b"none")
        await writer.post(b"good", properties={"k": 1})
        async with (await open_reader()).group("k", keyless=False, strays=put_aside, buckets=16) as group:
            assert await taken(group, 1) == [(b"good", 1)]
            await eventually(lambda: group.stats().strays_handled == 3)
        letters = [await aside.receive(timeout=10) for _ in range(3)]
        assert {letter.data for letter in letters} == {b"'x'", b"True", b"none"}
        async with (await open_reader()).group("k", buckets=16) as group:
            assert group.receive_nowait() is None  # the strays were confirmed

    async def test_failing_strays_function_holds_the_message_and_stops_no_member(
        self, writer: bmq.Queue, open_reader: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(message: bmq.Message) -> None:
            raise LookupError("no")

        await writer.post_many([b"none"] * 5)
        await writer.post(b"good", properties={"k": 1})
        async with (await open_reader()).group("k", keyless=False, strays=fail, buckets=16) as group:
            assert await taken(group, 1) == [(b"good", 1)]
            await eventually(lambda: group.stats().strays_held == 5)
        assert [each.levelname for each in caplog.records].count("ERROR") == 1


#: Options of the leaving member, options of the remaining member, a message for the leaving member only.
DIFFERENCES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "keyless": ({}, {"keyless": False}, {}),
    "text keys": ({}, {"keyless": False}, {"k": "x"}),
}


class TestOtherOptions:
    @pytest.mark.parametrize("name", DIFFERENCES)
    async def test_other_member_continues_when_one_leaves(
        self, writer: bmq.Queue, open_reader: Open, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        leaver, stays, only_for_one = DIFFERENCES[name]
        async with (await open_reader()).group(**{"key": "k", **leaver}) as one:
            await writer.post_many(bmq.PutMessage(b"old", only_for_one) for _ in range(20))
            for _ in range(20):
                await one.receive(timeout=10)
            other = await (await open_reader()).group(**{"key": "k", **stays}).open()
        wanted = [bmq.PutMessage(b"new", {"k": n, "j": n, "x": 1}) for n in range(50)]
        (await writer.post_many(wanted)).raise_for_failures()
        got: list[bytes] = []
        while got.count(b"new") < 50:
            got += [data for data, _ in await taken(other, 1)]
        held = other.stats().strays_held
        assert got.count(b"old") + held == 20
        warnings = [each.message for each in caplog.records if "not delivered by this member" in each.message]
        assert len(warnings) == bool(held)
        assert all(
            "all members need the same key, buckets, expression and keyless" in each for each in warnings
        )
        await other.close()

    async def test_strays_can_be_left_to_other_consumers(self, writer: bmq.Queue, open_reader: Open) -> None:
        async with (await open_reader()).group("k", expression="x == 1", strays="leave", buckets=16) as group:
            await writer.post(b"other", properties={"k": 1, "x": 2})
            await writer.post(b"mine", properties={"k": 1, "x": 1})
            assert await taken(group, 1) == [(b"mine", 1)]
            assert group.stats().strays_held == 0
            async with (await open_reader()).subscribe("x == 2") as other:
                assert (await other.receive(timeout=10)).data == b"other"
