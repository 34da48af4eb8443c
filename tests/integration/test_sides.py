# SPDX-License-Identifier: Apache-2.0
"""One session that reads a queue in one place and writes to it in another; confirmations by GUID."""

from __future__ import annotations

import pytest

import bmq
from tests.integration.steps import Connect, NewUri, left_in, payloads, take


@pytest.mark.parametrize("reader_first", [True, False])
async def test_a_queue_is_read_and_written_by_separate_objects(
    bmq_session: bmq.Session, bmq_queue_uri: str, reader_first: bool
) -> None:
    async def open_side(reading: bool) -> bmq.Queue:
        return await bmq_session.open_queue(bmq_queue_uri, read=reading, write=not reading)

    first, second = await open_side(reader_first), await open_side(not reader_first)
    reader, writer = (first, second) if reader_first else (second, first)
    assert (reader.readable, reader.writable) == (True, False)
    assert (writer.readable, writer.writable) == (False, True)
    assert set(bmq_session.queues) == {reader, writer}
    for number in range(10):
        await writer.post(b"%d" % number)
    assert await payloads(reader, 10) == [b"%d" % number for number in range(10)]


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
        reader = await bmq_session.open_queue(bmq_queue_uri, read=True)
        assert await payloads(reader, 2) == [b"a", b"b"]
    else:
        await writer.close()
        writer = await bmq_session.open_queue(bmq_queue_uri, write=True)
        await writer.post(b"b")
        assert await payloads(reader, 1) == [b"b"]
    await reader.close()
    await writer.close()
    assert bmq_session.queues == []
    assert await left_in(bmq_connect, bmq_queue_uri) == [b"a"] * (closed_first == "writer")


async def test_messages_are_confirmed_by_guid_also_from_another_session(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True, write=True)
    for number in range(5):
        await queue.post(b"%d" % number)
    messages = await take(queue, 4)
    successor = await bmq_session.open_queue(bmq_queue_uri, read=True, default_subscription=False)
    successor.confirm(messages[0].guid)
    await successor.close()
    queue.confirm(messages[1], messages[2].guid)
    assert messages[1].confirmed
    await queue.close()
    assert await left_in(bmq_connect, bmq_queue_uri) == [b"3", b"4"]


async def test_confirm_refuses_other_values(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> None:
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
