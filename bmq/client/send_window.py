# SPDX-License-Identifier: Apache-2.0
"""The window of unacknowledged posts, for tasks: waiting for space, and waiting for outcomes.

The queues of a session share a window. Three guarantees hold.

- **First come, first served.** The tasks waiting to post to a queue form a line. A later post to the same
  queue joins the line even if the window has space again: the space is reserved for earlier tasks.
- **A queue without acknowledgements does not stop the other queues.** Each queue open for writing has an
  equal share of the window, and may use the share while the window as a whole is full. All queues together
  hold less than twice the window, or one post each if the queues outnumber the places.
- **The cost of a place in line does not depend on the length of the line**: to join, to leave, and to be
  served. Space for 100 posts wakes 100 tasks. Waking all of 10,000 tasks would send 9,900 back into the line.

The space of a woken task is reserved until the task has run. If cancelled, or without a post, a woken task
passes the space to the next task.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from bmq.errors import BufferFull
from bmq.protocol.client.queue import QueueCore

if TYPE_CHECKING:
    from bmq.client.connection import Connection

__all__ = ["Permit", "SendWindow"]


class Permit(NamedTuple):
    """The space needed by a waiting task.

    Attributes:
        messages: number of messages to fit.
        bytes: number of bytes to fit. The last message may exceed the limit, so 1 is enough for a post.
        reserve: number of bytes to reserve for the task after the wake-up.
    """

    messages: int
    bytes: int
    reserve: int


_NO_PERMIT: Final = Permit(0, 0, 0)


class _SendLine:
    """The tasks waiting to post to a queue.

    Attributes:
        waiters: futures in the order of arrival, each with the needed space.
        messages: number of messages reserved for woken tasks still to run.
        bytes: number of bytes reserved for woken tasks still to run.
    """

    __slots__ = ("bytes", "messages", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[asyncio.Future[None], Permit] = OrderedDict()
        self.messages = 0
        self.bytes = 0


class _FlushWaiters:
    """The tasks waiting for the outcomes of the posts to a queue.

    Attributes:
        first_batch: number of the queue's first posts without an outcome.
        waiters: for each task, in the order of arrival, the number of the last awaited posts.
    """

    __slots__ = ("first_batch", "waiters")

    def __init__(self, first_batch: int) -> None:
        self.first_batch = first_batch
        self.waiters: OrderedDict[asyncio.Future[None], int] = OrderedDict()

    def wake(self, before: int | None = None) -> None:
        """Wake the tasks waiting for posts with lower numbers; all tasks if None."""
        waiters = self.waiters
        while waiters:
            waiter = next(iter(waiters))
            if before is not None and waiters[waiter] >= before:
                break
            del waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)


# Placeholder for the line of a queue without waiting tasks.
_NO_LINE: Final = _SendLine()


class SendWindow:
    """Distributes the space in the window of unacknowledged posts, and reports outcomes to waiting tasks.

    Args:
        connection: connection of the session; no space is available while the transport is full.

    Attributes:
        queues: number of queues open for writing.
        lines: queues with waiting tasks, or with woken tasks still to run; read-only.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._posts = connection.core.posts
        self._max_messages = connection.options.max_unacked_messages
        self._max_bytes = connection.options.max_unacked_bytes
        # Reserved for woken tasks of all lines still to run.
        self._messages = 0
        self._bytes = 0
        self._over = False
        self._checking = False
        self._flushes: dict[QueueCore, _FlushWaiters] = {}
        self.queues = 0
        self.lines: OrderedDict[QueueCore, _SendLine] = OrderedDict()

    # space

    def is_free(self, queue: QueueCore) -> bool:
        """Whether a post to a queue may be made at once: the window has space, and no task is waiting."""
        return queue not in self.lines and self._fits(queue, _NO_LINE, 1, 1)

    def full_error(self, queue: QueueCore) -> BufferFull:
        """Return the error for the full window."""
        waiting = ", and other tasks wait to post to this queue" if queue in self.lines else ""
        return BufferFull(
            f"{len(self._posts):,} posts ({self._posts.bytes:,} bytes) have no outcome yet{waiting}; the "
            f"session allows {self._max_messages:,} ({self._max_bytes:,} bytes). "
            "'await queue.post(...)' waits for room"
        )

    def left(self, queue: QueueCore) -> tuple[int, int]:
        """Return the number of messages and bytes that may be posted to a queue at once; at least 1."""
        line = self.lines.get(queue, _NO_LINE)
        messages = self._max_messages - len(self._posts) - self._messages
        size = self._max_bytes - self._posts.bytes - self._bytes
        own_messages, own_size = self._share()
        own_messages -= queue.unacked + line.messages
        own_size -= queue.unacked_bytes + line.bytes
        if min(messages, size) <= 0 or (own_messages > messages and own_size > size):
            messages, size = own_messages, own_size
        return max(messages, 1), max(size, 1)

    def permit(self, messages: int, size: int) -> Permit:
        """Return the space worth waiting for when many messages are posted: at most half a share.

        A single event with many posts costs less than many events.
        """
        own_messages, own_size = self._share()
        messages, size = max(min(messages, own_messages // 2), 1), max(min(size, own_size // 2), 1)
        return Permit(messages, size, size)

    async def acquire(self, queue: QueueCore, permit: Permit) -> None:
        """Wait in line until a post may be made. The caller then posts without awaiting.

        Cancelling the call leaves the line.
        """
        if self._connection.writable and self.is_free(queue):
            return
        queue.counts.waited()
        line = self.lines.get(queue)
        if line is None:
            line = self.lines[queue] = _SendLine()
        waiter: asyncio.Future[None] = self._connection.loop.create_future()
        line.waiters[waiter] = permit
        self._serve(queue, line)
        try:
            await waiter
        except asyncio.CancelledError:
            line.waiters.pop(waiter, None)
            self._release(queue, line, _NO_PERMIT if waiter.cancelled() else permit)
            self.wake()  # the next task may need less
            raise
        self._release(queue, line, permit)
        if self.lines and not self._checking:
            # The caller may post nothing: its post is not legal, or post_many had no more items. Then no
            # acknowledgement would wake the next task.
            self._checking = True
            self._connection.loop.call_soon(self._check)

    def _check(self) -> None:
        self._checking = False
        self.wake()

    def wake(self) -> None:
        """Wake as many tasks as the window has space for."""
        if self._connection.writable:
            # The queue served first is served last the next time.
            for queue, line in list(self.lines.items()):
                if self._serve(queue, line):
                    self.lines.move_to_end(queue)

    def closed(self, queue: QueueCore) -> None:
        """Wake the waiting tasks of a closed queue, to detect the closing."""
        line = self.lines.get(queue)
        if line is not None:
            self._dismiss(line)

    def finish(self) -> None:
        """Wake all tasks at the end of the session."""
        self._over = True
        for line in self.lines.values():
            self._dismiss(line)
        for flush in self._flushes.values():
            flush.wake()

    def _serve(self, queue: QueueCore, line: _SendLine) -> bool:
        """Wake the first tasks of a line, as space allows; return whether any task was woken."""
        served = False
        waiters = line.waiters
        while waiters and (self._connection.writable or self._over):
            permit = waiters[next(iter(waiters))]
            if not self._over and not self._fits(queue, line, permit.messages, permit.bytes):
                break
            served |= self._wake_first(line)
        return served

    def _dismiss(self, line: _SendLine) -> None:
        while line.waiters:
            self._wake_first(line)

    def _wake_first(self, line: _SendLine) -> bool:
        """Wake the first task of a line, unless cancelled."""
        waiter, permit = line.waiters.popitem(last=False)
        if waiter.done():
            return False  # the task is cancelled, and has not run since
        line.messages += permit.messages
        line.bytes += permit.reserve
        self._messages += permit.messages
        self._bytes += permit.reserve
        waiter.set_result(None)
        return True

    def _release(self, queue: QueueCore, line: _SendLine, permit: Permit) -> None:
        """Free the space reserved for a woken task, and forget a line without tasks."""
        line.messages -= permit.messages
        line.bytes -= permit.reserve
        self._messages -= permit.messages
        self._bytes -= permit.reserve
        if not line.waiters and not line.messages:
            self.lines.pop(queue, None)

    def _fits(self, queue: QueueCore, line: _SendLine, messages: int, size: int) -> bool:
        """Whether posts fit into the window, or into the queue's share."""
        posts = self._posts
        if (
            len(posts) + self._messages + messages <= self._max_messages
            and posts.bytes + self._bytes + size <= self._max_bytes
        ):
            return True
        own_messages, own_bytes = self._share()
        held = queue.unacked + line.messages
        return not held or (
            held + messages <= own_messages and queue.unacked_bytes + line.bytes + size <= own_bytes
        )

    def _share(self) -> tuple[int, int]:
        """Return each queue's share of the window, in messages and bytes."""
        queues = self.queues or 1
        return self._max_messages // queues, self._max_bytes // queues

    # outcomes

    async def flush(self, queue: QueueCore) -> None:
        """Wait for the outcomes of all posts to a queue so far."""
        if not queue.unacked:
            return
        flush = self._flushes.get(queue)
        if flush is None:
            flush = self._flushes[queue] = _FlushWaiters(self._posts.first_batch(queue))
        waiter: asyncio.Future[None] = self._connection.loop.create_future()
        flush.waiters[waiter] = self._posts.last_batch
        self._posts.seal()
        try:
            await waiter
        finally:
            flush.waiters.pop(waiter, None)
            if not flush.waiters and self._flushes.get(queue) is flush:
                del self._flushes[queue]

    def posts_left(self) -> None:
        """Wake waiting tasks after posts have left the window."""
        if self.lines:
            self.wake()
        for queue, flush in self._flushes.items():
            if not queue.unacked:
                flush.wake()
            else:
                flush.first_batch = self._posts.first_batch(queue, flush.first_batch)
                flush.wake(before=flush.first_batch)
