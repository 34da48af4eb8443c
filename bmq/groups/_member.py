# SPDX-License-Identifier: Apache-2.0
"""The state that a member's lanes share: hooks, ready lanes, waiting receivers, background tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from bmq.groups._reports import Reports
from bmq.protocol.client.queue import QueueState

if TYPE_CHECKING:
    from bmq.client.message import Message
    from bmq.errors import Error
    from bmq.groups._lane import Lane

__all__ = ["DISCONNECTED", "Hook", "Member", "call"]

#: The states of a queue during which the broker delivers to other members.
DISCONNECTED: Final = (
    QueueState.LOST,
    QueueState.REOPENING,
    QueueState.RESTORING,
    QueueState.REOPEN_DELAYED,
    QueueState.REOPEN_OVERDUE,
    QueueState.RESTORE_DELAYED,
    QueueState.CLOSED,
)
#: Called with the number of a bucket; may be async.
Hook = Callable[[int], Awaitable[None] | None]

# Messages of one bucket handed out before the next bucket has a turn.
_TURN: Final = 64


async def call(hook: Hook | None, bucket: int) -> None:
    """Call a hook, if given, and wait for the result."""
    if hook is not None:
        done = hook(bucket)
        if done is not None:
            await done


class Member:
    """The state that a member's lanes share.

    Args:
        on_assigned: called with a gained bucket.
        on_revoked: called with a lost bucket.
        reports: the reports of the member.
        ended: called with the error when a lane ends because the queue or the session was closed.

    Attributes:
        on_assigned: see above.
        on_revoked: see above.
        reports: see above.
        ended: see above.
        error: the error that ended the group.
    """

    def __init__(
        self,
        on_assigned: Hook | None,
        on_revoked: Hook | None,
        reports: Reports,
        ended: Callable[[Error], None],
    ) -> None:
        self.on_assigned = on_assigned
        self.on_revoked = on_revoked
        self.reports = reports
        self.ended = ended
        self.error: BaseException | None = None
        self._ready: deque[Lane] = deque()
        self._left_of_turn = _TURN
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._tasks: dict[asyncio.Task[None], None] = {}

    # ready lanes

    @property
    def ready(self) -> bool:
        """Whether a lane may have a message."""
        return bool(self._ready)

    def offer(self, lane: Lane) -> None:
        """Hand out the messages of a lane, until the lane has none."""
        self._ready.append(lane)
        self.wake()

    def withdraw(self, lane: Lane) -> None:
        """Stop handing out the lane's messages until the lane is ready again."""
        if lane in self._ready:
            self._ready.remove(lane)
            self._left_of_turn = _TURN

    def withdraw_all(self) -> None:
        """Stop handing out messages."""
        self._ready.clear()

    def take(self) -> Message | None:
        """Return the next message: of one bucket in order, of all buckets in turn."""
        ready = self._ready
        while ready:
            message = ready[0].take()
            if message is None:
                ready.popleft()
                self._left_of_turn = _TURN
                continue
            self._left_of_turn -= 1
            if not self._left_of_turn:
                ready.rotate(-1)
                self._left_of_turn = _TURN
            return message
        return None

    # receivers

    @property
    def awaited(self) -> bool:
        """Whether a receiver waits."""
        return bool(self._waiters)

    async def wait(self) -> None:
        """Wait until :meth:`wake` is called."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif self._ready:
                self.wake()  # the wake-up may be for the next caller

    def wake(self) -> None:
        """Wake all receivers."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task in the background; an error of the task ends the group."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the group with an error; the first error counts."""
        if self.error is None:
            self.error = error
            self.wake()
