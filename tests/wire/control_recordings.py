# SPDX-License-Identifier: Apache-2.0
"""The control and authentication events of the recorded conversations, with the family of each."""

from functools import cache
from typing import NamedTuple

from bmq.wire.constants import EventType
from bmq.wire.control import Codec, MessageKind
from bmq.wire.control_event import codec_of
from bmq.wire.event import Event, read_event
from tests import transcripts


class RecordedControl(NamedTuple):
    place: str
    from_broker: bool
    kind: MessageKind
    codec: Codec
    event: Event

    @property
    def body(self) -> bytes:
        return self.event.data[self.event.body :]


@cache
def recorded() -> tuple[RecordedControl, ...]:
    found = []
    negotiated = set()
    for r in transcripts.recorded(EventType.CONTROL, EventType.AUTHENTICATION):
        # The first control event in each direction of a connection is a negotiation message.
        way = r.recording, r.connection, r.direction
        if r.type is EventType.AUTHENTICATION:
            kind = MessageKind.AUTHENTICATION
        elif way in negotiated:
            kind = MessageKind.CONTROL
        else:
            kind = MessageKind.NEGOTIATION
            negotiated.add(way)
        event = read_event(r.data)
        found.append(RecordedControl(str(r), r.direction == "b2c", kind, codec_of(event), event))
    return tuple(found)


def recorded_in(codec: Codec) -> list[RecordedControl]:
    return [r for r in recorded() if r.codec is codec]
