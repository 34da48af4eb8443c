# SPDX-License-Identifier: Apache-2.0
"""One bucket of a group, as one member sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bmq.errors import QueueClosed
from bmq.groups._events import Full, Gained, Lost, Reason

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.groups._group import Group

__all__ = ["Hook", "Lane", "call"]

#: Called with the number of a bucket; it may be async.
Hook = Callable[[int], Awaitable[None] | None]

# A bucket is said to be full a little before it is: there is still time to do something.
_NEARLY = 0.8


async def call(hook: Hook | None, bucket: int) -> None:
    """Call a hook, if there is one, and wait for it."""
    if hook is not None:
        done = hook(bucket)
        if done is not None:
            await done


class Lane:
    """The messages of one bucket on their way through one member.

    They wait in the bucket's consumer; only the first of them is taken out by the lane's task, which first
    makes the bucket this member's. Then the lane is among the group's ready ones, and the application takes
    the rest directly.

    Attributes:
        bucket: the number; None for messages without a key.
        consumer: the bucket's subscription.
        owned: whether messages of it came here, and nothing says since that it went.
        last: when one was handed out last, by the event loop's clock.
    """

    def __init__(self, group: Group, bucket: int | None, consumer: Consumer) -> None:
        self.bucket = bucket
        self.consumer = consumer
        self.owned = False
        self.last = 0.0
        self._group = group
        self._window = consumer.options.max_unconfirmed_messages
        self._head: Message | None = None
        self._emptied = asyncio.Event()
        # What was handed out and is not known to be confirmed, oldest first.
        self._in_hand: deque[Message] = deque()
        self._full = False
        # How many times the bucket went: what was taken out before is not handed out after.
        self._losses = 0
        self._dropping: asyncio.Task[None] | None = None
        self._settled: asyncio.Event | None = None

    @property
    def leaving(self) -> bool:
        """Whether its bucket went, and messages of it are still in hand."""
        return self._settled is not None

    @property
    def in_hand(self) -> int:
        """How many messages were handed out and not confirmed since."""
        in_hand = self._in_hand
        while in_hand and in_hand[0].confirmed:
            in_hand.popleft()
        if in_hand and in_hand[-1].confirmed:
            # They are not confirmed in order.
            self._in_hand = in_hand = deque(message for message in in_hand if not message.confirmed)
        if not in_hand and self._settled is not None:
            self._settled.set()
        return len(in_hand)

    async def run(self) -> None:
        """Serve the group until the consumer is closed."""
        group = self._group
        while True:
            try:
                message = await self.consumer.receive()
            except QueueClosed:
                return
            losses = self._losses
            if not self.owned and self.bucket is not None:
                await self._gain(self.bucket)
                if losses != self._losses:
                    # The connection was lost meanwhile: the message comes again, here or elsewhere.
                    continue
            self._head = message
            self._emptied.clear()
            self._look()
            group._offer(self)
            await self._emptied.wait()

    async def _gain(self, bucket: int) -> None:
        group = self._group
        if self._dropping is not None:
            await self._dropping
        if group._settle:
            await asyncio.sleep(group._settle)
        losses = self._losses
        await call(group._load, bucket)
        if losses != self._losses:
            # It went while it was loaded.
            await call(group._drop, bucket)
            return
        self.owned = True
        self.last = group._now()
        group._tell(Gained(bucket))

    def take(self) -> Message | None:
        """Return the next message; None if there is none, and the lane is not ready any more."""
        message = self._head
        if message is not None:
            self._head = None
        else:
            message = self.consumer.receive_nowait()
            if message is None:
                self._emptied.set()
                return None
        self._in_hand.append(message)
        self.last = self._group._now()
        return message

    def _look(self) -> None:
        """Tell when the window is nearly full."""
        if self.bucket is None or not self._window:
            return
        unconfirmed = self.consumer.buffered + self.in_hand + 1
        if unconfirmed < _NEARLY * self._window:
            self._full = False
        elif not self._full:
            self._full = True
            self._group._tell(Full(self.bucket, unconfirmed, self._window))

    def lose(self, reason: Reason) -> None:
        """The bucket went, or may have gone."""
        self._losses += 1
        self._head = None
        self._group._withdraw(self)
        self._emptied.set()
        if not self.owned or self.bucket is None:
            return
        self.owned = False
        in_hand = self.in_hand
        self._group._tell(Lost(self.bucket, reason, in_hand))
        if self._group._drop is not None:
            self._settled = asyncio.Event()
            if not in_hand:
                self._settled.set()
            self._dropping = self._group._spawn(self._drop(self.bucket, self._settled))

    async def _drop(self, bucket: int, settled: asyncio.Event) -> None:
        """Call the hook once nothing of the bucket is in the application's hands, or it took too long."""
        try:
            async with asyncio.timeout(self._group._grace):
                await settled.wait()
        except TimeoutError:
            pass
        self._settled = self._dropping = None
        self._in_hand.clear()
        await call(self._group._drop, bucket)

    async def dropped(self) -> None:
        """Wait until the hook was called, if it has to be."""
        if self._dropping is not None:
            await self._dropping
