# SPDX-License-Identifier: Apache-2.0
"""A broker's admin commands as typed calls.

::

    async with bmq.admin.connect("tcp://localhost:30114") as admin:
        depth = await admin.queue("bmq://bmq.test.mem.priority/orders").depth()

Commands without a method go through :meth:`Admin.command`.
"""

from bmq.admin.client import Admin, QueueAdmin, connect
from bmq.admin.results import (
    AppDepth,
    AppState,
    AppStatistics,
    Client,
    Cluster,
    ClusterNode,
    ClusterStatus,
    ClusterTopology,
    Depth,
    DomainInfo,
    DomainSummary,
    Internals,
    MessagePage,
    NodeStatus,
    PartitionStatus,
    Purged,
    QueueStatistics,
    ReaderSubscription,
    Standing,
    Statistics,
    StoredMessage,
    StoredQueue,
    Stream,
    Usage,
    Window,
)

__all__ = [
    "Admin",
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
    "QueueAdmin",
    "QueueStatistics",
    "ReaderSubscription",
    "Standing",
    "Statistics",
    "StoredMessage",
    "StoredQueue",
    "Stream",
    "Usage",
    "Window",
    "connect",
]
