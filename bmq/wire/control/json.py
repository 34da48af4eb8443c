# SPDX-License-Identifier: Apache-2.0
"""Control messages as JSON: compact, in schema order, enumerators by name, no nulls, bytes in base64."""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from bmq._json import orjson
from bmq.errors import ProtocolError
from bmq.wire.control.document import MAX_ELEMENTS, from_document, to_document
from bmq.wire.control.messages import Message, MessageKind, check_size
from bmq.wire.notice import Notice

__all__ = ["decode_json", "encode_json", "request_id_in_json"]

# Most members, elements and structures of a document that is parsed. A subscription has some fifteen.
_MAX_VALUES = 4 * MAX_ELEMENTS
# A smaller document has fewer values.
_SMALL = _MAX_VALUES
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REQUEST_ID = re.compile(rb'\s*\{\s*"rId"\s*:\s*(\d{1,10})\s*[,}]')


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
        UsageError: the message cannot be sent on its own.
    """
    document = to_document(message, omit_empty_arrays=omit_empty_arrays)
    try:
        body = msgspec.json.encode(document)
    except UnicodeEncodeError:
        body = msgspec.json.encode(_legible(document))
    # JSON uses the solidus only inside strings, so replacing every solidus is safe.
    return body.replace(b"/", rb"\/") if escape_solidus else body


def _legible(value: Any) -> Any:
    """Replace what is no UTF-8: a peer may have sent such text in BER; JSON has no form for it."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, list):
        return [_legible(element) for element in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _legible(content) for name, content in cast("dict[str, object]", value).items()}
    return value


def decode_json(
    body: bytes | memoryview, kind: MessageKind, *, offset: int = 8, notice: Notice | None = None
) -> Message:
    """Read a message from JSON.

    Args:
        body: the event's body; padding and any other bytes may follow the closing brace.
        kind: the expected kind of message.
        offset: offset of the body in its event, for error messages.
        notice: see :func:`bmq.wire.control.document.from_document`.

    Raises:
        ProtocolError: the body is not JSON or not an object, or a value does not have its member's type.
        UnknownSelection: no known selection is present (a control message is then decoded without a body).
    """
    return from_document(_parse(bytes(body), kind, offset), kind, notice)


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
