# SPDX-License-Identifier: Apache-2.0
"""Finished messages without a confirmation.

Left messages stay in the queue and count against the consumer's limits. Once the limits are full, the broker
delivers no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bmq import _world
from bmq._checks import INT32_MAX, INT64_MAX
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.client.message import Message
from bmq.errors import Error, StateError

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer

__all__ = ["Left", "short", "widen"]

_LEAVES = (
    "%s leaves messages of %s in the queue, unconfirmed: %d so far, the first is %s. The broker redelivers "
    "them once the queue is closed. %s"
)
# After this many further left messages, forget the messages confirmed meanwhile.
_LOOK_AFTER = 64
# With manual confirmation a full window is normal, and logged only after this many idle seconds.
_PATIENCE = 10.0


async def widen(consumer: Consumer, usual: tuple[int, int], count: int, size: int) -> None:
    """Raise the limits of a consumer by messages that stay unconfirmed.

    The limits grow by twice the needed size: thousands of messages take few requests.

    Args:
        consumer: an open consumer.
        usual: the limits without such messages, in messages and bytes.
        count: number of such messages, once for every expression of the consumer.
        size: bytes of such messages, once for every expression.

    Raises:
        ConfigureQueueError, RequestTimeout, StateError: as for :meth:`bmq.Consumer.configure`.
    """
    await consumer.configure(
        max_unconfirmed_messages=min(usual[0] + 2 * count, INT32_MAX),
        max_unconfirmed_bytes=min(usual[1] + 2 * size, INT64_MAX),
    )


def short(consumer: Consumer, usual: tuple[int, int], count: int, size: int) -> bool:
    """Whether messages that stay unconfirmed leave at most half of the usual limits; see :func:`widen`."""
    options = consumer.options
    room, space = options.max_unconfirmed_messages - count, options.max_unconfirmed_bytes - size
    return (room * 2 <= usual[0] and options.max_unconfirmed_messages < INT32_MAX) or (
        space * 2 <= usual[1] and options.max_unconfirmed_bytes < INT64_MAX
    )


class Left:
    """Messages of one consumer left unconfirmed.

    The number of messages left without a decision of the application is logged: at the first one, afterwards
    at most once a minute, and at the end.

    Args:
        consumer: an open consumer.
        name: name of the handler or the service, for the log.
        logger: receives the log lines.
        remedy: how an application decides about such messages, for the log.
        sleep: measures the time without arrivals.
        now: a monotonic clock in seconds, for the rate of log lines.

    Attributes:
        skipped: sizes of skipped messages by GUID; the limits include the sum.
        left: all further left messages by GUID.
    """

    def __init__(
        self,
        consumer: Consumer,
        name: str,
        logger: Log,
        remedy: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = _world.monotonic,
    ) -> None:
        self._consumer = consumer
        self._name = name
        self._logger = logger
        self._remedy = remedy
        self._sleep = sleep
        self._limit = LogLimit(logger, clock=now)
        options = consumer.options
        self._usual = options.max_unconfirmed_messages, options.max_unconfirmed_bytes
        self.skipped: dict[str, int] = {}
        self.left: dict[str, Message] = {}
        self._size = 0
        self._look_again_at = _LOOK_AFTER
        self._watching: asyncio.Task[None] | None = None
        self._widening: asyncio.Task[None] | None = None
        self._told = False
        self._reported = 0

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

    def skip(self, message: Message) -> None:
        """Leave a message outside the limits: raise the limits by the skipped messages, in the background."""
        self.forget(message)
        message._buffer.queue._subscriptions.in_hand.release((message,))
        self.skipped[message.guid] = len(message.raw)
        self._size += len(message.raw)
        self._report()
        if self._widening is None and short(self._consumer, self._usual, *self._usage()):
            self._widening = asyncio.create_task(self._widen(), name=f"limits of {self._name}")

    def leave(self, message: Message) -> None:
        """Leave a message inside the limits; log once when left messages fill the limits."""
        message._buffer.queue._subscriptions.in_hand.release((message,))
        self._keep(message)
        self._report()
        self._tell_if_full()

    def wait_for(self, message: Message) -> None:
        """Leave a message for a later confirmation; log once when the limits stay full.

        With manual confirmation, full limits are normal for a short time and not logged. The message stays in
        hand.
        """
        self._keep(message)
        if not self._told and self._watching is None and self._full():
            self._watching = asyncio.create_task(self._watch(), name=f"{self._name} standing still")

    def close(self) -> None:
        """Stop watching and raising the limits, and log the number of messages left since the last line."""
        for task in (self._watching, self._widening):
            if task is not None:
                task.cancel()
        if len(self.skipped) > self._reported:
            self._logger.warning(_LEAVES, *self._about(), extra={"queue": self._consumer.queue.uri})

    def _report(self) -> None:
        """Log the number of left messages, not each of them."""
        if self._limit.warning("left", _LEAVES, *self._about()):
            self._reported = len(self.skipped)

    def _about(self) -> tuple[object, ...]:
        return (
            self._name,
            self._consumer.queue.uri,
            len(self.skipped) + len(self.left),
            next(iter(self.skipped or self.left)),
            self._remedy,
        )

    async def _widen(self) -> None:
        """Raise the limits until half of the usual limits is free of left messages."""
        try:
            while short(self._consumer, self._usual, *self._usage()):
                await widen(self._consumer, self._usual, *self._usage())
        except StateError:
            pass  # closed: no message arrives
        except Error as error:
            self._logger.warning(
                "could not raise the limits by the messages that %s has skipped: %s",
                self._name,
                error,
                extra={"queue": self._consumer.queue.uri},
            )
            self._tell_if_full()
        finally:
            self._widening = None

    async def _watch(self) -> None:
        while self._full() and not self._told:
            newest = next(reversed(self.left), None)
            await self._sleep(_PATIENCE)
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
        """Return number and bytes; a filter of several expressions divides the limits among its expressions.

        All left messages may belong to a single expression, so each message counts once for every expression.
        """
        parts = len(self._consumer.expressions)
        return (len(self.skipped) + len(self.left)) * parts, self._size * parts

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
        self._logger.warning(
            "%s is blocked: unconfirmed messages of %s fill its limits (%d messages, %d bytes). No more "
            "messages arrive until some are confirmed, or until the queue is closed and they are "
            "redelivered, as after a restart. then=bmq.DeadLetter(...) puts aside messages that cannot be"
            " handled",
            self._name,
            self._consumer.queue.uri,
            options.max_unconfirmed_messages,
            options.max_unconfirmed_bytes,
            extra={"queue": self._consumer.queue.uri},
        )
