# SPDX-License-Identifier: Apache-2.0
"""One session that reads a queue in one place and writes to it in another."""

from __future__ import annotations

import pytest

import bmq
from tests.integration.steps import Connect, NewUri, left_in, payloads


@pytest.mark.parametrize("reader_first", [True, False])
async def test_a_queue_is_read_and_written_by_separate_objects(
    bmq_session: bmq.Session, bmq_queue_uri: str, reader_first: bool
) -> None:
    async def open_side(reading: bool) -> bmq.Queue:
        return await bmq_session.open_queue(bmq_queue_uri, read=reading, write=not reading)

    first = await open_side(reader_first)
    second = await open_side(not reader_first)
    reader, writer = (first, second) if reader_first else (second, first)
    assert (reader.readable, reader.writable) == (True, False)
    assert (writer.readable, writer.writable) == (False, True)
    assert set(bmq_session.queues) == {reader, writer}
    for number in range(10):
        await writer.post(b"%d" % number)
    assert await payloads(reader, 10) == [b"%d" % number for number in range(10)]
    with pytest.raises(bmq.UsageError, match="not opened for writing"):
        await reader.post(b"x")


@pytest.mark.parametrize("closed_first", ["reader", "writer"])
async def test_closing_one_side_leaves_the_other(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str, closed_first: str
) -> None:
    reader = await bmq_session.open_queue(bmq_queue_uri, read=True)
    writer = await bmq_session.open_queue(bmq_queue_uri, write=True)
    await writer.post(b"a")
    assert (await reader.receive(20)).data == b"a"
    if closed_first == "reader":
        await reader.close()
        await writer.post(b"b")
        again = await bmq_session.open_queue(bmq_queue_uri, read=True)
        assert await payloads(again, 2) == [b"a", b"b"]
        await again.close()
        await writer.close()
    else:
        await writer.close()
        again = await bmq_session.open_queue(bmq_queue_uri, write=True)
        await again.post(b"b")
        assert await payloads(reader, 1) == [b"b"]
        await reader.close()
        await again.close()
        assert await left_in(bmq_connect, bmq_queue_uri) == [b"a"]
    assert bmq_session.queues == []


class TestConfirmingByGuid:
    async def test_a_guid_of_another_session_is_confirmed(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        first = await bmq_connect()
        queue = await first.open_queue(bmq_queue_uri, read=True, write=True)
        acks = [await queue.post(b"%d" % number) for number in range(3)]
        done = await queue.receive(20)
        assert done.guid == acks[0].guid
        successor = await bmq_session.open_queue(bmq_queue_uri, read=True, default_subscription=False)
        successor.confirm(done.guid)
        await successor.close()
        await queue.close()
        assert await left_in(bmq_connect, bmq_queue_uri) == [b"1", b"2"]

    async def test_messages_and_guids_are_confirmed_together(
        self, bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
    ) -> None:
        queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
        for number in range(3):
            await queue.post(b"%d" % number)
        messages = [await queue.receive(20) for _ in range(3)]
        queue.confirm(messages[0], messages[1].guid)
        assert messages[0].confirmed
        await queue.close()
        assert await left_in(bmq_connect, bmq_queue_uri) == [b"2"]

    async def test_confirm_refuses_other_values(
        self, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        queue = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
        ack = await queue.post(b"a")
        for wrong in (bytes.fromhex(ack.guid), "4" + "a" * 31, ack, 5, "0" * 32):
            with pytest.raises(bmq.UsageError, match="GUID"):
                queue.confirm(wrong)  # type: ignore[arg-type]
            with pytest.raises(bmq.UsageError, match="GUID"):
                await queue.post(b"b", guid=wrong)  # type: ignore[arg-type]
        with pytest.raises(bmq.UsageError, match=r"guid\.hex\(\)\.upper\(\)"):
            queue.confirm(bytes.fromhex(ack.guid))  # type: ignore[arg-type]
        message = await queue.receive(20)
        other = await bmq_session.open_queue(bmq_new_queue_uri(), read=True)
        with pytest.raises(bmq.UsageError, match="belongs to another queue"):
            other.confirm(message)
        writer = await bmq_session.open_queue(bmq_new_queue_uri(), write=True)
        with pytest.raises(bmq.UsageError, match="not opened for reading"):
            writer.confirm(message)
        assert await queue.post(b"c", guid="00000000000000000000000000000A0F")
        assert await payloads(queue, 1) == [b"c"]
