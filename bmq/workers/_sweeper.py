# SPDX-License-Identifier: Apache-2.0
"""A lowest-priority consumer for messages without a matching subscription.

A message without a matching subscription stays in the queue. The message is harmless until its consumer
leaves: a broker delivers the messages of a departed consumer first, and delivers no further message to the
application until a consumer takes them. A sweeper is such a consumer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from bmq import _checks
from bmq._dead_letters import DeadLetter, Failure, check_elsewhere
from bmq._logging import Log
from bmq.client.buffer import Feeding
from bmq.client.consumer import Consumer, Subscription
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.errors import Error, TimedOut
from bmq.wire.uri import QueueUri

__all__ = ["Sweeper", "SweeperStats"]

logger = Log("bmq.workers")

#: Below the usual priorities, and above the idle subscriptions of writers.
_LOWEST: Final = -(2**30) + 1
_AT_ONCE = 1000


class Unclaimed(Exception):
    """The error of a message put aside by a sweeper."""


@dataclass(frozen=True, slots=True)
class SweeperStats:
    """Counts of a sweeper.

    Attributes:
        held: messages held at present, not taken by any consumer.
        held_bytes: bytes of the held messages.
        put_aside: messages posted to another queue and confirmed.
        failed: messages refused in the other queue; the sweeper holds these messages instead.
        handed_back: messages returned to the queue; repeated returns of a message count each time.
    """

    held: int = 0
    held_bytes: int = 0
    put_aside: int = 0
    failed: int = 0
    handed_back: int = 0


class Sweeper:
    """A consumer of the lowest priority for unclaimed messages.

    ::

        sweeper = bmq.workers.Sweeper("bmq://bmq.test.mem.priority/orders")
        sweeping = asyncio.create_task(sweeper.run(session))

    A sweeper posts unclaimed messages to another queue, or holds them unconfirmed. A message is confirmed
    only after being stored elsewhere, because the broker also delivers messages to the sweeper when the
    matching consumer is merely full.

    From time to time the sweeper returns the held messages, by closing and reopening the queue; the protocol
    has no better way. Consumers subscribed by this time receive matching messages, and the sweeper receives
    the rest again. A sweeper therefore needs a session without another reader of the queue.

    A sweeper that ends returns the held messages, too. The broker then delivers no other message until a
    consumer takes them: with ``put_aside``, nothing is held.

    Args:
        queue: the queue's URI, with ``?id=`` for a queue with applications.
        put_aside: queue to receive the messages before the confirmation, as for a :class:`bmq.DeadLetter`: a
            queue open for writing, or a URI. If None, the sweeper holds the messages.
        hand_back_every: seconds from the first held message until all held messages are returned; None to
            return messages only when the sweeper ends.
        max_unconfirmed_messages: limit of held messages. A full sweeper does not sweep.
        max_unconfirmed_bytes: limit of held bytes.

    Attributes:
        queue: URI of the swept queue.

    Raises:
        UsageError: an argument is out of range, or ``put_aside`` is the queue itself.
        InvalidURI: a URI is not legal.
    """

    def __init__(
        self,
        queue: str,
        *,
        put_aside: Queue | str | None = None,
        hand_back_every: float | None = 60.0,
        max_unconfirmed_messages: int = 100_000,
        max_unconfirmed_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        hand_back_every = _checks.timeout(hand_back_every, "hand_back_every", positive=True)
        uri = QueueUri.parse(queue)
        self.queue = str(uri)
        if put_aside is not None:
            _checks.instance("put_aside", put_aside, (str, Queue), "the URI of a queue or an open bmq.Queue")
            check_elsewhere(uri, put_aside)
        self._put_aside = put_aside
        self._every = hand_back_every
        self._subscription = Subscription(
            priority=_LOWEST,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
        )
        # GUIDs and sizes of the held messages.
        self._held: dict[str, int] = {}
        self._done = self._failed = self._handed_back = 0
        self._told = False

    def stats(self) -> SweeperStats:
        """Return a snapshot of the counts."""
        return SweeperStats(
            held=len(self._held),
            held_bytes=sum(self._held.values()),
            put_aside=self._done,
            failed=self._failed,
            handed_back=self._handed_back,
        )

    async def run(self, session: Session) -> None:
        """Sweep until cancelled; at the end, return the held messages to the queue.

        Args:
            session: a session without the queue open for reading.

        Raises:
            StateError: the session already reads the queue.
            OpenQueueError, ConfigureQueueError: the broker refused a queue.
            RequestTimeout: the broker did not answer in time.
            Error: the queue or the session failed.

        Cancelling the call is the way to end the sweeper.
        """
        _checks.choice("session", session, Session)
        aside = self._put_aside
        if isinstance(aside, str):
            aside = await session.open_output(aside)
        while True:
            await self._hold(session, aside)

    async def _hold(self, session: Session, aside: Queue | None) -> None:
        """Sweep until the held messages are due to be returned."""
        queue = await session.open_queue(
            self.queue, read=True, default_subscription=False, subscriptions=[self._subscription]
        )
        feeding = Feeding(queue.consumers[0])
        try:
            await self._sweep(session, queue.consumers[0], aside, feeding)
        except asyncio.CancelledError:
            if self._held:
                logger.warning(
                    "the sweeper of %s ends, and returns %d messages to the queue: the broker delivers them "
                    "before all others, and nothing else until a consumer takes them",
                    self.queue,
                    len(self._held),
                    extra={"queue": self.queue},
                )
            raise
        finally:
            feeding.close()
            await queue.close()
            self._handed_back += len(self._held)
            self._held.clear()

    async def _sweep(
        self, session: Session, consumer: Consumer, aside: Queue | None, feeding: Feeding
    ) -> None:
        now = asyncio.get_running_loop().time
        until: float | None = None
        reconnects = session.stats().reconnects
        while True:
            try:
                batch = await consumer.receive_many(
                    _AT_ONCE, None if until is None else max(until - now(), 0)
                )
            except TimedOut:
                return
            if reconnects != (reconnects := session.stats().reconnects):
                self._held.clear()  # the broker redelivers all held messages to any consumer
            messages = list(batch)
            if aside is None:
                self._keep(messages, consumer)
            else:
                await self._put(messages, aside, consumer)
            feeding.release(messages)
            if until is None and self._held and self._every is not None:
                until = now() + self._every

    def _keep(self, messages: list[Message], consumer: Consumer) -> None:
        self._held.update((message.guid, len(message.raw)) for message in messages)
        options = consumer.options
        full = len(self._held) >= options.max_unconfirmed_messages
        if not self._told and (full or sum(self._held.values()) >= options.max_unconfirmed_bytes):
            self._told = True
            logger.warning(
                "the sweeper of %s is full (%d messages): further unclaimed messages block the queue "
                "again. Put messages aside, or find the consumer that should have received them",
                self.queue,
                len(self._held),
                extra={"queue": self.queue},
            )

    async def _put(self, messages: list[Message], aside: Queue, consumer: Consumer) -> None:
        """Post messages to another queue, and confirm the stored messages."""
        letter = DeadLetter(aside)
        reason = Unclaimed(f"no other subscription of {self.queue} took the message")

        async def put(message: Message) -> Error | None:
            try:
                await letter.post(Failure(message, reason, 0, None, "sweeper"), aside, asyncio.sleep)
            except Error as error:
                return error
            self._held.pop(message.guid, None)
            self._done += 1
            message.confirm()
            return None

        errors = await asyncio.gather(*map(put, messages))
        kept = [message for message, error in zip(messages, errors, strict=True) if error is not None]
        if kept:
            self._failed += len(kept)
            logger.error(
                "%d messages of %s could not be put aside in %s, and stay with the sweeper: %s",
                len(kept),
                self.queue,
                aside.uri,
                next(filter(None, errors)),
                extra={"queue": self.queue},
            )
            self._keep(kept, consumer)
