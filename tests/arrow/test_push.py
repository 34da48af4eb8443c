# SPDX-License-Identifier: Apache-2.0
"""PUSH events as columns have the same messages, and the same errors, as read one by one."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.arrow import decoding
from bmq.arrow.decoding import Decoded, TableDecoder
from bmq.arrow.push import PushColumns, read_push_columns
from bmq.errors import ProtocolError
from bmq.wire.constants import EventType, PropertyType
from bmq.wire.message import split_application_data
from bmq.wire.options import LimitedIds, encode_sub_queue_ids
from bmq.wire.properties import PropertyValue, encode_properties
from bmq.wire.push import Push, decode_pushes
from tests.hostile import attempt, damaged
from tests.sweeps import sweep
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


def attempts(ids: tuple[int, ...]) -> int | None:
    return ids.attempts_left if isinstance(ids, LimitedIds) else None


def columns_of(event: bytes) -> PushColumns:
    """An event as a consumer of columns takes it: where columns cannot be read, message by message."""
    columns = read_push_columns(event, AT)
    return PushColumns.of(decode_pushes(event, AT)) if columns is None else columns


def one_by_one(event: bytes) -> list[Any]:
    return [(tuple(each), attempts(each.sub_ids)) for each in decode_pushes(event, AT)]


def as_columns(event: bytes) -> list[Any]:
    return [(each, attempts(each[1])) for each in columns_of(event).pushes()]


@st.composite
def inconsistent(draw: st.DrawFn) -> bytes:
    """An event with a few other bytes, or cut."""
    changed = bytearray(draw(events))
    for _ in range(draw(st.integers(1, 3)) if len(changed) > AT else 0):
        at = draw(st.integers(AT, len(changed) - 1))
        changed[at] = draw(st.sampled_from([0, 1, 7, 8, 0x7F, 0xFF]) | st.integers(0, 255))
    return bytes(changed[: max(AT, len(changed) - draw(st.sampled_from([0, 0, 0, 1, 4, 7])))])


@given(event=events | inconsistent() | damaged(recorded(EventType.PUSH)))
@settings(max_examples=200)
def test_columns_have_the_messages_or_the_error_of_the_single_decoder(event: bytes) -> None:
    expected, error = attempt(one_by_one, event)
    found, other = attempt(as_columns, event)
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


# columns of payloads and properties


VALUES: dict[PropertyType, st.SearchStrategy[Any]] = {
    PropertyType.BOOL: st.booleans(),
    PropertyType.CHAR: st.binary(min_size=1, max_size=1),
    PropertyType.SHORT: st.integers(-(2**15), 2**15 - 1),
    PropertyType.INT32: st.integers(-(2**31), 2**31 - 1),
    PropertyType.INT64: st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-129, -128, 127, 128, 32768]),
    PropertyType.STRING: st.text(max_size=9) | st.just("not \udcff UTF-8"),
    PropertyType.BINARY: st.binary(max_size=9),
}
NAMES = ["a", "b", "Customer", "né", "Customers"]
KINDS = [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary()]
wanted = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(KINDS), max_size=4)


def message(
    properties: dict[str, Any], payload: bytes = b"payload", *, new: bool = True, schema_id: int = 1,
    compression: int = 0,
) -> Push:  # fmt: skip
    area = encode_properties(properties, new=new)
    if compression:
        data = area + zlib.compress(payload) if new else zlib.compress(area + payload)
    else:
        data = area + payload
    return 3, (1,), bytes(16), 2 if area else 0, schema_id if new else 0, compression, data


@st.composite
def blocks(draw: st.DrawFn) -> list[Push]:
    """Draw messages with the same properties, and with different values."""
    kinds = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(list(VALUES)), max_size=4))
    about = {
        "new": draw(st.booleans()),
        "schema_id": draw(st.sampled_from([1, 2, 3, 4])),
        "compression": draw(st.sampled_from([0, 0, 0, 1])),
    }
    values = st.fixed_dictionaries(
        {
            name: VALUES[kind].map(lambda value, kind=kind: PropertyValue(kind, value))
            for name, kind in kinds.items()
        }
    )
    row = st.tuples(values, st.binary(min_size=1, max_size=20))
    rows = draw(st.lists(row, min_size=1, max_size=6)) * draw(st.sampled_from([1, 1, 5, 20]))
    return [message(properties, payload, **about) for properties, payload in rows]


@st.composite
def messages(draw: st.DrawFn) -> list[Push]:
    """Blocks of messages, in sequence or mixed."""
    found = [each for block in draw(st.lists(blocks(), max_size=5)) for each in block]
    return found[::3] + found[1::3] + found[2::3] if draw(st.booleans()) else found


@st.composite
def malformed(draw: st.DrawFn) -> list[Push]:
    """Messages of which some have other flags and bytes."""
    pushes = draw(messages())
    for _ in range(draw(st.integers(1, 3)) if pushes else 0):
        row = draw(st.integers(0, len(pushes) - 1))
        changed = bytearray(pushes[row][-1])
        at = draw(st.integers(0, len(changed) - 1))
        changed[at] = draw(st.sampled_from([0, 1, 4, 5, 0x12, 0x7F, 0xFF]) | st.integers(0, 255))
        data = bytes(changed[: len(changed) - draw(st.integers(0, 9))]) or b"x"
        pushes[row] = (*pushes[row][:3], draw(st.sampled_from([0, 2, 2, 2])), *pushes[row][4:6], data)
    return pushes


def repaired(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def expected_value(kind: Any, properties: Any, name: str) -> Any:
    """Return the expected value in a column of a type, by independent code."""
    if name not in properties:
        return None
    value, found = properties[name], properties.types[name]
    if pa.types.is_string(kind):
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return repaired({True: "true", False: "false"}[value] if isinstance(value, bool) else str(value))
    if pa.types.is_boolean(kind):
        return value if found is PropertyType.BOOL else None
    if pa.types.is_binary(kind):
        return value if isinstance(value, bytes) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    bits: int = kind.bit_width
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def decoded(pushes: list[Push], kinds: dict[str, Any] | None) -> Decoded:
    """Decode columns, and check them against messages decoded one by one."""
    found = TableDecoder(kinds).decode(PushColumns.of(pushes))
    payloads: list[Any] = []
    rows: list[list[Any]] = []
    errors: dict[int, str] = {}
    for row, (_, _, _, flags, schema_id, compression, data) in enumerate(pushes):
        payload, values = None, [None] * (1 if kinds is None else len(kinds))
        try:
            properties, payload = split_application_data(
                data, has_properties=bool(flags & 2), schema_id=schema_id, compression=compression
            )
            if kinds is None:
                values = [[(name, expected_value(pa.string(), properties, name)) for name in properties]]
            elif kinds:
                values = [expected_value(kind, properties, name) for name, kind in kinds.items()]
        except ProtocolError as error:
            payload, errors[row] = None, str(error)
        payloads.append(payload)
        rows.append(values)
    for array in found.properties:
        array.validate(full=True)
    assert found.rows == len(pushes)
    assert found.payload.to_pylist() == payloads
    columns = [array.to_pylist() for array in found.properties]
    assert columns == [[row[at] for row in rows] for at in range(len(columns))]
    assert {row: str(error) for row, error in found.errors.items()} == errors
    return found


@given(pushes=messages(), kinds=wanted)
@settings(max_examples=100)
def test_columns_equal_the_values_of_messages(pushes: list[Push], kinds: dict[str, Any]) -> None:
    found = decoded(pushes, kinds)
    assert [array.type for array in found.properties] == list(kinds.values())


@given(pushes=messages())
def test_a_map_has_all_properties(pushes: list[Push]) -> None:
    decoded(pushes, None)


@given(pushes=malformed(), kinds=wanted)
@settings(max_examples=100)
def test_malformed_message_is_named_and_affects_no_other(pushes: list[Push], kinds: dict[str, Any]) -> None:
    decoded(pushes, kinds)


def test_a_schema_id_is_verified_against_the_bytes() -> None:
    """A redelivered message may have an id that has been reused for other names."""
    pushes = [message({"a" if n % 2 else "b": n, "same": "x"}, schema_id=6) for n in range(100)]
    (found,) = decoded(pushes, {"a": pa.int64()}).properties
    assert found.to_pylist() == [n if n % 2 else None for n in range(100)]


@sweep("own", ["name", "schema id"])
def test_work_grows_with_the_messages_not_with_their_square(own: str) -> None:
    """Each message has a name of its own, or a schema id: the rows are examined a limited number of times."""
    examined = 0

    def counted(function: Any, rows_at: int) -> Any:
        def count(*args: Any, **options: Any) -> Any:
            nonlocal examined
            examined += len(args[rows_at])
            return function(*args, **options)

        return count

    names = [f"n{n}" if own == "name" else "n" for n in range(2000)]
    pushes = [message({name: n}, schema_id=1 if own == "name" else 2 * n + 2) for n, name in enumerate(names)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_like_first", counted(decoding._like_first, 1))
        patch.setattr(decoding, "_index", counted(decoding._index, 0))
        decoded(pushes, {"n": pa.int64()})
    assert examined < 200 * len(pushes)


def test_compressed_messages_are_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed messages may be very large when decompressed, so the memory held at once is bounded."""
    monkeypatch.setattr(decoding, "_MOST_INFLATED", 10_000)
    columns = PushColumns.of([message({"a": n}, b"z" * 4000, compression=n % 2) for n in range(20)])
    seen: list[Any] = []
    while columns.count:
        part = TableDecoder({"a": pa.int64()}).decode(columns)
        assert 0 < part.rows <= 7
        assert part.payload.to_pylist() == [b"z" * 4000] * part.rows
        seen += part.properties[0].to_pylist()
        columns = columns.part(part.rows, columns.count)
    assert seen == list(range(20))


def test_a_message_that_inflates_beyond_the_limit_is_an_error() -> None:
    columns = PushColumns.of([message({}, b"small", compression=1), message({}, b"z" * 1001, compression=1)])
    found = TableDecoder({}, limit=1000).decode(columns)
    assert found.payload.to_pylist() == [b"small", None]
    assert list(found.errors) == [1]
