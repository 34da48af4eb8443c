# SPDX-License-Identifier: Apache-2.0
"""Event headers: packing our own, and checking a peer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bmq.errors import ProtocolError
from bmq.wire.codec import EVENT_HEADER, StructureCodec
from bmq.wire.constants import MAX_EVENT_HARD, PROTOCOL_VERSION, EventType
from bmq.wire.padding import PADDING

HEADER_SIZE = EVENT_HEADER.size

#: Smallest valid header: a peer's header may be shorter than ours, but must reach headerWords.
MIN_HEADER_SIZE = EVENT_HEADER.end_of("fragment", "length", "protocolVersion", "type", "headerWords")

#: A header as two words, see :func:`bmq.wire.codec.packer_of`. :func:`second_word` returns the second one.
TWO_WORDS = EVENT_HEADER.words("fragment+length", "protocolVersion+type+headerWords+typeSpecific+reserved")
#: The first bytes of a header: the fragment bit and the length.
LENGTH = EVENT_HEADER.words("fragment+length", cut=True)
_HEADER = EVENT_HEADER.words("fragment+length", "protocolVersion+type", "headerWords", "typeSpecific")
#: Position of the codec of a control or authentication event in ``typeSpecific``.
CODEC_SHIFT = 5
_pack = TWO_WORDS.pack
_TYPE_SHIFT = TWO_WORDS.shift("type")
_SPECIFIC_SHIFT = TWO_WORDS.shift("typeSpecific")
_SECOND = PROTOCOL_VERSION << TWO_WORDS.shift("protocolVersion") | HEADER_SIZE // 4 << TWO_WORDS.shift(
    "headerWords"
)
_TYPE_BYTE, _SHIFT_IN_BYTE, _TYPE_MASK = EVENT_HEADER.bytes_of("type")


class Event(NamedTuple):
    """One whole event.

    Attributes:
        type: an :class:`EventType` value; unknown numbers stay plain integers.
        type_specific: the header byte that contains the codec of control events.
        data: the event's bytes with the header, so that offsets in errors are offsets in the event. For a
            large PUSH event in the space of a framer, a memoryview in spite of the annotation; only a client
            receives one, see :meth:`bmq.protocol.framing.Framer.space`.
        body: offset of the body in ``data``.
    """

    type: int
    type_specific: int
    data: bytes
    body: int


def pack_event_header(length: int, event_type: int, type_specific: int = 0) -> bytes:
    """Return the eight header bytes of an event with a total of ``length`` bytes.

    Raises:
        ValueError: the length needs more than 31 bits.
    """
    if not HEADER_SIZE <= length <= MAX_EVENT_HARD:
        raise ValueError(f"an event must have {HEADER_SIZE} to {MAX_EVENT_HARD} bytes, not {length}")
    return _pack(length, _SECOND | event_type << _TYPE_SHIFT | type_specific << _SPECIFIC_SHIFT)


def second_word(event_type: int) -> int:
    """Return the second of :data:`TWO_WORDS` for events of a type."""
    return _SECOND | event_type << _TYPE_SHIFT


def pack_schema_event(event_type: int, codec: int, body: bytes) -> bytes:
    """Return a control or authentication event: header with the codec in the top bits of byte 6, body,
    padding.
    """
    pad = PADDING[len(body) & 3]
    size = HEADER_SIZE + len(body) + len(pad)
    return pack_event_header(size, event_type, codec << CODEC_SHIFT) + body + pad


def type_of(data: bytes) -> int:
    """Return the type in an event's header, without checking the header; 0 if the header ends before it."""
    return int.from_bytes(data[_TYPE_BYTE], "big") >> _SHIFT_IN_BYTE & _TYPE_MASK


def read_event(data: bytes) -> Event:
    """Check the header of one whole event.

    Raises:
        ProtocolError: the fragment bit is set, the protocol version differs, or a length in the header is
            impossible.
    """
    if len(data) < HEADER_SIZE:
        raise ProtocolError(
            f"an event must have at least {HEADER_SIZE} bytes, not {len(data)}", field="length", offset=0
        )
    first, second, header_words, type_specific = _HEADER.unpack_from(data)
    length = first & _HEADER.mask("length")
    version = second >> _HEADER.shift("protocolVersion")
    if first != length:
        raise ProtocolError("fragmented events are not allowed", field="EventHeader.fragment", offset=0)
    if length != len(data):
        raise ProtocolError(
            f"the header has a length of {length} bytes, the event has {len(data)}",
            field="EventHeader.length",
            offset=0,
        )
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"version {version} of the protocol is unknown, it must be {PROTOCOL_VERSION}",
            field="EventHeader.protocolVersion",
            offset=EVENT_HEADER.offset_of("protocolVersion"),
        )
    body = header_words * 4
    if not MIN_HEADER_SIZE <= body <= length:
        raise ProtocolError(
            f"{header_words} words do not fit an event of {length} bytes",
            field="EventHeader.headerWords",
            offset=EVENT_HEADER.offset_of("headerWords"),
        )
    return Event(second & _HEADER.mask("type"), type_specific, data, body)


class Items:
    """ACK and CONFIRM events: after the event's header, a header with sizes, and items of one size.

    Args:
        event_type: the type of the events.
        header: the header with the sizes.
        item: an item.

    Attributes:
        header: the bytes of the header in our events.
    """

    def __init__(self, event_type: EventType, header: StructureCodec, item: StructureCodec) -> None:
        self._event_type = event_type
        self._item = item
        self._sizes = header.words("headerWords+perMessageWords")
        words = header.size // 4 << self._sizes.shift("headerWords") | item.size // 4
        self.header = self._sizes.pack(words)
        self._shift, self._mask = self._sizes.shift("headerWords"), self._sizes.mask("perMessageWords")

    def pack(self, items: Sequence[bytes]) -> bytes:
        """Return an event of encoded items. Each piece holds at least one item."""
        body = b"".join(items)
        length = HEADER_SIZE + len(self.header) + len(body)
        return pack_event_header(length, self._event_type) + self.header + body

    def read_header(self, event: bytes, body: int) -> tuple[int, int]:
        """Return the start of the items of an event, and the stride of the items, in bytes.

        Raises:
            ProtocolError: the sizes are too small, or the items do not fill the event exactly.
        """
        end, name = len(event), self._sizes.structure.name
        if end - body < self._sizes.size:
            raise ProtocolError(f"{end - body} bytes are too few", field=name, offset=body)
        (words,) = self._sizes.unpack_from(event, body)
        header_words = words >> self._shift
        stride_words = words & self._mask
        stride = stride_words * 4
        start = body + header_words * 4
        if not header_words or start > end:
            raise ProtocolError(f"{header_words} words", field=f"{name}.headerWords", offset=body)
        if stride < self._item.size:
            raise ProtocolError(
                f"{stride_words} words are too few", field=f"{name}.perMessageWords", offset=body
            )
        if rest := (end - start) % stride:
            raise ProtocolError(
                f"only {rest} of its {stride} bytes are present", field=self._item.name, offset=end - rest
            )
        return start, stride


HEARTBEAT_REQ = pack_event_header(HEADER_SIZE, EventType.HEARTBEAT_REQ)
HEARTBEAT_RSP = pack_event_header(HEADER_SIZE, EventType.HEARTBEAT_RSP)
