# SPDX-License-Identifier: Apache-2.0
"""Posts that interceptors see: who is told of their outcomes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bmq.client.interceptors import Hooks, OutgoingMessage, PostOutcome
from bmq.client.message import Ack, FailedPost
from bmq.errors import PostError

if TYPE_CHECKING:
    from bmq.client._posting import PostBatch
    from bmq.client.queue import Queue

__all__ = ["ObservedPost", "ObservedPosts"]


class ObservedPosts:
    """Several posts of a ``post_many``, that interceptors saw together.

    Args:
        hooks: the interceptors.
        queue: where they are posted to.
        posts: what the interceptors see.
        batch: what is told of their outcomes, too.
    """

    __slots__ = ("_batch", "_contexts", "_failures", "_first", "_hooks", "_left", "_outcome", "_queue")

    def __init__(self, hooks: Hooks, queue: Queue, posts: list[OutgoingMessage], batch: PostBatch) -> None:
        self._hooks = hooks
        self._queue = queue
        self._batch = batch
        self._first = batch.report.posted
        self._failures: list[FailedPost] = []
        self._outcome: tuple[int, BaseException | None] = 0, None
        self._left = 0
        self._contexts = hooks.posts(queue, posts)

    def made(self, count: int, error: BaseException | None) -> None:
        """So many of them were posted; ``error`` says why not all."""
        self._outcome = count, error
        self._left = count
        self._settled(0)

    def accepted(self, count: int) -> None:
        """Some were acknowledged."""
        self._batch.accepted(count)
        self._settled(count)

    def failed(self, index: int, error: PostError) -> None:
        """One was not accepted."""
        self._batch.failed(index, error)
        self._failures.append(FailedPost(index - self._first, error))
        self._settled(1)

    def _settled(self, count: int) -> None:
        self._left -= count
        if not self._left:
            posted, error = self._outcome
            failures = tuple(self._failures)
            outcome = PostOutcome(self._queue, posted, posted - len(failures), failures, error)
            self._hooks.outcome(self._contexts, outcome)


class ObservedPost:
    """One post; it is told the outcome as its future would be, also when nobody waits for that any more."""

    __slots__ = ("_contexts", "_future", "_hooks", "_queue")

    def __init__(
        self, hooks: Hooks, queue: Queue, post: OutgoingMessage, future: asyncio.Future[Ack]
    ) -> None:
        self._hooks = hooks
        self._queue = queue
        self._future = future
        self._contexts = hooks.posts(queue, [post])

    def refused(self, error: BaseException) -> None:
        """It could not be posted."""
        self._hooks.outcome(self._contexts, PostOutcome(self._queue, 0, 0, (), error))

    def done(self) -> bool:
        """It wants to hear of the outcome."""
        return False

    def set_result(self, ack: Ack) -> None:
        """It was acknowledged."""
        if not self._future.done():
            self._future.set_result(ack)
        self._hooks.outcome(self._contexts, PostOutcome(self._queue, 1, 1))

    def set_exception(self, error: PostError) -> None:
        """It was not accepted."""
        if not self._future.done():
            self._future.set_exception(error)
        self._hooks.outcome(self._contexts, PostOutcome(self._queue, 1, 0, (FailedPost(0, error),)))
