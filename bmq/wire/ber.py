# SPDX-License-Identifier: Apache-2.0
"""Control messages as BER, derived from the declarations in :mod:`bmq.wire.control`.

Every member is an element: context tag, length and content. The schema alone determines the type of the
content. The writer is canonical: constructed elements have indefinite lengths, and every member other than
null is written, defaults included. The reader accepts everything that the official decoder accepts, and
bounds its work: the reader compares lengths with the remaining bytes before use, counts elements, and skips
unknown elements without recursion.
"""

from __future__ import annotations

from typing import Any, NoReturn

from bmq.errors import ProtocolError
from bmq.wire.control import (
    MAX_ELEMENTS,
    SELECTIONS,
    ControlMessage,
    Member,
    Message,
    MessageKind,
    Structure,
    check_size,
    from_document,
    kind_of,
    members,
    selection_name,
)
from bmq.wire.notice import FewNotices, Notice

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
_R_ID = members(ControlMessage)[0]


def encode_ber(message: Message) -> bytes:
    """Return a message in BER, without padding.

    Raises:
        UsageError: the message cannot be sent on its own.
    """
    kind = kind_of(message)
    if not isinstance(message, ControlMessage):
        return _constructed(0x30, _constructed(0xA0, _selection(kind, message)))
    r_id = b"" if message.r_id is None else _primitive(0x80, message.r_id)
    body = b"" if message.body is None else _selection(kind, message.body)
    return _constructed(0x30, r_id + _constructed(0xA1, body))


def _selection(kind: MessageKind, value: Structure) -> bytes:
    number = next(number for number, type_ in SELECTIONS[kind].items() if type_ is type(value))
    return _constructed(_CONTEXT | _CONSTRUCTED | number, _contents(value))


def _constructed(tag: int, contents: bytes) -> bytes:
    return bytes((tag, 0x80)) + contents + b"\0\0"


def _contents(value: Structure) -> bytes:
    parts: list[bytes] = []
    for m in members(type(value)):
        content: Any = getattr(value, m.attribute)
        if m.array:
            elements = b"".join(_constructed(0x30, _contents(element)) for element in content)
            parts.append(_constructed(_CONTEXT | _CONSTRUCTED | m.number, elements))
        elif isinstance(content, Structure):
            parts.append(_constructed(_CONTEXT | _CONSTRUCTED | m.number, _contents(content)))
        elif content is not None:
            parts.append(_primitive(_CONTEXT | m.number, content))
    return b"".join(parts)


def _primitive(tag: int, value: int | str | bytes) -> bytes:
    if isinstance(value, bool):
        octets = b"\1" if value else b"\0"
    elif isinstance(value, int):
        # The shortest two's complement; an unsigned number gets a leading zero if its top bit is set.
        bits = value if value >= 0 else ~value
        octets = value.to_bytes(bits.bit_length() // 8 + 1, "big", signed=True)
    elif isinstance(value, str):
        octets = value.encode("utf-8", "surrogateescape")
    else:
        octets = value
    if len(octets) < 0x80:
        return bytes((tag, len(octets))) + octets
    length = len(octets).to_bytes((len(octets).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + octets


def decode_ber(
    body: bytes | memoryview, kind: MessageKind, *, offset: int = 8, notice: Notice | None = None
) -> Message:
    """Read a message from BER.

    Unknown elements are skipped, missing elements take their defaults, and elements may have any order. If
    a member is repeated, the last value wins, except that structures merge and arrays append. Bytes after the
    message, such as padding, are ignored.

    Args:
        body: the event's body.
        kind: the expected kind of message.
        offset: offset of the body in its event, for error messages.
        notice: see :func:`bmq.wire.control.from_document`.

    Raises:
        ProtocolError: the body is not BER, or an element or value does not have its member's type.
        UnknownSelection: no known selection is present (a control message is then decoded without a body).
    """
    check_size(len(body), kind, offset)
    return from_document(_BerReader(bytes(body), offset, notice).message(kind), kind, notice)


def request_id_in_ber(body: bytes) -> int | None:
    """Return the request id of a control message whose other parts cannot be read, or None."""
    document: dict[str, Any] = {}
    try:
        _BerReader(body, 0, None).control(document)
    except ProtocolError:
        pass
    number: int | None = document.get("rId")
    return number


class _BerReader:
    """A position in a body; makes a document of it.

    ``limit`` is always the end of the innermost element of definite length, or of the body. ``elements``
    counts down the number of elements still accepted.
    """

    __slots__ = ("body", "elements", "notice", "offset", "position")

    def __init__(self, body: bytes, offset: int, notice: Notice | None) -> None:
        self.notice = None if notice is None else FewNotices(notice)
        self.body = body
        self.offset = offset
        self.position = 0
        self.elements = MAX_ELEMENTS

    def message(self, kind: MessageKind) -> dict[str, Any]:
        document: dict[str, Any] = {}
        if kind is MessageKind.CONTROL:
            self.control(document)
            return document
        end, limit = self.enter_sequence(len(self.body), kind.value)
        start = self.position
        form, number, length = self.header(limit, kind.value)
        if form != _CONTEXT | _CONSTRUCTED or number != 0:
            self.fail("expected the choice's wrapper, tag [0] constructed", kind.value, start)
        self.selection(kind, *self.enter(length, limit), document)
        if self.more(end, limit, kind.value):
            self.fail("expected the end of the message, got another element", kind.value)
        return document

    def control(self, document: dict[str, Any]) -> None:
        """Read a control message: rId, and the choice."""
        end, limit = self.enter_sequence(len(self.body), "")
        while self.more(end, limit, ""):
            start = self.position
            form, number, length = self.header(limit, "")
            self.context(form, "", start)
            if number == 0:
                document["rId"] = self.simple(_R_ID, form, length, "rId", start)
            elif number == 1:
                if not form & _CONSTRUCTED:
                    self.fail("expected a constructed choice, got a primitive element", "body", start)
                self.selection(MessageKind.CONTROL, *self.enter(length, limit), document)
            else:
                self.unknown(f"the member [{number}] of ControlMessage", form, length, limit, "")

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

    def context(self, form: int, path: str, start: int) -> None:
        if form & _CLASS != _CONTEXT:
            self.fail(f"expected a context tag, got tag {self.body[start]:02x}", path, start)

    def unknown(self, what: str, form: int, length: int, limit: int, path: str) -> None:
        if self.notice is not None:
            self.notice(what)
        self.skip(form, length, limit, path)

    # Values

    def selection(self, kind: MessageKind, end: int, limit: int, document: dict[str, Any]) -> None:
        path = "body" if kind is MessageKind.CONTROL else kind.value
        if not self.more(end, limit, path):
            return
        start = self.position
        form, number, length = self.header(limit, path)
        self.context(form, path, start)
        type = SELECTIONS[kind].get(number)
        if type is None:
            self.unknown(f"the choice [{number}] of {kind.value}", form, length, limit, path)
        else:
            name = selection_name(type)
            if not form & _CONSTRUCTED:
                self.fail("expected a constructed element, got a primitive one", name, start)
            document[name] = {}
            self.members(type, *self.enter(length, limit), document[name], name)
        if self.more(end, limit, path):
            self.fail("expected one selection, got a second", path)

    def members(
        self, type: type[Structure], end: int, limit: int, document: dict[str, Any], path: str
    ) -> None:
        known = members(type)
        while self.more(end, limit, path):
            start = self.position
            form, number, length = self.header(limit, path)
            self.context(form, path, start)
            if number < len(known):
                self.member(
                    known[number], form, length, limit, document, f"{path}.{known[number].name}", start
                )
            else:
                self.unknown(f"the member [{number}] of {type.__name__}", form, length, limit, path)

    def member(
        self, m: Member, form: int, length: int, limit: int, document: dict[str, Any], path: str, start: int
    ) -> None:
        nested = m.array or issubclass(m.kind, Structure)
        if nested and not form & _CONSTRUCTED:
            self.fail(f"expected a constructed {m.kind.__name__}, got a primitive element", path, start)
        if m.array:
            self.array(m.kind, *self.enter(length, limit), document.setdefault(m.name, []), path)
        elif nested:
            # A repeated optional structure starts empty; other structures keep the earlier values.
            inner: dict[str, Any] = {} if m.optional else document.get(m.name, {})
            document[m.name] = inner
            self.members(m.kind, *self.enter(length, limit), inner, path)
        else:
            document[m.name] = self.simple(m, form, length, path, start)

    def array(
        self, type: type[Structure], end: int, limit: int, elements: list[dict[str, Any]], path: str
    ) -> None:
        while self.more(end, limit, path):
            at = f"{path}[{len(elements)}]"
            inner_end, inner_limit = self.enter_sequence(limit, at)
            elements.append({})
            self.members(type, inner_end, inner_limit, elements[-1], at)

    def simple(self, m: Member, form: int, length: int, path: str, start: int) -> object:
        if form & _CONSTRUCTED:
            self.fail(f"expected a primitive {m.kind.__name__}, got a constructed element", path, start)
        if length == _INDEFINITE:
            self.fail(f"expected {m.kind.__name__}, got an indefinite length", path, start)
        content = self.body[self.position : self.position + length]
        self.position += length
        if m.kind is str:
            return content.decode("utf-8", "surrogateescape")
        if m.kind is bytes:
            return content
        if m.kind is bool:
            if length != 1:
                self.fail(f"expected a boolean of 1 octet, got {length}", path, start)
            return content != b"\0"
        unsigned = not m.signed
        if unsigned and length == m.bits // 8 + 1 and content[0] == 0:
            return int.from_bytes(content, "big")
        if not 1 <= length <= m.bits // 8:
            self.fail(f"expected an integer of 1 to {m.bits // 8} octets, got {length}", path, start)
        number = int.from_bytes(content, "big", signed=True)
        # Like the official reader: extend the sign of unsigned numbers too, and drop the excess bits.
        return number % (1 << m.bits) if unsigned else number

    # Results

    def fail(self, problem: str, path: str, start: int | None = None) -> NoReturn:
        at = self.position if start is None else start
        raise ProtocolError(problem, field=path or ControlMessage.__name__, offset=self.offset + at)
