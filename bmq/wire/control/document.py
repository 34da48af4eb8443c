# SPDX-License-Identifier: Apache-2.0
"""Control messages as documents of dictionaries, lists and plain values, the common form of both encodings.

A document has the protocol's names. A message is an object with one selection, named after its type; in a
control message the selection is next to ``rId``. msgspec checks the types and ranges of the values.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Set
from enum import IntEnum
from typing import Any, cast

import msgspec

from bmq.errors import ProtocolError, UsageError
from bmq.wire.control.messages import (
    SELECTIONS,
    ControlBody,
    ControlMessage,
    Message,
    MessageKind,
    RequestId,
    Status,
    Structure,
    UnknownSelection,
    kind_of,
    members,
    selection_name,
)
from bmq.wire.notice import FewNotices, Notice, peers_word

__all__ = ["MAX_ELEMENTS", "check", "from_document", "to_document"]

#: Largest number of elements accepted in one message: elements of arrays in JSON, of all kinds in BER. Two
#: bytes on the wire can make an element that costs microseconds and hundreds of bytes, so the length of a
#: message does not bound the work. An honest subscription has about eleven elements.
MAX_ELEMENTS = 131_072

_PLAIN = (int, str, bool, bytes)
_PLACE = re.compile(r" - at `\$\.?(.*)`$")


def to_document(message: Message, *, omit_empty_arrays: bool = False) -> dict[str, Any]:
    """Return the document of a message; enumerators stand by name.

    Raises:
        UsageError: the message cannot be sent on its own, such as a body without its
            :class:`ControlMessage`.
    """
    skipped = (None, ()) if omit_empty_arrays else (None,)

    def written(value: Any) -> Any:
        if isinstance(value, Structure):
            contents = ((m, getattr(value, m.attribute)) for m in members(type(value)))
            return {
                m.name: enumerator(m.kind, content) if issubclass(m.kind, IntEnum) else written(content)
                for m, content in contents
                if content not in skipped
            }
        if isinstance(value, tuple):
            return [written(element) for element in cast("tuple[object, ...]", value)]
        if isinstance(value, str):
            value.encode("utf-8", "surrogateescape")  # JSON and BER have no form for other surrogates
        return value

    def enumerator(kind: type[IntEnum], value: object) -> object:
        known = kind._value2member_map_.get(value)
        return value if known is None else known.name

    kind_of(message)  # refuses what is no whole message
    if not isinstance(message, ControlMessage):
        return {selection_name(type(message)): written(message)}
    document: dict[str, Any] = {} if message.r_id is None else {"rId": message.r_id}
    if message.body is not None:
        document[selection_name(type(message.body))] = written(message.body)
    return document


def check(message: Message) -> None:
    """Check that each value fits its member.

    Raises:
        UsageError: a value does not fit; the message names the member.
    """
    try:
        from_document(to_document(message), kind_of(message), None)
    except ProtocolError as error:
        raise UsageError(str(error)) from None
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r:.80} has no form in UTF-8") from None


def from_document(document: object, kind: MessageKind, notice: Notice | None) -> Message:
    """Return the message of a document.

    Unknown members are skipped, and missing members take their defaults. Of several selections, the last
    known one counts.

    Args:
        document: the document; its enumerators are replaced by numbers.
        kind: the expected kind of message.
        notice: receives unknown content. With a notice, unknown enumerators are read as E_UNKNOWN or
            E_UNDEFINED; without a notice they are an error, as for a real broker.

    Raises:
        ProtocolError: a value does not have its member's type.
        UnknownSelection: no known selection is present (a control message is then decoded without a body).
    """
    types = {selection_name(each): each for each in SELECTIONS[kind].values()}
    control = kind is MessageKind.CONTROL
    reader = _Reader(notice)
    fields = reader.fields(document, {*types, "rId"} if control else {*types}, kind.value, kind.value)
    r_id = _typed(fields.get("rId"), RequestId, "rId") if control else None
    selected = [name for name in fields if name in types]
    body = reader.structure(types[selected[-1]], fields[selected[-1]], selected[-1]) if selected else None
    if control:
        return ControlMessage(r_id, cast("ControlBody | None", body))
    if body is None:
        raise UnknownSelection(f"expected one of {', '.join(types)}, got neither", field=kind.value)
    return cast("Message", body)


class _Reader:
    """Makes a document fit for msgspec; ``elements`` counts down the array elements still accepted."""

    def __init__(self, notice: Notice | None) -> None:
        self.elements = MAX_ELEMENTS
        self.notice = None if notice is None else FewNotices(notice)

    def structure(self, type: type[Structure], value: object, path: str) -> Structure:
        self.prepare(type, value, path)
        return cast("Structure", _typed(value, type, path))

    def fields(self, value: object, known: Set[str], path: str, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ProtocolError(f"expected an object, got {_type_name(value)}", field=path)
        found = cast("dict[str, Any]", value)
        if self.notice is not None and not found.keys() <= known:
            for unknown in sorted(found.keys() - known):
                self.notice(f"the member {peers_word(unknown)} of {name}")
        return found

    def prepare(self, type: type[Structure], value: object, path: str) -> None:
        """Replace enumerators by numbers, bound the number of elements, and notice what is unknown."""
        fields = self.fields(value, _names(type), path, type.__name__)
        for m in members(type):
            content = fields.get(m.name)
            if content is None or m.kind in _PLAIN:
                continue  # left to msgspec
            at = f"{path}.{m.name}"
            if issubclass(m.kind, IntEnum):
                fields[m.name] = number = self.enumerator(m.kind, content, at, f"{type.__name__}.{m.name}")
                if type is Status and content not in (number, m.kind(number).name):
                    # Why a broker refused is worth more than the word E_UNKNOWN.
                    fields["message"] = f"{peers_word(content)}: {fields.get('message', '')}"
            elif m.array and isinstance(content, list):
                elements = cast("list[object]", content)
                self.elements -= len(elements)
                if self.elements < 0:
                    raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one message", field=at)
                for i, element in enumerate(elements):
                    self.prepare(m.kind, element, f"{at}[{i}]")
            elif not m.array:
                self.prepare(m.kind, content, at)

    def enumerator(self, kind: type[IntEnum], value: object, path: str, name: str) -> int:
        if isinstance(value, str) and value in kind.__members__:
            return kind[value].value
        if type(value) is int and value in kind._value2member_map_:
            return value
        if type(value) in (str, int) and self.notice is not None:
            self.notice(f"the enumerator {peers_word(value)} of {name}")
            return next(each for each in kind if each.name in ("E_UNKNOWN", "E_UNDEFINED")).value
        expected = ", ".join(f"{each.name} ({each.value})" for each in kind)
        got = peers_word(value) if type(value) in (str, int) else _type_name(value)
        raise ProtocolError(f"expected one of {expected}, got {got}", field=path)


@functools.cache
def _names(type: type[Structure]) -> frozenset[str]:
    return frozenset(m.name for m in members(type))


def _typed(value: object, type: Any, path: str) -> Any:
    problem = ""
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        problem = str(error)
    # Raised here: the context of an error must not hold a value, which may be a credential.
    place = _PLACE.search(problem)
    inside = f".{place[1]}" if place and place[1] else ""
    problem = _PLACE.sub("", problem).replace("`", "")
    raise ProtocolError(problem[0].lower() + problem[1:], field=path + inside)


def _type_name(value: object) -> str:
    names: dict[type, str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "an integer",
    }
    return names.get(type(value), "null" if value is None else "a number with a fraction")
