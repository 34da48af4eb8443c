# SPDX-License-Identifier: Apache-2.0
"""The answers to admin commands as text for people, laid out like a real broker's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from bmq._json import orjson
from bmq.broker._admin_cluster import CLUSTER_RENDERERS
from bmq.broker._admin_storage import STORAGE_RENDERERS

__all__ = ["render"]

Result = dict[str, Any]


def render(result: Result) -> str:
    """Return the text of a command's result."""
    (kind, content), *_ = result.items()
    return "\n".join(_RENDERERS[kind](content))


def _number(value: int) -> str:
    return f"{value:,}"


def _size(value: int) -> str:
    if value < 1024:
        return f"{value}  B"
    amount = float(value)
    for unit in ("KB", "MB", "GB", "TB"):
        amount /= 1024
        if amount < 1024 or unit == "TB":
            return f"{amount:.2f} {unit}"
    return ""


def _error(content: Result) -> Iterator[str]:
    yield content["message"]


def _success(_content: Result) -> Iterator[str]:
    yield "SUCCESS"


def _help(content: Result) -> Iterator[str]:
    yield "This process responds to the following CMD subcommands:"
    for entry in content["commands"]:
        yield f"    {entry['command']}"
        yield f"        {entry['description']}"


def _meter(meter: Result | None, indent: str) -> Iterator[str]:
    while meter is not None:
        yield f"{indent}{meter['name']}:"
        yield (
            f"{indent}    Messages: [current: {_number(meter['numMessages'])}, "
            f"limit: {_number(meter['messageCapacity'])}]"
        )
        yield (
            f"{indent}    Bytes   : [current: {_size(meter['numBytes'])}, "
            f"limit: {_size(meter['byteCapacity'])}]"
        )
        meter = meter.get("parent")


def _domain_info(content: Result) -> Iterator[str]:
    yield "Domain:"
    yield "-------"
    yield f"    Name ............: {content['name']}"
    yield "    Config ..........:"
    yield content["configJson"]
    yield f"    Cluster .........: {content['clusterName']}"
    yield "    Capacity Meter ..: "
    yield from _meter(content["capacityMeter"], " " * 8)
    yield "    Queues ..........: "
    yield "    ------------------"
    yield f"        ActiveQueues ..: {len(content['queueUris'])}"
    for number, uri in enumerate(content["queueUris"]):
        yield f"         {number:3}. {uri}"
    yield ""
    storages = content["storageContent"]["storages"]
    yield "Storage ......."
    yield f"    Number of assigned queue-storages: {len(storages)}"
    if storages:
        yield "         QueueKey    Partition    NumMsgs    NumBytes                QueueUri"
    for storage in storages:
        kept = "" if storage["isPersistent"] else "  (non-persistent)"
        yield (
            f"        {storage['queueKey']} {storage['partitionId']:7}      "
            f"{_number(storage['numMessages']):>8}  {_size(storage['numBytes']):>10}    "
            f"{storage['queueUri']}{kept}"
        )


def _purged(content: Result) -> Iterator[str]:
    if not content["queues"]:
        yield "No queue purged."
        return
    purged = [entry["queue"] for entry in content["queues"] if "queue" in entry]
    errors = [entry["error"]["message"] for entry in content["queues"] if "error" in entry]
    messages = sum(entry["numMessagesPurged"] for entry in purged)
    size = sum(entry["numBytesPurged"] for entry in purged)
    yield (
        f"Purged {_number(messages)} message(s) for a total of {_size(size)} "
        f"from {len(content['queues'])} queue(s):"
    )
    yield "    NumBytes     NumMsgs      AppKey             AppId  QueueName"
    for entry in sorted(purged, key=lambda e: e["numBytesPurged"], reverse=True):
        yield (
            f"  {_size(entry['numBytesPurged']):>10}  {_number(entry['numMessagesPurged']):>10}  "
            f"{entry['appKey']}  {entry['appId']:>16}  {entry['queueUri']}"
        )
    if errors:
        yield "Errors encountered: "
        yield from errors


def _contents(content: Result) -> Iterator[str]:
    messages, offset, total = content["messages"], content["offset"], content["totalQueueMessages"]
    end = min(offset + len(messages), total) - 1
    size = sum(message["sizeBytes"] for message in messages)
    yield (f"Printing {len(messages)} message(s) [{offset}-{end} / {_number(total)}] (total: {_size(size)})")
    yield "       GUID                              Size        Timestamp (UTC)"
    for number, message in enumerate(messages, offset):
        arrival = datetime.fromisoformat(message["arrivalTimestamp"])
        stamp = arrival.strftime("%d%b%Y_%H:%M:%S.%f%z").upper()
        yield f"{number:5}: {message['guid']}  {_size(message['sizeBytes']):>10}  {stamp}"
    yield ""


def _internals(content: Result) -> Iterator[str]:
    state = content["state"]
    storage = state["storage"]
    yield "Queue Internals"
    yield "---------------"
    yield "    State:"
    yield "    ------"
    yield f"        URI ...............: {state['uri']}"
    yield f"        Id/Key ............: primary ~ {state['key']}"
    yield f"        PartitionId .......: {state['partitionId']}"
    yield (
        f"        Storage ...........: {_number(storage['numMessages'])} messages, "
        f"{_size(storage['numBytes'])}"
    )
    yield f"            Num virtual storages: {len(storage['virtualStorages'])}"
    for app in storage["virtualStorages"]:
        yield (
            f"            {app['appId']} : [appKey: {app['appKey']}, "
            f"numMessages: {_number(app['numMessages'])}]"
        )
    yield "        Capacity Meter ....:"
    yield from _meter(state["capacityMeter"], " " * 12)
    yield ""
    yield "    QueueHandleCatalog:"
    yield "    -------------------"
    yield f"            {len(state['handles'])} handles:"
    for number, handle in enumerate(state["handles"], 1):
        yield f"                {number}. {handle['clientDescription']}"
        yield from _handle(handle, " " * 20)
    yield ""
    yield "    LocalQueue:"
    yield "    -----------"
    engine = content["queue"]["localQueue"]["queueEngine"]["fanout"]
    yield f"        FanoutQueueEngine ({engine['mode']}):"
    yield "        -----------------"
    for consumer in engine["consumerStates"]:
        yield from _consumer(consumer, " " * 12)


def _handle(handle: Result, indent: str) -> Iterator[str]:
    yield f"{indent}Handle Parameters .....: {handle['parametersJson']}"
    for stream in handle["subStreams"]:
        yield f"{indent}subId .................: {stream['subId']}"
        yield f"{indent}appId .................: {stream['appId']}"
        yield f"{indent}Stream Parameters .....: {stream['parametersJson']}"
        yield f"{indent}UnconfirmedMonitors ...:"
        for monitor in stream["unconfirmedMonitors"]:
            yield (
                f"{indent}    {monitor['state']} [Messages ({monitor['messagesState']}): "
                f"{_number(monitor['numMessages'])} of {_number(monitor['messagesCapacity'])}, "
                f"Bytes ({monitor['bytesState']}): {_size(monitor['numBytes'])} of "
                f"{_size(monitor['bytesCapacity'])}]"
            )
        yield f"{indent}UnconfirmedMessages ...: {_number(stream['numUnconfirmedMessages'])}"


def _consumer(consumer: Result, indent: str) -> Iterator[str]:
    app = consumer["appState"]
    at_end = str(consumer["isAtEndOfStorage"]).lower()
    yield f"{indent}{consumer['appId']}: status={consumer['status']}, StorageIter.atEnd={at_end}"
    yield f"{indent}    Consumers .........: {app['numConsumers']}"
    yield f"{indent}    RedeliveryList ....: {app['redeliveryListLength']}"
    yield f"{indent}    PutAsideList ......: {app['putAsideListLength']}"
    yield f"{indent}    RoundRobinRouter ..:"
    for entry in app["roundRobinRouter"]["consumers"]:
        yield (
            f"{indent}        priority {entry['priority']}, count {entry['count']}, "
            f'expression "{entry["expression"]}": {entry["queueHandle"]["clientDescription"]}'
        )


_COLUMNS = {
    "producer": "queue_producers_count",
    "consumer": "queue_consumers_count",
    "msgs": "queue_content_msgs",
    "bytes": "queue_content_bytes",
    "put": "queue_put_msgs_abs",
    "push": "queue_push_msgs_abs",
    "ack": "queue_ack_msgs_abs",
    "nack": "queue_nack_msgs_abs",
    "confirm": "queue_confirm_msgs_abs",
    "reject": "queue_reject_msgs_abs",
    "gc": "queue_gc_msgs_abs",
    "guids": "queue_history_abs",
}


def _stats(content: str) -> Iterator[str]:
    domains = orjson.loads(content)["domainQueues"]["domains"]
    uris = [uri for queues in domains.values() for uri in queues]
    width = max([len("queue"), *map(len, uris)])
    yield "DOMAINQUEUES"
    yield f"{'queue':<{width}}" + "".join(f"{column:>10}" for column in _COLUMNS)
    for queues in domains.values():
        for uri, entry in queues.items():
            values = [_number(entry["values"][name]) for name in _COLUMNS.values()]
            yield f"{uri:<{width}}" + "".join(f"{value:>10}" for value in values)


_RENDERERS: dict[str, Callable[[Any], Iterator[str]]] = {
    **CLUSTER_RENDERERS,
    **STORAGE_RENDERERS,
    "error": _error,
    "success": _success,
    "help": _help,
    "domainInfo": _domain_info,
    "purgedQueues": _purged,
    "queueContents": _contents,
    "queueInternals": _internals,
    "stats": _stats,
}
