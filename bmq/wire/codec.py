# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""Fast codecs, derived from the Construct declarations.

Construct declarations are readable, but Construct parses only about 50,000 headers a second. A hand-written
second layout would be fast, and could disagree with the declarations. :meth:`StructureCodec.words` takes the
fields of each machine word and the order of the words, and returns functions of :class:`struct.Struct`, with
shifts and masks from the declaration of :mod:`bmq.wire.layout`. If the declaration has other words, or the
same words in another order, the import of the caller fails. :mod:`bmq.arrow.columns` makes numpy types of the
same words.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from construct import BitsInteger

from bmq.wire.layout import LAYOUTS

#: ``new_tuple(SomeNamedTuple, items)``: half the cost of calling the class.
new_tuple: Callable[[Any, tuple[Any, ...]], Any] = tuple.__new__

_INT_FORMATS = {8: "B", 16: "H", 32: "I", 64: "Q"}


class Field(NamedTuple):
    """One field of a structure.

    Attributes:
        start: the first bit of the field in the structure.
        bits: width in bits.
        signed: whether the integer is two's complement.
        raw: whether the field is a byte string.
    """

    start: int
    bits: int
    signed: bool
    raw: bool

    @property
    def stop(self) -> int:
        """The bit after the field."""
        return self.start + self.bits

    @property
    def mask(self) -> int:
        """The field's bits, unshifted: the largest unsigned value."""
        return (1 << self.bits) - 1


class StructureCodec:
    """The places of the fields of one structure.

    Attributes:
        name: name of the structure in the protocol.
        size: size in bytes.
        fields: the fields by name, in order.
    """

    def __init__(self, name: str, declaration: Any) -> None:
        self.name = name
        self.size: int = declaration.sizeof()
        self.fields: dict[str, Field] = {}
        start = 0
        for member in declaration.subcon.subcons:
            integer = isinstance(member.subcon, BitsInteger)
            signed = integer and bool(member.subcon.signed)
            self.fields[member.name] = Field(start, member.sizeof(), signed, not integer)
            start += member.sizeof()

    def offset_of(self, name: str) -> int:
        """Return the offset of the byte in which a field begins."""
        return self.fields[name].start // 8

    def end_of(self, *names: str) -> int:
        """Return the size in bytes of the beginning of the structure, up to the last of the named fields."""
        return max(-(-self.fields[name].stop // 8) for name in names)

    def shift(self, name: str) -> int:
        """Return the shift of a field in the number formed by all bytes of the structure."""
        return self.size * 8 - self.fields[name].stop

    def bytes_of(self, name: str) -> tuple[slice, int, int]:
        """Return the bytes of a field, and the field's shift and mask in the number formed by the bytes."""
        field, end = self.fields[name], self.end_of(name)
        return slice(field.start // 8, end), end * 8 - field.stop, field.mask

    def words(self, *words: str, cut: bool = False) -> Words:
        """Return functions that pack and unpack the structure as machine words.

        Args:
            words: the names of the fields in each word, the most significant first, joined by ``+``. Fields
                absent from all words are written as 0 and not read.
            cut: whether the structure may end after the last named field.

        Raises:
            TypeError: the structure does not have these words in this order.
        """
        return Words(self, words, cut=cut)


class Words:
    """Functions of :class:`struct.Struct` that pack and unpack a structure as machine words.

    Attributes:
        structure: the structure.
        formats: the ``struct`` format of each word, by the names of its fields joined by ``+``.
        format: the ``struct`` format of the structure.
        size: size of the structure in bytes; if the structure may be cut, size up to the last field used.
        pack: ``pack(*words) -> bytes``. A number too large for its field corrupts the neighbouring field.
        unpack_from: ``unpack_from(buffer, offset=0) -> words``.
        iter_unpack: ``iter_unpack(buffer) -> iterator of words``. Give bytes: CPython crashes if the garbage
            collector finds an iterator over a memoryview, and the view, in one cycle (a traceback, say).
    """

    def __init__(self, structure: StructureCodec, words: tuple[str, ...], *, cut: bool) -> None:
        self.structure = structure
        self.formats: dict[str, str] = {}
        self._word_of: dict[str, str] = {}
        formats, at = [">"], 0
        for word in words:
            names = word.split("+")
            fields = [structure.fields.get(name) for name in names]
            first, last = fields[0], fields[-1]
            if first is None or last is None:
                raise TypeError(f"{structure.name} does not have all fields of {word}")
            start, stop = first.start, last.stop
            letter = f"{first.bits // 8}s" if first.raw else _INT_FORMATS.get(stop - start, "")
            declared = [name for name, each in structure.fields.items() if start <= each.start < stop]
            if names != declared or start % 8 or start < at or not letter:
                raise TypeError(f"{structure.name} does not have {word} as a word in this place")
            if len(names) == 1 and first.signed:
                letter = letter.lower()
            self.formats[word] = letter
            self._word_of.update(dict.fromkeys(names, word))
            formats.append(f"{(start - at) // 8}x{letter}" if start > at else letter)
            at = stop
        self.size = structure.end_of(*self._word_of) if cut else structure.size
        rest = self.size - at // 8
        self.format = "".join([*formats, f"{rest}x" if rest else ""])
        functions = struct.Struct(self.format)
        self.pack: Callable[..., bytes] = functions.pack
        self.unpack_from: Callable[..., tuple[Any, ...]] = functions.unpack_from
        self.iter_unpack: Callable[..., Iterator[tuple[Any, ...]]] = functions.iter_unpack

    def word_of(self, name: str) -> str:
        """Return the word with a field."""
        return self._word_of[name]

    def shift(self, name: str) -> int:
        """Return the distance of a field from the least significant bit of the word."""
        last = self._word_of[name].rpartition("+")[2]
        return self.structure.fields[last].stop - self.structure.fields[name].stop

    def mask(self, name: str) -> int:
        """Return the bits of a field, unshifted: the largest unsigned value."""
        return self.structure.fields[name].mask


def packer_of(*structures: Words) -> Callable[..., bytes]:
    """Return a function that packs the words of several structures, one structure after another."""
    return struct.Struct(">" + "".join(each.format[1:] for each in structures)).pack


#: Every codec by the structure's name.
CODECS: dict[str, StructureCodec] = {
    name: StructureCodec(name, declaration) for name, declaration in LAYOUTS.items()
}

EVENT_HEADER = CODECS["EventHeader"]
PUT_HEADER = CODECS["PutHeader"]
PUSH_HEADER = CODECS["PushHeader"]
OPTION_HEADER = CODECS["OptionHeader"]
SUB_QUEUE_ID = CODECS["SubQueueId"]
SUB_QUEUE_INFO = CODECS["SubQueueInfo"]
ACK_HEADER = CODECS["AckHeader"]
ACK_MESSAGE = CODECS["AckMessage"]
CONFIRM_HEADER = CODECS["ConfirmHeader"]
CONFIRM_MESSAGE = CODECS["ConfirmMessage"]
PROPERTIES_HEADER = CODECS["MessagePropertiesHeader"]
PROPERTY_HEADER = CODECS["MessagePropertyHeader"]
MESSAGE_GUID = CODECS["MessageGUID"]
