# SPDX-License-Identifier: Apache-2.0
"""Messages in the form that tests need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bmq.wire.confirm import encode_confirm, pack_confirms
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.padding import padding
from bmq.wire.push import encode_push

__all__ = ["encode_confirms", "push_message"]


def encode_confirms(confirms: Sequence[tuple[int, bytes, int]], event_type: int = EventType.CONFIRM) -> bytes:
    """Return a CONFIRM (or REJECT) event from (qId, GUID, subId) items."""
    event = pack_confirms([encode_confirm(*confirm) for confirm in confirms])
    # The structures of the two have the same fields.
    return pack_event_header(len(event), event_type) + event[HEADER_SIZE:]


def push_message(queue_id: int, guid: bytes, data: bytes, options: bytes = b"", **fields: Any) -> bytes:
    """Return one PUSH message: ``encode_push`` with the padding added."""
    return encode_push(queue_id, guid, data + padding(len(data)), options, **fields)
