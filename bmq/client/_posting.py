# SPDX-License-Identifier: Apache-2.0
"""The posting side of a queue: from a payload to a place in the window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from bmq import _checks
from bmq.client._observing import ObservedPost, ObservedPosts
from bmq.client.interceptors import Hooks, OutgoingMessage
from bmq.client.message import Ack, FailedPost, GuidsOf, PostReport, PutMessage
from bmq.conventions import BUCKET
from bmq.engine.options import check_compression
from bmq.engine.room import Want
from bmq.errors import AckStatus, Error, InvalidPayload, InvalidProperty, PostError
from bmq.protocol.client.events import Acked
from bmq.protocol.client.ports import PostTarget
from bmq.protocol.client.queue import QueueCore
from bmq.wire.constants import MAX_APPLICATION_DATA, Compression, PutFlags
from bmq.wire.guid import guid_from_text, guid_to_text
from bmq.wire.keys import Key, key_bucket
from bmq.wire.message import join_application_data, too_large
from bmq.wire.properties import NOT_OF_THE_SCHEMA, PropertyInput, encode_properties
from bmq.wire.put import Outgoing

if TYPE_CHECKING:
    from bmq.client._end import QueueEnd
    from bmq.client.queue import Queue
    from bmq.engine.driver import Driver
    from bmq.protocol.client.core import ClientCore
    from bmq.wire.table import EncodedPosts

__all__ = [
    "NO_TAGS",
    "ObservedPoster",
    "PostBatch",
    "PostFuture",
    "Poster",
    "Settler",
    "as_bytes",
    "checked_properties",
    "completed",
    "post_error",
]

PostFuture = asyncio.Future[Ack]

#: The default of ``tags``: a post with this very tuple has none, and nothing looks at it.
NO_TAGS: tuple[str, ...] = ()

_PLAIN = int(PutFlags.ACK_REQUESTED)
_WITH_PROPERTIES = int(PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES)
# post_many lets the event loop run after this much: acknowledgements are handled while it goes on. Either
# takes a millisecond or two; what a turn costs besides, and caches that a write has emptied, are shared.
_TURN_MESSAGES = 500
_TURN_BYTES = 4 * 1024 * 1024
# Room for a post whose size is not known yet.
_ONE = Want(1, 1, 1)


#: Returns what posts a message with a delay, and the message to post instead.
Delayed: TypeAlias = "Callable[[PutMessage], Awaitable[tuple[Poster, PutMessage]]]"


class PostBatch:
    """The outcomes of one ``post_many``, counted.

    Attributes:
        report: what the caller gets.
        pending: how many posts have no outcome yet.
        delayed: see :meth:`Poster.post_many`.
        late: a message with a delay, which the caller posts to the queue of delayed messages.
    """

    __slots__ = ("_waiter", "delayed", "late", "pending", "report")

    def __init__(self, delayed: Delayed | None = None) -> None:
        self.delayed = delayed
        self.report = PostReport()
        self.pending = 0
        self.late: PutMessage | None = None
        self._waiter: asyncio.Future[None] | None = None

    def accepted(self, count: int) -> None:
        """Count posts that were acknowledged."""
        self.report.acknowledged += count
        self._settled(count)

    def failed(self, index: int, error: PostError) -> None:
        """Note that one post was not accepted."""
        self.report.failures.append(FailedPost(index, error))
        self._settled(1)

    def _settled(self, count: int) -> None:
        self.pending -= count
        if not self.pending and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until every post has its outcome."""
        if self.pending:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


# A post that is told its outcome alone, and posts that are told theirs as numbers and failures.
_Single: TypeAlias = "PostFuture | ObservedPost"
_Several: TypeAlias = "PostBatch | ObservedPosts"
_SEVERAL = (PostBatch, ObservedPosts)


class Settler:
    """Gives each post's future its outcome, and each ``post_many`` its numbers (see Receipts).

    Attributes:
        ack: makes the result of a post that was accepted.
    """

    __slots__ = ("ack",)

    def __init__(self) -> None:
        self.ack = Ack

    def settle(self, acked: Acked, core: ClientCore) -> None:
        """Posts have their outcomes; the core knows the error of the connection."""
        for token, tag, guid, status, queue in cast("list[_Outcome]", acked.outcomes):
            if status is AckStatus.SUCCESS:
                single = cast("_Single", token)  # several are told of acceptances by their number
                if not single.done():
                    single.set_result(Ack(guid, queue.uri_text))
                continue
            # A post that is given up on a live connection has another cause.
            dead = status is AckStatus.TIMEOUT or not core.connected
            error = post_error(guid, status, queue, core.trouble if dead else None, acked.strange)
            if isinstance(token, _SEVERAL):
                token.failed(tag, error)
            elif not token.done():
                token.set_exception(error)
        for several, count in cast("list[tuple[_Several, int]]", acked.accepted):
            several.accepted(count)


_Outcome: TypeAlias = "tuple[_Single | _Several, int, bytes, AckStatus, PostTarget]"


def post_error(
    guid: bytes,
    status: AckStatus,
    queue: PostTarget,
    trouble: Error | None = None,
    strange: Mapping[bytes, int] | None = None,
) -> PostError:
    """Return the error for a post that was not accepted.

    Args:
        guid: the post's GUID.
        status: its outcome.
        queue: where it was posted to.
        trouble: the error of the connection, for posts without an answer.
        strange: numbers of the broker that are no status here, by GUID.
    """
    text = guid_to_text(guid)
    why = _REASONS.get(status, "the broker refused it without saying why")
    cause = trouble if status in _UNANSWERED else None
    if cause is not None:
        why += f"; {cause}"
    elif strange is not None and guid in strange:
        why = f"the broker answered with status {strange[guid]}, which this version does not know"
    error = PostError(
        f"message {text} to {queue.uri} was not accepted: {why} ({status.name})",
        status=status,
        guid=text,
        queue_uri=str(queue.uri),
    )
    error.__cause__ = cause
    return error


# These are made here: no answer came.
_UNANSWERED = frozenset({AckStatus.TIMEOUT, AckStatus.CANCELED})


_REASONS = {
    AckStatus.LIMIT_MESSAGES: "the queue or its domain holds as many messages as it may",
    AckStatus.LIMIT_BYTES: "the queue or its domain holds as many bytes as it may",
    AckStatus.STORAGE_FAILURE: "the broker could not store it",
    AckStatus.NOT_READY: "the broker is not ready",
    AckStatus.INVALID_ARGUMENT: "it could not be encoded, and was not sent; the log has the error",
    AckStatus.TIMEOUT: "no answer came for as long as the broker recognises its GUID",
    AckStatus.CANCELED: "its queue or session was closed before an answer came; the broker may have it",
}


def completed(
    properties: Mapping[str, PropertyInput] | None, tags: Iterable[str], key: Key | None
) -> Mapping[str, PropertyInput] | None:
    """Return properties with tags and the bucket of a key among them."""
    from bmq.subscriptions import tag_properties

    added: dict[str, PropertyInput] = dict(tag_properties(tags))
    if key is not None:
        added[BUCKET] = key_bucket(key)
    return {**checked_properties(properties), **added} if added else properties


def checked_properties(properties: Mapping[str, PropertyInput] | None) -> Mapping[str, PropertyInput]:
    """Return properties; none for None. Names and values are checked when they are encoded.

    Raises:
        InvalidProperty: the value is no mapping.
    """
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidProperty(f"properties are values by name, in a mapping, not {_checks.shown(properties)}")
    return properties


class Poster:
    """Posts to one queue."""

    __slots__ = ("_compression", "_connection", "_core", "_driver", "_level", "_room", "_threshold")

    def __init__(self, driver: Driver[QueueEnd], core: QueueCore, compression: Compression | None) -> None:
        self._driver = driver
        self._connection = driver.connection
        self._room = driver.flow.room
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
        self._driver.check_open()
        tick = connection.turn[1] if connection.scheduled else connection.monotonic_ns() - connection.epoch
        data = payload if type(payload) is bytes else as_bytes(payload)
        message = self._prepare(data, properties, guid, tick, compression)
        if connection.alone:
            alone = connection.post_alone(self._core, message)
            if alone is not None:
                return alone
        raw, data, flags, schema_id, packing = message
        now = connection.turn[0] if connection.scheduled else connection.loop.time()
        future: PostFuture = connection.loop.create_future()
        connection.core.post(self._core, raw, data, future, now, 0, flags, schema_id, packing)
        if not connection.scheduled:
            connection.transmit_soon()
        return future

    async def post_many(
        self, items: Iterable[Any] | AsyncIterable[Any], delayed: Delayed | None = None
    ) -> PostReport:
        """Post many messages; see :meth:`bmq.Queue.post_many`.

        Args:
            items: payloads and messages.
            delayed: returns what posts a message with a delay, and the message to post.
        """
        batch = PostBatch(delayed)
        if isinstance(items, AsyncIterable):
            await self._post_as_they_come(items, batch)
        else:
            await self._post_all(iter(items), batch)
        await batch.wait()
        return batch.report

    async def _post_all(self, items: Iterator[Any], batch: PostBatch) -> None:
        while True:
            await self._driver.room(self._core, self._room.many(_TURN_MESSAGES, _TURN_BYTES))
            messages, size = self._room.left(self._core)
            room, budget = min(messages, _TURN_MESSAGES), min(size, _TURN_BYTES)
            before = batch.report.posted
            if self._take(islice(items, room), budget, batch) and batch.report.posted - before < room:
                break
            if batch.late is not None:
                await self._post_late(batch)
            await asyncio.sleep(0)

    async def _post_late(self, batch: PostBatch) -> None:
        """Post the message with a delay that ended a turn, as the next one of its batch."""
        message, batch.late = batch.late, None
        assert message is not None
        assert batch.delayed is not None
        poster, message = await batch.delayed(message)
        await poster._driver.room(poster._core, _ONE)
        poster._take((message,), 1, batch)

    async def post_encoded(self, slices: Iterable[EncodedPosts]) -> PostReport:
        """Post messages that are encoded already; see :meth:`bmq.Queue.post_encoded`."""
        batch = PostBatch()
        report = batch.report
        for each in slices:
            await self._driver.room(self._core, self._room.many(len(each), each.payload_bytes))
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
        await batch.wait()
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
        try:
            from bmq.wire.table import EncodedPosts, TableEncoder, guids_in, stream_of
        except ModuleNotFoundError as error:
            if error.name not in ("numpy", "pyarrow"):
                raise
            raise ModuleNotFoundError(
                f"tables need {error.name}, which is not installed: pip install 'bmq[arrow]'", name=error.name
            ) from error
        reader = stream_of(table)
        new = self._driver.core.new_properties
        encoder = TableEncoder(reader.schema, value, properties, new=new, name_row=name_row)
        at = encoder.find(guid) if isinstance(guid, str) else 0
        first = 0
        for batch in reader:
            for start, messages, payload_bytes, part in encoder.slices(batch, first):
                rows = messages.rows()
                guids: Any
                if isinstance(guid, str):
                    guids = guids_in(part.column(at), guid, start, name_row)
                else:
                    guids = guid(rows) if guid is not None else None
                yield EncodedPosts.of(
                    messages,
                    rows,
                    payload_bytes,
                    guids=guids,
                    new=new,
                    compression=self._compression,
                    level=self._level,
                    threshold=self._threshold,
                )
            first += batch.num_rows

    async def _post_as_they_come(self, items: AsyncIterable[Any], batch: PostBatch) -> None:
        """Post each item as it comes, without waiting for the next, which may come late."""
        connection, room = self._connection, self._room
        async for item in items:
            if room.lines or not (connection.writable and connection.core.posts.has_room):
                await self._driver.room(self._core, _ONE)
            self._take((item,), 1, batch)
            if batch.late is not None:
                await self._post_late(batch)
            if not batch.report.posted % _TURN_MESSAGES:
                await asyncio.sleep(0)

    def _take(self, items: Iterable[Any], budget: int, batch: PostBatch) -> bool:
        """Post items, up to a budget of bytes; return whether these were all of them."""
        self._check()
        driver = self._driver
        now, tick = self._connection.clock()
        messages: list[Outgoing] = []
        # Application data of messages that are alike in all the rest: nearly always all of them are.
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
                    message = self._prepare(data, properties, guid, tick, compression)
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
            # Also when an item is not legal: those before it are posted.
            self._end_run(run, run_schema, messages, tick)
            batch.report.bytes += size
            self._accept(messages, batch, batch, now)

    def _end_run(self, run: list[bytes], schema_id: int, messages: list[Outgoing], tick: int) -> None:
        """Make messages of application data that differ in nothing else."""
        if run:
            guids = self._driver.guids.next_list(tick, len(run))
            flags = _WITH_PROPERTIES if schema_id else _PLAIN
            messages += zip(guids, run, repeat(flags), repeat(schema_id), repeat(0), strict=False)
            run.clear()

    def _with_properties(self, data: bytes, properties: Mapping[str, PropertyInput]) -> tuple[bytes, int]:
        """Return a payload behind its properties, in the new encoding, and their schema id."""
        joined, schema_id = self._driver.schema_ids.encode(properties, data)
        if len(joined) > MAX_APPLICATION_DATA:
            raise too_large(len(joined))
        return joined, schema_id

    def _accept(self, messages: list[Outgoing], batch: PostBatch, token: object, now: float) -> None:
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
        """Raise unless the queue can be posted to."""
        self._driver.check_open()
        self._core.check_posts()

    def _prepare(
        self,
        data: bytes,
        properties: Mapping[str, PropertyInput] | None,
        guid: str | None,
        tick: int,
        wanted: Compression | None,
    ) -> Outgoing:
        """Check a message and bring it into the form in which it travels."""
        if not 0 < len(data) <= MAX_APPLICATION_DATA:
            raise _wrong_size(len(data))
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


class ObservedPoster(Poster):
    """Posts to a queue under the eyes of interceptors, which see messages: tables are posted as these."""

    __slots__ = ("_hooks", "_queue")

    def __init__(
        self,
        driver: Driver[QueueEnd],
        core: QueueCore,
        compression: Compression | None,
        queue: Queue,
        hooks: Hooks,
    ) -> None:
        super().__init__(driver, core, compression)
        self._hooks = hooks
        self._queue = queue

    def post(
        self,
        payload: bytes | bytearray | memoryview,
        properties: Mapping[str, PropertyInput] | None,
        guid: str | None,
        compression: Compression | None,
    ) -> PostFuture:
        """Post one message; see :meth:`bmq.Queue.post_nowait`."""
        connection = self._connection
        self._check()
        now, tick = connection.clock()
        data = payload if isinstance(payload, bytes) else as_bytes(payload)
        post = self._seen(data, properties, guid, tick)
        future: PostFuture = connection.loop.create_future()
        observed = ObservedPost(self._hooks, self._queue, post, future)
        try:
            raw, data, flags, schema_id, packing = self._prepare(
                data, post.properties, post.guid, tick, compression
            )
            connection.core.post(self._core, raw, data, observed, now, 0, flags, schema_id, packing)
        except BaseException as error:
            observed.refused(error)
            raise
        connection.transmit_soon()
        return future

    async def post_encoded(self, slices: Iterable[EncodedPosts]) -> PostReport:
        """Post messages that are encoded already; see :meth:`bmq.Queue.post_encoded`."""
        return await self.post_many(
            PutMessage(payload, properties, None if guid is None else guid_to_text(guid))
            for each in slices
            for payload, properties, guid in each.decoded()
        )

    def _seen(
        self, data: bytes, properties: Mapping[str, PropertyInput] | None, guid: str | None, tick: int
    ) -> OutgoingMessage:
        text = guid_to_text(self._driver.guids.next(tick) if guid is None else guid_from_text(guid))
        return OutgoingMessage(data, dict(checked_properties(properties)), text)

    def _take(self, items: Iterable[Any], budget: int, batch: PostBatch) -> bool:
        self._check()
        now, tick = self._connection.clock()
        posts: list[OutgoingMessage] = []
        packing: list[Compression | None] = []
        failure: BaseException | None = None
        all_of_them = True
        try:
            for item in items:
                if item.__class__ is PutMessage and item.delay is not None:
                    batch.late = item
                    all_of_them = False
                    break
                data, properties, guid, compression = _parts(item)
                posts.append(self._seen(data, properties, guid, tick))
                packing.append(compression)
                budget -= len(data)
                if budget <= 0:
                    all_of_them = False
                    break
        except BaseException as error:
            failure = error
        if posts:
            try:
                self._post(posts, packing, batch, now, tick)
            except BaseException as error:
                failure = error
        if failure is not None:
            raise failure
        return all_of_them

    def _post(
        self,
        posts: list[OutgoingMessage],
        packing: list[Compression | None],
        batch: PostBatch,
        now: float,
        tick: int,
    ) -> None:
        """Post what was taken."""
        report = batch.report
        before = report.posted
        observed = ObservedPosts(self._hooks, self._queue, posts, batch)
        failure: BaseException | None = None
        messages: list[Outgoing] = []
        try:
            try:
                for post, compression in zip(posts, packing, strict=True):
                    message = self._prepare(post.data, post.properties, post.guid, tick, compression)
                    messages.append(message)
                    report.bytes += len(post.data)
            finally:
                self._accept(messages, batch, observed, now)
        except BaseException as error:
            failure = error
            raise
        finally:
            observed.made(report.posted - before, failure)


def _parts(
    item: Any,
) -> tuple[bytes, Mapping[str, PropertyInput] | None, str | None, Compression | None]:
    """What an item of ``post_many`` consists of."""
    if item.__class__ is PutMessage:
        data, guid, compression = item.data, item.guid, item.compression
        properties = item.properties
        if item.tags is not NO_TAGS or item.key is not None:
            properties = completed(properties, item.tags, item.key)
    else:
        data, properties, guid, compression = item, None, None, None
    return data if data.__class__ is bytes else as_bytes(data), properties, guid, compression


def _wrong_size(size: int) -> InvalidPayload:
    if not size:
        return InvalidPayload("the payload is empty; BlazingMQ messages have at least one byte")
    return InvalidPayload(
        f"the payload has {size:,} bytes; a message has at most {MAX_APPLICATION_DATA:,} (64 MiB)"
    )


def as_bytes(payload: object) -> bytes:
    """Return a payload as bytes.

    Raises:
        InvalidPayload: it is none.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return _checks.octets("payload", payload)  # pyright: ignore[reportUnknownArgumentType]
    hint = "; encode it first: text.encode()" if isinstance(payload, str) else ""
    raise InvalidPayload(f"a payload is bytes, not {type(payload).__name__}{hint}")
