# SPDX-License-Identifier: Apache-2.0
"""Receives messages for batch reads and streams: sessions with their queues and subscriptions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bmq._dead_letters import DeadLetter, Failure
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.arrow.backlog import ANSWER_TIMEOUT, Drained, InitialBacklog, asking
from bmq.arrow.consumer import ColumnConsumer, Taken
from bmq.arrow.decoding import RecordBatch, TableDecoder
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.errors import Error, StateError
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.subscription import SubscriptionOptions
from bmq.spark.connection import ConnectionOptions
from bmq.spark.log import BatchLog, Source, raw_rows, raw_schema
from bmq.spark.options import SourceOptions
from bmq.subscriptions import Expression, ExpressionInput
from bmq.wire.printable import printable

__all__ = [
    "DeadLetterWriter",
    "DropCounts",
    "ReceivedMessages",
    "SourceReceiver",
    "confirm_guids",
    "dropped_since",
    "look_for_others",
    "new_messages",
]

_DEFAULT_APP = "__default"


logger = Log("bmq.spark")
_MAX_UNCONFIRMED_BYTES = 1 << 40
# Large enough to make the cost of a batch negligible, small enough to keep Spark's workers busy.
_ROWS = 10_000
# File beside a log with the last counts of dropped messages.
_DROPPED = "dropped.json"


async def other_readers(options: SourceOptions) -> dict[str, dict[str, bool]]:
    """Query the other readers of each queue, and whether an expression selects their messages.

    For a fanout queue, these are the readers of the application.

    Raises:
        Error: the broker cannot be reached, or does not answer the query.
        TimeoutError: no answer in time.
    """
    found: dict[str, dict[str, bool]] = {}
    async with asking(options.admin) as asked:
        there = set(await asked.queues())
        for uri in options.queue:
            queue = asked.queue(uri)
            if queue.uri not in there:
                continue
            app = queue.app_id or _DEFAULT_APP
            for client in (await queue.internals()).clients:
                subscriptions = [
                    each for stream in client.streams if stream.app_id == app for each in stream.subscriptions
                ]
                if subscriptions:
                    selects = any(each.expression for each in subscriptions)
                    found.setdefault(uri, {})[client.description] = selects
    return found


class DropCounts(msgspec.Struct, frozen=True):
    """A broker's counts of a queue since the broker's start.

    Attributes:
        dropped: messages that expired, or were delivered too often.
        posted: accepted posts.
    """

    dropped: int
    posted: int = 0


async def dropped_totals(options: SourceOptions) -> dict[str, DropCounts]:
    """Query the number of dropped messages of each queue; queues without statistics are omitted.

    Raises:
        Error: the broker cannot be reached, or does not answer the query.
        TimeoutError: no answer in time.
    """
    async with asking(options.admin) as asked:
        statistics = {each.uri: each for each in (await asked.statistics()).queues}
        known = {uri: statistics.get(asked.queue(uri).uri) for uri in options.queue}
    return {
        uri: DropCounts(each.expired + each.rejected, each.posted)
        for uri, each in known.items()
        if each is not None
    }


def new_messages(known: set[bytes], guids: list[bytes]) -> list[int] | None:
    """Add messages to the known ones; return the positions of the new messages, None if all are new."""
    before = len(known)
    if known.isdisjoint(guids):
        known.update(guids)
        if len(known) == before + len(guids):
            return None
        known.difference_update(guids)
    fresh: list[int] = []
    for place, guid in enumerate(guids):
        if guid not in known:
            known.add(guid)
            fresh.append(place)
    return fresh


class ReceivedMessages(NamedTuple):
    """Messages that arrived together.

    Attributes:
        messages: consumer of the messages.
        queue: queue of the messages.
        received: messages.
        batch: a row for each message, as in logs.
    """

    messages: ColumnConsumer
    queue: Queue
    received: Taken
    batch: RecordBatch

    def part(self, start: int, stop: int) -> ReceivedMessages:
        """Return a range of the messages."""
        return self._replace(
            received=self.received.part(start, stop), batch=self.batch.slice(start, stop - start)
        )

    def message(self, place: int) -> Message:
        """Return a single message."""
        (message,) = self.messages.line.messages_of(self.received, [place])
        return message


class _SourceConsumer(NamedTuple):
    messages: ColumnConsumer
    queue: Queue
    source: int


class SourceReceiver:
    """Receives from several queues, in the portal's loop.

    Args:
        options: options of the source.
        receivers: number of sessions that read all queues.

    Attributes:
        schema: columns of the rows.
        sessions: sessions, after opening.
    """

    def __init__(self, options: SourceOptions, receivers: int = 1) -> None:
        self._options = options
        self._receivers = receivers
        sources: list[Source] = [
            (uri, name or None) for uri in options.queue for name, _ in options.expression
        ]
        self.schema = raw_schema(sources)
        self.sessions: list[Session] = []
        self._consumers: list[_SourceConsumer] = []
        self._drained = Drained()
        selects = any(expression for _, expression in options.expression)
        self._backlog = InitialBacklog(options.admin, options.queue, selects=selects)
        self._waiting: deque[ReceivedMessages] = deque()
        self._rows = 0

    async def open(self, *, silence: float | None = None) -> None:
        """Connect and subscribe.

        Args:
            silence: seconds without a message that end a run with the messages that are in the queues now;
                None for a run without end. The messages are counted before the subscriptions, because a
                delivering broker answers late.

        Raises:
            ConnectionFailed: the broker cannot be reached in time.
            OpenQueueError, ConfigureQueueError: the broker refused.
            RequestTimeout: the broker did not answer in time.
        """
        options = self._options
        opened: list[list[Queue]] = []
        for _ in range(self._receivers):
            session = await options.open()
            self.sessions.append(session)
            opened.append(
                [
                    await session.open_queue(
                        uri, read=True, priority=options.consumer_priority, default_subscription=False
                    )
                    for uri in options.queue
                ]
            )
        if silence is not None:
            await self._backlog.ask(silence)
        limits = SubscriptionOptions(
            options.max_unconfirmed, _MAX_UNCONFIRMED_BYTES, options.consumer_priority
        )
        for queues in opened:
            sources = [(queue, expression) for queue in queues for _, expression in options.expression]
            for source, (queue, expression) in enumerate(sources):
                messages = ColumnConsumer(queue, _unwarned(expression), limits)
                messages.backlog = self._backlog
                await messages.open()
                self._consumers.append(_SourceConsumer(messages, queue, source))
        self._drained = Drained(*(each.queue for each in self._consumers))

    @property
    def queues(self) -> list[Queue]:
        """The queues of all sessions."""
        return list(dict.fromkeys(each.queue for each in self._consumers))

    @property
    def buffered(self) -> int:
        """Number of arrived messages that wait."""
        return self._rows + sum(each.messages.buffered for each in self._consumers)

    async def take(
        self, limit: int, wait: float, *, drains: bool = False, held: Callable[[], int] = lambda: 0
    ) -> list[ReceivedMessages]:
        """Wait for messages.

        Args:
            limit: maximum number of messages.
            wait: seconds to wait for the first message.
            drains: whether the run ends with the messages that were in the queues at its start; see
                :class:`InitialBacklog`. The wait then counts only with a connection, and with room in the
                windows: a broker delivers nothing into a full window.
            held: function that returns the number of messages taken and not confirmed.

        Returns:
            Messages in the order of arrival; none after the timeout, or at the end of the run.

        Raises:
            QueueClosed, SessionClosed: the connection is permanently lost.
        """
        now = asyncio.get_running_loop().time
        if drains:
            await self._backlog.ask(wait)
        room = self._options.max_unconfirmed * 4 // 5  # a broker resumes below 80 % of a full window
        deadline, has_room = now() + wait, held() <= room
        while self._rows < limit:
            if not self._rows and drains and self._backlog.taken(self._drained.reconnected):
                break
            left = 0.0 if self._rows else deadline - now()
            if not await self._receive(limit - self._rows, max(left, 0.0)) and left <= 0:
                if self._rows or not drains:
                    break
                if self._drained.after_silence() and has_room:
                    self._backlog.report(self._drained.reconnected)
                    break
                deadline, has_room = now() + wait, held() <= room
        taken: list[ReceivedMessages] = []
        while self._waiting and limit:
            each = self._waiting.popleft()
            count = each.batch.num_rows
            if count > limit:
                self._waiting.appendleft(each.part(limit, count))
                each, count = each.part(0, limit), limit
            taken.append(each)
            limit -= count
            self._rows -= count
        return taken

    async def _receive(self, limit: int, timeout: float) -> bool:
        """Collect the messages of all consumers; wait only if no consumer has any."""

        def ready() -> list[_SourceConsumer]:
            return [each for each in self._consumers if each.messages.buffered]

        if not ready():
            waits = [asyncio.ensure_future(each.messages.wait(None)) for each in self._consumers]
            try:
                done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
            for wait in waits:
                if wait in done:
                    wait.result()
        found = ready()
        for each in found:
            self._add(each.messages.take(limit), each)
        return bool(found)

    def _add(self, received: Taken, each: _SourceConsumer) -> None:
        clock = asyncio.get_running_loop().time()
        batch = raw_rows(received, clock, each.source, self.schema)
        self._waiting.append(ReceivedMessages(each.messages, each.queue, received, batch))
        self._rows += batch.num_rows

    def confirm(self, queue: Queue, guids: Collection[bytes]) -> None:
        """Confirm messages of a queue."""
        if guids and not queue.closed:
            queue._confirm_guids(list(guids))
            self._backlog.confirmed(queue.uri, len(guids))

    async def settle(self) -> bool:
        """Close the queues; return whether the broker has certainly received all confirmations."""
        try:
            for queue in self.queues:
                await queue.close()  # the broker answers after all confirmations
        except Error as error:
            logger.debug("queues were not closed in order: %s", error)
            return False
        return all(
            session.state is SessionState.STARTED and not session.stats().reconnects
            for session in self.sessions
        )

    async def close(self) -> None:
        """Send confirmations, return unconfirmed messages to the queue, and disconnect."""
        for session in self.sessions:
            await session.close(timeout=10)


async def confirm_guids(options: ConnectionOptions, guids: Mapping[str, Collection[bytes]]) -> None:
    """Confirm messages of earlier sessions, by the URI of their queue; unknown GUIDs are harmless.

    Raises:
        ConnectionFailed: the broker cannot be reached in time.
        OpenQueueError, RequestTimeout: a queue cannot be opened or closed.
        SessionClosed: the connection is permanently lost.
    """
    session = await options.open()
    try:
        for uri, keys in guids.items():
            if not keys:
                continue
            queue = await session.open_queue(uri, read=True, default_subscription=False)
            every = list(keys)
            for first in range(0, len(every), _ROWS):
                queue._confirm_guids(every[first : first + _ROWS])
                await asyncio.sleep(0)
            await queue.close()  # the broker answers after all confirmations
    finally:
        await session.close(timeout=10)


def _unwarned(expression: str) -> ExpressionInput:
    """Return an expression of the options, which were checked when read.

    With Spark's filters, an expression may always be true. A text beyond the limits stays text, to be split.
    """
    found = Expression(expression, strict=False) if expression else None
    return found if found is None or found.error is None else expression


class DeadLetterWriter:
    """Posts unreadable messages to the queue for dead letters, if the options name one.

    Args:
        options: options of the read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._decoder = TableDecoder(None, payload=False)
        self._session: Session | None = None
        self._letters: DeadLetter | None = None
        self._limit = LogLimit(logger)

    async def take(self, arrived: ReceivedMessages, places: Sequence[int] | None) -> set[int]:
        """Put undecodable messages aside; return their positions after the broker's acknowledgement.

        Args:
            arrived: messages.
            places: positions of the messages to examine; None for all.

        Raises:
            PostError: the broker refused a dead letter for good.
            OpenQueueError: the queue for dead letters cannot be opened.
            SessionClosed: the connection is permanently lost.
        """
        uri = self._options.dead_letter_queue
        if not uri:
            return set()
        columns = arrived.received.columns
        found: set[int] = set()
        wanted = range(columns.count) if places is None else set(places)
        first = 0
        while first < columns.count:
            decoded = self._decoder.decode(columns.part(first, columns.count))
            for row, error in decoded.errors.items():
                place = first + row
                if place in wanted:
                    message = arrived.message(place)
                    self._limit.warning(
                        "aside",
                        "message %s of %s cannot be decoded, and is put aside in %s: %s",
                        message.guid,
                        arrived.queue.uri,
                        uri,
                        printable(error.reason),
                    )
                    await self._post(Failure(message, error, 0, None, "bmq.spark"))
                    found.add(place)
            first += decoded.rows
        return found

    async def _post(self, failure: Failure) -> None:
        if self._session is None or self._letters is None:
            self._session = await self._options.open()
            queue = await self._session.open_queue(self._options.dead_letter_queue, write=True)
            self._letters = DeadLetter(queue)
        letters = self._letters
        assert not isinstance(letters.queue, str)
        await letters.post(failure, letters.queue, asyncio.sleep)

    async def close(self) -> None:
        """Disconnect."""
        if self._session is not None:
            await self._session.close(timeout=10)


async def look_for_others(options: SourceOptions, *, returns: bool = False) -> None:
    """Log other readers of the queues.

    Args:
        options: options of the source.
        returns: whether the messages return to the queue after the read. A broker delivers a returned message
            before all others, and nothing else while no subscription matches the message.

    Raises:
        StateError: the returned messages could stop another reader.
    """
    try:
        others = await other_readers(options)
    except (Error, TimeoutError) as error:
        why = str(error) or f"no answer in {ANSWER_TIMEOUT:g} s"
        logger.info("the broker does not report other readers: %s", why)
        return
    for uri, readers in others.items() if returns else ():
        if stopped := [reader for reader, selects in readers.items() if selects]:
            raise StateError(
                f"{uri} has readers with an expression ({', '.join(stopped)}): the messages of this read "
                "return to the queue unconfirmed, and while one of them matches no expression, the broker "
                "delivers nothing else. Stop these readers first; or set checkpointLocation and "
                "confirm=onStore, which takes the messages out of the queue; or read an application of a "
                "fanout queue without other readers"
            )
    if others:
        logger.warning(
            "other consumers read the same queue, and each message goes to only one reader: %s. To give "
            "each reader a copy, read a fanout queue with separate applications",
            "; ".join(f"{uri}: {', '.join(readers)}" for uri, readers in others.items()),
        )


async def dropped_since(log: BatchLog, options: SourceOptions) -> dict[str, int]:
    """Return the number of messages dropped since the last call, by queue.

    Args:
        log: log beside which the counts are recorded.
        options: options of the source.
    """
    noted = msgspec.convert(log.noted(_DROPPED) or {}, dict[str, DropCounts])
    try:
        now = await dropped_totals(options)
    except (Error, TimeoutError) as error:
        logger.debug("the broker does not report dropped messages: %s", error)
        return {}
    merged = {**noted, **now}
    if merged != noted:
        await asyncio.to_thread(log.note, _DROPPED, msgspec.to_builtins(merged))
    more: dict[str, int] = {}
    for uri, each in now.items():
        before = noted.get(uri, each)
        # A restarted broker counts from 0.
        restarted = each.dropped < before.dropped or each.posted < before.posted
        more[uri] = each.dropped - (0 if restarted else before.dropped)
    return {uri: count for uri, count in more.items() if count}
