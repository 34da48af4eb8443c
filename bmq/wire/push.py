"""PUSH messages: what a consumer receives."""

from __future__ import annotations

from typing import NamedTuple

from bmq.errors import ProtocolError
from bmq.wire.codec import PUSH_HEADER
from bmq.wire.constants import Compression, PushFlags
from bmq.wire.options import read_sub_queue_ids
from bmq.wire.padding import PADDING

__all__ = ["Push", "PushMessage", "decode_push_runs", "decode_pushes", "encode_push"]

_HEADER_WORDS = PUSH_HEADER.size // 4
_pack = PUSH_HEADER.packer(headerWords=_HEADER_WORDS, reserved=0)
# The words of a header as they travel, and where the fields in them are.
_unpack_from = PUSH_HEADER.struct.unpack_from
_FLAGS_SHIFT = PUSH_HEADER.fields["flags"].shift
_WORDS_MASK = PUSH_HEADER.fields["messageWords"].mask
_OPTIONS, _CAT, _HEADER = (
    PUSH_HEADER.fields[name] for name in ("optionsWords", "compressionAlgorithmType", "headerWords")
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


#: The items of a :class:`PushMessage` as a bare tuple, on the way to a consumer: it costs half as much to
#: make, and the garbage collector looks at it once, not again and again.
Push = tuple[int, tuple[int, ...], bytes, int, int, int, bytes]


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
    return [PushMessage._make(message) for run in decode_push_runs(event, body) for message in run]


def decode_push_runs(event: bytes, body: int) -> list[list[Push]]:
    """Return the same messages in runs: what follows each other with the same qId and subscription ids.

    This is where a consumer's time goes: what is the same as in the message before (the sizes of header and
    options, the options themselves) is not looked at again.

    Raises:
        ProtocolError: as :func:`decode_pushes`.
    """
    runs: list[list[Push]] = []
    run: list[Push] = []
    append = run.append
    unpack = _unpack_from
    size, end = PUSH_HEADER.size, len(event)
    last_shape, last_options = -1, b""
    last_queue: int | None = None  # no run yet
    ids: tuple[int, ...] = ()
    cat = header = header_and_options = 0
    short = False
    offset = body
    while offset < end:
        if end - offset < size:
            # Only the short header of an old broker can still fit, and only just: it has no data behind it.
            raise ProtocolError(f"{end - offset} bytes are too few", field="PushHeader", offset=offset)
        first, shape, queue_id, guid, schema_id, _ = unpack(event, offset)
        if shape != last_shape:
            cat, header, header_and_options = _read_shape(shape, offset)
            short = header < size
            last_shape, last_queue = shape, None
        if short:
            schema_id = 0
        options = offset + header
        start = offset + header_and_options
        stop: int = offset + (first & _WORDS_MASK) * 4
        flags = first >> _FLAGS_SHIFT
        if start >= stop or stop > end:
            _check_length(first, header, header_and_options, offset, end)
        raw = event[options:start]
        if raw != last_options or queue_id != last_queue:
            ids = _options.get(raw) or _sub_ids(event, options, start)
            last_options, last_queue = raw, queue_id
            run = []
            append = run.append
            runs.append(run)
        if flags & _IMPLICIT:
            data = b""
        else:
            pad: int = event[stop - 1]
            data = event[start : stop - pad]
            if not data or not 1 <= pad <= 4:
                raise _wrong_data(pad, offset, stop)
        append((queue_id, ids, guid, flags, schema_id, cat, data))
        offset = stop
    return runs


def _read_shape(shape: int, offset: int) -> tuple[int, int, int]:
    """Return the compression, the header's bytes, and the header's and the options' bytes together."""
    header_words = shape >> _HEADER.shift & _HEADER.mask
    cat = shape >> _CAT.shift & _CAT.mask
    if header_words < _MIN_HEADER_WORDS:
        raise ProtocolError(
            f"{header_words} words are too few", field="PushHeader.headerWords", offset=offset + 7
        )
    if cat > Compression.ZLIB:
        raise ProtocolError(
            f"{cat} is no compression", field="PushHeader.compressionAlgorithmType", offset=offset + 7
        )
    option_words = shape >> _OPTIONS.shift & _OPTIONS.mask
    return cat, header_words * 4, (header_words + option_words) * 4


def _check_length(first: int, header: int, header_and_options: int, offset: int, end: int) -> None:
    """Raise unless the message fits the event; only one with an implicit payload may end with its options."""
    words = first & _WORDS_MASK
    rest = words * 4 - header_and_options
    if words * 4 > end - offset or rest < 0 or (not rest and not first >> _FLAGS_SHIFT & _IMPLICIT):
        raise ProtocolError(
            f"{words} words, of which {header // 4} header and {(header_and_options - header) // 4} options, "
            f"do not fit the {end - offset} bytes left",
            field="PushHeader.messageWords",
            offset=offset,
        )


def _wrong_data(pad: int, offset: int, stop: int) -> ProtocolError:
    if not 1 <= pad <= 4:
        return ProtocolError(
            f"the padding byte is {pad}, must be 1 to 4", field="PUSH padding", offset=stop - 1
        )
    return ProtocolError("no application data", field="PushHeader.messageWords", offset=offset)
