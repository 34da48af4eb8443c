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
from typing import TYPE_CHECKING

from bmq.wire.push import DATA, GUID

if TYPE_CHECKING:
    from bmq.client._definition import Numbered
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.engine.counting import Arrival

__all__ = ["Feeding", "InHand"]


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
                held._arrival = arrival
                counts = held._consumer._counts
                if counted:
                    counts.hold(1)
                else:
                    counts.arrived([push], len(push[DATA]))
            # Otherwise the connection lasts, and the message counts as unconfirmed already.
        return fresh

    def release(self, messages: Iterable[Message]) -> None:
        """Forget messages that nothing here handles any more."""
        for message in messages:
            self.pop(message._push[GUID], None)


class Feeding:
    """Feeds handlers from consumers: none of them hands out a message while that is in hand.

    A message is in hand until it is confirmed, put back or released by whoever took it.

    Args:
        consumers: consumers of queues.
    """

    def __init__(self, *consumers: Consumer) -> None:
        self._consumers: list[Consumer] = []
        for consumer in consumers:
            self.add(consumer)

    def add(self, consumer: Consumer) -> Consumer:
        """Feed handlers from one consumer more; return it."""
        self._consumers.append(consumer)
        consumer._feeding += 1
        if not consumer.queue._core.at_most_once:  # there, each consumer has a copy of its own
            in_hand = consumer._subscriptions.in_hand
            guids = dict.fromkeys([push[GUID] for push in consumer._messages])
            if consumer._in_hand is not None:
                pass  # fed by another caller, too
            elif len(guids) < len(consumer._messages) or not in_hand.keys().isdisjoint(guids):
                consumer._sort_line(in_hand)
            else:
                in_hand.update(guids)
            consumer._in_hand = in_hand
        return consumer

    def release(self, messages: Iterable[Message]) -> None:
        """Let messages be handed out again that are not confirmed, and that nothing here handles any more."""
        for message in messages:
            if not message.confirmed:
                message._consumer._subscriptions.in_hand.release((message,))

    def close(self) -> None:
        """Feed no longer: the consumers are as they were."""
        for consumer in self._consumers:
            consumer._feeding -= 1
            in_hand = consumer._in_hand
            if consumer._feeding or in_hand is None:
                continue
            consumer._in_hand = None
            waiting = {push[GUID] for push in consumer._messages}
            for guid, held in list(in_hand.items()):
                if guid in waiting if held is None else held._consumer is consumer:
                    del in_hand[guid]
