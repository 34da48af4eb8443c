# SPDX-License-Identifier: Apache-2.0
"""The broker behind the sessions, without sockets: domains, queues, clients, and timed work."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from bmq import _checks
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.broker._admin import run_command
from bmq.broker._delivery import AppDelivery
from bmq.broker._domain import Domain, DomainSource, Refused
from bmq.broker._faults import Faults
from bmq.broker._inflation import InflationBudget
from bmq.broker._queue import NEVER, BrokerQueue
from bmq.broker._views import PostedMessage
from bmq.broker.domain_config import DomainConfig
from bmq.errors import StatusCategory
from bmq.protocol.deadlines import Deadlines
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.broker._client import ConnectedClient

__all__ = ["Bounds", "BrokerNode"]

_log = Log("bmq.broker")

_MOST_COMPLAINTS = 20
#: Seconds after which empty queues without clients are forgotten.
QUEUE_KEEPALIVE = 1800.0
_EFFORT_AT_ONCE = 50_000
_EXPIRED_AT_ONCE = 1000
_DUE_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a broker and of each connection.

    Attributes:
        connections: number of connections; further connections are closed at once.
        queues: number of queues in all domains together.
        idle_queues: number of empty queues without clients; beyond the limit the oldest are forgotten.
        queues_per_connection: number of open queues of a connection; each application counts separately.
        subscriptions: number of subscriptions of a consumer.
        listed: number of messages in the output of an admin command LIST.

    Raises:
        UsageError: a limit is not an integer, or less than 1.
    """

    connections: int = 20_000
    queues: int = 100_000
    idle_queues: int = 10_000
    queues_per_connection: int = 20_000
    subscriptions: int = 1_000
    listed: int = 10_000

    def __post_init__(self) -> None:
        for each in fields(self):
            value = _checks.integer(f"a broker's limit of {each.name}", getattr(self, each.name), 1)
            object.__setattr__(self, each.name, value)


class BrokerNode:
    """The domains, queues and connected clients of one broker.

    Time is a parameter everywhere, in seconds of any clock that does not go backwards.

    Args:
        source: the source of domains.
        history_limit: GUIDs of deleted messages that each queue remembers, at most.
        bounds: limits for clients.
        posts: receives the posts to all queues, for tests; None to keep none.
        faults: deliberate faults.
    """

    def __init__(
        self,
        source: DomainSource,
        *,
        history_limit: int = 1_000_000,
        bounds: Bounds | None = None,
        posts: deque[PostedMessage] | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.source = source
        self.history_limit = history_limit
        self.bounds = bounds or Bounds()
        self.posts = posts
        self.faults = faults or Faults({})
        #: Limits of decompression for clients.
        self.budget = InflationBudget()
        self.domains: dict[str, Domain] = {}
        self.queues: dict[str, BrokerQueue] = {}
        #: The negotiated sessions.
        self.clients: dict[ConnectedClient, None] = {}
        #: The log of clients' mistakes, by client: a client must not flood the log.
        self.limited = LogLimit(_log, most=_MOST_COMPLAINTS)
        #: The log of refused clients and actions.
        self.refusals = LogLimit(_log)
        self.stopping = False
        #: Settings of admin commands, remembered without effect: the state of the partition, and how many
        #: nodes must agree, by scope.
        self.available = True
        self.quorums = {"ELECTOR": 1, "REPLICATION": 1}
        #: The work done so far: each examined consumer, message or expression counts once. At ``enough``,
        #: deliveries pause, to give the remaining clients a turn.
        self.effort = self.enough = 0
        #: Called when deliveries pause: calls :meth:`go_on` after other clients. None: no pauses.
        self.postpone: Callable[[], None] | None = None
        self._pausing = False
        # In the order of delivery.
        self._touched: OrderedDict[BrokerQueue, dict[AppDelivery, None]] = OrderedDict()
        #: Touched queues with paused deliveries.
        self.paused: OrderedDict[BrokerQueue, dict[AppDelivery, None]] = OrderedDict()
        #: Times of the next look at a queue (within a second after activity, then at the next expiry), and of
        #: the next redelivery to an application that waits.
        self.deadlines: Deadlines[BrokerQueue | AppDelivery] = Deadlines()
        # Empty queues without clients, the oldest first: queues without any post, and the rest.
        self._unused: OrderedDict[BrokerQueue, None] = OrderedDict()
        self._idle: OrderedDict[BrokerQueue, None] = OrderedDict()

    def admin(self, command: str, now: float) -> str:
        """Carry out an admin command and return the answer."""
        text = run_command(self, command, now)
        self.deliver(now)
        return text

    # ---- domains and queues

    def configure(self, domain: Domain, config: DomainConfig) -> None:
        """Give a domain another configuration; call :meth:`deliver` afterwards.

        Raises:
            InvalidDomain: the mode or the kind of storage would change.
        """
        domain.configure(config)
        for queue in domain.queues.values():
            self.touch(queue, None)

    def domain(self, name: str) -> Domain:
        """Return a domain, loading its configuration the first time.

        Raises:
            Refused: the domain does not exist, or its configuration cannot be used.
        """
        found = self.domains.get(name)
        if found is None:
            config = self.source.load(name)
            # A redirection leads to a domain with another name, perhaps loaded already.
            found = self.domains.setdefault(config.name, Domain(config))
        return found

    def forget_domain(self, domain: Domain) -> None:
        """Forget a domain with its queues; the next open loads the configuration anew."""
        for queue in list(domain.queues.values()):
            self.forget(queue)
        del self.domains[domain.config.name]

    def forget_all(self) -> None:
        """Forget all domains with their queues; call without clients."""
        for domain in list(self.domains.values()):
            self.forget_domain(domain)

    def queue(self, domain: Domain, uri: QueueUri) -> BrokerQueue:
        """Return a queue, created if necessary.

        Raises:
            Refused: the domain or the broker allows no more queues.
        """
        # The queues of a redirected domain have URIs with the target of the redirection.
        real = QueueUri.parse(f"bmq://{domain.config.name}/{uri.queue}")
        queue = domain.queues.get(real.canonical)
        if queue is None:
            limit = domain.config.max_queues
            if (limit and len(domain.queues) >= limit) or len(self.queues) >= self.bounds.queues:
                raise Refused(StatusCategory.E_REFUSED, "maximum number of queues reached", -205)
            queue = BrokerQueue(real, domain, self)
            domain.queues[queue.uri] = self.queues[queue.uri] = queue
        return queue

    def discard_unused(self, queue: BrokerQueue) -> None:
        """Forget a queue created for an open that failed."""
        if not queue.handles and not queue.counts.posted:
            self.forget(queue)

    def forget(self, queue: BrokerQueue) -> None:
        """Forget a queue with its content."""
        for app in queue.apps.values():
            self.deadlines.discard(app)
        queue.dispose()
        del queue.domain.queues[queue.uri], self.queues[queue.uri]
        self.deadlines.discard(queue)
        self._unused.pop(queue, None)
        self._idle.pop(queue, None)
        self._touched.pop(queue, None)
        self.paused.pop(queue, None)

    def in_use(self, queue: BrokerQueue) -> None:
        """Note that a client has a queue open."""
        queue.idle_since = None
        self._unused.pop(queue, None)
        self._idle.pop(queue, None)

    def idle(self, queue: BrokerQueue, now: float) -> None:
        """Note that no client has a queue open any more.

        With too many empty queues, the oldest are forgotten at once, queues without any post first.
        """
        queue.idle_since = now
        self._watch(queue, now + QUEUE_KEEPALIVE)
        self._note_idle(queue)

    def _note_idle(self, queue: BrokerQueue) -> None:
        if queue.handles or queue.store:
            return  # not idle while messages are stored; _look_after calls again
        (self._idle if queue.counts.posted else self._unused)[queue] = None
        while len(self._idle) + len(self._unused) > self.bounds.idle_queues:
            self.forget(next(iter(self._unused or self._idle)))

    # ---- delivering

    def touch(self, queue: BrokerQueue, app: AppDelivery | None) -> None:
        """Note activity of a queue: the queue and the application may have something to deliver."""
        apps = (self.paused if queue in self.paused else self._touched).setdefault(queue, {})
        if app is not None:
            apps[app] = None

    def pause(self, queue: BrokerQueue, app: AppDelivery | None) -> None:
        """Continue deliveries of a queue or an application after other clients were served."""
        self.paused.setdefault(queue, self._touched.pop(queue, {}))
        self.touch(queue, app)

    def deliver(self, now: float) -> None:
        """Deliver for all queues noted by :meth:`touch`. Call after each chunk of input."""
        self.budget.tick(now)
        self._deliver(self._touched, now)
        while (self._touched or self.paused) and not self._pausing:
            if self.postpone is not None:
                self._pausing = True
                self.postpone()
            else:
                self._deliver(self.paused, now)
                self._deliver(self._touched, now)

    def go_on(self, now: float) -> None:
        """Continue paused deliveries after other clients were served."""
        self._pausing = False
        self._deliver(self.paused, now)
        self.deliver(now)

    def _deliver(self, queues: OrderedDict[BrokerQueue, dict[AppDelivery, None]], now: float) -> None:
        self.enough = self.effort + _EFFORT_AT_ONCE
        soon = int(now) + 1  # a message lives whole seconds
        while queues and self.effort <= self.enough:
            queue, apps = queues.popitem(last=False)
            if queue.deadline > soon and queue.counts.posted:
                self._watch(queue, soon)
            for app in apps:
                app.deliver(now)
            queue.deliver(now)

    # ---- time

    def tick(self, now: float) -> None:
        """Do the due work: expire messages, forget GUIDs and idle queues, retry suspected poison messages.

        A large amount of work is done in parts; the next part is due at once.
        """
        for due in self.deadlines.due(now, _DUE_AT_ONCE):
            if isinstance(due, AppDelivery):
                self.touch(due.queue, due)
            else:
                self._look_after(due, now)
        self.deliver(now)

    def _watch(self, queue: BrokerQueue, deadline: float) -> None:
        """Look after a queue at the given time, if not earlier."""
        if deadline < queue.deadline:
            queue.deadline = deadline
            self.deadlines.set(queue, deadline)

    def _look_after(self, queue: BrokerQueue, now: float) -> None:
        queue.deadline = NEVER
        expired = queue.expire(now, _EXPIRED_AT_ONCE)
        if expired:
            for app in queue.apps.values():
                self.touch(queue, app)
        queue.tidy(now)
        deadline = (
            now if expired == _EXPIRED_AT_ONCE else queue.store.next_deadline(queue.domain.config.message_ttl)
        )
        if queue.idle_since is not None and not queue.store:
            forgotten = queue.idle_since + QUEUE_KEEPALIVE
            if now >= forgotten:
                self.forget(queue)
                return
            deadline = min(deadline, forgotten)
        self._watch(queue, deadline)
        if queue.idle_since is not None:
            self._note_idle(queue)

    def recover(self) -> None:
        """Return to the state of a real broker restarted with its files; call without clients."""
        self.stopping = self._pausing = False
        for queue in self.queues.values():
            queue.recover()
