# SPDX-License-Identifier: Apache-2.0
"""Control messages as JSON, derived from the declarations in :mod:`bmq.wire.control.messages`.

The output is compact: members in schema order, enumerators by name, no nulls, bytes in base64. A choice is an
object with one key, the name of the selection. In a control message this key is next to ``rId``.
"""

from __future__ import annotations

import binascii
import re
from enum import IntEnum
from typing import Any, Literal, NoReturn, cast, overload

from bmq._json import orjson
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
from bmq.wire.notice import FewNotices, Notice, peers_word

__all__ = ["decode_json", "encode_json", "request_id_in_json"]

# Most members, elements and structures of a document that is parsed. A subscription has some fifteen.
_MAX_VALUES = 4 * MAX_ELEMENTS
# A smaller document has fewer values.
_SMALL = _MAX_VALUES
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REQUEST_ID = re.compile(rb'\s*\{\s*"rId"\s*:\s*(\d{1,10})\s*[,}]')
_new = object.__new__
_set = object.__setattr__
_TYPE_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number that is not an integer of 64 bits",
    type(None): "null",
}


def encode_json(message: Message, *, escape_solidus: bool = False, omit_empty_arrays: bool = False) -> bytes:
    r"""Return a message as JSON, without padding.

    Both options reproduce recorded traffic byte for byte; every reader accepts either form. A broker writes
    ``\/`` for ``/`` and omits empty arrays. Clients write ``/``, and write ``"subscriptions":[]`` when
    they deconfigure a stream: there the empty array carries the meaning of the message.

    Args:
        message: the message.
        escape_solidus: write ``/`` as ``\/``.
        omit_empty_arrays: omit empty arrays.

    Raises:
        UsageError: a value does not fit its member.
    """
    document: object = message
    if not isinstance(message, ControlMessage):
        document = {CHOICES[kind_of(message)].names[type(message)]: message}
    members = _filled_members if omit_empty_arrays else _members
    try:
        body = orjson.dumps(document, members, orjson.OPT_PASSTHROUGH_DATACLASS)
    except orjson.JSONEncodeError:
        # A value that does not fit its member, or a text that JSON cannot represent. The slow path tells.
        body = orjson.dumps(_write_message(message, omit_empty_arrays))
    # JSON uses the solidus only inside strings, so replacing every solidus is safe.
    return body.replace(b"/", rb"\/") if escape_solidus else body


def _members(value: Structure) -> dict[str, object]:
    """Return the members of a structure by name, for orjson, which asks again for nested structures.

    Raises:
        TypeError: a value needs the slow path.
    """
    fields: dict[str, object] = {}
    for m in value.MEMBERS:
        content: Any = getattr(value, m.attribute)
        kind = m.kind
        plain: type = content.__class__
        if plain is kind.plain:
            if plain is int and not kind.low <= content <= kind.high:
                raise TypeError
            fields[m.name] = content
        elif content is None:
            if not m.optional and not isinstance(kind, ChoiceKind):
                raise TypeError
        elif isinstance(kind, ChoiceKind):
            fields[kind.names[plain]] = content
        elif plain is kind.exact:
            if plain is tuple:
                element = cast("ArrayKind", kind).element.type
                if not all(each.__class__ is element for each in content):
                    raise TypeError
            elif kind.__class__ is EnumerationKind:
                content = content.name
            fields[m.name] = content
        else:
            raise TypeError
    return fields


def _filled_members(value: Structure) -> dict[str, object]:
    """Return the members of a structure without empty arrays."""
    return {name: content for name, content in _members(value).items() if content != ()}


def _write_message(message: Message, omit_empty_arrays: bool) -> dict[str, object]:
    if isinstance(message, ControlMessage):
        return _write_structure(message, "", omit_empty_arrays)
    name = selection_name(type(message))
    return {name: _write_structure(message, name, omit_empty_arrays)}


def _write_structure(value: Structure, path: str, omit_empty_arrays: bool) -> dict[str, object]:
    """Return the members of a structure by name, each of them checked and converted.

    JSON cannot represent bytes that are not UTF-8 in a text, which a peer may have sent in BER: they are
    replaced.
    """
    fields: dict[str, object] = {}
    for m in value.MEMBERS:
        content: Any = getattr(value, m.attribute)
        kind = m.kind
        if isinstance(kind, ChoiceKind):
            if content is not None:
                selected = kind.check(content, m.name)
                name = selection_name(type(selected))
                fields[name] = _write_structure(selected, name, omit_empty_arrays)
            continue
        if content is None and m.optional:
            continue
        at = join_path(path, m.name)
        if isinstance(kind, SequenceKind):
            fields[m.name] = _write_structure(kind.check(content, at), at, omit_empty_arrays)
        elif isinstance(kind, ArrayKind):
            elements = [_write_structure(e, sub, omit_empty_arrays) for sub, e in kind.check(content, at)]
            if elements or not omit_empty_arrays:
                fields[m.name] = elements
        else:
            fields[m.name] = _write_simple(kind, content, at)
    return fields


def _write_simple(kind: Kind, value: object, path: str) -> object:
    if isinstance(kind, IntegerKind | BooleanKind):
        return kind.check(value, path)
    if isinstance(kind, EnumerationKind):
        return kind.check(value, path).name
    if isinstance(kind, StringKind):
        return kind.check(value, path).decode("utf-8", "replace")
    return binascii.b2a_base64(cast("BytesKind", kind).check(value, path), newline=False).decode("ascii")


@overload
def decode_json(
    body: bytes | memoryview,
    kind: Literal[MessageKind.NEGOTIATION],
    *,
    offset: int = ...,
    notice: Notice | None = ...,
) -> NegotiationMessage: ...
@overload
def decode_json(
    body: bytes | memoryview,
    kind: Literal[MessageKind.CONTROL],
    *,
    offset: int = ...,
    notice: Notice | None = ...,
) -> ControlMessage: ...
@overload
def decode_json(
    body: bytes | memoryview,
    kind: Literal[MessageKind.AUTHENTICATION],
    *,
    offset: int = ...,
    notice: Notice | None = ...,
) -> AuthenticationMessage: ...
@overload
def decode_json(
    body: bytes | memoryview, kind: MessageKind, *, offset: int = ..., notice: Notice | None = ...
) -> Message: ...
def decode_json(
    body: bytes | memoryview, kind: MessageKind, *, offset: int = 8, notice: Notice | None = None
) -> Message:
    """Read a message from JSON.

    Unknown members are skipped, and missing members take their defaults. If several selections are given, the
    last known one counts.

    Args:
        body: the event's body; padding and any other bytes may follow the closing brace.
        kind: the expected kind of message.
        offset: offset of the body in its event, for error messages.
        notice: receives unknown content. With a notice, unknown enumerators are read as E_UNKNOWN or
            E_UNDEFINED; without a notice they are an error, as for a real broker.

    Raises:
        ProtocolError: the body is not JSON or not an object, or a value does not have its member's type.
        UnknownSelection: no known selection is present (a control message is then decoded without a body).
    """
    document = _parse(bytes(body), kind, offset)
    reader = _JsonReader(notice)
    if kind is MessageKind.CONTROL:
        return cast("ControlMessage", reader.structure(ControlMessage, document, ""))
    choice = CHOICES[kind]
    selected = reader.selection(choice, _object(document, kind.value))
    if selected is None:
        raise UnknownSelection(f"expected {choice.expected}, got neither", field=kind.value)
    return cast("Message", selected)


def request_id_in_json(body: bytes) -> int | None:
    """Return the request id of a control message whose other parts cannot be read, or None.

    Of a message beyond the limits, the id is found only at the beginning.
    """
    try:
        document = _parse(body, MessageKind.CONTROL, 0)
    except ProtocolError:
        found = _REQUEST_ID.match(body)
        return int(found[1]) if found else None
    number = cast("dict[str, object]", document).get("rId") if isinstance(document, dict) else None
    return number if type(number) is int else None


def _parse(body: bytes, kind: MessageKind, offset: int) -> object:
    if len(body) > _SMALL:
        check_size(len(body), kind, offset)
        _check_count(body, kind, offset)
    pad = body[-1] if body else 0
    text = body[:-pad] if 1 <= pad <= 4 else body
    # Never chain the parser's exception: it carries the whole document, which may contain credentials.
    problem, prefix = "", b""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        problem = error.msg
        prefix = error.doc[: error.pos].encode()
    try:
        # If the bytes before the error are a whole document, ignore the bytes after it.
        return orjson.loads(prefix)
    except orjson.JSONDecodeError:
        pass
    raise ProtocolError(
        f"expected a JSON object, got {len(body)} bytes that are not JSON: {problem}",
        field=kind.value,
        offset=offset + len(prefix),
    )


def _check_count(body: bytes, kind: MessageKind, offset: int) -> None:
    """Refuse a document of very many values before parsing: in memory they take up to 40 times their size.

    Raises:
        ProtocolError: the document has more values than :data:`_MAX_VALUES`.
    """
    if _count(body) <= _MAX_VALUES:
        return
    # Texts may contain any number of these bytes: an answer to an admin command is nearly a single text.
    texts = (body.count(b'"') - body.count(b'\\"')) // 2
    if texts > _MAX_VALUES or _count(_TEXT.sub(b"", body)) > _MAX_VALUES:
        raise ProtocolError(f"more than {_MAX_VALUES} values in one message", field=kind.value, offset=offset)


def _count(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


class _JsonReader:
    """Reads parsed JSON; ``elements`` counts down the number of array elements still accepted."""

    __slots__ = ("elements", "notice")

    def __init__(self, notice: Notice | None) -> None:
        self.elements = MAX_ELEMENTS
        self.notice = notice

    def structure(self, type: type[Structure], value: object, path: str) -> Structure:
        fields = _object(value, path or type.__name__)
        made = _new(type)
        written: dict[str, str] = {}
        for m in type.MEMBERS:
            kind = m.kind
            if isinstance(kind, ChoiceKind):
                _set(made, m.attribute, self.selection(kind, fields))
            elif m.name in fields:
                content: Any = fields[m.name]
                plain = content.__class__
                if plain is kind.plain and (plain is not int or kind.low <= content <= kind.high):
                    pass
                elif plain is str and content in kind.by_name:
                    content = kind.by_name[content]
                else:
                    if self.notice is not None and isinstance(kind, EnumerationKind):
                        content = self.enumerator(type, m, content, written)
                    content = self.member(m, content, f"{path}.{m.name}" if path else m.name)
                _set(made, m.attribute, content)
            else:
                _set(made, m.attribute, m.default)
        if written:
            _set(made, "written", written)
        if self.notice is not None and not fields.keys() <= type.NAMES:
            for name in sorted(fields.keys() - type.NAMES):
                self.note(f"the member {peers_word(name)} of {type.__name__}")
        return made

    def note(self, what: str) -> None:
        """Report unknown content; of a message with very much of it, only the first."""
        if self.notice is not None:
            if not isinstance(self.notice, FewNotices):
                self.notice = FewNotices(self.notice)
            self.notice(what)

    def enumerator(self, type: type[Structure], m: Member, value: object, written: dict[str, str]) -> object:
        """Return an enumerator, or the substitute for an unknown one."""
        kind = cast("EnumerationKind", m.kind)
        if not isinstance(value, str | int) or isinstance(value, bool) or kind.knows(value):
            return value
        written[m.attribute] = peers_word(value)
        self.note(f"the enumerator {written[m.attribute]} of {type.__name__}.{m.name}")
        return int(kind.unknown)

    def selection(self, choice: ChoiceKind, fields: dict[str, object]) -> Structure | None:
        selected = None
        for name, content in fields.items():
            type = choice.selections.get(name)
            if type is not None:
                selected = self.structure(type, content, name)
        return selected

    def member(self, m: Member, value: object, path: str) -> object:
        if value is None and m.optional:
            return None
        kind = m.kind
        if isinstance(kind, SequenceKind):
            return self.structure(kind.type, value, path)
        if isinstance(kind, ArrayKind):
            if not isinstance(value, list):
                _refuse("an array", value, path)
            return self.array(kind, cast("list[object]", value), path)
        return _read_simple(kind, value, path)

    def array(self, kind: ArrayKind, values: list[object], path: str) -> tuple[Structure, ...]:
        self.elements -= len(values)
        if self.elements < 0:
            raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one message", field=path)
        type = kind.element.type
        return tuple(self.structure(type, value, f"{path}[{i}]") for i, value in enumerate(values))


def _read_simple(kind: Kind, value: object, path: str) -> object:
    if isinstance(kind, EnumerationKind):
        return _read_enumerator(kind, value, path)
    if isinstance(kind, IntegerKind):
        if type(value) is not int or not kind.low <= value <= kind.high:
            _refuse(kind.expected, value, path)
    elif isinstance(kind, BooleanKind):
        if not isinstance(value, bool):
            _refuse(kind.expected, value, path)
    elif not isinstance(value, str):
        _refuse("a string", value, path)
    elif isinstance(kind, BytesKind):
        return _read_base64(value, path)
    return value


def _read_enumerator(kind: EnumerationKind, value: object, path: str) -> IntEnum:
    if isinstance(value, str | int) and not isinstance(value, bool) and kind.knows(value):
        return kind.type[value] if isinstance(value, str) else kind.type(value)
    _refuse(kind.expected, value, path, show=True)


def _read_base64(value: str, path: str) -> bytes:
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        pass
    # Raised here, and without the text: neither message nor context may contain credentials.
    raise ProtocolError("expected base64, got another string", field=path)


def _object(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        _refuse("an object", value, path)
    return cast("dict[str, object]", value)


def _refuse(expected: str, value: Any, path: str, *, show: bool = False) -> NoReturn:
    # Show strings only in place of an enumerator: elsewhere a string may be misplaced credentials.
    if type(value) is int or (show and isinstance(value, str)):
        got = f"{value!r:.80}"
    else:
        got = _TYPE_NAMES[type(value)]
    raise ProtocolError(f"expected {expected}, got {got}", field=path)
