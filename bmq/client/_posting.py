# SPDX-License-Identifier: Apache-2.0
"""The posting side of a queue: one pipeline from a payload to a place in the window.

Every post passes the same stages, alone or with many others:

1. *Intercept*, if the session has interceptors of posts: :class:`bmq.client._observing.Interception` shows
   the message to the interceptors, allows changes, and watches for the outcome.
2. *Encode*: the payload and the properties become application data. A ``post_many`` of messages with
   different data, but equal other values, takes a shorter loop, and creates all GUIDs together.
3. *Admit*: the window takes the message.

If a later stage refuses a post, the interceptors of the post receive the refusal as the outcome.

Rejected designs: a second poster for sessions with interceptors, because the separate pipeline lagged behind
this pipeline; and a common encoder called for each message of a ``post_many``, at the cost of a tenth of the
whole post.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice, repeat
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from bmq.client._extras import importing_arrow
from bmq.client._outcomes import PostBatch, PostFuture, Several
from bmq.client._payload import NO_TAGS, as_bytes, checked_properties, completed, wrong_size
from bmq.client.options import check_compression
from bmq.client.posts import GuidsOf, PostReport, PutMessage, attach_report
from bmq.client.send_window import Permit
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.queue import QueueCore
from bmq.wire.constants import MAX_APPLICATION_DATA, Compression, PutFlags
from bmq.wire.guid import guid_from_text, guid_to_text
from bmq.wire.message import join_application_data, too_large
from bmq.wire.properties import NOT_OF_THE_SCHEMA, PropertyInput, encode_properties
from bmq.wire.put import Outgoing

if TYPE_CHECKING:
    from bmq.arrow.encoding import EncodedPosts
    from bmq.client._observing import Interception, ObservedPost
    from bmq.client.driver import Driver

__all__ = ["Poster"]

_STARTED = SessionState.STARTED
_PLAIN = int(PutFlags.ACK_REQUESTED)
_WITH_PROPERTIES = int(PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES)
# After this many messages or bytes, post_many lets the event loop run to handle acknowledgements. The work in
# between takes a millisecond or two, enough to spread the fixed cost of a turn, and of the caches emptied by
# a write.
_TURN_MESSAGES = 500
_TURN_BYTES = 4 * 1024 * 1024
# Required space for a post of unknown size.
_ONE = Permit(1, 1, 1)


#: Returns the poster of a message with a delay, and the message to post instead.
Delayed: TypeAlias = "Callable[[PutMessage], Awaitable[tuple[Poster, PutMessage]]]"


class Poster:
    """The pipeline of one queue.

    Args:
        driver: the session.
        core: the protocol's queue.
        compression: compression of payloads; None for the session's default.
        interception: the first stage; None if no interceptor handles posts.
    """

    __slots__ = (
        "_compression",
        "_connection",
        "_core",
        "_driver",
        "_interception",
        "_level",
        "_posts",
        "_threshold",
        "_window",
    )

    def __init__(
        self,
        driver: Driver[Any],
        core: QueueCore,
        compression: Compression | None,
        interception: Interception | None,
    ) -> None:
        self._driver = driver
        self._interception = interception
        self._connection = driver.connection
        self._posts = driver.core.posts
        self._window = driver.send_window
        self._core = core
        options = driver.options
        self._compression = int(options.compression if compression is None else compression)
        self._level = options.compression_level
        self._threshold = options.compression_threshold

    def post(
        self,
        payload: bytes | bytearray | memoryview,
        properties: Mapping[str, PropertyInput] | None,
        guid: str | None,
        compression: Compression | None,
    ) -> PostFuture:
        """Post one message; see :meth:`bmq.Queue.post_nowait`."""
        connection = self._connection
        # Driver.check_open() is called only where an exception is possible: the check costs a call, and a
        # system call.
        if connection.core.state is not _STARTED or connection.scheduled:
            self._driver.check_open()
        else:
            try:
                here = get_running_loop() is connection.loop
            except RuntimeError:
                here = False
            if not here:
                connection.check_loop()
        tick = connection.turn[1] if connection.scheduled else connection.monotonic_ns() - connection.epoch
        data = payload if type(payload) is bytes else as_bytes(payload)
        observed: ObservedPost | None = None
        if self._interception is not None:
            self._core.check_posts()
            post, observed = self._interception.one(data, properties, guid, tick)
            properties, guid = post.properties, post.guid
        try:
            message = self._encode(data, properties, guid, tick, compression)
            future: PostFuture = connection.loop.create_future()
            token = future if observed is None else observed.attach(future)
            raw, data, flags, schema_id, packing = message
            now = connection.turn[0] if connection.scheduled else connection.loop.time()
            connection.core.post(self._core, raw, data, token, now, 0, flags, schema_id, packing)
        except BaseException as error:
            if observed is not None:
                observed.refused(error)
            raise
        if not connection.scheduled:
            connection.transmit_soon()
        return future

    async def wait_for_space(self, permit: Permit) -> None:
        """Wait until a post may be made; the caller must post at once.

        Raises:
            SessionClosed, UsageError: as for :meth:`Driver.check_open`.
        """
        self._driver.check_open()
        await self._window.acquire(self._core, permit)

    def new_guid(self) -> str:
        """Return a GUID for a post."""
        return guid_to_text(self._driver.guids.next(self._connection.clock()[1]))

    async def post_many(
        self, items: Iterable[Any] | AsyncIterable[Any], delayed: Delayed | None = None
    ) -> PostReport:
        """Post many messages; see :meth:`bmq.Queue.post_many`.

        Args:
            items: payloads and messages.
            delayed: returns the poster for a message with a delay, and the message to post.
        """
        batch = PostBatch()
        async with _reporting(batch):
            if isinstance(items, AsyncIterable):
                await self._post_as_they_come(items, batch, delayed)
            else:
                await self._post_all(iter(items), batch, delayed)
        return batch.report

    async def _post_all(self, items: Iterator[Any], batch: PostBatch, delayed: Delayed | None) -> None:
        while True:
            await self.wait_for_space(self._window.permit(_TURN_MESSAGES, _TURN_BYTES))
            messages, size = self._window.left(self._core)
            room, budget = min(messages, _TURN_MESSAGES), min(size, _TURN_BYTES)
            before = batch.report.posted
            if self._take(islice(items, room), budget, batch) and batch.report.posted - before < room:
                break
            if batch.late is not None:
                await self._post_late(batch, delayed)
            await asyncio.sleep(0)

    async def _post_late(self, batch: PostBatch, delayed: Delayed | None) -> None:
        """Post the delayed message at the end of a turn, as the next message of the batch."""
        message, batch.late = batch.late, None
        assert message is not None
        assert delayed is not None
        poster, message = await delayed(message)
        await poster.wait_for_space(_ONE)
        poster._take((message,), 1, batch)

    async def post_encoded(self, slices: Iterable[EncodedPosts]) -> PostReport:
        """Post encoded messages; see :meth:`bmq.Queue.post_encoded`."""
        if self._interception is not None:
            return await self.post_many(_decoded(slices))  # interceptors see messages
        batch = PostBatch()
        report = batch.report
        async with _reporting(batch):
            for each in slices:
                await self.wait_for_space(self._window.permit(len(each), each.payload_bytes))
                self._check()
                now, tick = self._connection.clock()
                driver, core, count = self._driver, self._core, len(each)
                event = each.bind(core.q_id, driver.schema_ids.number, partial(driver.guids.next_many, tick))
                self._connection.core.post_event(core, event, batch, now, report.posted)
                report.posted += count
                report.bytes += each.payload_bytes
                batch.pending += count
                self._connection.transmit_soon()
                await asyncio.sleep(0)
        return report

    def encode_table(
        self,
        table: object,
        value: str,
        properties: Sequence[str],
        guid: str | GuidsOf | None,
        name_row: Callable[[int], str],
    ) -> Iterator[EncodedPosts]:
        """Encode the rows of a table; see :meth:`bmq.Queue.encode_table`."""
        with importing_arrow():
            from bmq.arrow.encoding import encode_table
        return encode_table(
            table,
            value,
            properties,
            guid,
            name_row,
            new=self._driver.core.new_properties,
            compression=self._compression,
            level=self._level,
            threshold=self._threshold,
        )

    async def _post_as_they_come(
        self, items: AsyncIterable[Any], batch: PostBatch, delayed: Delayed | None
    ) -> None:
        """Post each item at once, without waiting for a possibly late next item."""
        connection, window = self._connection, self._window
        async for item in items:
            if window.lines or not (connection.writable and connection.core.posts.has_room):
                await self.wait_for_space(_ONE)
            self._take((item,), 1, batch)
            if batch.late is not None:
                await self._post_late(batch, delayed)
            if not batch.report.posted % _TURN_MESSAGES:
                await asyncio.sleep(0)

    def _take(self, items: Iterable[Any], budget: int, batch: PostBatch) -> bool:
        """Post items, up to a budget of bytes; return whether no items are left."""
        self._check()
        now, tick = self._connection.clock()
        if self._interception is None:
            return self._post_some(items, budget, batch, batch, now, tick)
        seen = self._interception.several(items, budget, tick)
        batch.late = seen.late
        if seen.posts:
            before = batch.report.posted
            observed = self._interception.observe(seen.posts, batch)
            failure: BaseException | None = None
            try:
                self._post_some(seen.messages(), inf, batch, observed, now, tick)
            except BaseException as error:
                failure = error
                raise
            finally:
                observed.made(batch.report.posted - before, failure)
        if seen.failure is not None:
            raise seen.failure
        return seen.complete

    def _post_some(
        self, items: Iterable[Any], budget: float, batch: PostBatch, token: Several, now: float, tick: int
    ) -> bool:
        """Encode and admit items, up to a budget of bytes; return whether no items are left."""
        driver = self._driver
        messages: list[Outgoing] = []
        # Application data of messages different only in data: nearly always all messages.
        run: list[bytes] = []
        run_schema = 0
        ids = driver.schema_ids
        encoder, usual_schema = ids.usual
        simple = not self._compression and driver.core.new_properties
        size = 0
        try:
            for item in items:
                if item.__class__ is PutMessage:
                    if item.delay is not None:
                        batch.late = item
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
                    self._end_run(run, run_schema, messages, tick)
                    message = self._encode(data, properties, guid, tick, compression)
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
                            joined, schema_id = self._with_properties(data, properties)
                            encoder, usual_schema = ids.usual
                        data = joined
                        if len(data) > MAX_APPLICATION_DATA:
                            raise too_large(len(data))
                    if schema_id != run_schema:
                        self._end_run(run, run_schema, messages, tick)
                        run_schema = schema_id
                    run.append(data)
                size += length
                budget -= len(data)
                if budget <= 0:
                    return False
            return True
        finally:
            # Also after an illegal item: earlier items are posted.
            self._end_run(run, run_schema, messages, tick)
            batch.report.bytes += size
            self._admit_many(messages, batch, token, now)

    def _end_run(self, run: list[bytes], schema_id: int, messages: list[Outgoing], tick: int) -> None:
        """Create messages from application data, with all other values equal."""
        if run:
            guids = self._driver.guids.next_list(tick, len(run))
            flags = _WITH_PROPERTIES if schema_id else _PLAIN
            messages += zip(guids, run, repeat(flags), repeat(schema_id), repeat(0), strict=False)
            run.clear()

    def _with_properties(self, data: bytes, properties: Mapping[str, PropertyInput]) -> tuple[bytes, int]:
        """Return a payload behind the properties, in the new encoding, and the schema id."""
        joined, schema_id = self._driver.schema_ids.encode(properties, data)
        if len(joined) > MAX_APPLICATION_DATA:
            raise too_large(len(joined))
        return joined, schema_id

    def _admit_many(self, messages: list[Outgoing], batch: PostBatch, token: Several, now: float) -> None:
        """Add messages to the window."""
        core, connection, report = self._core, self._connection, batch.report
        before = core.unacked
        try:
            connection.core.post_many(core, messages, token, now, report.posted)
        finally:
            accepted = core.unacked - before
            report.posted += accepted
            batch.pending += accepted
            connection.transmit_soon()

    def _check(self) -> None:
        """Raise unless the queue accepts posts."""
        self._driver.check_open()
        self._core.check_posts()

    def _encode(
        self,
        data: bytes,
        properties: Mapping[str, PropertyInput] | None,
        guid: str | None,
        tick: int,
        wanted: Compression | None,
    ) -> Outgoing:
        """Check a message, and return the form for transmission."""
        if not 0 < len(data) <= MAX_APPLICATION_DATA:
            raise wrong_size(len(data))
        driver = self._driver
        raw = driver.guids.next(tick) if guid is None else guid_from_text(guid)
        compression = self._compression
        if wanted is not None:
            check_compression(wanted)
            compression = int(wanted)
        if properties is not None and (
            properties if properties.__class__ is dict else checked_properties(properties)
        ):
            new = driver.core.new_properties
            if new and not compression:
                data, schema_id = self._with_properties(data, properties)
                return raw, data, _WITH_PROPERTIES, schema_id, 0
            if new:
                area, schema_id = driver.schema_ids.encode(properties)
            else:
                area, schema_id = encode_properties(properties, new=False), 0
            data, compression = self._join(data, area, new, compression)
            return raw, data, _WITH_PROPERTIES, schema_id, compression
        if compression:
            data, compression = self._join(data, b"", True, compression)
        return raw, data, _PLAIN, 0, compression

    def _join(self, data: bytes, area: bytes, new: bool, compression: int) -> tuple[bytes, int]:
        if not compression and len(data) + len(area) <= MAX_APPLICATION_DATA:
            return area + data, 0
        return join_application_data(
            data, area, new=new, compression=compression, level=self._level, threshold=self._threshold
        )


@asynccontextmanager
async def _reporting(batch: PostBatch) -> AsyncGenerator[None]:
    """Wait for the outcomes of a batch; an exception of the source carries the report of earlier posts."""
    try:
        yield
    except Exception as error:
        await batch.wait()
        attach_report(error, batch.report)
        raise
    await batch.wait()


def _decoded(slices: Iterable[EncodedPosts]) -> Iterator[PutMessage]:
    """Return the messages of slices, as if posted by the application."""
    for each in slices:
        for payload, properties, guid in each.decoded():
            yield PutMessage(payload, properties, None if guid is None else guid_to_text(guid))
