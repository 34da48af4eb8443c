# SPDX-License-Identifier: Apache-2.0
"""Admin commands about the cluster. The node is a cluster of one, and answers as a real cluster does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmq.wire.control.messages import Subscription
from bmq.wire.printable import printable

if TYPE_CHECKING:
    from bmq.broker._node import Node

__all__ = [
    "CLUSTER",
    "CLUSTER_COMMANDS",
    "NODE",
    "cluster_list",
    "cluster_status",
    "print_subscriptions",
    "queue_helper",
]

Result = dict[str, Any]

#: The name of the only cluster.
CLUSTER = "local"

#: The commands' lines in the output of HELP.
CLUSTER_COMMANDS = {
    "CLUSTERS LIST": "List all active clusters",
    "CLUSTERS CLUSTER <name> STATUS": "Show the state of a cluster and of its nodes",
    "CLUSTERS CLUSTER <name> QUEUEHELPER": "Show the domains and the queues that a cluster knows",
}

#: The description of the only node.
NODE = "[localhost, 0]"
_PRIMARY_QUEUE_ID = 4294967295


def cluster_list() -> Result:
    """CLUSTERS LIST."""
    node = {"hostName": "localhost", "nodeId": 0, "dataCenter": "UNSPECIFIED"}
    return {"clusterList": {"clusters": [{"locality": "member", "name": CLUSTER, "nodes": [node]}]}}


def cluster_status(node: Node, keys: dict[str, str]) -> Result:
    """CLUSTERS CLUSTER <name> STATUS; ``keys`` are the queues' keys, by URI."""
    return {
        "clusterStatus": {
            "name": CLUSTER,
            "description": f"{CLUSTER} (cluster)",
            "selfNodeDescription": NODE,
            "isHealthy": True,
            "nodeStatuses": {
                "nodes": [{"description": NODE, "status": "E_AVAILABLE", "primaryForPartitionIds": [0]}]
            },
            "electorInfo": {
                "electorState": "LEADER",
                "leaderNode": NODE,
                "leaderMessageSequence": {"electorTerm": 1, "sequenceNumber": 1},
                "leaderStatus": "ACTIVE",
            },
            "partitionsInfo": {
                "partitions": [
                    {
                        "numQueuesMapped": len(node.queues),
                        "numActiveQueues": sum(1 for queue in node.queues.values() if queue.handles),
                        "primaryNode": NODE,
                        "primaryLeaseId": 1,
                        "primaryStatus": "ACTIVE",
                    }
                ]
            },
            "queuesInfo": {
                "storages": [
                    {
                        "queueUri": uri,
                        "queueKey": keys[uri],
                        "partitionId": 0,
                        "numMessages": 0,
                        "numBytes": 0,
                        "isPersistent": False,
                        "internalQueueId": _PRIMARY_QUEUE_ID,
                    }
                    for uri in node.queues
                ]
            },
            "clusterStorageSummary": {"clusterFileStoreLocation": "", "fileStores": []},
        }
    }


def queue_helper(node: Node, keys: dict[str, str]) -> Result:
    """CLUSTERS CLUSTER <name> QUEUEHELPER; ``keys`` are the queues' keys, by URI."""
    domains = {domain.config.name: domain for domain in node.domains.values()}
    return {
        "clusterQueueHelper": {
            "clusterName": CLUSTER,
            "locality": "local",
            "numQueues": len(node.queues),
            "numQueueKeys": len(node.queues),
            "numPendingReopenQueueRequests": 0,
            "domains": [
                {"name": name, "numAssignedQueues": len(domain.queues), "loaded": True}
                for name, domain in domains.items()
            ],
            "queues": [
                {
                    "uri": uri,
                    "numInFlightContexts": 0,
                    "isAssigned": True,
                    "isPrimaryAvailable": True,
                    "id": _PRIMARY_QUEUE_ID,
                    "subIds": [
                        {"subId": number, "appId": app_id} for number, app_id in enumerate(queue.apps, 1)
                    ],
                    "partitionId": 0,
                    "primaryNodeDescription": f" (primary: {NODE})",
                    "key": keys[uri],
                    "isCreated": True,
                    "contexts": [],
                }
                for uri, queue in node.queues.items()
            ],
        }
    }


def print_subscriptions(app_id: str, subscriptions: tuple[Subscription, ...]) -> str:
    """Return the subscriptions of a client for one application, in a real broker's format."""
    app_id = printable(app_id)
    printed = [
        f"[ sId = {each.s_id} expression = [ version = {each.expression.version.name} "
        f'text = "{printable(each.expression.text)}" ] consumers = [ '
        + "".join(
            f"[ maxUnconfirmedMessages = {info.max_unconfirmed_messages} "
            f"maxUnconfirmedBytes = {info.max_unconfirmed_bytes} "
            f"consumerPriority = {info.consumer_priority} "
            f"consumerPriorityCount = {info.consumer_priority_count} ] "
            for info in each.consumers
        )
        + "] ] "
        for each in subscriptions
    ]
    return f'[ appId = "{app_id}" subscriptions = [ {"".join(printed)}] ]'
