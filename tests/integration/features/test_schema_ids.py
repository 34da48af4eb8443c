# SPDX-License-Identifier: Apache-2.0
"""A producer that reuses a schema id for another sequence of properties: consumers read the right properties.

A broker passes ids on, and marks a changed meaning with a bit. A redelivered or delayed message can arrive
    with an id reused in the meantime.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import bmq
from bmq.wire.constants import Compression, PutFlags
from bmq.wire.message import join_application_data
from bmq.wire.properties import encode_properties
from bmq.wire.put import encode_put
from tests.fakes.client import SocketClient, dial
from tests.integration.steps import Connect, HasUri, take

#: Some have names and values of equal lengths, and therefore equal headers; neighbours differ.
SEQUENCES: list[dict[str, Any]] = [
    {"ab": 1, "cd": 2},
    {"xy": 3, "zw": 4},
    {"ab": "text", "cd": 5},
    {"cd": 6, "xy": 7},
    {"a": 1, "b": 2, "c": 3},
    {"ab": 8, "cd": 9},
]
INTRODUCED, KNOWN = 3, 2
"""The id 1 on the wire: as it is introduced, or once more for another sequence; and once it is known."""


def post(raw: SocketClient, number: int, properties: dict[str, Any], schema_id: int) -> None:
    area = encode_properties(properties, new=True)
    data, used = join_application_data(b"%d" % number, area, new=True, compression=Compression.NONE)
    flags = PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES
    raw.put_encoded(encode_put(0, raw.guids.next(0), data, flags, schema_id, used))


async def post_all(raw: SocketClient) -> list[dict[str, Any]]:
    """Each sequence three times under one id, introduced again at each change of the sequence."""
    posted: list[dict[str, Any]] = []
    for properties in SEQUENCES:
        for schema_id in (INTRODUCED, KNOWN, KNOWN):
            post(raw, len(posted), properties, schema_id)
            posted.append(properties)
    assert [ack.status for ack in await raw.acks(len(posted))] == [0] * len(posted)
    return posted


@pytest.fixture
async def raw(bmq_broker: HasUri, bmq_queue_uri: str) -> AsyncIterator[SocketClient]:
    """A producer, with the queue as qId 0."""
    async with dial(bmq_broker.uri) as client:
        await client.negotiate()
        await client.open(bmq_queue_uri, write=True)
        yield client


def read(messages: list[bmq.Message]) -> dict[int, dict[str, Any]]:
    return {int(message.data): dict(message.properties) for message in messages}


@pytest.mark.statement("4.15")
@pytest.mark.parametrize("when", ["while it is read", "while it waits"])
async def test_a_reused_schema_id_is_read_correctly(
    raw: SocketClient, bmq_connect: Connect, bmq_queue_uri: str, when: str
) -> None:
    first = await bmq_connect()
    if when == "while it waits":
        posted = await post_all(raw)
        queue = await first.open_queue(bmq_queue_uri, read=True, default_subscription=True)
    else:
        queue = await first.open_queue(bmq_queue_uri, read=True, default_subscription=True)
        posted = await post_all(raw)
    expected = dict(enumerate(posted))
    assert read(await take(queue, len(posted))) == expected
    # Redelivered to a new session, together with messages of the new meaning.
    other = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True, default_subscription=True)
    await queue.close()
    more = {"late": 1}
    post(raw, len(posted), more, INTRODUCED)
    found = read(await take(other, len(posted) + 1))
    assert found == {**expected, len(posted): more}


@pytest.mark.statement("4.15")
async def test_a_filter_follows_a_reused_schema_id(
    raw: SocketClient, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    queue = await bmq_session.open_queue(
        bmq_queue_uri, read=True, subscriptions=["xy > 0", "exists(ab) && cd > 0", "exists(a)"]
    )
    xy, ab, a = queue.consumers
    posted = await post_all(raw)
    for consumer, wanted in ((xy, "xy"), (ab, "ab"), (a, "a")):
        expected = {number: given for number, given in enumerate(posted) if wanted in given}
        assert read(await take(consumer, len(expected))) == expected


@pytest.mark.statement("4.15")
async def test_properties_are_read_by_name_for_any_schema_id(
    raw: SocketClient, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    """A producer breaks the rule: another sequence under a known id, without the mark."""
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, default_subscription=True)
    for number, properties in enumerate(SEQUENCES):
        post(raw, number, properties, KNOWN)
    assert read(await take(queue, len(SEQUENCES))) == dict(enumerate(SEQUENCES))
