# SPDX-License-Identifier: Apache-2.0
"""The queues of a session, client role: which there are, and what happens to all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bmq.errors import Error, StateError
from bmq.protocol.client.events import HostHealthRestored, HostUnhealthy
from bmq.protocol.client.queue import Operation, QueueCore, QueueState, Shared, Siblings, SubscriptionCore
from bmq.protocol.client.routes import Route
from bmq.wire.control import QueueFlags
from bmq.wire.uri import QueueUri

__all__ = ["QueueRegistry"]


class QueueRegistry:
    """Every queue of a session.

    Args:
        shared: what its queues use.

    Attributes:
        healthy: what the host health monitor says.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._queues: dict[tuple[str, str, QueueFlags], QueueCore] = {}
        self._siblings: dict[str, Siblings] = {}
        self._by_q_id: dict[int, Siblings] = {}
        self._next_q_id = 0
        self.healthy = True
        self._announce_health = False

    def __iter__(self) -> Iterator[QueueCore]:
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def open(
        self,
        uri: QueueUri,
        flags: QueueFlags,
        owner: Any,
        subscriptions: Sequence[SubscriptionCore],
        operation: Operation,
        now: float,
        *,
        suspends: bool,
        connected: bool,
    ) -> QueueCore:
        """Begin to open a queue.

        Raises:
            StateError: it is open already, or an earlier open or close of it is still going on.
        """
        app_id = uri.app_id if flags & QueueFlags.READ else ""
        siblings = self._siblings.get(uri.canonical)
        for other in siblings.members if siblings is not None else ():
            if other.sub_app_id == app_id and other.flags & flags and not other.waits_to_be_opened_as(flags):
                raise StateError(_is_taken(uri, other, flags))
        key = (uri.canonical, app_id, flags)
        # There may be an unanswered openQueue that nobody waits for any more: its answer is for this caller.
        queue = self._queues.get(key)
        if queue is None:
            if siblings is None:
                siblings = self._siblings[uri.canonical] = Siblings(self._next_q_id)
                self._by_q_id[self._next_q_id] = siblings
                self._next_q_id += 1
            queue = self._queues[key] = QueueCore(self._shared, siblings, uri, app_id, flags)
        queue.open(
            owner,
            subscriptions,
            operation,
            now,
            suspends=suspends,
            healthy=self.healthy,
            connected=connected,
        )
        return queue

    def moved(self, queue: QueueCore) -> None:
        """A queue has made a transition: forget it once it is closed."""
        if queue.state is QueueState.CLOSED:
            siblings = self._siblings[queue.uri.canonical]
            siblings.members.pop(queue, None)
            if not siblings.members and not siblings.unclear:
                del self._siblings[queue.uri.canonical]
                del self._by_q_id[siblings.q_id]
            del self._queues[queue.uri.canonical, queue.sub_app_id, queue.flags]
            self._shared.changed.pop(queue, None)
            self._shared.watched.discard(queue)
            self._shared.routes.remove(queue)
        self._check_health()

    # the host's health

    def host_health(self, healthy: bool) -> None:
        """Take queues that want it out of service while the host is unhealthy, and back in afterwards."""
        if healthy is self.healthy:
            return
        self.healthy = healthy
        if not healthy and not self._announce_health:
            self._shared.emit(HostUnhealthy())
        self._announce_health = healthy
        for queue in self:
            queue.host_health(healthy)
        self._check_health()

    def _check_health(self) -> None:
        """Announce that the host is healthy, once the last suspended queue has resumed."""
        if self._announce_health and not any(queue.reported_suspended for queue in self._queues.values()):
            self._announce_health = False
            self._shared.emit(HostHealthRestored())

    # the connection

    def channel_up(self, now: float) -> list[QueueCore]:
        """Reopen what was open, open what waits; return the queues being reopened."""
        return [queue for queue in self if queue.channel_up(now)]

    def channel_down(self, now: float) -> None:
        """Nothing outstanding will be answered."""
        for queue in self:
            queue.channel_down(now)
        # A new connection knows nothing of the old one.
        for uri, siblings in list(self._siblings.items()):
            siblings.unclear = False
            if not siblings.members:
                del self._siblings[uri]
                del self._by_q_id[siblings.q_id]

    def stop(self, error: Error, now: float) -> None:
        """End every queue and every operation."""
        for queue in self:
            queue.stop(error, now)

    def send_changes(self, now: float) -> None:
        """Send the configurations that have gathered."""
        for queue in list(self._shared.changed):
            queue.send_changes(now)

    def only_reader(self, q_id: int) -> Route | None:
        """Return where a message with an unknown subscription id goes; None unless one queue alone reads."""
        siblings = self._by_q_id.get(q_id)
        members = siblings.members if siblings is not None else ()
        readers = [queue for queue in members if queue.readable and queue.in_use]
        if len(readers) != 1:
            return None
        queue = readers[0]
        return queue, queue.committed[0] if len(queue.committed) == 1 else queue.anybody


def _is_taken(uri: QueueUri, queue: QueueCore, flags: QueueFlags) -> str:
    """Say why a queue cannot be opened once more."""
    if queue.closing or not queue.in_use:
        return f"queue {uri} is busy ({queue.state.value}); wait until that is done"
    sides = [name for side, name in _SIDES if queue.flags & flags & side]
    return (
        f"queue {uri} is already open in this session for {' and '.join(sides)}: use that bmq.Queue "
        "(session.queues has it), or open the queue in another session. A session opens each side of a queue "
        "once; reading here and writing there are two sides"
    )


_SIDES = ((QueueFlags.READ, "reading"), (QueueFlags.WRITE, "writing"))
