# SPDX-License-Identifier: Apache-2.0
"""PUSH events as columns have the same messages, and the same errors, as read one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.arrow.push import PushColumns, read_push_columns
from bmq.errors import ProtocolError
from bmq.wire.constants import EventType
from bmq.wire.options import LimitedIds, encode_sub_queue_ids
from bmq.wire.push import decode_pushes
from bmq.wire.shape import Flaw
from tests.hostile import attempt, damaged
from tests.transcripts import recorded
from tests.wire.test_put_push import push

EVENT_HEADER = bytes(8)
AT = len(EVENT_HEADER)


OPTIONS = [
    b"",
    encode_sub_queue_ids((1,)),
    encode_sub_queue_ids((2,)),
    encode_sub_queue_ids((1, 2, 2)),
    bytes.fromhex("0e000005"),  # five deliveries are left
    bytes.fromhex("0c400003 00000009 03000000"),  # three
    bytes.fromhex("08000002") + b"grp\1",  # of another kind
]

pieces = st.builds(
    push,
    data=st.sampled_from([b"x", b"same length", b"also length", b"y" * 300])
    | st.binary(min_size=1, max_size=70),
    queueId=st.sampled_from([0, 3, -1]),
    messageGUID=st.binary(min_size=16, max_size=16),
    flags=st.sampled_from([0, 2, 4, 6]),
    schemaId=st.sampled_from([0, 1, 2, 3, 65535]),
    compressionAlgorithmType=st.sampled_from([0, 1, 2, 7]),
    options=st.sampled_from(OPTIONS),
    header_words=st.sampled_from([8, 8, 8, 7, 9]),
)
#: Messages as they come: many alike, then one that is not.
events = st.lists(
    st.tuples(pieces, st.sampled_from([1, 1, 2, 9, 70, 200])).map(lambda each: each[0] * each[1]), max_size=8
).map(lambda each: EVENT_HEADER + b"".join(each))


def one_by_one(event: bytes) -> list[Any]:
    return [(tuple(each), attempts(each.sub_ids)) for each in decode_pushes(event, AT)]


def attempts(ids: tuple[int, ...]) -> int | None:
    return ids.attempts_left if isinstance(ids, LimitedIds) else None


def columns_of(event: bytes) -> PushColumns:
    """An event as a consumer of columns takes it: where columns cannot be read, message by message."""
    columns = read_push_columns(event, AT)
    return PushColumns.of(decode_pushes(event, AT)) if columns is None else columns


def as_columns(event: bytes) -> list[Any]:
    return [(each, attempts(each[1])) for each in columns_of(event).pushes()]


@given(event=events)
def test_columns_contain_the_messages_of_the_single_decoder(event: bytes) -> None:
    assert as_columns(event) == one_by_one(event)


@given(event=events, data=st.data())
@settings(max_examples=100)
def test_an_inconsistent_event_is_refused_with_the_same_error(event: bytes, data: st.DataObject) -> None:
    changed = bytearray(event)
    for _ in range(data.draw(st.integers(1, 3))):
        if len(changed) > AT:
            at = data.draw(st.integers(AT, len(changed) - 1))
            changed[at] = data.draw(st.sampled_from([0, 1, 7, 8, 0x7F, 0xFF]) | st.integers(0, 255))
    cut = data.draw(st.integers(0, 40))
    lied = bytes(changed[: max(AT, len(changed) - cut)]) if cut < 8 else bytes(changed)
    expected, error = attempt(one_by_one, lied)
    found, other = attempt(as_columns, lied)
    assert str(other) == str(error)
    assert found == expected


@given(event=damaged(recorded(EventType.PUSH)))
def test_push_columns_equal_the_decoder_even_for_damaged_input(event: bytes) -> None:
    expected, error = attempt(lambda: [tuple(each) for each in decode_pushes(event, AT)])
    found, other = attempt(lambda: list(columns_of(event).pushes()))
    assert str(other) == str(error)
    assert found == expected


def test_the_messages_of_each_subscription_keep_their_order() -> None:
    one, two = (encode_sub_queue_ids((n,)) for n in (1, 2))
    sent = [(n, 3 if n % 5 else 4, one if n % 3 else two) for n in range(100)]
    body = b"".join(push(f"{n}".encode(), queueId=q_id, options=options) for n, q_id, options in sent)
    found = {
        (q_id, ids): [each[-1] for each in columns.pushes()]
        for q_id, ids, columns in columns_of(EVENT_HEADER + body).routes()
    }
    assert found == {
        (q_id, (s_id,)): [b"%d" % n for n, q, o in sent if (q, o) == (q_id, options)]
        for q_id in (3, 4)
        for s_id, options in ((1, one), (2, two))
    }


@given(first=events, second=events, data=st.data())
def test_columns_are_cut_and_joined(first: bytes, second: bytes, data: st.DataObject) -> None:
    parts = [columns_of(each) for each in (first, second)]
    whole = PushColumns.concat(parts)
    messages = [each for part in parts for each in part.pushes()]
    assert list(whole.pushes()) == messages
    assert (whole.count, whole.size) == (len(messages), sum(len(each[-1]) for each in messages))
    start = data.draw(st.integers(0, len(messages)))
    stop = data.draw(st.integers(start, len(messages)))
    part = whole.part(start, stop).trimmed()
    assert list(part.pushes()) == messages[start:stop]
    assert len(part.buffer) <= len(whole.buffer)
    rows = np.flatnonzero(np.arange(len(messages)) % 3 == 0)
    assert list(whole.select(rows).pushes()) == messages[::3]
    assert [whole.data(row) for row in rows] == [each[-1] for each in messages[::3]]


def test_a_message_that_cannot_be_read_is_a_row_among_the_others() -> None:
    event = EVENT_HEADER + push() * 50 + push(flags=0)[:-1] + b"\x09" + push(b"last")
    columns = columns_of(event)
    assert columns.count == 52
    assert np.flatnonzero(columns.compressions).tolist() == [50]
    assert int(columns.compressions[50]) == Flaw.PADDING
    assert columns.data(51) == b"last"


def test_a_message_longer_than_its_event_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="do not fit"):
        columns_of(EVENT_HEADER + push() * 50 + push()[:-4])
