# SPDX-License-Identifier: Apache-2.0
"""The queues of a session, client role: lifetimes, and inputs for all queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bmq.errors import Error, StateError
from bmq.protocol.client.events import HostHealthRestored, HostUnhealthy
from bmq.protocol.client.ports import QueueOwner
from bmq.protocol.client.queue import PendingCall, QueueCore, QueueState
from bmq.protocol.client.subscription import SubscriptionCore
from bmq.wire.control import QueueFlags
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.protocol.client.core import ClientCore

__all__ = ["QueueRegistry", "SharedQueueId"]


class SharedQueueId:
    """A qId, and the queues that share it: those with the same URI apart from the application id.

    Attributes:
        uri: the URI without an application id.
        q_id: the number; never used for another URI in the same session.
        members: the queues.
        behind: the members waiting until earlier members are closed, in order.
        unclear: whether the broker may still have a member already gone here.
    """

    __slots__ = ("_sub_ids", "behind", "members", "q_id", "unclear", "uri")

    def __init__(self, uri: str, q_id: int) -> None:
        self.uri = uri
        self.q_id = q_id
        self._sub_ids: dict[str, int] = {}
        self.members: dict[QueueCore, None] = {}
        self.behind: dict[QueueCore, None] = {}
        self.unclear = False

    def sub_id(self, app_id: str) -> int:
        """Return the number of an application id; 0 for none."""
        return self._sub_ids.setdefault(app_id, len(self._sub_ids) + 1) if app_id else 0


class QueueRegistry:
    """Every queue of a session.

    Args:
        session: the session.

    Attributes:
        healthy: the latest report of the host health monitor.
    """

    def __init__(self, session: ClientCore) -> None:
        self._session = session
        self._queues: dict[QueueCore, None] = {}
        self._by_uri: dict[str, SharedQueueId] = {}
        self._by_q_id: dict[int, SharedQueueId] = {}
        self._next_q_id = 0
        self.healthy = True
        self._announce_health = False

    def __iter__(self) -> Iterator[QueueCore]:
        return iter(list(self._queues))

    def __len__(self) -> int:
        return len(self._queues)

    def open(
        self,
        uri: QueueUri,
        flags: QueueFlags,
        owner: QueueOwner,
        subscriptions: Sequence[SubscriptionCore],
        operation: PendingCall,
        now: float,
        *,
        suspends: bool,
    ) -> QueueCore:
        """Begin to open a queue.

        If an earlier opening of the queue is in progress or being undone, the new opening waits: the caller
        of a cancelled call has no queue to wait for. The earlier opening may still succeed; in this case the
        new opening fails.

        Raises:
            StateError: the queue is open already.
        """
        app_id = uri.app_id if flags & QueueFlags.READ else ""
        canonical = uri.canonical
        shared_id = self._by_uri.get(canonical)
        others = [
            other for other in (shared_id.members if shared_id else ()) if other.excludes(app_id, flags)
        ]
        for other in others:
            if _stays_open(other):
                raise StateError(_is_taken(uri, other, flags))
        # An abandoned openQueue may be unanswered: the answer will serve this caller.
        if len(others) == 1 and others[0].waits_to_be_opened_as(flags):
            queue = others.pop()
        else:
            if shared_id is None:
                shared_id = self._by_uri[canonical] = SharedQueueId(canonical, self._next_q_id)
                self._by_q_id[self._next_q_id] = shared_id
                self._next_q_id += 1
            queue = QueueCore(self._session, shared_id, uri, app_id, flags)
            self._queues[queue] = None
        queue.open(owner, subscriptions, operation, now, suspends=suspends, behind=bool(others))
        return queue

    def moved(self, queue: QueueCore) -> None:
        """Handle a transition of a queue: forget a closed queue, and let waiting openings proceed."""
        shared_id = self._by_q_id[queue.q_id]
        if queue.state is not QueueState.BEHIND:
            shared_id.behind.pop(queue, None)
        if queue.state is QueueState.CLOSED:
            shared_id.members.pop(queue, None)
            if not shared_id.members and not shared_id.unclear:
                del self._by_uri[shared_id.uri]
                del self._by_q_id[shared_id.q_id]
            del self._queues[queue]
            self._session.changed.pop(queue, None)
            self._session.watched.discard(queue)
            queue.subscriptions.remove_routes()
            self._session.confirms.forget(queue)
        self._check_health()
        for waiting in list(shared_id.behind):
            if waiting in shared_id.behind:
                self._look_ahead(waiting, shared_id)

    def _look_ahead(self, queue: QueueCore, shared_id: SharedQueueId) -> None:
        """Open or fail the next queue in line, unless it has to wait longer."""
        for other in shared_id.members:
            if other is queue:
                queue.proceed(self._session.now)
                return
            if other.excludes(queue.sub_app_id, queue.flags):
                if _stays_open(other):
                    error = StateError(_is_taken(queue.uri, other, queue.flags))
                    queue.give_way(error, self._session.now)
                return

    # the host's health

    def host_health(self, healthy: bool) -> None:
        """Suspend the queues with this option while the host is unhealthy; resume the queues afterwards."""
        if healthy is self.healthy:
            return
        self.healthy = healthy
        if not healthy and not self._announce_health:
            self._session.emit(HostUnhealthy())
        self._announce_health = healthy
        for queue in self:
            queue.host_health(healthy)
        self._check_health()

    def _check_health(self) -> None:
        """Announce the healthy host, once the last suspended queue has resumed."""
        if self._announce_health and not any(queue.reported_suspended for queue in self._queues):
            self._announce_health = False
            self._session.emit(HostHealthRestored())

    # the connection

    def channel_up(self, now: float) -> list[QueueCore]:
        """Reopen the open queues and open the waiting queues; return the queues being reopened."""
        return [queue for queue in self if queue.channel_up(now)]

    def channel_down(self, now: float) -> None:
        """Note the loss of the connection: outstanding requests get no answer."""
        for queue in self:
            queue.channel_down(now)
        # A new connection starts without queues: no doubt remains.
        for uri, shared_id in list(self._by_uri.items()):
            shared_id.unclear = False
            if not shared_id.members:
                del self._by_uri[uri]
                del self._by_q_id[shared_id.q_id]

    def stop(self, error: Error, now: float) -> None:
        """End every queue and every operation."""
        for queue in self:
            queue.stop(error, now)
        # Forget the numbers of queues with unanswered closes: no more messages can arrive.
        self._by_uri.clear()
        self._by_q_id.clear()

    def only_reader(self, q_id: int) -> tuple[QueueCore, SubscriptionCore] | None:
        """Return the route of a message with an unknown subscription id; None unless one queue reads."""
        shared_id = self._by_q_id.get(q_id)
        members = shared_id.members if shared_id is not None else ()
        readers = [queue for queue in members if queue.readable and queue.in_use]
        if len(readers) != 1:
            return None
        queue = readers[0]
        committed = queue.subscriptions.committed
        return queue, committed[0] if len(committed) == 1 else queue.fallback


def _stays_open(queue: QueueCore) -> bool:
    """Whether the application has a queue open and has not begun to close it."""
    return queue.in_use and not queue.closing and not queue.leaving


def _is_taken(uri: QueueUri, queue: QueueCore, flags: QueueFlags) -> str:
    """Describe why a queue cannot be opened again."""
    sides = [name for side, name in _SIDES if queue.flags & flags & side]
    return (
        f"queue {uri} is already open in this session for {' and '.join(sides)}: use that bmq.Queue "
        "(session.queues has it), or open the queue in another session. A session opens each side of a queue "
        "once; reading here and writing there are two sides"
    )


_SIDES = ((QueueFlags.READ, "reading"), (QueueFlags.WRITE, "writing"))
