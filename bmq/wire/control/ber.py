# SPDX-License-Identifier: Apache-2.0
"""Control messages as BER, derived from the declarations in :mod:`bmq.wire.control.messages`.

Every member is an element: context tag, length and content. The schema alone determines the type of the
content. The writer is canonical: constructed elements have indefinite lengths, and every member other than
null is written, defaults included. The reader accepts everything that the official decoder accepts, and
bounds its work: the reader compares lengths with the remaining bytes before use, counts elements, and skips
unknown elements without recursion.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Any, Literal, NamedTuple, NoReturn, cast, overload

from bmq.errors import ProtocolError
from bmq.wire.control.messages import (
    CHOICES,
    AuthenticationMessage,
    ControlMessage,
    Message,
    MessageKind,
    NegotiationMessage,
    UnknownSelection,
    check_size,
    kind_of,
)
from bmq.wire.control.schema import (
    MAX_ELEMENTS,
    ArrayKind,
    BooleanKind,
    BytesKind,
    ChoiceKind,
    EnumerationKind,
    IntegerKind,
    Kind,
    Member,
    SequenceKind,
    StringKind,
    Structure,
    join_path,
    selection_name,
)
from bmq.wire.notice import FewNotices, Notice

__all__ = ["decode_ber", "encode_ber", "request_id_in_ber"]

_CLASS = 0xC0
_CONTEXT = 0x80
_CONSTRUCTED = 0x20
_SEQUENCE = 16
_LONG_TAG = 0x1F
_INDEFINITE = -1

# Largest nesting depth of skipped elements; the official decoder has the same limit.
_MAX_DEPTH = 512
_MAX_TAG_OCTETS = 5
_MAX_LENGTH_OCTETS = 4


def encode_ber(message: Message, *, omit: Collection[str] = ()) -> bytes:
    """Return a message in BER, without padding.

    Args:
        message: the message.
        omit: paths of members to omit, as reported by :func:`decode_ber`; the result is the message as a
            peer with an older schema writes it.

    Raises:
        UsageError: a value does not fit its member.
    """
    out = bytearray(b"\x30\x80")
    if isinstance(message, ControlMessage):
        _write_members(out, message, "", omit)
    else:
        choice = CHOICES[kind_of(message)]
        out += b"\xa0\x80"
        _write_selection(out, choice, message, omit)
        out += b"\0\0"
    out += b"\0\0"
    return bytes(out)


def _write_members(out: bytearray, value: Structure, path: str, omit: Collection[str]) -> None:
    for m in value.MEMBERS:
        content: object = getattr(value, m.attribute)
        at = join_path(path, m.name)
        if (content is None and m.optional) or at in omit:
            continue
        kind = m.kind
        if not isinstance(kind, SequenceKind | ArrayKind | ChoiceKind):
            octets = _write_simple(kind, content, at)
            out.append(_CONTEXT | m.id)
            _write_length(out, len(octets))
            out += octets
            continue
        out += bytes((_CONTEXT | _CONSTRUCTED | m.id, 0x80))
        if isinstance(kind, SequenceKind):
            _write_members(out, kind.check(content, at), at, omit)
        elif isinstance(kind, ArrayKind):
            for sub, element in kind.check(content, at):
                out += b"\x30\x80"
                _write_members(out, element, sub, omit)
                out += b"\0\0"
        elif content is not None:
            _write_selection(out, kind, kind.check(content, at), omit)
        out += b"\0\0"


def _write_selection(out: bytearray, choice: ChoiceKind, value: Structure, omit: Collection[str]) -> None:
    out += bytes((_CONTEXT | _CONSTRUCTED | choice.ids[type(value)], 0x80))
    _write_members(out, value, selection_name(type(value)), omit)
    out += b"\0\0"


def _write_simple(kind: Kind, value: object, path: str) -> bytes:
    if isinstance(kind, IntegerKind | EnumerationKind):
        number = int(kind.check(value, path))
        # The shortest two's complement; an unsigned number gets a leading zero if its top bit is set.
        bits = number if number >= 0 else ~number
        return number.to_bytes(bits.bit_length() // 8 + 1, "big", signed=True)
    if isinstance(kind, BooleanKind):
        return b"\1" if kind.check(value, path) else b"\0"
    return cast("StringKind | BytesKind", kind).check(value, path)


def _write_length(out: bytearray, length: int) -> None:
    if length < 0x80:
        out.append(length)
        return
    octets = length.to_bytes((length.bit_length() + 7) // 8, "big")
    out.append(0x80 | len(octets))
    out += octets


@overload
def decode_ber(
    body: bytes | memoryview,
    kind: Literal[MessageKind.NEGOTIATION],
    *,
    offset: int = ...,
    missing: set[str] | None = ...,
    notice: Notice | None = ...,
) -> NegotiationMessage: ...
@overload
def decode_ber(
    body: bytes | memoryview,
    kind: Literal[MessageKind.CONTROL],
    *,
    offset: int = ...,
    missing: set[str] | None = ...,
    notice: Notice | None = ...,
) -> ControlMessage: ...
@overload
def decode_ber(
    body: bytes | memoryview,
    kind: Literal[MessageKind.AUTHENTICATION],
    *,
    offset: int = ...,
    missing: set[str] | None = ...,
    notice: Notice | None = ...,
) -> AuthenticationMessage: ...
@overload
def decode_ber(
    body: bytes | memoryview,
    kind: MessageKind,
    *,
    offset: int = ...,
    missing: set[str] | None = ...,
    notice: Notice | None = ...,
) -> Message: ...
def decode_ber(
    body: bytes | memoryview,
    kind: MessageKind,
    *,
    offset: int = 8,
    missing: set[str] | None = None,
    notice: Notice | None = None,
) -> Message:
    """Read a message from BER.

    Unknown elements are skipped, missing elements take their defaults, and elements may have any order. If
    a member is repeated, the last value wins, except that structures merge and arrays append. Bytes after the
    message, such as padding, are ignored.

    Args:
        body: the event's body.
        kind: the expected kind of message.
        offset: offset of the body in its event, for error messages.
        missing: if given, receives the paths of members that the schema requires and the peer omitted.
        notice: receives unknown content. With a notice, unknown enumerators are read as E_UNKNOWN or
            E_UNDEFINED; without a notice they are an error, as for a real broker.

    Raises:
        ProtocolError: the body is not BER, or an element or value does not have its member's type.
        UnknownSelection: no known selection is present (a control message is then decoded without a body).
    """
    check_size(len(body), kind, offset)
    return cast("Message", _BerReader(bytes(body), offset, missing, notice).message(kind))


def request_id_in_ber(body: bytes) -> int | None:
    """Return the request id of a control message whose other parts cannot be read, or None."""
    reader = _BerReader(body, 0, None, None)
    gathered: dict[str, Any] = {}
    try:
        reader.members(ControlMessage, *reader.enter_sequence(len(body), ""), gathered, "")
    except ProtocolError:
        pass
    number: int | None = gathered.get("r_id")
    return number


class _Unknown(NamedTuple):
    """An unknown enumerator: its substitute, and its number."""

    value: IntEnum
    written: str


class _BerReader:
    """A position in a body.

    Structures are collected as dictionaries first, because a repeated structure merges into the earlier one.
    ``limit`` is always the end of the innermost element of definite length, or of the body. ``elements``
    counts down the number of elements still accepted.
    """

    __slots__ = ("body", "elements", "missing", "notice", "offset", "position")

    def __init__(self, body: bytes, offset: int, missing: set[str] | None, notice: Notice | None) -> None:
        self.notice = None if notice is None else FewNotices(notice)
        self.body = body
        self.offset = offset
        self.missing = missing
        self.position = 0
        self.elements = MAX_ELEMENTS

    def message(self, kind: MessageKind) -> Structure:
        limit = len(self.body)
        end, limit = self.enter_sequence(limit, kind.value)
        if kind is MessageKind.CONTROL:
            gathered: dict[str, Any] = {}
            self.members(ControlMessage, end, limit, gathered, "")
            return self.build(ControlMessage, gathered, "")
        choice = CHOICES[kind]
        start = self.position
        form, number, length = self.header(limit, kind.value)
        if form != _CONTEXT | _CONSTRUCTED or number != 0:
            self.fail("expected the choice's wrapper, tag [0] constructed", kind.value, start)
        selected = self.selection(choice, *self.enter(length, limit), kind.value)
        if self.more(end, limit, kind.value):
            self.fail("expected the end of the message, got another element", kind.value)
        if selected is None:
            raise UnknownSelection(
                f"expected {choice.expected}, got neither", field=kind.value, offset=self.offset + start
            )
        type, gathered = selected
        return self.build(type, gathered, selection_name(type))

    # Elements

    def octet(self, limit: int, path: str) -> int:
        if self.position >= limit:
            self.fail("ends in the middle of an element", path)
        octet = self.body[self.position]
        self.position += 1
        return octet

    def header(self, limit: int, path: str) -> tuple[int, int, int]:
        """Read a tag and a length: class and constructed bits, number, length. The content is inside the
        limit.
        """
        start = self.position
        self.elements -= 1
        if self.elements < 0:
            self.fail(f"more than {MAX_ELEMENTS} elements in one message", path)
        octet = self.octet(limit, path)
        number = octet & _LONG_TAG
        if number == _LONG_TAG:
            number = 0
            for _ in range(_MAX_TAG_OCTETS):
                more = self.octet(limit, path)
                number = number << 7 | more & 0x7F
                if more < 0x80:
                    break
            else:
                self.fail(f"a tag number of more than {_MAX_TAG_OCTETS} octets", path, start)
        length = self.octet(limit, path)
        if length == 0x80:
            return octet & ~_LONG_TAG, number, _INDEFINITE
        if length > 0x80:
            count = length & 0x7F
            if count > _MAX_LENGTH_OCTETS:
                self.fail(
                    f"a length of {count} octets; at most {_MAX_LENGTH_OCTETS} are allowed", path, start
                )
            length = 0
            for _ in range(count):
                length = length << 8 | self.octet(limit, path)
        if length > limit - self.position:
            left = limit - self.position
            self.fail(f"element [{number}] has {length} bytes, only {left} are left", path, start)
        return octet & ~_LONG_TAG, number, length

    def enter(self, length: int, limit: int) -> tuple[int, int]:
        """Return the end of the current element (-1 if the length is indefinite), and the limit inside."""
        if length == _INDEFINITE:
            return _INDEFINITE, limit
        return self.position + length, self.position + length

    def enter_sequence(self, limit: int, path: str) -> tuple[int, int]:
        """Enter an element with a universal tag: the message, or an element of an array."""
        start = self.position
        form, number, length = self.header(limit, path)
        if form != _CONSTRUCTED or number != _SEQUENCE:
            self.fail(f"expected a SEQUENCE (tag 30), got tag {self.body[start]:02x}", path, start)
        return self.enter(length, limit)

    def more(self, end: int, limit: int, path: str) -> bool:
        """Whether another element follows inside the current one; if not, leave the current one."""
        if end != _INDEFINITE:
            return self.position < end
        start = self.position
        if self.octet(limit, path) != 0:
            self.position = start
            return True
        if self.octet(limit, path) != 0:
            self.fail("expected the end of contents (00 00)", path, start)
        return False

    def skip(self, form: int, length: int, limit: int, path: str) -> None:
        """Skip the content of an unknown element: definite lengths at once, indefinite lengths level by
        level.
        """
        depth = 0
        while True:
            if length != _INDEFINITE:
                self.position += length
            elif not form & _CONSTRUCTED:
                self.fail("a primitive element of indefinite length", path)
            elif depth == _MAX_DEPTH:
                self.fail(f"nested more than {_MAX_DEPTH} deep", path)
            else:
                depth += 1
            while depth and not self.more(_INDEFINITE, limit, path):
                depth -= 1
            if not depth:
                return
            form, _, length = self.header(limit, path)

    # Values

    def members(
        self, type: type[Structure], end: int, limit: int, gathered: dict[str, Any], path: str
    ) -> None:
        while self.more(end, limit, path):
            start = self.position
            form, number, length = self.header(limit, path)
            if form & _CLASS != _CONTEXT:
                self.fail(f"expected a context tag, got tag {self.body[start]:02x}", path, start)
            if number < len(type.MEMBERS):
                self.member(type.MEMBERS[number], form, length, limit, gathered, path, start)
            else:
                if self.notice is not None:
                    self.notice(f"the member [{number}] of {type.__name__}")
                self.skip(form, length, limit, path)

    def member(
        self,
        m: Member,
        form: int,
        length: int,
        limit: int,
        gathered: dict[str, Any],
        path: str,
        start: int,
    ) -> None:
        kind = m.kind
        at = join_path(path, m.name)
        nested = isinstance(kind, SequenceKind | ArrayKind | ChoiceKind)
        if nested != bool(form & _CONSTRUCTED):
            wanted, got = ("constructed", "primitive") if nested else ("primitive", "constructed")
            self.fail(f"expected {kind.expected} in a {wanted} element, got a {got} one", at, start)
        if isinstance(kind, SequenceKind):
            # A repeated optional structure starts empty; other structures keep the earlier values.
            inner: dict[str, Any] = {} if m.optional else gathered.get(m.attribute, {})
            gathered[m.attribute] = inner
            self.members(kind.type, *self.enter(length, limit), inner, at)
        elif isinstance(kind, ArrayKind):
            self.array(kind, *self.enter(length, limit), gathered.setdefault(m.attribute, []), at)
        elif isinstance(kind, ChoiceKind):
            selected = self.selection(kind, *self.enter(length, limit), at)
            if selected is not None:
                gathered[m.attribute] = selected
        elif length == _INDEFINITE:
            self.fail(f"expected {kind.expected}, got an indefinite length", at, start)
        else:
            content = self.body[self.position : self.position + length]
            gathered[m.attribute] = self.simple(kind, content, at, start)
            self.position += length

    def array(self, kind: ArrayKind, end: int, limit: int, gathered: list[dict[str, Any]], path: str) -> None:
        while self.more(end, limit, path):
            at = f"{path}[{len(gathered)}]"
            inner_end, inner_limit = self.enter_sequence(limit, at)
            inner: dict[str, Any] = {}
            gathered.append(inner)
            self.members(kind.element.type, inner_end, inner_limit, inner, at)

    def selection(
        self, choice: ChoiceKind, end: int, limit: int, path: str
    ) -> tuple[type[Structure], dict[str, Any]] | None:
        if not self.more(end, limit, path):
            return None
        start = self.position
        form, number, length = self.header(limit, path)
        if form & _CLASS != _CONTEXT:
            self.fail(f"expected a context tag, got tag {self.body[start]:02x}", path, start)
        selected = None
        type = choice.by_id.get(number)
        if type is None:
            if self.notice is not None:
                self.notice(f"the choice [{number}] of {path or ControlMessage.__name__}")
            self.skip(form, length, limit, path)
        else:
            name = selection_name(type)
            if not form & _CONSTRUCTED:
                self.fail("expected a constructed element, got a primitive one", name, start)
            selected = type, dict[str, Any]()
            self.members(type, *self.enter(length, limit), selected[1], name)
        if self.more(end, limit, path):
            self.fail("expected one selection, got a second", path)
        return selected

    def simple(self, kind: Kind, content: bytes, path: str, start: int) -> object:
        if isinstance(kind, StringKind):
            return content.decode("utf-8", "surrogateescape")
        if isinstance(kind, BytesKind):
            return content
        if isinstance(kind, BooleanKind):
            if len(content) != 1:
                self.fail(f"expected a boolean of 1 octet, got {len(content)}", path, start)
            return content != b"\0"
        if isinstance(kind, EnumerationKind):
            number = self.integer(content, 32, kind.expected, path, start)
            if kind.knows(number):
                return kind.type(number)
            if self.notice is None:
                self.fail(f"expected {kind.expected}, got {number}", path, start)
            return _Unknown(kind.unknown, str(number))
        integer = cast("IntegerKind", kind)
        octets = len(content)
        if not integer.signed and octets == integer.bits // 8 + 1 and content[0] == 0:
            return int.from_bytes(content, "big")
        number = self.integer(content, integer.bits, integer.expected, path, start)
        # Like the official reader: extend the sign of unsigned numbers too, and drop the excess bits.
        return number if integer.signed else number % (1 << integer.bits)

    def integer(self, content: bytes, bits: int, expected: str, path: str, start: int) -> int:
        if not 1 <= len(content) <= bits // 8:
            self.fail(f"expected {expected} of 1 to {bits // 8} octets, got {len(content)}", path, start)
        return int.from_bytes(content, "big", signed=True)

    # Results

    def build(self, type: type[Structure], gathered: dict[str, Any], path: str) -> Structure:
        values: dict[str, object] = {}
        written: dict[str, str] = {}
        for m in type.MEMBERS:
            kind = m.kind
            at = join_path(path, m.name)
            if m.attribute not in gathered:
                if self.missing is not None and not m.optional:
                    self.missing.add(at)
                continue
            value = gathered[m.attribute]
            if isinstance(kind, SequenceKind):
                value = self.build(kind.type, value, at)
            elif isinstance(kind, ArrayKind):
                inner = kind.element.type
                value = tuple(self.build(inner, each, f"{at}[{i}]") for i, each in enumerate(value))
            elif isinstance(kind, ChoiceKind):
                selected, inner = value
                value = self.build(selected, inner, selection_name(selected))
            elif isinstance(value, _Unknown):
                value, written[m.attribute] = value
                if self.notice is not None:
                    self.notice(f"the enumerator {written[m.attribute]} of {type.__name__}.{m.name}")
            values[m.attribute] = value
        made = type(**values)
        if written:
            object.__setattr__(made, "written", written)
        return made

    def fail(self, problem: str, path: str, start: int | None = None) -> NoReturn:
        at = self.position if start is None else start
        raise ProtocolError(problem, field=path or ControlMessage.__name__, offset=self.offset + at)
