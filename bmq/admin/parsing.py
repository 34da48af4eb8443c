# SPDX-License-Identifier: Apache-2.0
"""From the JSON of brokers to :mod:`bmq.admin.results`.

The names are the names of the broker's command schema (``mqbcmd.xsd``). Types and ranges are those of the
results, which :func:`_made` checks. An answer without a required member, or with a value of another type, is
a :class:`bmq.ProtocolError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import msgspec

from bmq._json import orjson
from bmq.admin.results import (
    AppDepth,
    AppState,
    AppStatistics,
    BrokerConfiguration,
    Client,
    Cluster,
    ClusterNode,
    ClusterStatus,
    ClusterStorage,
    ClusterTopology,
    CommandHelp,
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
    Statistics,
    StorageFile,
    StoredMessage,
    StoredQueue,
    Stream,
    Tunable,
    TunableChange,
    TunableValue,
    Usage,
    Window,
)
from bmq.errors import ProtocolError
from bmq.wire.control.messages import DEFAULT_APP_ID

__all__ = [
    "broker_configuration",
    "cluster_status",
    "cluster_storage",
    "clusters",
    "command_help",
    "depth",
    "domain_info",
    "internals",
    "limits_of",
    "message_page",
    "purged",
    "statistics",
    "stored_queues",
    "topology",
    "tunable",
    "tunable_change",
    "tunables",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_NOTHING: Any = {}
# A broker prints these words for no node: "** NA **", "** NULL **".
_NO_NODE = "**"
_TIME = "%d%b%Y_%H:%M:%S.%f"

# A broker's printed subscription. Clients choose the text, and brokers do not escape its quotes: what stands
# behind the first end may be the client's. :func:`_readable` refuses such texts.
_SUBSCRIPTION = re.compile(
    r"\[ sId = (?P<id>\d{1,20}) expression = \[ version = (?P<version>\w{1,40}) text = \"(?P<text>.*?)\" \] "
    r"consumers = \[ (?P<consumers>(?:\[ [^\[\]\"]* \] ?)*)\] \] ",
    re.DOTALL,
)
_UNREADABLE = (
    "the subscriptions of this queue cannot be told apart: the text of one imitates the broker's own words. "
    "Find the client in the printed answer: bmq admin DOMAINS DOMAIN name QUEUE name INTERNALS"
)
_TEXT_ENDS = '" ] consumers = ['
_CONSUMER = re.compile(
    r"\[ maxUnconfirmedMessages = (-?\d{1,20}) maxUnconfirmedBytes = (-?\d{1,20}) "
    r"consumerPriority = (-?\d{1,20}) consumerPriorityCount = (-?\d{1,20}) \]"
)
# The counts stand behind the application's name, which clients choose.
_COUNTS = re.compile(r" readCount = (\d{1,20}) writeCount = (\d{1,20})(?: adminCount = \d{1,20})? \]\s*\Z")
_HANDLE_ADDRESS = re.compile(r"^(?:0x)?[0-9a-fA-F]+\s+~ ")


def _strict(parse: Callable[P, R]) -> Callable[P, R]:
    """Raise a ProtocolError with the reason if an answer is malformed."""

    @wraps(parse)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return parse(*args, **kwargs)
        except ProtocolError:
            raise
        except Exception as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ProtocolError(
                f"the broker's answer has an unknown form: {what[:200]}", field=parse.__name__
            ) from error

    return checked


def _made(kind: type[T], *values: Any, **named: Any) -> T:
    """Return a result whose values have the types and ranges of its class."""
    names: Iterable[str] = getattr(kind, "__dataclass_fields__")  # noqa: B009
    return msgspec.convert(dict(zip(names, values, strict=False)) | named, kind)


def _chosen(choice: Any) -> tuple[str, Any]:
    """Return name and content of a choice; both are empty without a choice."""
    if not choice:
        return "", _NOTHING
    name, content = next(iter(choice.items()))
    return name, content or _NOTHING


def _usage(meter: Any) -> Usage:
    return _made(
        Usage, meter["numMessages"], meter["messageCapacity"], meter["numBytes"], meter["byteCapacity"]
    )


def _stored(storages: Iterable[dict[str, Any]]) -> tuple[StoredQueue, ...]:
    return tuple(
        _made(
            StoredQueue,
            each["queueUri"],
            each["numMessages"],
            each["numBytes"],
            each["isPersistent"],
            each.get("partitionId", -1),
        )
        for each in storages
    )


# ---- the broker


@_strict
def command_help(content: Any) -> tuple[CommandHelp, ...]:
    """HELP."""
    return tuple(
        _made(CommandHelp, each["command"], each.get("description", ""))
        for each in content.get("commands", ())
    )


@_strict
def broker_configuration(content: Any) -> BrokerConfiguration:
    """BROKERCONFIG DUMP."""
    text: str = content["asJSON"]
    decoded: dict[str, Any] = dict(orjson.loads(text))
    return _made(
        BrokerConfiguration,
        instance=decoded.get("brokerInstanceName", ""),
        version=decoded.get("brokerVersion"),
        host=decoded.get("hostName", ""),
        etc_dir=decoded.get("etcDir", ""),
        content=decoded,
        text=text,
    )


# The members of a choice of values that are no text.
_NULL = "theNull"
_PLAIN = ("theBool", "theInteger", "theDouble", "theString")


def _value(choice: Any) -> TunableValue:
    """A value is a choice with one member; an unknown kind of a newer broker is text."""
    name, content = next(iter(choice.items()))
    if name == _NULL:
        return None
    return content if name in _PLAIN and isinstance(content, bool | int | float | str) else str(content)


@_strict
def tunable(content: Any, node: str = "") -> Tunable:
    """STAT GET, STORAGE REPLICATION GET, STATE ELECTOR GET."""
    return _made(Tunable, content["name"], _value(content["value"]), content.get("description", ""), node)


@_strict
def tunables(content: Any) -> tuple[Tunable, ...]:
    """STAT LIST_TUNABLES, STORAGE REPLICATION LIST_TUNABLES, STATE ELECTOR LIST_TUNABLES."""
    return tuple(tunable(each) for each in content.get("tunables", ()))


@_strict
def tunable_change(content: Any, node: str = "") -> TunableChange:
    """STAT SET, STORAGE REPLICATION SET, STATE ELECTOR SET."""
    return _made(
        TunableChange, content["name"], _value(content["oldValue"]), _value(content["newValue"]), node
    )


# ---- clusters


@_strict
def clusters(content: Any) -> tuple[Cluster, ...]:
    """CLUSTERS LIST."""
    return tuple(
        _made(
            Cluster,
            each["name"],
            each["locality"],
            tuple(
                _made(ClusterNode, node["hostName"], node["nodeId"], node["dataCenter"])
                for node in each.get("nodes", ())
            ),
        )
        for each in content.get("clusters", ())
    )


@_strict
def cluster_status(content: Any) -> ClusterStatus:
    """CLUSTERS CLUSTER <name> STATUS."""
    elector = content.get("electorInfo", _NOTHING)
    return _made(
        ClusterStatus,
        name=content.get("name") or content["description"],
        healthy=content["isHealthy"],
        self_node=content.get("selfNodeDescription", ""),
        leader=_node(elector.get("leaderNode")),
        elector_state=elector.get("electorState", ""),
        nodes=tuple(
            _made(
                NodeStatus,
                node["description"],
                node["status"].removeprefix("E_"),
                node.get("isAvailable"),
                node.get("primaryForPartitionIds", ()),
            )
            for node in content["nodeStatuses"].get("nodes", ())
        ),
        partitions=tuple(
            _made(
                PartitionStatus,
                number,
                _node(each.get("primaryNode")),
                each["primaryStatus"],
                each["numQueuesMapped"],
                each["numActiveQueues"],
            )
            for number, each in enumerate(content.get("partitionsInfo", _NOTHING).get("partitions", ()))
        ),
        active_node=_node(content.get("activeNodeDescription")),
    )


def _node(description: str | None) -> str | None:
    return None if not description or _NO_NODE in description else description


@_strict
def topology(content: Any) -> ClusterTopology:
    """CLUSTERS CLUSTER <name> QUEUEHELPER."""
    domains = [
        _made(DomainSummary, each["name"], each["numAssignedQueues"], each["loaded"])
        for each in content.get("domains", ())
    ]
    return _made(
        ClusterTopology,
        tuple(sorted(domains, key=lambda domain: domain.name)),
        tuple(sorted(each["uri"] for each in content.get("queues", ()))),
        {each["uri"]: each.get("partitionId", -1) for each in content.get("queues", ())},
    )


_NO_FILE = StorageFile(0, 0, 0)


def _file(content: Any) -> StorageFile:
    if not content:
        return _NO_FILE
    return _made(StorageFile, content["positionBytes"], content["sizeBytes"], content["outstandingBytes"])


@_strict
def cluster_storage(content: Any) -> ClusterStorage:
    """CLUSTERS CLUSTER <name> STORAGE SUMMARY, and STORAGE PARTITION <id> SUMMARY."""
    return _made(
        ClusterStorage,
        content.get("clusterFileStoreLocation", ""),
        tuple(map(_partition, content.get("fileStores", ()))),
    )


def _partition(content: Any) -> PartitionStorage:
    # A closed partition has a summary without values.
    summary = content.get("summary") or _NOTHING
    active = summary.get("activeFileSet") or _NOTHING
    return _made(
        PartitionStorage,
        id=content["partitionId"],
        state=content.get("state", "").lower(),
        primary=_node(summary.get("primaryNodeDescription")),
        lease=summary.get("primaryLeaseId", 0),
        sequence=summary.get("sequenceNum", 0),
        available=summary.get("isAvailable", False),
        data=_file(active.get("dataFile")),
        journal=_file(active.get("journalFile")),
        queue_list=_file(active.get("qlistFile")),
        file_sets={
            each["dataFileName"]: each["aliasedBlobBufferCount"] for each in summary.get("fileSets", ())
        },
        mapped_bytes=summary.get("totalMappedBytes", 0),
        outstanding_records=summary.get("numOutstandingRecords", 0),
        unreceipted=summary.get("numUnreceiptedMessages", 0),
        nagle_packets=summary.get("naglePacketCount", 0),
        queues=_stored((summary.get("storageContent") or _NOTHING).get("storages", ())),
    )


@_strict
def stored_queues(content: Any) -> tuple[StoredQueue, ...]:
    """CLUSTERS CLUSTER <name> STORAGE DOMAIN <domain> QUEUE_STATUS."""
    return _stored(content.get("storages", ()))


# ---- domains


@_strict
def domain_info(content: Any) -> DomainInfo:
    """DOMAINS DOMAIN <name> INFOS."""
    try:
        configuration: dict[str, Any] = orjson.loads(content["configJson"])
    except orjson.JSONDecodeError:
        configuration = {}  # a broker stops in the middle if the domain's file has no consistency
    mode, details = _chosen(configuration.get("mode"))
    return _made(
        DomainInfo,
        name=content["name"],
        cluster=content["clusterName"],
        mode=mode,
        app_ids=details.get("appIDs", ()),
        configuration=configuration,
        usage=_usage(content["capacityMeter"]),
        queues=_stored(content["storageContent"].get("storages", ())),
    )


def limits_of(configuration: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the limits of a domain and of each of its queues, each as messages and bytes; 0 for no limit."""
    storage = _member(configuration, "storage")
    return _amount(_member(storage, "domainLimits")), _amount(_member(storage, "queueLimits"))


def _member(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _amount(found: Mapping[str, Any]) -> tuple[int, int]:
    messages, size = found.get("messages"), found.get("bytes")
    return (messages if isinstance(messages, int) else 0, size if isinstance(size, int) else 0)


# ---- queues


@_strict
def message_page(content: Any) -> MessagePage:
    """DOMAINS DOMAIN <name> QUEUE <name> LIST."""
    return _made(
        MessagePage,
        tuple(
            _made(
                StoredMessage,
                each["guid"],
                each["sizeBytes"],
                _utc(datetime.fromisoformat(each["arrivalTimestamp"])),
            )
            for each in content.get("messages", ())
        ),
        content["offset"],
        content["totalQueueMessages"],
    )


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@_strict
def purged(content: Any) -> tuple[list[Purged], list[str]]:
    """DOMAINS DOMAIN <name> PURGE, and QUEUE <name> PURGE <appId>: purged queues, and failures."""
    done: list[Purged] = []
    failures: list[str] = []
    for entry in content.get("queues", ()):
        if "error" in entry:
            failures.append(str(entry["error"]["message"]))
        else:
            queue = entry["queue"]
            done.append(
                _made(
                    Purged,
                    queue["queueUri"],
                    queue["appId"],
                    queue["numMessagesPurged"],
                    queue["numBytesPurged"],
                )
            )
    return done, failures


@_strict
def internals(content: Any) -> Internals:
    """DOMAINS DOMAIN <name> QUEUE <name> INTERNALS.

    Raises:
        ProtocolError: the subscriptions cannot be told apart, because a client's text imitates the broker's.
    """
    state = content["state"]
    kind, fanout, relay = _engine(content)
    _readable(content["queue"])
    apps = [
        _app(each["appState"], each["status"], each.get("isAtEndOfStorage"))
        for each in fanout.get("consumerStates", ())
    ]
    apps += [
        _app(each, "alive" if each["numConsumers"] else "registered", None)
        for each in relay.get("appStates", ())
    ]
    return _made(
        Internals,
        uri=state["uri"],
        mode=fanout.get("mode", "") if kind == "localQueue" else "",
        depth=depth(content),
        usage=_usage(state["capacityMeter"]) if state.get("capacityMeter") else None,
        clients=tuple(_client(handle) for handle in state.get("handles", ())),
        apps=tuple(apps),
    )


@_strict
def depth(content: Any) -> Depth:
    """DOMAINS DOMAIN <name> QUEUE <name> INTERNALS, of which only the messages are read."""
    state = content["state"]
    _, fanout, _ = _engine(content)
    storage = state.get("storage", _NOTHING)
    virtual: Any = storage.get("virtualStorages", ())
    messages, size = storage.get("numMessages", 0), storage.get("numBytes", 0)
    if not virtual and fanout.get("mode") != "fanout":
        virtual = [{"appId": DEFAULT_APP_ID, "numMessages": messages}]
    # A broker goes on counting expired messages for an application if a consumer held them at that time.
    virtual = [{**each, "numMessages": min(each["numMessages"], messages)} for each in virtual]
    only = size if len(virtual) == 1 and virtual[0]["numMessages"] == messages else None
    apps = tuple(_made(AppDepth, each["appId"], each["numMessages"], only) for each in virtual)
    return _made(Depth, state["uri"], messages, size, apps)


def _engine(content: Any) -> tuple[str, Any, Any]:
    """Return the kind of a queue, and the members of its engine for a primary, and for another node."""
    kind, queue = _chosen(content["queue"])
    engine = queue.get("queueEngine", _NOTHING)
    return kind, engine.get("fanout", _NOTHING), engine.get("relay", _NOTHING)


def _readable(queue: Any) -> None:
    """Refuse a queue with a subscription whose text imitates the end of a printed text.

    The engine lists the expressions of all subscriptions with consumers as JSON, where no text can pass for
    another.
    """
    if orjson.dumps(_TEXT_ENDS)[1:-1] in orjson.dumps(queue):
        raise ProtocolError(_UNREADABLE, field="expression")


def _app(state: Any, status: str, at_end: bool | None) -> AppState:
    return _made(
        AppState, state["appId"], status, state["numConsumers"], state["redeliveryListLength"], at_end
    )


def _client(handle: Any) -> Client:
    counts = _COUNTS.search(handle["parametersJson"])
    if counts is None:
        raise ProtocolError("the parameters of a client are unreadable", field="parametersJson")
    return _made(
        Client,
        description=_HANDLE_ADDRESS.sub("", handle["clientDescription"]),
        readers=int(counts[1]),
        writers=int(counts[2]),
        streams=tuple(_stream(each) for each in handle.get("subStreams", ())),
    )


def _stream(content: Any) -> Stream:
    windows = tuple(_window(each) for each in content.get("unconfirmedMonitors", ()))
    app_id = content.get("appId") or DEFAULT_APP_ID
    subscriptions = list(_subscriptions(content["parametersJson"], app_id))
    return _made(
        Stream,
        app_id=app_id,
        unconfirmed=content.get("numUnconfirmedMessages"),
        subscriptions=tuple(_with_window(each, subscriptions, windows) for each in subscriptions),
        windows=windows,
    )


def _subscriptions(printed: str, app_id: str) -> Iterator[ReaderSubscription]:
    """Read all of a printed text; what is left over, or unusual, may be a client's imitation."""
    begin, end = f'[ appId = "{app_id}" subscriptions = [ ', "] ]"
    found: list[re.Match[str]] = []
    at = len(begin) if printed.startswith(begin) else len(printed)
    while each := _SUBSCRIPTION.match(printed, at):
        found.append(each)
        at = each.end()
    idle = sum(not each["consumers"] for each in found)
    if printed[at:].strip() != end or (idle and len(found) > 1):
        raise ProtocolError(_UNREADABLE, field="parametersJson")
    for each in found:
        for messages, size, priority, count in _CONSUMER.findall(each["consumers"]):
            yield _made(
                ReaderSubscription,
                id=int(each["id"]),
                expression=each["text"] if each["version"] != "E_UNDEFINED" else "",
                priority=int(priority),
                count=int(count),
                max_messages=int(messages),
                max_bytes=int(size),
                window=None,
            )


def _with_window(
    subscription: ReaderSubscription, all_of_them: list[ReaderSubscription], windows: tuple[Window, ...]
) -> ReaderSubscription:
    """Find a subscription's window by its limits, if unambiguous.

    A broker lists the windows in no order, including windows of withdrawn subscriptions. The window of a
    withdrawn subscription is empty once all of its messages are confirmed.
    """
    limits = (subscription.max_messages, subscription.max_bytes)
    rivals = sum(1 for each in all_of_them if (each.max_messages, each.max_bytes) == limits)
    candidates = [each for each in windows if (each.max_messages, each.max_bytes) == limits]
    candidates.sort(key=lambda window: window.messages, reverse=True)
    chosen, rest = candidates[:rivals], candidates[rivals:]
    if len(set(chosen)) != 1 or any(each.messages for each in rest):
        return subscription
    return replace(subscription, window=chosen[0])


def _window(monitor: Any) -> Window:
    return _made(
        Window,
        monitor["numMessages"],
        monitor["messagesCapacity"],
        monitor["numBytes"],
        monitor["bytesCapacity"],
        monitor["state"] == "STATE_FULL",
    )


# ---- statistics


@_strict
def statistics(content: str) -> Statistics:
    """STAT SHOW."""
    decoded = orjson.loads(content)
    queues = [
        _queue_statistics(domain, uri, entry)
        for domain, by_uri in decoded["domainQueues"]["domains"].items()
        for uri, entry in by_uri.items()
    ]
    return _made(
        Statistics,
        datetime.strptime(decoded["_timestamp"], _TIME).replace(tzinfo=UTC),
        tuple(sorted(queues, key=lambda queue: queue.uri)),
    )


def _held(values: Mapping[str, int], unit: str) -> int | None:
    """What is there now. Brokers of old say only how much there was at most since a minute ago."""
    return values.get(f"queue_{unit}_current", values.get(f"queue_content_{unit}"))


def _queue_statistics(domain: str, uri: str, entry: Any) -> QueueStatistics:
    values: dict[str, int] = entry.get("values", {})
    return _made(
        QueueStatistics,
        uri=uri,
        domain=domain,
        producers=values.get("queue_producers_count", 0),
        consumers=values.get("queue_consumers_count", 0),
        messages=_held(values, "msgs") or 0,
        bytes=_held(values, "bytes") or 0,
        posted=values.get("queue_put_msgs_abs", 0),
        posted_bytes=values.get("queue_put_bytes_abs", 0),
        pushed=values.get("queue_push_msgs_abs", 0),
        acknowledged=values.get("queue_ack_msgs_abs", 0),
        refused=values.get("queue_nack_msgs_abs", 0),
        confirmed=values.get("queue_confirm_msgs_abs", 0),
        rejected=values.get("queue_reject_msgs_abs", 0),
        expired=values.get("queue_gc_msgs_abs", 0),
        apps=tuple(
            _made(
                AppStatistics,
                app_id,
                _held(each.get("values", _NOTHING), "msgs") or 0,
                _held(each.get("values", _NOTHING), "bytes"),
                each.get("values", _NOTHING),
            )
            for app_id, each in entry.get("appIds", {}).items()
        ),
        values=values,
    )
