# SPDX-License-Identifier: Apache-2.0
"""Joined events have the same messages, in the same order, and the same first error."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.errors import ProtocolError
from bmq.wire.ack import encode_acks, iter_acks
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, Event, pack_event_header, read_event
from bmq.wire.join import join_events
from bmq.wire.push import decode_pushes
from tests.hostile import damaged
from tests.transcripts import recorded
from tests.wire.messages import push_message

#: What a broker sends to a client.
RECORDED = recorded(EventType.PUSH, EventType.ACK, EventType.CONTROL, direction="b2c")


def guid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def pushed(*messages: bytes) -> Event:
    body = b"".join(messages)
    return read_event(pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body)


def contents(events: Any) -> tuple[list[Any], str | None]:
    """Return the messages, acknowledgements and other events up to the first error, and the error."""
    found: list[Any] = []
    for event in events:
        try:
            if event.type == EventType.PUSH:
                found += decode_pushes(event.data, event.body)
            elif event.type == EventType.ACK:
                found += iter_acks(event.data, event.body)
            else:
                found.append(event)
        except ProtocolError as error:
            return found, str(error)
    return found, None


def readable(data: bytes) -> list[Event]:
    try:
        return [read_event(data)]
    except ProtocolError:
        return []  # a framer ends the stream here


@settings(max_examples=settings().max_examples * 4)
@given(st.lists(st.sampled_from([each.data for each in RECORDED]) | damaged(RECORDED), max_size=8))
def test_joined_events_have_the_same_contents_and_the_same_error(datas: list[bytes]) -> None:
    events = [event for data in datas for event in readable(data)]
    assert contents(join_events(events)) == contents(events)


def test_neighbours_of_the_same_type_become_one_event() -> None:
    first, second = pushed(push_message(0, guid(1), b"a")), pushed(push_message(0, guid(2), b"bc") * 2)
    acks = [read_event(encode_acks([(0, 0, guid(n), 0)])) for n in range(3)]
    pulse = Event(EventType.HEARTBEAT_REQ, 0, b"", 0)
    joined = list(join_events([first, second, *acks, pulse, first, first]))
    assert [each.type for each in joined] == [
        EventType.PUSH, EventType.ACK, EventType.HEARTBEAT_REQ, EventType.PUSH,
    ]  # fmt: skip
    assert [message.data for message in decode_pushes(joined[0].data, joined[0].body)] == [b"a", b"bc", b"bc"]
    assert [each for _, each in iter_acks(joined[1].data, joined[1].body)] == [guid(0), guid(1), guid(2)]


def test_a_message_that_claims_bytes_of_the_next_event_is_refused() -> None:
    message = push_message(0, guid(1), b"x" * 40)
    words = int.from_bytes(message[:4], "big")
    # The next event's message would be the end of this one's payload.
    longer = pushed((words * 2).to_bytes(4, "big") + message[4:])
    alone = pushed(message)
    found, error = contents(join_events([alone, longer, alone]))
    assert (len(found), error) == (1, contents([longer])[1])
    assert "PushHeader" in str(error)


def test_a_large_event_is_not_copied() -> None:
    large = pushed(push_message(0, guid(1), b"x" * 100_000))
    small = pushed(push_message(0, guid(2), b"y"))
    joined = list(join_events([small, large, large, small]))
    assert len(joined) == 4
    assert joined[1] is joined[2] is large
