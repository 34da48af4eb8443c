# SPDX-License-Identifier: Apache-2.0
"""The messages of the queue that the group does not hand out.

A broker delivers a message that a departed consumer had before anything newer, and delivers nothing at all
while no subscription matches that message. A member with other options than its peers would stop them all: it
leaves messages behind that they do not take. So every member also subscribes to these messages, at the lowest
priority. They are *strays*: the member holds them unconfirmed until it leaves, or gives them to a function of
the application. A held message costs this process nothing but a count. So the window of these subscriptions
is as wide as the protocol allows, and never stops delivery.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from bmq.errors import Error

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.groups._group import Group

__all__ = ["LOWEST", "WIDEST_BYTES", "WIDEST_MESSAGES", "StrayLane", "Strays"]

#: What becomes of strays: "hold" keeps them unconfirmed until this member leaves, "leave" does not subscribe
#: to them, a function is called with each message, which is confirmed once the function has returned.
Strays: TypeAlias = Literal["hold", "leave"] | Callable[["Message"], Awaitable[None] | None]

#: Below every other subscription but those of queues that want nothing. A sweeper has the same.
LOWEST: Final = -(2**30) + 1
WIDEST_MESSAGES: Final = 2**31 - 1
WIDEST_BYTES: Final = 2**62
_AT_ONCE = 256
# Seconds that strays may take of a turn of the event loop.
_SHARE = 0.005


class StrayLane:
    """The strays of one subscription.

    Attributes:
        consumer: the subscription.
        kind: why its messages are strays, for people.
        held: strays that this member has and does not confirm.
        handled: strays that the application's function has handled.
    """

    def __init__(self, group: Group, consumer: Consumer, kind: str, *, exact: bool) -> None:
        self.consumer = consumer
        self.kind = kind
        self.held = 0
        self.handled = 0
        self._group = group
        self._exact = exact

    async def run(self) -> None:
        """Take strays until the consumer is closed."""
        clock = time.monotonic
        until = clock() + _SHARE
        while True:
            try:
                batch = await self.consumer.receive_many(_AT_ONCE)
            except Error as error:
                self._group._ended_without_leaving(error)
                return
            for message in batch:
                if clock() >= until:
                    await asyncio.sleep(0)
                    until = clock() + _SHARE
                lane = None if self._exact else self._group._lane_for(message)
                if lane is not None:
                    lane.ledger.take_over(message)
                else:
                    await self._take(message)
            await asyncio.sleep(0)

    async def _take(self, message: Message) -> None:
        group = self._group
        group._note_stray(self.kind)
        if callable(group._strays):
            try:
                done = group._strays(message)
                if done is not None:
                    await done
            except Exception as error:
                group._note_stray_failed(error)
            else:
                self.handled += 1
                message.confirm()
                return
        self.held += 1

    def lose(self) -> None:
        """The broker delivers again what is held."""
        self.held = 0
