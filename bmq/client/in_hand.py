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
from typing import TYPE_CHECKING

from bmq.client._definition import Numbered
from bmq.client.counting import distinct
from bmq.protocol.client.ports import Arrival
from bmq.wire.push import DATA, GUID

if TYPE_CHECKING:
    from bmq.client.buffer import ReceiveBuffer
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message

__all__ = ["Feeding", "InHand"]


class InHand(dict[bytes, "Message | None"]):
    """The messages of one queue in the hands of handlers, by GUID; None for a buffered message."""

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
            if held is not None and held.stale:
                held._arrival = distinct(arrival)  # both deliveries share the message's outcome
                counts = held._buffer.counts
                if counted:
                    counts.hold(1)
                else:
                    counts.arrived([push], len(push[DATA]))
            # Otherwise the connection is the same, and the message already counts as unconfirmed.
        return fresh

    def release(self, messages: Iterable[Message]) -> None:
        """Forget messages no longer in the hands of a handler."""
        for message in messages:
            self.pop(message._push[GUID], None)


class Feeding:
    """Feeds handlers from consumers. No consumer hands out a message already in hand.

    A message is in hand until confirmed, put back or released.

    Args:
        consumers: consumers of queues.
    """

    def __init__(self, *consumers: Consumer) -> None:
        self._buffers: list[ReceiveBuffer] = []
        for consumer in consumers:
            self.add(consumer)

    def add(self, consumer: Consumer) -> Consumer:
        """Add a consumer; return the consumer."""
        buffer = consumer._buffer
        self._buffers.append(buffer)
        buffer.feeding += 1
        if not buffer.queue._core.at_most_once:  # in such a domain, each consumer has a separate copy
            in_hand = buffer.queue._subscriptions.in_hand
            guids = dict.fromkeys([push[GUID] for _, push in buffer.numbered()])
            if buffer.in_hand is not None:
                pass  # another caller feeds from the consumer, too
            elif len(guids) < buffer.messages or not in_hand.keys().isdisjoint(guids):
                buffer.drop_in_hand(in_hand)
            else:
                in_hand.update(guids)
            buffer.in_hand = in_hand
        return consumer

    def release(self, messages: Iterable[Message]) -> None:
        """Allow unconfirmed messages to be handed out again after their handling."""
        for message in messages:
            if not message.confirmed:
                message._buffer.queue._subscriptions.in_hand.release((message,))

    def close(self) -> None:
        """Stop feeding; restore the consumers."""
        for buffer in self._buffers:
            buffer.feeding -= 1
            in_hand = buffer.in_hand
            if buffer.feeding or in_hand is None:
                continue
            buffer.in_hand = None
            waiting = {push[GUID] for _, push in buffer.numbered()}
            for guid, held in list(in_hand.items()):
                if guid in waiting if held is None else held._buffer is buffer:
                    del in_hand[guid]
