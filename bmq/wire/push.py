# SPDX-License-Identifier: Apache-2.0
"""PUSH messages: delivery to a consumer."""

from __future__ import annotations

from collections.abc import Iterator
from struct import iter_unpack
from typing import Any, Final, NamedTuple

from bmq._caches import Cache
from bmq.errors import ProtocolError
from bmq.wire.codec import PUSH_HEADER
from bmq.wire.constants import Compression, PushFlags
from bmq.wire.notice import Notice
from bmq.wire.options import read_sub_queue_ids
from bmq.wire.shape import SHAPE, Flaw, read_shape, wrong_length

_HEADER_WORDS = PUSH_HEADER.size // 4
_WORDS = PUSH_HEADER.words("flags+messageWords", SHAPE, "queueId", "messageGUID", "schemaId")
_pack = _WORDS.pack
_unpack_from = _WORDS.unpack_from
_FLAGS_SHIFT = _WORDS.shift("flags")
_OPTIONS_SHIFT = _WORDS.shift("optionsWords")
_CAT_SHIFT = _WORDS.shift("compressionAlgorithmType")
_WORDS_MASK = _WORDS.mask("messageWords")
# The length of a message is read even from truncated headers.
_LENGTH = PUSH_HEADER.words("flags+messageWords", cut=True)
_unpack_length = _LENGTH.unpack_from
# Old brokers send headers that end before the schema id.
_MIN_HEADER = PUSH_HEADER.end_of(
    "messageWords", "optionsWords", "compressionAlgorithmType", "headerWords", "queueId", "messageGUID"
)
_WITH_SCHEMA_ID = PUSH_HEADER.end_of("schemaId")
_GUID_AT = PUSH_HEADER.offset_of("messageGUID")
_AFTER_GUID = PUSH_HEADER.end_of("messageGUID")
_GUID_SIZE = _AFTER_GUID - _GUID_AT
_IMPLICIT = int(PushFlags.IMPLICIT_PAYLOAD)
# Size of the largest messages that are read from a copy of the event, and cut together: of larger ones, the
# copy takes longer than the decoding.
_LARGEST_COPIED = 4096
# Messages of a first attempt to cut several messages at once: a failed attempt has copied no more.
_SERIES = 16
# Flags that a client rarely sees, including the unknown ones.
_UNKNOWN = PUSH_HEADER.fields["flags"].mask & ~sum(PushFlags)
_RARE = _IMPLICIT | _UNKNOWN
_REST = "the rest of a PUSH event from a message that does not fit it"
_PADDING, _NO_DATA = int(Flaw.PADDING), int(Flaw.NO_DATA)

# The ids depend only on the bytes of the options area, and options repeat from message to message.
_options: Cache[bytes, tuple[int, ...]] = Cache("subscription ids", 1024, {b"": (0,)})


class PushMessage(NamedTuple):
    """One decoded PUSH message.

    Attributes:
        queue_id: the receiver's qId.
        sub_ids: the matching subscription ids (several: one logical message each).
        guid: the message GUID.
        flags: :class:`PushFlags` bits.
        schema_id: 0 for the old property encoding, any other value for the new one.
        compression: the CAT field; a :class:`~bmq.wire.shape.Flaw` if the message is unreadable.
        data: the application data as transmitted, without padding.
    """

    queue_id: int
    sub_ids: tuple[int, ...]
    guid: bytes
    flags: int
    schema_id: int
    compression: int
    data: bytes


#: The items of a :class:`PushMessage` as a plain tuple, on the way to a consumer. A plain tuple costs half as
#: much to create, and the garbage collector stops tracking it after one look.
Push = tuple[int, tuple[int, ...], bytes, int, int, int, bytes]
#: Flags of messages that only the message-by-message decoder reads.
RARE_FLAGS: Final = _RARE
#: Indexes of items in a :data:`Push`.
SUB_IDS: Final = 1
GUID: Final = 2
FLAGS: Final = 3
COMPRESSION: Final = 5
DATA: Final = 6


def encode_push(
    queue_id: int,
    guid: bytes,
    data: bytes,
    options: bytes = b"",
    flags: int = 0,
    schema_id: int = 0,
    compression: int = Compression.NONE,
) -> bytes:
    """Return one PUSH message: header, options, application data.

    Args:
        queue_id: the receiver's qId.
        guid: 16 bytes.
        data: the application data as received in the PUT, with its padding.
        options: the encoded options area, see :mod:`bmq.wire.options`.
        flags: :class:`PushFlags` bits.
        schema_id: as in the PUT.
        compression: as in the PUT.
    """
    return encode_push_head(queue_id, guid, len(data), options, flags, schema_id, compression) + data


def encode_push_head(
    queue_id: int, guid: bytes, size: int, options: bytes, flags: int, schema_id: int, compression: int
) -> bytes:
    """Return the bytes in front of the application data, so that the data is copied only once.

    Args:
        queue_id, guid, options, flags, schema_id, compression: as for :func:`encode_push`.
        size: size in bytes of the application data, with its padding.
    """
    words = len(options) >> 2
    return (
        _pack(
            flags << _FLAGS_SHIFT | (_HEADER_WORDS + words + (size >> 2)),
            words << _OPTIONS_SHIFT | compression << _CAT_SHIFT | _HEADER_WORDS,
            queue_id,
            guid,
            schema_id,
        )
        + options
    )


def _sub_ids(raw: bytes, start: int, notice: Notice | None) -> tuple[int, ...]:
    skipped: list[str] = []
    ids = read_sub_queue_ids(raw, start, skipped.append)
    if notice is not None:
        for each in dict.fromkeys(skipped):
            notice(each)
    if len(raw) <= 64 and not skipped:
        _options.keep(raw, ids)
    return ids


def decode_pushes(event: bytes | memoryview, body: int, notice: Notice | None = None) -> list[PushMessage]:
    """Return every PUSH message of an event whose body starts at ``body``.

    Args:
        event: the event; a memoryview for one that will be overwritten.
        body: offset of the body.
        notice: receives skipped content.

    Raises:
        ProtocolError: the length of a message does not fit the event, and no ``notice`` is given.
    """
    return [PushMessage._make(message) for run in decode_push_runs(event, body, notice) for message in run]


def decode_push_runs(event: bytes | memoryview, body: int, notice: Notice | None = None) -> list[list[Push]]:
    """Return the messages of :func:`decode_pushes` in runs: consecutive ones with equal qId and subscription
    ids.

    An unreadable message has a :class:`~bmq.wire.shape.Flaw` for its compression; without readable options
    its subscription id is 0. A message too short to contain a GUID is skipped, because no client could
    confirm the message. With a ``notice``, the rest of an event is skipped from a message whose length does
    not fit the event.

    A consumer spends most of its time here. Parts equal to the previous message's (the sizes of header and
    options, the options themselves) are not parsed again. Consecutive messages that differ only in GUID and
    data are cut by a single call: the whole of ``async for`` with a confirmation takes a fifth less time. A
    memoryview of large messages is read in place, so that each payload is copied once; a memoryview of small
    messages is copied first, because slices of bytes are faster.

    Raises:
        ProtocolError: as :func:`decode_pushes`, without a ``notice``.
    """
    in_place = type(event) is memoryview
    if in_place and not _begins_large(event, body):
        event, in_place = bytes(event), False
    runs: list[list[Push]] = []
    run: list[Push] = []
    append = run.append
    unpack, known = _unpack_from, _options.get
    words_mask, flags_shift, rare = _WORDS_MASK, _FLAGS_SHIFT, _RARE
    size, end = PUSH_HEADER.size, len(event)
    last_shape, last_options = -1, b""
    last_queue: int | None = None  # No run yet.
    ids: tuple[int, ...] = ()
    cat = header = header_and_options = last_first = 0
    short, series = False, _SERIES
    offset = body
    while offset < end:
        if end - offset < size:
            _skip_rest(event, offset, notice)
            break
        first, shape, queue_id, guid, schema_id = unpack(event, offset)
        if shape != last_shape:
            cat, header, header_and_options = read_shape(shape)
            short = header < _WITH_SCHEMA_ID
            last_shape, last_queue = shape, None
        options = offset + header
        start = offset + header_and_options
        stop: int = offset + (first & words_mask) * 4
        flags = first >> flags_shift
        if short:
            schema_id = 0
            if header < _MIN_HEADER:
                offset = _skip(first, header, header_and_options, offset, end, notice)
                continue
        if start >= stop or stop > end:
            after = _skip(first, header, header_and_options, offset, end, notice)
            if start > stop:
                # The options are outside their message.
                last_queue = None
                if stop - offset >= _MIN_HEADER:
                    runs.append([(queue_id, (0,), guid, flags, schema_id, int(Flaw.PARTS), b"")])
                offset = after
                continue
            if stop > end:
                break
        raw = event[options:start]
        if raw != last_options or queue_id != last_queue:
            raw = bytes(raw)
            try:
                ids = known(raw) or _sub_ids(raw, options, notice)
            except ProtocolError:
                last_queue = None
                flaw = int(Flaw.OPTIONS)
                runs.append([(queue_id, (0,), guid, flags, schema_id, flaw, bytes(event[options:stop]))])
                offset = stop
                continue
            last_options, last_queue = raw, queue_id
            run = []
            append = run.append
            runs.append(run)
        if flags & rare and _has_no_data(flags, notice):
            append((queue_id, ids, guid, flags, schema_id, cat, b""))
            offset = stop
            continue
        pad: int = event[stop - 1]
        data: Any = event[start : stop - pad]
        if data and 1 <= pad <= 4:
            if in_place:
                data = bytes(data)
            append((queue_id, ids, guid, flags, schema_id, cat, data))
            length = stop - offset
            if (
                first == last_first
                and series
                and length <= _LARGEST_COPIED
                and event[offset : offset + _GUID_AT] == event[stop : stop + _GUID_AT]
            ):
                # The third message of this length: the following ones probably differ in GUID and data only.
                equal = _cut(bytes(event[offset : offset + series * length]), length, start - offset, pad)
                head, _, tail, _, padding = next(equal)
                for its_head, guid, its_tail, data, its_padding in equal:
                    if its_head != head or its_tail != tail or its_padding != padding:
                        # No further attempt in this event if no message was equal.
                        series = _SERIES if stop > offset + length else 0
                        break
                    append((queue_id, ids, guid, flags, schema_id, cat, data))
                    stop += length
                else:
                    series *= 4
            last_first = first
        else:
            flaw = _NO_DATA if stop - start <= pad <= 4 or start == stop else _PADDING
            append((queue_id, ids, guid, flags, schema_id, flaw, bytes(event[start:stop])))
        offset = stop
    return runs


def _begins_large(event: bytes | memoryview, body: int) -> bool:
    """Whether the first message is too large for a copy of the event."""
    if len(event) - body < _LENGTH.size:
        return False
    words: int = _unpack_length(event, body)[0] & _WORDS_MASK
    return words * 4 > _LARGEST_COPIED


def _cut(messages: bytes, length: int, prefix: int, pad: int) -> Iterator[tuple[bytes, ...]]:
    """Cut bytes into messages of the same length; the rest is ignored.

    Args:
        messages: the bytes.
        length: size of a message.
        prefix: size of the header and options of the first message.
        pad: size of the padding of the first message.

    Returns:
        For each message: the bytes before the GUID, the GUID, the bytes before the data, the data, and the
        padding. Only the first message is certain to have parts of the given sizes.
    """
    parts = f"{_GUID_AT}s{_GUID_SIZE}s{prefix - _AFTER_GUID}s{length - prefix - pad}s{pad}s"
    return iter_unpack(parts, messages[: len(messages) - len(messages) % length])


def _has_no_data(flags: int, notice: Notice | None) -> bool:
    """Whether a message comes without its data. Unknown flags are reported and otherwise ignored."""
    if flags & _UNKNOWN and notice is not None:
        notice(f"flag {flags & _UNKNOWN} of PUSH messages")
    return bool(flags & _IMPLICIT)


def _skip(
    first: int, header: int, header_and_options: int, offset: int, end: int, notice: Notice | None
) -> int:
    """Return the end of a message whose parts do not fit; report a message without room for a GUID.

    Raises:
        ProtocolError: the message does not fit the event, and no ``notice`` is given.
    """
    words = first & _WORDS_MASK
    if not words or words * 4 > end - offset:
        if notice is None:
            raise wrong_length(words, header, header_and_options, "Push", offset, end)
        notice(f"{_REST} (PushHeader.messageWords)")
        return end
    if min(words * 4, header) < _MIN_HEADER and notice is not None:
        notice("PUSH messages that are too short to have a GUID")
    return offset + words * 4


def _skip_rest(event: bytes | memoryview, offset: int, notice: Notice | None) -> None:
    """Skip the bytes after the last complete message: messages shorter than a header.

    Raises:
        ProtocolError: the bytes are not messages, and no ``notice`` is given.
    """
    end = len(event)
    while offset < end:
        if end - offset < _LENGTH.size:
            if notice is None:
                raise ProtocolError(f"{end - offset} bytes are too few", field="PushHeader", offset=offset)
            notice(f"{_REST} (PushHeader)")
            return
        (first,) = _unpack_length(event, offset)
        offset = _skip(first, 0, 0, offset, end, notice)
