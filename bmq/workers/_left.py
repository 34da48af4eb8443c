# SPDX-License-Identifier: Apache-2.0
"""Finished messages without a confirmation.

Left messages stay in the queue and count against the consumer's limits. Once the limits are full, the broker
delivers no more.
"""

from __future__ import annotations

import asyncio
import logging

from bmq.client.consumer import Consumer, line_of
from bmq.client.message import Message
from bmq.errors import Error, StateError
from bmq.workers._clock import Clock

__all__ = ["Left"]

logger = logging.getLogger("bmq.workers")

# After this many further left messages, forget the messages confirmed meanwhile.
_LOOK_AFTER = 64
# With manual confirmation a full window is normal, and logged only after this many idle seconds.
_PATIENCE = 10.0


class Left:
    """Messages left unconfirmed by one worker.

    Args:
        consumer: an open consumer.
        handler: name of the handler, for the log.
        clock: measures the time without arrivals.

    Attributes:
        skipped: sizes of skipped messages by GUID; the limits include the sum.
        left: sizes of all further left messages by GUID.
    """

    def __init__(self, consumer: Consumer, handler: str, clock: Clock) -> None:
        self._consumer = consumer
        self._handler = handler
        self._clock = clock
        self._in_hand = line_of(consumer).end.subscriptions.in_hand
        options = consumer.options
        self._messages = options.max_unconfirmed_messages
        self._bytes = options.max_unconfirmed_bytes
        # A filter of several expressions divides the limits among its expressions. All left messages may
        # belong to a single expression, so each message counts once for every expression.
        self._parts = len(consumer.expressions)
        self.skipped: dict[str, int] = {}
        self.left: dict[str, Message] = {}
        self._size = 0
        self._look_again_at = _LOOK_AFTER
        self._watching: asyncio.Task[None] | None = None
        self._told = False

    @property
    def count(self) -> int:
        """Number of left and skipped messages without a confirmation."""
        self._drop_confirmed()
        return len(self.skipped) + len(self.left)

    @property
    def fills_limits(self) -> bool:
        """Whether left messages fill the limits, which stops the delivery."""
        self._drop_confirmed()
        return self._full()

    def forget(self, message: Message) -> None:
        """Stop counting a redelivered message: a handler receives the message anew."""
        guid = message.guid
        self._size -= self.skipped.pop(guid, 0)
        if self.left.pop(guid, None) is not None:
            self._size -= len(message.raw)

    async def skip(self, message: Message) -> None:
        """Leave a message outside the limits: raise the limits by the skipped messages.

        The limits grow by twice the needed size: thousands of skipped messages take few requests.
        """
        self._in_hand.release((message,))
        self.skipped[message.guid] = len(message.raw)
        self._size += len(message.raw)
        count, size = self._usage()
        options = self._consumer.options
        room, space = options.max_unconfirmed_messages - count, options.max_unconfirmed_bytes - size
        if room * 2 >= self._messages and space * 2 >= self._bytes:
            return
        try:
            await self._consumer.configure(
                max_unconfirmed_messages=self._messages + 2 * count,
                max_unconfirmed_bytes=self._bytes + 2 * size,
            )
        except StateError:
            return  # closed: no message arrives
        except Error as error:
            logger.warning(
                "could not raise the limits by the messages that %s has skipped: %s",
                self._handler,
                error,
                extra={"queue": self._consumer.queue.uri},
            )
            self._tell_if_full()

    def leave(self, message: Message) -> None:
        """Leave a message inside the limits; log once when left messages fill the limits."""
        self._in_hand.release((message,))
        self._keep(message)
        self._tell_if_full()

    def wait_for(self, message: Message) -> None:
        """Leave a message for a later confirmation; log once when the limits stay full.

        With manual confirmation, full limits are normal for a short time and not logged. The message stays in
        hand.
        """
        self._keep(message)
        if not self._told and self._watching is None and self._full():
            self._watching = asyncio.create_task(self._watch(), name=f"{self._handler} standing still")

    def close(self) -> None:
        """Stop watching the limits."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while self._full() and not self._told:
            newest = next(reversed(self.left), None)
            await self._clock.sleep(_PATIENCE)
            self._drop_confirmed()
            if newest == next(reversed(self.left), None):
                self._tell_if_full()
        self._watching = None

    def _keep(self, message: Message) -> None:
        self.left[message.guid] = message
        self._size += len(message.raw)
        if len(self.left) >= self._look_again_at:
            self._drop_confirmed()

    def _drop_confirmed(self) -> None:
        for guid in [guid for guid, message in self.left.items() if message.confirmed]:
            self._size -= len(self.left.pop(guid).raw)
        self._look_again_at = 2 * len(self.left) + _LOOK_AFTER

    def _usage(self) -> tuple[int, int]:
        return (len(self.skipped) + len(self.left)) * self._parts, self._size * self._parts

    def _full(self) -> bool:
        options, (count, size) = self._consumer.options, self._usage()
        return count >= options.max_unconfirmed_messages or size >= options.max_unconfirmed_bytes

    def _tell_if_full(self) -> None:
        if self._told or not self._full():
            return
        self._drop_confirmed()
        if not self._full():
            return
        self._told = True
        options = self._consumer.options
        logger.warning(
            "%s is blocked: unconfirmed messages of %s fill its limits (%d messages, %d bytes). No more "
            "messages arrive until some are confirmed, or until the queue is closed and they are "
            "redelivered, as after a restart. then=bmq.DeadLetter(...) puts aside messages that cannot be"
            " handled",
            self._handler,
            self._consumer.queue.uri,
            options.max_unconfirmed_messages,
            options.max_unconfirmed_bytes,
            extra={"queue": self._consumer.queue.uri},
        )
