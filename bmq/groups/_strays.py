# SPDX-License-Identifier: Apache-2.0
"""Strays: the messages of the queue that the group does not hand out.

A broker delivers the messages of a departed consumer before all newer ones. While no subscription matches
the old messages, the broker delivers no message at all. A member with options different from the peers'
would leave unmatched messages behind, and stop all members. Every member therefore also subscribes to strays,
at the lowest priority. The member holds strays unconfirmed until the member leaves, or passes strays to a
function of the application. A held stray costs this process hardly any memory, so the
window of the subscriptions is as wide as the protocol allows, and never stops delivery.

Rejected: to subscribe only when delivery stands still (an idle queue looks the same), and to give strays
back from time to time (the protocol gives back all messages of a queue or none, and every bucket would
change hands).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from bmq import _world
from bmq.errors import Error

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.groups._member import Member

__all__ = ["LOWEST", "WIDEST_BYTES", "WIDEST_MESSAGES", "StrayLane", "Strays"]

#: The policy for strays: "hold" keeps strays unconfirmed until this member leaves, "leave" takes none, and a
#: function is called with each stray, which is confirmed once the function has returned.
Strays: TypeAlias = Literal["hold", "leave"] | Callable[["Message"], Awaitable[None] | None]

#: Below all subscriptions, except for idle readers' placeholders. Sweepers have the same priority.
LOWEST: Final = -(2**30) + 1
WIDEST_MESSAGES: Final = 2**31 - 1
WIDEST_BYTES: Final = 2**62
_AT_ONCE = 256
# Seconds that strays may take of a turn of the event loop.
_SHARE = 0.005


class StrayLane:
    """The strays of one subscription.

    Args:
        member: the member.
        consumer: the subscription.
        kind: the reason why the messages are strays, for people.
        policy: the policy for strays.

    Attributes:
        consumer: the subscription.
        kind: the reason why the messages are strays, for people.
        held: strays that this member keeps unconfirmed.
        handled: strays that the application's function has handled.
    """

    def __init__(
        self,
        member: Member,
        consumer: Consumer,
        kind: str,
        policy: Strays,
    ) -> None:
        self.consumer = consumer
        self.kind = kind
        self.held = 0
        self.handled = 0
        self._member = member
        self._policy = policy

    async def run(self) -> None:
        """Take strays until the consumer is closed."""
        clock = _world.current().monotonic
        until = clock() + _SHARE
        while True:
            try:
                batch = await self.consumer.receive_many(_AT_ONCE)
            except Error as error:
                self._member.ended(error)
                return
            for message in batch:
                if clock() >= until:
                    await asyncio.sleep(0)
                    until = clock() + _SHARE
                await self._take(message)
            await asyncio.sleep(0)

    async def _take(self, message: Message) -> None:
        reports = self._member.reports
        reports.note_stray(self.kind)
        if callable(self._policy):
            try:
                done = self._policy(message)
                if done is not None:
                    await done
            except Exception as error:
                reports.note_stray_failed(error)
            else:
                self.handled += 1
                message.confirm()
                return
        self.held += 1

    def lose(self) -> None:
        """Forget held strays: the broker delivers all strays again."""
        self.held = 0
