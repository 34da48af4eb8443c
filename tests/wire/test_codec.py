# SPDX-License-Identifier: Apache-2.0
"""The generated codecs and the Construct declarations are equivalent."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from construct import BitsInteger, BitStruct, Bytes, Bytewise, Construct, Int16ub
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.errors import ProtocolError
from bmq.wire.codec import CODECS, StructureCodec
from bmq.wire.layout import LAYOUTS, fields_of

#: The lengths in bytes that the protocol gives.
SIZES = {
    "EventHeader": 8,
    "PutHeader": 36,
    "PushHeader": 32,
    "OptionHeader": 4,
    "SubQueueId": 4,
    "SubQueueInfo": 8,
    "AckHeader": 4,
    "AckMessage": 24,
    "ConfirmHeader": 4,
    "ConfirmMessage": 24,
    "RejectHeader": 4,
    "RejectMessage": 24,
    "MessagePropertiesHeader": 6,
    "MessagePropertyHeader": 6,
    "MessageGUID": 16,
}
STRUCTURES = sorted(LAYOUTS)
structures = pytest.mark.parametrize("name", STRUCTURES)
# Each of the fifteen structures has examples of its own.
fewer = settings(max_examples=settings().max_examples // 4)


def field_strategies(declaration: Any) -> dict[str, st.SearchStrategy[Any]]:
    """What each field may hold, read from the declaration and not from the codec under test."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for sub in declaration.subcon.subcons:
        bits = sub.sizeof()
        if not isinstance(sub.subcon, BitsInteger):
            fields[sub.name] = st.binary(min_size=bits // 8, max_size=bits // 8)
        elif sub.subcon.signed:
            fields[sub.name] = st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
        else:
            fields[sub.name] = st.integers(0, (1 << bits) - 1)
    return fields


FIELDS = {name: field_strategies(LAYOUTS[name]) for name in STRUCTURES}
VALUES = {
    name: st.tuples(*fields.values()).map(lambda row, names=tuple(fields): dict(zip(names, row, strict=True)))
    for name, fields in FIELDS.items()
}


def parse(declaration: Construct, data: bytes) -> dict[str, Any]:
    return {key: value for key, value in declaration.parse(data).items() if key != "_io"}


def test_every_declaration_has_a_codec_of_the_protocols_size() -> None:
    assert {name: codec.size for name, codec in CODECS.items()} == SIZES
    assert {name: declaration.sizeof() for name, declaration in LAYOUTS.items()} == SIZES
    assert list(CODECS) == list(LAYOUTS)


@structures
@fewer
@given(data=st.data())
def test_packing_agrees_with_the_declaration(name: str, data: st.DataObject) -> None:
    values = data.draw(VALUES[name])
    expected = LAYOUTS[name].build(values)
    assert CODECS[name].build(**values) == expected


@structures
@fewer
@given(data=st.data())
def test_unpacking_agrees_with_the_declaration(name: str, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=SIZES[name], max_size=SIZES[name]))
    before, after = data.draw(st.binary(max_size=9)), data.draw(st.binary(max_size=9))
    fields = CODECS[name].read(before + raw + after, len(before))
    assert fields == parse(LAYOUTS[name], raw)
    assert list(fields) == list(FIELDS[name]), "fields in another order"
    assert CODECS[name].build(**fields) == raw


@structures
@fewer
@given(data=st.data())
def test_packers_with_constants_agree_with_the_declaration(name: str, data: st.DataObject) -> None:
    values = data.draw(VALUES[name])
    fixed = data.draw(st.sets(st.sampled_from(sorted(values))))
    order = data.draw(st.permutations([field for field in values if field not in fixed]))
    pack = CODECS[name].packer(*order, **{field: values[field] for field in fixed})
    assert pack(*(values[field] for field in order)) == LAYOUTS[name].build(values)


@structures
@fewer
@given(data=st.data())
def test_words_agree_with_the_declaration(name: str, data: st.DataObject) -> None:
    """The words agree for any words of a caller."""
    values = data.draw(VALUES[name])
    slots = [slot for slot in CODECS[name].slots if not slot.wide]
    taken = data.draw(st.lists(st.sampled_from(range(len(slots))), min_size=1, unique=True).map(sorted))
    groups = [[field.name for field in slots[at].fields] for at in taken]
    wanted = [field for group in groups for field in group]
    words = CODECS[name].words(*map("+".join, groups), cut=data.draw(st.booleans()))
    zero = {field: bytes(len(v)) if isinstance(v, bytes) else 0 for field, v in values.items()}
    raw = LAYOUTS[name].build(zero | {field: values[field] for field in wanted})
    expected = []
    for group in groups:
        number: Any = values[group[0]]
        if len(group) > 1:
            number = sum((values[field] & words.mask(field)) << words.shift(field) for field in group)
        expected.append(number)
    assert words.pack(*expected) == raw[: words.size]
    assert not any(raw[words.size :])
    assert words.unpack_from(b"xyz" + raw, 3) == tuple(expected)
    assert list(words.iter_unpack(raw[: words.size] * 3)) == [tuple(expected)] * 3
    with pytest.raises(struct.error):
        words.unpack_from(raw[: words.size - 1])


@structures
@fewer
@given(data=st.data())
def test_partial_unpackers_agree_with_the_declaration(name: str, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=SIZES[name], max_size=SIZES[name]))
    every = list(FIELDS[name])
    wanted = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    offset = data.draw(st.integers(0, 5))
    expected = parse(LAYOUTS[name], raw)
    unpack_from = CODECS[name].unpacker(*wanted)
    assert unpack_from(bytes(offset) + raw, offset) == tuple(expected[field] for field in wanted)


@structures
@fewer
@given(data=st.data())
def test_omitted_fields_are_zero(name: str, data: st.DataObject) -> None:
    values = data.draw(VALUES[name])
    given_fields = data.draw(st.sets(st.sampled_from(sorted(values))))
    zero = {field: bytes(len(v)) if isinstance(v, bytes) else 0 for field, v in values.items()}
    some = {field: values[field] for field in given_fields}
    assert CODECS[name].build(**some) == LAYOUTS[name].build(zero | some)


@structures
def test_a_truncated_structure_is_refused(name: str) -> None:
    codec = CODECS[name]
    for offset in (0, 3):
        for there in range(codec.size):
            with pytest.raises(ProtocolError) as caught:
                codec.read(bytes(offset + there), offset)
            assert (caught.value.field, caught.value.offset) == (name, offset)
            assert f"{codec.size} bytes expected, only {there} present" in str(caught.value)
    with pytest.raises(ProtocolError, match="only 0 present"):
        codec.read(b"", 10)
    assert codec.read(bytes(codec.size + 3), 3)


@structures
def test_reading_takes_memoryviews(name: str) -> None:
    raw = bytes(range(SIZES[name]))
    assert CODECS[name].read(memoryview(raw)) == CODECS[name].read(raw)


def test_misspelt_fields_are_refused() -> None:
    codec = CODECS["PutHeader"]
    with pytest.raises(TypeError, match=r"PutHeader has the fields flags, messageWords.*, not queueid"):
        codec.packer(queueid=1)
    with pytest.raises(TypeError, match=r"reserved, flags$"):
        codec.packer(*codec.fields, "flags")
    with pytest.raises(TypeError):
        codec.build(queueid=1)
    with pytest.raises(KeyError, match="queueid"):
        codec.unpacker("queueid")
    with pytest.raises(TypeError, match=r"PutHeader\.queueId is an integer"):
        codec.packer(*(name for name in codec.fields if name != "queueId"), queueId=b"1")


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (BitStruct("a" / BitsInteger(4), "b" / BitsInteger(5)), "do not fill whole bytes"),
        (BitStruct("a" / BitsInteger(3), "raw" / Bytewise(Bytes(2))), "do not fill whole bytes"),
        (BitStruct("a" / Bytewise(Int16ub)), "field a: only BitsInteger and Bytewise"),
    ],
)
def test_uncompilable_declarations_are_refused_at_once(declaration: Construct, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        StructureCodec("Odd", fields_of(declaration))


def test_signed_fields_share_a_word_with_others() -> None:
    declaration = BitStruct(
        "a" / BitsInteger(4, signed=True), "b" / BitsInteger(4), "c" / BitsInteger(24, signed=True)
    )
    codec = StructureCodec("Odd", fields_of(declaration))
    for a, b, c in ((-8, 15, -(1 << 23)), (7, 0, (1 << 23) - 1), (-1, 3, -1)):
        values = {"a": a, "b": b, "c": c}
        raw = declaration.build(values)
        assert (codec.build(**values), codec.read(raw)) == (raw, values)
