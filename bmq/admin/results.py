# SPDX-License-Identifier: Apache-2.0
"""A broker's answers to admin commands, as frozen values.

Sizes are in bytes, times are UTC. Values that a broker does not report are None. The names in the broker's
answers are those of its command schema (``mqbcmd.xsd``): a field's own name in camel case, or the name given
with the field. Where an answer has another shape than the result, the class brings the answer into shape.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Self, TypeAlias, cast

from msgspec import Meta, Struct, convert, field

from bmq._json import orjson
from bmq.errors import ProtocolError
from bmq.wire.control import DEFAULT_APP_ID

__all__ = [
    "AppDepth",
    "AppState",
    "AppStatistics",
    "Client",
    "Cluster",
    "ClusterNode",
    "ClusterStatus",
    "ClusterTopology",
    "Depth",
    "DomainInfo",
    "DomainSummary",
    "Internals",
    "MessagePage",
    "NodeStatus",
    "PartitionStatus",
    "PartitionStorage",
    "Purged",
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
]


# Numbers of a broker: any, and those that count something. They are checked when an answer is read.
Number: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]

# Members that may have secrets, or are too long for a line of text.
_HIDDEN = frozenset({"configuration", "values"})


_NOTHING: Any = {}
# A broker prints these words for no node: "** NA **", "** NULL **".
_NO_NODE = "**"


@contextmanager
def reading(what: str) -> Generator[None]:
    """Raise a ProtocolError with the reason and the place if an answer is malformed."""
    try:
        yield
    except ProtocolError:
        raise
    except Exception as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ProtocolError(f"the broker's answer has an unknown form: {why[:200]}", field=what) from error


class Answer(Struct, frozen=True, rename="camel"):
    """A value of a broker's answer.

    An answer without a required member, or with a value of another type, is a :class:`bmq.ProtocolError` with
    the name and the place of the value.
    """

    @classmethod
    def _read(cls, content: Any) -> Self:
        with reading(cls.__name__):
            return convert(cls._shaped(content), cls)

    @classmethod
    def _read_all(cls, content: Any, member: str) -> tuple[Self, ...]:
        """Read the values of a member, which a broker leaves out without values."""
        with reading(member):
            shaped = [cls._shaped(value) for value in content.get(member, ())]
            return convert(shaped, tuple[cls, ...])  # type: ignore[valid-type]

    @staticmethod
    def _shaped(content: Any) -> Any:
        """Return the broker's answer in the shape of the class."""
        return content

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in _HIDDEN)
        return f"{type(self).__name__}({', '.join(shown)})"


def _node(content: Any, name: str) -> dict[str, Any]:
    """Return a member that names a node; None for the broker's words for no node."""
    node = content.get(name)
    return {name: None if not node or _NO_NODE in node else node}


def _choice(content: Any) -> tuple[str, Any]:
    """Return name and content of a choice; both are empty without a choice."""
    name, chosen = next(iter(content.items())) if content else ("", None)
    return name, chosen or _NOTHING


# ---- clusters


class ClusterNode(Answer, frozen=True):
    """A node in a cluster's configuration.

    Attributes:
        host: name of the node.
        id: number of the node.
        data_center: location of the node.
    """

    host: str = field(name="hostName")
    id: Number = field(name="nodeId")
    data_center: str


class Cluster(Answer, frozen=True):
    """A cluster of the broker.

    Attributes:
        name: name of the cluster.
        locality: member, if the broker is a node of the cluster; otherwise local or remote.
        nodes: nodes of the cluster.
    """

    name: str
    locality: str
    nodes: tuple[ClusterNode, ...] = ()


class NodeStatus(Answer, frozen=True):
    """A node as seen by the answering node.

    Attributes:
        description: name and number, for people.
        status: the protocol's name, without ``E_``: AVAILABLE, STARTING, STOPPING, UNAVAILABLE, UNKNOWN.
        connected: whether the answering broker is connected to the node; None for the broker itself.
        primary_for: partitions with this node as primary.
    """

    description: str
    status: str
    connected: bool | None = field(name="isAvailable", default=None)
    primary_for: tuple[Number, ...] = field(name="primaryForPartitionIds", default=())


class PartitionStatus(Answer, frozen=True):
    """A partition of a cluster's storage.

    Attributes:
        id: number of the partition.
        primary: the primary node, for people; None without a primary.
        status: ACTIVE, PASSIVE or UNDEFINED.
        queues: number of queues.
        active_queues: number of queues in use.
    """

    id: Count
    primary: str | None = field(name="primaryNode")
    status: str = field(name="primaryStatus")
    queues: Count = field(name="numQueuesMapped")
    active_queues: Count = field(name="numActiveQueues")


class ClusterStatus(Answer, frozen=True):
    """The state of a cluster.

    Attributes:
        name: name of the cluster.
        healthy: whether the broker considers the cluster healthy.
        self_node: the answering broker, for people.
        leader: the leader node, for people; None without a leader.
        elector_state: the broker's role in the election: LEADER, FOLLOWER, CANDIDATE or DORMANT.
        nodes: nodes of the cluster.
        partitions: partitions of the cluster.
        active_node: the node behind a proxy, for people; None without such a node, and for a member.
    """

    name: str
    healthy: bool = field(name="isHealthy")
    self_node: str = field(name="selfNodeDescription", default="")
    leader: str | None = field(name="leaderNode", default=None)
    elector_state: str = ""
    nodes: tuple[NodeStatus, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()
    active_node: str | None = field(name="activeNodeDescription", default=None)

    @staticmethod
    def _shaped(content: Any) -> Any:
        elector = content.get("electorInfo", _NOTHING)
        nodes = content["nodeStatuses"].get("nodes", ())
        partitions = content.get("partitionsInfo", _NOTHING).get("partitions", ())
        shaped = content | elector | _node(elector, "leaderNode") | _node(content, "activeNodeDescription")
        return shaped | {
            "name": content.get("name") or content["description"],
            "nodes": [each | {"status": each["status"].removeprefix("E_")} for each in nodes],
            "partitions": [
                each | _node(each, "primaryNode") | {"id": number} for number, each in enumerate(partitions)
            ],
        }


class StorageFile(Answer, frozen=True):
    """A file of a partition.

    Attributes:
        used: bytes written.
        size: bytes of the file; 0 for a missing file.
        outstanding: bytes that a rollover would copy.
    """

    used: Count = field(name="positionBytes")
    size: Count = field(name="sizeBytes")
    outstanding: Count = field(name="outstandingBytes")


_NO_FILE = StorageFile(0, 0, 0)


class PartitionStorage(Answer, frozen=True):
    """The files and queues of a partition, as seen by the answering broker.

    Attributes:
        id: number of the partition.
        state: open, closed or stopping. Only an open partition has further values.
        primary: the primary node, for people; None without a primary.
        sequence: number of the latest record in the primary's lease.
        available: whether the partition accepts posts.
        data: the active file with messages.
        journal: the active file with records of posts, confirmations and deletions.
        queue_list: the active file with the list of queues; its size is 0 if the broker has no such file.
        unreceipted: messages without the receipts of enough nodes.
        queues: queues with their contents.
    """

    id: Count = field(name="partitionId")
    state: str = ""
    primary: str | None = field(name="primaryNodeDescription", default=None)
    sequence: Count = field(name="sequenceNum", default=0)
    available: bool = field(name="isAvailable", default=False)
    data: StorageFile = field(name="dataFile", default=_NO_FILE)
    journal: StorageFile = field(name="journalFile", default=_NO_FILE)
    queue_list: StorageFile = field(name="qlistFile", default=_NO_FILE)
    unreceipted: Count = field(name="numUnreceiptedMessages", default=0)
    queues: tuple[StoredQueue, ...] = field(name="storages", default=())

    @staticmethod
    def _shaped(content: Any) -> Any:
        # A closed partition has a summary without values.
        summary = content.get("summary") or _NOTHING
        files = {name: file for name, file in (summary.get("activeFileSet") or _NOTHING).items() if file}
        shaped = content | files | (summary.get("storageContent") or _NOTHING)
        shaped |= summary | _node(summary, "primaryNodeDescription")
        return shaped | {"state": content.get("state", "").lower()}


# ---- domains


class DomainSummary(Answer, frozen=True):
    """A domain with queues in a cluster.

    Attributes:
        name: name of the domain.
        queues: number of queues.
        loaded: whether the broker has loaded the domain's configuration.
    """

    name: str
    queues: Count = field(name="numAssignedQueues")
    loaded: bool


class ClusterTopology(Answer, frozen=True):
    """The domains and queues of a cluster.

    Attributes:
        domains: domains, by name.
        queues: URIs of the queues, sorted.
        partitions: number of each queue's partition, by URI; negative if unknown to the broker.
    """

    domains: tuple[DomainSummary, ...]
    queues: tuple[str, ...]
    partitions: Mapping[str, Number] = field(default_factory=dict[str, int])

    @staticmethod
    def _shaped(content: Any) -> Any:
        queues = content.get("queues", ())
        return {
            "domains": sorted(content.get("domains", ()), key=lambda domain: domain["name"]),
            "queues": sorted(each["uri"] for each in queues),
            "partitions": {each["uri"]: each.get("partitionId", -1) for each in queues},
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """The role of a broker in the cluster of a queue.

    Only the primary of a queue knows all of the queue's clients, subscriptions and unconfirmed messages.

    Attributes:
        broker: address of the broker.
        node: name of the broker in the cluster; empty for a proxy, and for a broker without other nodes.
        is_primary: whether the broker is the primary of the queue; True for a broker without other nodes.
        is_proxy: whether the broker is a proxy of the cluster.
        primary: name of the primary; None if unknown to the broker.
        active_node: the node behind a proxy; None without such a node, and for a node.
    """

    broker: str
    node: str
    is_primary: bool
    is_proxy: bool
    primary: str | None
    active_node: str | None

    @property
    def gap(self) -> str:
        """Why an answer of the broker about the queue is incomplete; empty for the primary."""
        if self.is_primary:
            return ""
        if self.is_proxy:
            active = f" (its active node is {self.active_node})" if self.active_node else ""
            return (
                f"{self.broker} is a proxy{active}: proxies do not answer admin commands about queues; "
                "ask the nodes of the cluster"
            )
        primary = f"{self.primary} is" if self.primary else f"{self.node} knows no primary"
        return (
            f"{self.node} is not the primary of this queue ({primary}): this answer covers {self.node} only"
        )


class Usage(Answer, frozen=True):
    """The use of a quota.

    Attributes:
        messages: stored messages.
        message_limit: maximum number of messages.
        bytes: stored bytes.
        byte_limit: maximum number of bytes.
    """

    messages: Count = field(name="numMessages")
    message_limit: Number = field(name="messageCapacity")
    bytes: Count = field(name="numBytes")
    byte_limit: Number = field(name="byteCapacity")


class StoredQueue(Answer, frozen=True):
    """A queue in a broker's storage.

    Attributes:
        uri: URI of the queue.
        messages: stored messages.
        bytes: stored bytes.
        persistent: whether the storage is on disk.
        partition: number of the queue's partition.
    """

    uri: str = field(name="queueUri")
    messages: Count = field(name="numMessages")
    bytes: Count = field(name="numBytes")
    persistent: bool = field(name="isPersistent")
    partition: Number = field(name="partitionId", default=-1)


class DomainInfo(Answer, frozen=True):
    """A domain: configuration and contents.

    Attributes:
        name: name of the domain.
        cluster: the domain's cluster.
        mode: priority, fanout or broadcast; empty if not reported by the broker.
        app_ids: applications of a fanout domain.
        configuration: the broker's complete configuration of the domain; empty if the broker sends only a
            part, because the domain's file has no ``consistency``.
        usage: use of the quota.
        queues: queues with their contents.
    """

    name: str
    cluster: str = field(name="clusterName")
    mode: str
    app_ids: tuple[str, ...]
    configuration: Mapping[str, Any]
    usage: Usage = field(name="capacityMeter")
    queues: tuple[StoredQueue, ...] = field(name="storages", default=())

    @staticmethod
    def _shaped(content: Any) -> Any:
        try:
            configuration: dict[str, Any] = orjson.loads(content["configJson"])
        except orjson.JSONDecodeError:
            configuration = {}  # a broker stops in the middle if the domain's file has no consistency
        mode, details = _choice(configuration.get("mode"))
        own = {"mode": mode, "appIds": details.get("appIDs", ()), "configuration": configuration}
        return content | content["storageContent"] | own


def ttl_of(domain: DomainInfo) -> int | None:
    """Return the time to live of a domain's messages in seconds; None if not reported, or without a limit."""
    ttl = domain.configuration.get("messageTtl")
    return ttl if isinstance(ttl, int) and ttl > 0 else None


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


def _engine(content: Any) -> tuple[str, Any, Any]:
    """Return the kind of a queue, and the members of its engine for a primary, and for another node."""
    kind, queue = _choice(content["queue"])
    engine = queue.get("queueEngine", _NOTHING)
    return kind, engine.get("fanout", _NOTHING), engine.get("relay", _NOTHING)


class AppDepth(Answer, frozen=True):
    """The depth of a queue for one application.

    Attributes:
        app_id: the application; ``__default`` without applications.
        messages: number of messages.
        bytes: bytes of the messages; None if the broker does not count bytes by application.
    """

    app_id: str
    messages: Count = field(name="numMessages")
    bytes: Count | None = field(name="numBytes")


class Depth(Answer, frozen=True):
    """The depth of a queue.

    Attributes:
        uri: the queue.
        messages: number of messages; a message for several applications counts once.
        bytes: bytes of the messages.
        apps: the depth by application.
    """

    uri: str
    messages: Count
    bytes: Count
    apps: tuple[AppDepth, ...]

    @staticmethod
    def _shaped(content: Any) -> Any:
        state = content["state"]
        _, fanout, _ = _engine(content)
        storage = state.get("storage", _NOTHING)
        apps: Any = storage.get("virtualStorages", ())
        messages, size = storage.get("numMessages", 0), storage.get("numBytes", 0)
        if not apps and fanout.get("mode") != "fanout":
            apps = [{"appId": DEFAULT_APP_ID, "numMessages": messages}]
        # A broker goes on counting expired messages for an application if a consumer held them at that time.
        apps = [each | {"numMessages": min(each["numMessages"], messages)} for each in apps]
        only = size if len(apps) == 1 and apps[0]["numMessages"] == messages else None
        apps = [each | {"numBytes": only} for each in apps]
        return {"uri": state["uri"], "messages": messages, "bytes": size, "apps": apps}


class Window(Answer, frozen=True):
    """The use of a limit of unconfirmed messages.

    Attributes:
        messages: unconfirmed messages.
        max_messages: maximum number of messages.
        bytes: unconfirmed bytes.
        max_bytes: maximum number of bytes.
        full: whether the broker delivers nothing before a confirmation.
    """

    messages: Count = field(name="numMessages")
    max_messages: Number = field(name="messagesCapacity")
    bytes: Count = field(name="numBytes")
    max_bytes: Number = field(name="bytesCapacity")
    full: bool

    @staticmethod
    def _shaped(content: Any) -> Any:
        # A withdrawn subscription leaves a full window without room.
        return content | {"full": content["state"] == "STATE_FULL" and content["messagesCapacity"] > 0}


class ReaderSubscription(Answer, frozen=True):
    """One subscription of a consumer.

    Attributes:
        id: the client's number of the subscription.
        expression: the expression; empty for all messages.
        priority: the priority; the highest is tried first.
        count: number of consumers with the subscription.
        max_messages: limit of unconfirmed messages.
        max_bytes: limit of unconfirmed bytes.
        window: use of the limits. Brokers list a consumer's windows without their subscriptions: None if two
            subscriptions have the same limits and different windows.
    """

    id: Count
    expression: str
    priority: Number
    count: Number
    max_messages: Number
    max_bytes: Number
    window: Window | None = None


# A broker's printed subscription. Clients choose the text, and brokers do not escape its quotes: what stands
# behind the first end may be the client's. :class:`Internals` refuses such texts.
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


def _subscriptions(printed: str, app_id: str) -> Iterator[dict[str, Any]]:
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
            yield {
                "id": int(each["id"]),
                "expression": each["text"] if each["version"] != "E_UNDEFINED" else "",
                "priority": int(priority),
                "count": int(count),
                "maxMessages": int(messages),
                "maxBytes": int(size),
            }


def _window(subscription: dict[str, Any], subscriptions: list[dict[str, Any]], windows: Any) -> Any:
    """Find a subscription's window by its limits; None if ambiguous.

    A broker lists the windows in no order, including windows of withdrawn subscriptions. The window of a
    withdrawn subscription is empty once all of its messages are confirmed.
    """
    limits = subscription["maxMessages"], subscription["maxBytes"]
    rivals = sum((each["maxMessages"], each["maxBytes"]) == limits for each in subscriptions)
    candidates = [each for each in windows if (each["messagesCapacity"], each["bytesCapacity"]) == limits]
    candidates.sort(key=lambda window: window["numMessages"], reverse=True)
    chosen, rest = candidates[:rivals], candidates[rivals:]
    if any(each != chosen[0] for each in chosen) or any(each["numMessages"] for each in rest):
        return None
    return next(iter(chosen), None)


class Stream(Answer, frozen=True):
    """A client's stream for one application of a queue.

    Attributes:
        app_id: the application; ``__default`` without applications.
        unconfirmed: messages delivered and not confirmed; None if the client does not read.
        subscriptions: subscriptions of the stream.
        windows: use of the limits, in no order; a broker also lists windows of withdrawn subscriptions.
    """

    app_id: str
    unconfirmed: Count | None
    subscriptions: tuple[ReaderSubscription, ...]
    windows: tuple[Window, ...]

    @staticmethod
    def _shaped(content: Any) -> Any:
        windows = [Window._shaped(each) for each in content.get("unconfirmedMonitors", ())]
        app_id = content.get("appId") or DEFAULT_APP_ID
        subscriptions = list(_subscriptions(content["parametersJson"], app_id))
        return {
            "appId": app_id,
            "unconfirmed": content.get("numUnconfirmedMessages"),
            "subscriptions": [
                each | {"window": _window(each, subscriptions, windows)} for each in subscriptions
            ],
            "windows": windows,
        }


# The counts stand behind the application's name, which clients choose.
_COUNTS = re.compile(r" readCount = (\d{1,20}) writeCount = (\d{1,20})(?: adminCount = \d{1,20})? \]\s*\Z")
_HANDLE_ADDRESS = re.compile(r"^(?:0x)?[0-9a-fA-F]+\s+~ ")


class Client(Answer, frozen=True):
    """A client of a queue.

    Attributes:
        description: process, host and address, for people.
        readers: number of openings for reading.
        writers: number of openings for writing.
        streams: streams by application.
        behind: the clients of a node that forwards the queue, if the node was asked and answered.
    """

    description: str
    readers: Count
    writers: Count
    streams: tuple[Stream, ...]
    behind: tuple[Client, ...] = ()

    @staticmethod
    def _shaped(content: Any) -> Any:
        counts = _COUNTS.search(content["parametersJson"])
        if counts is None:
            raise ProtocolError("the parameters of a client are unreadable", field="parametersJson")
        return {
            "description": _HANDLE_ADDRESS.sub("", content["clientDescription"]),
            "readers": int(counts[1]),
            "writers": int(counts[2]),
            "streams": [Stream._shaped(each) for each in content.get("subStreams", ())],
        }


class AppState(Answer, frozen=True):
    """One application of a queue.

    Attributes:
        app_id: name of the application; ``__default`` without applications.
        status: "alive" with consumers, "registered" without, "unauthorized" if unknown to the domain.
        consumers: number of consumers.
        redelivery: messages that wait for redelivery.
        at_end: whether the broker has tried all stored messages; None if not reported by the broker.
    """

    app_id: str
    status: str
    consumers: Count = field(name="numConsumers")
    redelivery: Count = field(name="redeliveryListLength")
    at_end: bool | None = field(name="isAtEndOfStorage", default=None)


class Internals(Answer, frozen=True):
    """A queue with its clients, consumers and subscriptions.

    Attributes:
        uri: the queue.
        mode: priority, fanout or broadcast; empty on a node that only forwards the queue.
        depth: depth of the queue.
        usage: use of the quota; None if not reported by the broker.
        clients: clients of the queue.
        apps: applications of the queue.
    """

    uri: str
    mode: str
    depth: Depth
    usage: Usage | None
    clients: tuple[Client, ...]
    apps: tuple[AppState, ...]

    @staticmethod
    def _shaped(content: Any) -> Any:
        state = content["state"]
        kind, fanout, relay = _engine(content)
        # The engine lists the expressions of all subscriptions with consumers as JSON, where no text can pass
        # for another: a text with the printed end of a text shows here.
        if orjson.dumps(_TEXT_ENDS)[1:-1] in orjson.dumps(content["queue"]):
            raise ProtocolError(_UNREADABLE, field="expression")
        apps = [each["appState"] | each for each in fanout.get("consumerStates", ())]
        apps += [
            {"status": "alive" if each["numConsumers"] else "registered"} | each
            for each in relay.get("appStates", ())
        ]
        return {
            "uri": state["uri"],
            "mode": fanout.get("mode", "") if kind == "localQueue" else "",
            "depth": Depth._shaped(content),
            "usage": state.get("capacityMeter") or None,
            "clients": [Client._shaped(handle) for handle in state.get("handles", ())],
            "apps": apps,
        }


class StoredMessage(Answer, frozen=True):
    """A message in a queue, as reported without a delivery.

    Attributes:
        guid: 32 upper-case hexadecimal digits.
        size: stored bytes of properties and payload.
        arrival: time of arrival.
    """

    guid: str
    size: Count = field(name="sizeBytes")
    arrival: datetime = field(name="arrivalTimestamp")


class MessagePage(Answer, frozen=True):
    """A page of messages, oldest first.

    Attributes:
        messages: the messages.
        offset: number of earlier messages.
        total: number of messages in the queue.
    """

    messages: tuple[StoredMessage, ...]
    offset: Number
    total: Count = field(name="totalQueueMessages")

    @staticmethod
    def _shaped(content: Any) -> Any:
        messages = [
            each | {"arrivalTimestamp": _utc(datetime.fromisoformat(each["arrivalTimestamp"]))}
            for each in content.get("messages", ())
        ]
        return content | {"messages": messages}


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class Purged(Answer, frozen=True):
    """Messages deleted from one queue.

    Attributes:
        uri: the queue.
        app_id: the application; empty for all.
        messages: number of messages.
        bytes: bytes of the messages.
    """

    uri: str = field(name="queueUri")
    app_id: str
    messages: Number = field(name="numMessagesPurged")
    bytes: Number = field(name="numBytesPurged")


# ---- statistics


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


class AppStatistics(Answer, frozen=True):
    """The statistics of one application of a queue.

    Attributes:
        app_id: name of the application.
        messages: waiting messages.
        bytes: waiting bytes; None if not reported by the broker.
        values: all reported values, by the broker's names.
    """

    app_id: str
    messages: Number = 0
    bytes: Number | None = None
    values: Mapping[str, Number] = field(default_factory=dict[str, int])


class QueueStatistics(Answer, frozen=True):
    """The statistics of a queue; totals count from the broker's start, or from the queue's arrival.

    Attributes:
        uri: the queue.
        domain: the queue's domain.
        producers: number of openings for writing.
        consumers: number of openings for reading.
        messages: stored messages.
        bytes: stored bytes.
        posted: messages posted.
        posted_bytes: bytes posted.
        pushed: deliveries, redeliveries included.
        acknowledged: acknowledgements sent.
        refused: negative acknowledgements sent.
        confirmed: confirmations.
        rejected: messages deleted after too many deliveries.
        expired: messages whose TTL ended.
        apps: statistics by application, if reported by the broker.
        values: all reported values, by the broker's names.
    """

    uri: str
    domain: str
    producers: Number = field(name="queue_producers_count", default=0)
    consumers: Number = field(name="queue_consumers_count", default=0)
    messages: Number = 0
    bytes: Number = 0
    posted: Number = field(name="queue_put_msgs_abs", default=0)
    posted_bytes: Number = field(name="queue_put_bytes_abs", default=0)
    pushed: Number = field(name="queue_push_msgs_abs", default=0)
    acknowledged: Number = field(name="queue_ack_msgs_abs", default=0)
    refused: Number = field(name="queue_nack_msgs_abs", default=0)
    confirmed: Number = field(name="queue_confirm_msgs_abs", default=0)
    rejected: Number = field(name="queue_reject_msgs_abs", default=0)
    expired: Number = field(name="queue_gc_msgs_abs", default=0)
    apps: tuple[AppStatistics, ...] = ()
    values: Mapping[str, Number] = field(default_factory=dict[str, int])


class Statistics(Answer, frozen=True):
    """The statistics of a broker.

    Attributes:
        time: time of the statistics.
        queues: statistics by queue, sorted by URI.
    """

    time: datetime
    queues: tuple[QueueStatistics, ...]

    @staticmethod
    def _shaped(content: Any) -> Any:
        decoded = orjson.loads(content)
        queues = [
            _figures(entry)
            | {
                "uri": uri,
                "domain": domain,
                "apps": [
                    _figures(app) | {"appId": name} for name, app in entry.get("appIds", _NOTHING).items()
                ],
            }
            for domain, by_uri in decoded["domainQueues"]["domains"].items()
            for uri, entry in by_uri.items()
        ]
        return {
            "time": datetime.strptime(decoded["_timestamp"], "%d%b%Y_%H:%M:%S.%f").replace(tzinfo=UTC),
            "queues": sorted(queues, key=lambda queue: queue["uri"]),
        }
