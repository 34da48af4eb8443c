# SPDX-License-Identifier: Apache-2.0
"""A broker's view of clusters, domains and queues, for ``bmq exporter``.

A view costs the broker few commands: a command for the list of clusters, a command for each cluster, a
command for the statistics of all queues, a command for each domain, and two commands for each queue with
messages. A round asks about a limited number of queues. The remaining queues have a turn in the next rounds,
and keep the earlier answers meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bmq import _world
from bmq.admin import (
    Admin,
    Cluster,
    ClusterStatus,
    DomainInfo,
    PartitionStorage,
    QueueStatistics,
    StoredQueue,
    Usage,
    parsing,
)
from bmq.admin.asking import ask
from bmq.admin.explanation import Explanation, Obstacle
from bmq.admin.survey import alone
from bmq.cli.output import note
from bmq.errors import AdminError, InvalidURI, ProtocolError
from bmq.wire.uri import QueueUri

__all__ = [
    "AppView",
    "BrokerView",
    "ClusterView",
    "Details",
    "DomainView",
    "Labels",
    "QueueView",
    "Watch",
    "node_name",
]

# A broker refuses statistics requested in quick succession: pauses until the next attempt, in seconds.
_PAUSES = (0.1, 0.2, 0.5, 1.0)
_TOO_OFTEN = "too often"
# Commands in flight to a broker. A broker executes admin commands in sequence.
_AT_ONCE = 4


class Labels:
    """The names with separate series, a limited number.

    A name keeps the place until the name is gone from every broker: a series never changes the meaning.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: dict[str, set[str]] = {}
        self._left_out: dict[str, set[str]] = {}

    def choose(self, broker: str, names: Iterable[str]) -> frozenset[str]:
        """Return the names with series among all names of a broker; earlier names go first."""
        names = list(names)
        present = set(names)
        for name in [name for name, holders in self._holders.items() if broker in holders]:
            if name not in present:
                self._holders[name].discard(broker)
                if not self._holders[name]:
                    del self._holders[name]
        for name in names:
            if name in self._holders or len(self._holders) < self._limit:
                self._holders.setdefault(name, set()).add(broker)
        chosen = frozenset(present & self._holders.keys())
        self._left_out[broker] = present - chosen
        return chosen

    def forget(self, broker: str) -> None:
        """Leave a silent broker out of the counts; the names keep the places."""
        self._left_out.pop(broker, None)

    @property
    def left_out(self) -> int:
        """Number of names without series."""
        return len(set[str]().union(*self._left_out.values()))


@dataclass(frozen=True, slots=True)
class AppView:
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


@dataclass(frozen=True, slots=True)
class Details:
    """The answers to the commands about a queue.

    Attributes:
        at: time of the answers, on the event loop's clock.
        oldest: arrival of the oldest message; None for an empty queue.
        usage: use of the queue's own quota; None if not reported by the broker.
        consumers: number of openings for reading.
        producers: number of openings for writing.
        apps: the applications.
        left_out_apps: number of applications beyond the limit.
    """

    at: float
    oldest: datetime | None
    usage: Usage | None
    consumers: int
    producers: int
    apps: tuple[AppView, ...]
    left_out_apps: int


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue, as known to a broker.

    Attributes:
        uri: the queue.
        domain: the queue's domain.
        cluster: the cluster of the domain; empty if unknown.
        role: primary, replica, proxy or unknown.
        messages: stored messages; None for a broker without the storage.
        bytes: stored bytes; None for a broker without the storage.
        limit: the queue's own quota: messages and bytes; None if unknown.
        ttl: lifetime of a message in seconds; None if unknown.
        statistics: the broker's statistics; None for a new queue.
        details: answers about the queue; None for an empty queue.
    """

    uri: str
    domain: str
    cluster: str
    role: str
    messages: int | None
    bytes: int | None
    limit: tuple[int, int] | None
    ttl: int | None
    statistics: QueueStatistics | None
    details: Details | None


@dataclass(frozen=True, slots=True)
class DomainView:
    """A domain with queues on the broker as primary.

    Attributes:
        info: the broker's answer.
        queues: number of queues.
        messages: messages of the queues.
        bytes: bytes of the queues.
    """

    info: DomainInfo
    queues: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster, as seen by a broker.

    Attributes:
        cluster: name of the cluster.
        proxy: whether the broker is a proxy of the cluster.
        node: name of the broker in the cluster; the address for a proxy, and for a single
            node, because names like localhost are not unique.
        name: name of the broker in the cluster; empty for a proxy.
        status: the cluster's state.
        storage: the open partitions.
        partitions: number of each queue's partition, by URI.
    """

    cluster: str
    proxy: bool
    node: str
    name: str
    status: ClusterStatus
    storage: tuple[PartitionStorage, ...]
    partitions: Mapping[str, int] = field(repr=False)

    @property
    def role(self) -> str:
        """Member or proxy."""
        return "proxy" if self.proxy else "member"

    def primary(self, uri: str) -> str | None:
        """Return the name of a queue's primary; None if unknown."""
        number = self.partitions.get(uri, -1)
        found = self.status.partitions
        return node_name(found[number].primary) if 0 <= number < len(found) else None


@dataclass(frozen=True, slots=True)
class BrokerView:
    """All answers of a round.

    Attributes:
        broker: address of the broker.
        time: time of the round.
        clusters: clusters of the broker.
        domains: domains with a primary here.
        queues: queues with series.
        stale: age in seconds of the oldest answer about a queue.
    """

    broker: str
    time: datetime
    clusters: tuple[ClusterView, ...]
    domains: tuple[DomainView, ...]
    queues: tuple[QueueView, ...]
    stale: float


def node_name(description: str | None) -> str:
    """Return the name of a node from the description ``[name, number]``; empty without a node."""
    return "" if description is None else description.strip("[] ").partition(",")[0]


def domain_of(uri: str) -> str:
    """Return the domain of a queue, with the tier; empty for any text but a queue URI."""
    try:
        parsed = QueueUri.parse(uri)
    except InvalidURI:
        return ""
    return f"{parsed.domain}.~{parsed.tier}" if parsed.tier else parsed.domain


class Watch:
    """Asks a broker for a view.

    Attributes:
        commands: number of commands sent, by kind.
        unreadable: queues and domains whose answers could not be read in the last round, with the reason.
    """

    def __init__(
        self,
        broker: str,
        *,
        queues: Labels,
        domains: Labels,
        only: frozenset[str],
        max_apps: int,
        max_details: int,
    ) -> None:
        self._broker = broker
        self._queue_labels, self._domain_labels = queues, domains
        self._only = only
        self._max_apps, self._max_details = max_apps, max_details
        self._details: dict[str, Details] = {}
        self.commands: dict[str, int] = {}
        self.unreadable: dict[str, str] = {}
        self._noted: dict[str, str] = {}

    async def look(self, admin: Admin) -> BrokerView:
        """Ask for a whole view.

        Args:
            admin: a client with the broker's address alone.

        Raises:
            Error: the broker did not answer, or refused.
        """
        self._noted, self.unreadable = self.unreadable, {}
        answer = await self._query(admin, "CLUSTERS LIST", "CLUSTERS LIST", "clusterList")
        found = parsing.listed(answer, "clusters", Cluster)
        clusters = [await self._cluster(admin, each) for each in found]
        statistics = {each.uri: each for each in await self._statistics(admin)}
        own, elsewhere = self._mine(clusters, statistics)
        domains = await self._domains(admin, own.values())
        chosen = self._queue_labels.choose(self._broker, [*_by_depth(own, domains), *elsewhere])
        await self._ask_queues(admin, [uri for uri in own if uri in chosen], own, domains)
        queues = [self._primary(uri, own[uri], domains, statistics) for uri in own if uri in chosen]
        queues += [self._copy(uri, *elsewhere[uri], statistics) for uri in elsewhere if uri in chosen]
        now = asyncio.get_running_loop().time()
        return BrokerView(
            self._broker,
            _world.now(),
            tuple(clusters),
            tuple(_domain(info, own) for info in domains.values()),
            tuple(queues),
            max((now - each.at for each in self._details.values()), default=0.0),
        )

    def forget(self) -> None:
        """Forget the answers of a silent broker."""
        self._details.clear()
        self._queue_labels.forget(self._broker)
        self._domain_labels.forget(self._broker)

    def _note_unreadable(self, name: str, error: ProtocolError) -> None:
        """Leave out one queue or domain: a client must not hide the other ones."""
        self.unreadable[name] = str(error)
        if name not in self._noted:
            note(f"bmq exporter: {self._broker}: {name} is left out: {error}")

    # commands

    async def _query(self, admin: Admin, kind: str, command: str, member: str) -> Any:
        self.commands[kind] = self.commands.get(kind, 0) + 1
        return await ask(admin, command, member)

    async def _cluster(self, admin: Admin, cluster: Cluster) -> ClusterView:
        member = "clusterProxyStatus" if cluster.locality == "remote" else "clusterStatus"
        content = await self._query(
            admin, "CLUSTER STATUS", f"CLUSTERS CLUSTER {cluster.name} STATUS", member
        )
        status = parsing.cluster_status(content)
        # Brokers without files report an empty list.
        storage = parsing.cluster_storage(content.get("clusterStorageSummary") or {})
        queues = parsing.listed(content.get("queuesInfo") or {}, "storages", StoredQueue)
        proxy = cluster.locality == "remote"
        return ClusterView(
            cluster.name,
            proxy,
            self._broker if proxy or alone(cluster) else node_name(status.self_node),
            node_name(status.self_node),
            status,
            tuple(each for each in storage.partitions if each.state != "closed"),
            {each.uri: each.partition for each in queues},
        )

    async def _statistics(self, admin: Admin) -> tuple[QueueStatistics, ...]:
        for pause in (*_PAUSES, None):
            try:
                return parsing.statistics(await self._query(admin, "STAT SHOW", "STAT SHOW", "stats")).queues
            except AdminError as error:
                if _TOO_OFTEN not in error.broker_message or pause is None:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError

    def _mine(
        self, clusters: list[ClusterView], statistics: Mapping[str, QueueStatistics]
    ) -> tuple[dict[str, tuple[ClusterView, str]], dict[str, tuple[str, str]]]:
        """Return the queues with the broker as primary, with cluster and domain, and the remaining queues."""
        own: dict[str, tuple[ClusterView, str]] = {}
        elsewhere: dict[str, tuple[str, str]] = {}
        for view in clusters:
            for uri in sorted(view.partitions):
                domain = domain_of(uri)
                if domain and self._wants(domain):
                    if not view.proxy and view.primary(uri) == view.name:
                        own[uri] = view, domain
                    else:
                        elsewhere[uri] = view.cluster, "proxy" if view.proxy else "replica"
        only_proxy = bool(clusters) and all(view.proxy for view in clusters)
        for uri, each in statistics.items():
            if uri not in own and uri not in elsewhere and self._wants(each.domain):
                elsewhere[uri] = "", "proxy" if only_proxy else "unknown"
        return own, elsewhere

    def _wants(self, domain: str) -> bool:
        return not self._only or domain in self._only

    async def _domains(self, admin: Admin, own: Iterable[tuple[ClusterView, str]]) -> dict[str, DomainInfo]:
        found: dict[str, DomainInfo] = {}
        for name in sorted(self._domain_labels.choose(self._broker, sorted({name for _, name in own}))):
            command = f"DOMAINS DOMAIN {name} INFOS"
            try:
                found[name] = parsing.domain_info(
                    await self._query(admin, "DOMAIN INFOS", command, "domainInfo")
                )
            except AdminError:
                continue  # the domain was removed a moment ago
            except ProtocolError as error:
                self._note_unreadable(name, error)
        return found

    async def _ask_queues(
        self,
        admin: Admin,
        uris: list[str],
        own: Mapping[str, tuple[ClusterView, str]],
        domains: Mapping[str, DomainInfo],
    ) -> None:
        """Ask about the queues with messages; above the limit, about the queues asked longest ago."""
        depths = _depths(domains)
        waiting = [
            uri for uri in uris if depths.get(uri, (0, 0))[0] and domains[own[uri][1]].mode != "broadcast"
        ]
        self._details = {uri: self._details[uri] for uri in waiting if uri in self._details}
        waiting.sort(key=lambda uri: self._details[uri].at if uri in self._details else float("-inf"))
        turn = iter(waiting[: self._max_details])

        async def ask() -> None:
            for uri in turn:
                details = await self._queue(admin, uri, domains[own[uri][1]])
                if details is None:
                    self._details.pop(uri, None)
                else:
                    self._details[uri] = details

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(_AT_ONCE, len(waiting))):
                    tasks.create_task(ask())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _queue(self, admin: Admin, uri: str, domain: DomainInfo) -> Details | None:
        prefix = f"DOMAINS DOMAIN {domain.name} QUEUE {uri.rpartition('/')[2]}"
        try:
            page = parsing.message_page(
                await self._query(admin, "QUEUE LIST", f"{prefix} LIST 0 1", "queueContents")
            )
            internals = parsing.internals(
                await self._query(admin, "QUEUE INTERNALS", f"{prefix} INTERNALS", "queueInternals")
            )
        except AdminError:
            return None  # the queue is gone
        except ProtocolError as error:
            self._note_unreadable(uri, error)
            return None
        explanation = Explanation(internals, domain)
        consumers = {each.app_id: each.consumers for each in internals.apps}
        apps = internals.depth.apps
        return Details(
            asyncio.get_running_loop().time(),
            page.messages[0].arrival if page.messages else None,
            internals.usage,
            sum(client.readers for client in internals.clients),
            sum(client.writers for client in internals.clients),
            tuple(
                AppView(
                    app.app_id,
                    app.messages,
                    consumers.get(app.app_id, 0),
                    app.messages - undelivered,
                    undelivered,
                    obstacle,
                )
                for app in apps[: self._max_apps]
                for undelivered, obstacle in [explanation.undelivered(app)]
            ),
            max(0, len(apps) - self._max_apps),
        )

    # views

    def _primary(
        self,
        uri: str,
        place: tuple[ClusterView, str],
        domains: Mapping[str, DomainInfo],
        statistics: Mapping[str, QueueStatistics],
    ) -> QueueView:
        view, domain = place
        info = domains.get(domain)
        messages, size = _depths(domains).get(uri, (0, 0)) if info is not None else (None, None)
        details = self._details.get(uri) if messages else None
        limit = None if info is None else parsing.limits_of(info.configuration)[1]
        limit = limit if limit is not None and any(limit) else None
        if details is not None and details.usage is not None:
            limit = details.usage.message_limit, details.usage.byte_limit
        ttl = None if info is None else info.configuration.get("messageTtl")
        return QueueView(
            uri,
            domain,
            view.cluster,
            "primary",
            messages,
            size,
            limit,
            ttl if isinstance(ttl, int) and ttl > 0 else None,
            statistics.get(uri),
            details,
        )

    def _copy(
        self, uri: str, cluster: str, role: str, statistics: Mapping[str, QueueStatistics]
    ) -> QueueView:
        domain = domain_of(uri)
        return QueueView(uri, domain, cluster, role, None, None, None, None, statistics.get(uri), None)


def _depths(domains: Mapping[str, DomainInfo]) -> dict[str, tuple[int, int]]:
    return {each.uri: (each.messages, each.bytes) for info in domains.values() for each in info.queues}


def _by_depth(own: Iterable[str], domains: Mapping[str, DomainInfo]) -> list[str]:
    depths = _depths(domains)
    return sorted(own, key=lambda uri: -depths.get(uri, (0, 0))[0])


def _domain(info: DomainInfo, own: Iterable[str]) -> DomainView:
    mine = set(own)
    queues = [each for each in info.queues if each.uri in mine]
    return DomainView(
        info, len(queues), sum(each.messages for each in queues), sum(each.bytes for each in queues)
    )
