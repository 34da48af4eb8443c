# SPDX-License-Identifier: Apache-2.0
"""One bucket of a group, as one member sees it.

The broker tells no member the owner of a bucket. A member concludes from a message that the bucket came, and
from a lost connection, a quiet bucket or the member's departure that the bucket went. Three waits lie
between the first message and the application: for ``on_revoked`` of the previous ownership, for ``settle``,
and for ``on_assigned``. The bucket may go during each wait, and even come back.

Ownership is therefore a state with an epoch. Every loss begins a new epoch, in every state. After every wait
the lane compares epochs, and starts again if the bucket went meanwhile. A loss empties the consumer's line
before the group receives the event of the loss, so an empty line after a wait is a loss too: ``Gained``
always precedes a message that can be handed out.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Final

from bmq.errors import Error, StateError
from bmq.groups._events import Full, Gained, Lost, Reason
from bmq.groups._ledger import Ledger
from bmq.groups._member import call

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.groups._member import Hook, Member

__all__ = ["Lane", "Ownership"]

# Part of the window at which a bucket counts as full: early enough to react.
_NEARLY = 0.8
# Seconds between two checks for confirmations that ``on_revoked`` waits for.
_LOOK_EVERY = 0.05


class Ownership(Enum):
    """The states of a bucket in one member."""

    AWAY = "no message came since the bucket went"
    SETTLING = "a message came, and waits for on_revoked or settle"
    LOADING = "on_assigned was called"
    OURS = "messages are delivered to handlers"


class Step(Enum):
    """The inputs that change the ownership of a bucket."""

    ARRIVED = "a message came"
    SETTLED = "the waits before on_assigned are over"
    LOADED = "on_assigned has returned"
    LOST = "the bucket went"


OWNERSHIP: Final[dict[tuple[Ownership, Step], Ownership]] = {
    (Ownership.AWAY, Step.ARRIVED): Ownership.SETTLING,
    (Ownership.SETTLING, Step.SETTLED): Ownership.LOADING,
    (Ownership.LOADING, Step.LOADED): Ownership.OURS,
    **{(ownership, Step.LOST): Ownership.AWAY for ownership in Ownership},
}


class Lane:
    """The messages of one bucket on their way through one member.

    Messages wait in the bucket's consumer until the application takes them. The lane's task waits for the
    first message, gains the bucket, and adds the lane to the group's ready lanes; the application takes
    messages directly until the line is empty.

    Attributes:
        bucket: the number; None for messages without a usable key.
        consumer: the bucket's subscription.
        kind: the type of an unusable key; "" for a bucket, and for messages without a key.
        ledger: the state of each message.
        ownership: the state of the bucket.
        epoch: increased by every loss.
        hook: ``on_assigned`` while it runs, or the ``on_revoked`` after a late one; else None.
        dropping: the task that calls ``on_revoked``, while running.
    """

    def __init__(self, member: Member, bucket: int | None, consumer: Consumer, kind: str = "") -> None:
        self.bucket = bucket
        self.consumer = consumer
        self.kind = kind
        self.ledger = Ledger(consumer)
        self.ownership = Ownership.AWAY
        self.epoch = 0
        self.hook: Hook | None = None
        self._member = member
        self._window = consumer.options.max_unconfirmed_messages
        self._emptied = asyncio.Event()
        self._full = False
        # When a message of the bucket was here last, by the event loop's clock; whether at the last look.
        self._last = 0.0
        self._busy = False
        self.dropping: asyncio.Task[None] | None = None
        # Set once on_revoked need not wait any longer for messages in the application's hands.
        self._finished: asyncio.Event | None = None

    @property
    def owned(self) -> bool:
        """Whether messages of the bucket are handed out."""
        return self.ownership is Ownership.OURS

    def _step(self, step: Step) -> None:
        following = OWNERSHIP.get((self.ownership, step))
        if following is None:
            raise StateError(f"{step.name} is not possible while a bucket is {self.ownership.name}")
        self.ownership = following

    async def run(self) -> None:
        """Serve the group until the consumer is closed."""
        while True:
            try:
                await self.consumer.wait()
            except Error as error:
                self._member.ended(error)
                return
            if self.bucket is not None and not self.owned and not await self._gain(self.bucket):
                continue
            self._emptied.clear()
            self._look()
            self._member.offer(self)
            await self._emptied.wait()

    async def _gain(self, bucket: int) -> bool:
        """Gain the bucket; return False if the bucket was lost meanwhile."""
        hooks, epoch = self._member.hooks, self.epoch

        def gone() -> bool:
            return epoch != self.epoch or not self.ledger.waiting

        self._step(Step.ARRIVED)
        if self.dropping is not None:
            await asyncio.wait((self.dropping,))
        if hooks.settle and not gone():
            await asyncio.sleep(hooks.settle)
        if gone():
            self._went(epoch)
            return False
        self._step(Step.SETTLED)
        self.hook = hooks.on_assigned
        try:
            try:
                await call(self.hook, bucket)
            except asyncio.CancelledError:
                self.hook = hooks.on_revoked
                await call(self.hook, bucket)  # undo on_assigned
                raise
            if gone():
                self._went(epoch)
                self.hook = hooks.on_revoked
                await call(self.hook, bucket)
                return False
        finally:
            self.hook = None
        self._step(Step.LOADED)
        self._last = _now()
        self._member.reports.tell(Gained(bucket))
        return True

    def _went(self, epoch: int) -> None:
        """The bucket went before the gain; the group may not have noticed yet."""
        if epoch == self.epoch:
            self.epoch += 1
            self._step(Step.LOST)

    def take(self) -> Message | None:
        """Return the next message; None if the line is empty, and the lane is no longer ready."""
        message = self.ledger.take()
        if message is None:
            self._emptied.set()
        else:
            self._busy = True
            if self.kind:
                self._member.reports.count_unusable(self.kind)
        return message

    def _look(self) -> None:
        """Tell when the window is nearly full."""
        if self.bucket is None or not self._window:
            return
        ledger, nearly = self.ledger, _NEARLY * self._window
        if ledger.waiting + ledger.most_in_hand < nearly:
            self._full = False
            return
        unconfirmed = ledger.waiting + ledger.in_hand
        if unconfirmed < nearly:
            self._full = False
        elif not self._full:
            self._full = True
            self._member.reports.tell(Full(self.bucket, unconfirmed, self._window))

    def lose_if_idle(self, after: float) -> None:
        """Lose the bucket if no message was here for ``after`` seconds."""
        if self.bucket is None or not self.owned:
            return
        now, busy = _now(), not self.ledger.quiet
        if busy or self._busy:
            self._last, self._busy = now, busy
        elif now - self._last >= after:
            self.lose(Reason.IDLE)

    def lose(self, reason: Reason) -> None:
        """The bucket went, or may have gone."""
        self.epoch += 1
        owned = self.owned
        self._step(Step.LOST)
        in_hand = self.ledger.lose()
        self._member.withdraw(self)
        self._emptied.set()
        dropping = owned and self.bucket is not None and self._member.hooks.on_revoked is not None
        if owned and self.bucket is not None:
            self._member.reports.tell(Lost(self.bucket, reason, in_hand))
        if not dropping:
            if self.dropping is None:
                self.ledger.forget()
            return
        assert self.bucket is not None
        self._finished = asyncio.Event()
        self.dropping = self._member.spawn(self._drop(self.bucket, self._finished))

    def look_at_hands(self) -> None:
        """Let ``on_revoked`` continue if the application has confirmed its messages of the bucket."""
        if self._finished is not None and not self.ledger.at_work:
            self._finished.set()

    async def _drop(self, bucket: int, finished: asyncio.Event) -> None:
        """Call ``on_revoked`` once no message of the bucket is in hand, or after ``grace``."""
        member = self._member
        member.dropping[self] = None
        try:
            looks = round(member.patience / _LOOK_EVERY)
            self.look_at_hands()
            while looks > 0 and not finished.is_set():
                looks -= 1
                try:
                    async with asyncio.timeout(_LOOK_EVERY):
                        await finished.wait()
                except TimeoutError:
                    self.look_at_hands()
            self.ledger.forget()
            await call(member.hooks.on_revoked, bucket)
        finally:
            member.dropping.pop(self, None)
            self.dropping = self._finished = None

    def hurry(self) -> None:
        """Wait no longer for messages in the application's hands."""
        if self._finished is not None:
            self._finished.set()


def _now() -> float:
    """The event loop's clock."""
    return asyncio.get_running_loop().time()
