# SPDX-License-Identifier: Apache-2.0
"""PUT messages: what a producer sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, NamedTuple

from bmq.errors import ProtocolError
from bmq.wire.codec import PUT_HEADER
from bmq.wire.constants import Compression, EventType, PutFlags
from bmq.wire.crc import crc32c
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.padding import PADDING
from bmq.wire.shape import SHAPE, check_compression, read_shape, too_short, wrong_data, wrong_length

__all__ = [
    "CORRELATION_ID",
    "LARGE",
    "PUT_GUID",
    "DecodedPut",
    "Outgoing",
    "Put",
    "PutEvent",
    "PutRun",
    "decode_put_runs",
    "decode_puts",
    "encode_put",
    "encode_put_event",
    "encode_puts",
]

#: What a message to be encoded is made of: GUID, application data, flags, schema id, compression.
Outgoing = tuple[bytes, bytes, int, int, int]

#: From this many bytes on, copying data costs more than handing it over as a piece of its own.
LARGE = 8192

_HEADER_WORDS = PUT_HEADER.size // 4
_WORDS = PUT_HEADER.words("flags+messageWords", SHAPE, "queueId", "messageGUID", "crc32c", "schemaId")
_pack = _WORDS.pack
_unpack_from = _WORDS.unpack_from
_FLAGS_SHIFT = _WORDS.shift("flags")
_CAT_SHIFT = _WORDS.shift("compressionAlgorithmType")
_WORDS_MASK = _WORDS.mask("messageWords")
# The words around the whole words of data: the header, and the word that ends with the padding.
_WORDS_AROUND = _HEADER_WORDS + 1
# Headers may be shorter than ours, but they must hold all fields up to the CRC.
_MIN_HEADER = PUT_HEADER.end_of(
    "messageWords",
    "optionsWords",
    "compressionAlgorithmType",
    "headerWords",
    "queueId",
    "messageGUID",
    "crc32c",
)
# A shorter header ends before the schema id.
_WITH_SCHEMA_ID = PUT_HEADER.end_of("schemaId")
_PROPERTIES = int(PutFlags.MESSAGE_PROPERTIES)
_NONE = int(Compression.NONE)
# Where the header of the properties area, with which the data begins, has the area's length.
_AREA_WORDS = slice(1, 4)

#: A message as a broker takes it, a bare tuple because it is cheap to make: flags, correlation id, GUID,
#: schema id, compression, CRC32-C, size of the data without its padding, data with its padding. When decoded
#: the correlation id is 0: a legacy client sends its own in the place of the GUID.
Put = tuple[int, int, bytes, int, int, int, int, bytes]
#: Where the GUID is in a :data:`Put`, and where a legacy client's correlation id is in that.
PUT_GUID: Final = 2
CORRELATION_ID: Final = slice(1, 4)
#: A qId, and consecutive messages for it.
PutRun = tuple[int, list[Put]]


class DecodedPut(NamedTuple):
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


class PutEvent(NamedTuple):
    """A whole PUT event whose messages were encoded together, all of one queue.

    Attributes:
        event: its bytes.
        ends: where each message ends in it.
        acks: what the broker answers when it accepts all of them: ACK messages, one behind the other.
        size: the bytes of their application data.
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
        data: the application data as it travels (compressed where ``compression`` says so), 1 byte to 64 MiB.
        flags: :class:`PutFlags` bits.
        schema_id: with properties in the new encoding their schema id, or 1 for none; otherwise 0.
        compression: what ``data`` is compressed with.
    """
    pieces, _, _ = encode_puts(queue_id, ((guid, data, flags, schema_id, compression),))
    return b"".join(pieces)


def encode_put_event(queue_id: int, message: Outgoing) -> bytes:
    """Return a PUT event of one message."""
    guid, data, flags, schema_id, compression = message
    size = len(data)
    words = (size >> 2) + _WORDS_AROUND
    header = _pack(
        flags << _FLAGS_SHIFT | words,
        compression << _CAT_SHIFT | _HEADER_WORDS,
        queue_id,
        guid,
        crc32c(data),
        schema_id,
    )
    return b"".join(
        (pack_event_header(HEADER_SIZE + words * 4, EventType.PUT), header, data, PADDING[size & 3])
    )


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
    """Append the messages of a PUT event to ``runs``: consecutive ones with the same qId in one run.

    What is the same as in the message before (the sizes of header and options) is not looked at again.

    Args:
        event: the event.
        body: where its body starts.
        runs: where the messages go. When the event is malformed, those before the mistake are there.
        inflate: called with qId and data of each message that is compressed together with its properties;
            returns the data decompressed, or None to leave it as it is. Data is with its padding.
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
            # Not even the shorter header of an older sender fits with a word of data behind it.
            raise ProtocolError(f"{end - offset} bytes are too few", field="PutHeader", offset=offset)
        first, shape, queue_id, guid, crc, schema_id = unpack(event, offset)
        if shape != last_shape:
            compression, header, header_and_options = read_shape(shape)
            if header < _MIN_HEADER:
                raise too_short(header, "Put", offset)
            check_compression(compression, "Put", offset)
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
            raise wrong_data(pad, "Put", offset, stop)
        flags = first >> _FLAGS_SHIFT
        cat = compression
        if checks_area and flags & _PROPERTIES and (schema_id or not cat):
            # Real brokers compare with the length of the event, not of the message.
            area = int.from_bytes(data[_AREA_WORDS], "big") * 4
            if area > end:
                raise ProtocolError(
                    f"claims {area} bytes, and the whole event has {end}",
                    field="MessagePropertiesHeader.areaWords",
                    offset=start + 1,
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
