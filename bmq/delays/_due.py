# SPDX-License-Identifier: Apache-2.0
"""Messages of a queue, each at its time."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from bmq import _checks, _world
from bmq._turn import turn_of
from bmq.client.consumer import Consumer
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.conventions import DUE
from bmq.errors import ConfigureQueueError, Error, ProtocolError, RequestTimeout, UsageError

__all__ = ["DueMessages"]

logger = logging.getLogger("bmq.delays")

# Seconds after which the clock is looked at again: somebody may have set it.
_LOOK_AT_THE_CLOCK = 1.0
# How far ahead the horizon is at first, in seconds: what is due soon comes before what is due later.
_FIRST_SPAN = 30.0
# A horizon that is nearer than a message is so many seconds before it.
_BEFORE = 0.001
# So many times what may be held, and nothing more is asked for.
_FAR_TOO_MUCH = 4.0
# The horizon is this many seconds ahead at least, unless the caller says otherwise.
_TICK = 0.5
# Nothing is due later: the time stays a number that an expression can hold.
_LONGEST = 1e11


def check_due(
    lookahead: object, tick: object, max_held: object, max_held_bytes: object
) -> tuple[float, float, int, int]:
    """Return the limits of :class:`DueMessages`; its own ``tick`` for None.

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


class DueMessages:
    """The messages of a queue, each when it is due.

    ::

        async with bmq.delays.DueMessages(queue) as messages:
            async for message in messages:
                message.confirm()

    The broker keeps what is due later: the subscription is ``bmq_due <= HORIZON``, and the horizon moves on.
    A broker evaluates it anew for everything that waits when it moves, so it moves seldom: it is 30 seconds
    ahead at first, twice as far each time as long as little is held, up to ``lookahead``, and moves after
    half of that. What is due until then is held here, unconfirmed, at most ``max_held`` messages and
    ``max_held_bytes``; when that is reached, the horizon draws nearer than most of them, down to ``tick``. A
    message without ``bmq_due`` is due at once.

    Several readers of one queue share its messages: those with the same horizon get them in turn, and of what
    has waited the one gets more that moves its horizon first, which chance decides. What one of them holds,
    others get when it closes or its connection is lost.

    Args:
        queue: open for reading, with ``default_subscription=False`` or nothing received from it yet.
        lookahead: seconds that the horizon is ahead, at most.
        tick: seconds that it is ahead, at least.
        max_held: how many messages are held that are not due yet.
        max_held_bytes: how many bytes of them.
        clock: seconds since 1970.

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
        _checks.number("what clock() returns", _checks.function("clock", clock, 0, plain=True)())
        self._lookahead = lookahead
        self._tick = tick
        self._max_held = max_held
        self._max_bytes = max_held_bytes
        self._clock = clock
        self._turn = turn_of(asyncio.get_running_loop())
        # How far ahead the horizon is set, and when it moves on.
        self._span = min(lookahead, max(tick, _FIRST_SPAN))
        self._move_at = 0.0
        # So many times what may be held, and it moves at once.
        self._at_once = 1.0
        self._moving: asyncio.Task[None] | None = None
        self._consumer: Consumer = queue.subscribe(
            _until(self._next_horizon(clock())),
            max_unconfirmed_messages=max_held,
            max_unconfirmed_bytes=max_held_bytes,
        )
        self._arrivals = self._consumer.batches()
        # What is not due yet: when it is, the order of arrival, the message.
        self._held: list[tuple[float, int, Message]] = []
        self._guids: set[str] = set()
        self._bytes = 0
        self._number = 0
        #: Returns how many messages were handed out and still take room of what may be held.
        self.elsewhere: Callable[[], int] = int

    @property
    def held(self) -> int:
        """How many messages are held that were not handed out."""
        return len(self._held)

    async def open(self) -> DueMessages:
        """Begin to receive; ``async with`` does the same, and the first message asked for.

        Raises:
            ConfigureQueueError, QueueClosed, RequestTimeout: as for :meth:`bmq.Consumer.open`.

        Cancelling it takes the subscription back.
        """
        await self._consumer.open()
        return self

    async def close(self) -> None:
        """Take the subscription back; idempotent.

        What is held goes to others once the queue is closed.

        Raises:
            RequestTimeout: no answer in time; the subscription is taken back in the background.

        Cancelling it leaves the subscription taken back, at the latest when the queue is closed.
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
        """Wait until a message is due, then return all that are, the longest due first.

        Args:
            max_messages: how many to return at most.

        Returns:
            The messages; none when it was closed, or its queue.

        Raises:
            Error: the queue or the session has failed.

        Cancelling it loses nothing.
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
        """Hold a message that was handed out once more.

        Args:
            message: not confirmed.
            until: when it is due now, in seconds since 1970.
        """
        self._hold(_checks.choice("message", message, Message), _checks.number("until", until, 0.0, _LONGEST))

    async def _wait(self) -> None:
        """Wait until the first message is due."""
        while True:
            now = self._clock()
            if now >= self._move_at:
                self._move(now)
            next_due = self._held[0][0] if self._held else now + _LOOK_AT_THE_CLOCK
            if next_due <= now:
                if self._turn.clock() >= self._turn.until:
                    await self._turn.wait()
                    if not self._held:
                        continue
                return
            try:
                async with asyncio.timeout(min(next_due - now, self._move_at - now, _LOOK_AT_THE_CLOCK)):
                    batch = await anext(self._arrivals)
            except TimeoutError as error:
                if isinstance(error, Error):
                    raise
                continue
            for message in batch:
                if message.guid not in self._guids:  # else it was delivered again
                    self._hold(message, _due(message))
            if self._part() >= self._at_once:
                self._move_at = min(self._move_at, now)

    def _hold(self, message: Message, due: float) -> None:
        self._number += 1
        heapq.heappush(self._held, (due, self._number, message))
        self._guids.add(message.guid)
        self._bytes += len(message.raw)

    def _pop(self) -> Message:
        _, _, message = heapq.heappop(self._held)
        self._guids.discard(message.guid)
        self._bytes -= len(message.raw)
        return message

    def _part(self) -> float:
        """How much is held, as a part of what may be."""
        count = len(self._held) + self.elsewhere()
        return max(count / self._max_held, self._bytes / self._max_bytes)

    def _move(self, now: float) -> None:
        """Move the horizon on."""
        part = self._part()
        # What is long due waits for whoever takes it from here: nothing more until it is taken. Nor when very
        # much was put off: each move lets the broker deliver as much as may be held once more.
        behind = self._held and self._held[0][0] < now - self._tick
        if behind or part >= _FAR_TOO_MUCH or (self._moving is not None and not self._moving.done()):
            self._move_at = now + self._tick
            return
        if part >= 1:
            # Nearer than three in four of what is held. The broker may deliver as much again: it is not asked
            # anew for every batch of that.
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
        """Return the horizon from now on, and note until when.

        It is a multiple of half the span: readers with the same expression get messages in turn.
        """
        half = self._span / 2
        periods = now // half + 1
        self._move_at = periods * half + _world.rng().random() * half / 4
        return (periods + 1) * half

    async def _configure(self, horizon: float) -> None:
        try:
            await self._consumer.configure(_until(horizon))
        except (ConfigureQueueError, RequestTimeout) as error:
            logger.warning(
                "%s: messages that are due later than before could not be asked for, which is tried again: "
                "%s",
                self._consumer.queue.uri,
                error,
            )
            self._move_at = self._clock() + self._tick
        except UsageError:
            pass  # it is closed, or suspended: whoever waits for messages is told


def _until(horizon: float) -> str:
    # Asked in this order: where there is no such property, the comparison ends the evaluation.
    return f"!exists({DUE}) || {DUE} <= {int(horizon * 1000)}"


def _due(message: Message) -> float:
    """When a message is due, in seconds since 1970; at once if it does not say."""
    try:
        due = message.properties.get(DUE)
    except ProtocolError:
        return 0.0
    return due / 1000 if isinstance(due, int) else 0.0
