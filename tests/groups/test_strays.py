# SPDX-License-Identifier: Apache-2.0
"""Messages in no bucket, and members with different options: no member stops, and the log reports them."""

from __future__ import annotations

from typing import Any

import pytest

import bmq
from tests.groups.conftest import Open
from tests.waiting import eventually

#: A key outside of all buckets, and its name in the log.
FORGED: list[tuple[Any, str]] = [("x", "text"), ("", "text"), (True, "true"), (False, "false")]


async def taken(group: bmq.groups.Group, count: int) -> list[tuple[bytes, int | None]]:
    """Receive and confirm."""
    got: list[tuple[bytes, int | None]] = []
    for _ in range(count):
        message = await group.receive(timeout=10)
        got.append((message.data, group.bucket_of(message)))
        message.confirm()
    return got


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


async def test_messages_with_an_unusable_key_are_handed_out_without_a_bucket_and_logged_once(
    writer: bmq.Queue, reader: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    forged = [*FORGED, (-5, "a negative number")]
    for value, _ in forged * 3:
        await writer.post(b"forged", properties={"bmq_bucket": value})
    for value in (10**9, 2**40, b"\x01"):
        await writer.post(b"%r" % value, properties={"bmq_bucket": value})
    await writer.post(b"good", key="k")
    async with reader.group(buckets=16) as group:
        got = await taken(group, 3 * len(forged) + 4)
        assert got.count((b"forged", None)) == 3 * len(forged)
        assert dict(got)[b"1000000000"] == 10**9 % 16
        assert dict(got)[b"good"] is not None
        assert group.stats().unusable == {"text": 6, "true": 3, "false": 3, "a negative number": 3}
    lines = warnings(caplog)
    assert len(lines) == 4
    assert all("bmq_bucket" in line and "check its producer" in line for line in lines)


@pytest.mark.parametrize("buckets", [3, 16])
async def test_a_key_property_of_any_value_is_handed_out_once(
    writer: bmq.Queue, reader: bmq.Queue, buckets: int
) -> None:
    values = [*(value for value, _ in FORGED), *range(-(2**63), -(2**63) + 20), 5]
    for value in values:
        await writer.post(b"%d" % values.index(value), properties={"k": value})
    async with reader.group("k", buckets=buckets) as group:
        assert len(await taken(group, len(values))) == len(values)
        assert group.receive_nowait() is None


async def test_ten_thousand_strays_do_not_block_a_good_message(
    writer: bmq.Queue, reader: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    strays = (bmq.PutMessage(b"forged", {"k": FORGED[number % 4][0]}) for number in range(10_000))
    (await writer.post_many(strays)).raise_for_failures()
    await writer.post(b"good", properties={"k": 1})
    async with reader.group("k", keyless=False, buckets=16) as group:
        assert await taken(group, 1) == [(b"good", 1)]
        await eventually(lambda: group.stats().strays_held == 10_000, 20)
    assert len(warnings(caplog)) == 3


async def test_a_function_receives_strays_and_these_are_confirmed(
    writer: bmq.Queue, open_reader: Open
) -> None:
    seen: list[object] = []

    async def put_aside(message: bmq.Message) -> None:
        seen.append(message.properties.get("k"))

    for value in ("x", True):
        await writer.post(b"stray", properties={"k": value})
    await writer.post(b"none")
    await writer.post(b"good", properties={"k": 1})
    async with (await open_reader()).group("k", keyless=False, strays=put_aside, buckets=16) as group:
        assert await taken(group, 1) == [(b"good", 1)]
        await eventually(lambda: group.stats().strays_handled == 3)
    assert sorted(seen, key=str) == [None, True, "x"]
    async with (await open_reader()).group("k", buckets=16) as group:
        assert group.receive_nowait() is None


async def test_a_failing_function_for_strays_holds_the_message_and_stops_no_member(
    writer: bmq.Queue, reader: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: bmq.Message) -> None:
        raise LookupError("no")

    await writer.post_many([b"none"] * 5)
    await writer.post(b"good", properties={"k": 1})
    async with reader.group("k", keyless=False, strays=fail, buckets=16) as group:
        assert await taken(group, 1) == [(b"good", 1)]
        await eventually(lambda: group.stats().strays_held == 5)
    assert [each.levelname for each in caplog.records].count("ERROR") == 1


@pytest.mark.parametrize("only_for_one", [{}, {"k": "x"}], ids=["no key", "text keys"])
async def test_a_member_with_other_options_continues_when_one_leaves(
    writer: bmq.Queue, open_reader: Open, only_for_one: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with (await open_reader()).group("k") as one:
        await writer.post_many(bmq.PutMessage(b"old", only_for_one) for _ in range(20))
        for _ in range(20):
            await one.receive(timeout=10)
        other = await (await open_reader()).group("k", keyless=False).open()
    (await writer.post_many(bmq.PutMessage(b"new", {"k": n}) for n in range(50))).raise_for_failures()
    assert {data for data, _ in await taken(other, 50)} == {b"new"}
    assert other.stats().strays_held == 20
    (line,) = [each for each in warnings(caplog) if "not delivered by this member" in each]
    assert "all members need the same key, buckets, expression and keyless" in line
    await other.close()


async def test_strays_can_be_left_to_other_consumers(writer: bmq.Queue, open_reader: Open) -> None:
    async with (await open_reader()).group("k", expression="x == 1", strays="leave", buckets=16) as group:
        await writer.post(b"other", properties={"k": 1, "x": 2})
        await writer.post(b"mine", properties={"k": 1, "x": 1})
        assert await taken(group, 1) == [(b"mine", 1)]
        assert group.stats().strays_held == 0
        async with (await open_reader()).subscribe("x == 2") as other:
            assert (await other.receive(timeout=10)).data == b"other"
