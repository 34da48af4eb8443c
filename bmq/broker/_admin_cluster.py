# SPDX-License-Identifier: Apache-2.0
"""Admin commands about the cluster. The node is a cluster of one, and answers as a real cluster does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bmq.wire.control.messages import Subscription
from bmq.wire.printable import printable

if TYPE_CHECKING:
    from bmq.broker._node import Node

__all__ = [
    "CLUSTER",
    "CLUSTER_COMMANDS",
    "CLUSTER_RENDERERS",
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


def _list(content: Result) -> Iterator[str]:
    yield "The following clusters are active:"
    for cluster in content["clusters"]:
        yield f"    [{cluster['locality'].upper():<6}] {cluster['name']}:"
        for node in cluster["nodes"]:
            yield f"        {node['hostName']:<20}{node['nodeId']:<7}{node['dataCenter']:<14}"
        yield ""


def _status(content: Result) -> Iterator[str]:
    title = f"Cluster ('{content['name']}') :"
    yield title
    yield "-" * (len(title) - 1)
    yield f"    Cluster name  : {content['description']}"
    yield f"    Cluster size  : {len(content['nodeStatuses']['nodes'])} node(s)"
    yield f"    Self Node     : {content['selfNodeDescription']}"
    yield f"    Is Healthy    : {'Yes' if content['isHealthy'] else 'No'}"
    yield from ("", "    Nodes", "    -----")
    for node in content["nodeStatuses"]["nodes"]:
        yield f"    {node['description']}"
        yield "        IsConnected: self"
        yield f"        Node Status: {node['status']}"
        yield f"        Primary for partitions: [ {', '.join(map(str, node['primaryForPartitionIds']))} ]"
    elector = content["electorInfo"]
    yield from ("", "    Elector", "    -------")
    yield f"    Self State            : {elector['electorState']}"
    yield f"    Leader Node           : {elector['leaderNode']}"
    yield f"    Leader Status         : {elector['leaderStatus']}"
    yield from ("", "    Partitions", "    ----------")
    for number, partition in enumerate(content["partitionsInfo"]["partitions"]):
        mapped, active = partition["numQueuesMapped"], partition["numActiveQueues"]
        yield f"    PartitionId: {number}"
        yield f"        Num Queues    : mapped ({mapped}), active ({active})"
        yield f"        Primary Node   : {partition['primaryNode']}"
        yield f"        Primary LeaseId: {partition['primaryLeaseId']}"
        yield f"        Primary Status : {partition['primaryStatus']}"
    yield from ("", "    Queues", "    ------")
    for storage in content["queuesInfo"]["storages"]:
        yield f"    {storage['queueKey']} {storage['partitionId']:7}    {storage['queueUri']}"


def _queue_helper(content: Result) -> Iterator[str]:
    yield "ClusterQueueHelper :"
    yield "--------------------"
    yield f"    cluster......................: {content['clusterName']} ({content['locality']})"
    yield f"    nbQueues.....................: {content['numQueues']}"
    yield f"    nbQueueKeys..................: {content['numQueueKeys']}"
    yield f"    nbPendingReopenQueueRequests.: {content['numPendingReopenQueueRequests']}"
    yield from ("", "    Domains :", "    ---------")
    for domain in content["domains"]:
        yield f"        {domain['name']}: numAssignedQueues={domain['numAssignedQueues']}"
    yield from ("", "    Queues :", "    --------")
    for queue in content["queues"]:
        sub_ids = ", ".join(f"({each['subId']}, {each['appId']})" for each in queue["subIds"])
        yield f"        {queue['uri']}"
        yield f"            subIds...........: {sub_ids}"
        yield f"            partitionId......: {queue['partitionId']}{queue['primaryNodeDescription']}"
        yield f"            key..............: {queue['key']}"


#: The function that turns each result into text, by the result's name.
CLUSTER_RENDERERS = {
    "clusterList": _list,
    "clusterStatus": _status,
    "clusterQueueHelper": _queue_helper,
}
