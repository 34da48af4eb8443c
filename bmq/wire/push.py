"""PUSH messages: what a consumer receives."""

from __future__ import annotations

from typing import NamedTuple

from bmq.errors import ProtocolError
from bmq.wire.codec import PUSH_HEADER, new_tuple
from bmq.wire.constants import Compression, PushFlags
from bmq.wire.options import read_sub_queue_ids
from bmq.wire.padding import PADDING

__all__ = ["PushMessage", "decode_pushes", "encode_push"]

_HEADER_WORDS = PUSH_HEADER.size // 4
_pack = PUSH_HEADER.packer(headerWords=_HEADER_WORDS, reserved=0)
_unpack = PUSH_HEADER.unpacker(
    "flags",
    "messageWords",
    "optionsWords",
    "compressionAlgorithmType",
    "headerWords",
    "queueId",
    "messageGUID",
    "schemaId",
)
# Old brokers send headers without the last word (schema id).
_MIN_HEADER_WORDS = _HEADER_WORDS - 1
_IMPLICIT = int(PushFlags.IMPLICIT_PAYLOAD)

# Options repeat from message to message: what an options area says depends on its bytes alone.
_options: dict[bytes, tuple[int, ...]] = {b"": (0,)}
_OPTIONS_CACHED = 1024


class PushMessage(NamedTuple):
    """One decoded PUSH message.

    Attributes:
        queue_id: the receiver's qId.
        sub_ids: the subscription ids it is for (several: one logical message each).
        guid: the message GUID.
        flags: :class:`PushFlags` bits.
        schema_id: 0 for the old property encoding, anything else for the new one.
        compression: the CAT field.
        data: the application data as it travelled, without padding.
    """

    queue_id: int
    sub_ids: tuple[int, ...]
    guid: bytes
    flags: int
    schema_id: int
    compression: int
    data: bytes


def encode_push(
    queue_id: int,
    guid: bytes,
    data: bytes,
    options: bytes = b"",
    *,
    flags: int = 0,
    schema_id: int = 0,
    compression: int = Compression.NONE,
) -> bytes:
    """Return one PUSH message: header, options, application data, padding.

    Args:
        queue_id: the receiver's qId.
        guid: 16 bytes.
        data: the application data as it travels.
        options: the encoded options area, see :mod:`bmq.wire.options`.
        flags: :class:`PushFlags` bits.
        schema_id: as in the PUT.
        compression: as in the PUT.
    """
    size = len(data)
    option_words = len(options) >> 2
    words = _HEADER_WORDS + option_words + (size >> 2) + 1
    header = _pack(flags, words, option_words, compression, queue_id, guid, schema_id)
    return header + options + data + PADDING[size & 3]


def _sub_ids(event: bytes, start: int, stop: int) -> tuple[int, ...]:
    raw = event[start:stop]
    ids = read_sub_queue_ids(raw, start)
    if len(raw) <= 64:
        if len(_options) >= _OPTIONS_CACHED:
            _options.clear()
        _options[raw] = ids
    return ids


def decode_pushes(event: bytes, body: int) -> list[PushMessage]:
    """Return every PUSH message of an event whose body starts at ``body``.

    Raises:
        ProtocolError: a length does not fit the event, the padding is wrong, or there is no application data.
    """
    messages: list[PushMessage] = []
    append = messages.append
    new = new_tuple
    known = _options.get
    size, end = PUSH_HEADER.size, len(event)
    offset = body
    while offset < end:
        if end - offset < size:
            # Only the short header of an old broker can still fit, and only just: it has no data behind it.
            raise ProtocolError(f"{end - offset} bytes are too few", field="PushHeader", offset=offset)
        flags, words, option_words, cat, header_words, queue_id, guid, schema_id = _unpack(event, offset)
        stop: int = offset + words * 4
        options = offset + header_words * 4
        start = options + option_words * 4
        if header_words < _HEADER_WORDS:
            schema_id = 0
            if header_words < _MIN_HEADER_WORDS:
                raise ProtocolError(
                    f"{header_words} words are too few", field="PushHeader.headerWords", offset=offset + 7
                )
        if stop > end or start > stop or (start == stop and not flags & _IMPLICIT):
            raise ProtocolError(
                f"{words} words, of which {header_words} header and {option_words} options, "
                f"do not fit the {end - offset} bytes left",
                field="PushHeader.messageWords",
                offset=offset,
            )
        if cat > 1:
            raise ProtocolError(
                f"{cat} is no compression", field="PushHeader.compressionAlgorithmType", offset=offset + 7
            )
        raw = event[options:start]
        ids = known(raw) or _sub_ids(event, options, start)
        if flags & _IMPLICIT:
            data = b""
        else:
            pad: int = event[stop - 1]
            if not 1 <= pad <= 4:
                raise ProtocolError(
                    f"the padding byte is {pad}, must be 1 to 4", field="PUSH padding", offset=stop - 1
                )
            data = event[start : stop - pad]
            if not data:
                raise ProtocolError("no application data", field="PushHeader.messageWords", offset=offset)
        append(new(PushMessage, (queue_id, ids, guid, flags, schema_id, cat, data)))
        offset = stop
    return messages
