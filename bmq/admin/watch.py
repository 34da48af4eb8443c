# SPDX-License-Identifier: Apache-2.0
"""What brokers report again and again: clusters and roles, figures and rates of queues, and their clients.

The console, ``bmq top`` and ``bmq exporter`` read brokers through this module, and the admin client finds the
primaries of queues with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from bmq import _world
from bmq.admin.explanation import Explanation, Obstacle
from bmq.admin.results import (
    Cluster,
    ClusterStatus,
    DomainInfo,
    Internals,
    PartitionStorage,
    QueueStatistics,
    Standing,
    StoredMessage,
    StoredQueue,
    limits_of,
)
from bmq.errors import AdminError, InvalidURI, ProtocolError
from bmq.wire.printable import printable
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.admin.client import Admin, QueueAdmin

__all__ = [
    "HISTORY",
    "AppFigures",
    "BrokerDomain",
    "BrokerQueue",
    "BrokerView",
    "BrokerWatch",
    "ClusterView",
    "Figures",
    "Inside",
    "Limits",
    "RateHistory",
    "Survey",
    "alone",
    "cluster_view",
    "figures_of",
    "look_inside",
    "node_name",
    "survey_of",
    "use_of",
]

#: A limit or an amount: messages and bytes.
Amount = tuple[int, int]
#: The limits of a domain, and of each of its queues; 0 for no limit.
Limits = tuple[Amount, Amount]
# Commands in flight to a broker. A broker executes admin commands in sequence.
_AT_ONCE = 4
#: Number of values in a history: five minutes at one poll a second.
HISTORY = 300
# Queues for whose figures one turn of the event loop has time.
_TURN = 200
_NO_AMOUNT = 0, 0
T = TypeVar("T")


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
        if self.proxy:
            return Standing(self.broker, "", False, True, None, node_name(self.status.active_node))
        primary = self.primary(uri)
        return Standing(self.broker, self.node, primary == self.node, False, primary, None)

    @property
    def primaries(self) -> set[str | None]:
        """The primaries of all partitions with queues; None for a partition without a primary."""
        return {node_name(each.primary) for each in self.status.partitions if each.queues}


@dataclass(frozen=True, slots=True)
class Survey:
    """The views of all clusters of a broker.

    Attributes:
        broker: the broker's address.
        views: the clusters with other nodes.
        own: the queues of a cluster of one broker, beside other clusters.
        time: the event loop's time of the view.
    """

    broker: str
    views: tuple[ClusterView, ...]
    own: frozenset[str]
    time: float

    @property
    def only_proxy(self) -> bool:
        """Whether the broker is only a proxy."""
        return bool(self.views) and not self.own and all(view.proxy for view in self.views)

    def standing(self, uri: str) -> Standing:
        """Return the place of the broker in the cluster of a queue."""
        if not self.views or uri in self.own:
            return Standing(self.broker, "", True, False, None, None)
        # A node that knows the queue, otherwise a proxy, otherwise any node.
        view = min(self.views, key=lambda view: (view.proxy or uri not in view.partitions, not view.proxy))
        return view.standing(uri)


async def cluster_view(admin: Admin, cluster: Cluster) -> ClusterView:
    """Return a broker's view of a cluster: one command."""
    proxy = cluster.locality == "remote"
    kind = "clusterProxyStatus" if proxy else "clusterStatus"
    content = await admin._ask(f"CLUSTERS CLUSTER {cluster.name} STATUS", kind)
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


def survey_of(broker: str, clusters: Iterable[ClusterView]) -> Survey:
    """Return the views of a broker's clusters as a survey."""
    clusters = tuple(clusters)
    views = tuple(each for each in clusters if not each.alone)
    own = frozenset(uri for each in clusters if each.alone and views for uri in each.partitions)
    return Survey(broker, views, own, asyncio.get_running_loop().time())


# ---- figures and rates


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one queue.

    Attributes:
        uri: the queue.
        domain: the queue's domain.
        mode: the domain's mode; empty if the domain belongs to another broker.
        messages: messages stored.
        bytes: bytes stored.
        producers: number of openings for writing.
        consumers: number of openings for reading.
        posted: messages posted so far; None before the broker counts the queue.
        confirmed: deliveries confirmed so far; None likewise.
        quota: largest share of a quota in use; 0 without a quota.
        quota_of: whose quota this is: queue or domain.
        full: whether the quota is reached, and posts are refused.
        expired: messages whose time to live ended; None before the broker counts the queue.
    """

    uri: str
    domain: str
    mode: str
    messages: int
    bytes: int
    producers: int = 0
    consumers: int = 0
    posted: int | None = None
    confirmed: int | None = None
    quota: float = 0.0
    quota_of: str = ""
    full: bool = False
    expired: int | None = None


def use_of(queue: Amount, domain: Amount, limits: Limits) -> tuple[float, str, bool]:
    """Return the largest share of a quota in use, whose quota this is, and whether the quota is reached.

    A broker checks before adding a message: a limit of N admits N + 1.
    """
    of_domain, of_queue = limits
    found = [
        (used / limit, name, used > limit)
        for name, have, most in (("queue", queue, of_queue), ("domain", domain, of_domain))
        for used, limit in zip(have, most, strict=True)
        if limit > 0
    ]
    return max(found, key=lambda each: (each[2], each[0]), default=(0.0, "", False))


async def figures_of(admin: Admin, left_out: Callable[[str, ProtocolError], None]) -> list[Figures]:
    """Return the figures of every queue: three commands for the broker, and one for each domain.

    Args:
        admin: the broker, or the nodes of a cluster.
        left_out: called with a domain whose answer cannot be read.
    """
    statistics = {each.uri: each for each in (await admin.statistics()).queues}
    of_domain: dict[str, list[str]] = {}
    for each in statistics.values():
        of_domain.setdefault(each.domain, []).append(each.uri)
    found: list[Figures] = []
    async for domain in _domains(admin, [each.name for each in await admin.domains()], left_out):
        limits = limits_of(domain.configuration)
        stored = {queue.uri: (queue.messages, queue.bytes) for queue in domain.queues}
        total = sum(each[0] for each in stored.values()), sum(each[1] for each in stored.values())
        # A broker reports the contents of a domain without its empty queues.
        for uri in sorted({*of_domain.get(domain.name, ()), *stored}):
            held, known = stored.get(uri, _NO_AMOUNT), statistics.get(uri)
            quota, whose, full = use_of(held, total, limits)
            found.append(
                Figures(
                    uri,
                    domain.name,
                    domain.mode,
                    *held,
                    known.producers if known else 0,
                    known.consumers if known else 0,
                    known.posted if known else None,
                    known.confirmed if known else None,
                    quota,
                    whose,
                    full,
                    expired=known.expired if known else None,
                )
            )
            if not len(found) % _TURN:
                await asyncio.sleep(0)
    return found


async def _domains(
    admin: Admin, names: Iterable[str], left_out: Callable[[str, ProtocolError], None]
) -> AsyncIterator[DomainInfo]:
    for name in names:
        try:
            yield await admin.domain(name)
        except AdminError:
            continue  # the domain was removed a moment ago
        except ProtocolError as error:
            left_out(name, error)


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
    _counts: tuple[int | None, int | None] = (None, None)

    @property
    def posting(self) -> float:
        """Messages posted a second, lately."""
        return self.posted[-1] if self.posted else 0.0

    @property
    def confirming(self) -> float:
        """Messages confirmed a second, lately."""
        return self.confirmed[-1] if self.confirmed else 0.0

    def add(self, at: float, messages: int, posted: int | None, confirmed: int | None) -> None:
        """Add the figures of an answer, received at a time of the monotonic clock."""
        elapsed, before = at - self._at, self._counts
        self._at, self._counts = at, (posted, confirmed)
        self.depth.append(messages)
        self.posted.append(_rate(posted, before[0], elapsed))
        self.confirmed.append(_rate(confirmed, before[1], elapsed))

    def forget(self) -> None:
        """Forget the latest counts."""
        self._counts = (None, None)


def _rate(now: int | None, before: int | None, elapsed: float) -> float:
    if now is None or before is None or elapsed <= 0:
        return 0.0
    return round(max(0, now - before) / elapsed, 1)


# ---- one queue


@dataclass(frozen=True, slots=True)
class AppFigures:
    """The messages of an application.

    Attributes:
        app_id: the application; ``__default`` without applications.
        messages: stored messages.
        consumers: number of consumers.
        unconfirmed: messages delivered and not confirmed.
        undelivered: messages without a delivery.
        obstacle: why messages are not delivered.
    """

    app_id: str
    messages: int
    consumers: int
    unconfirmed: int
    undelivered: int
    obstacle: Obstacle


@dataclass(frozen=True)
class Inside:
    """The answers about the clients and subscriptions of a queue.

    Attributes:
        at: time of the answers, on the event loop's clock.
        internals: the queue.
        domain: the queue's domain.
        oldest: the oldest message; None for an empty queue.
    """

    at: float
    internals: Internals
    domain: DomainInfo
    oldest: StoredMessage | None

    @cached_property
    def explanation(self) -> Explanation:
        """Why messages wait."""
        return Explanation(self.internals, self.domain)

    @cached_property
    def apps(self) -> tuple[AppFigures, ...]:
        """The applications."""
        consumers = {each.app_id: each.consumers for each in self.internals.apps}
        return tuple(
            AppFigures(
                app.app_id,
                app.messages,
                consumers.get(app.app_id, 0),
                app.messages - undelivered,
                undelivered,
                obstacle,
            )
            for app in self.internals.depth.apps
            for undelivered, obstacle in [self.explanation.undelivered(app)]
        )

    @property
    def producers(self) -> int:
        """Number of openings for writing."""
        return sum(client.writers for client in self.internals.clients)

    @property
    def consumers(self) -> int:
        """Number of openings for reading."""
        return sum(client.readers for client in self.internals.clients)


async def look_inside(queue: QueueAdmin, domain: DomainInfo) -> Inside | None:
    """Ask for the clients and subscriptions of a queue: two commands; None for a queue that has gone.

    Raises:
        ProtocolError: an answer cannot be read.
    """
    try:
        page = await queue.messages(0, 1)
        internals = await queue.internals()
    except AdminError:
        return None
    return Inside(asyncio.get_running_loop().time(), internals, domain, next(iter(page.messages), None))


# ---- all about one broker


@dataclass(frozen=True, slots=True)
class BrokerQueue:
    """A queue, as known to a broker.

    Attributes:
        uri: the queue.
        domain: the queue's domain.
        cluster: the cluster of the domain; empty if unknown.
        role: primary, replica, proxy or unknown.
        statistics: the broker's statistics; None for a new queue.
        held: messages and bytes; None for a broker without the storage.
        limit: the queue's own quota: messages and bytes; None if unknown.
        ttl: lifetime of a message in seconds; None if unknown.
        inside: answers about the queue; None for an empty queue.
    """

    uri: str
    domain: str
    cluster: str
    role: str
    statistics: QueueStatistics | None
    held: Amount | None = None
    limit: Amount | None = None
    ttl: int | None = None
    inside: Inside | None = None


@dataclass(frozen=True, slots=True)
class BrokerDomain:
    """A domain with queues on the broker as primary.

    Attributes:
        info: the broker's answer.
        queues: number of queues of which the broker is the primary.
    """

    info: DomainInfo
    queues: int


@dataclass(frozen=True, slots=True)
class BrokerView:
    """All answers of a round.

    Attributes:
        broker: address of the broker.
        time: time of the round.
        clusters: clusters of the broker.
        domains: domains with a primary here.
        queues: the chosen queues.
        stale: age in seconds of the oldest answer about a queue.
    """

    broker: str
    time: datetime
    clusters: tuple[ClusterView, ...]
    domains: tuple[BrokerDomain, ...]
    queues: tuple[BrokerQueue, ...]
    stale: float

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
        parsed = QueueUri.parse(uri)
    except InvalidURI:
        return ""
    return f"{parsed.domain}.~{parsed.tier}" if parsed.tier else parsed.domain


class BrokerWatch:
    """Asks one broker for a view of everything that it has, in few commands.

    The commands are one for the list of clusters, one for each cluster, one for the statistics of all queues,
    one for each domain, and two for each queue with messages. A round asks about a limited number of queues.
    The remaining queues have a turn in the next rounds, and keep the earlier answers meanwhile.

    Args:
        broker: address of the broker.
        choose_queues: chooses among the URIs of queues; the deepest come first.
        choose_domains: chooses among the names of domains.
        only: the names of the domains of interest; empty for all.
        most_inside: number of queues that a round asks about.
        left_out: called with a queue or a domain whose answer can no longer be read.

    Attributes:
        commands: number of commands sent, by kind.
        unreadable: queues and domains whose answers could not be read in the last round, with the reason.
    """

    def __init__(
        self,
        broker: str,
        *,
        choose_queues: Callable[[list[str]], frozenset[str]],
        choose_domains: Callable[[list[str]], frozenset[str]],
        only: frozenset[str],
        most_inside: int,
        left_out: Callable[[str, ProtocolError], None],
    ) -> None:
        self._broker = broker
        self._choose_queues, self._choose_domains = choose_queues, choose_domains
        self._only = only
        self._most_inside = most_inside
        self._left_out = left_out
        self._inside: dict[str, Inside] = {}
        self._noted: dict[str, str] = {}
        self.commands: dict[str, int] = {}
        self.unreadable: dict[str, str] = {}

    def forget(self) -> None:
        """Forget the answers of a silent broker."""
        self._inside.clear()

    async def look(self, admin: Admin) -> BrokerView:
        """Ask for a whole view.

        Args:
            admin: a client with the broker's address alone.

        Raises:
            Error: the broker did not answer, or refused.
        """
        self._noted, self.unreadable = self.unreadable, {}
        clusters = [
            await self._counted("CLUSTER STATUS", cluster_view(admin, each))
            for each in await self._counted("CLUSTERS LIST", admin.clusters())
        ]
        admin._survey = survey_of(self._broker, clusters)  # the same commands would be sent again
        answer = await self._counted("STAT SHOW", admin._statistics())
        statistics = {each.uri: each for each in answer.queues}
        mine, elsewhere = self._places(clusters, statistics)
        names = sorted({_domain_of(uri) for uri in mine})
        chosen_names = sorted(self._choose_domains(names))
        self._count("DOMAIN INFOS", len(chosen_names))
        domains = {each.name: each async for each in _domains(admin, chosen_names, self._note)}
        held = {each.uri: (each.messages, each.bytes) for info in domains.values() for each in info.queues}
        deepest = sorted(mine, key=lambda uri: -held.get(uri, _NO_AMOUNT)[0])
        chosen = self._choose_queues([*deepest, *elsewhere])
        await self._look_inside(admin, [uri for uri in mine if uri in chosen and uri in held], held, domains)
        queues = [
            self._primary(uri, mine[uri].cluster, domains, held, statistics) for uri in mine if uri in chosen
        ]
        queues += [
            BrokerQueue(uri, _domain_of(uri), *elsewhere[uri], statistics.get(uri))
            for uri in elsewhere
            if uri in chosen
        ]
        now = asyncio.get_running_loop().time()
        return BrokerView(
            self._broker,
            _world.now(),
            tuple(clusters),
            tuple(
                BrokerDomain(info, sum(each.uri in mine for each in info.queues)) for info in domains.values()
            ),
            tuple(queues),
            max((now - each.at for each in self._inside.values()), default=0.0),
        )

    def _note(self, name: str, error: ProtocolError) -> None:
        """Leave out one queue or domain: a client must not hide the other ones."""
        self.unreadable[name] = str(error)
        if name not in self._noted:
            self._left_out(name, error)

    def _count(self, kind: str, number: int = 1) -> None:
        self.commands[kind] = self.commands.get(kind, 0) + number

    async def _counted(self, kind: str, question: Awaitable[T]) -> T:
        self._count(kind)
        return await question

    def _is_wanted(self, domain: str) -> bool:
        return not self._only or domain in self._only

    def _places(
        self, clusters: list[ClusterView], statistics: Mapping[str, QueueStatistics]
    ) -> tuple[dict[str, ClusterView], dict[str, tuple[str, str]]]:
        """Return the queues with the broker as primary, and the remaining queues with cluster and role."""
        mine: dict[str, ClusterView] = {}
        elsewhere: dict[str, tuple[str, str]] = {}
        for view in clusters:
            for uri in sorted(view.partitions):
                domain = _domain_of(uri)
                if domain and self._is_wanted(domain):
                    if not view.proxy and view.primary(uri) == view.node:
                        mine[uri] = view
                    else:
                        elsewhere[uri] = view.cluster, "proxy" if view.proxy else "replica"
        only_proxy = bool(clusters) and all(view.proxy for view in clusters)
        for uri, each in statistics.items():
            if uri not in mine and uri not in elsewhere and self._is_wanted(each.domain):
                elsewhere[uri] = "", "proxy" if only_proxy else "unknown"
        return mine, elsewhere

    async def _look_inside(
        self,
        admin: Admin,
        uris: list[str],
        held: Mapping[str, Amount],
        domains: Mapping[str, DomainInfo],
    ) -> None:
        """Ask about the queues with messages; above the limit, about the queues asked longest ago."""
        waiting = [uri for uri in uris if held[uri][0] and domains[_domain_of(uri)].mode != "broadcast"]
        self._inside = {uri: self._inside[uri] for uri in waiting if uri in self._inside}
        waiting.sort(key=lambda uri: self._inside[uri].at if uri in self._inside else float("-inf"))
        turn = iter(waiting[: self._most_inside])

        async def ask_in_turn() -> None:
            for uri in turn:
                self._count("QUEUE LIST")
                self._count("QUEUE INTERNALS")
                found = None
                try:
                    found = await look_inside(admin.queue(uri), domains[_domain_of(uri)])
                except ProtocolError as error:
                    self._note(uri, error)
                if found is None:
                    self._inside.pop(uri, None)
                else:
                    self._inside[uri] = found

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(_AT_ONCE, len(waiting))):
                    tasks.create_task(ask_in_turn())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def _primary(
        self,
        uri: str,
        cluster: str,
        domains: Mapping[str, DomainInfo],
        held: Mapping[str, Amount],
        statistics: Mapping[str, QueueStatistics],
    ) -> BrokerQueue:
        name = _domain_of(uri)
        info = domains.get(name)
        if info is None:
            return BrokerQueue(uri, name, cluster, "primary", statistics.get(uri))
        amount = held.get(uri, _NO_AMOUNT)
        inside = self._inside.get(uri) if amount[0] else None
        usage = inside.internals.usage if inside is not None else None
        limit = limits_of(info.configuration)[1]
        if usage is not None:
            limit = usage.message_limit, usage.byte_limit
        ttl = info.configuration.get("messageTtl")
        return BrokerQueue(
            uri,
            name,
            cluster,
            "primary",
            statistics.get(uri),
            amount,
            limit if usage is not None or any(limit) else None,
            ttl if isinstance(ttl, int) and ttl > 0 else None,
            inside,
        )
