# SPDX-License-Identifier: Apache-2.0
"""Admin commands: the commands of a real broker that make sense for a single node without files.

The result of a command is a dictionary in the shape of a real broker's JSON. The broker has no text for
people: without an encoding, it answers with indented JSON, and with the plain text of a refusal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from bmq import _world
from bmq._json import orjson
from bmq.broker._admin_cluster import (
    CLUSTER,
    CLUSTER_COMMANDS,
    cluster_list,
    cluster_status,
    print_subscriptions,
    queue_helper,
)
from bmq.broker._admin_storage import (
    STORAGE_COMMANDS,
    Refusal,
    broker_configuration,
    change_partition,
    list_tunables,
    show_or_change_tunable,
    storage_summary,
    stored_queue,
)
from bmq.broker._app_delivery import AppDelivery
from bmq.broker._domain import Domain, Unavailable
from bmq.broker._domain_config import InvalidDomain
from bmq.broker._handle import Handle, SubStream
from bmq.broker._queue import BrokerQueue
from bmq.broker._routing import Subscriber
from bmq.broker._storage import CapacityMeter
from bmq.wire.guid import guid_to_text
from bmq.wire.printable import printable

if TYPE_CHECKING:
    from bmq.broker._node import Node

__all__ = ["COMMANDS", "run_command"]

Result = dict[str, Any]

#: The output of the command HELP.
COMMANDS: dict[str, str] = {
    "HELP": "Show this list",
    "DOMAINS DOMAIN <name> INFOS": "Show a domain's configuration, its use of its limits, and its queues",
    "DOMAINS DOMAIN <name> PURGE": "Delete all messages of all queues of a domain",
    "DOMAINS DOMAIN <name> QUEUE <queue_name> PURGE <appId>": "Delete all messages of an application of a "
    "queue; '*' for all applications",
    "DOMAINS DOMAIN <name> QUEUE <queue_name> INTERNALS": "Show a queue's clients, consumers and routing",
    "DOMAINS DOMAIN <name> QUEUE <queue_name> LIST [<appId>] <offset> <count>": "List messages. A negative "
    "offset counts from the end; a negative count lists messages before the offset; UNLIMITED lists all",
    "DOMAINS RECONFIGURE <domain>": "Load a domain's configuration anew",
    "DOMAINS REMOVE <domain> [FINALIZE]": "Delete all queues of a domain and refuse its clients; FINALIZE "
    "forgets the domain afterwards",
    "DOMAINS RESOLVER CACHE_CLEAR (<domain>|ALL)": "Forget where domains are; this broker remembers nothing",
    "CONFIGPROVIDER CACHE_CLEAR (<domain>|ALL)": "Forget the files of domains; this broker remembers nothing",
    **CLUSTER_COMMANDS,
    "CLUSTERS CLUSTER <name> FORCE_GC_QUEUES": "Forget empty queues without clients",
    "STAT SHOW": "Show the counts of posted, pushed and confirmed messages",
    **STORAGE_COMMANDS,
}
_ENCODINGS = ("TEXT", "JSON_COMPACT", "JSON_PRETTY")
_KEY_BYTES = 5
_NO_KEY = "0" * (2 * _KEY_BYTES)
_INT64 = 2**63
_LONGEST_COMMAND = 64 * 1024
# A real broker's name for its role in a queue with local messages.
_PRIMARY = 1


def run_command(node: Node, command: str, now: float, *, clients: int) -> str:
    """Carry out a command and return the answer: JSON, or the plain text of a refusal of a text command.

    Args:
        node: the broker.
        command: the command.
        now: the time.
        clients: number of the broker's clients.
    """
    # No command is longer, and splitting a longer text would waste memory.
    words = command.split() if len(command) <= _LONGEST_COMMAND else []
    encoding = "TEXT"
    if len(words) >= 2 and words[0].upper() == "ENCODING" and words[1].upper() in _ENCODINGS:
        encoding, words = words[1].upper(), words[2:]
    try:
        result = _Commands(node, now, clients).run(words)
    except Refusal as failure:
        result = {"error": {"message": str(failure)}}
    if encoding == "TEXT" and "error" in result:
        return str(result["error"]["message"])
    option = None if encoding == "JSON_COMPACT" else orjson.OPT_INDENT_2
    try:
        return orjson.dumps(result, option=option).decode()
    except TypeError:
        # The answer repeats parts of the command, with lone surrogates for bytes outside of UTF-8.
        return orjson.dumps(_encodable(result), option=option).decode()


def _encodable(value: Any) -> Any:
    """Return a copy with escaped lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _encodable(member) for name, member in members.items()}
    if isinstance(value, list):
        return [_encodable(item) for item in cast("Iterable[Any]", value)]
    return value


def _undecodable(reason: str) -> Refusal:
    return Refusal(f"Unable to decode command (rc: -1, error: '{reason}')")


class _Commands:
    """The commands, on one node at one time."""

    def __init__(self, node: Node, now: float, clients: int) -> None:
        self._node = node
        self._now = now
        self._clients = clients

    def run(self, words: list[str]) -> Result:
        if not words:
            raise _undecodable("Empty input")
        match [word.upper() for word in words]:
            case ["HELP", *_]:
                return self._help()
            case ["STAT", "SHOW"]:
                return self._stats()
            case ["STAT", *_]:
                return self._tunables("STAT", words[1:])
            case ["BROKERCONFIG", "DUMP"]:
                return broker_configuration(self._node)
            case ["DOMAINS", "RECONFIGURE", _]:
                return self._reconfigure(words[2])
            case ["DOMAINS", "REMOVE", _]:
                return self._remove(words[2])
            case ["DOMAINS", "REMOVE", _, "FINALIZE"]:
                return self._finish_removal(words[2])
            case ["DOMAINS", "RESOLVER", "CACHE_CLEAR", _] | ["CONFIGPROVIDER", "CACHE_CLEAR", _]:
                return self._clear_cache(words[-1])
            case ["DOMAINS", "DOMAIN", _, "INFOS"]:
                return self._infos(words[2])
            case ["DOMAINS", "DOMAIN", _, "PURGE"]:
                return self._purge_domain(words[2])
            case ["DOMAINS", "DOMAIN", _, "QUEUE", _, "PURGE", _]:
                return self._purge_queue(words[2], words[4], words[6])
            case ["DOMAINS", "DOMAIN", _, "QUEUE", _, "INTERNALS"]:
                return self._internals(words[2], words[4])
            case ["DOMAINS", "DOMAIN", _, "QUEUE", _, "LIST", offset, count]:
                return self._list(words[2], words[4], None, offset, count)
            case ["DOMAINS", "DOMAIN", _, "QUEUE", _, "LIST", _, offset, count]:
                return self._list(words[2], words[4], words[6], offset, count)
            case ["CLUSTERS", "LIST"]:
                return cluster_list()
            case ["CLUSTERS", "CLUSTER", _, *_] if len(words) > 3 and words[2] != CLUSTER:
                raise Refusal(f"cluster '{words[2]}' not found !")
            case ["CLUSTERS", "CLUSTER", _, "STATUS"]:
                return cluster_status(self._node, self._keys())
            case ["CLUSTERS", "CLUSTER", _, "QUEUEHELPER"]:
                return queue_helper(self._node, self._keys())
            case ["CLUSTERS", "CLUSTER", _, "FORCE_GC_QUEUES"]:
                self._node.forget_idle()
                return {"success": {}}
            case ["CLUSTERS", "CLUSTER", _, "STORAGE", "REPLICATION", *_]:
                return self._tunables("REPLICATION", words[5:])
            case ["CLUSTERS", "CLUSTER", _, "STATE", "ELECTOR", *_]:
                return self._tunables("ELECTOR", words[5:])
            case ["CLUSTERS", "CLUSTER", _, "STORAGE", "SUMMARY"]:
                return storage_summary(self._node, self._stored(self._node.queues.values()))
            case ["CLUSTERS", "CLUSTER", _, "STORAGE", "PARTITION", _, "SUMMARY"]:
                return storage_summary(self._node, self._stored(self._node.queues.values()), words[5])
            case [
                "CLUSTERS",
                "CLUSTER",
                _,
                "STORAGE",
                "PARTITION",
                _,
                "ENABLE" | "DISABLE" | "ROLLOVER" as action,
            ]:
                return change_partition(self._node, words[5], action)
            case ["CLUSTERS", "CLUSTER", _, "STORAGE", "DOMAIN", _, "QUEUE_STATUS"]:
                return self._queue_status(words[5])
            case _:
                raise _undecodable(
                    f'Invalid command. Send "HELP" for list of commands. Invalid command word: {words[0]}'
                )

    # ---- finding

    def _domain(self, name: str) -> Domain:
        try:
            return self._node.domain(name)
        except Unavailable as error:
            if error.missing:
                raise Refusal(f"Domain '{name}' doesn't exist") from error
            raise Refusal(str(error)) from error

    def _queue(self, domain_name: str, name: str) -> BrokerQueue:
        domain = self._domain(domain_name)
        uri = f"bmq://{domain.config.name}/{name}"
        queue = domain.queues.get(uri)
        if queue is None:
            raise Refusal(f"Queue was not found in a storage '{uri}'")
        return queue

    def _keys(self) -> dict[str, str]:
        return {uri: _key(uri) for uri in self._node.queues}

    # ---- commands

    def _help(self) -> Result:
        commands = [{"command": c, "description": d} for c, d in COMMANDS.items()]
        return {"help": {"commands": commands, "isPlumbing": False}}

    def _reconfigure(self, name: str) -> Result:
        domain = self._domain(name)
        try:
            self._node.configure(domain, self._node.source.load(name))
        except (Unavailable, InvalidDomain) as error:
            raise Refusal(f"Couldn't reconfigure domain '{name}': {error}") from error
        return {"success": {}}

    def _infos(self, name: str) -> Result:
        domain = self._domain(name)
        parameters = domain.config.parameters()
        if not parameters["subscriptions"]:
            del parameters["subscriptions"]
        storages = sorted(domain.queues.values(), key=lambda q: q.store.usage.bytes, reverse=True)
        return {
            "domainInfo": {
                "name": domain.config.name,
                "configJson": orjson.dumps(parameters, option=orjson.OPT_INDENT_2).decode() + "\n",
                "clusterName": CLUSTER,
                "capacityMeter": _meter(f"domain [bmq://{domain.config.name}]", domain.usage),
                "queueUris": sorted(domain.queues),
                "storageContent": {"storages": self._stored(storages)},
            }
        }

    def _stored(self, queues: Iterable[BrokerQueue]) -> list[Result]:
        return [
            stored_queue(
                queue.uri,
                _key(queue.uri),
                len(queue.store),
                queue.store.usage.bytes,
                queue.domain.config.file_backed,
            )
            for queue in queues
        ]

    def _queue_status(self, name: str) -> Result:
        domain = self._node.domains.get(name)
        if domain is None:
            raise Refusal(f"Unknown domain '{name}'")
        return {"storageContent": {"storages": self._stored(domain.queues.values())}}

    def _remove(self, name: str) -> Result:
        """Refuse opens from now on, also if open queues prevent the removal, as a real broker does."""
        domain = self._domain(name)
        domain.removing = True
        if any(queue.handles for queue in domain.queues.values()):
            raise Refusal(f"Trying to remove the domain '{name}' while there are queues opened or opening")
        purged = [{"queue": self._purged(queue, None)} for queue in domain.queues.values()]
        for queue in list(domain.queues.values()):
            self._node.forget(queue)
        domain.removed = True
        return {"purgedQueues": {"queues": purged}}

    def _finish_removal(self, name: str) -> Result:
        domain = self._node.domains.get(name)
        if domain is None:
            raise Refusal(f"Domain '{name}' doesn't exist")
        if not domain.removed:
            raise Refusal(f"First round of DOMAINS REMOVE '{name}' is not completed.")
        self._node.forget_domain(name)
        return {"success": {}}

    def _clear_cache(self, name: str) -> Result:
        if name.upper() != "ALL" and name not in self._node.domains:
            raise Refusal(f"Domain '{name}' doesn't exist")
        return {"success": {}}

    def _tunables(self, scope: str, words: list[str]) -> Result:
        actions = ("GET", "SET") if scope == "STAT" else ("GET", "GET_ALL", "SET", "SET_ALL")
        match [words[0].upper(), *words[1:]] if words else []:
            case ["LIST_TUNABLES"]:
                return list_tunables(self._node, scope)
            case [action, name] if action in actions and action.startswith("GET"):
                return show_or_change_tunable(self._node, scope, name, None)
            case [action, name, value] if action in actions and action.startswith("SET"):
                return show_or_change_tunable(self._node, scope, name, value)
            case _:
                raise _undecodable(f"Invalid {scope} subcommand: {' '.join(words)}")

    def _purge_domain(self, name: str) -> Result:
        queues = self._domain(name).queues.values()
        purged = [{"queue": self._purged(queue, None)} for queue in list(queues)]
        return {"purgedQueues": {"queues": purged}}

    def _purge_queue(self, domain: str, name: str, app_id: str) -> Result:
        queue = self._queue(domain, name)
        if app_id == "*":
            return {"purgedQueues": {"queues": [{"queue": self._purged(queue, None)}]}}
        app = queue.apps.get(app_id)
        if app is None or not app.bit:
            message = f"Specified appId '{app_id}' not found in the storage of queue '{queue.uri}'."
            return {"purgedQueues": {"queues": [{"error": {"message": message}}]}}
        return {"purgedQueues": {"queues": [{"queue": self._purged(queue, app_id)}]}}

    def _purged(self, queue: BrokerQueue, app_id: str | None) -> Result:
        messages, size = queue.purge(queue.apps[app_id] if app_id else None)
        for app in queue.apps.values():
            self._node.touch(queue, app)
        return {
            "queueUri": queue.uri,
            "appId": app_id or "",
            "appKey": _key(f"{queue.uri}?id={app_id}") if app_id else _NO_KEY,
            "numMessagesPurged": messages,
            "numBytesPurged": size,
        }

    def _list(self, domain: str, name: str, app_id: str | None, offset: str, count: str) -> Result:
        queue = self._queue(domain, name)
        app = queue.apps.get(app_id) if app_id else None
        if app_id and app is None:
            raise Refusal(f"Specified appId '{app_id}' not found in the storage of queue '{queue.uri}'.")
        total = len(queue.store) if app is None else sum(1 for m in queue.store if m.pending & app.bit)
        start = _integer(offset, "offset")
        if start < 0:
            start = max(0, total + start)
        length = total if count == "UNLIMITED" else _integer(count, "count")
        if length < 0:
            start, length = max(0, start + length), min(start, -length)
        stop = min(start + length, total)
        most = self._node.bounds.listed
        if stop - start > most:
            raise Refusal(
                f"{stop - start} messages exceed this broker's limit of {most} in one list: "
                f"list them in parts, such as LIST {start} {most}"
            )
        messages = (m for m in queue.store if app is None or m.pending & app.bit)
        present = _world.now()
        return {
            "queueContents": {
                "messages": [
                    {
                        "guid": guid_to_text(m.guid),
                        "sizeBytes": m.size,
                        "arrivalTimestamp": (present - timedelta(seconds=self._now - m.arrival)).isoformat(
                            timespec="milliseconds"
                        ),
                    }
                    for m in islice(messages, min(start, total), max(stop, 0))
                ],
                "offset": start,
                "totalQueueMessages": total,
            }
        }

    def _internals(self, domain: str, name: str) -> Result:
        queue = self._queue(domain, name)
        meter = _meter(f"queue [{queue.uri}]", queue.store.usage)
        meter["parent"] = _meter(f"domain [bmq://{queue.domain.config.name}]", queue.domain.usage)
        authorized = [app for app in queue.apps.values() if app.bit]
        state = {
            "uri": queue.uri,
            "key": _key(queue.uri),
            "partitionId": 0,
            "storage": {
                "numMessages": len(queue.store),
                "numBytes": queue.store.usage.bytes,
                "virtualStorages": [
                    {
                        "appId": app.app_id,
                        "appKey": _key(f"{queue.uri}?id={app.app_id}"),
                        "numMessages": sum(1 for m in queue.store if m.pending & app.bit),
                    }
                    for app in authorized
                ],
            },
            "capacityMeter": meter,
            "handles": [_handle(handle) for handle in queue.handles],
        }
        return {
            "queueInternals": {
                "state": state,
                "queue": {
                    "localQueue": {
                        "queueEngine": {
                            "fanout": {
                                "maxConsumers": queue.domain.config.max_consumers,
                                "mode": queue.domain.config.mode.value,
                                "consumerStates": [_app(queue, name) for name in queue.apps],
                            }
                        }
                    }
                },
            }
        }

    def _stats(self) -> Result:
        domains: dict[str, Any] = {}
        for queue in self._node.queues.values():
            entry: dict[str, Any] = {"values": _queue_values(queue)}
            if queue.fanout:
                entry["appIds"] = {
                    app.app_id: {"values": _app_values(app)} for app in queue.apps.values() if app.bit
                }
            domains.setdefault(queue.domain.config.name, {})[queue.uri] = entry
        stats = {
            "_timestamp": _world.now().strftime("%d%b%Y_%H:%M:%S.%f").upper(),
            "domainQueues": {"domains": domains},
            "clients": {"connected": self._clients},
        }
        return {"stats": orjson.dumps(stats).decode()}


def _integer(text: str, what: str) -> int:
    try:
        number = int(text)
        if -_INT64 <= number < _INT64:
            return number
    except ValueError:
        pass
    raise _undecodable(f"Invalid {what}: {text}")


def _key(text: str) -> str:
    """Return an imitation of the random key of a queue or application in a real broker."""
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * _KEY_BYTES].upper()


def _meter(name: str, usage: CapacityMeter) -> Result:
    return {
        "name": name,
        "isDisabled": False,
        "numMessages": usage.messages,
        "messageCapacity": usage.limits.messages,
        "numMessagesReserved": 0,
        "numBytes": usage.bytes,
        "byteCapacity": usage.limits.bytes,
        "numBytesReserved": 0,
    }


def _handle(handle: Handle) -> Result:
    readers = sum(stream.readers for stream in handle.streams.values())
    writers = sum(stream.writers for stream in handle.streams.values())
    return {
        "clientDescription": handle.description,
        "parametersJson": f'[ uri = "{handle.queue.uri}" qId = {handle.q_id} '
        f"readCount = {readers} writeCount = {writers} ]",
        "isClientClusterMember": False,
        "subStreams": [_sub_stream(stream) for stream in handle.streams.values()],
    }


def _sub_stream(stream: SubStream) -> Result:
    return {
        "subId": stream.sub_id,
        "appId": printable(stream.app_id),
        "parametersJson": print_subscriptions(stream.app_id, stream.subscriptions),
        "unconfirmedMonitors": [_monitor(subscriber) for subscriber in stream.subscribers()],
        "numUnconfirmedMessages": len(stream.unconfirmed),
    }


def _monitor(subscriber: Subscriber[SubStream]) -> Result:
    def state(used: int, limit: int) -> str:
        return "STATE_FULL" if used >= limit else "STATE_NORMAL"

    return {
        "state": "STATE_FULL" if subscriber.full else "STATE_NORMAL",
        "messagesState": state(subscriber.messages, subscriber.max_messages),
        "numMessages": subscriber.messages,
        "messagesCapacity": subscriber.max_messages,
        "bytesState": state(subscriber.bytes, subscriber.max_bytes),
        "numBytes": subscriber.bytes,
        "bytesCapacity": subscriber.max_bytes,
    }


def _app(queue: BrokerQueue, app_id: str) -> Result:
    app = queue.apps[app_id]
    status = "alive" if app.routing.groups else "registered"
    return {
        "appId": printable(app_id),
        "status": status if app.bit else "unauthorized",
        "isAtEndOfStorage": app.resume is None and not app.aside and queue.position is None,
        "appState": {
            "appId": printable(app_id),
            "numConsumers": sum(1 for stream in app.streams if stream.subscriptions),
            "redeliveryListLength": len(app.redelivery),
            "putAsideListLength": len(app.aside),
            "roundRobinRouter": {
                "consumers": [
                    {
                        "priority": group.priority,
                        "queueHandle": {"clientDescription": subscriber.stream.handle.description},
                        "count": subscriber.count,
                        "expression": printable(group.text),
                    }
                    for group in app.routing.groups
                    for subscriber in group.members
                ]
            },
        },
    }


_VALUES: dict[str, Callable[[BrokerQueue], int]] = {
    "queue_producers_count": lambda q: sum(s.writers for h in q.handles for s in h.streams.values()),
    "queue_consumers_count": lambda q: sum(s.readers for h in q.handles for s in h.streams.values()),
    "queue_content_msgs": lambda q: len(q.store),
    "queue_content_bytes": lambda q: q.store.usage.bytes,
    "queue_cfg_msgs": lambda q: q.store.usage.limits.messages,
    "queue_cfg_bytes": lambda q: q.store.usage.limits.bytes,
    "queue_msgs_current": lambda q: len(q.store),
    "queue_bytes_current": lambda q: q.store.usage.bytes,
    "queue_history_abs": lambda q: q.store.remembered,
    "queue_role": lambda q: _PRIMARY,
    # Messages are acknowledged on arrival.
    "queue_ack_time_avg": lambda q: 0,
    "queue_ack_time_max": lambda q: 0,
    "queue_nack_noquorum_msgs": lambda q: 0,
    "queue_nack_noquorum_msgs_abs": lambda q: 0,
}
# A real broker has each counter twice: since its start, and since the last printed statistics. The embedded
# broker prints none.
_TOTALS: dict[str, Callable[[BrokerQueue], int]] = {
    "queue_put_msgs": lambda q: q.posted,
    "queue_put_bytes": lambda q: q.posted_bytes,
    "queue_push_msgs": lambda q: q.pushed,
    "queue_push_bytes": lambda q: q.pushed_bytes,
    "queue_ack_msgs": lambda q: q.acknowledged,
    "queue_nack_msgs": lambda q: q.refused,
    "queue_confirm_msgs": lambda q: q.confirmed,
    "queue_reject_msgs": lambda q: q.poisoned,
    "queue_gc_msgs": lambda q: q.expired,
}


def _queue_values(queue: BrokerQueue) -> dict[str, int]:
    values = {name: value(queue) for name, value in _VALUES.items()}
    for name, value in _TOTALS.items():
        values[name] = values[f"{name}_abs"] = value(queue)
    return {**values, **_times(list(queue.apps.values()))}


def _app_values(app: AppDelivery) -> dict[str, int]:
    waiting = [message.size for message in app.queue.store if message.pending & app.bit]
    return {
        "queue_content_msgs": len(waiting),
        "queue_content_bytes": sum(waiting),
        "queue_msgs_current": len(waiting),
        "queue_bytes_current": sum(waiting),
        **_times([app]),
    }


def _times(apps: list[AppDelivery]) -> dict[str, int]:
    """Means and maxima over applications, in nanoseconds."""
    values: dict[str, int] = {}
    for name, each in (
        ("queue_queue_time", [app.queue_times for app in apps]),
        ("queue_confirm_time", [app.confirm_times for app in apps]),
    ):
        count = sum(times.count for times in each)
        seconds = sum(times.seconds for times in each)
        values[f"{name}_avg"] = int(seconds / count * 1e9) if count else 0
        values[f"{name}_max"] = int(max((times.longest for times in each), default=0.0) * 1e9)
    return values
