# SPDX-License-Identifier: Apache-2.0
"""The outcomes of posts: the receivers, and the form for each receiver."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from bmq.client.posts import Ack, FailedPost, PostReport, PutMessage
from bmq.errors import AckStatus, Error, PostError
from bmq.protocol.client.events import Acked
from bmq.wire.guid import guid_to_text

if TYPE_CHECKING:
    from bmq.protocol.client.core import ClientCore
    from bmq.protocol.client.queue import QueueCore

__all__ = ["PostBatch", "PostFuture", "Several", "Single", "fail", "post_error", "settle"]

PostFuture = asyncio.Future[Ack]


class Single(Protocol):
    """The receiver of the outcome of a single post, like a future."""

    def done(self) -> bool:
        """Whether the outcome is no longer wanted."""
        ...

    def set_result(self, result: Ack, /) -> None:
        """Report the broker's acceptance of the post."""
        ...

    def set_exception(self, exception: PostError, /) -> None:
        """Report a post without an acceptance."""
        ...


class Several:
    """The receiver of the outcomes of posts in a group: the number of accepted posts, and each failure."""

    __slots__ = ()

    @abstractmethod
    def accepted(self, count: int) -> None:
        """Count acknowledged posts."""

    @abstractmethod
    def failed(self, index: int, error: PostError) -> None:
        """Record a post without an acceptance."""


class PostBatch(Several):
    """The outcomes of one ``post_many``, counted.

    Attributes:
        report: the result for the caller.
        pending: number of posts without an outcome.
        late: a delayed message, to be posted to the delay queue by the caller.
    """

    __slots__ = ("_waiter", "late", "pending", "report")

    def __init__(self) -> None:
        self.report = PostReport()
        self.pending = 0
        self.late: PutMessage | None = None
        self._waiter: asyncio.Future[None] | None = None

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

    async def wait(self) -> None:
        """Wait until every post has an outcome."""
        if self.pending:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


def fail(post: Single, error: PostError) -> None:
    """Report a post without an acceptance to its receiver."""
    post.set_exception(error)
    if error.status is AckStatus.CANCELED and isinstance(post, asyncio.Future):
        # The log has the number of these posts once. Without this call, asyncio would log each of them.
        post.exception()


def settle(acked: Acked, core: ClientCore) -> None:
    """Pass outcomes to the future of each post, and count them for each ``post_many``.

    The core knows the error of the connection.
    """
    # The tokens are of type Single or Several. A call of cast() for each post would take measurable time.
    outcomes: list[Any] = acked.outcomes
    for token, tag, guid, status, queue in outcomes:
        if status is AckStatus.SUCCESS:
            # Posts with a common outcome are counted below.
            if not token.done():
                token.set_result(Ack(guid, queue.uri_text))
            continue
        # A post given up on a live connection has another cause.
        dead = status is AckStatus.TIMEOUT or not core.connected
        error = post_error(guid, status, queue, core.trouble if dead else None, acked.strange)
        if isinstance(token, Several):
            token.failed(tag, error)
        elif not token.done():
            fail(token, error)
    accepted: list[Any] = acked.accepted
    for several, count in accepted:
        several.accepted(count)


def post_error(
    guid: bytes,
    status: AckStatus,
    queue: QueueCore,
    trouble: Error | None = None,
    strange: Mapping[bytes, int] | None = None,
) -> PostError:
    """Return the error for a rejected post.

    Args:
        guid: GUID of the post.
        status: outcome of the post.
        queue: destination of the post.
        trouble: error of the connection, for posts without an answer.
        strange: the broker's numbers for unknown statuses, by GUID.
    """
    text = guid_to_text(guid)
    why = _REASONS.get(status, "the broker gave no reason")
    cause = trouble if status in _UNANSWERED else None
    if cause is not None:
        why += f"; {cause}"
    elif strange is not None and guid in strange:
        why = f"the broker answered with status {strange[guid]}, which this version of bmq does not know"
    error = PostError(
        f"message {text} to {queue.uri} was not accepted: {why} ({status.name})",
        status=status,
        guid=text,
        queue_uri=str(queue.uri),
    )
    error.__cause__ = cause
    return error


# Statuses from the client itself: no answer arrived.
_UNANSWERED = frozenset({AckStatus.TIMEOUT, AckStatus.CANCELED})


_REASONS = {
    AckStatus.UNKNOWN: "the broker gave no reason, and may have stored the message",
    AckStatus.LIMIT_MESSAGES: "the queue or its domain has reached its limit of messages",
    AckStatus.LIMIT_BYTES: "the queue or its domain has reached its limit of bytes",
    AckStatus.STORAGE_FAILURE: "the broker could not store the message",
    AckStatus.NOT_READY: "the broker is not ready",
    AckStatus.INVALID_ARGUMENT: "the message could not be encoded and was not sent; the log has the error",
    AckStatus.TIMEOUT: "no answer arrived within the time for which the broker recognises the GUID",
    AckStatus.CANCELED: (
        "the queue or session was closed before an answer arrived; the broker may have stored the message"
    ),
}
