"""The posting side of a queue: from a payload to a place in the window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bmq.client.message import Ack, FailedPost, PostReport, PutMessage
from bmq.errors import AckStatus, InvalidPayload, PostError, UsageError
from bmq.protocol.queue import QueueCore
from bmq.subscriptions import tag_properties
from bmq.wire.constants import MAX_APPLICATION_DATA, UNSET_GUID, Compression, PutFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.message import join_application_data
from bmq.wire.properties import PropertyInput, encode_properties

if TYPE_CHECKING:
    from bmq.client.session import Session

__all__ = ["PostBatch", "PostFuture", "Poster", "post_error", "tagged"]

PostFuture = asyncio.Future[Ack]

_PLAIN = int(PutFlags.ACK_REQUESTED)
_WITH_PROPERTIES = int(PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES)
# post_many lets the event loop run after this much: acknowledgements come back while it goes on.
_TURN_MESSAGES = 500
_TURN_BYTES = 512 * 1024


class PostBatch:
    """The outcomes of one ``post_many``, counted."""

    __slots__ = ("_waiter", "outstanding", "report")

    def __init__(self) -> None:
        self.report = PostReport()
        self.outstanding = 0
        self._waiter: asyncio.Future[None] | None = None

    def settle(self, index: int, guid: bytes, status: AckStatus, queue: QueueCore) -> None:
        """Take the outcome of one post."""
        self.outstanding -= 1
        if status is AckStatus.SUCCESS:
            self.report.acknowledged += 1
        else:
            self.report.failures.append(FailedPost(index, post_error(guid, status, queue)))
        if not self.outstanding and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until every post has its outcome."""
        if self.outstanding:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


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

    def __init__(self, session: Session, core: QueueCore) -> None:
        self._session = session
        self._core = core

    def post(
        self,
        payload: bytes | bytearray | memoryview,
        properties: Mapping[str, PropertyInput] | None,
        guid: bytes | None,
    ) -> PostFuture:
        """Post one message; see :meth:`bmq.Queue.post_nowait`."""
        future: PostFuture = self._session.loop.create_future()
        self._accept(payload, properties, guid, future, 0)
        return future

    async def post_many(self, items: Iterable[Any] | AsyncIterable[Any]) -> PostReport:
        """Post many messages; see :meth:`bmq.Queue.post_many`."""
        batch = PostBatch()
        report = batch.report
        session = self._session
        budget = _TURN_BYTES
        accept = self._accept
        asynchronous = isinstance(items, AsyncIterable)
        source: Any = aiter(items) if isinstance(items, AsyncIterable) else iter(items)
        while True:
            item: Any = await anext(source, _END) if asynchronous else next(source, _END)
            if item is _END:
                break
            while not session.takes_posts:
                await session.room()
            if item.__class__ is PutMessage:
                properties = tagged(item.properties, item.tags)
                size = accept(item.data, properties, item.guid, batch, report.posted)
            else:
                size = accept(item, None, None, batch, report.posted)
            batch.outstanding += 1
            report.posted += 1
            report.bytes += size
            budget -= size + 1024
            if budget <= 0:
                budget = _TURN_BYTES
                await asyncio.sleep(0)
        await batch.wait()
        return report

    def _accept(
        self,
        payload: Any,
        properties: Mapping[str, PropertyInput] | None,
        guid: bytes | None,
        token: Any,
        tag: int,
    ) -> int:
        """Encode a message and put it in the window; return the payload's size."""
        session, core = self._session, self._core
        if not core.writable:
            raise UsageError(f"queue {core.uri} was not opened for writing: open_queue(..., write=True)")
        data = payload if payload.__class__ is bytes else _as_bytes(payload)
        size = len(data)
        if not size:
            raise InvalidPayload("the payload is empty; BlazingMQ messages have at least one byte")
        if size > MAX_APPLICATION_DATA:
            raise InvalidPayload(
                f"the payload has {size:,} bytes; a message has at most {MAX_APPLICATION_DATA:,} (64 MiB)"
            )
        if core.suspended:
            raise UsageError(f"queue {core.uri} is suspended: the host is unhealthy")
        session.check_open()
        flags, schema = _PLAIN, 0
        compression = session.options.compression
        if properties:
            new = session.core.new_properties
            area = encode_properties(properties, new=new)
            data, compression = join_application_data(data, area, new=new, compression=compression)
            flags, schema = _WITH_PROPERTIES, int(new)
        elif compression is not Compression.NONE:
            data, compression = join_application_data(data, compression=compression)
        if guid is None:
            guid = session.next_guid()
        elif len(guid) != 16 or guid == UNSET_GUID:
            raise UsageError("a GUID is 16 bytes that are not all zero")
        session.core.post(
            core,
            guid,
            data,
            token,
            session.now(),
            tag,
            flags=flags,
            schema_id=schema,
            compression=compression,
        )
        session.wake()
        return size


_END = object()


def _as_bytes(payload: Any) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)  # pyright: ignore[reportUnknownArgumentType]
    hint = "; encode it first: text.encode()" if isinstance(payload, str) else ""
    raise InvalidPayload(f"a payload is bytes, not {type(payload).__name__}{hint}")
