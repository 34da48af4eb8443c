# SPDX-License-Identifier: Apache-2.0
"""Exclusive handling: no message is handed to two handlers at the same time."""

from __future__ import annotations

from collections.abc import Iterable

from bmq.client.consumer import Consumer, line_of
from bmq.client.delivered import counts_of
from bmq.client.message import Message, MessageLine
from bmq.wire.push import GUID

__all__ = ["Feeding"]


class Feeding:
    """Feeds handlers from consumers. No consumer hands out a message already in hand.

    A message is in hand until confirmed, put back or released.

    Args:
        consumers: consumers of queues.
    """

    def __init__(self, *consumers: Consumer) -> None:
        self._lines: list[MessageLine] = []
        for consumer in consumers:
            self.add(consumer)

    def add(self, consumer: Consumer) -> Consumer:
        """Add a consumer; return the consumer."""
        line = line_of(consumer)
        self._lines.append(line)
        line.feeding += 1
        if not line.queue._core.at_most_once:  # in such a domain, each consumer has a separate copy
            in_hand = line.queue._subscriptions.in_hand
            guids = dict.fromkeys([push[GUID] for push in line.messages])
            if line.in_hand is not None:
                pass  # another caller feeds from the consumer, too
            elif len(guids) < len(line.messages) or not in_hand.keys().isdisjoint(guids):
                line.sort_line(in_hand)
            else:
                in_hand.update(guids)
            line.in_hand = in_hand
        return consumer

    def release(self, messages: Iterable[Message]) -> None:
        """Allow unconfirmed messages to be handed out again after their handling."""
        for message in messages:
            if not message.confirmed:
                message._line.queue._subscriptions.in_hand.release((message,))

    def close(self) -> None:
        """Stop feeding; restore the consumers."""
        for line in self._lines:
            line.feeding -= 1
            in_hand = line.in_hand
            if line.feeding or in_hand is None:
                continue
            line.in_hand = None
            waiting = {push[GUID] for push in line.messages}
            for guid, held in list(in_hand.items()):
                if guid in waiting if held is None else counts_of(held) is line.counts:
                    del in_hand[guid]
