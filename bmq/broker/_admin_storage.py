# SPDX-License-Identifier: Apache-2.0
"""Admin commands about storage, settings and the broker's configuration.

The embedded broker keeps messages in memory: its one partition has no files, and a rollover has nothing to
copy. The settings of elector and replication are those of a cluster of one node. A changed value is
remembered and has no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmq._json import orjson
from bmq._version import __version__
from bmq.broker._admin_cluster import NODE

if TYPE_CHECKING:
    from bmq.broker._node import Node

__all__ = [
    "STORAGE_COMMANDS",
    "Refusal",
    "broker_configuration",
    "change_partition",
    "list_tunables",
    "show_or_change_tunable",
    "storage_summary",
    "stored_queue",
]

Result = dict[str, Any]

#: The commands' lines in the output of HELP.
STORAGE_COMMANDS = {
    "BROKERCONFIG DUMP": "Show the broker's configuration",
    "CLUSTERS CLUSTER <name> STORAGE SUMMARY": "Show the storage of a cluster",
    "CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> SUMMARY": "Show the storage of a partition",
    "CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> [ENABLE|DISABLE]": "Have a partition accept or "
    "refuse posts; without files no effect",
    "CLUSTERS CLUSTER <name> STORAGE PARTITION (<partitionId>|ALL) ROLLOVER": "Continue with new files; "
    "without files no effect",
    "CLUSTERS CLUSTER <name> STORAGE DOMAIN <domain_name> QUEUE_STATUS": "Show the queues of a domain in the "
    "storage",
    "CLUSTERS CLUSTER <name> STORAGE REPLICATION [SET|SET_ALL] <parameter> <value>": "Change a setting of "
    "the replication; remembered without effect",
    "CLUSTERS CLUSTER <name> STORAGE REPLICATION [GET|GET_ALL] <parameter>": "Show a setting of the "
    "replication",
    "CLUSTERS CLUSTER <name> STORAGE REPLICATION LIST_TUNABLES": "Show all settings of the replication",
    "CLUSTERS CLUSTER <name> STATE ELECTOR [SET|SET_ALL] <parameter> <value>": "Change a setting of the "
    "elector; remembered without effect",
    "CLUSTERS CLUSTER <name> STATE ELECTOR [GET|GET_ALL] <parameter>": "Show a setting of the elector",
    "CLUSTERS CLUSTER <name> STATE ELECTOR LIST_TUNABLES": "Show all settings of the elector",
    "STAT SET <parameter> <value>": "Change a setting of the statistics; this broker has none",
    "STAT GET <parameter>": "Show a setting of the statistics; this broker has none",
    "STAT LIST_TUNABLES": "Show all settings of the statistics; this broker has none",
}

_QUORUM = "QUORUM"
_DESCRIPTIONS = {
    "ELECTOR": "non-negative integer count of the number of peers required to have consensus",
    "REPLICATION": "non-negative integer count of the number of peers required to persist each message",
}
# A real broker reads other words of a value as dates, times and texts, which no setting accepts.
_INT64 = 2**63


class Refusal(Exception):
    """The command cannot be carried out; the message is the answer."""


def broker_configuration(node: Node) -> Result:
    """BROKERCONFIG DUMP: the members of a real broker's configuration that this broker has."""
    configuration = {
        "brokerInstanceName": "embedded",
        "brokerVersion": 999999,
        "configVersion": 999999,
        "etcDir": str(node.source.missing),
        "hostName": "localhost",
        "hostTags": f"bmq {__version__}",
        "hostDataCenter": "UNSPECIFIED",
        "bmqconfConfig": {"cacheTTLSeconds": 0},
    }
    return {"brokerConfig": {"asJSON": orjson.dumps(configuration, option=orjson.OPT_INDENT_2).decode()}}


def stored_queue(uri: str, key: str, messages: int, size: int, persistent: bool) -> Result:
    """One queue in the storage."""
    return {
        "queueUri": uri,
        "queueKey": key,
        "partitionId": 0,
        "numMessages": messages,
        "numBytes": size,
        "isPersistent": persistent,
        "internalQueueId": 0,
    }


def storage_summary(node: Node, queues: list[Result], partition: str | None = None) -> Result:
    """STORAGE SUMMARY, and STORAGE PARTITION <id> SUMMARY."""
    if partition is not None:
        _check_partition(partition)
    empty = {"positionBytes": 0, "sizeBytes": 0, "outstandingBytes": 0}
    summary: Result = {
        "primaryNodeDescription": NODE,
        "primaryLeaseId": 1,
        "sequenceNum": sum(queue.posted for queue in node.queues.values()),
        "isAvailable": node.available,
        "fileSets": [],
        "activeFileSet": {"dataFile": empty, "journalFile": empty, "qlistFile": empty},
        "totalMappedBytes": 0,
        "numOutstandingRecords": sum(len(queue.store) for queue in node.queues.values()),
        "numUnreceiptedMessages": 0,
        "naglePacketCount": 0,
        "storageContent": {"storages": queues},
    }
    store: Result = {"partitionId": 0, "state": "open", "summary": summary}
    return {"clusterStorageSummary": {"clusterFileStoreLocation": "", "fileStores": [store]}}


def _check_partition(text: str, *, lowest: int = 0) -> int:
    try:
        number = int(text) if text.upper() != "ALL" else -1
    except ValueError:
        raise Refusal(
            "Unable to decode command (rc: -1, error: 'Invalid <partitionId> in command CLUSTERS CLUSTER "
            f"<name> STORAGE PARTITION <partitionId>: {text}')"
        ) from None
    if number > 0:
        raise Refusal(f"Too high partitionId value: '{number}'")
    if number < lowest:
        raise Refusal(f"Too low partitionId value: '{number}'")
    return number


def change_partition(node: Node, partition: str, action: str) -> Result:
    """STORAGE PARTITION <id> ENABLE, DISABLE and ROLLOVER."""
    _check_partition(partition, lowest=-1 if action == "ROLLOVER" else 0)
    if action != "ROLLOVER":
        node.available = action == "ENABLE"
    return {"success": {}}


def list_tunables(node: Node, scope: str) -> Result:
    """LIST_TUNABLES of STAT, ELECTOR or REPLICATION."""
    if scope == "STAT":
        return {"tunables": {"tunables": []}}
    value = {"theInteger": node.quorums[scope]}
    entry = {"name": _QUORUM, "value": value, "description": _DESCRIPTIONS[scope]}
    return {"tunables": {"tunables": [entry]}}


def show_or_change_tunable(node: Node, scope: str, name: str, value: str | None) -> Result:
    """GET, GET_ALL, SET and SET_ALL: changes the setting with a value, shows the setting without."""
    if scope == "STAT":
        _refuse_stat(name, value)
    if name.upper() != _QUORUM:
        raise Refusal(f"Unknown tunable name '{name}'" if value is not None else _unsupported(name))
    present = node.quorums[scope]
    if value is None:
        return {"tunable": {"name": "Quorum", "value": {"theInteger": present}, "description": ""}}
    node.quorums[scope] = chosen = _quorum(value)
    return {
        "tunableConfirmation": {
            "name": "Quorum",
            "oldValue": {"theInteger": present},
            "newValue": {"theInteger": chosen},
        }
    }


def _unsupported(name: str) -> str:
    return (
        f"Unsupported tunable '{name}': Issue the LIST_TUNABLES command for the list of supported tunables."
    )


def _refuse_stat(name: str, value: str | None) -> None:
    consumer, suffix = name[: -len(_INTERVAL)], name[-len(_INTERVAL) :]
    if not consumer or suffix.upper() != _INTERVAL:
        raise Refusal(_unsupported(name))
    if value is None:
        raise Refusal(f"StatConsumer '{consumer}' does not exist")
    raise Refusal(f"No configuration found for StatConsumer '{consumer}'")


_INTERVAL = ".PUBLISHINTERVAL"


def _quorum(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < _INT64:
        raise Refusal(
            "The QUORUM tunable must be a non-negative integer, but instead the following was specified: "
            f"{text}"
        )
    return number
