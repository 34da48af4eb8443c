# SPDX-License-Identifier: Apache-2.0
"""The metrics of ``bmq exporter``: what brokers report, for Prometheus.

The names are ``bmq_`` and the name in upstream's plugin, with Prometheus' endings: ``_total`` for counters,
``_seconds`` for times. The plugin's ``_delta`` metrics are missing, because Prometheus computes rates.

A queue's figures come from the queue's primary. Without an answer of the primary, the figures of the other
brokers appear, each with its role.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import bmq
from bmq import _world
from bmq.admin import Admin
from bmq.admin.explanation import Explanation, Obstacle
from bmq.admin.results import ttl_of
from bmq.admin.watch import BrokerView, BrokerWatch, ClusterView, DomainFigures, QueueFigures, node_name
from bmq.cli.output import note
from bmq.cli.target import BrokerTarget
from bmq.client.address import Address

# ---- asking


class Labels:
    """The names with separate series, a limited number.

    A name keeps the place until the name is gone from every broker: a series never changes the meaning.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chosen: set[str] = set()
        # The last names of each broker, also of a silent one.
        self._names: dict[str, set[str]] = {}
        self._left_out: dict[str, set[str]] = {}

    def choose(self, broker: str, names: Iterable[str]) -> frozenset[str]:
        """Return the names with series among all names of a broker; earlier names go first."""
        names = list(names)
        present = self._names[broker] = set(names)
        self._chosen &= set[str]().union(*self._names.values())
        for name in names:
            if len(self._chosen) < self._limit:
                self._chosen.add(name)
        chosen = frozenset(present & self._chosen)
        self._left_out[broker] = present - chosen
        return chosen

    def forget(self, broker: str) -> None:
        """Leave a silent broker out of the counts; the names keep the places."""
        self._left_out.pop(broker, None)

    @property
    def left_out(self) -> int:
        """Number of names without series."""
        return len(set[str]().union(*self._left_out.values()))


class _Broker:
    """A broker: the connection, and the last view.

    Attributes:
        view: the answers of the last round; absent after a failure.
        stale: age in seconds of the oldest explanation.
        failures: failed rounds, by class of the error.
        seconds: duration of the last round.
    """

    def __init__(self, exporter: Exporter, target: BrokerTarget, address: str, only: frozenset[str]) -> None:
        self._exporter = exporter
        self._target = replace(target, uri=address)
        self._admin: Admin | None = None
        self._reported = ""
        self.address = address
        choose_domains = partial(exporter.domains.choose, address)
        self.watch = BrokerWatch(choose_domains=choose_domains, only=only, left_out=self._left_out)
        self.view: BrokerView | None = None
        self._explanations: dict[str, Explanation] = {}
        self.stale = 0.0
        self.failures = Counter[str]()
        self.seconds = 0.0

    def _left_out(self, name: str, error: bmq.ProtocolError) -> None:
        note(f"bmq exporter: {self.address}: {name} is left out: {error}")

    async def ask(self) -> None:
        """Ask for a new view. A failure is kept as a count and as a line on stderr."""
        started = _world.monotonic()
        try:
            if self._admin is None:
                self._admin = await self._target.admin()
            view = await self.watch.look(self._admin)
            chosen = self._exporter.queues.choose(self.address, [queue.uri for queue in view.queues])
            view = replace(view, queues=tuple(queue for queue in view.queues if queue.uri in chosen))
            self.view = replace(view, explanations=await self._explain(self._admin, view.queues))
        except Exception as error:
            self.view = None
            self._explanations = {}
            self._exporter.queues.forget(self.address)
            self._exporter.domains.forget(self.address)
            name = type(error).__name__
            self.failures[name] += 1
            if self._reported != name:
                expected = isinstance(error, bmq.Error | OSError)
                what = f"does not answer: {error}" if expected else f"could not be asked: {error!r}"
                note(f"bmq exporter: {self.address} {what}")
            self._reported = name
            with suppress(Exception):
                await self.close()
        else:
            if self._reported:
                note(f"bmq exporter: {self.address} answers again")
            self._reported = ""
        self.seconds = _world.monotonic() - started

    async def _explain(self, admin: Admin, queues: Iterable[QueueFigures]) -> dict[str, Explanation]:
        """Ask about some queues; the other ones keep their answers, and have a turn in the next rounds."""
        waiting = [queue for queue in queues if queue.waits]
        known = {queue.uri: found for queue in waiting if (found := self._explanations.get(queue.uri))}
        waiting.sort(key=lambda queue: known[queue.uri].at if queue.uri in known else float("-inf"))
        answers = await self.watch.explain(admin, waiting[: self._exporter.max_details])
        self._explanations = {uri: each for uri, each in (known | answers).items() if each is not None}
        now = asyncio.get_running_loop().time()
        self.stale = max((now - each.at for each in self._explanations.values()), default=0.0)
        return self._explanations

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()


class Exporter(Collector):
    """Asks each broker in a separate loop, and collects the last views."""

    def __init__(
        self,
        target: BrokerTarget,
        addresses: Iterable[Address],
        *,
        interval: float,
        max_queues: int,
        max_apps: int,
        max_details: int,
        only: frozenset[str],
    ) -> None:
        self._interval = interval
        self._max_apps = max_apps
        self.max_details = max_details
        self.queues, self.domains = Labels(max_queues), Labels(max_queues)
        self._brokers = [_Broker(self, target, str(each), only) for each in dict.fromkeys(addresses)]

    async def ask_all(self) -> None:
        """Ask all brokers once, at the same time."""
        await asyncio.gather(*(broker.ask() for broker in self._brokers))

    async def run(self) -> None:
        """Ask all brokers, until cancelled."""
        await asyncio.gather(*map(self._repeat, self._brokers))

    async def _repeat(self, broker: _Broker) -> None:
        while True:
            # A slow broker gets a pause as long as the last round.
            await asyncio.sleep(max(self._interval - broker.seconds, broker.seconds))
            await broker.ask()

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*(broker.close() for broker in self._brokers))

    # in the thread of a scrape: a view is replaced, and never changed

    def describe(self) -> Iterable[Metric]:
        """Return no description: a registration would collect otherwise."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the last views."""
        scrape = _Scrape()
        views: list[BrokerView] = []
        for broker in self._brokers:
            view = broker.view  # another thread replaces the views
            _add_broker(scrape, broker, view)
            if view is not None:
                views.append(view)
        apps = [len(each.internals.depth.apps) for view in views for each in view.explanations.values()]
        apps_left_out = sum(max(0, count - self._max_apps) for count in apps)
        left_out = {"queues": self.queues.left_out, "domains": self.domains.left_out, "apps": apps_left_out}
        for name, count in left_out.items():
            scrape.add(f"bmq_exporter_left_out_{name}", f"Number of {name} without series", count, {})
        views = _distinct(views)
        for view, queue in _queues(views):
            _add_queue(scrape, view, queue, _world.now(), self._max_apps)
        for view in views:
            for domain in view.domains:
                _add_domain(scrape, view, domain)
            for cluster in view.clusters:
                _add_cluster(scrape, view, cluster)
        return scrape.families.values()


# ---- metrics


class _Scrape:
    """The metrics of one scrape, by name."""

    def __init__(self) -> None:
        self.families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

    def add(
        self,
        name: str,
        what: str,
        value: float | None,
        labels: dict[str, str],
        kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
    ) -> None:
        """Add a sample; None for no sample."""
        if value is None:
            return
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = kind(name, what, labels=list(labels))
        family.add_metric(list(labels.values()), value)

    def gauges(self, prefix: str, labels: dict[str, str]) -> Callable[..., None]:
        """Return a function that adds a sample with these labels and more: name, description, and value."""

        def gauge(name: str, what: str, value: float | None, **more: str) -> None:
            self.add(f"{prefix}_{name}", what, value, labels | more)

        return gauge


def _add_broker(scrape: _Scrape, broker: _Broker, view: BrokerView | None) -> None:
    labels = {"broker": broker.address}
    gauge = scrape.gauges("bmq", labels)
    gauge("broker_up", "Whether a broker answered the last round", view is not None)
    gauge("exporter_round_seconds", "Duration of the last round of commands", broker.seconds)
    what = "Queues and domains whose answers could not be read in the last round"
    gauge("exporter_unreadable", what, len(broker.watch.unreadable))
    for name, count in list(broker.watch.commands.items()):
        labelled = labels | {"command": name}
        scrape.add("bmq_exporter_commands", "Admin commands sent", count, labelled, CounterMetricFamily)
    for name, count in list(broker.failures.items()):
        what, labelled = "Rounds without a complete answer", labels | {"error": name}
        scrape.add("bmq_exporter_failed_rounds", what, count, labelled, CounterMetricFamily)
    if view is None:
        return
    at = view.time.timestamp()
    gauge("exporter_last_success_timestamp_seconds", "Time of the last answers", at)
    gauge("exporter_oldest_details_seconds", "Age of the oldest answer about one queue", broker.stale)
    for each in view.clusters:
        node = {"cluster": each.cluster, "node": view.label(each.cluster), "role": each.role}
        gauge("broker_info", "1 for the name and role of a broker in a cluster", 1, **node)


def _distinct(views: Iterable[BrokerView]) -> list[BrokerView]:
    """Leave out a broker that has two addresses: a second sample of a series is an error in Prometheus."""
    found: dict[tuple[tuple[str, str], ...], BrokerView] = {}
    for view in views:
        found.setdefault(tuple((each.cluster, view.label(each.cluster)) for each in view.clusters), view)
    return list(found.values())


def _queues(views: list[BrokerView]) -> list[tuple[BrokerView, QueueFigures]]:
    """Return each queue as its primary knows it; without a primary, as each of the other brokers does."""
    found: dict[str, list[tuple[BrokerView, QueueFigures]]] = {}
    for view in views:
        for queue in view.queues:
            found.setdefault(queue.uri, []).append((view, queue))
    return [
        each
        for uri in sorted(found)
        for each in [each for each in found[uri] if each[1].role == "primary"] or found[uri]
    ]


# Counters by queue: the plugin's name, the broker's name in its statistics, and the description.
_COUNTERS = (
    ("put_msgs", "queue_put_msgs_abs", "Messages posted"),
    ("put_bytes", "queue_put_bytes_abs", "Bytes posted"),
    ("push_msgs", "queue_push_msgs_abs", "Deliveries, redeliveries included"),
    ("push_bytes", "queue_push_bytes_abs", "Bytes of deliveries"),
    ("ack_msgs", "queue_ack_msgs_abs", "Posts acknowledged"),
    ("nack_msgs", "queue_nack_msgs_abs", "Posts refused"),
    ("nack_noquorum_msgs", "queue_nack_noquorum_msgs_abs", "Posts refused for lack of replicas"),
    ("confirm_msgs", "queue_confirm_msgs_abs", "Confirmations"),
    ("reject_msgs", "queue_reject_msgs_abs", "Messages deleted after too many deliveries"),
    ("gc_msgs", "queue_gc_msgs_abs", "Messages whose time to live ended"),
)
# Times by queue, over the broker's last snapshots: the plugin's name, and the description.
_TIMES = (
    ("ack_time_avg", "Mean time from a post to its acknowledgement, lately"),
    ("ack_time_max", "Longest time from a post to its acknowledgement, lately"),
    ("confirm_time_avg", "Mean time from a delivery to its confirmation, lately"),
    ("confirm_time_max", "Longest time from a delivery to its confirmation, lately"),
    ("queue_time_avg", "Mean time of messages in the queue, until confirmed, lately"),
    ("queue_time_max", "Longest time of a message in the queue, until confirmed, lately"),
)
_NANOSECONDS = 1e9


def _limit(domain: DomainFigures | None, found: Explanation | None) -> tuple[int, int] | None:
    """Return the quota of a queue, messages and bytes; None if unknown."""
    if found is not None and (usage := found.internals.usage) is not None:
        return usage.message_limit, usage.byte_limit
    return domain.limits[1] if domain is not None and any(domain.limits[1]) else None


def _add_queue(scrape: _Scrape, view: BrokerView, queue: QueueFigures, now: datetime, max_apps: int) -> None:
    found = view.explanations.get(queue.uri)
    labels = {
        "cluster": queue.cluster,
        "domain": queue.name,
        "queue": queue.uri,
        "node": view.label(queue.cluster),
        "role": queue.role,
    }
    gauge = scrape.gauges("bmq_queue", labels)
    held = (None, None) if queue.domain is None else queue.held
    limit = _limit(queue.domain, found) or (None, None)
    ttl = None if queue.domain is None else ttl_of(queue.domain.info)
    openings: tuple[int, int] | tuple[None, None] = None, None
    if found is not None:
        clients = found.internals.clients
        openings = sum(client.writers for client in clients), sum(client.readers for client in clients)
    elif queue.statistics is not None:
        openings = queue.statistics.producers, queue.statistics.consumers
    gauge("content_msgs", "Messages in the queue", held[0])
    gauge("content_bytes", "Bytes in the queue", held[1])
    gauge("cfg_msgs", "Quota of the queue in messages", limit[0])
    gauge("cfg_bytes", "Quota of the queue in bytes", limit[1])
    gauge("producers", "Openings for writing", openings[0])
    gauge("consumers", "Openings for reading", openings[1])
    gauge("ttl_seconds", "Time that the queue keeps a message", ttl)
    if queue.statistics is not None:
        values = queue.statistics.values
        for name, key, what in _COUNTERS:
            scrape.add(f"bmq_queue_{name}", what, values.get(key, 0), labels, CounterMetricFamily)
        for name, what in _TIMES:
            gauge(f"{name}_seconds", what, values.get(f"queue_{name}", 0) / _NANOSECONDS)
    if found is None:
        return
    if found.oldest is not None:
        age = max(0.0, (now - found.oldest.arrival).total_seconds())
        gauge("oldest_message_age_seconds", "Time since the arrival of the oldest message", age)
        left = None if ttl is None else max(0.0, ttl - age)
        gauge("oldest_message_ttl_seconds", "Time until the oldest message expires", left)
    consumers = {app.app_id: app.consumers for app in found.internals.apps}
    for app in found.internals.depth.apps[:max_apps]:
        undelivered, obstacle = found.undelivered(app)
        unconfirmed = app.messages - undelivered
        of_app = {"app_id": app.app_id}
        gauge("app_content_msgs", "Messages that wait for an application", app.messages, **of_app)
        gauge("app_consumers", "Consumers of an application", consumers.get(app.app_id, 0), **of_app)
        gauge("app_unconfirmed_msgs", "Messages delivered and not confirmed", unconfirmed, **of_app)
        what = f"Messages without a delivery, by reason: {', '.join(Obstacle)}"
        gauge("app_undelivered_msgs", what, undelivered or None, **of_app, reason=obstacle.value)


def _add_domain(scrape: _Scrape, view: BrokerView, domain: DomainFigures) -> None:
    cluster = domain.info.cluster
    labels = {"cluster": cluster, "domain": domain.info.name, "node": view.label(cluster)}
    gauge, usage = scrape.gauges("bmq_domain", labels), domain.info.usage
    gauge("content_msgs", "Messages of the domain", usage.messages)
    gauge("content_bytes", "Bytes of the domain", usage.bytes)
    gauge("cfg_msgs", "Quota of the domain in messages", usage.message_limit)
    gauge("cfg_bytes", "Quota of the domain in bytes", usage.byte_limit)
    gauge("queues", "Queues whose primary is the node, all queues", domain.queues)


def _add_cluster(scrape: _Scrape, broker: BrokerView, view: ClusterView) -> None:
    here = {"cluster": view.cluster, "node": broker.label(view.cluster)}
    gauge, status = scrape.gauges("bmq_cluster", here), view.status
    gauge("healthiness", "Whether the node considers its cluster healthy", status.healthy, role=view.role)
    for each in status.nodes:
        if each.connected is not None:
            up = each.connected and each.status == "AVAILABLE"
            peer = node_name(each.description) or ""
            gauge("peer_available", "Whether another node is available to the node", up, peer=peer)
    if view.proxy:
        if upstream := node_name(status.active_node):
            gauge("proxy_upstream", "1 for the node behind a proxy", 1, upstream=upstream)
        return
    for state in ("LEADER", "FOLLOWER", "CANDIDATE", "DORMANT"):
        what = "1 for the node's role in the election"
        gauge("elector_state", what, status.elector_state == state, state=state.lower())
    gauge("leader_known", "Whether the node knows a leader", status.leader is not None)
    for partition in status.partitions:
        number = str(partition.id)
        primary = node_name(partition.primary)
        active = primary is not None and partition.status == "ACTIVE"
        what = "Whether a partition has an active primary"
        gauge("partition_primary_active", what, active, partition=number)
        gauge("partition_queues", "Queues of a partition", partition.queues, partition=number)
        if primary is not None:
            what = "1 for the primary of a partition"
            gauge("partition_primary", what, 1, partition=number, primary=primary)
    for store in view.storage:
        number = str(store.id)
        what = "Whether the storage of a partition is open"
        gauge("partition_available", what, store.available, partition=number)
        what = "Number of a partition's last record"
        gauge("partition_sequence_number", what, store.sequence, partition=number)
        what = "Messages that wait for replicas"
        gauge("partition_unreceipted_msgs", what, store.unreceipted, partition=number)
        for kind, file in (("data", store.data), ("journal", store.journal), ("qlist", store.queue_list)):
            if file.size:
                labels = {"partition": number, "file": kind}
                gauge("partition_offset_bytes", "Written bytes of a partition's file", file.used, **labels)
                gauge("partition_size_bytes", "Size of a partition's file", file.size, **labels)
                what = "Bytes in use of a partition's file"
                gauge("partition_outstanding_bytes", what, file.outstanding, **labels)
