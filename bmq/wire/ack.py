# SPDX-License-Identifier: Apache-2.0
"""ACK events: the outcomes of posted messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bmq.errors import ProtocolError
from bmq.wire.codec import ACK_HEADER, ACK_MESSAGE
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header

__all__ = [
    "ACK_GUID",
    "ACK_SIZE",
    "STATUS_MASK",
    "AckMessage",
    "decode_acks",
    "encode_ack",
    "encode_acks",
    "iter_acks",
    "pack_acks",
    "read_ack",
]

_HEADER = ACK_HEADER.build(headerWords=ACK_HEADER.size // 4, perMessageWords=ACK_MESSAGE.size // 4)
#: Encode one acknowledgement from (wire status, correlation id, GUID, qId).
encode_ack = ACK_MESSAGE.packer("status", "correlationId", "messageGUID", "queueId", reserved=0)
#: Size of an acknowledgement in bytes.
ACK_SIZE = ACK_MESSAGE.size
#: Offset of the GUID in an acknowledgement.
ACK_GUID = ACK_MESSAGE.offset_of("messageGUID")

_STATUS_AND_GUID = ACK_MESSAGE.words("reserved+status", "messageGUID")
#: Read one acknowledgement, from (event, offset): a number that contains the wire status, and the GUID.
read_ack: Callable[[bytes, int], tuple[int, bytes]] = _STATUS_AND_GUID.unpack_from
#: Bits of the status in the number that :func:`read_ack` and :func:`iter_acks` return.
STATUS_MASK = _STATUS_AND_GUID.mask("status") << _STATUS_AND_GUID.shift("status")

_read_message = ACK_MESSAGE.unpacker("status", "correlationId", "messageGUID", "queueId")
_read_sizes = ACK_HEADER.unpacker("headerWords", "perMessageWords")


class AckMessage(NamedTuple):
    """One acknowledgement: wire status, correlation id (legacy clients only), GUID, qId."""

    status: int
    correlation_id: int
    guid: bytes
    queue_id: int


def encode_acks(acks: Iterable[tuple[int, int, bytes, int]]) -> bytes:
    """Return an ACK event from (wire status, correlation id, GUID, qId) items."""
    return pack_acks([encode_ack(*ack) for ack in acks])


def pack_acks(acks: Sequence[bytes]) -> bytes:
    """Return an ACK event of encoded acknowledgements. Each item holds at least one acknowledgement."""
    body = b"".join(acks)
    return pack_event_header(HEADER_SIZE + len(_HEADER) + len(body), EventType.ACK) + _HEADER + body


def decode_acks(event: bytes, body: int) -> list[AckMessage]:
    """Return every acknowledgement of an ACK event whose body starts at ``body``.

    Raises:
        ProtocolError: the header's sizes are too small, or the messages do not fill the event.
    """
    start, stride = read_list_header(event, body, "Ack", ACK_SIZE)
    return [AckMessage._make(_read_message(event, at)) for at in range(start, len(event), stride)]


def iter_acks(event: bytes, body: int) -> Iterator[tuple[int, bytes]]:
    """Iterate over the acknowledgements of an event, on the hot path: only the fields that a client reads.

    Returns:
        An iterator of (number, GUID). The :data:`STATUS_MASK` bits of the number are the wire status.

    Raises:
        ProtocolError: as :func:`decode_acks`.
    """
    start = body + len(_HEADER)
    if event[body:start] == _HEADER and not (len(event) - start) % ACK_SIZE:
        return _STATUS_AND_GUID.iter_unpack(event[start:])
    start, stride = read_list_header(event, body, "Ack", ACK_SIZE)
    if stride == ACK_SIZE:
        return _STATUS_AND_GUID.iter_unpack(event[start:])
    return (read_ack(event, at) for at in range(start, len(event), stride))


def read_list_header(
    event: bytes,
    body: int,
    kind: str,
    minimum: int,
    read_sizes: Callable[..., tuple[Any, ...]] = _read_sizes,
) -> tuple[int, int]:
    """Return the start of the items of an ACK or CONFIRM event, and the stride of the items, in bytes.

    Args:
        event: the event.
        body: the start of the event's body.
        kind: the kind of the event, for errors.
        minimum: the smallest valid size of an item in bytes.
        read_sizes: reads the header size and the item size, in words, from a header of this kind.

    Raises:
        ProtocolError: the sizes are too small, or the items do not fill the event exactly.
    """
    end = len(event)
    if end - body < ACK_HEADER.size:
        raise ProtocolError(f"{end - body} bytes are too few", field=f"{kind}Header", offset=body)
    header_words, stride_words = read_sizes(event, body)
    stride = stride_words * 4
    start = body + header_words * 4
    if not header_words or start > end:
        raise ProtocolError(f"{header_words} words", field=f"{kind}Header.headerWords", offset=body)
    if stride < minimum:
        raise ProtocolError(
            f"{stride_words} words are too few", field=f"{kind}Header.perMessageWords", offset=body
        )
    if rest := (end - start) % stride:
        raise ProtocolError(
            f"only {rest} of its {stride} bytes are present", field=f"{kind}Message", offset=end - rest
        )
    return start, stride
