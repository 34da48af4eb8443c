# SPDX-License-Identifier: Apache-2.0
"""A member of a consumer group."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Generator
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, TypedDict
from weakref import WeakKeyDictionary

from bmq import _checks, _world, events
from bmq._live import live
from bmq._logging import Log
from bmq._loop import timeout, within
from bmq._turn import look_at, turn_of, wait_done
from bmq.client.message import Message
from bmq.conventions import BUCKET
from bmq.errors import Error, QueueClosed, TimedOut, UsageError
from bmq.groups._bundles import Bundles
from bmq.groups._coordinator import Coordinator
from bmq.groups._events import GroupEvent, GroupStats, Reason
from bmq.groups._expressions import bucket_expression, other_expressions, unselected_expressions
from bmq.groups._lanes import (
    DISCONNECTED,
    LOWEST,
    WIDEST,
    BucketLane,
    Dispatcher,
    Hook,
    Lane,
    StrayLane,
    Strays,
)
from bmq.groups._protocol import MAX_BUCKETS, MAX_WEIGHT, MIN_WEIGHT
from bmq.subscriptions import Expression
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.keywords import ConsumerLimits
    from bmq.client.queue import Queue
    from bmq.subscriptions import ExpressionInput

logger = Log("bmq.groups")

# A real broker puts the messages of a full bucket aside, and may lose their order afterwards. A merely busy
# consumer does not fill windows this wide; the session's limits on buffered messages bound the client's
# memory.
WINDOW_MESSAGES = 100_000
WINDOW_BYTES = 2**30
_LONGEST_NAME = 1000
_OF_A_QUEUE = events.QueueSuspended, events.QueueResumed, events.QueueReopenFailed
# Maximum time in seconds to wait until the broker sends a leaving member no more messages.
_LETTING_GO = 1.0
# Cancelled joins being undone: the next join of the queue waits for the end.
_undoing: WeakKeyDictionary[Queue, asyncio.Task[None]] = WeakKeyDictionary()


class GroupOptions(TypedDict, total=False):
    """Further options of a group. Times are in seconds.

    Attributes:
        on_assigned: called with a gained bucket, before its first message is handed out; may be async. Only
            the bucket waits for the call.
        on_revoked: called with a lost bucket, before another member owns it if the connection stands; may be
            async. ``on_assigned`` is not called for the bucket before the end of ``on_revoked``.
        on_event: called with every :class:`bmq.groups.GroupEvent`, in the event loop; errors of the function
            are logged.
        keyless: whether to hand out messages in no bucket, in turn with the remaining members: messages
            without a key, and messages whose key is no integer (without ``key=``: no integer from 0 on).
            False makes strays of these messages. All members need the same value.
        strays: the policy for messages that the group does not hand out: messages that do not match the
            expression, and with ``keyless=False`` messages in no bucket. "hold" keeps strays unconfirmed
            until this member leaves. "leave" does not subscribe to strays; the broker stops delivery to all
            members when a departed member had a stray. A function, which may be async, is called with each
            stray, and the stray is confirmed once the function has returned; errors of the function are
            logged, and the stray is held.
        max_unconfirmed_messages: unconfirmed messages of one bucket at which the event
            :class:`bmq.groups.Full` is reported, and messages in no bucket at most (100,000).
        max_unconfirmed_bytes: unconfirmed bytes of messages in no bucket, at most (1 GiB).
        control_queue: URI of the control queue, in a domain of priority mode; by default the name of the
            queue with ".group" appended, in the same domain. A queue with an appId has no default. Members
            read and write the control queue, on a further connection with the options of the session.
        lease: time after which the buckets of a silent member go to other members, and after which a member
            without an answer hands out nothing (5).
        take_over_after: time after which the remaining members go on without a silent member whose connection
            stands (its process is frozen, or its host is gone), at the price of the order of keys: messages
            that the broker has delivered to this member are handled once its connection ends, and may come
            after later messages of their keys. Three times the lease or more; None to wait for the end of the
            connection (None). All members need the same value.
    """

    on_assigned: Hook | None
    on_revoked: Hook | None
    on_event: Callable[[GroupEvent], None] | None
    keyless: bool
    strays: Strays
    max_unconfirmed_messages: int
    max_unconfirmed_bytes: int
    control_queue: str | None
    lease: float
    take_over_after: float | None


@live
class Group:
    """One member of a consumer group. Created by :meth:`bmq.Queue.group`.

    ``async with`` (or ``await``, or receiving) joins the group; leaving closes the queue. Only one task at a
    time may receive, because two tasks would break the order in a bucket.

    Attributes:
        queue: the queue of the group.
        member: name of the member.
        buckets: number of buckets.
        key: the integer property that determines the bucket; None for the property ``bmq_bucket``.
        weight: share relative to the other members.
    """

    def __init__(
        self,
        queue: Queue,
        key: str | None,
        *,
        buckets: int = 128,
        member: str | None = None,
        weight: float = 1.0,
        expression: ExpressionInput = None,
        on_assigned: Hook | None = None,
        on_revoked: Hook | None = None,
        on_event: Callable[[GroupEvent], None] | None = None,
        keyless: bool = True,
        strays: Strays = "hold",
        max_unconfirmed_messages: int = WINDOW_MESSAGES,
        max_unconfirmed_bytes: int = WINDOW_BYTES,
        control_queue: str | None = None,
        lease: float = 5.0,
        take_over_after: float | None = None,
    ) -> None:
        if not callable(getattr(type(queue), "subscribe", None)):
            raise UsageError(f"queue must be an open bmq.Queue, not {_checks.shown(queue)}")
        buckets = _checks.integer("buckets", buckets, 1, MAX_BUCKETS)
        weight = _checks.number("weight", weight, MIN_WEIGHT, MAX_WEIGHT)
        keyless = _checks.boolean("keyless", keyless)
        if isinstance(expression, str):
            expression = str.__str__(expression)
        key = _checks.optional(_checks.text, "key", key, empty=False)
        member = _checks.optional(_checks.text, "member", member, longest=_LONGEST_NAME)
        max_unconfirmed_messages = _checks.integer("max_unconfirmed_messages", max_unconfirmed_messages)
        max_unconfirmed_bytes = _checks.integer("max_unconfirmed_bytes", max_unconfirmed_bytes)
        _checks.optional(_checks.function, "on_assigned", on_assigned, 1)
        _checks.optional(_checks.function, "on_revoked", on_revoked, 1)
        _checks.optional(_checks.function, "on_event", on_event, 1, plain=True)
        lease = _checks.seconds("lease", lease, positive=True)
        take_over_after = _checks.optional(_checks.seconds, "take_over_after", take_over_after, positive=True)
        if take_over_after is not None and take_over_after < 3 * lease:
            raise UsageError(
                f"take_over_after must be at least three leases of {lease:g} s, not {take_over_after:g}: a "
                "member that is only late would lose its buckets, and keys their order"
            )
        control_queue = _checks.optional(_checks.text, "control_queue", control_queue, empty=False)
        self._control_uri = _control_uri(queue.uri, control_queue)
        policy: object = strays
        if isinstance(policy, str):
            _checks.one_of("strays", policy, ("hold", "leave"))
        else:
            _checks.function("strays, unless it is 'hold' or 'leave',", policy, 1)
        self.queue = queue
        self.key = key
        self.buckets = buckets
        self.member = member or f"{_world.hostname()}-{_world.pid()}-{_world.token_hex(4)}"
        self.weight = weight
        over = self._ended_without_leaving
        self._dispatcher = Dispatcher(
            queue, self.member, key, on_assigned, on_revoked, on_event, strays, over
        )
        self._turn = turn_of(asyncio.get_running_loop())
        self._bucket_lanes: list[BucketLane] = []
        # The lanes of the buckets, and of messages in no bucket.
        self._lanes: list[Lane] = []
        self._stray_lanes: list[StrayLane] = []
        self._subscribe(expression, keyless, max_unconfirmed_messages, max_unconfirmed_bytes)
        consumers = [lane.consumer for lane in self._bucket_lanes]
        self._bucket_of: dict[Consumer, int | None] = {lane.consumer: None for lane in self._lanes}
        self._bucket_of |= {each: bucket for bucket, each in enumerate(consumers)}
        bundles = Bundles(queue, self._dispatcher, consumers, key, expression)
        self._coordinator = Coordinator(
            self._dispatcher, self._bucket_lanes, bundles, self._control_uri, weight, lease, take_over_after
        )
        self._own = [lane.consumer for lane in self._all_lanes()]
        self._own.append(self._coordinator.ceiling)
        self._joining: asyncio.Task[None] | None = None
        self._joined = False
        # How many callers join, or wait for a message.
        self._callers = 0
        # The tasks of the lanes, in their order, and further tasks of this member.
        self._running: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._over = False

    def _subscribe(self, wanted: ExpressionInput, keyless: bool, max_messages: int, max_bytes: int) -> None:
        """Make the consumers; nothing is sent."""
        queue, key, dispatcher = self.queue, self.key, self._dispatcher
        limits: ConsumerLimits = {
            "priority": LOWEST + 2,  # a bucket has another one once it is here
            "max_unconfirmed_messages": max_messages,
            "max_unconfirmed_bytes": max_bytes,
        }
        for bucket in range(self.buckets):
            expression = bucket_expression(key, self.buckets, bucket, wanted)
            self._bucket_lanes.append(BucketLane(dispatcher, bucket, queue.subscribe(expression, **limits)))
        self._lanes += self._bucket_lanes
        strays: list[tuple[Expression | None, str, int]] = []
        for kind, expression in other_expressions(key, self.buckets, wanted).items():
            if keyless:
                self._lanes.append(Lane(dispatcher, queue.subscribe(expression, **limits), kind))
            else:
                why = f"property {key or BUCKET} is {kind or 'missing'}, and keyless is False"
                strays.append((expression, why, LOWEST + 1))
        unmatched = f"expression {str(wanted)!r} does not match"
        strays += [(each, unmatched, LOWEST) for each in unselected_expressions(wanted)]
        for each, why, priority in strays if dispatcher.strays != "leave" else ():
            consumer = queue.subscribe(each, priority=priority, **WIDEST)
            self._stray_lanes.append(StrayLane(dispatcher, consumer, why))

    def _all_lanes(self) -> list[Lane]:
        return [*self._lanes, *self._stray_lanes]

    # state

    @property
    def owned(self) -> frozenset[int]:
        """The buckets of this member."""
        if self.queue.state in DISCONNECTED:
            return frozenset()
        return frozenset(lane.bucket for lane in self._bucket_lanes if lane.owned)

    @property
    def unconfirmed(self) -> dict[int, int]:
        """The number of messages handed out and not confirmed, by bucket."""
        return {lane.bucket: count for lane in self._bucket_lanes if (count := lane.in_hand)}

    def fence(self, bucket: int) -> int:
        """Return the fence of an owned bucket: a number that grows with each owner.

        A store that keeps the highest fence with the state of a bucket, and refuses lower ones, refuses the
        late writes of a former owner.

        Raises:
            UsageError: this member does not own the bucket.
        """
        bucket = _checks.integer("bucket", bucket, 0, self.buckets - 1)
        return self._coordinator.fence(bucket)

    def stats(self) -> GroupStats:
        """Return a snapshot: the member's buckets, and its messages by state."""
        lanes, coordinator = self._lanes, self._coordinator
        in_hand = sum(lane.in_hand for lane in lanes)  # first: brings the numbers of done messages up to date
        return GroupStats(
            buckets=self.buckets,
            owned=len(self.owned),
            settled=self._joined and self.queue.state not in DISCONNECTED and coordinator.settled,
            waiting=sum(lane.consumer.buffered for lane in lanes),
            in_hand=in_hand,
            handed_out=sum(lane.handed_out for lane in lanes),
            done=sum(lane.done for lane in lanes),
            given_back=sum(lane.given_back for lane in lanes),
            unusable=MappingProxyType(dict(self._dispatcher.unusable)),
            strays_held=sum(lane.held for lane in self._stray_lanes),
            strays_handled=sum(lane.handled for lane in self._stray_lanes),
            behind=coordinator.behind,
            silent=len(coordinator._leader.silent()),
            granted=coordinator.granted,
        )

    @property
    def closed(self) -> bool:
        """Whether this member has left, or is leaving."""
        return self._over

    def bucket_of(self, message: Message) -> int | None:
        """Return the bucket of a message of this group; None for a message without a bucket.

        Raises:
            UsageError: the message does not come from this group.
        """
        try:
            return self._bucket_of[_checks.choice("message", message, Message).consumer]
        except KeyError:
            raise UsageError(f"{message!r} was not received from this group") from None

    def holds(self, message: Message) -> bool:
        """Whether this member may work on a message of this group now.

        False once the connection is lost on which the message arrived: the broker delivers the message again.
        Also False after the lease, until the leader answers. A program that keeps messages for later, for
        example to wait before another attempt, asks before it begins.

        Raises:
            UsageError: the message does not come from this group.
        """
        bucket = self.bucket_of(message)
        if message.stale or self.queue.state in DISCONNECTED:
            return False
        return bucket is None or self._coordinator.hands_out(bucket)

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
            TimedOut: no message arrived in time.
            QueueClosed: this member has left, or the queue or the session was closed.
            Exception: raised by ``on_assigned`` or ``on_revoked``; the group cannot be used any more.

        Cancelling the call loses no message: a message that is not returned stays in line.
        """
        timeout = _checks.timeout(timeout)
        turn = self._turn
        message = self.receive_nowait() if turn.clock() < turn.until else None
        if message is not None:
            return message
        try:
            async with within(timeout, f"no message of {self.queue.uri} arrived"):
                while message is None:
                    await self._arrival()
                    if turn.clock() >= turn.until:
                        await turn.wait()
                    message = self.receive_nowait()
        except TimedOut:
            message = self.receive_nowait()
            if message is None:
                raise
        return message

    def receive_nowait(self) -> Message | None:
        """Return the next message, or None without waiting. The call does not join the group.

        Raises:
            QueueClosed: this member has left, or the queue or the session was closed.
            Exception: raised by ``on_assigned`` or ``on_revoked``.
        """
        self._check()
        return self._dispatcher.take()

    def _check(self) -> None:
        """Raise the error that ended the group, or an error if this member has left."""
        if self._dispatcher.error is not None:
            raise self._dispatcher.error
        if self._over:
            raise QueueClosed(f"{self!r} has left the group")

    async def _arrival(self) -> None:
        """Wait until a message may be available; join first if necessary.

        Cancelling the call does not stop the join: the same caller may call again.
        """
        self._callers += 1
        try:
            if not self._joined:
                await self._join()
            if not (self._dispatcher.ready or self._over or self._dispatcher.error is not None):
                await self._dispatcher.wait()
        finally:
            self._callers -= 1

    # life

    async def open(self) -> Group:
        """Join the group; ``async with`` and ``await`` join too.

        The leader of the group gives this member its share of the buckets, each once its owner has finished.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the queue is closed, or this member has left.
            RequestTimeout: no answer in time.
            UsageError: the queue has other subscriptions, which would compete with the group's.

        A cancelled call withdraws the subscriptions in the background, unless another caller joins or
        receives; the same call works again at once. Messages that arrived meanwhile wait in the queue for the
        next join, or until the queue is closed.
        """
        self._callers += 1
        try:
            await self._join()
        except asyncio.CancelledError:
            if self._callers == 1:
                self._undo_join()
            raise
        finally:
            self._callers -= 1
        return self

    async def _join(self) -> None:
        """Wait until this member has joined; begin to join if necessary."""
        while not self._joined or self._over:
            self._check()
            if (undoing := _undoing.get(self.queue)) is not None:
                await wait_done(undoing)
                continue
            if self._joining is None:
                self._check_alone()
                self._joining = asyncio.get_running_loop().create_task(self._open_all())
            joining = self._joining
            await wait_done(joining)
            if self._joining is joining:
                self._joining = None
            if not joining.cancelled():
                joining.result()

    def _check_alone(self) -> None:
        if any(consumer not in self._own for consumer in self.queue.consumers):
            raise UsageError(
                f"queue {self.queue.uri} has other subscriptions, which would compete with the group: open "
                "the queue in a separate session for the group"
            )

    async def _open_all(self) -> None:
        watching = self.queue.session.events()
        at_once = [consumer for consumer in self._own if self._bucket_of.get(consumer) is None]
        try:
            for lane in self._bucket_lanes:
                await lane.consumer.pause()  # a receiving call would subscribe
            await asyncio.gather(*(consumer.open() for consumer in at_once))
            # No earlier: a member whose data queue is out of service would hold buckets.
            await self._coordinator.join()
        except Exception:
            await self._end()
            raise
        # No wait from here on: this member has either joined or not.
        self._joined = True
        self.queue._member = weakref.ref(self)
        what = "%s joins the group of %s: %d buckets, weight %g"
        logger.info(what, self.member, self.queue.uri, self.buckets, self.weight)
        serving = [lane.run() for lane in self._all_lanes()]
        serving.append(self._watch(watching))
        serving += [lane.serve() for lane in self._bucket_lanes]
        self._running = [self._dispatcher.spawn(work) for work in serving]

    def _undo_join(self) -> None:
        """Take the subscriptions back in the background."""
        if self._over or self.queue in _undoing:
            return
        joining, self._joining = self._joining, None
        if joining is not None:
            joining.cancel()
        self._joined = False
        undoing = _undoing[self.queue] = asyncio.get_running_loop().create_task(self._undo(joining))
        undoing.add_done_callback(self._undone)

    async def _undo(self, joining: asyncio.Task[None] | None) -> None:
        if joining is not None:
            await asyncio.wait((joining,))
        await self._end()

    def _undone(self, undoing: asyncio.Task[None]) -> None:
        _undoing.pop(self.queue, None)
        look_at(undoing)  # the next join gets the error

    async def _end(self) -> None:
        """End the membership, or a join that failed; ``on_revoked`` is called for each loaded bucket.

        Raises:
            Exception: raised by ``on_revoked``.
        """
        running, self._running = self._running, []
        self._lose_all(Reason.LEFT)
        for task in running:
            task.cancel()
        try:
            if running:
                await asyncio.wait(running)
            for lane in self._bucket_lanes:
                await lane.finish()
        finally:
            # If the queue is open, its waiting messages return to the queue. A member without subscriptions
            # must not lead the others.
            await asyncio.gather(*(each.pause() for each in self._own), return_exceptions=True)
            await self._coordinator.close()

    def _ended_without_leaving(self, error: Error) -> None:
        """End the membership after the queue or the session was closed."""
        if self._over or not self._joined or self._stopping is not None:
            return
        self._dispatcher.fail(error)
        self._stopping = asyncio.get_running_loop().create_task(self._end())
        self._stopping.add_done_callback(look_at)

    async def close(self) -> None:
        """Leave the group, and close the queue.

        Receivers end. Messages inside ``async with message`` are finished, up to ``close_timeout`` of the
        session; the broker gives the remaining unconfirmed messages to other members. A running
        ``on_assigned`` is cancelled. ``on_revoked`` is called for every assigned bucket. Idempotent.

        Raises:
            RequestTimeout: the broker did not answer in time; the queue is closed nevertheless.
            Exception: raised by ``on_revoked``.

        Cancelling the call does not stop the leaving, which continues in the background.
        """
        if self._closing is None:
            self._over = True
            self._dispatcher.wake()
            if self._joining is not None:
                self._joining.cancel()
            self._closing = asyncio.get_running_loop().create_task(self._leave())
            self._closing.add_done_callback(look_at)
            # Closing by this task does not wait for the message in this task's hands.
            with contextlib.suppress(Error):
                await self._close_queue()
        closing = self._closing
        await wait_done(closing)
        closing.result()

    async def _close_queue(self) -> None:
        """Close the queue; messages of this member reach the next owners before newer messages.

        The subscriptions stay until then, without room: a replica or proxy keeps the messages that the
        primary is sending when the queue is closed, and delivers them to nobody.
        """
        if self.queue.state not in DISCONNECTED:
            full = [each.configure(max_unconfirmed_messages=0) for each in self._own if not each.closed]
            with contextlib.suppress(TimeoutError):
                async with timeout(_LETTING_GO):
                    await asyncio.gather(*full, return_exceptions=True)
        await self.queue.close(at_once=True)

    async def _leave(self) -> None:
        undoing = _undoing.get(self.queue)
        earlier = [task for task in (self._joining, undoing, self._stopping) if task is not None]
        try:
            await self._close_queue()
        finally:
            if earlier:
                await asyncio.wait(earlier)
            await self._end()  # no bucket is here any more: others may have them

    def __await__(self) -> Generator[object, None, Group]:
        return self.open().__await__()

    async def __aenter__(self) -> Group:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # signs of lost buckets

    async def _watch(self, watching: AsyncIterator[events.SessionEvent]) -> None:
        """Lose all buckets when the broker gives them to other members."""
        queue = self.queue
        async for event in watching:
            if isinstance(event, _OF_A_QUEUE) and event.queue_uri != queue.uri:
                continue
            if isinstance(event, events.ConnectionLost | events.QueueSuspended):
                self._lose_all(Reason.DISCONNECTED)
                self._coordinator.lost()
            elif isinstance(event, events.QueueReopenFailed):
                self._ended_without_leaving(event.error)
                return
            suspended = queue._core.reported_suspended
            self._coordinator.serve(not suspended and queue.state not in DISCONNECTED)
        self._ended_without_leaving(QueueClosed(f"queue {queue.uri} is closed"))

    def _lose_all(self, reason: Reason) -> None:
        for lane in self._all_lanes():
            lane.lose(reason)


def _control_uri(data: str, control: str | None) -> str:
    """Return the URI of the control queue.

    Raises:
        UsageError: a queue with appIds has no default.
        InvalidURI: ``control`` is not a queue URI.
    """
    uri = QueueUri.parse(data)
    if control is not None:
        chosen = QueueUri.parse(control)
        if chosen.app_id or (chosen.domain, chosen.tier, chosen.queue) == (uri.domain, uri.tier, uri.queue):
            raise UsageError(
                f"control_queue must be a queue of its own in a domain of priority mode, and {control!r} "
                "has an appId or is the queue of the group"
            )
        return control
    if uri.app_id:
        raise UsageError(
            f"a group of {data} needs a control queue, because the queue has an appId: pass "
            "control_queue='bmq://DOMAIN/NAME', in a domain of priority mode and a different queue for each "
            "appId"
        )
    return f"{data}.group"
