"""The posting side of a queue: from a payload to a place in the window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bmq.client.message import Ack, FailedPost, PostReport, PutMessage
from bmq.errors import AckStatus, InvalidPayload, PostError, UsageError
from bmq.protocol.events import Outcome
from bmq.protocol.queue import QueueCore
from bmq.subscriptions import tag_properties
from bmq.wire.constants import MAX_APPLICATION_DATA, UNSET_GUID, Compression, PutFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.message import join_application_data
from bmq.wire.properties import PropertyInput, encode_properties

if TYPE_CHECKING:
    from bmq.client.driver import Driver

__all__ = ["PostBatch", "PostFuture", "Poster", "post_error", "settle", "tagged"]

PostFuture = asyncio.Future[Ack]

_PLAIN = int(PutFlags.ACK_REQUESTED)
_WITH_PROPERTIES = int(PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES)
# post_many lets the event loop run after this much: acknowledgements come back while it goes on.
_TURN_MESSAGES = 500
_TURN_BYTES = 512 * 1024


class PostBatch:
    """The outcomes of one ``post_many``, counted.

    Attributes:
        report: what the caller gets.
        pending: how many posts have no outcome yet.
    """

    __slots__ = ("_waiter", "pending", "report")

    def __init__(self) -> None:
        self.report = PostReport()
        self.pending = 0
        self._waiter: asyncio.Future[None] | None = None

    def accepted(self, count: int) -> None:
        """So many posts were acknowledged."""
        self.report.acknowledged += count
        self._settled(count)

    def failed(self, index: int, error: PostError) -> None:
        """One post was not accepted."""
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


def settle(outcomes: list[Outcome]) -> None:
    """Give outcomes to whom they are for; acknowledgements of one batch go in bulk."""
    batch: PostBatch | None = None
    count = 0
    for token, tag, guid, status, queue in outcomes:
        if status is AckStatus.SUCCESS:
            if token is batch:
                count += 1
            elif token.__class__ is PostBatch:
                if batch is not None:
                    batch.accepted(count)
                batch, count = token, 1
            elif not token.done():
                token.set_result(Ack(guid, queue.uri_text))
        elif token.__class__ is PostBatch:
            token.failed(tag, post_error(guid, status, queue))
        elif not token.done():
            token.set_exception(post_error(guid, status, queue))
    if batch is not None:
        batch.accepted(count)


def post_error(guid: bytes, status: AckStatus, queue: QueueCore) -> PostError:
    """Say what became of a post that was not accepted."""
    text = guid_to_text(guid)
    why = _REASONS.get(status, "the broker refused it without saying why")
    return PostError(
        f"message {text} to {queue.uri} was not accepted: {why} ({status.name})",
        status=status,
        guid=text,
        queue_uri=str(queue.uri),
    )


_REASONS = {
    AckStatus.LIMIT_MESSAGES: "the queue or its domain holds as many messages as it may",
    AckStatus.LIMIT_BYTES: "the queue or its domain holds as many bytes as it may",
    AckStatus.STORAGE_FAILURE: "the broker could not store it",
    AckStatus.NOT_READY: "the broker is not ready",
    AckStatus.TIMEOUT: "no answer came for as long as the broker recognises its GUID",
    AckStatus.CANCELED: "its queue or session was closed before an answer came; the broker may have it",
}


def tagged(
    properties: Mapping[str, PropertyInput] | None, tags: Iterable[str]
) -> Mapping[str, PropertyInput] | None:
    """Return properties with tags among them."""
    if not tags:
        return properties
    return {**(properties or {}), **tag_properties(tags)}


class Poster:
    """Posts to one queue."""

    __slots__ = ("_core", "_driver")

    def __init__(self, driver: Driver, core: QueueCore) -> None:
        self._driver = driver
        self._core = core

    def post(
        self,
        payload: bytes | bytearray | memoryview,
        properties: Mapping[str, PropertyInput] | None,
        guid: bytes | None,
    ) -> PostFuture:
        """Post one message; see :meth:`bmq.Queue.post_nowait`."""
        driver = self._driver
        driver.check_open()
        future: PostFuture = driver.loop.create_future()
        self._accept(payload, properties, guid, future, 0, driver.now(), driver.tick())
        driver.wake()
        return future

    async def post_many(self, items: Iterable[Any] | AsyncIterable[Any]) -> PostReport:
        """Post many messages; see :meth:`bmq.Queue.post_many`."""
        batch = PostBatch()
        report = batch.report
        driver, accept = self._driver, self._accept
        asynchronous = isinstance(items, AsyncIterable)
        source: Any = aiter(items) if isinstance(items, AsyncIterable) else iter(items)
        more = True
        while more:
            while not driver.takes_posts:
                await driver.room()
            driver.check_open()
            room, budget = driver.turn(_TURN_MESSAGES, _TURN_BYTES)
            now, tick = driver.now(), driver.tick()
            index = report.posted
            try:
                while room > 0 and budget > 0:
                    if asynchronous:
                        driver.wake()  # what there is so far does not wait for what may come late
                        item: Any = await anext(source, _END)
                        driver.check_open()
                        now, tick = driver.now(), driver.tick()
                    else:
                        item = next(source, _END)
                    if item is _END:
                        more = False
                        break
                    if item.__class__ is PutMessage:
                        properties = tagged(item.properties, item.tags)
                        size = accept(item.data, properties, item.guid, batch, index, now, tick)
                    else:
                        size = accept(item, None, None, batch, index, now, tick)
                    index += 1
                    batch.pending += 1
                    room -= 1
                    budget -= size
                    report.bytes += size
            finally:
                report.posted = index
                driver.wake()
            if more:
                await asyncio.sleep(0)
        await batch.wait()
        return report

    def _accept(
        self,
        payload: Any,
        properties: Mapping[str, PropertyInput] | None,
        guid: bytes | None,
        token: object,
        tag: int,
        now: float,
        tick: int,
    ) -> int:
        """Encode a message and put it in the window; return the payload's size."""
        driver, core = self._driver, self._core
        data = payload if payload.__class__ is bytes else _as_bytes(payload)
        size = len(data)
        if not 0 < size <= MAX_APPLICATION_DATA:
            raise _wrong_size(size)
        if not core.writable:
            raise UsageError(f"queue {core.uri} was not opened for writing: open_queue(..., write=True)")
        if core.suspended:
            raise UsageError(f"queue {core.uri} is suspended: the host is unhealthy")
        flags, schema = _PLAIN, 0
        compression = driver.options.compression
        if properties:
            new = driver.core.new_properties
            area = encode_properties(properties, new=new)
            data, compression = join_application_data(data, area, new=new, compression=compression)
            flags, schema = _WITH_PROPERTIES, int(new)
        elif compression is not Compression.NONE:
            data, compression = join_application_data(data, compression=compression)
        if guid is None:
            guid = driver.guids.next(tick)
        elif len(guid) != 16 or guid == UNSET_GUID:
            raise UsageError("a GUID is 16 bytes that are not all zero")
        driver.core.producer.post(core, guid, data, token, now, tag, flags, schema, compression)
        return size


def _wrong_size(size: int) -> InvalidPayload:
    if not size:
        return InvalidPayload("the payload is empty; BlazingMQ messages have at least one byte")
    return InvalidPayload(
        f"the payload has {size:,} bytes; a message has at most {MAX_APPLICATION_DATA:,} (64 MiB)"
    )


_END = object()


def _as_bytes(payload: Any) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)  # pyright: ignore[reportUnknownArgumentType]
    hint = "; encode it first: text.encode()" if isinstance(payload, str) else ""
    raise InvalidPayload(f"a payload is bytes, not {type(payload).__name__}{hint}")
