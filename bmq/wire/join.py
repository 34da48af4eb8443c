# SPDX-License-Identifier: Apache-2.0
"""The same messages in fewer events.

A broker that serves a producer and a consumer at once sends events of a few messages or acknowledgements. The
client then reads hundreds of events at a time. Processing an event takes as long as ten further messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from bmq.wire.ack import usual_start
from bmq.wire.constants import EventType
from bmq.wire.event import Event
from bmq.wire.push import fills

__all__ = ["join_events"]

# Size of the largest events joined: the copy of larger ones takes longer than their own processing.
_LARGEST = 16 * 1024
_PUSH, _ACK = int(EventType.PUSH), int(EventType.ACK)


def join_events(events: Iterable[Event]) -> Iterator[Event]:
    """Yield events in order; consecutive small PUSH events become one event, and so do ACK events.

    An event that its messages do not fill exactly stays alone, and is refused alone.
    """
    for kind, group in groupby(events, _kind):
        first, *others = group
        if not kind or not others:
            yield first
            yield from others
        elif kind == _PUSH:
            bodies = [data[body:] for _, _, data, body in others]
            yield first._replace(data=b"".join([first.data, *bodies]))
        else:
            acks = [data[usual_start(data, body) :] for _, _, data, body in others]
            yield first._replace(data=b"".join([first.data, *acks]))


def _kind(event: Event) -> int:
    """Return the type of an event that may be joined with others, otherwise 0."""
    kind, _, data, body = event
    if len(data) > _LARGEST:
        return 0
    if kind == _PUSH:
        return kind if fills(data, body) else 0
    return kind if kind == _ACK and usual_start(data, body) else 0
