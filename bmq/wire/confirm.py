# SPDX-License-Identifier: Apache-2.0
"""CONFIRM and REJECT events: messages a consumer is done with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bmq.wire.ack import read_list_header
from bmq.wire.codec import CONFIRM_HEADER, CONFIRM_MESSAGE
from bmq.wire.constants import MAX_EVENT_SOFT, UNSET_GUID, EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header

__all__ = [
    "CONFIRM_SIZE",
    "MAX_CONFIRMS",
    "ConfirmMessage",
    "decode_confirms",
    "encode_confirm",
    "encode_queue_confirms",
    "iter_confirms",
    "pack_confirms",
    "split_confirms",
]

_HEADER = CONFIRM_HEADER.pack(CONFIRM_HEADER.size // 4, CONFIRM_MESSAGE.size // 4, 0)

#: One confirmation's bytes from (queueId, messageGUID, subQueueId).
encode_confirm = CONFIRM_MESSAGE.pack
_unpack = CONFIRM_MESSAGE.unpack_from

#: The bytes of one confirmation.
CONFIRM_SIZE = CONFIRM_MESSAGE.size

#: How many confirmations one event holds at most.
MAX_CONFIRMS = (MAX_EVENT_SOFT - HEADER_SIZE - len(_HEADER)) // CONFIRM_SIZE


class ConfirmMessage(NamedTuple):
    """One confirmation: qId, GUID, and the subId of openQueue."""

    queue_id: int
    guid: bytes
    sub_queue_id: int


# Where the GUID is in a confirmation.
_GUID_AT = encode_confirm(0, b"\xff" * 16, 0).index(b"\xff" * 16)


def encode_queue_confirms(queue_id: int, guids: Sequence[bytes], sub_queue_id: int) -> bytes:
    """Return the confirmations of several messages of one queue: only the GUIDs in the middle differ."""
    if not guids:
        return b""
    one = encode_confirm(queue_id, UNSET_GUID, sub_queue_id)
    before, after = one[:_GUID_AT], one[_GUID_AT + len(UNSET_GUID) :]
    return before + (after + before).join(guids) + after


def split_confirms(confirms: bytes) -> list[bytes]:
    """Return the single confirmations of encoded ones that were joined."""
    return [confirms[at : at + CONFIRM_SIZE] for at in range(0, len(confirms), CONFIRM_SIZE)]


def pack_confirms(confirms: Sequence[bytes], event_type: int = EventType.CONFIRM) -> bytes:
    """Return an event of confirmations that are already encoded, one or more in an item."""
    body = b"".join(confirms)
    return pack_event_header(HEADER_SIZE + len(_HEADER) + len(body), event_type) + _HEADER + body


def decode_confirms(event: bytes, body: int) -> list[ConfirmMessage]:
    """Return every item of a CONFIRM or REJECT event whose body starts at ``body``.

    Raises:
        ProtocolError: the header's sizes are too small, or the messages do not fill the event.
    """
    return [ConfirmMessage._make(confirm) for confirm in iter_confirms(event, body)]


def iter_confirms(event: bytes, body: int) -> Iterable[tuple[int, bytes, int]]:
    """Iterate over the same items as bare tuples: the hot path of a broker.

    Raises:
        ProtocolError: as :func:`decode_confirms`.
    """
    start, stride = read_list_header(event, body, "Confirm", CONFIRM_SIZE)
    if stride == CONFIRM_SIZE:
        return CONFIRM_MESSAGE.struct.iter_unpack(memoryview(event)[start:])
    return [_unpack(event, at) for at in range(start, len(event), stride)]
