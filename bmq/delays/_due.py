# SPDX-License-Identifier: Apache-2.0
"""The messages of a queue, each at its due time."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from bmq import _checks, _world
from bmq._live import live
from bmq._logging import Log
from bmq._loop import timeout
from bmq._turn import turn_of
from bmq.client.consumer import Consumer
from bmq.client.message import Message, MessageBatch
from bmq.client.queue import Queue
from bmq.conventions import DUE
from bmq.errors import Error, ProtocolError, StateError, UsageError
from bmq.wire.printable import described
from bmq.wire.push import GUID

logger = Log("bmq.delays")

# Seconds between two looks at the clock, which may have been set.
_LOOK_AT_THE_CLOCK = 1.0
# The first distance of the horizon, in seconds: messages due soon come before messages due later.
_FIRST_SPAN = 30.0
# Seconds between a message and a horizon that is moved in front of the message.
_BEFORE = 0.001
# Stop fetching at this multiple of ``max_held``.
_FAR_TOO_MUCH = 4.0
# The smallest distance of the horizon in seconds, unless the caller says otherwise.
_TICK = 0.5
# The latest due time: a number that fits into an expression.
_LONGEST = 1e11


def check_due(
    lookahead: object, tick: object, max_held: object, max_held_bytes: object
) -> tuple[float, float, int, int]:
    """Return the checked limits of :class:`DueMessages`; for a ``tick`` of None the default.

    Raises:
        UsageError: a limit is out of its range.
    """
    ahead = _checks.number("lookahead", lookahead, 0.0, _LONGEST, above=True, unit="seconds")
    least = min(_TICK, ahead) if tick is None else _checks.seconds("tick", tick, positive=True)
    if least > ahead:
        raise UsageError(f"tick={least:g} is above lookahead={ahead:g}")
    return (
        ahead,
        least,
        _checks.integer("max_held", max_held, 1),
        _checks.integer("max_held_bytes", max_held_bytes, 1),
    )


@live
class DueMessages:
    """The messages of a queue, each at its due time.

    ::

        async with bmq.delays.DueMessages(queue) as messages:
            async for message in messages:
                message.confirm()

    The broker keeps messages due later: the subscription is ``bmq_due <= HORIZON``, and the horizon moves on.
    A broker evaluates a moved horizon for every waiting message, so moves are rare: the horizon is 30 seconds
    ahead at first, then twice as far each time as long as few messages are held, up to ``lookahead``. The
    next move follows after half of the distance. Messages due before the horizon are held here, unconfirmed:
    at most ``max_held`` messages and ``max_held_bytes``. At a limit, the horizon is pulled back in front of
    most of the held messages, down to ``tick``. A message without ``bmq_due`` is due at once.

    Several readers share the messages of a queue. Readers with the same horizon receive messages in turn. The
    reader that advances its horizon first receives more of the backlog; which one is random. Messages held by
    a reader go to the remaining readers when the reader closes or loses its connection.

    Args:
        queue: open for reading, with ``default_subscription=False``, or without an earlier receive.
        lookahead: maximum distance of the horizon in seconds.
        tick: minimum distance of the horizon in seconds.
        max_held: maximum number of held messages.
        max_held_bytes: maximum number of held bytes.
        clock: returns seconds since 1970.

    Raises:
        UsageError: an argument is out of its range.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        lookahead: float = 3600.0,
        tick: float = 0.5,
        max_held: int = 10_000,
        max_held_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = _world.time,
    ) -> None:
        _checks.choice("queue", queue, Queue)
        lookahead, tick, max_held, max_held_bytes = check_due(lookahead, tick, max_held, max_held_bytes)
        _checks.number("the result of clock()", _checks.function("clock", clock, 0, plain=True)())
        self._lookahead = lookahead
        self._tick = tick
        self._max_held = max_held
        self._max_bytes = max_held_bytes
        self._clock = clock
        self._turn = turn_of(asyncio.get_running_loop())
        # Distance of the next horizon, and time of the next move.
        self._span = min(lookahead, max(tick, _FIRST_SPAN))
        self._move_at = 0.0
        # At this multiple of the limits the horizon moves at once.
        self._at_once = 1.0
        self._moving: asyncio.Task[None] | None = None
        self._consumer: Consumer = queue.subscribe(
            _until(self._next_horizon(clock())),
            max_unconfirmed_messages=max_held,
            max_unconfirmed_bytes=max_held_bytes,
        )
        self._arrivals = self._consumer.batches()
        # Messages not due yet: due time, order of arrival, message.
        self._held: list[tuple[float, int, Message]] = []
        # The latest delivery of each held message, by GUID: a confirmation of an earlier one is stale.
        self._latest: dict[bytes, Message] = {}
        self._bytes = 0
        self._number = 0
        #: Returns the number of messages handed out that still count against the limits.
        self.elsewhere: Callable[[], int] = int

    @property
    def held(self) -> int:
        """Number of messages held and not handed out."""
        return len(self._held)

    async def open(self) -> DueMessages:
        """Begin to receive; ``async with`` and the first request for a message begin too.

        Raises:
            ConfigureQueueError, QueueClosed, RequestTimeout: as for :meth:`bmq.Consumer.open`.

        Cancelling the call withdraws the subscription.
        """
        await self._consumer.open()
        return self

    async def close(self) -> None:
        """Withdraw the subscription; idempotent.

        Held messages go to other readers once the queue is closed.

        Raises:
            RequestTimeout: no answer in time; the subscription is withdrawn in the background.

        A cancelled call withdraws the subscription when the queue is closed, at the latest.
        """
        if self._moving is not None:
            self._moving.cancel()
        await self._consumer.close()

    async def __aenter__(self) -> DueMessages:
        return await self.open()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        await self._wait()
        return self._pop()

    async def batch(self, max_messages: int = 1000) -> list[Message]:
        """Wait for a due message, then return all due messages, the longest due first.

        Args:
            max_messages: maximum number of messages to return.

        Returns:
            The messages; empty after ``close``, or after the queue was closed.

        Raises:
            Error: the queue or the session has failed.

        Cancelling the call loses no message.
        """
        max_messages = _checks.integer("max_messages", max_messages, 1)
        try:
            await self._wait()
        except StopAsyncIteration:
            return []
        now = self._clock()
        batch: list[Message] = []
        while len(batch) < max_messages and self._held and self._held[0][0] <= now:
            batch.append(self._pop())
        return batch

    def put_off(self, message: Message, until: float) -> None:
        """Hold a message again that was handed out.

        Args:
            message: unconfirmed.
            until: the new due time, in seconds since 1970.
        """
        self._hold(_checks.choice("message", message, Message), _checks.number("until", until, 0.0, _LONGEST))

    async def _wait(self) -> None:
        """Wait until the first message is due."""
        while True:
            now = self._clock()
            if now >= self._move_at:
                self._move(now)
            next_due = self._held[0][0] if self._held else math.inf
            if next_due <= now:
                if self._turn.clock() >= self._turn.until:
                    await self._turn.wait()
                    if not self._held:
                        continue
                return
            try:
                until = min(next_due, self._move_at)
                async with timeout(until - now, look_every=_LOOK_AT_THE_CLOCK):
                    batch = await anext(self._arrivals)
            except TimeoutError as error:
                if isinstance(error, Error):
                    raise
                continue
            for message, due in zip(batch, _due_times(batch), strict=True):
                guid = message._push[GUID]
                if guid in self._latest:
                    self._latest[guid] = message  # delivered again, and held already
                else:
                    self._hold(message, due)
            if self._part() >= self._at_once:
                self._move_at = min(self._move_at, now)

    def _hold(self, message: Message, due: float) -> None:
        self._number += 1
        heapq.heappush(self._held, (due, self._number, message))
        self._latest[message._push[GUID]] = message
        self._bytes += len(message.raw)

    def _pop(self) -> Message:
        _, _, message = heapq.heappop(self._held)
        self._bytes -= len(message.raw)
        return self._latest.pop(message._push[GUID], message)

    def _part(self) -> float:
        """The held amount, as a fraction of the limits."""
        count = len(self._held) + self.elsewhere()
        return max(count / self._max_held, self._bytes / self._max_bytes)

    def _move(self, now: float) -> None:
        """Move the horizon on."""
        part = self._part()
        # Long-due messages wait for the application: fetch no more before they are taken. The same after many
        # messages were put off: each move lets the broker deliver up to the limits again.
        behind = self._held and self._held[0][0] < now - self._tick
        if behind or part >= _FAR_TOO_MUCH or (self._moving is not None and not self._moving.done()):
            self._move_at = now + self._tick
            return
        if part >= 1:
            # Keep the first quarter of the held messages only: the broker may deliver as many again, and the
            # window should not have to move for every batch of these.
            self._at_once = int(part) + 1.0
            nearest = heapq.nsmallest(len(self._held) // 4 + 1, self._held)
            self._span = nearest[-1][0] - now - _BEFORE if nearest else self._tick
        else:
            self._at_once = 1.0
            if part >= 0.5:
                self._span /= 2
            elif part < 0.25:
                self._span *= 2
        self._span = min(max(self._span, self._tick), self._lookahead)
        self._moving = asyncio.create_task(self._configure(self._next_horizon(now)), name="horizon")

    def _next_horizon(self, now: float) -> float:
        """Return the next horizon, and note the time of the next move.

        The horizon is a multiple of half the distance: readers with the same expression receive in turn.
        """
        half = self._span / 2
        periods = now // half + 1
        self._move_at = periods * half + _world.rng().random() * half / 4
        return (periods + 1) * half

    async def _configure(self, horizon: float) -> None:
        try:
            await self._consumer.configure(_until(horizon))
        except StateError:
            pass  # closed or suspended: callers that wait for messages get the error
        except Exception as error:
            logger.warning(
                "%s: messages with a later due time could not be requested; the request will be repeated: %s",
                self._consumer.queue.uri,
                described(error),
            )
            self._move_at = self._clock() + self._tick


def _until(horizon: float) -> str:
    # In this order: without the property, the comparison ends the evaluation.
    return f"!exists({DUE}) || {DUE} <= {int(horizon * 1000)}"


def _due_times(batch: MessageBatch) -> list[float]:
    """The due times of messages, in seconds since 1970; at once without the property.

    A column does not leave the decoded properties with each message, which would take more memory than a
    small payload.
    """
    try:
        return [_seconds(due) for due in batch.column(DUE)]
    except ProtocolError:
        return [_due(message) for message in batch]


def _due(message: Message) -> float:
    try:
        return _seconds(message.properties.get(DUE))
    except ProtocolError:
        return 0.0


def _seconds(due: object) -> float:
    return due / 1000 if isinstance(due, int) else 0.0
