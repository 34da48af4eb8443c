# SPDX-License-Identifier: Apache-2.0
"""Admin commands: the commands of a real broker that make sense for a cluster of one node without files.

The result of a command is a dictionary in the shape of a real broker's JSON, as far as
:mod:`bmq.admin.results` reads it. The broker has no text for people: without an encoding, it answers with
indented JSON, and with the plain text of a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from bmq import _world
from bmq._json import orjson
from bmq._version import __version__
from bmq.broker._delivery import AppDelivery
from bmq.broker._domain import Domain, Refused
from bmq.broker._queue import BrokerQueue
from bmq.broker._routing import Subscriber
from bmq.broker._storage import CapacityMeter
from bmq.broker.domain_config import InvalidDomain
from bmq.wire.control import Subscription
from bmq.wire.guid import guid_to_text
from bmq.wire.printable import printable

if TYPE_CHECKING:
    from bmq.broker._client import QueueHandle, SubStream
    from bmq.broker._node import BrokerNode

__all__ = ["run_command"]

Result = dict[str, Any]

#: The name of the only cluster, and the description of its only node.
_CLUSTER = "local"
_NODE = "[localhost, 0]"
_ENCODINGS = ("TEXT", "JSON_COMPACT", "JSON_PRETTY")
_INT64 = 2**63
_LONGEST_COMMAND = 64 * 1024
_SUCCESS: Final[Result] = {"success": {}}


class Refusal(Exception):
    """The command cannot be carried out; the message is the answer."""


def _undecodable(reason: str) -> Refusal:
    return Refusal(f"Unable to decode command (rc: -1, error: '{reason}')")


def run_command(node: BrokerNode, command: str, now: float) -> str:
    """Carry out a command and return the answer: JSON, or the plain text of a refusal of a text command.

    Args:
        node: the broker.
        command: the command.
        now: the time.
    """
    # No command is longer, and splitting a longer text would waste memory. Answers repeat parts of the
    # command, and bytes outside of UTF-8 are lone surrogates, which JSON cannot have.
    printed = command.encode("utf-8", "backslashreplace").decode()
    words = printed.split() if len(command) <= _LONGEST_COMMAND else []
    encoding = "TEXT"
    if len(words) >= 2 and words[0].upper() == "ENCODING" and words[1].upper() in _ENCODINGS:
        encoding, words = words[1].upper(), words[2:]
    try:
        result = _run(_AdminCommands(node, now), words)
    except Refusal as failure:
        if encoding == "TEXT":
            return str(failure)
        result = {"error": {"message": str(failure)}}
    option = None if encoding == "JSON_COMPACT" else orjson.OPT_INDENT_2
    return orjson.dumps(result, option=option).decode()


def _run(commands: _AdminCommands, words: list[str]) -> Result:
    if not words:
        raise _undecodable("Empty input")
    heads = [word.upper() for word in words[:2]]
    if heads == ["CLUSTERS", "CLUSTER"] and len(words) > 3 and words[2] != _CLUSTER:
        raise Refusal(f"cluster '{words[2]}' not found !")
    if heads[0] == "HELP":
        return commands.help()
    for syntax, (function, fixed) in _COMMANDS.items():
        arguments = _arguments(syntax.split(), words)
        if arguments is not None:
            return function(commands, *arguments, *fixed)
    raise _undecodable(f'Invalid command. Send "HELP" for list of commands. Invalid command word: {words[0]}')


def _arguments(syntax: list[str], words: list[str]) -> list[str] | None:
    """Return the arguments of a command, or None if the words are another command.

    In the syntax, ``<name>`` and ``(<name>|ALL)`` are any word, ``[A|B]`` is one of two words, and everything
    else is a keyword.
    """
    if len(syntax) != len(words):
        return None
    arguments: list[str] = []
    for expected, word in zip(syntax, words, strict=True):
        if expected[0] in "<(":
            arguments.append(word)
        elif word.upper() not in expected.strip("[]").split("|"):
            return None
        elif expected[0] == "[":
            arguments.append(word.upper())
    return arguments


_Function = Callable[..., Result]
_COMMANDS: dict[str, tuple[_Function, tuple[str, ...]]] = {}
_ELECTOR: Final = "CLUSTERS CLUSTER <name> STATE ELECTOR "
_REPLICATION: Final = "CLUSTERS CLUSTER <name> STORAGE REPLICATION "


def _command(syntax: str, *fixed: str) -> Callable[[_Function], _Function]:
    """Make a command of a method: called with the command's arguments, and with ``fixed``.

    The method's docstring is the line of the command in the output of HELP.
    """

    def add(function: _Function) -> _Function:
        _COMMANDS[syntax] = function, fixed
        return function

    return add


class _AdminCommands:
    """The commands, on one node at one time."""

    def __init__(self, node: BrokerNode, now: float) -> None:
        self._node = node
        self._now = now

    @_command("HELP")
    def help(self) -> Result:
        """Show this list."""
        commands = [
            {"command": syntax, "description": (function.__doc__ or "").removesuffix(".")}
            for syntax, (function, _) in _COMMANDS.items()
        ]
        return {"help": {"commands": commands, "isPlumbing": False}}

    # ---- domains

    def _domain(self, name: str) -> Domain:
        try:
            return self._node.domain(name)
        except Refused as error:
            text = f"Domain '{name}' doesn't exist" if error.missing else str(error)
            raise Refusal(text) from error

    def _loaded(self, name: str) -> Domain:
        domain = self._node.domains.get(name)
        if domain is None:
            raise Refusal(f"Domain '{name}' doesn't exist")
        return domain

    @_command("DOMAINS DOMAIN <name> INFOS")
    def infos(self, name: str) -> Result:
        """Show a domain's configuration, its use of its limits, and its queues."""
        domain = self._domain(name)
        parameters = domain.config.parameters()
        if not parameters["subscriptions"]:
            del parameters["subscriptions"]
        storages = sorted(domain.queues.values(), key=lambda queue: queue.store.usage.bytes, reverse=True)
        return {
            "domainInfo": {
                "name": domain.config.name,
                "configJson": orjson.dumps(parameters, option=orjson.OPT_INDENT_2).decode() + "\n",
                "clusterName": _CLUSTER,
                "capacityMeter": _meter(domain.usage),
                "queueUris": sorted(domain.queues),
                "storageContent": _stored(storages),
            }
        }

    @_command("DOMAINS RECONFIGURE <domain>")
    def reconfigure(self, name: str) -> Result:
        """Load a domain's configuration anew."""
        domain = self._domain(name)
        try:
            self._node.configure(domain, self._node.source.load(name))
        except (Refused, InvalidDomain) as error:
            raise Refusal(f"Couldn't reconfigure domain '{name}': {error}") from error
        return _SUCCESS

    @_command("DOMAINS REMOVE <domain>")
    def remove(self, name: str) -> Result:
        """Delete all queues of a domain and refuse its clients."""
        domain = self._domain(name)
        domain.removing = (
            True  # opens are refused also if open queues prevent the removal, as in a real broker
        )
        if any(queue.handles for queue in domain.queues.values()):
            raise Refusal(f"Trying to remove the domain '{name}' while there are queues opened or opening")
        result = self.purge_domain(name)
        for queue in list(domain.queues.values()):
            self._node.forget(queue)
        domain.removed = True
        return result

    @_command("DOMAINS REMOVE <domain> FINALIZE")
    def finish_removal(self, name: str) -> Result:
        """Forget a removed domain."""
        domain = self._loaded(name)
        if not domain.removed:
            raise Refusal(f"First round of DOMAINS REMOVE '{name}' is not completed.")
        self._node.forget_domain(domain)
        return _SUCCESS

    @_command("DOMAINS RESOLVER CACHE_CLEAR (<domain>|ALL)")
    @_command("CONFIGPROVIDER CACHE_CLEAR (<domain>|ALL)")
    def clear_cache(self, name: str) -> Result:
        """Forget where domains are; this broker remembers nothing."""
        if name.upper() != "ALL":
            self._loaded(name)
        return _SUCCESS

    # ---- queues

    def _queue(self, domain_name: str, name: str) -> BrokerQueue:
        domain = self._domain(domain_name)
        uri = f"bmq://{domain.config.name}/{name}"
        queue = domain.queues.get(uri)
        if queue is None:
            raise Refusal(f"Queue was not found in a storage '{uri}'")
        return queue

    @_command("DOMAINS DOMAIN <name> PURGE")
    def purge_domain(self, name: str) -> Result:
        """Delete all messages of all queues of a domain."""
        purged = [self._purged(queue, None) for queue in self._domain(name).queues.values()]
        return {"purgedQueues": {"queues": purged}}

    @_command("DOMAINS DOMAIN <name> QUEUE <queue_name> PURGE <appId>")
    def purge_queue(self, domain: str, name: str, app_id: str) -> Result:
        """Delete all messages of an application of a queue; '*' for all applications."""
        queue = self._queue(domain, name)
        app = queue.apps.get(app_id)
        if app_id == "*":
            purged = self._purged(queue, None)
        elif app is None or not app.bit:
            purged = {"error": {"message": _unknown_app(queue, app_id)}}
        else:
            purged = self._purged(queue, app)
        return {"purgedQueues": {"queues": [purged]}}

    def _purged(self, queue: BrokerQueue, app: AppDelivery | None) -> Result:
        messages, size = queue.purge(app)
        for each in queue.apps.values():
            self._node.touch(queue, each)
        return {
            "queue": {
                "queueUri": queue.uri,
                "appId": app.app_id if app is not None else "",
                "numMessagesPurged": messages,
                "numBytesPurged": size,
            }
        }

    @_command("DOMAINS DOMAIN <name> QUEUE <queue_name> LIST <offset> <count>")
    @_command("DOMAINS DOMAIN <name> QUEUE <queue_name> LIST <appId> <offset> <count>")
    def list_messages(self, domain: str, name: str, *wanted: str) -> Result:
        """List messages, from the end for a negative offset, backwards for a negative count, or UNLIMITED."""
        *named, offset, count = wanted
        app_id = named[0] if named else ""
        queue = self._queue(domain, name)
        app = queue.apps.get(app_id)
        if app_id and app is None:
            raise Refusal(_unknown_app(queue, app_id))
        messages = [m for m in queue.store if app is None or m.pending & app.bit]
        total = len(messages)
        start = _integer(offset, "offset")
        if start < 0:
            start = max(0, total + start)
        length = total if count.upper() == "UNLIMITED" else _integer(count, "count")
        if length < 0:
            start, length = max(0, start + length), min(start, -length)
        stop = min(start + length, total)
        most = self._node.bounds.listed
        if stop - start > most:
            raise Refusal(
                f"{stop - start} messages exceed this broker's limit of {most} in one list: "
                f"list them in parts, such as LIST {start} {most}"
            )
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
                    for m in messages[start:stop]
                ],
                "offset": start,
                "totalQueueMessages": total,
            }
        }

    @_command("DOMAINS DOMAIN <name> QUEUE <queue_name> INTERNALS")
    def internals(self, domain: str, name: str) -> Result:
        """Show a queue's clients, consumers and routing."""
        queue = self._queue(domain, name)
        # In front of the handles: the routing decides which of their subscriptions are full.
        consumers = [_consumer_state(app) for app in queue.apps.values()]
        return {
            "queueInternals": {
                "state": {
                    "uri": queue.uri,
                    "storage": {
                        "numMessages": len(queue.store),
                        "numBytes": queue.store.usage.bytes,
                        "virtualStorages": [
                            {
                                "appId": app.app_id,
                                "numMessages": sum(1 for m in queue.store if m.pending & app.bit),
                            }
                            for app in queue.authorized
                        ],
                    },
                    "capacityMeter": _meter(queue.store.usage),
                    "handles": [_handle(handle) for handle in queue.handles],
                },
                "queue": {
                    "localQueue": {
                        "queueEngine": {
                            "fanout": {"mode": queue.domain.config.mode.value, "consumerStates": consumers}
                        }
                    }
                },
            }
        }

    # ---- the cluster

    @_command("CLUSTERS LIST")
    def clusters(self) -> Result:
        """List all active clusters."""
        node = {"hostName": "localhost", "nodeId": 0, "dataCenter": "UNSPECIFIED"}
        return {"clusterList": {"clusters": [{"locality": "member", "name": _CLUSTER, "nodes": [node]}]}}

    @_command("CLUSTERS CLUSTER <name> STATUS")
    def cluster_status(self, _: str) -> Result:
        """Show the state of a cluster and of its nodes."""
        queues = self._node.queues.values()
        partition = {
            "numQueuesMapped": len(queues),
            "numActiveQueues": sum(1 for queue in queues if queue.handles),
            "primaryNode": _NODE,
            "primaryStatus": "ACTIVE",
        }
        node = {"description": _NODE, "status": "E_AVAILABLE", "primaryForPartitionIds": [0]}
        return {
            "clusterStatus": {
                "name": _CLUSTER,
                "description": f"{_CLUSTER} (cluster)",
                "selfNodeDescription": _NODE,
                "isHealthy": True,
                "nodeStatuses": {"nodes": [node]},
                "electorInfo": {"electorState": "LEADER", "leaderNode": _NODE},
                "partitionsInfo": {"partitions": [partition]},
                "queuesInfo": _stored(queues),
            }
        }

    @_command("CLUSTERS CLUSTER <name> QUEUEHELPER")
    def queue_helper(self, _: str) -> Result:
        """Show the domains and the queues that a cluster knows."""
        return {
            "clusterQueueHelper": {
                "clusterName": _CLUSTER,
                "domains": [
                    {"name": name, "numAssignedQueues": len(domain.queues), "loaded": True}
                    for name, domain in self._node.domains.items()
                ],
                "queues": [{"uri": uri, "partitionId": 0} for uri in self._node.queues],
            }
        }

    @_command("CLUSTERS CLUSTER <name> FORCE_GC_QUEUES")
    def forget_idle(self, _: str) -> Result:
        """Forget empty queues without clients."""
        for queue in list(self._node.queues.values()):
            if not queue.handles and not queue.store:
                self._node.forget(queue)
        return _SUCCESS

    @_command("CLUSTERS CLUSTER <name> STORAGE SUMMARY")
    @_command("CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId> SUMMARY")
    def storage(self, _: str, partition: str = "0") -> Result:
        """Show the storage of a cluster, or of a partition."""
        _check_partition(partition)
        queues = self._node.queues.values()
        summary = {
            "primaryNodeDescription": _NODE,
            "sequenceNum": sum(queue.counts.posted for queue in queues),
            "isAvailable": self._node.available,
            "storageContent": _stored(queues),
        }
        store = {"partitionId": 0, "state": "open", "summary": summary}
        return {"clusterStorageSummary": {"fileStores": [store]}}

    @_command("CLUSTERS CLUSTER <name> STORAGE PARTITION (<partitionId>|ALL) [ENABLE|DISABLE|ROLLOVER]")
    def change_partition(self, _: str, partition: str, action: str) -> Result:
        """Have a partition accept or refuse posts, or continue with new files; without files no effect."""
        # Messages are in memory: a rollover has nothing to copy.
        _check_partition(partition, lowest=-1 if action == "ROLLOVER" else 0)
        if action != "ROLLOVER":
            self._node.available = action == "ENABLE"
        return _SUCCESS

    @_command("CLUSTERS CLUSTER <name> STORAGE DOMAIN <domain_name> QUEUE_STATUS")
    def queue_status(self, _: str, name: str) -> Result:
        """Show the queues of a domain in the storage."""
        domain = self._node.domains.get(name)
        if domain is None:
            raise Refusal(f"Unknown domain '{name}'")
        return {"storageContent": _stored(domain.queues.values())}

    # ---- settings

    @_command("BROKERCONFIG DUMP")
    def configuration(self) -> Result:
        """Show the broker's configuration."""
        configuration = {
            "brokerInstanceName": "embedded",
            "brokerVersion": 999999,
            "configVersion": 999999,
            "etcDir": ".",
            "hostName": "localhost",
            "hostTags": f"bmq {__version__}",
        }
        return {"brokerConfig": {"asJSON": orjson.dumps(configuration, option=orjson.OPT_INDENT_2).decode()}}

    @_command(_ELECTOR + "LIST_TUNABLES", "ELECTOR")
    @_command(_REPLICATION + "LIST_TUNABLES", "REPLICATION")
    def list_quorum(self, _: str, scope: str) -> Result:
        """Show all settings of the elector or the replication."""
        peers = "have consensus" if scope == "ELECTOR" else "persist each message"
        description = f"non-negative integer count of the number of peers required to {peers}"
        value = {"theInteger": self._node.quorums[scope]}
        return {"tunables": {"tunables": [{"name": "QUORUM", "value": value, "description": description}]}}

    @_command(_ELECTOR + "[GET|GET_ALL] <parameter>", "ELECTOR")
    @_command(_REPLICATION + "[GET|GET_ALL] <parameter>", "REPLICATION")
    def show_quorum(self, _: str, __: str, name: str, scope: str) -> Result:
        """Show a setting of the elector or the replication."""
        if name.upper() != "QUORUM":
            raise _unsupported(name)
        value = {"theInteger": self._node.quorums[scope]}
        return {"tunable": {"name": "Quorum", "value": value, "description": ""}}

    @_command(_ELECTOR + "[SET|SET_ALL] <parameter> <value>", "ELECTOR")
    @_command(_REPLICATION + "[SET|SET_ALL] <parameter> <value>", "REPLICATION")
    def change_quorum(self, _: str, __: str, name: str, text: str, scope: str) -> Result:
        """Change a setting of the elector or the replication; remembered without effect."""
        if name.upper() != "QUORUM":
            raise Refusal(f"Unknown tunable name '{name}'")
        value = int(text) if text.isdecimal() and len(text) < 20 else -1
        if not 0 <= value < _INT64:
            raise Refusal(
                "The QUORUM tunable must be a non-negative integer, but instead the following was "
                f"specified: {text}"
            )
        old, self._node.quorums[scope] = self._node.quorums[scope], value
        return {
            "tunableConfirmation": {
                "name": "Quorum",
                "oldValue": {"theInteger": old},
                "newValue": {"theInteger": value},
            }
        }

    # ---- statistics

    @_command("STAT LIST_TUNABLES")
    def list_statistics_settings(self) -> Result:
        """Show all settings of the statistics; this broker has none."""
        return {"tunables": {"tunables": []}}

    @_command("STAT GET <parameter>")
    @_command("STAT SET <parameter> <value>")
    def statistics_setting(self, name: str, value: str = "") -> Result:
        """Show or change a setting of the statistics; this broker has none."""
        consumer, dot, setting = name.rpartition(".")
        if not consumer or not dot or setting.upper() != "PUBLISHINTERVAL":
            raise _unsupported(name)
        if value:
            raise Refusal(f"No configuration found for StatConsumer '{consumer}'")
        raise Refusal(f"StatConsumer '{consumer}' does not exist")

    @_command("STAT SHOW")
    def statistics(self) -> Result:
        """Show the counts of posted, pushed and confirmed messages."""
        domains: dict[str, Any] = {}
        for queue in self._node.queues.values():
            entry: dict[str, Any] = {"values": _queue_values(queue)}
            if queue.fanout:
                entry["appIds"] = {app.app_id: {"values": _app_values(app)} for app in queue.authorized}
            domains.setdefault(queue.domain.config.name, {})[queue.uri] = entry
        stats = {
            "_timestamp": _world.now().strftime("%d%b%Y_%H:%M:%S.%f").upper(),
            "domainQueues": {"domains": domains},
            "clients": {"connected": len(self._node.clients)},
        }
        return {"stats": orjson.dumps(stats).decode()}


# ---- arguments, and their refusals


def _integer(text: str, what: str) -> int:
    try:
        number = int(text)
        if -_INT64 <= number < _INT64:
            return number
    except ValueError:
        pass
    raise _undecodable(f"Invalid {what}: {text.upper()}")


def _check_partition(text: str, *, lowest: int = 0) -> None:
    try:
        number = int(text) if text.upper() != "ALL" else -1
    except ValueError:
        raise _undecodable(
            "Invalid <partitionId> in command CLUSTERS CLUSTER <name> STORAGE PARTITION <partitionId>: "
            f"{text}"
        ) from None
    if number > 0:
        raise Refusal(f"Too high partitionId value: '{number}'")
    if number < lowest:
        raise Refusal(f"Too low partitionId value: '{number}'")


def _unknown_app(queue: BrokerQueue, app_id: str) -> str:
    return f"Specified appId '{app_id}' not found in the storage of queue '{queue.uri}'."


def _unsupported(name: str) -> Refusal:
    return Refusal(
        f"Unsupported tunable '{name}': Issue the LIST_TUNABLES command for the list of supported tunables."
    )


# ---- parts of answers


def _stored(queues: Iterable[BrokerQueue]) -> Result:
    return {
        "storages": [
            {
                "queueUri": queue.uri,
                "partitionId": 0,
                "numMessages": len(queue.store),
                "numBytes": queue.store.usage.bytes,
                "isPersistent": queue.domain.config.file_backed,
            }
            for queue in queues
        ]
    }


def _meter(usage: CapacityMeter) -> Result:
    return {
        "numMessages": usage.messages,
        "messageCapacity": usage.limits.messages,
        "numBytes": usage.bytes,
        "byteCapacity": usage.limits.bytes,
    }


def _handle(handle: QueueHandle) -> Result:
    readers = sum(stream.readers for stream in handle.streams.values())
    writers = sum(stream.writers for stream in handle.streams.values())
    return {
        "clientDescription": handle.client.description,
        "parametersJson": f'[ uri = "{handle.queue.uri}" qId = {handle.q_id % 2**32} '
        f"readCount = {readers} writeCount = {writers} ]",
        "subStreams": [_sub_stream(stream) for stream in handle.streams.values()],
    }


def _sub_stream(stream: SubStream) -> Result:
    return {
        "appId": printable(stream.app_id),
        "parametersJson": _printed_subscriptions(stream.app_id, stream.subscriptions),
        "unconfirmedMonitors": [_monitor(subscriber) for subscriber in stream.subscribers.values()],
        "numUnconfirmedMessages": len(stream.unconfirmed),
    }


def _printed_subscriptions(app_id: str, subscriptions: tuple[Subscription, ...]) -> str:
    """Return the subscriptions of a client for one application, in a real broker's format."""
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
    return f'[ appId = "{printable(app_id)}" subscriptions = [ {"".join(printed)}] ]'


def _monitor(subscriber: Subscriber) -> Result:
    return {
        "state": "STATE_FULL" if subscriber.full else "STATE_NORMAL",
        "numMessages": subscriber.messages,
        "messagesCapacity": subscriber.max_messages,
        "numBytes": subscriber.size,
        "bytesCapacity": subscriber.max_bytes,
    }


def _consumer_state(app: AppDelivery) -> Result:
    groups = app.routing.groups
    return {
        "appId": printable(app.app_id),
        "status": ("alive" if groups else "registered") if app.bit else "unauthorized",
        "isAtEndOfStorage": app.resume is None and not app.aside and app.queue.position is None,
        "appState": {
            "appId": printable(app.app_id),
            "numConsumers": sum(1 for stream in app.streams if stream.subscriptions),
            "redeliveryListLength": len(app.redelivery),
            "putAsideListLength": len(app.aside),
            "roundRobinRouter": {
                "consumers": [
                    {
                        "priority": group.priority,
                        "queueHandle": {"clientDescription": subscriber.stream.handle.client.description},
                        "count": subscriber.count,
                        "expression": printable(group.text),
                    }
                    for group in groups
                    for subscriber in group.members
                ]
            },
        },
    }


def _queue_values(queue: BrokerQueue) -> dict[str, int]:
    stats, limits = queue.stats(), queue.store.usage.limits
    values = {
        "queue_producers_count": stats.producers,
        "queue_consumers_count": stats.consumers,
        "queue_cfg_msgs": limits.messages,
        "queue_cfg_bytes": limits.bytes,
        "queue_history_abs": len(queue.store.remembered),
        "queue_role": 1,  # the primary
        # Messages are acknowledged on arrival.
        "queue_ack_time_avg": 0,
        "queue_ack_time_max": 0,
    }
    totals = {
        "queue_put_msgs": stats.posted,
        "queue_put_bytes": stats.posted_bytes,
        "queue_push_msgs": stats.pushed,
        "queue_push_bytes": stats.pushed_bytes,
        "queue_ack_msgs": stats.acknowledged,
        "queue_nack_msgs": stats.refused,
        "queue_nack_noquorum_msgs": 0,
        "queue_confirm_msgs": stats.confirmed,
        "queue_reject_msgs": stats.poisoned,
        "queue_gc_msgs": stats.expired,
    }
    # A real broker has each counter twice: since its start, and since the last printed statistics. The
    # embedded broker prints none.
    for name, value in totals.items():
        values[name] = values[f"{name}_abs"] = value
    return values | _content(stats.messages, stats.bytes) | _times(queue.apps.values())


def _app_values(app: AppDelivery) -> dict[str, int]:
    waiting = [message.size for message in app.queue.store if message.pending & app.bit]
    return _content(len(waiting), sum(waiting)) | _times([app])


def _content(messages: int, size: int) -> dict[str, int]:
    return {
        "queue_content_msgs": messages,
        "queue_content_bytes": size,
        "queue_msgs_current": messages,
        "queue_bytes_current": size,
    }


def _times(apps: Collection[AppDelivery]) -> dict[str, int]:
    """Means and maxima over applications, in nanoseconds."""
    values: dict[str, int] = {}
    for name, each in (
        ("queue_queue_time", [app.queue_times for app in apps]),
        ("queue_confirm_time", [app.confirm_times for app in apps]),
    ):
        count = sum(times.count for times in each)
        values[f"{name}_avg"] = int(sum(times.seconds for times in each) / max(count, 1) * 1e9)
        values[f"{name}_max"] = int(max((times.longest for times in each), default=0.0) * 1e9)
    return values
