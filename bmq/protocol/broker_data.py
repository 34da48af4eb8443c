"""PUT events as a broker reads them: as much of each as is well formed.

A real broker stops at the first malformed message of an event, without an answer, and keeps the connection.
"""

from __future__ import annotations

from typing import NamedTuple

from bmq.errors import ProtocolError
from bmq.protocol.broker_properties import from_old_client
from bmq.wire.codec import PUT_HEADER
from bmq.wire.constants import Compression, PutFlags

__all__ = ["Put", "PutEvent", "read_put_event"]

#: flags, correlation id, GUID, schema id, compression, size, data with its padding.
Put = tuple[int, int, bytes, int, int, int, bytes]

_SIZE = PUT_HEADER.size
_WORDS = _SIZE // 4
_MIN_WORDS = _WORDS - 1
_PROPERTIES = int(PutFlags.MESSAGE_PROPERTIES)
_unpack = PUT_HEADER.unpacker(
    "flags",
    "messageWords",
    "optionsWords",
    "compressionAlgorithmType",
    "headerWords",
    "queueId",
    "messageGUID",
    "schemaId",
)


class PutEvent(NamedTuple):
    """What a PUT event holds.

    Attributes:
        runs: consecutive messages of one queue: its qId and they.
        undecodable: qId and GUID of messages whose data does not decompress.
        error: why reading stopped early, if it did.
    """

    runs: list[tuple[int, list[Put]]]
    undecodable: list[tuple[int, bytes]]
    error: ProtocolError | None


def read_put_event(event: bytes, body: int) -> PutEvent:
    """Read the messages of a PUT event whose body starts at ``body``."""
    runs: list[tuple[int, list[Put]]] = []
    undecodable: list[tuple[int, bytes]] = []
    current: int | None = None
    puts: list[Put] = []
    offset, end = body, len(event)
    while offset < end:
        if end - offset < _SIZE:
            return PutEvent(runs, undecodable, _wrong(f"{end - offset} bytes are too few", "", offset))
        flags, words, option_words, cat, header_words, queue_id, guid, schema_id = _unpack(event, offset)
        stop: int = offset + words * 4
        start: int = offset + (header_words + option_words) * 4
        if header_words < _WORDS:
            schema_id = 0
            if header_words < _MIN_WORDS:
                return PutEvent(runs, undecodable, _wrong(f"{header_words} words", "headerWords", offset))
        if not start < stop <= end:
            return PutEvent(runs, undecodable, _wrong(f"{words} words do not fit", "messageWords", offset))
        size = stop - start - event[stop - 1]
        if size <= 0 or not 1 <= event[stop - 1] <= 4:
            return PutEvent(runs, undecodable, _wrong("no application data", "messageWords", offset))
        if cat > 1:
            return PutEvent(runs, undecodable, _wrong(f"{cat}", "compressionAlgorithmType", offset))
        data = event[start:stop]
        if schema_id:
            if not flags & _PROPERTIES:
                return PutEvent(runs, undecodable, _wrong("no properties", "schemaId", offset))
        elif cat and flags & _PROPERTIES:
            try:
                data = from_old_client(data)
            except ProtocolError:
                undecodable.append((queue_id, guid))
                offset = stop
                continue
            size = len(data) - data[-1]
            cat = Compression.NONE
        if queue_id != current:
            current, puts = queue_id, []
            runs.append((queue_id, puts))
        puts.append((flags, 0, guid, schema_id, cat, size, data))
        offset = stop
    return PutEvent(runs, undecodable, None)


def _wrong(message: str, field: str, offset: int) -> ProtocolError:
    return ProtocolError(message, field=f"PutHeader.{field}" if field else "PutHeader", offset=offset)
