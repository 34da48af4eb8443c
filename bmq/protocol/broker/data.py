"""PUT and CONFIRM events as a broker reads them: as much of each as is well formed.

A real broker stops at the first malformed message of an event, without an answer, and keeps the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from bmq.errors import ProtocolError
from bmq.protocol.broker.properties import from_old_client
from bmq.wire.ack import read_list_header
from bmq.wire.codec import CONFIRM_MESSAGE, PUT_HEADER
from bmq.wire.confirm import decode_confirms
from bmq.wire.constants import Compression, PutFlags

__all__ = ["Put", "PutReader", "read_confirm_event"]

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


class PutReader:
    """Reads the messages of consecutive PUT events.

    Args:
        inflate: decompresses what old clients send compressed as a whole, for a qId; it returns None where
            the message cannot be stored anyway. It is left as it came then.

    Attributes:
        runs: consecutive messages of one queue: its qId and they.
    """

    __slots__ = ("_inflate", "runs")

    def __init__(self, inflate: Callable[[int, bytes], bytes | None]) -> None:
        self._inflate = inflate
        self.runs: list[tuple[int, list[Put]]] = []

    def event(self, event: bytes, body: int) -> ProtocolError | None:
        """Read the messages of an event whose body starts at ``body``.

        Returns:
            Why reading stopped early, if it did: nothing behind a malformed message is read.
        """
        runs = self.runs
        current: int | None = None
        puts: list[Put] = []
        if runs:
            current, puts = runs[-1]
        offset, end = body, len(event)
        while offset < end:
            if end - offset < _SIZE:
                return _wrong(f"{end - offset} bytes are too few", "", offset)
            flags, words, option_words, cat, header_words, queue_id, guid, schema_id = _unpack(event, offset)
            stop: int = offset + words * 4
            start: int = offset + (header_words + option_words) * 4
            if header_words < _WORDS:
                schema_id = 0
                if header_words < _MIN_WORDS:
                    return _wrong(f"{header_words} words are too few", "headerWords", offset)
            if not start < stop <= end:
                return _wrong(f"{words} words do not fit {end - offset} bytes", "messageWords", offset)
            pad = event[stop - 1]
            size = stop - start - pad
            if size <= 0 or not 1 <= pad <= 4:
                return _wrong("no application data, or wrong padding", "messageWords", offset)
            if cat > 1:
                return _wrong(f"{cat} is no compression", "compressionAlgorithmType", offset)
            data = event[start:stop]
            if schema_id:
                if not flags & _PROPERTIES:
                    return _wrong(f"{schema_id} on a message without properties", "schemaId", offset)
            elif cat and flags & _PROPERTIES:
                try:
                    plain = from_old_client(data, partial(self._inflate, queue_id))
                except ProtocolError as error:
                    return error
                if plain is not None:
                    data = plain
                    size = len(data) - data[-1]
                    cat = Compression.NONE
            if queue_id != current:
                current, puts = queue_id, []
                runs.append((queue_id, puts))
            puts.append((flags, 0, guid, schema_id, cat, size, data))
            offset = stop
        return None


def read_confirm_event(event: bytes, body: int) -> Iterable[tuple[int, bytes, int]]:
    """Return the (qId, GUID, subId) items of a CONFIRM event whose body starts at ``body``.

    Raises:
        ProtocolError: the header's sizes are too small, or the messages do not fill the event.
    """
    start, stride = read_list_header(event, body, "Confirm", CONFIRM_MESSAGE.size)
    if stride == CONFIRM_MESSAGE.size:
        return CONFIRM_MESSAGE.struct.iter_unpack(event[start:])
    return decode_confirms(event, body)


def _wrong(message: str, field: str, offset: int) -> ProtocolError:
    return ProtocolError(message, field=f"PutHeader.{field}" if field else "PutHeader", offset=offset)
