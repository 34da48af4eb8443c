# SPDX-License-Identifier: Apache-2.0
"""Requests: messages answered with a reply, and the failure of a request as a message.

A reply with the property ``bmq_error`` is a failure. The payload is a JSON object with the members ``type``,
``title``, ``detail`` and ``retryable``, and ``bmq_content_type`` is ``application/problem+json``. A failure
with another payload, from a service in another language, has the members of ``bmq_error``: ``type: detail``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, cast

from bmq import _world
from bmq._json import orjson
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._loop import within
from bmq._turn import look_at, wait_done
from bmq.client.message import Message
from bmq.client.posts import PutMessage
from bmq.conventions import CANCEL, CONTENT_TYPE, DEADLINE, ERROR, PREFIX, REPLY_TO, REQUEST, REQUESTER
from bmq.errors import Error, ProtocolError, RequestFailed, SessionClosed, TimedOut, request_failed
from bmq.wire.constants import PropertyType
from bmq.wire.printable import bounded, error_text, printable
from bmq.wire.properties import PropertyInput, PropertyValue
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.client.session import Session

__all__ = ["PROBLEM", "Requests", "deadline", "failure_of", "problem_of"]

#: Content type of the payload of a failure.
PROBLEM: Final = "application/problem+json"

#: Deadline of the current request in seconds since 1970: set by a responder, as a limit for nested requests.
deadline: ContextVar[float | None] = ContextVar("bmq_deadline", default=None)


_log = LogLimit(Log("bmq.client", later=True))


class Requests:
    """The open requests and the reply queues of a session.

    Args:
        session: session of the requests.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._id = _world.token_hex(8)
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._inboxes: dict[str, asyncio.Task[None]] = {}
        self._readers: list[asyncio.Task[None]] = []

    async def request(
        self,
        queue: Queue,
        data: bytes,
        properties: Mapping[str, PropertyInput] | None,
        timeout: float,
        reply_to: str | None,
    ) -> Message:
        """Post a request and wait for the reply; see :meth:`bmq.Queue.request`."""
        until = _world.time() + timeout
        if (outer := deadline.get()) is not None and outer < until:
            until, timeout = outer, outer - _world.time()
            if timeout <= 0:
                raise TimedOut("the requester no longer waits: its deadline has passed")
        guid = _world.token_hex(16).upper()
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[guid] = reply
        posted = False
        try:
            async with within(timeout, f"a request to {queue.uri} was not answered"):
                inbox = await self._inbox(queue, reply_to)
                added: dict[str, PropertyInput] = {
                    REPLY_TO: inbox,
                    REQUESTER: self._id,
                    DEADLINE: PropertyValue(PropertyType.INT64, int(until * 1000)),
                }
                posted = True
                await queue.post(data, properties={**(properties or {}), **added}, guid=guid)
                message = await reply
        except asyncio.CancelledError:
            if posted:
                self._cancel(queue, guid)
            raise
        finally:
            del self._waiting[guid]
            reply.cancel()
        if (failure := failure_of(message, guid, queue.uri)) is not None:
            raise failure
        return message

    def _cancel(self, queue: Queue, guid: str) -> None:
        """Cancel a request at the responder, if possible now."""
        try:
            future = queue.post_nowait(b"cancel", properties={CANCEL: guid})
        except Error:
            return  # the deadline ends the request, too
        future.add_done_callback(look_at)

    async def _inbox(self, queue: Queue, shared: str | None) -> str:
        """Return the URI of the reply queue. The first call opens the queue."""
        if shared is None:
            domain = QueueUri.parse(queue.uri).canonical.rpartition("/")[0]
            uri, expression = f"{domain}/replies.{self._id}", ""
        else:
            uri, expression = QueueUri.parse(shared).canonical, f'{REQUESTER} == "{self._id}"'
        opening = self._inboxes.get(uri)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            self._inboxes[uri] = opening = asyncio.create_task(self._open(uri, expression))
            opening.add_done_callback(look_at)
        await wait_done(opening)
        opening.result()
        return uri

    async def _open(self, uri: str, expression: str) -> None:
        queue = await self._session.open_queue(
            uri, read=True, default_subscription=False, subscriptions=[expression]
        )
        reader = asyncio.create_task(self._read(uri, queue), name=f"replies of {uri}")
        self._readers.append(reader)

    async def _read(self, uri: str, queue: Queue) -> None:
        """Pass each reply to the caller; drop late and duplicate replies."""
        (consumer,) = queue.consumers
        error: Error = SessionClosed(f"the queue for replies, {uri}, was closed")
        try:
            async for message in consumer:
                message.confirm()
                try:
                    request = message.properties.get(REQUEST)
                    waiting = self._waiting.get(request) if isinstance(request, str) else None
                except ProtocolError as unreadable:
                    _log.error(
                        "unreadable",
                        "a reply in %s cannot be read, and was discarded: %s",
                        uri,
                        printable(unreadable),
                    )
                    continue
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
        except Error as failure:
            error = failure
        finally:
            self._inboxes.pop(uri, None)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)


def problem_of(error: BaseException) -> PutMessage:
    """Return the reply for an exception of a responder."""
    if isinstance(error, RequestFailed):
        kind, title, detail = error.type, error.title, error.detail or error.title
    else:
        kind, _, detail = error_text(error).partition(": ")
        title = ""
    problem: dict[str, object] = {"type": bounded(str(kind))}
    if title:
        problem["title"] = bounded(str(title))
    problem["detail"] = bounded(str(detail))
    problem["retryable"] = isinstance(error, Error) and error.retryable
    own = error.properties if isinstance(error, RequestFailed) else {}
    text = bounded(f"{kind}: {detail}")
    return PutMessage(orjson.dumps(problem), {**own, CONTENT_TYPE: PROBLEM, ERROR: text})


def failure_of(reply: Message, guid: str, queue_uri: str) -> RequestFailed | None:
    """Return the failure in a reply; None if the reply is not a failure.

    Args:
        reply: the reply.
        guid: GUID of the request.
        queue_uri: URI of the queue of the request.

    Raises:
        ProtocolError: the properties cannot be parsed.
    """
    properties = reply.properties
    if (error := properties.get(ERROR)) is None:
        return None
    kind, _, detail = bounded(str(error)).partition(": ")
    found = _members(reply) if properties.get(CONTENT_TYPE) == PROBLEM else {}
    return request_failed(
        bounded(_text(found, "detail", detail)),
        problem=bounded(_text(found, "type", kind)),
        title=bounded(_text(found, "title", "")),
        retryable=found.get("retryable") is True,
        properties={name: value for name, value in properties.items() if not name.startswith(PREFIX)},
        guid=guid,
        queue_uri=queue_uri,
    )


def _members(reply: Message) -> dict[str, Any]:
    """Return the members of a problem; none if the payload is not a JSON object."""
    try:
        found: object = orjson.loads(reply.data)
    except (ValueError, ProtocolError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _text(members: dict[str, Any], name: str, otherwise: str) -> str:
    """Return a member; a member of another type than text counts as missing."""
    found = members.get(name)
    return found if isinstance(found, str) else otherwise
