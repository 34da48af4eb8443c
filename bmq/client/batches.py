# SPDX-License-Identifier: Apache-2.0
"""One ``post_many``: takes items as the window of unacknowledged posts allows, and counts the outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator
from functools import partial
from itertools import islice, repeat
from math import inf
from typing import TYPE_CHECKING, Any

from bmq import _checks
from bmq.client.interceptors import InterceptedPosts
from bmq.client.posts import (
    NO_TAGS,
    FailedPost,
    PostGroup,
    PostReport,
    PutMessage,
    as_bytes,
    attach_report,
    checked_properties,
    completed,
)
from bmq.client.send_window import Permit
from bmq.errors import PostError, UsageError
from bmq.wire.constants import MAX_APPLICATION_DATA, PutFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.message import too_large
from bmq.wire.properties import NOT_OF_THE_SCHEMA
from bmq.wire.put import Outgoing

if TYPE_CHECKING:
    from bmq.arrow.encoding import EncodedPosts
    from bmq.client.queue import Queue

__all__ = ["PLAIN", "WITH_PROPERTIES", "PostBatch", "decoded"]

PLAIN = int(PutFlags.ACK_REQUESTED)
WITH_PROPERTIES = int(PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES)
# After this many messages or bytes, post_many lets the event loop run to handle acknowledgements. The work in
# between takes a millisecond or two, enough to spread the fixed cost of a turn, and of the caches emptied by
# a write.
_TURN_MESSAGES = 500
_TURN_BYTES = 4 * 1024 * 1024
# Required space for a post of unknown size.
_ONE = Permit(1, 1, 1)


class PostBatch(PostGroup):
    """The messages of one ``post_many``.

    Attributes:
        report: the result for the caller.
        pending: number of posts without an outcome.
        late: a delayed message, to be posted to the delay queue at the end of a turn.
    """

    __slots__ = ("_queue", "_waiter", "late", "pending", "report")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.report = PostReport()
        self.pending = 0
        self.late: PutMessage | None = None
        self._waiter: asyncio.Future[None] | None = None

    # outcomes

    def accepted(self, count: int) -> None:
        """Count acknowledged posts."""
        self.report.acknowledged += count
        self._settled(count)

    def failed(self, index: int, error: PostError) -> None:
        """Record a post without an acceptance."""
        self.report.failures.append(FailedPost(index, error))
        self._settled(1)

    def _settled(self, count: int) -> None:
        self.pending -= count
        if not self.pending and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def outcomes(self, posting: Awaitable[None]) -> PostReport:
        """Wait for the posting, and for all outcomes.

        An exception of the posting is raised after the outcomes of the earlier posts, and has them.
        """
        failure: Exception | None = None
        try:
            await posting
        except Exception as error:
            failure = error
        if self.pending:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if failure is not None:
            attach_report(failure, self.report)
            raise failure
        return self.report

    # posting

    async def post_all(self, source: Iterable[Any]) -> None:
        """Post items, some in each turn of the event loop."""
        queue, window, items = self._queue, self._queue._window, iter(source)
        while True:
            await queue._wait_for_space(window.permit(_TURN_MESSAGES, _TURN_BYTES))
            messages, size = window.left(queue._core)
            room, budget = min(messages, _TURN_MESSAGES), min(size, _TURN_BYTES)
            before = self.report.posted
            if self._take(islice(items, room), budget) and self.report.posted - before < room:
                break
            if self.late is not None:
                await self._post_late()
            await asyncio.sleep(0)

    async def post_as_they_come(self, items: AsyncIterable[Any]) -> None:
        """Post each item at once, without waiting for a possibly late next item."""
        queue = self._queue
        connection, window, posts = queue._connection, queue._window, queue._posts
        async for item in items:
            if window.lines or not (connection.writable and posts.has_room):
                await queue._wait_for_space(_ONE)
            self._take((item,), 1)
            if self.late is not None:
                await self._post_late()
            if not self.report.posted % _TURN_MESSAGES:
                await asyncio.sleep(0)

    async def post_slices(self, slices: Iterable[EncodedPosts]) -> None:
        """Post the slices of a table, one in each turn of the event loop."""
        queue, report = self._queue, self.report
        connection, core = queue._connection, queue._core
        for each in _checked(slices):
            await queue._wait_for_space(queue._window.permit(len(each), each.payload_bytes))
            connection.check_open()
            core.check_posts()
            now, tick = connection.clock()
            event = each.bind(
                core.q_id, connection.schema_ids.number, partial(connection.guids.next_many, tick)
            )
            connection.core.post_event(core, event, self, now, report.posted)
            report.posted += len(each)
            report.bytes += each.payload_bytes
            self.pending += len(each)
            connection.transmit_soon()
            await asyncio.sleep(0)

    async def _post_late(self) -> None:
        """Post the delayed message to the delay queue, as the next message of the batch."""
        item, self.late = self.late, None
        assert item is not None
        properties = item.properties
        if item.tags is not NO_TAGS or item.key is not None:
            properties = completed(properties, item.tags, item.key)
        queue, properties = await self._queue._delaying(properties, item.delay, None)
        await queue._wait_for_space(_ONE)
        self._take((PutMessage(item.data, properties, item.guid, compression=item.compression),), 1, queue)

    def _take(self, items: Iterable[Any], budget: int, queue: Queue | None = None) -> bool:
        """Post items, up to a budget of bytes; return whether no items are left."""
        queue = queue or self._queue
        queue._connection.check_open()
        queue._core.check_posts()
        now, tick = queue._connection.clock()
        if not queue._intercepted:
            return self._post_some(queue, items, budget, self, now, tick)
        intercepted = InterceptedPosts(queue, self)
        complete = intercepted.take(items, budget, tick)
        if intercepted.posts:
            before = self.report.posted
            failure: BaseException | None = None
            try:
                self._post_some(queue, intercepted.show(), inf, intercepted, now, tick)
            except BaseException as error:
                failure = error
                raise
            finally:
                intercepted.made(self.report.posted - before, failure)
        if intercepted.failure is not None:
            raise intercepted.failure
        return complete

    def _post_some(
        self, queue: Queue, items: Iterable[Any], budget: float, token: PostGroup, now: float, tick: int
    ) -> bool:
        """Encode and post items, up to a budget of bytes; return whether no items are left."""
        connection, report = queue._connection, self.report
        messages: list[Outgoing] = []
        # Application data of messages different only in data: nearly always all messages.
        run: list[bytes] = []
        run_schema = 0
        ids = connection.schema_ids
        encoder, usual_schema = ids.usual
        simple = not queue._compression and connection.core.new_properties
        size = 0
        try:
            for item in items:
                if item.__class__ is PutMessage:
                    if item.delay is not None:
                        self.late = item
                        return False
                    data, guid, compression = item.data, item.guid, item.compression
                    properties = item.properties
                    if item.tags is not NO_TAGS or item.key is not None:
                        properties = completed(properties, item.tags, item.key)
                else:
                    data, properties, guid, compression = item, None, None, None
                if data.__class__ is not bytes:
                    data = as_bytes(data)
                length = len(data)
                if not (
                    simple and guid is None and compression is None and 0 < length <= MAX_APPLICATION_DATA
                ):
                    _end_run(queue, run, run_schema, messages, tick)
                    message = queue._encode(data, properties, guid, tick, compression)
                    messages.append(message)
                    data = message[1]
                else:
                    schema_id = 0
                    if properties is not None and (
                        properties if properties.__class__ is dict else checked_properties(properties)
                    ):
                        joined = None
                        if properties.__class__ is dict:
                            try:
                                joined, schema_id = encoder(properties, data), usual_schema
                            except NOT_OF_THE_SCHEMA:
                                pass
                        if joined is None:
                            joined, schema_id = ids.encode(properties, data)
                            encoder, usual_schema = ids.usual
                        data = joined
                        if len(data) > MAX_APPLICATION_DATA:
                            raise too_large(len(data))
                    if schema_id != run_schema:
                        _end_run(queue, run, run_schema, messages, tick)
                        run_schema = schema_id
                    run.append(data)
                size += length
                budget -= len(data)
                if budget <= 0:
                    return False
            return True
        finally:
            # Also after an illegal item: earlier items are posted.
            _end_run(queue, run, run_schema, messages, tick)
            report.bytes += size
            core = queue._core
            before = core.unacked
            try:
                connection.core.post_many(core, messages, token, now, report.posted)
            finally:
                accepted = core.unacked - before
                report.posted += accepted
                self.pending += accepted
                connection.transmit_soon()


def _end_run(queue: Queue, run: list[bytes], schema_id: int, messages: list[Outgoing], tick: int) -> None:
    """Create messages from application data, with all other values equal."""
    if run:
        guids = queue._connection.guids.next_list(tick, len(run))
        flags = WITH_PROPERTIES if schema_id else PLAIN
        messages += zip(guids, run, repeat(flags), repeat(schema_id), repeat(0), strict=False)
        run.clear()


def _checked(slices: Iterable[EncodedPosts]) -> Iterator[EncodedPosts]:
    if not isinstance(slices, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"slices must come from queue.encode_table(...), not {_checks.shown(slices)}")
    for each in slices:
        if not callable(getattr(type(each), "bind", None)):
            raise UsageError(f"a slice must come from queue.encode_table(...), not {_checks.shown(each)}")
        yield each


def decoded(slices: Iterable[EncodedPosts]) -> Iterator[PutMessage]:
    """Return the messages of slices, as if posted by the application."""
    for each in _checked(slices):
        for payload, properties, guid in each.decoded():
            yield PutMessage(payload, properties, None if guid is None else guid_to_text(guid))
