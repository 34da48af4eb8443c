# SPDX-License-Identifier: Apache-2.0
"""Passes messages on that are due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from bmq._backoff import backoff
from bmq._turn import turn_of
from bmq.admin.client import Admin
from bmq.client.message import Ack, Message, PutMessage
from bmq.client.queue import Queue
from bmq.conventions import DESTINATION, DUE, WAITING_SUFFIX, derived_guid
from bmq.delays._check import watch
from bmq.delays._due import DueMessages
from bmq.errors import (
    AckStatus,
    BufferFull,
    Error,
    InvalidPayload,
    InvalidProperty,
    InvalidURI,
    PostError,
    ProtocolError,
    SessionClosed,
    UsageError,
)
from bmq.wire.uri import QueueUri

__all__ = ["Mover"]

logger = logging.getLogger("bmq.delays")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
# What was refused alone is tried again after so many seconds; sooner where the broker does not know why, as
# it says while its cluster changes.
_REFUSED, _UNSURE = 5.0, 1.0
_ROOM = 0.01


class Mover:
    """Passes the messages of a waiting queue on to where they are bound, each when it is due.

    ::

        queue = await session.open_queue("bmq://.../orders.delayed", read=True, default_subscription=False)
        await bmq.delays.Mover(queue).run()

    A message goes to the queue that its ``bmq_destination`` names; without one, to the queue whose waiting
    queue this is by its name. Payload and properties stay as they were, but for ``bmq_destination``. Its GUID
    follows from its own, and it is confirmed here once the broker has acknowledged it there: a mover that
    dies in between is repeated by the next one, and within the deduplication window of the destination the
    broker keeps one.

    Several movers share a waiting queue. When a destination takes nothing, because it is full or gone, what
    is bound for it is tried again after 1, 2, 4, ... 60 seconds. What cannot be passed on at all, because it
    does not say where to, stays in the waiting queue. The log says so.

    Args:
        queue: the waiting queue, open for reading; the session opens the others.
        admin: asks the broker now and every minute whether the queue can keep what waits, as :func:`watch`
            does; what is wrong is logged. None does not ask.
        longest: seconds that messages may have to wait, for that.
        grace: seconds to wait, in the end, for what was posted and is not acknowledged.
        lookahead: as for :class:`DueMessages`, like all that follows.
        tick: seconds.
        max_held: messages.
        max_held_bytes: bytes.
        clock: seconds since 1970.

    Raises:
        UsageError: an argument is out of its range.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        admin: Admin | None = None,
        longest: float | None = None,
        grace: float = 5.0,
        lookahead: float = 3600.0,
        tick: float = 0.5,
        max_held: int = 10_000,
        max_held_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._own = QueueUri.parse(queue.uri).canonical
        self._admin = admin
        self._longest = longest
        self._grace = grace
        self._clock = clock
        self._due = DueMessages(
            queue,
            lookahead=lookahead,
            tick=tick,
            max_held=max_held,
            max_held_bytes=max_held_bytes,
            clock=clock,
        )
        self._outputs: dict[str, _Output] = {}
        self._posted: dict[asyncio.Future[Ack], None] = {}
        # The GUIDs, in the waiting queue, of what was posted and has no outcome.
        self._passing: set[str] = set()
        #: How many messages were passed on.
        self.moved = 0

    @property
    def held(self) -> int:
        """How many messages it holds that are not due yet, or could not be passed on."""
        return self._due.held

    async def run(self) -> None:
        """Pass messages on until cancelled, or until the queue is closed.

        Raises:
            ConfigureQueueError: the broker refused the subscription.
            Error: the queue or the session has failed.

        Cancelling it takes no more messages, and waits ``grace`` seconds for the outcome of what was posted.
        """
        watching, turn = None, turn_of(asyncio.get_running_loop())
        if self._admin is not None:
            watching = asyncio.create_task(watch(self._admin, self._queue.uri, longest=self._longest))
        try:
            async with self._due:
                while batch := await self._due.batch():
                    for message in batch:
                        if turn.clock() >= turn.until:
                            await turn.wait()  # acknowledgements have their turn
                        await self._pass_on(message)
                    await asyncio.sleep(0)
        except SessionClosed:
            pass
        finally:
            if watching is not None:
                watching.cancel()
            if self._posted:
                await asyncio.wait(self._posted, timeout=self._grace)

    async def _pass_on(self, message: Message) -> None:
        """Post a message to where it is bound."""
        if message.guid in self._passing:
            return  # delivered again meanwhile; it is confirmed when the outcome comes
        try:
            uri, post = self._what(message)
        except (ProtocolError, UsageError) as error:
            self._left(message, error)
            return
        output = self._outputs.setdefault(uri, _Output(uri))
        if (until := output.until) > self._clock():
            self._due.put_off(message, until)
            return
        try:
            queue = await self._queue.session.output(uri)
            while not self._posted_now(message, output, queue, post):
                await self._room()
        except SessionClosed:
            raise
        except (InvalidPayload, InvalidProperty) as error:
            self._left(message, error)
        except Error as error:
            self._later(message, output, error)

    def _what(self, message: Message) -> tuple[str, PutMessage]:
        """Return what to post, and where to.

        Raises:
            ProtocolError: the message cannot be taken apart.
            UsageError: it does not say where it is bound.
        """
        properties = dict(message.properties.typed())
        due = message.properties.get(DUE, 0)
        properties.pop(DESTINATION, None)
        uri = self._destination(message.properties.get(DESTINATION))
        guid = derived_guid(message.guid, uri, "due", str(due))
        return uri, PutMessage(message.data, properties or None, guid)

    def _posted_now(self, message: Message, output: _Output, queue: Queue, post: PutMessage) -> bool:
        """Post a message, and return whether there was room for it."""
        try:
            future = queue.post_nowait(post.data, properties=post.properties, guid=post.guid)
        except BufferFull:
            return False
        self._posted[future] = None
        self._passing.add(message.guid)
        future.add_done_callback(partial(self._outcome, message, output))
        return True

    async def _room(self) -> None:
        if self._posted:
            await asyncio.wait(self._posted, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_ROOM)  # others that post in this session have filled it

    def _destination(self, named: object) -> str:
        """Return the URI of the queue that a message is bound for.

        Raises:
            UsageError: there is none.
        """
        if isinstance(named, str):
            uri = QueueUri.parse(named)
            if uri.app_id:
                raise InvalidURI(f"{DESTINATION} {named!r} names an appId, which nobody can post to")
            canonical = uri.canonical
        elif self._own.endswith(WAITING_SUFFIX):
            canonical = self._own.removesuffix(WAITING_SUFFIX)
        else:
            raise UsageError(f"it has no {DESTINATION}")
        if canonical == self._own:
            raise UsageError(f"its {DESTINATION} is the queue where it waits")
        return canonical

    def _outcome(self, message: Message, output: _Output, future: asyncio.Future[Ack]) -> None:
        self._posted.pop(future, None)
        self._passing.discard(message.guid)
        error = None if future.cancelled() else future.exception()
        if self._queue.closed or future.cancelled():
            return
        if error is None:
            output.failures = 0
            self.moved += 1
            message.confirm()
        elif isinstance(error, Error):
            if isinstance(error, PostError) and not error.retryable:
                self._refused(message, output, error)
            else:
                self._later(message, output, error)

    def _refused(self, message: Message, output: _Output, error: PostError) -> None:
        """Try this message again, and hold up no others."""
        now = self._clock()
        pause = _UNSURE if error.status is AckStatus.UNKNOWN else _REFUSED
        self._due.put_off(message, now + pause)
        if now >= output.quiet_until:
            output.quiet_until = now + _REFUSED
            logger.warning("%s; again in %g s, and so with others like it", error, pause)

    def _later(self, message: Message, output: _Output, error: Error) -> None:
        """Try again later: what has failed for one message would fail for the others."""
        now = self._clock()
        if now >= output.until:
            output.failures += 1
            pause = backoff(output.failures, _FIRST_PAUSE, _LONGEST_PAUSE)
            output.until = now + pause
            logger.warning(
                "what is due in %s and bound for %s could not be passed on; again in %g s: %s",
                self._own,
                output.uri,
                pause,
                error,
            )
        self._due.put_off(message, output.until)

    def _left(self, message: Message, error: Error) -> None:
        logger.error(
            "message %s of %s is due and cannot be passed on; it stays there: %s",
            message.guid,
            self._own,
            error,
        )


class _Output:
    """Where messages are bound.

    Attributes:
        uri: the queue.
        failures: how often it failed since it last took a message.
        until: when the next attempt is made.
        quiet_until: until when messages that are refused alone are not mentioned.
    """

    __slots__ = ("failures", "quiet_until", "until", "uri")

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.failures = 0
        self.until = 0.0
        self.quiet_until = 0.0
