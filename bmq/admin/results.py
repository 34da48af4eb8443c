# SPDX-License-Identifier: Apache-2.0
"""What a broker answers to admin commands, as frozen values.

Sizes are in bytes, times are UTC. What a broker does not say is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

__all__ = [
    "AppDepth",
    "AppState",
    "AppStatistics",
    "Client",
    "Cluster",
    "ClusterNode",
    "ClusterStatus",
    "ClusterTopology",
    "Depth",
    "DomainInfo",
    "DomainSummary",
    "Internals",
    "MessagePage",
    "NodeStatus",
    "PartitionStatus",
    "Purged",
    "QueueStatistics",
    "ReaderSubscription",
    "Standing",
    "Statistics",
    "StoredMessage",
    "StoredQueue",
    "Stream",
    "Usage",
    "Window",
]


# ---- clusters


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as a cluster's configuration has it.

    Attributes:
        host: its name.
        id: its number.
        data_center: where it is.
    """

    host: str
    id: int
    data_center: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that the broker knows.

    Attributes:
        name: its name.
        locality: member, when the broker is one of its nodes; else local or remote.
        nodes: its nodes.
    """

    name: str
    locality: str
    nodes: tuple[ClusterNode, ...]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as another one sees it.

    Attributes:
        description: name and number, for people.
        status: the protocol's name, without ``E_``: AVAILABLE, STARTING, STOPPING, UNAVAILABLE, UNKNOWN.
        connected: whether the broker that was asked is connected to it; None for that broker itself.
        primary_for: the partitions it is the primary of.
    """

    description: str
    status: str
    connected: bool | None
    primary_for: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition of a cluster's storage.

    Attributes:
        id: its number.
        primary: its primary node, for people; None without one.
        status: ACTIVE, PASSIVE or UNDEFINED.
        queues: how many queues it has.
        active_queues: how many of them are in use.
    """

    id: int
    primary: str | None
    status: str
    queues: int
    active_queues: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """How a cluster is.

    Attributes:
        name: its name.
        healthy: whether the broker considers it healthy.
        self_node: the broker that was asked, for people.
        leader: the leader node, for people; None without one.
        elector_state: the broker's role in the election: LEADER, FOLLOWER, CANDIDATE or DORMANT.
        nodes: its nodes.
        partitions: its partitions.
        active_node: the node that a proxy forwards to, for people; None without one, and for a member.
    """

    name: str
    healthy: bool
    self_node: str
    leader: str | None
    elector_state: str
    nodes: tuple[NodeStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    active_node: str | None


# ---- domains


@dataclass(frozen=True, slots=True)
class DomainSummary:
    """A domain that a cluster has queues of.

    Attributes:
        name: its name.
        queues: how many queues it has.
        loaded: whether the broker has its configuration.
    """

    name: str
    queues: int
    loaded: bool


@dataclass(frozen=True, slots=True)
class ClusterTopology:
    """The domains and queues of a cluster.

    Attributes:
        domains: its domains, by name.
        queues: the URIs of its queues, sorted.
        partitions: the number of each queue's partition, by URI; negative where the broker does not know it.
    """

    domains: tuple[DomainSummary, ...]
    queues: tuple[str, ...]
    partitions: Mapping[str, int] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a broker in the cluster of a queue.

    Only the primary of a queue knows all of the queue's clients, subscriptions and unconfirmed messages.

    Attributes:
        broker: the address of the broker.
        node: the broker's name in the cluster; empty for a proxy, and for a broker without other nodes.
        is_primary: whether the broker is the primary of the queue; True for a broker without other nodes.
        is_proxy: whether the broker is a proxy of the cluster.
        primary: the name of the primary; None when the broker knows none.
        active_node: the node that a proxy forwards to; None without one, and for a node.
    """

    broker: str
    node: str
    is_primary: bool
    is_proxy: bool
    primary: str | None
    active_node: str | None

    @property
    def gap(self) -> str:
        """Why an answer of the broker about the queue is incomplete; empty for the primary."""
        if self.is_primary:
            return ""
        if self.is_proxy:
            active = f" (its active node is {self.active_node})" if self.active_node else ""
            return (
                f"{self.broker} is a proxy{active}: proxies answer no admin questions about queues; "
                "ask the nodes of the cluster"
            )
        primary = f"{self.primary} is" if self.primary else f"{self.node} knows of none"
        return (
            f"{self.node} is not the primary of this queue ({primary}): this answer covers {self.node} only"
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a quota is used.

    Attributes:
        messages: messages there are.
        message_limit: how many there may be.
        bytes: their bytes.
        byte_limit: how many there may be.
    """

    messages: int
    message_limit: int
    bytes: int
    byte_limit: int


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A queue in a broker's storage.

    Attributes:
        uri: its URI.
        messages: what it holds.
        bytes: their bytes.
        persistent: whether on disk.
        partition: the number of the partition that it is in.
    """

    uri: str
    messages: int
    bytes: int
    persistent: bool
    partition: int


@dataclass(frozen=True, slots=True)
class DomainInfo:
    """A domain: its configuration, and what it holds.

    Attributes:
        name: its name.
        cluster: the cluster it is on.
        mode: priority, fanout or broadcast; empty when the broker does not say.
        app_ids: the applications of a fanout domain.
        configuration: all of its configuration, as the broker has it.
        usage: of its quota.
        queues: its queues with what they hold.
    """

    name: str
    cluster: str
    mode: str
    app_ids: tuple[str, ...]
    configuration: Mapping[str, Any] = field(repr=False)
    usage: Usage
    queues: tuple[StoredQueue, ...]


# ---- queues


@dataclass(frozen=True, slots=True)
class AppDepth:
    """What a queue holds for one application.

    Attributes:
        app_id: the application; ``__default`` where there are none.
        messages: how many.
        bytes: their bytes; None where the broker does not count them by application.
    """

    app_id: str
    messages: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Depth:
    """What a queue holds.

    Attributes:
        uri: the queue.
        messages: how many; one that several applications wait for counts once.
        bytes: their bytes.
        apps: the same by application.
    """

    uri: str
    messages: int
    bytes: int
    apps: tuple[AppDepth, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """How much of a limit of unconfirmed messages is used.

    Attributes:
        messages: unconfirmed messages.
        max_messages: how many there may be.
        bytes: their bytes.
        max_bytes: how many there may be.
        full: whether the broker delivers nothing until some are confirmed.
    """

    messages: int
    max_messages: int
    bytes: int
    max_bytes: int
    full: bool


@dataclass(frozen=True, slots=True)
class ReaderSubscription:
    """One subscription of a consumer.

    Attributes:
        id: the number its client chose.
        expression: what it selects; empty for everything.
        priority: the highest is tried first.
        count: how many consumers it stands for.
        max_messages: its limit of unconfirmed messages.
        max_bytes: its limit of their bytes.
        window: how much of the limits is used. Brokers list a consumer's windows without saying which
            subscription each is of: None where two have the same limits and their windows differ.
    """

    id: int
    expression: str
    priority: int
    count: int
    max_messages: int
    max_bytes: int
    window: Window | None


@dataclass(frozen=True, slots=True)
class Stream:
    """What a client has open for one application of a queue.

    Attributes:
        app_id: the application; ``__default`` where there are none.
        unconfirmed: messages delivered and not confirmed; None where the client does not read.
        subscriptions: what it reads.
        windows: the use of their limits, in no order; a broker goes on listing those of subscriptions that
            were taken back.
    """

    app_id: str
    unconfirmed: int | None
    subscriptions: tuple[ReaderSubscription, ...]
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Client:
    """A client that has a queue open.

    Attributes:
        description: process, host and address, for people.
        readers: how many times it has the queue open for reading.
        writers: how many times for writing.
        streams: by application.
        behind: the clients of a node that forwards the queue, if the node was asked and answered.
    """

    description: str
    readers: int
    writers: int
    streams: tuple[Stream, ...]
    behind: tuple[Client, ...] = ()


@dataclass(frozen=True, slots=True)
class AppState:
    """One application of a queue.

    Attributes:
        app_id: its name; ``__default`` where there are none.
        status: "alive" with consumers, "registered" without, "unauthorized" when the domain does not have it.
        consumers: how many there are.
        redelivery: messages that wait to be delivered again.
        at_end: whether everything stored was looked at for it; None when the broker does not say.
    """

    app_id: str
    status: str
    consumers: int
    redelivery: int
    at_end: bool | None


@dataclass(frozen=True, slots=True)
class Internals:
    """A queue with its clients, consumers and subscriptions.

    Attributes:
        uri: the queue.
        mode: priority, fanout or broadcast; empty on a node that only forwards the queue.
        depth: what it holds.
        usage: of its quota; None when the broker does not say.
        clients: who has it open.
        apps: its applications.
    """

    uri: str
    mode: str
    depth: Depth
    usage: Usage | None
    clients: tuple[Client, ...]
    apps: tuple[AppState, ...]


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in a queue: what a broker tells of it without delivering it.

    Attributes:
        guid: 32 upper-case hexadecimal digits.
        size: its properties and payload, as they are stored.
        arrival: when it came.
    """

    guid: str
    size: int
    arrival: datetime


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a queue, oldest first.

    Attributes:
        messages: the messages.
        offset: how many there are before them.
        total: how many there are.
    """

    messages: tuple[StoredMessage, ...]
    offset: int
    total: int


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge took out of one queue.

    Attributes:
        uri: the queue.
        app_id: the application; empty for all.
        messages: how many.
        bytes: their bytes.
    """

    uri: str
    app_id: str
    messages: int
    bytes: int


# ---- statistics


@dataclass(frozen=True, slots=True)
class AppStatistics:
    """The statistics of one application of a queue.

    Attributes:
        app_id: its name.
        messages: what waits for it.
        bytes: their bytes; None when the broker does not say.
        values: everything the broker says, by its own names.
    """

    app_id: str
    messages: int
    bytes: int | None
    values: Mapping[str, int] = field(repr=False)


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """The statistics of a queue; totals count from when the broker started, or got the queue.

    Attributes:
        uri: the queue.
        domain: its domain.
        producers: how often it is open for writing.
        consumers: how often it is open for reading.
        messages: what it holds.
        bytes: their bytes.
        posted: messages posted.
        posted_bytes: their bytes.
        pushed: messages delivered, each time counted.
        acknowledged: acknowledgements sent.
        refused: negative acknowledgements sent.
        confirmed: confirmations.
        rejected: messages given up after too many deliveries.
        expired: messages whose TTL ended.
        apps: by application, where the broker tells.
        values: everything the broker says, by its own names.
    """

    uri: str
    domain: str
    producers: int
    consumers: int
    messages: int
    bytes: int
    posted: int
    posted_bytes: int
    pushed: int
    acknowledged: int
    refused: int
    confirmed: int
    rejected: int
    expired: int
    apps: tuple[AppStatistics, ...]
    values: Mapping[str, int] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a broker.

    Attributes:
        time: when the broker made them.
        queues: by queue, sorted by URI.
    """

    time: datetime
    queues: tuple[QueueStatistics, ...]
