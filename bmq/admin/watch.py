# SPDX-License-Identifier: Apache-2.0
"""What brokers report again and again: clusters and roles, figures and rates of queues, and their clients.

The console, ``bmq top`` and ``bmq exporter`` read brokers through this module, and the admin client finds the
primaries of queues with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from bmq import _world
from bmq.admin.explanation import Explanation, explain
from bmq.admin.results import (
    Cluster,
    ClusterStatus,
    DomainInfo,
    PartitionStorage,
    QueueStatistics,
    Standing,
    StoredQueue,
    limits_of,
)
from bmq.errors import AdminError, InvalidURI, ProtocolError
from bmq.wire.printable import printable
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.admin.client import Admin

#: A limit or an amount: messages and bytes.
Amount = tuple[int, int]
# Commands in flight to a broker. A broker executes admin commands in sequence.
_AT_ONCE = 4
#: Number of values in a history: five minutes at one poll a second.
HISTORY = 300
# Queues for whose figures one turn of the event loop has time.
_TURN = 200
_NO_AMOUNT = 0, 0
_PRIMARY = "primary"


# ---- clusters and roles


def alone(cluster: Cluster) -> bool:
    """Whether a cluster consists only of the answering broker."""
    return cluster.locality == "local" or (cluster.locality != "remote" and len(cluster.nodes) <= 1)


def node_name(description: str | None) -> str | None:
    """Return the name of a node from the node's description, ``[name, number]``."""
    if description is None:
        return None
    return printable(description.strip("[] ").partition(",")[0])


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A broker's view of one cluster.

    Attributes:
        broker: the broker's address.
        cluster: the name of the cluster.
        proxy: whether the broker is a proxy of the cluster.
        status: the state of the cluster.
        partitions: number of each queue's partition, by URI; for a proxy, the queues opened by its clients.
        storage: the open partitions, if asked for.
        alone: whether the cluster has no other node.
    """

    broker: str
    cluster: str
    proxy: bool
    status: ClusterStatus
    partitions: Mapping[str, int] = field(repr=False)
    storage: tuple[PartitionStorage, ...] = ()
    alone: bool = False

    @property
    def node(self) -> str:
        """The broker's name in the cluster; empty for a proxy."""
        return node_name(self.status.self_node) or ""

    @property
    def role(self) -> str:
        """Member or proxy."""
        return "proxy" if self.proxy else "member"

    def primary(self, uri: str) -> str | None:
        """Return the name of the primary of a queue; None if the primary is unknown."""
        number = self.partitions.get(uri, -1)
        found = self.status.partitions
        return node_name(found[number].primary) if 0 <= number < len(found) else None

    def standing(self, uri: str) -> Standing:
        """Return the place of the broker in the cluster, and the primary of a queue if known."""
        if self.alone:
            return Standing(self.broker, "", True, False, None, None)
        if self.proxy:
            return Standing(self.broker, "", False, True, None, node_name(self.status.active_node))
        primary = self.primary(uri)
        return Standing(self.broker, self.node, primary == self.node, False, primary, None)

    @property
    def primaries(self) -> set[str | None]:
        """The primaries of all partitions with queues; None for a partition without a primary."""
        return {node_name(each.primary) for each in self.status.partitions if each.queues}


async def cluster_view(admin: Admin, cluster: Cluster) -> ClusterView:
    """Return a broker's view of a cluster: one command."""
    proxy = cluster.locality == "remote"
    content = await admin._status(cluster.name)
    status = ClusterStatus._read(content)
    # Brokers without files report an empty list.
    storage = PartitionStorage._read_all(content.get("clusterStorageSummary") or {}, "fileStores")
    queues = StoredQueue._read_all(content.get("queuesInfo") or {}, "storages")
    return ClusterView(
        admin.broker,
        cluster.name,
        proxy,
        status,
        {each.uri: each.partition for each in queues},
        tuple(each for each in storage if each.state != "closed"),
        alone(cluster),
    )


# ---- rates


@dataclass(slots=True)
class RateHistory:
    """The last values of one queue: messages, and messages posted and confirmed a second.

    A rate is the growth of a count between two answers of a broker; 0 after :meth:`forget`, which precedes
    the answer of another broker.
    """

    depth: deque[int] = field(default_factory=lambda: deque[int](maxlen=HISTORY))
    posted: deque[float] = field(default_factory=lambda: deque[float](maxlen=HISTORY))
    confirmed: deque[float] = field(default_factory=lambda: deque[float](maxlen=HISTORY))
    # The time and the counts of the latest answer.
    _at: float = 0.0
    _counted: QueueStatistics | None = None

    @property
    def posting(self) -> float:
        """Messages posted a second, lately."""
        return self.posted[-1] if self.posted else 0.0

    @property
    def confirming(self) -> float:
        """Messages confirmed a second, lately."""
        return self.confirmed[-1] if self.confirmed else 0.0

    def add(self, at: float, messages: int, counted: QueueStatistics | None) -> None:
        """Add the figures of an answer, received at a time of the monotonic clock."""
        elapsed, before = at - self._at, self._counted
        self._at, self._counted = at, counted
        posted = confirmed = 0.0
        if before is not None and counted is not None and elapsed > 0:
            posted = round(max(0, counted.posted - before.posted) / elapsed, 1)
            confirmed = round(max(0, counted.confirmed - before.confirmed) / elapsed, 1)
        self.depth.append(messages)
        self.posted.append(posted)
        self.confirmed.append(confirmed)

    def forget(self) -> None:
        """Forget the latest counts."""
        self._counted = None


# ---- domains and queues


@dataclass(frozen=True)
class DomainFigures:
    """A domain, and the messages of its queues.

    Attributes:
        info: the broker's answer.
        queues: number of queues of which the broker is the primary.
    """

    info: DomainInfo
    queues: int

    @cached_property
    def held(self) -> dict[str, Amount]:
        """Messages and bytes by queue; a broker leaves empty queues out."""
        return {each.uri: (each.messages, each.bytes) for each in self.info.queues}

    @cached_property
    def total(self) -> Amount:
        """Messages and bytes of all queues."""
        return sum(each[0] for each in self.held.values()), sum(each[1] for each in self.held.values())

    @cached_property
    def limits(self) -> tuple[Amount, Amount]:
        """The limits of the domain, and of each of its queues; 0 for no limit."""
        return limits_of(self.info.configuration)


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue, as known to a broker, or to the nodes of a cluster.

    Attributes:
        uri: the queue.
        name: name of the queue's domain.
        cluster: the cluster of the domain; empty if unknown.
        role: the broker's role for the queue: primary, replica, proxy or unknown.
        statistics: the broker's statistics; None for a new queue.
        domain: the queue's domain; None if not asked.
    """

    uri: str
    name: str
    cluster: str = ""
    role: str = "unknown"
    statistics: QueueStatistics | None = None
    domain: DomainFigures | None = None

    @property
    def held(self) -> Amount:
        """Messages and bytes in the queue; 0 if not asked."""
        return _NO_AMOUNT if self.domain is None else self.domain.held.get(self.uri, _NO_AMOUNT)

    @property
    def messages(self) -> int:
        """Messages in the queue; 0 if not asked."""
        return self.held[0]

    @property
    def mode(self) -> str:
        """The domain's mode; empty if not asked."""
        return "" if self.domain is None else self.domain.info.mode

    @property
    def waits(self) -> bool:
        """Whether the queue has messages, and the broker knows what they wait for."""
        return self.role == _PRIMARY and self.messages > 0 and self.mode != "broadcast"

    def use(self) -> tuple[float, str, bool]:
        """Return the largest share of a quota in use, whose quota this is, and whether the quota is reached.

        A broker checks before adding a message: a limit of N admits N + 1.
        """
        if self.domain is None:
            return 0.0, "", False
        of_domain, of_queue = self.domain.limits
        found = [
            (used / limit, name, used > limit)
            for name, have, most in (("queue", self.held, of_queue), ("domain", self.domain.total, of_domain))
            for used, limit in zip(have, most, strict=True)
            if limit > 0
        ]
        return max(found, key=lambda each: (each[2], each[0]), default=(0.0, "", False))


# ---- all about brokers


@dataclass(frozen=True, slots=True)
class BrokerView:
    """All answers of a round.

    Attributes:
        broker: address of the broker.
        time: time of the round.
        clusters: clusters of the broker.
        domains: the chosen domains.
        queues: the queues: first those whose primary the broker is, the deepest first.
        explanations: why messages wait, by URI of the queue; empty unless asked.
    """

    broker: str
    time: datetime
    clusters: tuple[ClusterView, ...]
    domains: tuple[DomainFigures, ...]
    queues: tuple[QueueFigures, ...]
    explanations: Mapping[str, Explanation] = field(default_factory=dict[str, Explanation])

    def label(self, cluster: str) -> str:
        """Return the name of the broker in a cluster.

        The address stands for a proxy, and for a single node, because names like localhost are not unique.
        """
        for each in self.clusters:
            if each.cluster == cluster and not each.proxy and not each.alone:
                return each.node
        return self.broker


def _domain_of(uri: str) -> str:
    """Return the domain of a queue, with the tier; empty for any text but a queue URI."""
    try:
        return QueueUri.parse(uri).qualified_domain
    except InvalidURI:
        return ""


class BrokerWatch:
    """Asks a broker, or the nodes of a cluster, for a view of everything, in few commands.

    The commands are for each node one for the list of clusters, one for each cluster, and one for the
    statistics of all queues; and one for each domain.

    Args:
        choose_domains: chooses among the names of domains.
        only: the names of the domains of interest; empty for all.
        copies: whether to ask also for domains without a queue whose primary answers.
        left_out: called with a queue or a domain whose answer cannot be read, and could in the round before.

    Attributes:
        commands: number of commands sent, by kind.
        unreadable: queues and domains whose answers could not be read in the last round, with the reason.
    """

    def __init__(
        self,
        *,
        choose_domains: Callable[[list[str]], frozenset[str]] = frozenset,
        only: frozenset[str] = frozenset(),
        copies: bool = False,
        left_out: Callable[[str, ProtocolError], None],
    ) -> None:
        self._choose_domains = choose_domains
        self._only = only
        self._copies = copies
        self._left_out = left_out
        self._noted: dict[str, str] = {}
        self.commands = Counter[str]()
        self.unreadable: dict[str, str] = {}

    async def look(self, admin: Admin) -> BrokerView:
        """Ask for a whole view, without explanations.

        Raises:
            Error: the broker did not answer, or refused.
        """
        self._noted, self.unreadable = self.unreadable, {}
        await admin._look(whole=True)
        nodes = await admin._nodes()
        clusters = tuple(view for node in nodes for view in node._clusters)
        self.commands["CLUSTERS LIST"] += len(nodes)
        self.commands["CLUSTER STATUS"] += len(clusters)
        self.commands["STAT SHOW"] += len(nodes)
        statistics = {each.uri: each for each in (await admin.statistics()).queues}
        places = self._places(clusters, statistics)
        domains = await self._domains(admin, places)
        found: list[QueueFigures] = []
        for uri, (name, cluster, role) in places.items():
            domain = domains.get(name) if self._copies or role == _PRIMARY else None
            found.append(QueueFigures(uri, name, cluster, role, statistics.get(uri), domain))
            if not len(found) % _TURN:
                await asyncio.sleep(0)
        found.sort(key=lambda queue: (queue.role != _PRIMARY, -queue.messages))
        return BrokerView(admin.broker, _world.now(), clusters, tuple(domains.values()), tuple(found))

    async def explain(self, admin: Admin, queues: Iterable[QueueFigures]) -> dict[str, Explanation | None]:
        """Ask why the messages of queues wait, in order, a few queues at once: two commands for a queue.

        Args:
            admin: the broker, or the nodes of a cluster.
            queues: queues of a view, with their domains; the next one is taken when its turn has come.

        Returns:
            The explanation of each queue; None for a queue that has gone or cannot be read.
        """
        turn = iter(queues)
        found: dict[str, Explanation | None] = {}

        async def ask_in_turn() -> None:
            for queue in turn:
                assert queue.domain is not None
                found[queue.uri] = None
                try:
                    found[queue.uri] = await explain(admin.queue(queue.uri), queue.domain.info)
                except AdminError:
                    pass
                except ProtocolError as error:
                    self._note(queue.uri, error)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_AT_ONCE):
                    tasks.create_task(ask_in_turn())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        self.commands["QUEUE LIST"] += len(found)
        self.commands["QUEUE INTERNALS"] += len(found)
        return found

    def _note(self, name: str, error: ProtocolError) -> None:
        """Leave out one queue or domain: a client must not hide the other ones."""
        self.unreadable[name] = str(error)
        if name not in self._noted:
            self._left_out(name, error)

    def _places(
        self, clusters: tuple[ClusterView, ...], statistics: Iterable[str]
    ) -> dict[str, tuple[str, str, str]]:
        """Return domain, cluster, and role for each queue of interest."""
        places: dict[str, tuple[str, str, str]] = {}
        for view in clusters:
            for uri in sorted(view.partitions):
                primary = not view.proxy and view.primary(uri) == view.node
                if primary or uri not in places:
                    role = _PRIMARY if primary else "proxy" if view.proxy else "replica"
                    places[uri] = _domain_of(uri), view.cluster, role
        only_proxy = bool(clusters) and all(view.proxy for view in clusters)
        for uri in statistics:
            places.setdefault(uri, (_domain_of(uri), "", "proxy" if only_proxy else "unknown"))
        return {
            uri: place
            for uri, place in places.items()
            if place[0] and (not self._only or place[0] in self._only)
        }

    async def _domains(
        self, admin: Admin, places: Mapping[str, tuple[str, str, str]]
    ) -> dict[str, DomainFigures]:
        names = {name for name, _, role in places.values() if self._copies or role == _PRIMARY}
        mine = Counter(name for name, _, role in places.values() if role == _PRIMARY)
        domains: dict[str, DomainFigures] = {}
        for name in sorted(self._choose_domains(sorted(names))):
            self.commands["DOMAIN INFOS"] += 1
            try:
                info = await admin.domain(name)
            except AdminError:
                continue  # the domain was removed a moment ago
            except ProtocolError as error:
                self._note(name, error)
            else:
                domains[name] = DomainFigures(info, mine[name])
        return domains
