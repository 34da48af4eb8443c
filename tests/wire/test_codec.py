# SPDX-License-Identifier: Apache-2.0
"""The words of the codecs are those of the Construct declarations, wherever a declaration puts a field."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from construct import BitsInteger, BitStruct
from hypothesis import given, settings
from hypothesis import strategies as st

# The codecs have no public form, and every event depends on them.
from bmq.wire.codec import CODECS, StructureCodec, Words
from bmq.wire.layout import LAYOUTS
from tests.sweeps import sweep

#: The size in bytes that the protocol gives, and words with all fields, for each structure.
STRUCTURES = {
    "EventHeader": (8, "fragment+length protocolVersion+type headerWords typeSpecific reserved"),
    "PutHeader": (
        36,
        "flags+messageWords optionsWords+compressionAlgorithmType+headerWords queueId messageGUID crc32c "
        "schemaId reserved",
    ),
    "PushHeader": (
        32,
        "flags+messageWords optionsWords+compressionAlgorithmType+headerWords queueId messageGUID schemaId "
        "reserved",
    ),
    "OptionHeader": (4, "type+packed+typeSpecific+words"),
    "SubQueueId": (4, "id"),
    "SubQueueInfo": (8, "id unlimited+potentiallyPoisonous+remainingDeliveryAttempts+reserved"),
    "AckHeader": (4, "headerWords+perMessageWords flags reserved"),
    "AckMessage": (24, "reserved+status+correlationId messageGUID queueId"),
    "ConfirmHeader": (4, "headerWords+perMessageWords+reserved"),
    "ConfirmMessage": (24, "queueId messageGUID subQueueId"),
    "RejectHeader": (4, "headerWords+perMessageWords+reserved"),
    "RejectMessage": (24, "queueId messageGUID subQueueId"),
    "MessagePropertiesHeader": (
        6,
        "reserved+propertyHeaderSize2x+headerSize2x+areaWords reserved2 numProperties",
    ),
    "MessagePropertyHeader": (6, "reserved+type+valueField reserved2+nameLength"),
    "MessageGUID": (16, "clientId"),
}
structures = pytest.mark.parametrize("name", STRUCTURES)


def words_of(name: str, codec: StructureCodec | None = None) -> Words:
    return (codec or CODECS[name]).words(*STRUCTURES[name][1].split())


def values_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """What each field may hold, read from the declaration and not from the codec under test."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for sub in LAYOUTS[name].subcon.subcons:
        bits = sub.sizeof()
        if not isinstance(sub.subcon, BitsInteger):
            fields[sub.name] = st.binary(min_size=bits // 8, max_size=bits // 8)
        else:
            least = -(1 << bits - 1) if sub.subcon.signed else 0
            fields[sub.name] = st.integers(least, least + (1 << bits) - 1)
    return st.fixed_dictionaries(fields)


def test_every_structure_has_the_size_of_the_protocol() -> None:
    assert {name: codec.size for name, codec in CODECS.items()} == {
        name: size for name, (size, _) in STRUCTURES.items()
    }


@structures
@settings(max_examples=20)
@given(data=st.data())
def test_words_have_the_bytes_of_the_declaration(name: str, data: st.DataObject) -> None:
    values, codec, words = data.draw(values_of(name)), CODECS[name], words_of(name)
    items = []
    for word in words.formats:
        names = word.split("+")
        number = sum(values[each] << words.shift(each) for each in names) if len(names) > 1 else values[word]
        items.append(number)
    there = {each for word in words.formats for each in word.split("+")}
    raw = LAYOUTS[name].build(values | {each: 0 for each in values if each not in there})
    assert words.pack(*items) == raw
    assert words.unpack_from(b"xyz" + raw, 3) == tuple(items)
    assert [*words.iter_unpack(raw * 2)] == [tuple(items)] * 2
    whole = LAYOUTS[name].build(values)
    for each, value in values.items():
        if isinstance(value, int):
            place, shift, mask = codec.bytes_of(each)
            assert int.from_bytes(whole[place], "big") >> shift & mask == value & mask
            assert int.from_bytes(whole, "big") >> codec.shift(each) & mask == value & mask


@pytest.mark.statement("8.2")
@sweep(
    "name, first",
    [(name, at) for name, layout in LAYOUTS.items() for at in range(len(layout.subcon.subcons) - 1)],
)
def test_fields_in_another_order_are_noticed_at_import(name: str, first: int) -> None:
    """A swap changes the bytes, or a caller who names the words of the old order is refused."""
    members = list(LAYOUTS[name].subcon.subcons)
    members[first : first + 2] = members[first + 1], members[first]
    swapped = StructureCodec(name, BitStruct(*members))
    moved = members[first].name
    if swapped.fields[moved] == CODECS[name].fields[moved]:
        raise AssertionError(f"{moved} is where it was")
    if moved in STRUCTURES[name][1] and members[first + 1].name in STRUCTURES[name][1]:
        with pytest.raises(TypeError, match="does not have"):
            words_of(name, swapped)


@sweep(
    "words",
    [("colour",), ("flags+messageGUID",), ("messageWords+flags",), ("messageWords",), ("queueId", "flags")],
)
def test_words_that_are_not_declared_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=r"PutHeader does not have "):
        CODECS["PutHeader"].words(*words)


def test_words_may_leave_out_fields_and_the_end() -> None:
    words = CODECS["PushHeader"].words("flags+messageWords", "messageGUID", cut=True)
    raw = words.pack(0x2000_0009, bytes(range(16)))
    assert raw == bytes.fromhex("20000009 00000000 00000000") + bytes(range(16))
    assert words.unpack_from(raw) == (0x2000_0009, bytes(range(16)))
    with pytest.raises(struct.error):
        words.unpack_from(raw[:-1])
