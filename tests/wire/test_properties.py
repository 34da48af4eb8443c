# SPDX-License-Identifier: Apache-2.0
"""Message properties: legal posts, arrivals, and refusals."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import InvalidProperty, ProtocolError
from bmq.wire.constants import PropertyType
from bmq.wire.layout import MessagePropertiesHeader, MessagePropertyHeader
from bmq.wire.properties import Properties, PropertyInput, PropertyValue, encode_properties, properties_length
from tests.sweeps import sweep

BOOL, CHAR, SHORT, INT32, INT64, STRING, BINARY = PropertyType
ENCODINGS = pytest.mark.parametrize("new", [True, False], ids=["new", "old"])


def build(
    entries: list[tuple[int, bytes, bytes]],
    *,
    new: bool,
    header_size: int = 6,
    stride: int = 6,
    **header: int,
) -> bytes:
    """Write a properties area with Construct alone, right or wrong; ``header`` overrides its header."""
    offsets = [0, *accumulate(len(name) + len(value) for _, name, value in entries)]
    heads = b"".join(
        MessagePropertyHeader.build(
            {
                "reserved": 0,
                "type": kind,
                "valueField": offset if new else len(value),
                "reserved2": 0,
                "nameLength": len(name),
            }
        ).ljust(stride, b"\xaa")
        for (kind, name, value), offset in zip(entries, offsets, strict=False)
    )
    data = heads + b"".join(name + value for _, name, value in entries)
    length = header_size + len(data)
    pad = 4 - length % 4
    fields = {
        "reserved": 0,
        "propertyHeaderSize2x": stride // 2,
        "headerSize2x": header_size // 2,
        "areaWords": (length + pad) // 4,
        "reserved2": 0,
        "numProperties": len(entries),
    }
    start = MessagePropertiesHeader.build(fields | header).ljust(header_size, b"\xbb")
    return start + data + bytes([pad]) * pad


def patch(area: bytes, at: int, *values: int) -> bytes:
    return area[:at] + bytes(values) + area[at + len(values) :]


def refused(area: bytes, *, new: bool) -> ProtocolError:
    properties = Properties(area, new=new)
    with pytest.raises(ProtocolError) as caught:
        properties["anything"]
    with pytest.raises(ProtocolError):
        list(properties)
    return caught.value


names = st.from_regex(r"[a-zA-Z0-9]\w{0,40}", fullmatch=True)
values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=60),
    st.binary(max_size=60),
    st.integers(-(2**15), 2**15 - 1).map(lambda n: PropertyValue(SHORT, n)),
    st.integers(-(2**31), 2**31 - 1).map(lambda n: PropertyValue(INT32, n)),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: PropertyValue(INT64, n)),
    st.binary(min_size=1, max_size=1).map(lambda b: PropertyValue(CHAR, b)),
    st.booleans().map(lambda b: PropertyValue(BOOL, b)),
    st.text(max_size=20).map(lambda t: PropertyValue(STRING, t)),
    st.binary(max_size=20).map(lambda b: PropertyValue(BINARY, b)),
)
mappings = st.dictionaries(names, values, max_size=12)


def typed(value: Any) -> PropertyValue:
    if isinstance(value, PropertyValue):
        return value
    kinds = {bool: BOOL, int: INT64, str: STRING, bytes: BINARY}
    return PropertyValue(kinds[type(value)], value)


# Both encodings


@ENCODINGS
@given(given_properties=mappings)
@pytest.mark.statement("3.8")
def test_posted_messages_arrive(given_properties: dict[str, PropertyInput], new: bool) -> None:
    area = encode_properties(given_properties, new=new)
    arrived = Properties(area, new=new)
    assert arrived.typed() == {name: typed(value) for name, value in given_properties.items()}
    order = sorted(given_properties, key=str.encode) if new else list(given_properties)
    assert list(arrived) == order
    assert len(arrived) == len(given_properties)
    assert all(type(arrived[n]) is type(typed(v).value) for n, v in given_properties.items())
    assert encode_properties(arrived, new=new) == area, "posting them again keeps the types"
    if area:
        assert len(area) % 4 == 0
        assert properties_length(b"xyz" + area + b"payload", 3) == len(area)


@ENCODINGS
@given(
    entries=st.lists(
        st.tuples(st.just(7), st.binary(min_size=1, max_size=9), st.binary(max_size=9)),
        min_size=1,
        max_size=9,
        unique_by=lambda e: e[1],
    ),
    header_size=st.integers(3, 7).map(lambda n: 2 * n),
    stride=st.integers(3, 7).map(lambda n: 2 * n),
)
def test_header_sizes_of_the_sender_are_honoured(
    entries: list[tuple[int, bytes, bytes]], header_size: int, stride: int, new: bool
) -> None:
    area = build(entries, new=new, header_size=header_size, stride=stride)
    decoded = Properties(area + b"payload", new=new)
    assert list(decoded.values()) == [value for _, _, value in entries]
    assert [n.encode("utf-8", "surrogateescape") for n in decoded] == [name for _, name, _ in entries]


@ENCODINGS
def test_every_type_has_its_bytes(new: bool) -> None:
    expected = [
        ("B", BOOL, True, b"\x01"),
        ("b", BOOL, False, b"\x00"),
        ("c", CHAR, b"\xff", b"\xff"),
        ("s", SHORT, -2, b"\xff\xfe"),
        ("i", INT32, -3, b"\xff\xff\xff\xfd"),
        ("j", SHORT, 2**15 - 1, b"\x7f\xff"),
        ("k", INT32, -(2**31), b"\x80\0\0\0"),
        ("l", INT64, 2**63 - 1, b"\x7f" + b"\xff" * 7),
        ("m", INT64, -(2**63), b"\x80" + bytes(7)),
        ("t", STRING, "é", b"\xc3\xa9"),
        ("e", STRING, "", b""),
        ("x", BINARY, b"\x00\x01", b"\x00\x01"),
        ("y", BINARY, b"", b""),
    ]
    if new:
        expected.sort()
    area = encode_properties({name: PropertyValue(kind, value) for name, kind, value, _ in expected}, new=new)
    assert area == build([(kind, name.encode(), raw) for name, kind, _, raw in expected], new=new)
    decoded = Properties(area, new=new)
    assert [(n, decoded.types[n], v) for n, v in decoded.items()] == [row[:3] for row in expected]


def test_bytes_that_are_no_utf_8_survive() -> None:
    area = build([(6, b"latin\xe9", b"caf\xe9"), (6, b"utf", "café".encode())], new=True)
    decoded = Properties(area)
    assert decoded["utf"] == "café"
    assert decoded["latin\udce9"] == "caf\udce9"
    assert encode_properties(decoded, new=True) == area


def test_properties_are_a_read_only_mapping() -> None:
    decoded = Properties(encode_properties({"a": 1, "b": "two"}, new=True))
    assert decoded == {"a": 1, "b": "two"}
    assert decoded.get("missing", 0) == 0
    assert "a" in decoded
    assert "missing" not in decoded
    assert repr(decoded) == "{'a': 1, 'b': 'two'}"
    with pytest.raises(KeyError, match="missing"):
        decoded["missing"]
    with pytest.raises(TypeError):
        decoded["a"] = 2  # type: ignore[index]
    for other in (copy.copy(decoded), copy.deepcopy(decoded), pickle.loads(pickle.dumps(decoded))):
        assert other == decoded
        assert other.types == decoded.types


def test_posting_received_properties_in_the_other_encoding() -> None:
    entries = [(3, b"s", b"\0\7"), (2, b"c", b"A"), (5, b"l", bytes(8)), (1, b"t", b"\1")]
    in_order = sorted(entries, key=lambda entry: entry[1])
    assert encode_properties(Properties(build(entries, new=False), new=False), new=True) == build(
        in_order, new=True
    )


# Limits


@ENCODINGS
def test_a_message_has_at_most_255_properties(new: bool) -> None:
    most = {f"p{i}": i for i in range(255)}
    assert Properties(encode_properties(most, new=new), new=new) == most
    with pytest.raises(InvalidProperty, match="256 properties; a message has at most 255"):
        encode_properties(most | {"one": "more"}, new=new)


@sweep(
    "name, message",
    [
        ("", "has 0 bytes; 1 to 4095 are allowed"),
        ("n" * 4096, "has 4096 bytes; 1 to 4095"),
        ("é" * 2048, "has 4096 bytes"),
        ("_private", "'_private' must start with an ASCII letter or digit"),
        ("٣", "must start with an ASCII letter or digit"),
        ("\udce9t", "must start with an ASCII letter or digit"),
        ("a\ud800", r"character '\\ud800' at 1 is half of a surrogate pair"),
        (b"bytes", "a property name must be a str, not bytes"),
    ],
)
def test_illegal_names_are_refused(name: Any, message: str) -> None:
    with pytest.raises(InvalidProperty, match=message):
        encode_properties({name: 1}, new=True)


@sweep(
    "value, message",
    [
        (2**63, "does not fit INT64"),
        (-(2**63) - 1, "does not fit INT64"),
        (PropertyValue(INT64, 2**63), "does not fit INT64"),
        (PropertyValue(INT32, 2**31), r"2147483648 \(int\) does not fit INT32 \(32 bits\)"),
        (PropertyValue(SHORT, -(2**15) - 1), "does not fit SHORT"),
        (PropertyValue(SHORT, "7"), "SHORT needs an int, not str"),
        (PropertyValue(INT32, 7.0), "INT32 needs an int, not float"),
        (PropertyValue(BOOL, 1), "BOOL does not accept int"),
        (PropertyValue(STRING, b"x"), "STRING does not accept bytes"),
        (PropertyValue(BINARY, "x"), "BINARY does not accept str"),
        (PropertyValue(CHAR, "A"), r"CHAR needs one byte \(such as b'A'\), not 'A'"),
        (PropertyValue(CHAR, b"AB"), "CHAR needs one byte"),
        (PropertyValue(CHAR, b""), "CHAR needs one byte"),
        (
            PropertyValue(0, 1),
            r"0 \(int\) is not a property type; the types are BOOL, CHAR, SHORT, INT32, .*, BINARY",
        ),
        (PropertyValue(8, 1), r"8 \(int\) is not a property type"),
        (PropertyValue("INT32", 1), r"'INT32' \(str\) is not a property type"),
        (1.5, "a value must be bool, int, str, bytes or bmq.PropertyValue, not float"),
        (None, "not NoneType"),
        ("\ud800", r"character '\\ud800' at 0 is half of a surrogate pair"),
        (PropertyValue(STRING, "ok\udfff"), r"'\\udfff' at 2"),
    ],
)
def test_values_out_of_range_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidProperty, match=f"property 'the_name'.*{message}"):
        encode_properties({"fine": 1, "the_name": value}, new=True)


@pytest.mark.timeout(20)
@ENCODINGS
def test_a_value_has_at_most_67_104_745_bytes(new: bool) -> None:
    most = bytes(67_104_745)
    area = encode_properties({"n": most}, new=new)
    assert len(Properties(area, new=new)["n"]) == len(most)  # type: ignore[arg-type]
    del area
    with pytest.raises(InvalidProperty, match="'n' has 67104746 bytes; at most 67104745"):
        encode_properties({"n": most + b"1"}, new=new)


def test_an_area_has_at_most_67_108_856_bytes() -> None:
    half = bytes(33_554_400)
    # 6 bytes of header, 2 x 6 of property headers, 2 names of 1: 20 bytes and the two values.
    fits = {"a": half, "b": bytes(67_108_856 - 20 - len(half))}
    assert len(encode_properties(fits, new=True)) == 67_108_860
    with pytest.raises(InvalidProperty, match="the properties take 67108857 bytes; at most 67108856"):
        encode_properties({"a": half, "b": fits["b"] + b"1"}, new=True)
    with pytest.raises(InvalidProperty, match="the properties exceed 67108856 bytes at 'c'"):
        encode_properties({"a": half, "b": half, "c": half}, new=True)


# What a peer may get wrong


def wrong_areas() -> Iterator[Any]:
    """Areas with one error, the field to be blamed, and the offset."""
    for new in (True, False):
        good = build([(4, b"alpha", b"\0\0\0\7"), (6, b"beta", b"hi")], new=new)
        header, words = "MessagePropertiesHeader", "MessagePropertiesHeader.areaWords"
        entry = "MessagePropertyHeader"

        def case(name: str, area: bytes, field: str, offset: int, new: bool = new) -> Any:
            return pytest.param(area, new, field, offset, id=f"{name} ({'new' if new else 'old'})")

        for size in range(1, 6):
            yield case(f"{size} bytes", good[:size], header, 0)
        yield case("cut short", good[:-1], words, 1)
        yield case("header alone", patch(good, 1, 0, 0, 1)[:6], words, 1)
        yield case("zero words", patch(good, 1, 0, 0, 0), words, 1)
        yield case("one word too many", patch(good, 1, 0, 0, len(good) // 4 + 1), words, 1)
        yield case("16 million words", patch(good, 1, 255, 255, 255), words, 1)
        yield case("short header", patch(good, 0, 0x1A), header + ".headerSize2x", 0)
        yield case("short stride", patch(good, 0, 0x13), header + ".propertyHeaderSize2x", 0)
        yield case("none", patch(good, 5, 0), header + ".numProperties", 5)
        yield case("255", patch(good, 5, 255), header + ".numProperties", 5)
        for pad in (0, 5, 255):
            at = len(good) - 1
            yield case(f"padding {pad}", patch(good, at, pad), "message properties padding", at)
        yield case("type 0", build([(0, b"a", b"")], new=new), entry + ".type", 6)
        yield case("type 8", build([(7, b"z", b""), (8, b"a", b"")], new=new), entry + ".type", 12)
        yield case("type 31", build([(31, b"a", b"")], new=new), entry + ".type", 6)
        yield case("no name", build([(7, b"", b"x")], new=new), entry + ".nameLength", 6)
        yield case("endless name", patch(good, 16, 0x0F, 0xFF), entry + ".valueField", 12)
        for kind, size in ((1, 1), (2, 1), (3, 2), (4, 4), (5, 8)):
            for wrong in {0, size - 1, size + 1}:
                area = build([(7, b"z", b""), (kind, b"n", bytes(wrong))], new=new)
                name = f"{PropertyType(kind).name} of {wrong} bytes"
                yield case(name, area, entry + ".valueField", 12)
        twice = build([(7, b"a", b"1"), (7, b"b", b"2"), (7, b"a", b"3")], new=new)
        yield case("twice", twice, "message properties", 6 + 3 * 6 + 4)

    good = build([(7, b"a", b"12"), (7, b"b", b"34"), (7, b"c", b"56")], new=True)
    field = "MessagePropertyHeader.valueField"
    yield pytest.param(patch(good, 9, 1), True, field, 6, id="first offset not 0")
    yield pytest.param(patch(good, 15, 0), True, field, 6, id="offset inside the previous name")
    yield pytest.param(patch(good, 21, 2), True, field, 12, id="offsets decrease")
    yield pytest.param(patch(good, 21, 200), True, field, 12, id="offset behind the end")
    yield pytest.param(patch(good, 12, 0x1F, 0xFF, 255, 255), True, field, 6, id="largest offset")
    old = build([(7, b"a", b"12"), (7, b"b", b"34")], new=False)
    yield pytest.param(patch(old, 15, 200), False, field, 12, id="length behind the end")
    yield pytest.param(patch(old, 12, 0x1F, 0xFF, 255, 255), False, field, 12, id="largest length")


@sweep("area, new, field, offset", wrong_areas())
def test_malformed_areas_are_refused(area: bytes, new: bool, field: str, offset: int) -> None:
    error = refused(area, new=new)
    assert (error.field, error.offset) == (field, offset)


@sweep("data", [b"", b"\x1b", b"\x1b\0\0\2\0"])
def test_an_area_shorter_than_its_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        properties_length(b"ab" + data, 2)
    assert (caught.value.field, caught.value.offset) == ("MessagePropertiesHeader", 2)
