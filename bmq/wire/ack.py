# SPDX-License-Identifier: Apache-2.0
"""ACK events: the outcomes of posted messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from bmq.wire.codec import ACK_HEADER, ACK_MESSAGE
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, Event, Items

_ITEMS = Items(EventType.ACK, ACK_HEADER, ACK_MESSAGE)
#: Return an ACK event of encoded acknowledgements. Each piece holds at least one acknowledgement.
pack_acks = _ITEMS.pack
#: Return the start of the acknowledgements of an event, and their stride.
read_ack_header = _ITEMS.read_header
_MESSAGE = ACK_MESSAGE.words("reserved+status+correlationId", "messageGUID", "queueId")
_pack = _MESSAGE.pack
_STATUS_SHIFT = _MESSAGE.shift("status")
#: Size of an acknowledgement in bytes.
ACK_SIZE = ACK_MESSAGE.size
#: Offset of the GUID in an acknowledgement.
ACK_GUID = ACK_MESSAGE.offset_of("messageGUID")

_STATUS_AND_GUID = ACK_MESSAGE.words("reserved+status", "messageGUID")
#: Bits of the status in the number that :func:`iter_acks` returns.
STATUS_MASK = _STATUS_AND_GUID.mask("status") << _STATUS_AND_GUID.shift("status")


class AckMessage(NamedTuple):
    """One acknowledgement: wire status, correlation id (legacy clients only), GUID, qId."""

    status: int
    correlation_id: int
    guid: bytes
    queue_id: int


def encode_ack(status: int, correlation_id: int, guid: bytes, queue_id: int) -> bytes:
    """Encode one acknowledgement; the status is a wire status."""
    return _pack(status << _STATUS_SHIFT | correlation_id, guid, queue_id)


def encode_acks(acks: Iterable[tuple[int, int, bytes, int]]) -> bytes:
    """Return an ACK event from (wire status, correlation id, GUID, qId) items."""
    return pack_acks([encode_ack(*ack) for ack in acks])


def decode_acks(event: bytes, body: int) -> list[AckMessage]:
    """Return every acknowledgement of an ACK event whose body starts at ``body``.

    Raises:
        ProtocolError: the header's sizes are too small, or the messages do not fill the event.
    """
    start, stride = read_ack_header(event, body)
    acks: list[AckMessage] = []
    for at in range(start, len(event), stride):
        first, guid, queue_id = _MESSAGE.unpack_from(event, at)
        status = first >> _STATUS_SHIFT & _MESSAGE.mask("status")
        acks.append(AckMessage(status, first & _MESSAGE.mask("correlationId"), guid, queue_id))
    return acks


def iter_acks(event: bytes, body: int) -> Iterator[tuple[int, bytes]]:
    """Iterate over the acknowledgements of an event, on the hot path: only the fields that a client reads.

    Returns:
        An iterator of (number, GUID). The :data:`STATUS_MASK` bits of the number are the wire status.

    Raises:
        ProtocolError: as :func:`decode_acks`.
    """
    start = body + len(_ITEMS.header)
    if event[body:start] == _ITEMS.header and not (len(event) - start) % ACK_SIZE:
        return _STATUS_AND_GUID.iter_unpack(event[start:])
    start, stride = read_ack_header(event, body)
    if stride == ACK_SIZE:
        return _STATUS_AND_GUID.iter_unpack(event[start:])
    return (_STATUS_AND_GUID.unpack_from(event, at) for at in range(start, len(event), stride))


def merge_acks(events: list[Event]) -> list[Event]:
    """Return the events of a read, with the acknowledgements of adjacent ACK events in one event.

    A busy broker answers every few posts with an event of its own, dozens of them in a read. A merged
    event begins with the headers of the first event, so the length in the header is too small. Events with
    other sizes in the ACK header stay as they are.
    """
    if len(events) < 2:
        return events
    merged: list[Event] = []
    for usual, group in groupby(events, _has_usual_sizes):
        first, *others = group
        if usual and others:
            start = first.body + len(_ITEMS.header)
            acks = b"".join([first.data, *(event.data[start:] for event in others)])
            merged.append(first._replace(data=acks))
        else:
            merged += first, *others
    return merged


def _has_usual_sizes(event: Event) -> bool:
    kind, _, data, body = event
    start = body + len(_ITEMS.header)
    return (
        kind == EventType.ACK
        and body == HEADER_SIZE
        and data[body:start] == _ITEMS.header
        and not (len(data) - start) % ACK_SIZE
    )
