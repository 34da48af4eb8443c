# SPDX-License-Identifier: Apache-2.0
"""CONFIRM events: messages processed by a consumer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bmq.wire.codec import CONFIRM_HEADER, CONFIRM_MESSAGE
from bmq.wire.constants import MAX_EVENT_SOFT, UNSET_GUID, EventType
from bmq.wire.event import HEADER_SIZE, Items

_ITEMS = Items(EventType.CONFIRM, CONFIRM_HEADER, CONFIRM_MESSAGE)
#: Return a CONFIRM event of encoded confirmations. Each piece holds at least one confirmation.
pack_confirms = _ITEMS.pack
_WORDS = CONFIRM_MESSAGE.words("queueId", "messageGUID", "subQueueId")

#: Encode one confirmation from (queueId, messageGUID, subQueueId).
encode_confirm = _WORDS.pack
_unpack = _WORDS.unpack_from

#: Size of a confirmation in bytes.
CONFIRM_SIZE = CONFIRM_MESSAGE.size

#: Largest number of confirmations in an event.
MAX_CONFIRMS = (MAX_EVENT_SOFT - HEADER_SIZE - len(_ITEMS.header)) // CONFIRM_SIZE


class ConfirmMessage(NamedTuple):
    """One confirmation: qId, GUID, and the subId from openQueue."""

    queue_id: int
    guid: bytes
    sub_queue_id: int


_GUID_AT = CONFIRM_MESSAGE.offset_of("messageGUID")
_GUID_SIZE = len(UNSET_GUID)


def encode_queue_confirms(queue_id: int, guids: Sequence[bytes], sub_queue_id: int) -> bytes:
    """Return the confirmations of several messages of one queue; only the GUIDs differ."""
    if not guids:
        return b""
    one = encode_confirm(queue_id, UNSET_GUID, sub_queue_id)
    before, after = one[:_GUID_AT], one[_GUID_AT + len(UNSET_GUID) :]
    return before + (after + before).join(guids) + after


def confirmed_guids(confirms: bytes) -> list[bytes]:
    """Return the GUIDs of joined, encoded confirmations."""
    return [confirms[at : at + _GUID_SIZE] for at in range(_GUID_AT, len(confirms), CONFIRM_SIZE)]


def decode_confirms(event: bytes, body: int) -> list[ConfirmMessage]:
    """Return every confirmation of a CONFIRM event whose body starts at ``body``.

    Raises:
        ProtocolError: the header's sizes are too small, or the messages do not fill the event.
    """
    return [ConfirmMessage._make(confirm) for confirm in iter_confirms(event, body)]


def iter_confirms(event: bytes, body: int) -> Iterable[tuple[int, bytes, int]]:
    """Iterate over the confirmations as plain tuples, on the hot path of a broker.

    Raises:
        ProtocolError: as :func:`decode_confirms`.
    """
    start, stride = _ITEMS.read_header(event, body)
    if stride == CONFIRM_SIZE:
        return _WORDS.iter_unpack(event[start:])
    return [_unpack(event, at) for at in range(start, len(event), stride)]
