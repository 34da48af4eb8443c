# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""Fast codecs, derived from the Construct declarations.

The problem: Construct declarations are readable, but Construct parses only about 50,000 headers a second. A
hand-written second layout would be fast, and could disagree with the declarations.

This module generates the fast code instead, from the imported declarations of :mod:`bmq.wire.layout`.
:class:`StructureCodec` groups the fields of a declaration into machine words. On first use, a codec generates
a small function to pack or unpack the words with a single precompiled :class:`struct.Struct`. A property test
checks that Construct and the generated functions agree for arbitrary field values.

Hot paths cannot afford one call per structure, so they pack and unpack the machine words themselves.
:meth:`StructureCodec.words` takes the fields of each word and the order of the words, and returns functions
of :class:`struct.Struct`, with shifts and masks from the declaration. If the declaration has other words, or
the same words in another order, the import of the hot path fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bmq.errors import ProtocolError
from bmq.wire.layout import LAYOUTS, fields_of

__all__ = ["CODECS", "Field", "StructItem", "StructureCodec", "Words", "new_tuple", "packer_of"]

#: ``new_tuple(SomeNamedTuple, items)``: half the cost of calling the class.
new_tuple: Callable[[Any, tuple[Any, ...]], Any] = tuple.__new__

_INT_FORMATS = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a structure, and its position in the slot that contains the field.

    Attributes:
        name: name of the field in the protocol.
        bits: width in bits.
        shift: distance from the slot's least significant bit (0 for bytes).
        signed: whether the integer is two's complement.
        raw: whether the field is a byte string.
    """

    name: str
    bits: int
    shift: int = 0
    signed: bool = False
    raw: bool = False

    @property
    def mask(self) -> int:
        """The field's bits, unshifted: the largest unsigned value."""
        return (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class StructItem:
    """One item of the ``struct`` format, with one or more fields."""

    format: str
    fields: tuple[Field, ...]

    @property
    def wide(self) -> bool:
        """Whether integers in this slot are packed as a byte string, because no ``struct`` code has this
        width.
        """
        return self.format.endswith("s") and not self.fields[0].raw


def _gather(fields: list[Field]) -> list[StructItem]:
    slots: list[StructItem] = []
    run: list[Field] = []

    def close(fmt: str) -> None:
        shift = sum(f.bits for f in run)
        placed = []
        for f in run:
            shift -= f.bits
            placed.append(Field(f.name, f.bits, shift, f.signed))
        slots.append(StructItem(fmt, tuple(placed)))
        run.clear()

    def close_odd() -> None:
        total = sum(f.bits for f in run)
        if total % 8:
            raise TypeError(f"fields {[f.name for f in run]} do not fill whole bytes")
        close(f"{total // 8}s")

    for f in fields:
        if f.raw:
            if run:
                close_odd()
            slots.append(StructItem(f"{f.bits // 8}s", (f,)))
            continue
        run.append(f)
        fmt = _INT_FORMATS.get(sum(r.bits for r in run))
        if fmt:
            close(fmt.lower() if len(run) == 1 and f.signed else fmt)
    if run:
        close_odd()
    return slots


class StructureCodec:
    """Packs and unpacks one structure.

    Attributes:
        name: name of the structure in the protocol.
        size: size in bytes.
        fields: the fields by name.
        struct: the precompiled struct; the struct's items are ``slots``, in order.
    """

    def __init__(self, name: str, fields: Iterable[tuple[str, int, str]]) -> None:
        self.name = name
        self.slots = tuple(
            _gather(
                [
                    Field(field, bits, signed=kind == "signed", raw=kind == "bytes")
                    for field, bits, kind in fields
                ]
            )
        )
        self.fields = {f.name: f for slot in self.slots for f in slot.fields}
        self.struct = struct.Struct(">" + "".join(slot.format for slot in self.slots))
        self.size = self.struct.size

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """The first bit of each field in the structure, and the bit after the field."""
        places, at = {}, 0
        for name, field in self.fields.items():
            places[name] = at, at + field.bits
            at += field.bits
        return places

    def offset_of(self, name: str) -> int:
        """Return the offset of the byte in which a field begins."""
        return self.bits_of(name)[0] // 8

    def end_of(self, *names: str) -> int:
        """Return the size in bytes of the beginning of the structure, up to the last of the named fields."""
        return max(-(-self.bits_of(name)[1] // 8) for name in names)

    def bits_of(self, name: str) -> tuple[int, int]:
        """Return the first bit of a field in the structure, and the bit after the field.

        Raises:
            TypeError: the structure does not have the field.
        """
        try:
            return self._places[name]
        except KeyError:
            raise TypeError(f"{self.name} has no field {name}") from None

    def bytes_of(self, name: str) -> tuple[slice, int, int]:
        """Return the bytes of a field, and the field's shift and mask in the number formed by the bytes."""
        start, stop = self.bits_of(name)
        end = self.end_of(name)
        return slice(start // 8, end), end * 8 - stop, (1 << stop - start) - 1

    def words(self, *words: str, cut: bool = False) -> Words:
        """Return functions that pack and unpack the structure as machine words, for hot paths.

        Args:
            words: the names of the fields in each word, the most significant first, joined by ``+``. Fields
                absent from all words are written as 0 and not read.
            cut: whether the structure may end after the last named field.

        Raises:
            TypeError: the structure lacks a named field, or does not have these words in this order.
        """
        return Words(self, [word.split("+") for word in words], cut=cut)

    @cached_property
    def _pack_all(self) -> Callable[..., bytes]:
        return self.packer(*self.fields)

    @cached_property
    def _unpack_all(self) -> Callable[..., tuple[Any, ...]]:
        return self.unpacker(*self.fields)

    def packer(self, *names: str, **constants: int | bytes) -> Callable[..., bytes]:
        """Generate ``pack(*values of the named fields) -> bytes``; constants fill the remaining fields.

        The generated function does not check the arguments: a value too large for a field raises
        ``struct.error`` or corrupts the neighbouring field. Callers check sizes first.

        Raises:
            TypeError: the names and the constants together do not list each field of the structure once.
        """
        if sorted((*names, *constants)) != sorted(self.fields):
            raise TypeError(
                f"{self.name} has the fields {', '.join(self.fields)}, not {', '.join((*names, *constants))}"
            )
        items = []
        for slot in self.slots:
            if slot.fields[0].raw:
                name = slot.fields[0].name
                items.append(repr(constants[name]) if name in constants else name)
                continue
            fixed = 0
            terms = []
            for f in slot.fields:
                if f.name in constants:
                    value = constants[f.name]
                    if not isinstance(value, int):
                        raise TypeError(f"{self.name}.{f.name} is an integer")
                    fixed |= (value & f.mask) << f.shift if len(slot.fields) > 1 else value
                    continue
                # Mask the sign bits of a negative number: sign bits would overwrite the neighbouring fields.
                masked = f.signed and (len(slot.fields) > 1 or slot.wide)
                term = f"({f.name} & {f.mask})" if masked else f.name
                terms.append(f"{term} << {f.shift}" if f.shift else term)
            if fixed or not terms:
                terms.append(str(fixed))
            text = " | ".join(terms)
            if slot.wide:
                text = f"({text}).to_bytes({slot.format[:-1]}, 'big')"
            items.append(text)
        source = f"def pack({', '.join(names)}):\n    return _pack({', '.join(items)})\n"
        return self._generate(source, "pack")

    def unpacker(self, *names: str) -> Callable[..., tuple[Any, ...]]:
        """Generate ``unpack_from(buffer, offset=0) -> tuple of the named fields``.

        The generated function raises ``struct.error`` if the buffer is too short; :meth:`read` is the checked
        form.
        """
        targets = [f"_{i}" for i in range(len(self.slots))]
        where: dict[str, str] = {}
        for target, slot in zip(targets, self.slots, strict=True):
            for f in slot.fields:
                if f.raw or (len(slot.fields) == 1 and not slot.wide):
                    where[f.name] = target
                    continue
                source = f"int.from_bytes({target}, 'big')" if slot.wide else target
                text = f"{source} >> {f.shift}" if f.shift else source
                if f.shift + f.bits < sum(x.bits for x in slot.fields):
                    text = f"({text}) & {f.mask}" if f.shift else f"{text} & {f.mask}"
                if f.signed:
                    # Extend the sign of a two's complement number in the middle of a word.
                    text = f"(({text}) & {f.mask} ^ {1 << f.bits - 1}) - {1 << f.bits - 1}"
                where[f.name] = text
        result = ", ".join(where[name] for name in names)
        source = (
            f"def unpack_from(buffer, offset=0):\n"
            f"    {', '.join(targets)}, = _unpack_from(buffer, offset)\n"
            f"    return ({result},)\n"
        )
        return self._generate(source, "unpack_from")

    def read(self, buffer: bytes | memoryview, offset: int = 0) -> dict[str, Any]:
        """Return every field by name.

        Raises:
            ProtocolError: the buffer ends inside the structure.
        """
        if len(buffer) - offset < self.size:
            raise ProtocolError(
                f"{self.size} bytes expected, only {max(0, len(buffer) - offset)} present",
                field=self.name,
                offset=offset,
            )
        return dict(zip(self.fields, self._unpack_all(buffer, offset), strict=True))

    def build(self, **values: int | bytes) -> bytes:
        """Return the structure's bytes from fields by name; omitted fields are 0."""
        zero = {name: bytes(f.bits // 8) if f.raw else 0 for name, f in self.fields.items()}
        return self._pack_all(*(zero | values).values())

    def _generate(self, source: str, name: str) -> Callable[..., Any]:
        namespace: dict[str, Any] = {"_pack": self.struct.pack, "_unpack_from": self.struct.unpack_from}
        exec(compile(source, f"<{self.name}.{name}>", "exec"), namespace)
        function: Callable[..., Any] = namespace[name]
        return function


class Words:
    """Functions of :class:`struct.Struct` that pack and unpack a structure as machine words.

    Attributes:
        format: the ``struct`` format.
        size: size of the structure in bytes; if the structure may be cut, size up to the last field used.
        pack: ``pack(*words) -> bytes``.
        unpack_from: ``unpack_from(buffer, offset=0) -> words``.
        iter_unpack: ``iter_unpack(buffer) -> iterator of words``. Give bytes: CPython crashes if the garbage
            collector finds an iterator over a memoryview, and the view, in one cycle (a traceback, say).
    """

    def __init__(self, codec: StructureCodec, words: list[list[str]], *, cut: bool) -> None:
        self._codec = codec
        self._shifts: dict[str, int] = {}
        formats, at = [">"], 0
        for word in words:
            start, stop = codec.bits_of(word[0])[0], codec.bits_of(word[-1])[1]
            for name in word:
                self._shifts[name] = stop - codec.bits_of(name)[1]
            field = codec.fields[word[0]]
            letter = f"{field.bits // 8}s" if field.raw else _INT_FORMATS.get(stop - start, "")
            declared = [name for name in codec.fields if start <= codec.bits_of(name)[0] < stop]
            if word != declared or start % 8 or start < at or not letter:
                raise TypeError(f"{codec.name} does not have {'+'.join(word)} as a word in this place")
            if len(word) == 1 and field.signed:
                letter = letter.lower()
            formats.append(f"{(start - at) // 8}x{letter}" if start > at else letter)
            at = stop
        self.size = codec.end_of(*self._shifts) if cut else codec.size
        rest = self.size - at // 8
        self.format = "".join([*formats, f"{rest}x" if rest else ""])
        functions = struct.Struct(self.format)
        self.pack: Callable[..., bytes] = functions.pack
        self.unpack_from: Callable[..., tuple[Any, ...]] = functions.unpack_from
        self.iter_unpack: Callable[..., Iterator[tuple[Any, ...]]] = functions.iter_unpack

    def shift(self, name: str) -> int:
        """Return the distance of a field from the least significant bit of the word."""
        return self._shifts[name]

    def mask(self, name: str) -> int:
        """Return the bits of a field, unshifted: the largest unsigned value."""
        return self._codec.fields[name].mask


def packer_of(*structures: Words) -> Callable[..., bytes]:
    """Return a function that packs the words of several structures, one structure after another."""
    return struct.Struct(">" + "".join(each.format[1:] for each in structures)).pack


#: Every codec by the structure's name.
CODECS: dict[str, StructureCodec] = {
    name: StructureCodec(name, fields_of(declaration)) for name, declaration in LAYOUTS.items()
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
