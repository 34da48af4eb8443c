# SPDX-License-Identifier: Apache-2.0
"""A member of a consumer group."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict

from bmq import events
from bmq._turn import turn_of
from bmq.client.message import Message
from bmq.errors import QueueClosed, TimedOut, UsageError
from bmq.groups._events import Full, GroupEvent, Lost, Reason
from bmq.groups._expressions import bucket_expression, keyless_expression
from bmq.groups._lane import Hook, Lane
from bmq.groups._ranking import MAX_WEIGHT, MIN_WEIGHT, priority_of

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.queue import Queue
    from bmq.subscriptions import Selector

__all__ = ["Group", "GroupOptions"]

logger = logging.getLogger("bmq.groups")

MAX_BUCKETS = 256
# A real broker that finds a bucket full puts its messages aside, and may lose their order when it takes
# them up again. A consumer that is merely busy does not fill windows this wide; what the client holds of them
# is bounded by the session's limits on buffered messages.
WINDOW_MESSAGES = 100_000
WINDOW_BYTES = 2**30
# Below this a burst fills a window, however fast the consumer is.
_NARROW = 1000
# So many messages of one bucket are handed out before the next bucket has its turn.
_TURN = 64


class GroupOptions(TypedDict, total=False):
    """What else can be set for a group. Times are in seconds.

    Attributes:
        load: called with a bucket that has come, before its first message is handed out; it may be async.
            Only that bucket waits for it.
        drop: called with a bucket that has gone, once none of its messages is in the application's hands,
            or ``grace`` seconds later; it may be async. ``load`` is not called for the bucket before it is
            done.
        on_event: called with every :class:`bmq.groups.GroupEvent`, in the event loop; what it raises is
            logged.
        settle: how long a bucket that has come waits before it is loaded: so that the member which had it
            can finish what it has in hand. 0 does not wait.
        idle_after: a bucket of which nothing came for so long, and of which nothing is in hand, counts as
            gone; None never. The broker does not tell a member that another has taken a bucket: this is how
            it is noticed.
        grace: how long ``drop`` and :meth:`Group.close` wait for messages in hand (30).
        keyless: whether to take messages that have no key too, in turn with the other members; they are in
            no bucket. Left out, they stay in the queue.
        max_unconfirmed_messages: how many messages of one bucket may be unconfirmed (100,000).
        max_unconfirmed_bytes: how many bytes of them (1 GiB).
    """

    load: Hook | None
    drop: Hook | None
    on_event: Callable[[GroupEvent], None] | None
    settle: float
    idle_after: float | None
    grace: float
    keyless: bool
    max_unconfirmed_messages: int
    max_unconfirmed_bytes: int


class Group:
    """One member of a consumer group. Made by :meth:`bmq.Queue.group`.

    ``async with`` (or ``await``, or receiving) makes it join; leaving closes its queue. One task at a time
    receives from it: the messages of a bucket come in order, and two tasks would overtake each other.

    Attributes:
        queue: the queue whose messages it receives.
        member: its name.
        buckets: how many buckets there are.
        key: the integer property that the buckets are made of; None for the property ``bmq_bucket``.
        weight: its share beside the others'.
    """

    def __init__(
        self,
        queue: Queue,
        key: str | None,
        *,
        buckets: int = 16,
        member: str | None = None,
        weight: float = 1.0,
        selector: Selector = None,
        load: Hook | None = None,
        drop: Hook | None = None,
        on_event: Callable[[GroupEvent], None] | None = None,
        settle: float = 0.0,
        idle_after: float | None = 60.0,
        grace: float = 30.0,
        keyless: bool = True,
        max_unconfirmed_messages: int = WINDOW_MESSAGES,
        max_unconfirmed_bytes: int = WINDOW_BYTES,
    ) -> None:
        _check(buckets, weight, settle, idle_after, grace)
        self.queue = queue
        self.key = key
        self.buckets = buckets
        self.member = member or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.weight = weight
        self._load = load
        self._drop = drop
        self._settle = settle
        self._grace = grace
        self._idle_after = idle_after
        self._on_event = on_event
        tie = secrets.token_bytes(8)
        self._lanes: list[Lane] = []
        for bucket in range(buckets):
            consumer = queue.subscribe(
                bucket_expression(key, buckets, bucket, selector),
                priority=priority_of(self.member, bucket, weight, tie),
                max_unconfirmed_messages=max_unconfirmed_messages,
                max_unconfirmed_bytes=max_unconfirmed_bytes,
            )
            self._lanes.append(Lane(self, bucket, consumer))
        without_key = keyless_expression(key, selector)
        if keyless:
            consumer = queue.subscribe(
                without_key,
                priority=0,
                max_unconfirmed_messages=max_unconfirmed_messages,
                max_unconfirmed_bytes=max_unconfirmed_bytes,
            )
            self._lanes.append(Lane(self, None, consumer))
        self._bucket_of: dict[Consumer, int | None] = {lane.consumer: lane.bucket for lane in self._lanes}
        self._window = max_unconfirmed_messages
        self._turn = turn_of(asyncio.get_running_loop())
        self._ready: deque[Lane] = deque()
        self._left_of_turn = _TURN
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._joining: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closing: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._over = False
        self._warned = False

    # what it is

    @property
    def owned(self) -> frozenset[int]:
        """The buckets whose messages come here, as far as this member knows.

        Messages of each of them have arrived, and nothing has said since that the bucket went. The broker
        tells nobody who has what: a bucket of which nothing was posted yet is not among them, and one that
        another member has taken is among them until it was idle for ``idle_after`` seconds.
        """
        return frozenset(lane.bucket for lane in self._lanes if lane.owned and lane.bucket is not None)

    @property
    def unconfirmed(self) -> dict[int, int]:
        """How many messages of each bucket were handed out and are not confirmed, where there are any."""
        found = {lane.bucket: lane.in_hand for lane in self._lanes if lane.bucket is not None}
        return {bucket: count for bucket, count in found.items() if count}

    @property
    def closed(self) -> bool:
        """Whether this member has left, or is leaving."""
        return self._over

    def bucket_of(self, message: Message) -> int | None:
        """Return the bucket of a message of this group; None for one without a key.

        Raises:
            UsageError: it came from elsewhere.
        """
        try:
            return self._bucket_of[message.subscription]
        except KeyError:
            raise UsageError(f"{message!r} was not received from this group") from None

    def __repr__(self) -> str:
        of = self.key or "bmq_bucket"
        return f"<bmq.groups.Group {self.member!r} by {of} on {self.queue.uri}, owns {sorted(self.owned)}>"

    # receiving

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except QueueClosed:
            if self._over:
                raise StopAsyncIteration from None
            raise

    async def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message: of one bucket in order, of all buckets in turn.

        Args:
            timeout: seconds to wait; None waits without bound.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: this member has left, or the queue or the session was closed.
            Exception: what ``load`` or ``drop`` raised; the group is of no use any more.

        Cancelling it loses nothing: a message that is not returned stays in line.
        """
        turn = self._turn
        message = None
        if turn.clock() < turn.until:
            message = self.receive_nowait()
            if message is not None:
                return message
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                while message is None:
                    await self._arrival()
                    if turn.clock() >= turn.until:
                        await self._give_way()
                    message = self.receive_nowait()
        except TimeoutError:
            if not deadline.expired():
                raise  # a hook raised it
            message = self.receive_nowait()
            if message is None:
                raise TimedOut(f"no message of {self.queue.uri} arrived within {timeout:g} s") from None
        return message

    async def _give_way(self) -> None:
        """Let the event loop have its turn before another message is handed out."""
        try:
            await self._turn.wait()
        except asyncio.CancelledError:
            self._wake()  # the message that this caller was to take is for the next one
            raise

    def receive_nowait(self) -> Message | None:
        """Return the next message if one is there, else None. It does not make the group join.

        Raises:
            QueueClosed: this member has left, or the queue or the session was closed.
            Exception: what ``load`` or ``drop`` raised.
        """
        if self._error is not None:
            raise self._error
        if self._over:
            raise QueueClosed(f"{self!r} has left the group")
        for lane in self._lanes:
            if lane.leaving:
                lane.in_hand  # noqa: B018 - looks whether the last of them was confirmed
        ready = self._ready
        while ready:
            message = ready[0].take()
            if message is None:
                ready.popleft()
                self._left_of_turn = _TURN
                continue
            self._left_of_turn -= 1
            if not self._left_of_turn:
                ready.rotate(-1)
                self._left_of_turn = _TURN
            return message
        return None

    async def _arrival(self) -> None:
        """Wait until there may be a message; join first if need be."""
        await self.open()
        if self._ready:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif self._ready:
                self._wake()  # it may be for the next who waits

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # life

    async def open(self) -> Group:
        """Join the group; ``async with`` and ``await`` do the same.

        The broker learns of all buckets in one request. From its answer on this member gets the buckets for
        which its priority is the highest.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time.
            UsageError: the queue has other subscriptions, which would compete with the group's.

        Cancelling it leaves it open whether this member has joined: close the queue.
        """
        if self._over:
            raise QueueClosed(f"{self!r} has left the group")
        if self._joining is None:
            if self.queue.subscriptions:
                raise UsageError(
                    f"queue {self.queue.uri} has other subscriptions, which would compete with the group's: "
                    "open the queue in a session for the group alone"
                )
            if self._window < _NARROW:
                logger.warning(
                    "a window of %d messages a bucket of %s is soon full: a real broker then puts messages "
                    "aside, delivers slowly, and may lose the order in the bucket; %d is the default",
                    self._window,
                    self.queue.uri,
                    WINDOW_MESSAGES,
                )
            self._joining = asyncio.get_running_loop().create_task(self._join())
        await asyncio.shield(self._joining)
        return self

    async def _join(self) -> None:
        watching = self.queue.session.events()
        await asyncio.gather(*(lane.consumer.open() for lane in self._lanes))
        for lane in self._lanes:
            self._spawn(lane.run())
        self._spawn(self._watch(watching))
        if self._idle_after is not None:
            self._spawn(self._look_for_idle(self._idle_after))

    async def close(self) -> None:
        """Leave the group, and close the queue.

        Receivers end. Messages inside ``async with message`` are finished, up to ``close_timeout`` of the
        session; what is not confirmed then, and what waits unseen, the broker gives to the other members.
        ``drop`` is called for every bucket. Idempotent.

        Raises:
            RequestTimeout: the broker did not answer in time; the queue is closed all the same.
            Exception: what ``drop`` raised.

        Cancelling it does not stop the leaving: that goes on in the background.
        """
        if self._closing is None:
            self._over = True
            self._closing = asyncio.get_running_loop().create_task(self._leave())
        await asyncio.shield(self._closing)

    async def _leave(self) -> None:
        self._ready.clear()
        self._wake()
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
        try:
            # In one step: what this member has comes before what is new, for those who take its buckets.
            await self.queue.close(at_once=True)
        finally:
            self._grace = 0.0  # what was in hand has had its time
            for lane in self._lanes:
                lane.lose(Reason.LEFT)
            for lane in self._lanes:
                await lane.dropped()
            for task in list(self._tasks):
                if task is not asyncio.current_task():
                    task.cancel()

    def __await__(self) -> Generator[object, None, Group]:
        return self.open().__await__()

    async def __aenter__(self) -> Group:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # what the lanes call

    def _offer(self, lane: Lane) -> None:
        """Messages of a bucket can be handed out."""
        self._ready.append(lane)
        self._wake()

    def _withdraw(self, lane: Lane) -> None:
        """Its messages are not handed out any more, until it is ready again."""
        if lane in self._ready:
            self._ready.remove(lane)
            self._left_of_turn = _TURN

    def _now(self) -> float:
        """The event loop's clock."""
        return asyncio.get_running_loop().time()

    def _tell(self, event: GroupEvent) -> None:
        """Tell the application."""
        if isinstance(event, Full) and not self._warned:
            self._warned = True
            logger.warning(
                "bucket %d of %s has %d messages unconfirmed, of at most %d: when it is full, a real broker "
                "puts messages aside and may lose their order; handle them faster, or raise "
                "max_unconfirmed_messages. This is said once",
                event.bucket,
                self.queue.uri,
                event.unconfirmed,
                event.window,
            )
        elif isinstance(event, Lost):
            logger.debug("%s has lost bucket %d: %s", self.member, event.bucket, event.reason.value)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed on %r", event)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something in the background; what it raises ends the group."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and self._error is None:
            self._error = error
            self._wake()

    # what says that buckets went

    async def _watch(self, watching: AsyncIterator[events.SessionEvent]) -> None:
        """Lose everything when the broker gives it to others."""
        uri = self.queue.uri
        async for event in watching:
            if isinstance(event, events.ConnectionLost) or (
                isinstance(event, events.QueueSuspended) and event.queue_uri == uri
            ):
                self._lose_all(Reason.DISCONNECTED)
            elif isinstance(event, events.QueueReopenFailed) and event.queue_uri == uri:
                raise event.error
        self._lose_all(Reason.LEFT)
        if not self._over:
            raise QueueClosed(f"queue {uri} is closed")

    def _lose_all(self, reason: Reason) -> None:
        for lane in self._lanes:
            lane.lose(reason)

    async def _look_for_idle(self, after: float) -> None:
        while True:
            await asyncio.sleep(after / 4)
            since = self._now() - after
            for lane in self._lanes:
                if lane.owned and lane.last < since and not lane.consumer.buffered and not lane.in_hand:
                    lane.lose(Reason.IDLE)


def _check(buckets: int, weight: float, settle: float, idle_after: float | None, grace: float) -> None:
    if not 1 <= buckets <= MAX_BUCKETS:
        raise UsageError(f"a group has 1 to {MAX_BUCKETS} buckets, not {buckets}: each costs the broker time")
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise UsageError(f"a weight is {MIN_WEIGHT} to {MAX_WEIGHT:g}, not {weight}")
    if settle < 0 or grace < 0:
        raise UsageError("settle and grace cannot be negative")
    if idle_after is not None and idle_after <= 0:
        raise UsageError("idle_after is more than 0, or None")
