# SPDX-License-Identifier: Apache-2.0
"""PUT messages: posting by a producer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, NamedTuple

from bmq.errors import ProtocolError
from bmq.wire.codec import PROPERTIES_HEADER, PUT_HEADER, packer_of
from bmq.wire.constants import Compression, EventType, PutFlags
from bmq.wire.crc import crc32c
from bmq.wire.event import HEADER_SIZE, TWO_WORDS, second_word
from bmq.wire.padding import PADDING
from bmq.wire.shape import SHAPE, read_shape, wrong_length

#: A message to encode: GUID, application data, flags, schema id, compression.
Outgoing = tuple[bytes, bytes, int, int, int]

#: From this size in bytes on, copying data costs more than passing it as a separate piece.
LARGE = 8192

_HEADER_WORDS = PUT_HEADER.size // 4
_WORDS = PUT_HEADER.words("flags+messageWords", SHAPE, "queueId", "messageGUID", "crc32c", "schemaId")
_pack = _WORDS.pack
_unpack_from = _WORDS.unpack_from
# The headers of an event and of its only message, in one call.
_pack_event = packer_of(TWO_WORDS, _WORDS)
_PUT_EVENT = second_word(EventType.PUT)
_FLAGS_SHIFT = _WORDS.shift("flags")
_CAT_SHIFT = _WORDS.shift("compressionAlgorithmType")
_WORDS_MASK = _WORDS.mask("messageWords")
# The words of a message besides the whole words of data: the header, and the word that ends with the padding.
_WORDS_AROUND = _HEADER_WORDS + 1
# A peer's header may be shorter than ours, but must contain all fields up to the CRC.
_MIN_HEADER = PUT_HEADER.end_of(
    "messageWords",
    "optionsWords",
    "compressionAlgorithmType",
    "headerWords",
    "queueId",
    "messageGUID",
    "crc32c",
)
# A shorter header has no schema id.
_WITH_SCHEMA_ID = PUT_HEADER.end_of("schemaId")
_PROPERTIES = int(PutFlags.MESSAGE_PROPERTIES)
_NONE = int(Compression.NONE)
# The length of the properties area, in the area's header at the start of the data.
_AREA_BYTES, _AREA_SHIFT, _AREA_MASK = PROPERTIES_HEADER.bytes_of("areaWords")

#: A message as a broker receives it: flags, correlation id, GUID, schema id, compression, CRC32-C, size of
#: the data without its padding, data with its padding. A plain tuple is cheap to create. A decoder leaves the
#: correlation id at 0: a legacy client sends its own instead of the GUID.
Put = tuple[int, int, bytes, int, int, int, int, bytes]
#: Index of the GUID in a :data:`Put`, and position of a legacy client's correlation id in the GUID.
PUT_GUID: Final = 2
CORRELATION_ID: Final = slice(1, 4)
#: A qId, and consecutive messages for this queue.
PutRun = tuple[int, list[Put]]


class DecodedPut(NamedTuple):
    """One decoded PUT message.

    Attributes:
        queue_id: the sender's qId.
        guid: the message GUID, or a legacy correlation id in its bytes 1 to 3.
        flags: :class:`PutFlags` bits.
        schema_id: 0 for the old property encoding, any other value for the new one.
        compression: the CAT field.
        crc: CRC32-C of ``data``.
        data: the application data as transmitted, without padding.
    """

    queue_id: int
    guid: bytes
    flags: int
    schema_id: int
    compression: int
    crc: int
    data: bytes


class PutEvent(NamedTuple):
    """A whole PUT event of messages encoded together, all for one queue.

    Attributes:
        event: the bytes of the event.
        ends: the end of each message in the event.
        acks: the concatenated ACK messages of a broker that accepts all messages.
        size: size in bytes of the application data.
    """

    event: bytes
    ends: Sequence[int]
    acks: bytes
    size: int


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
        data: the application data as transmitted (compressed according to ``compression``), 1 byte to 64 MiB.
        flags: :class:`PutFlags` bits.
        schema_id: for properties in the new encoding their schema id, or 1 for none; otherwise 0.
        compression: the compression of ``data``.
    """
    pieces, _, _ = encode_puts(queue_id, ((guid, data, flags, schema_id, compression),))
    return b"".join(pieces)


def encode_put_event(queue_id: int, message: Outgoing) -> bytes:
    """Return a PUT event of one message."""
    guid, data, flags, schema_id, compression = message
    size = len(data)
    words = (size >> 2) + _WORDS_AROUND
    header = _pack_event(
        HEADER_SIZE + words * 4,
        _PUT_EVENT,
        flags << _FLAGS_SHIFT | words,
        compression << _CAT_SHIFT | _HEADER_WORDS,
        queue_id,
        guid,
        crc32c(data),
        schema_id,
    )
    return b"".join((header, data, PADDING[size & 3]))


def encode_puts(
    queue_id: int, messages: Sequence[Outgoing], limit: float = inf
) -> tuple[list[bytes], int, int]:
    """Encode messages of one queue, as :func:`encode_put` does, up to ``limit`` bytes.

    Returns:
        The bytes in pieces (data of :data:`LARGE` bytes or more is its own piece, not copied), the number of
        messages, and the number of bytes.
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
        )
        if size < LARGE:
            append(join((header, data, padding[size & 3])))
        else:
            pieces += header, data, padding[size & 3]
    return pieces, count, words * 4


def decode_put_runs(
    event: bytes,
    body: int,
    runs: list[PutRun],
    inflate: Callable[[int, bytes], bytes | None] | None = None,
    *,
    checks_area: bool = False,
) -> None:
    """Append the messages of a PUT event to ``runs``: consecutive messages with the same qId form one run.

    Sizes equal to the previous message's (of header and options) are not parsed again.

    Args:
        event: the event.
        body: offset of the body.
        runs: receives the messages; if the event is malformed, the messages before the error.
        inflate: called with the qId and the padded data of each message compressed together with its
            properties; returns the decompressed data, or None to keep the data unchanged.
        checks_area: whether properties that claim more bytes than the event has are malformed.

    Raises:
        ProtocolError: a length does not fit the event, the padding is wrong, there is no application data,
            the properties claim more bytes than the event has, or a schema id comes without properties.
    """
    queue: int | None = None
    puts: list[Put] = []
    if runs:
        queue, puts = runs[-1]
    append = puts.append
    unpack = _unpack_from
    size, end = PUT_HEADER.size, len(event)
    last_shape = -1
    compression = header = header_and_options = 0
    short = False
    offset = body
    while offset < end:
        if end - offset < size:
            # Too short even for an older sender's header with one word of data.
            raise ProtocolError(f"{end - offset} bytes are too few", field="PutHeader", offset=offset)
        first, shape, queue_id, guid, crc, schema_id = unpack(event, offset)
        if shape != last_shape:
            compression, header, header_and_options = read_shape(shape)
            if header < _MIN_HEADER:
                raise ProtocolError(
                    f"{header // 4} words are too few",
                    field="PutHeader.headerWords",
                    offset=offset + PUT_HEADER.offset_of("headerWords"),
                )
            if compression > Compression.ZLIB:
                raise ProtocolError(
                    f"{compression} is not a compression",
                    field="PutHeader.compressionAlgorithmType",
                    offset=offset + PUT_HEADER.offset_of("compressionAlgorithmType"),
                )
            short = header < _WITH_SCHEMA_ID
            last_shape = shape
        if short:
            schema_id = 0
        words: int = first & _WORDS_MASK
        start, stop = offset + header_and_options, offset + words * 4
        if not start < stop <= end:
            raise wrong_length(words, header, header_and_options, "Put", offset, end)
        data = event[start:stop]
        pad = data[-1]
        length = stop - start - pad
        if length <= 0 or not 1 <= pad <= 4:
            if 1 <= pad <= 4:
                raise ProtocolError("no application data", field="PutHeader.messageWords", offset=offset)
            raise ProtocolError(
                f"the padding byte is {pad}; it must be 1 to 4", field="PUT padding", offset=stop - 1
            )
        flags = first >> _FLAGS_SHIFT
        cat = compression
        if checks_area and flags & _PROPERTIES and (schema_id or not cat):
            # Real brokers compare with the length of the event, not of the message.
            area = (int.from_bytes(data[_AREA_BYTES], "big") >> _AREA_SHIFT & _AREA_MASK) * 4
            if area > end:
                raise ProtocolError(
                    f"claims {area} bytes, and the whole event has {end}",
                    field="MessagePropertiesHeader.areaWords",
                    offset=start + PROPERTIES_HEADER.offset_of("areaWords"),
                )
        if schema_id:
            if not flags & _PROPERTIES:
                raise ProtocolError(
                    f"{schema_id} on a message without properties",
                    field="PutHeader.schemaId",
                    offset=offset + PUT_HEADER.offset_of("schemaId"),
                )
        elif cat and inflate is not None and flags & _PROPERTIES:
            plain = inflate(queue_id, data)
            if plain is not None:
                data = plain
                length = len(data) - data[-1]
                cat = _NONE
        if queue_id != queue:
            queue, puts = queue_id, []
            append = puts.append
            runs.append((queue_id, puts))
        append((flags, 0, guid, schema_id, cat, crc, length, data))
        offset = stop


def decode_puts(event: bytes, body: int) -> list[DecodedPut]:
    """Return every PUT message of an event whose body starts at ``body``.

    Raises:
        ProtocolError: see :func:`decode_put_runs`.
    """
    runs: list[PutRun] = []
    decode_put_runs(event, body, runs)
    return [
        DecodedPut(queue_id, guid, flags, schema_id, compression, crc, data[:length])
        for queue_id, puts in runs
        for flags, _, guid, schema_id, compression, crc, length, data in puts
    ]
