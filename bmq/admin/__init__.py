# SPDX-License-Identifier: Apache-2.0
"""A broker's admin commands as typed calls.

::

    async with bmq.admin.connect("tcp://localhost:30114") as admin:
        depth = await admin.queue("bmq://bmq.test.mem.priority/orders").depth()

The usual commands have methods. :meth:`Admin.command` sends any other line, and :meth:`Admin.query` returns
the answer decoded. :func:`danger_of` returns the danger of a line.
"""

TYPE_CHECKING = False  # type checkers take this name for true

if TYPE_CHECKING:
    from bmq.admin.client import Admin, QueueAdmin, connect
    from bmq.admin.commands import Danger, danger_of
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
        PartitionStorage,
        Purged,
        QueueStatistics,
        ReaderSubscription,
        Standing,
        Statistics,
        StorageFile,
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
    "Danger",
    "Depth",
    "DomainInfo",
    "DomainSummary",
    "Internals",
    "MessagePage",
    "NodeStatus",
    "PartitionStatus",
    "PartitionStorage",
    "Purged",
    "QueueAdmin",
    "QueueStatistics",
    "ReaderSubscription",
    "Standing",
    "Statistics",
    "StorageFile",
    "StoredMessage",
    "StoredQueue",
    "Stream",
    "Usage",
    "Window",
    "connect",
    "danger_of",
]

# Loaded when a name is first used: the client takes as long to import as asyncio, and bmq.admin.words and
# bmq.admin.commands need neither.
_MODULES = ("commands", "results", "client")

# Type checkers see only the imports above, and report all unknown names as errors.
if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module

        for module in _MODULES if name in __all__ else ():
            found = import_module(f"bmq.admin.{module}")
            if name in found.__all__:
                value = globals()[name] = getattr(found, name)
                return value
        if name in _MODULES:
            return import_module(f"bmq.admin.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
