# SPDX-License-Identifier: Apache-2.0
"""Passes due messages on to their destinations."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bmq import _checks, _world
from bmq._dead_letters import (
    Allow,
    Allowed,
    Poison,
    PoisonKind,
    PutAside,
    check_dead_letters,
    queue_of,
    unreadable,
)
from bmq._live import live
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._turn import look_at, turn_of
from bmq.admin.client import Admin
from bmq.client.message import Message
from bmq.client.posts import Ack, PutMessage
from bmq.client.queue import Queue
from bmq.conventions import DELAY_QUEUE_SUFFIX, DESTINATION, DUE, derived_guid
from bmq.delays._check import watch
from bmq.delays._due import DueMessages
from bmq.errors import (
    AckStatus,
    BufferFull,
    Error,
    InvalidPayload,
    InvalidProperty,
    PostError,
    QueueClosed,
    SessionClosed,
)
from bmq.protocol.deadlines import backoff
from bmq.wire.printable import described
from bmq.wire.uri import QueueUri

logger = Log("bmq.delays")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
# Seconds until the next attempt for a message that was refused alone; fewer if the broker gives no reason, as
# while its cluster changes.
_REFUSED, _UNSURE = 5.0, 1.0
_ROOM = 0.01
# Seconds after which a refused destination is given up. Until then, messages for all refused destinations
# together may use this part of the limits; further messages are given up at once.
_PATIENCE: Final = 60.0
_PART_OF_REFUSED: Final = 0.25
# Destinations open at the same time, and destinations being opened at the same time; a slow opening stops
# counting after some seconds.
_MOST_OPEN: Final = 500
_MOST_OPENING: Final = 16
_OPENING: Final = 1.0
# Number of failed destinations to remember.
_REMEMBERED: Final = 1000
_LOOKED_AT: Final = 10


@live
class Mover:
    """Passes the messages of a delay queue on to their destinations, each at its due time.

    ::

        queue = await session.open_queue(
            "bmq://.../orders.delayed", read=True, default_subscription=False
        )
        await bmq.delays.Mover(queue).run()

    The property ``bmq_destination`` names the destination. Without the property, the destination is the queue
    with this delay queue by name. Payload and properties are unchanged, except for ``bmq_destination``. The
    GUID is derived from the message's GUID, and the message is confirmed once the broker has acknowledged the
    post. If a mover dies in between, the next mover repeats the post, and within the deduplication window of
    the destination the broker keeps a single copy.

    Several movers share a delay queue. Destinations do not wait for each other: they are opened in parallel,
    500 are open at most, and the least recently used is closed. If a destination accepts nothing, because the
    queue is full or silent, its messages are tried again after 1, 2, 4, ... 60 seconds.

    Messages that cannot be passed on go to ``dead_letters``; without ``dead_letters``, they stay in the delay
    queue, unconfirmed and outside of the limits, until this mover ends: the next mover tries them again. The
    log has one line per kind and minute. The messages are: unreadable messages; messages with a
    ``bmq_destination`` that is no queue, or not allowed by ``allow``; messages that are too large; messages
    refused by the broker for 60 seconds; and messages for a destination that the broker has refused to open
    for 60 seconds.

    Args:
        queue: the delay queue, open for reading; the session opens the destinations.
        allow: the queues that messages may name: patterns such as ``bmq://DOMAIN/*`` or a function of the
            URI. None allows the queues of the delay queue's domain, and queues for replies, whose names
            begin with ``replies.``.
        dead_letters: a queue open for writing, for messages that cannot be passed on. None leaves the
            messages in the delay queue.
        admin: asks the broker now and every minute whether the queue can keep its messages, as :func:`watch`
            does; problems are logged. None does not ask.
        longest: maximum delay of messages in seconds, for these checks.
        grace: seconds to wait at the end for outstanding acknowledgements.
        lookahead: as for :class:`DueMessages`, in seconds.
        tick: as for :class:`DueMessages`, in seconds.
        max_held: as for :class:`DueMessages`.
        max_held_bytes: as for :class:`DueMessages`.
        clock: returns seconds since 1970. Pauses are measured by the event loop's clock.

    Raises:
        UsageError: an argument is out of its range; or ``dead_letters`` is the delay queue, or not open for
            writing.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        allow: Allow | None = None,
        dead_letters: Queue | None = None,
        admin: Admin | None = None,
        longest: float | None = None,
        grace: float = 5.0,
        lookahead: float = 3600.0,
        tick: float = 0.5,
        max_held: int = 10_000,
        max_held_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = _world.time,
    ) -> None:
        _checks.choice("queue", queue, Queue)
        _checks.optional(_checks.choice, "admin", admin, Admin)
        longest, grace = _checks.timeout(longest, "longest"), _checks.seconds("grace", grace)
        self._queue = queue
        self._own = QueueUri.parse(queue.uri).canonical
        self._allowed = Allowed(allow)
        if dead_letters is not None:
            dead_letters = check_dead_letters(dead_letters, queue)
        self._aside = PutAside("the mover", dead_letters, logger)
        self._log = LogLimit(logger)
        self._admin = admin
        self._longest = longest
        self._grace = grace
        self._due = DueMessages(
            queue,
            lookahead=lookahead,
            tick=tick,
            max_held=max_held,
            max_held_bytes=max_held_bytes,
            clock=clock,
        )
        self._due.elsewhere = self._elsewhere
        self._most_refused = max(1, int(max_held * _PART_OF_REFUSED))
        # The destinations; and the destinations open or opening, the most recently used at the end.
        self._outputs: OrderedDict[str, _Output] = OrderedDict()
        self._open: OrderedDict[str, _Output] = OrderedDict()
        # Proven destinations are not opened behind thousands of destinations named by strangers.
        self._familiar = asyncio.Semaphore(_MOST_OPENING)
        self._strange = asyncio.Semaphore(_MOST_OPENING)
        self._closing: dict[asyncio.Task[None], None] = {}
        self._posted: set[asyncio.Future[Ack]] = set()
        # Messages that a destination has and has not finished, by their GUIDs in the delay queue: posted,
        # waiting for the destination, or refused.
        self._passing: dict[str, _Item] = {}
        # The next attempts of refused messages.
        self._timers: dict[_Item, asyncio.TimerHandle] = {}
        #: How many messages were passed on.
        self.moved = 0

    @property
    def held(self) -> int:
        """Number of held messages: not due yet, or not passed on yet."""
        return self._due.held + self._elsewhere()

    def _elsewhere(self) -> int:
        return len(self._passing) - len(self._posted) + self._aside.pending

    @property
    def put_aside(self) -> int:
        """How many messages could not be passed on, and are dead letters, or left in the delay queue."""
        return self._aside.taken

    async def run(self) -> None:
        """Pass messages on until cancelled, or until the queue is closed.

        Raises:
            ConfigureQueueError: the broker refused the subscription.
            Error: the queue or the session has failed.

        A cancelled call takes no more messages, and waits ``grace`` seconds for outstanding outcomes.
        """
        turn = turn_of(asyncio.get_running_loop())
        watching: list[asyncio.Task[None]] = []
        if self._admin is not None:
            watching.append(asyncio.create_task(watch(self._admin, self._queue.uri, longest=self._longest)))
        try:
            async with self._due:
                while batch := await self._due.batch():
                    for message in batch:
                        if turn.clock() >= turn.until:
                            await turn.wait()  # a turn for acknowledgements
                        with self._log.surviving(f"a message of {self._own}, which stays there,", but=Error):
                            while not self._pass_on(message):
                                await self._room()
                    await asyncio.sleep(0)
        except SessionClosed:
            pass
        finally:
            serving = [output.task for output in self._outputs.values() if output.task is not None]
            for timer in self._timers.values():
                timer.cancel()
            for task in (*watching, *serving):
                task.cancel()
            if ending := [*watching, *serving, *self._closing]:
                await asyncio.wait(ending, timeout=self._grace)
            if self._posted:
                await asyncio.wait(self._posted, timeout=self._grace)
            await self._aside.close(self._grace)

    def _pass_on(self, message: Message) -> bool:
        """Give a message to its destination; return whether the destination had room."""
        if (passing := self._passing.get(message.guid)) is not None:
            passing.message = message  # delivered again: a confirmation of the first delivery would be stale
            return True
        try:
            uri, post = self._what(message)
        except Poison as poison:
            self._aside.take(message, poison)
            return True
        output = self._outputs.get(uri)
        if output is None:
            self._forget()
            output = self._outputs[uri] = _Output(uri, uri == self._own.removesuffix(DELAY_QUEUE_SUFFIX))
        item = _Item(message, post)
        if output.queue is not None and not output.waiting and not output.queue.closed:
            self._open.move_to_end(uri)
            return self._post(item, output, output.queue)
        if output.given_up and _now() < output.until:
            self._aside.take(message, output.given_up)
        else:
            self._wait(item, output)
        return True

    def _what(self, message: Message) -> tuple[str, PutMessage]:
        """Return the post for a message, and its destination.

        Raises:
            Poison: the message cannot be read, or has no legal destination.
        """
        if (damaged := unreadable(message)) is not None:
            raise damaged
        uri = queue_of(message, DESTINATION, self._allowed)
        if uri is None:
            if not self._own.endswith(DELAY_QUEUE_SUFFIX):
                raise Poison(PoisonKind.MISDIRECTED, f"{DESTINATION} is missing")
            uri = self._own.removesuffix(DELAY_QUEUE_SUFFIX)
        if uri == self._own:
            raise Poison(PoisonKind.MISDIRECTED, f"{DESTINATION} is the delay queue itself")
        properties = dict(message.properties.typed())
        due = message.properties.get(DUE, 0)
        properties.pop(DESTINATION, None)
        guid = derived_guid(message.guid, uri, "due", str(due))
        return uri, PutMessage(message.data, properties or None, guid)

    # one destination

    def _wait(self, item: _Item, output: _Output) -> None:
        """Queue a message for its destination, and start a task for the destination if needed."""
        self._passing[item.message.guid] = item
        output.waiting.append(item)
        if output.task is None:
            output.task = asyncio.create_task(self._serve(output), name=f"mover to {output.uri}")

    async def _serve(self, output: _Output) -> None:
        """Post the waiting messages of a destination, until none waits."""
        turn = turn_of(asyncio.get_running_loop())
        try:
            while output.waiting:
                if (pause := output.until - _now()) > 0:
                    await asyncio.sleep(pause)
                try:
                    queue = await self._opened(output)
                    if turn.clock() >= turn.until:
                        await turn.wait()
                    if self._post(output.waiting[0], output, queue):
                        output.waiting.popleft()
                    else:
                        await self._room()
                except SessionClosed:
                    return
                except QueueClosed:
                    self._shut(output)
                except Error as error:
                    self._not_opened(output, error)
                except Exception as error:
                    self._later(output, error)
        finally:
            output.task = None

    async def _opened(self, output: _Output) -> Queue:
        """Return the queue of a destination, open."""
        if output.queue is not None and not output.queue.closed:
            return output.queue
        self._shut(output)
        session = self._queue.session
        opening: asyncio.Task[Queue] | None = None
        try:
            async with self._familiar if output.familiar else self._strange:
                while len(self._open) >= _MOST_OPEN and not self._close_idle():
                    await self._room()
                self._open[output.uri] = output
                opening = asyncio.create_task(session._open_named(output.uri), name=f"opening {output.uri}")
                opening.add_done_callback(look_at)
                # A slow opening does not delay other openings.
                await asyncio.wait([opening], timeout=_OPENING)
            queue = output.queue = await opening
        finally:
            if output.queue is None:
                self._open.pop(output.uri, None)
                if opening is not None:
                    opening.cancel()
        output.familiar = True
        output.refused_since = output.given_up = None
        return queue

    def _not_opened(self, output: _Output, error: Error) -> None:
        """Note that a destination could not be opened; after a while give its messages up."""
        now = _now()
        if not error.retryable:
            output.refused_since = output.refused_since or now
            refused = sum(len(each.waiting) for each in self._outputs.values() if each.refused_since)
            if output.given_up or now - output.refused_since >= _PATIENCE or refused > self._most_refused:
                output.given_up = Poison(
                    PoisonKind.MISDIRECTED, f"{output.uri} cannot be opened: {described(error)}"
                )
                output.until = now + _LONGEST_PAUSE
                while output.waiting:
                    self._give_up(output.waiting.popleft(), output.given_up)
                return
        self._later(output, error)

    def _post(self, item: _Item, output: _Output, queue: Queue) -> bool:
        """Post a message, and return whether the window had room."""
        post = item.post
        try:
            future = queue.post_nowait(post.data, properties=post.properties, guid=post.guid)
        except BufferFull:
            return False
        except (InvalidPayload, InvalidProperty) as error:
            self._give_up(item, Poison(PoisonKind.OVERSIZED, described(error)))
            return True
        self._posted.add(future)
        self._passing[item.message.guid] = item
        output.unsettled += 1
        future.add_done_callback(partial(self._outcome, item, output))
        return True

    def _give_up(self, item: _Item, poison: Poison) -> None:
        """Put a message aside."""
        self._passing.pop(item.message.guid, None)
        self._aside.take(item.message, poison)

    async def _room(self) -> None:
        if self._posted:
            await asyncio.wait(self._posted, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_ROOM)  # other posts of this session have filled the window

    def _outcome(self, item: _Item, output: _Output, future: asyncio.Future[Ack]) -> None:
        self._posted.discard(future)
        output.unsettled -= 1
        error = None if future.cancelled() else future.exception()
        if self._queue.closed or future.cancelled():
            return
        if error is None:
            output.failures = 0
            self.moved += 1
            self._passing.pop(item.message.guid, None)
            item.message.confirm()
        elif isinstance(error, PostError) and (error.status is AckStatus.UNKNOWN or not error.retryable):
            self._refused_alone(item, output, error)
        else:
            self._later(output, error)
            self._wait(item, output)

    def _refused_alone(self, item: _Item, output: _Output, error: PostError) -> None:
        """Try this message again without delaying other messages; give up after long refusal."""
        now = _now()
        item.refused_since = item.refused_since or now
        unsure = error.status is AckStatus.UNKNOWN
        if not unsure and now - item.refused_since >= _PATIENCE:
            self._give_up(item, Poison(PoisonKind.MISDIRECTED, described(error)))
            return
        pause = _UNSURE if unsure else _REFUSED
        output.unsettled += 1
        self._timers[item] = asyncio.get_running_loop().call_later(pause, self._again, item, output)
        self._log.warning(
            ("refused", error.status),
            "%s; trying again in %g s (similar lines are suppressed for a minute)",
            error,
            pause,
        )

    def _again(self, item: _Item, output: _Output) -> None:
        del self._timers[item]
        output.unsettled -= 1
        self._wait(item, output)

    def _later(self, output: _Output, error: BaseException) -> None:
        """Try a destination again later: the failure would hit the next messages too."""
        now = _now()
        if now < output.until:
            return
        output.failures += 1
        pause = backoff(output.failures, _FIRST_PAUSE, _LONGEST_PAUSE)
        output.until = now + pause
        self._log.warning(
            ("later", type(error), getattr(error, "status", None)),
            "due messages in %s for %s could not be passed on; trying again in %g s (similar lines are "
            "suppressed for a minute): %s",
            self._own,
            output.uri,
            pause,
            described(error),
        )

    # the number of destinations

    def _close_idle(self) -> bool:
        """Close the least recently used idle destination."""
        for output in self._open.values():
            if output.queue is not None and output.idle:
                self._shut(output)
                return True
        return False

    def _shut(self, output: _Output) -> None:
        """Forget the queue of a destination; close the queue unless it is the application's."""
        queue, output.queue = output.queue, None
        if queue is None:
            return
        del self._open[output.uri]
        if not queue.closed:
            closing = asyncio.create_task(_closed(queue), name=f"closing {output.uri}")
            self._closing[closing] = None
            closing.add_done_callback(self._closing.pop)

    def _forget(self) -> None:
        """Forget the state of the least recently used destinations beyond the limit."""
        for _ in range(min(_LOOKED_AT, len(self._outputs) - _REMEMBERED)):
            uri, output = self._outputs.popitem(last=False)
            if output.idle and output.queue is None:
                return
            self._outputs[uri] = output


async def _closed(queue: Queue) -> None:
    try:
        await queue.session._close_named(queue)
    except Error as error:
        logger.info("a destination queue was not closed cleanly: %s", error)


def _now() -> float:
    """The event loop's time, which nobody can set, unlike the time of day."""
    return asyncio.get_running_loop().time()


@dataclass(slots=True, eq=False)
class _Item:
    """A message on its way.

    Attributes:
        message: the message.
        post: the post for the destination.
        refused_since: time of the first refusal by the broker; None without a refusal.
    """

    message: Message
    post: PutMessage
    refused_since: float | None = None


@dataclass(slots=True, eq=False)
class _Output:
    """A destination. Times are times of the event loop.

    Attributes:
        uri: the queue.
        familiar: whether the queue was open before, or is the delay queue's own destination.
        queue: the open queue; None if not open.
        waiting: messages not posted yet.
        unsettled: number of posts without an outcome, or refused and to be repeated.
        task: posts the waiting messages; None without waiting messages.
        failures: number of failures since the last accepted message.
        until: time of the next attempt.
        refused_since: time since which the broker refuses to open the queue; None if not refused.
        given_up: reason to put messages aside at once, until the next attempt.
    """

    uri: str
    familiar: bool
    queue: Queue | None = None
    waiting: deque[_Item] = field(default_factory=deque[_Item])
    unsettled: int = 0
    task: asyncio.Task[None] | None = None
    failures: int = 0
    until: float = 0.0
    refused_since: float | None = None
    given_up: Poison | None = None

    @property
    def idle(self) -> bool:
        """Whether no message is on its way to the destination."""
        return not (self.waiting or self.unsettled or self.task)
