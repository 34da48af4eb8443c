# SPDX-License-Identifier: Apache-2.0
"""Messages that handlers have, so that no message is handed to two handlers at the same time.

A broker delivers an unconfirmed message again after a lost connection, and after the loss of a cluster's
primary even on a connection that lasts. A broker that has lost its memory marks no such message as
redelivered, so nothing but the GUID shows that the message is here already. A loop of a program receives the
message again, as documented. A handler does not: whoever calls handlers lets :class:`InHand` follow the
consumer's messages from their arrival until they are confirmed, given back or given up. A message that
arrives meanwhile under the same GUID is the same message. It is dropped, and the first one counts as having
arrived anew: its outcome is the outcome of both.

Messages are compared on arrival. A comparison when a handler takes a message would find the first one
confirmed at times, and would need a memory of confirmations of its own.

All consumers of a queue that feed handlers share one :class:`InHand`: the broker may deliver a message again
to another subscription.
"""

from __future__ import annotations

from collections.abc import Iterable

from bmq.client._definition import Numbered
from bmq.client.message import Message, arrived_anew, line_of, push_of
from bmq.protocol.client.ports import Arrival
from bmq.wire.push import DATA, GUID

__all__ = ["InHand"]


class InHand(dict[bytes, "Message | None"]):
    """The messages that handlers of one queue have, by GUID; None for a message in a consumer's line."""

    __slots__ = ()

    def sort_out(
        self, messages: Iterable[Numbered], arrival: Arrival, *, counted: bool = False
    ) -> list[Numbered]:
        """Return the messages that are new here, and note those; the others have arrived again.

        Args:
            messages: messages for one consumer.
            arrival: when they arrived.
            counted: whether their queue has counted them.
        """
        fresh: list[Numbered] = []
        for each in messages:
            push = each[1]
            guid = push[GUID]
            if guid not in self:
                self[guid] = None
                fresh.append(each)
                continue
            held = self[guid]
            if held is not None and held.stale:
                arrived_anew(held, arrival)
                counts = line_of(held).counts
                if counted:
                    counts.hold(1)
                else:
                    counts.arrived([push], len(push[DATA]))
            # Otherwise the connection lasts, and the message counts as unconfirmed already.
        return fresh

    def release(self, messages: Iterable[Message]) -> None:
        """Forget messages that nothing here handles any more."""
        for message in messages:
            self.pop(push_of(message)[GUID], None)
