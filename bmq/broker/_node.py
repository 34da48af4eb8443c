# SPDX-License-Identifier: Apache-2.0
"""The broker itself, without sockets: domains, queues, clients, and what is due with time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from bmq.broker._admin import run_command
from bmq.broker._app_delivery import AppDelivery, Effort
from bmq.broker._bounds import Bounds
from bmq.broker._connected_client import ConnectedClient
from bmq.broker._domain import Domain, DomainSource
from bmq.broker._domain_config import DomainConfig
from bmq.broker._handle import Handle, SubStream
from bmq.broker._queue import NEVER, BrokerQueue
from bmq.protocol.broker.backend import ClientPort
from bmq.protocol.broker.inflation import InflationBudget
from bmq.protocol.broker.output import BrokerOutput
from bmq.protocol.deadlines import Deadlines
from bmq.wire.control.messages import QueueHandleParameters, Status
from bmq.wire.put import Put
from bmq.wire.uri import QueueUri

__all__ = ["Node"]

#: Empty queues nobody has open are forgotten after this many seconds.
QUEUE_KEEPALIVE = 1800.0
_EFFORT_AT_ONCE = 50_000
_EXPIRED_AT_ONCE = 1000
_QUEUES_AT_ONCE = 10_000


class Node:
    """One broker.

    Time is a parameter everywhere, in seconds of any clock that does not go backwards.

    Args:
        source: where domains are found.
        history_limit: how many GUIDs of messages that are gone each queue remembers at most.
        bounds: how much clients may ask of it.
    """

    def __init__(
        self, source: DomainSource, *, history_limit: int = 1_000_000, bounds: Bounds | None = None
    ) -> None:
        self.source = source
        self.history_limit = history_limit
        self.bounds = bounds or Bounds()
        #: How much clients may make it decompress.
        self.budget = InflationBudget()
        self.domains: dict[str, Domain] = {}
        self.queues: dict[str, BrokerQueue] = {}
        self.clients: list[ConnectedClient] = []
        self.stopping = False
        #: Set by tests of failures: what is answered to an open, and which posts are stored.
        self.intercept_open: Callable[[QueueHandleParameters], Status | None] | None = None
        self.intercept_confirm: Callable[[SubStream, list[bytes]], list[bytes]] | None = None
        self.intercept_post: Callable[[Handle, list[Put]], list[Put]] | None = None
        self._touched: dict[BrokerQueue, dict[AppDelivery, None]] = {}
        self._effort = Effort()
        self._going_on = False
        #: Called when deliveries pause; has :meth:`go_on` called after others were served. None: no pauses.
        self.postpone: Callable[[], None] | None = None
        # When to look after a queue: within a second after something happened to it, then when something is
        # going to expire.
        self._deadlines: Deadlines[BrokerQueue] = Deadlines()
        # Empty queues that nobody has open, the oldest first: those never posted to, and the others.
        self._unused: OrderedDict[BrokerQueue, None] = OrderedDict()
        self._idle: OrderedDict[BrokerQueue, None] = OrderedDict()
        #: Applications that have to let some time pass before they redeliver.
        self.waiting: Deadlines[AppDelivery] = Deadlines()

    @property
    def effort(self) -> int:
        """The work done so far, a number: each step of it takes some microseconds."""
        return self._effort.spent

    # ---- clients

    def connect(self, output: BrokerOutput, *, new_properties: bool, description: str) -> ConnectedClient:
        """Make the broker's side of a negotiated session."""
        client = ConnectedClient(self, output, new_properties=new_properties, description=description)
        client.place = len(self.clients)
        self.clients.append(client)
        return client

    def disconnect(self, client: ClientPort, now: float, *, lost: bool) -> None:
        """Close what a client has open; see :meth:`ConnectedClient.drop`."""
        if not isinstance(client, ConnectedClient) or client.place is None:
            return
        # The last one takes its place: a search among thousands, when thousands leave, would take long.
        last = self.clients.pop()
        if last is not client:
            self.clients[client.place] = last
            last.place = client.place
        client.place = None
        client.drop(now, lost=lost)

    # ---- domains and queues

    def configure(self, domain: Domain, config: DomainConfig) -> None:
        """Give a domain another configuration; call :meth:`deliver` afterwards.

        Raises:
            InvalidDomain: it would change the mode or the kind of storage.
        """
        domain.configure(config)
        for queue in domain.queues.values():
            self.touch(queue, None)

    def domain(self, name: str) -> Domain:
        """Return a domain, loading its configuration the first time.

        Raises:
            Unavailable: there is no such domain, or its configuration cannot be used.
        """
        found = self.domains.get(name)
        if found is None:
            config = self.source.load(name)
            found = self.domains.get(config.name) or Domain(config)
            self.domains[name] = self.domains[config.name] = found
        return found

    def queue(self, domain: Domain, uri: QueueUri) -> BrokerQueue | None:
        """Return a queue, a new one if need be; None when domain or broker may have no more queues."""
        # The queues of a redirected domain have URIs with the domain it redirects to.
        real = QueueUri.parse(f"bmq://{domain.config.name}/{uri.queue}")
        queue = domain.queues.get(real.canonical)
        if queue is None:
            limit = domain.config.max_queues
            if (limit and len(domain.queues) >= limit) or len(self.queues) >= self.bounds.queues:
                return None
            queue = BrokerQueue(real, domain, self.waiting, self.history_limit, self.budget, self._effort)
            domain.queues[queue.uri] = self.queues[queue.uri] = queue
        return queue

    def discard_unused(self, queue: BrokerQueue) -> None:
        """Forget a queue that was made for an open that failed."""
        if not queue.handles and not queue.posted:
            self.forget(queue)

    def forget(self, queue: BrokerQueue) -> None:
        """Forget a queue, and everything in it."""
        for app in queue.apps.values():
            self.waiting.discard(app)
        queue.dispose()
        queue.domain.queues.pop(queue.uri, None)
        self.queues.pop(queue.uri, None)
        self._deadlines.discard(queue)
        self._unused.pop(queue, None)
        self._idle.pop(queue, None)
        self._touched.pop(queue, None)

    def in_use(self, queue: BrokerQueue) -> None:
        """Note that somebody has a queue open."""
        queue.idle_since = None
        self._unused.pop(queue, None)
        self._idle.pop(queue, None)

    def idle(self, queue: BrokerQueue, now: float) -> None:
        """Note that nobody has a queue open any more.

        When there are too many empty ones the oldest are forgotten at once, first those never posted to.
        """
        queue.idle_since = now
        self._watch(queue, now + QUEUE_KEEPALIVE)
        self._note_idle(queue)

    def _note_idle(self, queue: BrokerQueue) -> None:
        if queue.handles or queue.store:
            return  # not idle as long as it has messages; _look_after asks again
        (self._idle if queue.posted else self._unused)[queue] = None
        while len(self._idle) + len(self._unused) > self.bounds.idle_queues:
            self.forget(next(iter(self._unused or self._idle)))

    def admin(self, command: str, now: float) -> str:
        """Carry out an admin command and return its answer."""
        text = run_command(self, command, now)
        self.deliver(now)
        return text

    # ---- delivering

    def touch(self, queue: BrokerQueue, app: AppDelivery | None) -> None:
        """Note that something happened to a queue: it, and the application, may have something to deliver."""
        apps = self._touched.setdefault(queue, {})
        if app is not None:
            apps[app] = None

    def deliver(self, now: float) -> None:
        """Deliver what :meth:`touch` has noted. To be called after each chunk of input."""
        self.budget.tick(now)
        touched, effort = self._touched, self._effort
        effort.enough = effort.spent + _EFFORT_AT_ONCE
        soon = int(now) + 1  # a message lives whole seconds
        while touched:
            queue, apps = touched.popitem()
            if queue.deadline > soon and queue.posted:
                self._watch(queue, soon)
            for app in apps:
                app.deliver(now)
            queue.deliver(now)
        if effort.dropped:
            dropped, effort.dropped = effort.dropped, []
            for app, message in dropped:
                app.drop(message)
        while effort.unfinished and not self._going_on:
            if self.postpone is None:
                self._slice(now)
            else:
                self._going_on = True
                self.postpone()

    def go_on(self, now: float) -> None:
        """Go on with deliveries that were paused so that others were served."""
        self._slice(now)
        self._going_on = False
        self.deliver(now)

    def _slice(self, now: float) -> None:
        effort = self._effort
        effort.enough = effort.spent + _EFFORT_AT_ONCE
        while effort.unfinished and effort.spent <= effort.enough:
            unfinished = effort.unfinished.popleft()
            unfinished.postponed = False
            if isinstance(unfinished, AppDelivery):
                unfinished.queue.serve(unfinished, now)
            else:
                unfinished.deliver(now)

    # ---- time

    def next_deadline(self) -> float | None:
        """Return when :meth:`tick` has something to do; None if nothing happens by itself."""
        queue, app = self._deadlines.first(), self.waiting.first()
        if queue is None or app is None:
            return app if queue is None else queue
        return min(queue, app)

    def tick(self, now: float) -> None:
        """Do what is due: expire messages, forget GUIDs and idle queues, retry suspected poison messages.

        When very much is due a part of it is left, which is due at once.
        """
        for queue in self._deadlines.due(now, _QUEUES_AT_ONCE):
            self._look_after(queue, now)
        for app in self.waiting.due(now):
            self.touch(app.queue, app)
        self.deliver(now)

    def _watch(self, queue: BrokerQueue, deadline: float) -> None:
        """Look after a queue at that time, if not earlier."""
        if deadline < queue.deadline:
            queue.deadline = deadline
            self._deadlines.set(queue, deadline)

    def _look_after(self, queue: BrokerQueue, now: float) -> None:
        queue.deadline = NEVER
        expired = queue.expire(now, _EXPIRED_AT_ONCE)
        if expired:
            for app in queue.apps.values():
                self.touch(queue, app)
        queue.tidy(now)
        deadline = now if expired == _EXPIRED_AT_ONCE else queue.next_deadline()
        if queue.idle_since is not None and not queue.store:
            forgotten = queue.idle_since + QUEUE_KEEPALIVE
            if now >= forgotten:
                self.forget(queue)
                return
            deadline = min(deadline, forgotten)
        self._watch(queue, deadline)
        if queue.idle_since is not None:
            self._note_idle(queue)

    def forget_idle(self) -> None:
        """Forget all empty queues that nobody has open."""
        for queue in list(self.queues.values()):
            if not queue.handles and not queue.store:
                self.forget(queue)

    def recover(self) -> None:
        """Return to the state of a real broker restarted with its files; for when no client is left."""
        self.stopping = self._going_on = False
        self.waiting.clear()
        while self._effort.unfinished:
            self._effort.unfinished.pop().postponed = False
        for queue in self.queues.values():
            queue.recover()
