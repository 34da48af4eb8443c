# SPDX-License-Identifier: Apache-2.0
"""Joins small events, for less work per message.

A busy broker sends events of a few messages or acknowledgements. A client then reads hundreds of events at a
time, and needs as much time for one event as for ten messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from bmq.wire.ack import usual_start
from bmq.wire.constants import EventType
from bmq.wire.event import Event
from bmq.wire.push import fills

__all__ = ["join_events"]

# Size in bytes of the largest joined event. Copying a larger event takes longer than processing the event.
_LARGEST = 16 * 1024
_PUSH, _ACK = int(EventType.PUSH), int(EventType.ACK)


def join_events(events: Iterable[Event]) -> Iterator[Event]:
    """Yield events in order, consecutive small events of the type PUSH or ACK joined to one event.

    A malformed event is never joined: an error names a position in the broker's own event.
    """
    for kind, group in groupby(events, _kind):
        first, *others = group
        if not kind or not others:
            yield first
            yield from others
            continue
        if kind == _PUSH:
            contents = [data[body:] for _, _, data, body in others]
        else:
            contents = [data[usual_start(data, body) :] for _, _, data, body in others]
        yield first._replace(data=b"".join([first.data, *contents]))


def _kind(event: Event) -> int:
    """Return the type of a small, well-formed PUSH or ACK event, otherwise 0."""
    kind, _, data, body = event
    if len(data) > _LARGEST:
        return 0
    if kind == _PUSH:
        return kind if fills(data, body) else 0
    return kind if kind == _ACK and usual_start(data, body) else 0
