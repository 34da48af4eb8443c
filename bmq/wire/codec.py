# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""Fast codecs, derived from the Construct declarations.

Construct reads well and runs slowly: some 50,000 headers a second. So the fields of each declaration, which
``bmq/wire/_fields.py`` has written out, are gathered into machine words; small functions are generated, when
they are first asked for, that pack and unpack those words with one precompiled :class:`struct.Struct`. A
property test holds the two equal for arbitrary field values. There is no second, hand-written layout.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bmq.errors import ProtocolError
from bmq.wire._fields import FIELDS

__all__ = ["CODECS", "Field", "StructItem", "StructureCodec", "new_tuple"]

#: ``new_tuple(SomeNamedTuple, items)``: half the cost of calling the class, and as readable.
new_tuple: Callable[[Any, tuple[Any, ...]], Any] = tuple.__new__

_INT_FORMATS = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a structure: its place in the slot that carries it.

    Attributes:
        name: the field's name in the protocol.
        bits: its width.
        shift: how far it is from the slot's least significant bit (0 for bytes).
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
    """One item of the ``struct`` format, holding one or more fields."""

    format: str
    fields: tuple[Field, ...]

    @property
    def wide(self) -> bool:
        """Whether integers in this slot travel as a byte string (no struct code has the width)."""
        return self.format.endswith("s") and not self.fields[0].raw


def _gather(fields: list[Field]) -> list[StructItem]:
    slots: list[StructItem] = []
    run: list[Field] = []

    def close(fmt: str) -> None:
        if any(f.signed for f in run) and not (len(run) == 1 and len(fmt) == 1):
            raise TypeError(f"fields {[f.name for f in run]}: a signed field needs a machine word of its own")
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
        name: the structure's name in the protocol.
        size: its length in bytes.
        fields: its fields by name.
        struct: the precompiled struct; its items are ``slots``, in order.
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

    def offset_of(self, name: str) -> int:
        """Return where in the structure the machine word with a field begins, in bytes."""
        at = 0
        for slot in self.slots:
            if any(field.name == name for field in slot.fields):
                return at
            at += struct.calcsize(f">{slot.format}")
        raise TypeError(f"{self.name} has no field {name}")

    @cached_property
    def pack(self) -> Callable[..., bytes]:
        """``pack(*fields)`` in declaration order."""
        return self.packer()

    @cached_property
    def unpack_from(self) -> Callable[..., tuple[Any, ...]]:
        """``unpack_from(buffer, offset) -> tuple of every field`` in declaration order."""
        return self.unpacker(*self.fields)

    def packer(self, **constants: int | bytes) -> Callable[..., bytes]:
        """Generate ``pack(*remaining fields) -> bytes`` with some fields fixed.

        The generated function trusts its arguments: a value too large for its field raises
        ``struct.error`` or spills into its neighbour, so callers check sizes first.
        """
        if unknown := constants.keys() - self.fields.keys():
            raise TypeError(f"{self.name} has no field {', '.join(sorted(unknown))}")
        args = [name for name in self.fields if name not in constants]
        if not constants and all(len(slot.fields) == 1 and not slot.wide for slot in self.slots):
            return self.struct.pack
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
                else:
                    terms.append(f"{f.name} << {f.shift}" if f.shift else f.name)
            if fixed or not terms:
                terms.append(str(fixed))
            text = " | ".join(terms)
            if slot.wide:
                text = f"({text}).to_bytes({slot.format[:-1]}, 'big')"
            items.append(text)
        source = f"def pack({', '.join(args)}):\n    return _pack({', '.join(items)})\n"
        return self._generate(source, "pack")

    def unpacker(self, *names: str) -> Callable[..., tuple[Any, ...]]:
        """Generate ``unpack_from(buffer, offset=0) -> tuple of the named fields``.

        The generated function raises ``struct.error`` when the buffer is too short; :meth:`read` is the
        checked form.
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
                f"{self.size} bytes expected, only {max(0, len(buffer) - offset)} there",
                field=self.name,
                offset=offset,
            )
        return dict(zip(self.fields, self.unpack_from(buffer, offset), strict=True))

    def build(self, **values: int | bytes) -> bytes:
        """Return the structure's bytes from fields by name; absent fields are 0."""
        zero = {name: bytes(f.bits // 8) if f.raw else 0 for name, f in self.fields.items()}
        return self.pack(*(zero | values).values())

    def _generate(self, source: str, name: str) -> Callable[..., Any]:
        namespace: dict[str, Any] = {"_pack": self.struct.pack, "_unpack_from": self.struct.unpack_from}
        exec(compile(source, f"<{self.name}.{name}>", "exec"), namespace)
        function: Callable[..., Any] = namespace[name]
        return function


#: Every codec by the structure's name.
CODECS: dict[str, StructureCodec] = {name: StructureCodec(name, fields) for name, fields in FIELDS.items()}

EVENT_HEADER = CODECS["EventHeader"]
PUT_HEADER = CODECS["PutHeader"]
PUSH_HEADER = CODECS["PushHeader"]
OPTION_HEADER = CODECS["OptionHeader"]
SUB_QUEUE_ID = CODECS["SubQueueId"]
ACK_HEADER = CODECS["AckHeader"]
ACK_MESSAGE = CODECS["AckMessage"]
CONFIRM_HEADER = CODECS["ConfirmHeader"]
CONFIRM_MESSAGE = CODECS["ConfirmMessage"]
PROPERTIES_HEADER = CODECS["MessagePropertiesHeader"]
PROPERTY_HEADER = CODECS["MessagePropertyHeader"]
MESSAGE_GUID = CODECS["MessageGUID"]
