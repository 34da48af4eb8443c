"""PUT messages: what a producer sends."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from bmq.errors import ProtocolError
from bmq.wire.codec import PUT_HEADER
from bmq.wire.constants import Compression, PutFlags
from bmq.wire.crc import crc32c
from bmq.wire.padding import PADDING

__all__ = ["LARGE", "Outgoing", "PutMessage", "decode_puts", "encode_put", "encode_puts", "read_put"]

#: What a message to be encoded is made of: GUID, application data, flags, schema id, compression.
Outgoing = tuple[bytes, bytes, int, int, int]

#: From this many bytes on, copying data costs more than handing it over as a piece of its own.
LARGE = 8192

_HEADER_WORDS = PUT_HEADER.size // 4
# The words of a header as they travel, and where the fields in them are: no options, nothing reserved.
_pack = PUT_HEADER.struct.pack
_FLAGS_SHIFT = PUT_HEADER.fields["flags"].shift
_CAT_SHIFT = PUT_HEADER.fields["compressionAlgorithmType"].shift
# What comes to the whole words of data: the header, and the word that ends with the padding.
_WORDS_AROUND = _HEADER_WORDS + 1
_unpack = PUT_HEADER.unpack_from
# Headers may be shorter than ours; without the CRC (its first 28 bytes) a PUT makes no sense.
_MIN_HEADER_WORDS = 8


class PutMessage(NamedTuple):
    """One decoded PUT message.

    Attributes:
        queue_id: the sender's qId.
        guid: the message GUID, or a legacy correlation id in its bytes 1 to 3.
        flags: :class:`PutFlags` bits.
        schema_id: 0 for the old property encoding, anything else for the new one.
        compression: the CAT field.
        crc: CRC32-C of ``data``.
        data: the application data as it travelled, without padding.
    """

    queue_id: int
    guid: bytes
    flags: int
    schema_id: int
    compression: int
    crc: int
    data: bytes


def encode_put(
    queue_id: int,
    guid: bytes,
    data: bytes,
    flags: int = PutFlags.ACK_REQUESTED,
    schema_id: int = 0,
    compression: int = Compression.NONE,
) -> bytes:
    """Return one PUT message: header, application data, padding.

    Args:
        queue_id: the qId given in openQueue.
        guid: 16 bytes.
        data: the application data as it travels (compressed where ``compression`` says so), 1 byte to 64 MiB.
        flags: :class:`PutFlags` bits.
        schema_id: 1 with properties in the new encoding, else 0.
        compression: what ``data`` is compressed with.
    """
    pieces, _, _ = encode_puts(queue_id, ((guid, data, flags, schema_id, compression),))
    return b"".join(pieces)


def encode_puts(
    queue_id: int, messages: Sequence[Outgoing], limit: float = inf
) -> tuple[list[bytes], int, int]:
    """Encode messages of one queue, as :func:`encode_put` does, as many as ``limit`` bytes have room for.

    Returns:
        Their bytes, in pieces (data of :data:`LARGE` bytes and more is a piece itself, not a copy), the
        number of messages and the number of bytes.
    """
    pack, crc, padding, join = _pack, crc32c, PADDING, b"".join
    pieces: list[bytes] = []
    append = pieces.append
    count = words = 0
    most = limit / 4
    for guid, data, flags, schema_id, compression in messages:
        size = len(data)
        length = (size >> 2) + _WORDS_AROUND
        if words + length > most:
            break
        words += length
        count += 1
        header = pack(
            flags << _FLAGS_SHIFT | length,
            compression << _CAT_SHIFT | _HEADER_WORDS,
            queue_id,
            guid,
            crc(data),
            schema_id,
            0,
        )
        if size < LARGE:
            append(join((header, data, padding[size & 3])))
        else:
            pieces += header, data, padding[size & 3]
    return pieces, count, words * 4


def read_put(event: bytes, offset: int) -> tuple[PutMessage, int]:
    """Return the PUT message at ``offset`` of an event, and where the next one starts.

    Raises:
        ProtocolError: a length does not fit the event, the padding is wrong, there is no application data,
            or a schema id comes without properties.
    """
    end = len(event)
    if end - offset < PUT_HEADER.size:
        # Not even the shorter header of an older sender fits with a word of data behind it.
        raise ProtocolError(f"{end - offset} bytes are too few", field="PutHeader", offset=offset)
    flags, words, option_words, cat, header_words, queue_id, guid, crc, schema_id, _ = _unpack(event, offset)
    stop: int = offset + words * 4
    start = offset + (header_words + option_words) * 4
    if header_words < _MIN_HEADER_WORDS:
        raise ProtocolError(
            f"{header_words} words are too few", field="PutHeader.headerWords", offset=offset + 7
        )
    if header_words < _HEADER_WORDS:
        schema_id = 0
    if not start < stop <= end:
        raise ProtocolError(
            f"{words} words, of which {header_words} header and {option_words} options, "
            f"do not fit the {end - offset} bytes left",
            field="PutHeader.messageWords",
            offset=offset,
        )
    pad = event[stop - 1]
    if not 1 <= pad <= 4:
        raise ProtocolError(
            f"the padding byte is {pad}, must be 1 to 4", field="PUT padding", offset=stop - 1
        )
    if start >= stop - pad:
        raise ProtocolError("no application data", field="PutHeader.messageWords", offset=offset)
    if cat not in (Compression.NONE, Compression.ZLIB):
        raise ProtocolError(
            f"{cat} is no compression", field="PutHeader.compressionAlgorithmType", offset=offset + 7
        )
    if schema_id and not flags & PutFlags.MESSAGE_PROPERTIES:
        raise ProtocolError(
            f"{schema_id} on a message without properties", field="PutHeader.schemaId", offset=offset + 32
        )
    return PutMessage(queue_id, guid, flags, schema_id, cat, crc, event[start : stop - pad]), stop


def decode_puts(event: bytes, body: int) -> list[PutMessage]:
    """Return every PUT message of an event whose body starts at ``body``.

    Raises:
        ProtocolError: see :func:`read_put`.
    """
    messages: list[PutMessage] = []
    while body < len(event):
        message, body = read_put(event, body)
        messages.append(message)
    return messages
