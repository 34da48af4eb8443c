# SPDX-License-Identifier: Apache-2.0
"""The views of brokers as metrics for Prometheus.

The names are ``bmq_`` and the name in upstream's plugin, with Prometheus' endings: ``_total`` for counters,
``_seconds`` for times. The plugin's ``_delta`` metrics are missing, because Prometheus computes rates.

A queue's figures come from the queue's primary. Without an answer of the primary, the figures of the other
brokers appear, each with its role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bmq.admin.explanation import Obstacle
from bmq.admin.watch import AppFigures, BrokerDomain, BrokerQueue, BrokerView, ClusterView, node_name

__all__ = ["families", "gauge"]

_NANOSECONDS = 1e9
_STATES = ("LEADER", "FOLLOWER", "CANDIDATE", "DORMANT")
_ACTIVE = "ACTIVE"
_AVAILABLE = "AVAILABLE"
_PRIMARY = "primary"

_QUEUE = ("cluster", "domain", "queue", "node", "role")
_APP = (*_QUEUE, "app_id")
_DOMAIN = ("cluster", "domain", "node")
_CLUSTER = ("cluster", "node")

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


def _openings(view: BrokerQueue, name: str) -> int | None:
    """Return the count of the queue itself, otherwise the count in the statistics."""
    counted = view.inside or view.statistics
    return None if counted is None else getattr(counted, name)


# Gauges by queue: name, description, and value; None for no sample.
_GAUGES: tuple[tuple[str, str, Callable[[BrokerQueue], float | None]], ...] = (
    ("content_msgs", "Messages in the queue", lambda view: view.held and view.held[0]),
    ("content_bytes", "Bytes in the queue", lambda view: view.held and view.held[1]),
    ("cfg_msgs", "Quota of the queue in messages", lambda view: view.limit and view.limit[0]),
    ("cfg_bytes", "Quota of the queue in bytes", lambda view: view.limit and view.limit[1]),
    ("producers", "Openings for writing", lambda view: _openings(view, "producers")),
    ("consumers", "Openings for reading", lambda view: _openings(view, "consumers")),
)
_DOMAIN_GAUGES: tuple[tuple[str, str, Callable[[BrokerDomain], float]], ...] = (
    ("content_msgs", "Messages of the domain", lambda domain: domain.info.usage.messages),
    ("content_bytes", "Bytes of the domain", lambda domain: domain.info.usage.bytes),
    ("cfg_msgs", "Quota of the domain in messages", lambda domain: domain.info.usage.message_limit),
    ("cfg_bytes", "Quota of the domain in bytes", lambda domain: domain.info.usage.byte_limit),
    ("queues", "Queues whose primary is the node, all queues", lambda domain: domain.queues),
)
_APP_GAUGES: tuple[tuple[str, str, Callable[[AppFigures], float]], ...] = (
    ("app_content_msgs", "Messages that wait for an application", lambda app: app.messages),
    ("app_consumers", "Consumers of an application", lambda app: app.consumers),
    ("app_unconfirmed_msgs", "Messages delivered and not confirmed", lambda app: app.unconfirmed),
)


def families(views: Iterable[BrokerView], now: datetime, max_apps: int) -> list[Metric]:
    """Return the metrics of all brokers' views.

    Args:
        views: the last view of each broker that answers.
        now: the present time, for ages.
        max_apps: number of applications of a queue with series.
    """
    views = _distinct(views)
    queues = _queues(views)
    return [
        *_of_queues(queues, now),
        *_of_apps(queues, max_apps),
        *_of_domains(views),
        *_of_clusters([(view, cluster) for view in views for cluster in view.clusters]),
    ]


def _distinct(views: Iterable[BrokerView]) -> list[BrokerView]:
    """Leave out a broker that has two addresses: a second sample of a series is an error in Prometheus."""
    found: dict[tuple[tuple[str, str], ...], BrokerView] = {}
    for view in views:
        found.setdefault(tuple((each.cluster, view.label(each.cluster)) for each in view.clusters), view)
    return list(found.values())


def _queues(views: list[BrokerView]) -> list[tuple[str, BrokerQueue]]:
    """Return each queue as its primary knows it; without a primary, as each of the other brokers does."""
    found: dict[str, list[tuple[str, BrokerQueue]]] = {}
    for view in views:
        for queue in view.queues:
            found.setdefault(queue.uri, []).append((view.label(queue.cluster), queue))
    return [
        each
        for uri in sorted(found)
        for each in [each for each in found[uri] if each[1].role == _PRIMARY] or found[uri]
    ]


def _labels(node: str, view: BrokerQueue) -> list[str]:
    return [view.cluster, view.domain, view.uri, node, view.role]


def gauge(
    name: str, what: str, labels: tuple[str, ...], samples: Iterable[tuple[list[str], float | None]]
) -> Metric:
    """Return a gauge with the samples that have a value."""
    family = GaugeMetricFamily(name, what, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def _of_queues(queues: list[tuple[str, BrokerQueue]], now: datetime) -> Iterable[Metric]:
    rows = [(_labels(node, view), view) for node, view in queues]
    counted = [(labels, view.statistics.values) for labels, view in rows if view.statistics is not None]
    for name, what, value in _GAUGES:
        yield gauge(f"bmq_queue_{name}", what, _QUEUE, ((labels, value(view)) for labels, view in rows))
    for name, key, what in _COUNTERS:
        counter = CounterMetricFamily(f"bmq_queue_{name}", what, labels=_QUEUE)
        for labels, values in counted:
            counter.add_metric(labels, values.get(key, 0))
        yield counter
    for name, what in _TIMES:
        times = ((labels, values.get(f"queue_{name}", 0) / _NANOSECONDS) for labels, values in counted)
        yield gauge(f"bmq_queue_{name}_seconds", what, _QUEUE, times)
    ages = [
        (labels, view.ttl, max(0.0, (now - view.inside.oldest.arrival).total_seconds()))
        for labels, view in rows
        if view.inside is not None and view.inside.oldest is not None
    ]
    yield gauge(
        "bmq_queue_oldest_message_age_seconds",
        "Time since the arrival of the oldest message",
        _QUEUE,
        ((labels, seconds) for labels, _, seconds in ages),
    )
    yield gauge(
        "bmq_queue_oldest_message_ttl_seconds",
        "Time until the oldest message expires",
        _QUEUE,
        ((labels, max(0.0, ttl - seconds)) for labels, ttl, seconds in ages if ttl is not None),
    )
    whole = "Time that the queue keeps a message"
    yield gauge("bmq_queue_ttl_seconds", whole, _QUEUE, ((labels, view.ttl) for labels, view in rows))


def _of_apps(queues: list[tuple[str, BrokerQueue]], max_apps: int) -> Iterable[Metric]:
    apps = [
        ([*_labels(node, view), app.app_id], app)
        for node, view in queues
        if view.inside is not None
        for app in view.inside.apps[:max_apps]
    ]
    for name, what, value in _APP_GAUGES:
        yield gauge(f"bmq_queue_{name}", what, _APP, ((labels, value(app)) for labels, app in apps))
    yield gauge(
        "bmq_queue_app_undelivered_msgs",
        f"Messages without a delivery, by reason: {', '.join(Obstacle)}",
        (*_APP, "reason"),
        (([*labels, app.obstacle.value], app.undelivered) for labels, app in apps if app.undelivered),
    )


def _of_domains(views: list[BrokerView]) -> Iterable[Metric]:
    domains = [
        ([domain.info.cluster, domain.info.name, view.label(domain.info.cluster)], domain)
        for view in views
        for domain in view.domains
    ]
    for name, what, value in _DOMAIN_GAUGES:
        samples = ((labels, value(domain)) for labels, domain in domains)
        yield gauge(f"bmq_domain_{name}", what, _DOMAIN, samples)


def _of_clusters(clusters: list[tuple[BrokerView, ClusterView]]) -> Iterable[Metric]:
    def gauge(name: str, what: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"bmq_cluster_{name}", what, labels=[*_CLUSTER, *labels])

    healthy = gauge("healthiness", "Whether the node considers its cluster healthy", "role")
    peers = gauge("peer_available", "Whether another node is available to the node", "peer")
    state = gauge("elector_state", "1 for the node's role in the election", "state")
    leader = gauge("leader_known", "Whether the node knows a leader")
    upstream = gauge("proxy_upstream", "1 for the node behind a proxy", "upstream")
    primary = gauge("partition_primary_active", "Whether a partition has an active primary", "partition")
    who = gauge("partition_primary", "1 for the primary of a partition", "partition", "primary")
    queues = gauge("partition_queues", "Queues of a partition", "partition")
    ready = gauge("partition_available", "Whether the storage of a partition is open", "partition")
    sequence = gauge("partition_sequence_number", "Number of a partition's last record", "partition")
    waiting = gauge("partition_unreceipted_msgs", "Messages that wait for replicas", "partition")
    files = {
        attribute: gauge(f"partition_{name}_bytes", what, "partition", "file")
        for attribute, name, what in (
            ("used", "offset", "Written bytes of a partition's file"),
            ("size", "size", "Size of a partition's file"),
            ("outstanding", "outstanding", "Bytes in use of a partition's file"),
        )
    }
    for broker, view in clusters:
        here = [view.cluster, broker.label(view.cluster)]
        status = view.status
        healthy.add_metric([*here, view.role], status.healthy)
        for each in status.nodes:
            if each.connected is not None:
                up = each.connected and each.status == _AVAILABLE
                peers.add_metric([*here, node_name(each.description) or ""], up)
        if view.proxy:
            if status.active_node is not None:
                upstream.add_metric([*here, node_name(status.active_node) or ""], 1)
            continue
        for name in _STATES:
            state.add_metric([*here, name.lower()], status.elector_state == name)
        leader.add_metric(here, status.leader is not None)
        for partition in status.partitions:
            number = [*here, str(partition.id)]
            primary.add_metric(number, partition.primary is not None and partition.status == _ACTIVE)
            queues.add_metric(number, partition.queues)
            if partition.primary is not None:
                who.add_metric([*number, node_name(partition.primary) or ""], 1)
        for store in view.storage:
            number = [*here, str(store.id)]
            ready.add_metric(number, store.available)
            sequence.add_metric(number, store.sequence)
            waiting.add_metric(number, store.unreceipted)
            for kind, file in (("data", store.data), ("journal", store.journal), ("qlist", store.queue_list)):
                for name, family in files.items():
                    if file.size:
                        family.add_metric([*number, kind], getattr(file, name))
    return (
        *(healthy, peers, state, leader, upstream, primary, who, queues, ready, sequence, waiting),
        *files.values(),
    )
