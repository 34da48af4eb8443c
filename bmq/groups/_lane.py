# SPDX-License-Identifier: Apache-2.0
"""The messages of one subscription of a group on their way through one member."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bmq.errors import Error
from bmq.groups._ledger import Ledger

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.groups._events import Reason
    from bmq.groups._member import Member

__all__ = ["Lane"]


class Lane:
    """The messages of one subscription; as it is, of messages in no bucket.

    Messages wait in the consumer until the application takes them. The lane's task waits for the first
    message, and adds the lane to the group's ready lanes; the application takes messages directly until the
    line is empty.

    Attributes:
        consumer: the subscription.
        kind: the type of an unusable key; "" for a bucket, and for messages without a key.
        ledger: the state of each message.
    """

    def __init__(self, member: Member, consumer: Consumer, kind: str = "") -> None:
        self.consumer = consumer
        self.kind = kind
        self.ledger = Ledger(consumer)
        self._member = member
        self._emptied = asyncio.Event()

    async def run(self) -> None:
        """Serve the group until the consumer is closed."""
        while True:
            try:
                await self.consumer.wait()
            except Error as error:
                self._member.ended(error)
                return
            if await self._may_hand_out():
                self._emptied.clear()
                self._member.offer(self)
                await self._emptied.wait()

    async def _may_hand_out(self) -> bool:
        """Whether the waiting messages may be handed out; otherwise wait for a change first."""
        return True

    def take(self) -> Message | None:
        """Return the next message; None if the line is empty, and the lane is no longer ready."""
        message = self.ledger.take()
        if message is None:
            self._emptied.set()
        elif self.kind:
            self._member.reports.count_unusable(self.kind)
        return message

    def lose(self, reason: Reason) -> int:
        """Forget the messages at the end of the connection or the membership; return how many were in hand.

        Args:
            reason: the reason, for reports.
        """
        self._member.withdraw(self)
        self._emptied.set()
        return self.ledger.lose()
