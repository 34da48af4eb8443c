# SPDX-License-Identifier: Apache-2.0
"""Messages in the hands of handlers; prevents handing a message to two handlers at the same time.

The problem: a broker redelivers an unconfirmed message after a lost connection, and after the loss of a
cluster's primary even on the same connection. A broker after a loss of memory does not mark the message as
redelivered: only the GUID identifies a message already here. A loop in a program receives the message again,
as documented. A handler must not: code calling handlers lets :class:`InHand` follow the consumer's messages
from the arrival until they are confirmed, put back or given up. A message arriving meanwhile with the same
GUID is the same message. The new copy is dropped, and the first copy counts as arrived again, with a single
outcome for both.

Messages are compared on arrival. A comparison at the time of handling would sometimes find the first message
already confirmed, and would need a separate memory of confirmations.

All handler-feeding consumers of a queue share an :class:`InHand`: the broker may redeliver a message to
another subscription.
"""

from __future__ import annotations

from collections.abc import Iterable

from bmq.client._definition import Numbered
from bmq.client.delivered import Delivered, arrived_anew, counts_of, is_stale, push_of
from bmq.protocol.client.ports import Arrival
from bmq.wire.push import DATA, GUID

__all__ = ["InHand"]


class InHand(dict[bytes, "Delivered | None"]):
    """The messages of one queue in the hands of handlers, by GUID; None for a message in line."""

    __slots__ = ()

    def sort_out(
        self, messages: Iterable[Numbered], arrival: Arrival, *, counted: bool = False
    ) -> list[Numbered]:
        """Return and record the new messages; all remaining messages have arrived again.

        Args:
            messages: messages for one consumer.
            arrival: arrival of the messages.
            counted: whether the queue has counted the messages.
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
            if held is not None and is_stale(held):
                arrived_anew(held, arrival)
                counts = counts_of(held)
                if counted:
                    counts.hold(1)
                else:
                    counts.arrived([push], len(push[DATA]))
            # Otherwise the connection is the same, and the message already counts as unconfirmed.
        return fresh

    def release(self, messages: Iterable[Delivered]) -> None:
        """Forget messages no longer in the hands of a handler."""
        for message in messages:
            self.pop(push_of(message)[GUID], None)
