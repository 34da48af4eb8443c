# SPDX-License-Identifier: Apache-2.0
"""Responders: handlers whose result is posted back to whoever asked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from bmq.client.dead_letters import error_text
from bmq.client.message import Message, PutMessage
from bmq.client.queue import Queue
from bmq.client.requests import deadline
from bmq.conventions import CANCEL, DEADLINE, ERROR, REPLY_TO, REQUEST, REQUESTER, derived_guid
from bmq.errors import Error, QueueClosed, UsageError
from bmq.wire.properties import PropertyInput
from bmq.workers._handlers import is_async, name_of

__all__ = ["Respond", "Responder"]

logger = logging.getLogger("bmq.workers")

#: What a responder is: the reply's payload, or all of it; None for a reply that says only that it is done.
Respond: TypeAlias = Callable[[Message], Awaitable[bytes | PutMessage | None]]

# So many cancelled requests that have not come yet are remembered.
_REMEMBERED = 10_000
# So many queues for replies are open at once.
_OPEN = 500
_DONE = b"\0"


class Responder:
    """A handler that posts back what a function returns, or what it raises.

    For :func:`bmq.consume`; :meth:`bmq.App.responder` makes one too. Every request is answered at most once
    and confirmed then. One whose deadline has passed is confirmed unseen; the function is cancelled at the
    deadline, and when the requester says that it does not wait any more. A message without ``bmq_reply_to``
    is handled, and nobody gets an answer.

    Args:
        function: an ``async def`` that takes the request and returns the reply: bytes, a
            :class:`bmq.PutMessage` whose data and properties count, or None.

    Raises:
        UsageError: the function is not async.
    """

    def __init__(self, function: Respond) -> None:
        if not is_async(function):
            raise UsageError(f"a responder belongs in the event loop: make {name_of(function)} 'async def'")
        self._function = function
        self._running: dict[str, asyncio.Task[PutMessage | None]] = {}
        self._outputs: OrderedDict[Queue, None] = OrderedDict()
        self._closing: set[asyncio.Future[None]] = set()
        self._cancelled: OrderedDict[str, None] = OrderedDict()
        self.__qualname__ = name_of(function)

    async def __call__(self, message: Message) -> None:
        """Handle a request; or a message that one is cancelled."""
        cancelled = message.properties.get(CANCEL)
        if isinstance(cancelled, str):
            self._cancel(cancelled)
            return
        guid = message.guid
        if self._cancelled.pop(guid, self) is None:
            return
        until = message.properties.get(DEADLINE)
        seconds = until / 1000 - time.time() if isinstance(until, int) else None
        if seconds is not None and seconds <= 0:
            logger.info(
                "request %s of %s came after its deadline", guid, message.queue_uri, extra=_about(message)
            )
            return
        task = self._running[guid] = asyncio.create_task(self._respond(message, seconds))
        try:
            await asyncio.wait([task])
        finally:
            del self._running[guid]
            task.cancel()
        if not task.cancelled():
            await self._answer(message, task.result())

    def _cancel(self, guid: str) -> None:
        if task := self._running.get(guid):
            task.cancel()
            return
        self._cancelled[guid] = None
        if len(self._cancelled) > _REMEMBERED:
            self._cancelled.popitem(last=False)

    async def _respond(self, message: Message, seconds: float | None) -> PutMessage | None:
        """Call the function, and return the reply; None when nobody waits any more."""
        if seconds is not None:
            deadline.set(time.time() + seconds)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                reply = await self._function(message)
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                logger.warning(
                    "%s was not done with %s by its deadline",
                    self.__qualname__,
                    message.guid,
                    extra=_about(message),
                )
                return None
            logger.warning(
                "%s failed on request %s of %s: %s",
                self.__qualname__,
                message.guid,
                message.queue_uri,
                error_text(error),
                extra=_about(message),
            )
            return PutMessage(_DONE, {ERROR: error_text(error)})
        if isinstance(reply, PutMessage):
            return reply
        return PutMessage(_DONE if reply is None else reply)

    async def _answer(self, message: Message, reply: PutMessage | None) -> None:
        """Post the reply; when that cannot be done, the requester's time runs out."""
        to = message.properties.get(REPLY_TO)
        if reply is None or not isinstance(to, str):
            return
        properties: dict[str, PropertyInput] = {**(reply.properties or {}), REQUEST: message.guid}
        if (requester := message.properties.get(REQUESTER)) is not None:
            properties[REQUESTER] = requester
        guid = derived_guid(message.guid, to, "reply")
        session = message.subscription.queue.session
        while True:
            try:
                output = await session.output(to)
                self._used(output)
                await output.post(reply.data, properties=properties, guid=guid)
                return
            except QueueClosed as error:
                if message.subscription.queue.closed:
                    logger.warning(
                        "request %s could not be answered: %s", message.guid, error, extra=_about(message)
                    )
                    return
            except Error as error:
                logger.warning(
                    "request %s could not be answered: %s", message.guid, error, extra=_about(message)
                )
                return

    def _used(self, output: Queue) -> None:
        """Close the queue for replies that was not used for the longest time, when there are many."""
        self._outputs[output] = None
        self._outputs.move_to_end(output)
        if len(self._outputs) > _OPEN:
            oldest, _ = self._outputs.popitem(last=False)
            closing = asyncio.ensure_future(oldest.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Future[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            logger.info("a queue for replies was not closed in good order: %s", error)


def _about(message: Message) -> dict[str, str]:
    """What a log record is about."""
    return {"queue": message.queue_uri, "guid": message.guid}
