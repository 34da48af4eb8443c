# SPDX-License-Identifier: Apache-2.0
"""Messages in the hands of handlers, so that no message is handed to two handlers at the same time.

The problem: a broker redelivers an unconfirmed message after a lost connection, and after the loss of a
cluster's primary even on the same connection. A broker that has lost its memory does not mark such a message
as redelivered, so only the GUID shows that the message is already here. A loop in a program receives the
message again, as documented. A handler must not: code that calls handlers lets :class:`InHand` follow the
consumer's messages from their arrival until they are confirmed, put back or given up. A message that arrives
meanwhile with the same GUID is the same message. The new message is dropped, and the first one counts as
arrived again: its outcome is the outcome of both.

Messages are compared on arrival. A comparison at the time of handling would sometimes find the first message
already confirmed, and would need its own memory of confirmations.

All consumers of a queue that feed handlers share one :class:`InHand`: the broker may redeliver a message to
another subscription.
"""

from __future__ import annotations

from collections.abc import Iterable

from bmq.client._definition import Numbered
from bmq.client.message import Message, arrived_anew, line_of, push_of
from bmq.protocol.client.ports import Arrival
from bmq.wire.push import DATA, GUID

__all__ = ["InHand"]


class InHand(dict[bytes, "Message | None"]):
    """The messages of one queue in the hands of handlers, by GUID; None for a message in line."""

    __slots__ = ()

    def sort_out(
        self, messages: Iterable[Numbered], arrival: Arrival, *, counted: bool = False
    ) -> list[Numbered]:
        """Return and record the new messages; the others have arrived again.

        Args:
            messages: messages for one consumer.
            arrival: arrival of the messages.
            counted: whether the queue has counted them.
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
            # Otherwise the connection is the same, and the message already counts as unconfirmed.
        return fresh

    def release(self, messages: Iterable[Message]) -> None:
        """Forget messages that no handler has any longer."""
        for message in messages:
            self.pop(push_of(message)[GUID], None)
