# SPDX-License-Identifier: Apache-2.0
"""Whether a wait without a message means an empty queue."""

from __future__ import annotations

from bmq.client.queue import Queue
from bmq.protocol.client.queue import QueueState

__all__ = ["Drained"]


class Drained:
    """Decides whether queues are drained after a time without a message.

    Time without a connection does not count. A restored connection delivers messages only after its queues
    are open again. So a wait during which a connection was restored does not count either.

    Args:
        queues: queues to read.
    """

    def __init__(self, *queues: Queue) -> None:
        self._queues = queues
        self._first = self._reconnects = self._restored()

    @property
    def reconnected(self) -> bool:
        """Whether a connection was ever restored, so that messages may have been delivered twice."""
        return self._restored() > self._first

    def _restored(self) -> int:
        sessions = dict.fromkeys(queue.session for queue in self._queues)
        return sum(session.stats().reconnects for session in sessions)

    def after_silence(self) -> bool:
        """Return whether the wait that has just ended without a message counts; otherwise wait again."""
        if any(queue.state is not QueueState.OPEN for queue in self._queues):
            return False
        before, self._reconnects = self._reconnects, self._restored()
        return before == self._reconnects
