# SPDX-License-Identifier: Apache-2.0
"""From the JSON of brokers to :mod:`bmq.admin.results`, where an answer has another shape than the result.

An answer without a required member, or with a value of another type, is a :class:`bmq.ProtocolError` with the
name and the place of the value.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from msgspec import convert
from msgspec.structs import replace

from bmq._json import orjson
from bmq.admin.results import (
    AppState,
    Client,
    ClusterStatus,
    ClusterTopology,
    Count,
    Depth,
    DomainInfo,
    Internals,
    MessagePage,
    PartitionStorage,
    Purged,
    QueueStatistics,
    ReaderSubscription,
    Statistics,
    Stream,
    Usage,
    Window,
)
from bmq.errors import ProtocolError
from bmq.wire.control import DEFAULT_APP_ID

__all__ = [
    "cluster_status",
    "cluster_storage",
    "depth",
    "domain_info",
    "internals",
    "limits_of",
    "listed",
    "message_page",
    "purged",
    "statistics",
    "topology",
]

R = TypeVar("R")

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


@contextmanager
def _reading(what: str) -> Generator[None]:
    """Raise a ProtocolError with the reason and the place if an answer is malformed."""
    try:
        yield
    except ProtocolError:
        raise
    except Exception as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ProtocolError(f"the broker's answer has an unknown form: {why[:200]}", field=what) from error


def listed(content: Any, member: str, kind: type[R]) -> tuple[R, ...]:
    """Return the values of a member, which a broker leaves out without values."""
    with _reading(member):
        return tuple(convert(value, kind) for value in content.get(member, ()))


# ---- clusters


def _node(content: Any, name: str) -> dict[str, Any]:
    """Return a member that names a node; None for the broker's words for no node."""
    node = content.get(name)
    return {name: None if not node or _NO_NODE in node else node}


@_reading("cluster_status")
def cluster_status(content: Any) -> ClusterStatus:
    """CLUSTERS CLUSTER <name> STATUS."""
    elector = content.get("electorInfo", _NOTHING)
    nodes = content["nodeStatuses"].get("nodes", ())
    partitions = content.get("partitionsInfo", _NOTHING).get("partitions", ())
    flat = content | elector | _node(elector, "leaderNode") | _node(content, "activeNodeDescription")
    flat |= {
        "name": content.get("name") or content["description"],
        "nodes": [each | {"status": each["status"].removeprefix("E_")} for each in nodes],
        "partitions": [
            each | _node(each, "primaryNode") | {"id": number} for number, each in enumerate(partitions)
        ],
    }
    return convert(flat, ClusterStatus)


@_reading("topology")
def topology(content: Any) -> ClusterTopology:
    """CLUSTERS CLUSTER <name> QUEUEHELPER."""
    queues = content.get("queues", ())
    return convert(
        {
            "domains": sorted(content.get("domains", ()), key=lambda domain: domain["name"]),
            "queues": sorted(each["uri"] for each in queues),
            "partitions": {each["uri"]: each.get("partitionId", -1) for each in queues},
        },
        ClusterTopology,
    )


@_reading("cluster_storage")
def cluster_storage(content: Any) -> tuple[PartitionStorage, ...]:
    """CLUSTERS CLUSTER <name> STORAGE SUMMARY."""
    return tuple(map(_partition, content.get("fileStores", ())))


def _partition(content: Any) -> PartitionStorage:
    # A closed partition has a summary without values.
    summary = content.get("summary") or _NOTHING
    files = {name: file for name, file in (summary.get("activeFileSet") or _NOTHING).items() if file}
    flat = content | files | (summary.get("storageContent") or _NOTHING)
    flat |= summary | _node(summary, "primaryNodeDescription")
    return convert(flat | {"state": content.get("state", "").lower()}, PartitionStorage)


# ---- domains


@_reading("domain_info")
def domain_info(content: Any) -> DomainInfo:
    """DOMAINS DOMAIN <name> INFOS."""
    try:
        configuration: dict[str, Any] = orjson.loads(content["configJson"])
    except orjson.JSONDecodeError:
        configuration = {}  # a broker stops in the middle if the domain's file has no consistency
    mode, details = _chosen(configuration.get("mode"))
    flat = {"mode": mode, "appIds": details.get("appIDs", ()), "configuration": configuration}
    return convert(content | content["storageContent"] | flat, DomainInfo)


def _chosen(choice: Any) -> tuple[str, Any]:
    """Return name and content of a choice; both are empty without a choice."""
    if not choice:
        return "", _NOTHING
    name, content = next(iter(choice.items()))
    return name, content or _NOTHING


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


@_reading("message_page")
def message_page(content: Any) -> MessagePage:
    """DOMAINS DOMAIN <name> QUEUE <name> LIST."""
    messages = [
        each | {"arrivalTimestamp": _utc(datetime.fromisoformat(each["arrivalTimestamp"]))}
        for each in content.get("messages", ())
    ]
    return convert(content | {"messages": messages}, MessagePage)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@_reading("purged")
def purged(content: Any) -> tuple[list[Purged], list[str]]:
    """DOMAINS DOMAIN <name> PURGE, and QUEUE <name> PURGE <appId>: purged queues, and failures."""
    entries = content.get("queues", ())
    done = [convert(entry["queue"], Purged) for entry in entries if "error" not in entry]
    return done, [str(entry["error"]["message"]) for entry in entries if "error" in entry]


@_reading("internals")
def internals(content: Any) -> Internals:
    """DOMAINS DOMAIN <name> QUEUE <name> INTERNALS.

    Raises:
        ProtocolError: the subscriptions cannot be told apart, because a client's text imitates the broker's.
    """
    state = content["state"]
    kind, fanout, relay = _engine(content)
    _readable(content["queue"])
    apps = [each["appState"] | each for each in fanout.get("consumerStates", ())]
    apps += [
        {"status": "alive" if each["numConsumers"] else "registered"} | each
        for each in relay.get("appStates", ())
    ]
    meter = state.get("capacityMeter")
    return Internals(
        uri=convert(state["uri"], str),
        mode=convert(fanout.get("mode", "") if kind == "localQueue" else "", str),
        depth=depth(content),
        usage=convert(meter, Usage) if meter else None,
        clients=tuple(_client(handle) for handle in state.get("handles", ())),
        apps=convert(apps, tuple[AppState, ...]),
    )


@_reading("depth")
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
    apps = [each | {"numBytes": only} for each in virtual]
    return convert({"uri": state["uri"], "messages": messages, "bytes": size, "apps": apps}, Depth)


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


def _client(handle: Any) -> Client:
    counts = _COUNTS.search(handle["parametersJson"])
    if counts is None:
        raise ProtocolError("the parameters of a client are unreadable", field="parametersJson")
    return Client(
        description=_HANDLE_ADDRESS.sub("", handle["clientDescription"]),
        readers=int(counts[1]),
        writers=int(counts[2]),
        streams=tuple(_stream(each) for each in handle.get("subStreams", ())),
    )


def _stream(content: Any) -> Stream:
    windows = convert(
        [each | {"full": each["state"] == "STATE_FULL"} for each in content.get("unconfirmedMonitors", ())],
        tuple[Window, ...],
    )
    app_id = content.get("appId") or DEFAULT_APP_ID
    subscriptions = list(_subscriptions(content["parametersJson"], app_id))
    return Stream(
        app_id=convert(app_id, str),
        unconfirmed=convert(content.get("numUnconfirmedMessages"), Count | None),
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
            yield convert(
                {
                    "id": int(each["id"]),
                    "expression": each["text"] if each["version"] != "E_UNDEFINED" else "",
                    "priority": int(priority),
                    "count": int(count),
                    "maxMessages": int(messages),
                    "maxBytes": int(size),
                },
                ReaderSubscription,
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


# ---- statistics


@_reading("statistics")
def statistics(content: str) -> Statistics:
    """STAT SHOW."""
    decoded = orjson.loads(content)
    queues: list[QueueStatistics] = []
    for domain, by_uri in decoded["domainQueues"]["domains"].items():
        for uri, entry in by_uri.items():
            apps = [_figures(app) | {"appId": name} for name, app in entry.get("appIds", _NOTHING).items()]
            names = {"uri": uri, "domain": domain, "apps": apps}
            queues.append(convert(_figures(entry) | names, QueueStatistics))
    return Statistics(
        datetime.strptime(decoded["_timestamp"], _TIME).replace(tzinfo=UTC),
        tuple(sorted(queues, key=lambda queue: queue.uri)),
    )


def _figures(entry: Any) -> dict[str, Any]:
    """Return the values of a queue or an application by the broker's names, and what it holds now.

    Brokers of old say only how much there was at most since a minute ago.
    """
    values: dict[str, Any] = entry.get("values", _NOTHING)
    held = {
        name: values.get(f"queue_{unit}_current", values.get(f"queue_content_{unit}"))
        for name, unit in (("messages", "msgs"), ("bytes", "bytes"))
    }
    return values | {name: value for name, value in held.items() if value is not None} | {"values": values}
