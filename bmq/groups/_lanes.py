# SPDX-License-Identifier: Apache-2.0
"""The messages of a member on their way from the subscriptions of the group to the application.

A subscription has a lane: of a bucket, of messages in no bucket, or of strays. Messages wait in the consumer
until the application takes them: a message taken out earlier would have no owner when the bucket goes.

A message handed out is *in hand* until it is confirmed (*done*), or until the connection or the membership
ends (*given back*): the broker delivers the message again then, here or to another member, although the
application may still be at work on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.conventions import BUCKET
from bmq.errors import Error, QueueClosed
from bmq.groups._events import Full, Gained, GroupEvent, Lost, Reason
from bmq.groups._protocol import Action, AssignmentInput, AssignmentState, Effect
from bmq.protocol.client.queue import QueueState

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.client.queue import Queue
    from bmq.groups._coordinator import Coordinator

logger = Log("bmq.groups")

T = TypeVar("T")

#: The states of a queue during which the broker delivers to other members.
DISCONNECTED: Final = (
    QueueState.LOST,
    QueueState.REOPENING,
    QueueState.RESTORING,
    QueueState.REOPEN_DELAYED,
    QueueState.REOPEN_OVERDUE,
    QueueState.RESTORE_DELAYED,
    QueueState.CLOSED,
)
#: Called with the number of a bucket; may be async.
Hook = Callable[[int], Awaitable[None] | None]
#: The policy for strays: "hold" keeps strays unconfirmed until this member leaves, "leave" takes none, and a
#: function is called with each stray, which is confirmed once the function has returned.
Strays: TypeAlias = Literal["hold", "leave"] | Callable[["Message"], Awaitable[None] | None]

#: Below all subscriptions, except for idle readers' placeholders. Sweepers have the same priority.
LOWEST: Final = -(2**30) + 1
#: The widest window of a subscription.
WIDEST: Final[dict[str, Any]] = {"max_unconfirmed_messages": 2**31 - 1, "max_unconfirmed_bytes": 2**62}

# Messages of one bucket handed out before the next bucket has a turn.
_TURN: Final = 64
# Confirmed messages are removed at this length of a lane's list, and later at twice the remaining length.
_SOME: Final = 64
# Part of the window at which a bucket counts as full: early enough to react.
_NEARLY: Final = 0.8
# Looks at messages in the application's hands, in seconds.
_LOOK_EVERY: Final = 0.02


class Dispatcher:
    """Hands out the messages of a member's lanes, and reports to the application and the log.

    Args:
        queue: the queue of the group.
        name: name of the member.
        key: the property with the key; None for the property ``bmq_bucket``.
        on_assigned: called with a gained bucket.
        on_revoked: called with a lost bucket.
        on_event: called with every event; errors of the function are logged.
        strays: the policy for strays.
        ended: called with the error when a lane ends because the queue or the session was closed.

    Attributes:
        queue, name, on_assigned, on_revoked, strays, ended: see above.
        error: the error that ended the group.
        unusable: messages handed out with a key in no bucket, by the kind of key.
        ready: the lanes that may have a message.
    """

    def __init__(
        self,
        queue: Queue,
        name: str,
        key: str | None,
        on_assigned: Hook | None,
        on_revoked: Hook | None,
        on_event: Callable[[GroupEvent], None] | None,
        strays: Strays,
        ended: Callable[[Error], None],
    ) -> None:
        self.queue = queue
        self.name = name
        self.on_assigned = on_assigned
        self.on_revoked = on_revoked
        self.strays: Strays = strays
        self.ended = ended
        self.error: BaseException | None = None
        self.unusable: Counter[str] = Counter()
        self.ready: deque[Lane] = deque()
        self._woken = asyncio.Event()
        self._key = key
        self._on_event = on_event
        self._log = LogLimit(logger)
        self._warned = False
        self._left_of_turn = _TURN
        self._tasks: dict[asyncio.Task[None], None] = {}

    # ready lanes

    def offer(self, lane: Lane) -> None:
        """Hand out the messages of a lane, until the lane has none."""
        if lane not in self.ready:
            self.ready.append(lane)
            self.wake()

    def take(self) -> Message | None:
        """Return the next message: of one bucket in order, of all buckets in turn."""
        ready = self.ready
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

    # receivers

    async def wait(self) -> None:
        """Wait until :meth:`wake` is called."""
        self._woken.clear()
        await self._woken.wait()

    def wake(self) -> None:
        """Wake all receivers."""
        self._woken.set()

    # tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task in the background; an error of the task ends the group."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the group with an error; the first error counts."""
        if self.error is None:
            self.error = error
            self.wake()

    # reports

    def tell(self, event: GroupEvent) -> None:
        """Tell the application."""
        if isinstance(event, Full) and not self._warned:
            self._warned = True
            logger.warning(
                "bucket %d of %s has %d messages unconfirmed, beside max_unconfirmed_messages=%d: handle "
                "them faster, or raise max_unconfirmed_messages. This is logged once",
                event.bucket,
                self.queue.uri,
                event.unconfirmed,
                event.window,
            )
        elif isinstance(event, Lost):
            logger.debug("%s has lost bucket %d: %s", self.name, event.bucket, event.reason.value)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed on %r", event)

    def count_unusable(self, kind: str) -> None:
        """Count a message handed out with a key in no bucket."""
        self.unusable[kind] += 1
        self._log.warning(
            ("unusable", kind),
            "a message of %s has a key without a bucket: property %s is %s, and keys are integers%s. The "
            "message is delivered without a bucket; check its producer",
            self.queue.uri,
            self._key or BUCKET,
            kind,
            " from 0 on, set by post(..., key=...)" if self._key is None else "",
        )

    def note_stray(self, kind: str) -> None:
        """Log a message not handed out."""
        self._log.warning(
            ("stray", kind),
            "a message of %s is not delivered by this member of the group: %s. %s. Either the producer is "
            "wrong, or the members differ: all members need the same key, buckets, expression and "
            "keyless; bmq explain shows their subscriptions",
            self.queue.uri,
            kind,
            "The function strays receives it"
            if callable(self.strays)
            else "This member holds the message until it leaves",
        )

    def note_stray_failed(self, error: Exception) -> None:
        """Log that the application's function did not take a stray."""
        self._log.error(
            ("failed", type(error)),
            "the function strays of the group of %s failed, and the message is held until this member "
            "leaves: %r",
            self.queue.uri,
            error,
        )


class Lane:
    """The messages of one subscription; as it is, of messages in no bucket.

    The lane's task waits for the first message, and adds the lane to the ready lanes; the application takes
    messages directly until no message may be handed out.

    Args:
        dispatcher: hands out the messages.
        consumer: the subscription.
        kind: the type of an unusable key, or the reason why messages are strays; "" for a bucket, and for
            messages without a key.

    Attributes:
        consumer: see above.
        handed_out: messages taken by the application.
        done: messages handed out and confirmed, as of the last look at :attr:`in_hand`.
        given_back: messages handed out and unconfirmed at the end of the connection or the membership.
    """

    def __init__(self, dispatcher: Dispatcher, consumer: Consumer, kind: str = "") -> None:
        self.consumer = consumer
        self.handed_out = self.done = self.given_back = 0
        self._dispatcher = dispatcher
        self._kind = kind
        # Set when the lane leaves the ready lanes, or may join them.
        self._changed = asyncio.Event()
        # Messages handed out, also confirmed ones until the next look.
        self._taken: list[Message] = []
        self._sweep_at = _SOME

    @property
    def in_hand(self) -> int:
        """How many messages were handed out under the present ownership and are not confirmed."""
        before = len(self._taken)
        self._taken = [message for message in self._taken if not message.confirmed]
        self.done += before - len(self._taken)
        return len(self._taken)

    async def run(self) -> None:
        """Serve the group until the consumer is closed."""
        while True:
            try:
                await self.consumer.wait()
            except Error as error:
                self._dispatcher.ended(error)
                return
            self._changed.clear()
            if self._may_hand_out():
                self._dispatcher.offer(self)
            await self._changed.wait()

    def _may_hand_out(self) -> bool:
        """Whether the waiting messages may be handed out now."""
        return True

    def take(self) -> Message | None:
        """Return the next message; None if no message waits, and the lane is no longer ready."""
        message = self.consumer.receive_nowait()
        if message is None:
            self._changed.set()
            return None
        self.handed_out += 1
        self._taken.append(message)
        if len(self._taken) >= self._sweep_at:
            self._sweep_at = 2 * self.in_hand + _SOME
        if self._kind:
            self._dispatcher.count_unusable(self._kind)
        return message

    def lose(self, reason: Reason) -> None:
        """Forget the messages at the end of the connection or the membership.

        Args:
            reason: the reason, for reports.
        """
        self.given_back += self.in_hand
        self._taken = []
        self._sweep_at = _SOME


class BucketLane(Lane):
    """The messages of a bucket.

    Attributes:
        bucket: number of the bucket.
        coordinator: the member's coordinator, set before the lane runs.
    """

    coordinator: Coordinator

    def __init__(self, dispatcher: Dispatcher, bucket: int, consumer: Consumer) -> None:
        super().__init__(dispatcher, consumer)
        self.bucket = bucket
        self._window = consumer.options.max_unconfirmed_messages
        self._full = False
        self._loaded = False
        # Messages received before the window was opened, until a later one has arrived.
        self._before = math.inf
        self._effects: asyncio.Queue[Effect] = asyncio.Queue()
        self._acting: asyncio.Task[None] | None = None

    @property
    def owned(self) -> bool:
        """Whether messages of the bucket are handed out."""
        return self._loaded and self.coordinator.hands_out(self.bucket)

    def _may_hand_out(self) -> bool:
        if self._before < math.inf and self.consumer.stats().received > self._before:
            self._before = math.inf
            self.coordinator.arrived(self.bucket)
        owned = self.owned
        if owned:
            self._look()
        return owned

    def _look(self) -> None:
        """Tell when the window is nearly full."""
        if not self._window:
            return
        nearly = _NEARLY * self._window
        # The length of the list is at least the number in hand, and is found without a look at each message.
        waiting = self.consumer.buffered
        if waiting + len(self._taken) < nearly or (unconfirmed := waiting + self.in_hand) < nearly:
            self._full = False
        elif not self._full:
            self._full = True
            self._dispatcher.tell(Full(self.bucket, unconfirmed, self._window))

    def take(self) -> Message | None:
        """Return the next message; None if no message may be handed out."""
        if not self.owned:
            self._changed.set()
            return None
        return super().take()

    def allow(self) -> None:
        """Look again: the lease was renewed."""
        if self.owned:
            self._changed.set()

    def lose(self, reason: Reason) -> None:
        """Forget the messages at the end of the connection or the membership."""
        in_hand = self.in_hand
        super().lose(reason)
        if self._loaded:
            self._dispatcher.tell(Lost(self.bucket, reason, in_hand))

    # actions

    def act(self, effect: Effect) -> None:
        """Perform an action after the earlier ones."""
        if effect.do is Action.FORGET and self._acting is not None:
            self._acting.cancel()  # no answer comes any more
        self._effects.put_nowait(effect)

    async def serve(self) -> None:
        """Perform the actions in turn."""
        while True:
            effect = await self._effects.get()
            try:
                async with asyncio.TaskGroup() as group:
                    self._acting = group.create_task(self._perform(effect))
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None

    async def _perform(self, effect: Effect) -> None:
        if effect.do is Action.SUBSCRIBE:
            self._before = math.inf
            priority = effect.fence if effect.raised else -effect.fence
            await self.consumer.configure(priority=priority, max_unconfirmed_messages=0)
            await self._repeat(effect, self.consumer.open)
            self.coordinator.done(effect, AssignmentInput.ANSWERED)
        elif effect.do is Action.OPEN:
            await self._open(effect)
        elif effect.do is Action.SHUT:
            await self.coordinator.bundles.without(self.bucket)
            await self._repeat(effect, partial(self.consumer.configure, max_unconfirmed_messages=0))
            while self.consumer.buffered or self.in_hand:  # noqa: ASYNC110 - a confirmation is no event
                await asyncio.sleep(_LOOK_EVERY)
            await self._put_down(Reason.MOVED)
            self.coordinator.done(effect, AssignmentInput.DRAINED)
        elif effect.do is Action.WITHDRAW:
            await self._put_down(Reason.MOVED)
            await self._repeat(effect, self.consumer.pause)
            self.coordinator.done(effect, AssignmentInput.WITHDRAWN)
        else:
            await self._put_down(Reason.DISCONNECTED)

    async def _open(self, effect: Effect) -> None:
        self._loaded = False
        try:
            await _called(self._dispatcher.on_assigned, self.bucket)
        finally:
            self._loaded = True
        if self.coordinator.state(self.bucket, effect.fence) is AssignmentState.OPEN:
            self._dispatcher.tell(Gained(self.bucket))
            self._before = self.consumer.stats().received
            # A real broker passes over the messages behind a full window, and continues with newer ones: a
            # window that is never full keeps the order. The session's limits on buffered messages bound the
            # memory.
            await self._repeat(effect, partial(self.consumer.configure, **WIDEST))
            self.allow()

    async def _put_down(self, reason: Reason) -> None:
        if not self._loaded:
            return
        self._loaded = False
        if reason is Reason.MOVED:
            self._dispatcher.tell(Lost(self.bucket, reason, 0))
        await _called(self._dispatcher.on_revoked, self.bucket)

    async def _repeat(self, effect: Effect, request: Callable[[], Awaitable[object]]) -> None:
        """Send a request until the broker agrees: a bucket is stuck without the answer."""

        def wanted() -> bool:
            return self.coordinator.state(self.bucket, effect.fence) is not AssignmentState.GONE

        try:
            where = f"bucket {self.bucket} of {self.consumer.queue.uri}"
            await repeated(request, where, effect.do.value, wanted)
        except QueueClosed:
            raise asyncio.CancelledError from None

    async def finish(self) -> None:
        """Drop the bucket if loaded, after the actions have ended.

        Raises:
            Exception: raised by ``on_revoked``.
        """
        while not self._effects.empty():
            self._effects.get_nowait()
        await self._put_down(Reason.LEFT)


class StrayLane(Lane):
    """The strays of one subscription: the messages of the queue that the group does not hand out.

    A broker delivers the messages of a departed consumer before all newer ones. While no subscription matches
    the old messages, the broker delivers no message at all. A member with options different from the peers'
    would leave unmatched messages behind, and stop all members. Every member therefore also subscribes to
    strays, at the lowest priority. The member holds strays unconfirmed until the member leaves, or passes
    strays to a function of the application. A held stray costs this process hardly any memory, so the
    window of the subscriptions is as wide as the protocol allows, and never stops delivery.

    Rejected: to subscribe only when delivery stands still (an idle queue looks the same), and to give strays
    back from time to time (the protocol gives back all messages of a queue or none, and every bucket would
    change hands).

    Attributes:
        held: strays that this member keeps unconfirmed.
        handled: strays that the application's function has handled.
    """

    held = 0
    handled = 0

    async def run(self) -> None:
        """Take strays until the consumer is closed; the lanes of the buckets tell why."""
        with contextlib.suppress(Error):
            async for message in self.consumer:
                await self._take_stray(message)

    async def _take_stray(self, message: Message) -> None:
        policy = self._dispatcher.strays
        self._dispatcher.note_stray(self._kind)
        if callable(policy):
            try:
                await _called(policy, message)
            except Exception as error:
                self._dispatcher.note_stray_failed(error)
            else:
                self.handled += 1
                message.confirm()
                return
        self.held += 1

    def lose(self, reason: Reason) -> None:
        """Forget held strays: the broker delivers all strays again."""
        self.held = 0


async def repeated(
    request: Callable[[], Awaitable[object]],
    where: str,
    what: str,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Send a request until the broker agrees, while it is wanted.

    Args:
        request: sends the request.
        where: receiver of the request, for the log.
        what: name of the request, for the log.
        wanted: whether the request is still wanted.

    Raises:
        QueueClosed: the queue is closed.
    """
    pause = 0.1
    while wanted():
        try:
            await request()
            return
        except QueueClosed:
            raise
        except Error as error:
            logger.warning("%s: the request to %s failed, and is repeated: %s", where, what, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, 5.0)


async def ignoring_errors(work: Awaitable[object]) -> None:
    """Wait for a request whose answer does not matter."""
    with contextlib.suppress(Error):
        await work


async def _called(function: Callable[[T], Awaitable[None] | None] | None, argument: T) -> None:
    """Call a function of the application, if given, and wait for the result."""
    if function is not None and (done := function(argument)) is not None:
        await done
