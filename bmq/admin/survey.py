# SPDX-License-Identifier: Apache-2.0
"""A broker's view of its clusters, and the broker's role in each cluster."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.admin.results import Cluster, ClusterStatus, ClusterTopology, Standing
from bmq.wire.printable import printable

__all__ = ["Survey", "View", "alone"]


def alone(cluster: Cluster) -> bool:
    """Whether a cluster consists only of the answering broker."""
    return cluster.locality == "local" or (cluster.locality != "remote" and len(cluster.nodes) <= 1)


def _name(description: str | None) -> str | None:
    """Return the name of a node from the node's description, ``[name, number]``."""
    if description is None:
        return None
    return printable(description.strip("[] ").partition(",")[0])


@dataclass(frozen=True, slots=True)
class View:
    """A broker's view of one cluster with other nodes.

    Attributes:
        cluster: the name of the cluster.
        proxy: whether the broker is a proxy of the cluster.
        status: the state of the cluster.
        topology: the queues of the cluster; for a proxy, the queues opened by the proxy's clients.
    """

    cluster: str
    proxy: bool
    status: ClusterStatus
    topology: ClusterTopology

    @property
    def node(self) -> str:
        """The broker's name in the cluster; empty for a proxy."""
        return _name(self.status.self_node) or ""

    def primary(self, uri: str) -> str | None:
        """Return the name of the primary of a queue; None if the primary is unknown."""
        number = self.topology.partitions.get(uri, -1)
        partitions = self.status.partitions
        return _name(partitions[number].primary) if 0 <= number < len(partitions) else None

    def is_primary(self, partition: int) -> bool:
        """Whether the broker is the primary of a partition."""
        return not self.proxy and any(
            each.id == partition and _name(each.primary) == self.node for each in self.status.partitions
        )

    @property
    def primaries(self) -> set[str | None]:
        """The primaries of all partitions with queues; None for a partition without a primary."""
        return {_name(each.primary) for each in self.status.partitions if each.queues}


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
    views: tuple[View, ...]
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
        members = [view for view in self.views if not view.proxy]
        for view in members:
            if uri in view.topology.partitions:
                primary = view.primary(uri)
                return Standing(self.broker, view.node, primary == view.node, False, primary, None)
        for view in self.views:
            if view.proxy:
                return Standing(self.broker, "", False, True, None, _name(view.status.active_node))
        return Standing(self.broker, members[0].node, False, False, None, None)
