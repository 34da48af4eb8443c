# SPDX-License-Identifier: Apache-2.0
"""The check of a history: promises compared with events.

The checker reads the events once, in their order, and keeps for each message the state that the rules still
need. A finished message (acknowledged, and confirmed by every application) keeps all details while it is
among the last ``_RECENT`` finished messages, for a late duplicate. Afterwards only its place in the order of
posting and its receiving applications are kept. Time is therefore linear in the number of events, and memory
is a tuple per message and the details of the messages under way.

Rejected: counting while the program runs (counts cannot be judged again after a failure, and each kind of
test had separate counts); a search for a linear order of all operations, as for registers (a queue's rules
need no search); forgetting finished messages completely (a late duplicate would look like a message without a
post).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from bmq import _checks
from bmq.conventions import derived_guid
from bmq.errors import UsageError

__all__ = ["DEFAULT_RULES", "RULES", "BrokenPromise", "Checker", "Problem", "Verdict"]

#: The rules, and the promise behind each.
RULES: Final[Mapping[str, str]] = {
    "lost": "an acknowledged message reaches every application",
    "unfinished": "a received message is confirmed in the end",
    "outcome": "a post has exactly one outcome",
    "content": "a received message was posted, with this payload, and was not refused",
    "order": "a consumer receives the messages of one producer in the order of posting",
    "key-order": "a process receives and handles the messages of one key in the order of posting",
    "one-owner": "no two processes have messages of one key at the same time",
    "one-at-a-time": "no two handlers of a process have messages of one key at the same time",
    "one-copy": "no two handlers of a session have the same message at the same time",
    "early": "a delayed message does not arrive before its due time",
    "late": "a message arrives within a given time",
    "confirm": "a message is confirmed after its handler has succeeded",
    "dead-letters": "after the final failure of its handler, a message is put aside before its confirmation",
    "again": "a session does not receive a message again after confirming the message on a living connection",
    "replies": "a request has one reply",
    "once": "an effect happens once",
    "statistics": "the statistics of sessions equal the history",
}
#: Rules that some queues do not promise to keep.
_CHOSEN: Final = frozenset({"key-order", "one-owner", "one-at-a-time", "late"})
DEFAULT_RULES: Final = tuple(rule for rule in RULES if rule not in _CHOSEN)

_RECENT: Final = 10_000
_PROBLEMS_KEPT: Final = 20

_NONE, _ACKED, _REFUSED, _UNKNOWN = range(4)
# In place of the receiving applications, for a message without required receivers.
_NOT_EXPECTED: Final = -1


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule, at one message.

    Attributes:
        rule: the rule's name.
        text: the event, for people.
        message: the message's GUID; None if no single message is concerned.
        queue: the URI of the queue, or None.
        processes: the names of the processes involved.
        lines: the events, as ``FILE:LINE``, or as ``LINE`` for a history in memory.
    """

    rule: str
    text: str
    message: str | None
    queue: str | None
    processes: tuple[str, ...]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        where = f" [{', '.join(self.processes)}; lines {', '.join(self.lines)}]" if self.lines else ""
        return f"{self.rule}: {self.text}{where}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    Attributes:
        problems: the broken rules, 20 of each at most.
        broken: number of problems, by rule.
        events: number of events read.
        processes: number of processes; a restarted process counts again.
        posted: posts accepted by their queue.
        acknowledged: posts accepted by the broker.
        refused: posts not accepted by the broker, by status; posts with an unknown outcome included.
        delivered: deliveries to processes.
        duplicates: repeated deliveries to an application, by the fate of the earlier delivery: "confirmed
            here" (by this process, over the same connection), "in hand" (in this process, and not confirmed
            in time), "other process".
        confirmed: confirmations.
        handled: attempts of handlers, by outcome.
        effects: effects, each name counted once.
        torn: lines without JSON, such as the last line of a killed process.
    """

    problems: tuple[Problem, ...]
    broken: Mapping[str, int]
    events: int
    processes: int
    posted: int
    acknowledged: int
    refused: Mapping[str, int]
    delivered: int
    duplicates: Mapping[str, int]
    confirmed: int
    handled: Mapping[str, int]
    effects: int
    torn: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the history keeps every rule."""
        return not self.broken

    def raise_for_problems(self) -> None:
        """Raise :class:`BrokenPromise` unless the history keeps every rule."""
        if self.broken:
            raise BrokenPromise(self)

    def __str__(self) -> str:
        found = ", ".join(f"{count} of {rule}" for rule, count in self.broken.items()) or "none"
        effects = f", {self.effects:,} effects" if self.effects else ""
        lines = [
            f"{self.events:,} events of {self.processes} processes: {self.posted:,} posted, "
            f"{self.acknowledged:,} acknowledged, {self.delivered:,} delivered "
            f"({sum(self.duplicates.values()):,} again), {self.confirmed:,} confirmed{effects}; "
            f"problems: {found}"
        ]
        return "\n".join([*lines, *(f"  {problem}" for problem in self.problems)])


class BrokenPromise(AssertionError):
    """A history breaks a rule.

    Attributes:
        verdict: the complete result of the check.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


@dataclass(slots=True, eq=False)
class _Process:
    """One life of a process."""

    name: str
    number: int
    posted: int = 0
    acknowledged: int = 0
    refused: int = 0
    delivered: int = 0
    confirmed: int = 0
    effects: int = 0
    #: Posts without an outcome, by GUID: number, event of the latest post, and queue.
    unanswered: dict[str, tuple[int, str, _Queue]] = field(
        default_factory=dict[str, "tuple[int, str, _Queue]"]
    )
    #: By application and GUID, the keys of messages received and not confirmed.
    holds: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict[Any, Any])
    #: By application and key: the message in a handler, and the event of the handler's start.
    handling: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict[Any, Any])
    #: By application, session and GUID: the start of the handler with the message.
    busy: dict[tuple[str, str, str], str] = field(default_factory=dict[Any, Any])


@dataclass(slots=True, eq=False)
class _Queue:
    """A queue and its applications.

    Attributes:
        uri: without ``?id=``.
        judged: whether problems of the queue count.
        apps: the bit of each application, by its URI.
        every: the bits of all applications.
        unread: whether the queue is meant to have no reader.
    """

    uri: str
    judged: bool
    apps: dict[str, int] = field(default_factory=dict[str, int])
    every: int = 0
    unread: bool = False

    def bit(self, uri: str) -> int:
        bit = self.apps.get(uri)
        if bit is None:
            bit = self.apps[uri] = 1 << len(self.apps)
            self.every |= bit
        return bit

    def names(self, bits: int) -> list[str]:
        return [uri for uri, bit in self.apps.items() if bit & bits]


#: The number of a process, and its session.
_Place = tuple[int, str]


@dataclass(slots=True, eq=False)
class _Delivery:
    """The last delivery of a message to one session of one application.

    Attributes:
        guid: GUID of the delivery: a mover posts a message again under another GUID.
        connection: the connection of the delivery, or of a later delivery while the message was in hand.
        arrived: the connection of the delivery.
        where: the event.
        first: whether the delivery is the application's first, and in order.
        confirmed: True if confirmed while the connection lived, False if later; None without a confirmation.
        handled: state of the last attempt of a handler: invoke, ok, fail, unknown; None without an attempt.
        handled_at: the event.
        attempt: number of the attempt.
    """

    guid: str
    connection: object
    arrived: object
    where: str
    first: bool
    confirmed: bool | None = None
    handled: str | None = None
    handled_at: str = ""
    attempt: int = 0


@dataclass(slots=True, eq=False)
class _TrackedMessage:
    """A message under way, or finished recently.

    Attributes:
        place: place in the order of posting.
        process: the posting process; None if unknown.
        shared: whether another process has posted the message too: a dead letter, for example.
        status: status of all posts together.
        since: the time from which the message can be late.
        target: the GUID under which a delayed message is passed on.
        moved: whether the message is a passed-on copy.
        request: the GUID of the answered request.
        replied: whether a reply was acknowledged.
        retries: the GUIDs of due durable retries.
        copies: by application, process and session; the latest delivery is last.
        delivered, confirmed: the bits of applications.
        sent: the bits of applications with a confirmation that was sent at once, over a living connection.
        pending: whether the message counts as pending.
    """

    guid: str
    queue: _Queue
    process: _Process | None
    place: int
    posted_at: str
    acked_at: str = ""
    status: int = _NONE
    since: float = 0.0
    due: float | None = None
    crc: int | None = None
    key: str | None = None
    target: str | None = None
    request: str | None = None
    moved: bool = False
    replied: bool = False
    pending: bool = False
    shared: bool = False
    retries: list[str] = field(default_factory=list[str])
    copies: dict[str, dict[_Place, _Delivery]] = field(default_factory=dict[str, "dict[_Place, _Delivery]"])
    delivered: int = 0
    confirmed: int = 0
    sent: int = 0


#: The remains of a message finished long ago: place, receivers, queue and process.
_Ended = tuple[int, int, _Queue, "_Process | None"]


class Checker:
    """Reads a history event by event, and returns a verdict at the end.

    Args:
        rules: as for :func:`bmq.testing.check`, like all further arguments.
        without: names.
        queues: URIs.
        within: seconds.
        clock_error: seconds.

    Attributes:
        pending: number of posts without an outcome, and of acknowledged messages without a confirmation by an
            application.

    Raises:
        UsageError: an argument is out of its range.
    """

    def __init__(
        self,
        *,
        rules: Iterable[str] | None = None,
        without: Iterable[str] = (),
        queues: Iterable[str] | None = None,
        within: float | None = None,
        clock_error: float = 0.0,
    ) -> None:
        chosen = list(DEFAULT_RULES) if rules is None else _rules("rules", rules)
        self._within = _checks.timeout(within, "within")
        if self._within is not None:
            chosen.append("late")
        elif "late" in chosen:
            raise UsageError("the rule late needs within=SECONDS")
        left_out = _rules("without", without)
        self._rules = frozenset(rule for rule in chosen if rule not in left_out)
        self._clock_error = _checks.seconds("clock_error", clock_error)
        self._judged = None if queues is None else frozenset(_checks.texts("queues", queues))
        self._queues: dict[str, _Queue] = {}
        self._processes: dict[str, _Process] = {}
        self._lives: list[_Process] = []
        self._open: dict[str, _TrackedMessage] = {}
        self._recent: OrderedDict[str, _TrackedMessage] = OrderedDict()
        self._ended: dict[str, _Ended] = {}
        # A delayed message posted again with another due time may be passed on under either GUID.
        self._alias: dict[str, str] = {}
        # The first reply to a request, by its GUID; the event of an effect, by its name.
        self._replies: dict[str, str] = {}
        self._effects: dict[str, str] = {}
        # By ordered sequence: the connection, the latest place, and the message at the place.
        self._latest: dict[tuple[Any, ...], tuple[object, int, str, str]] = {}
        # The GUIDs of messages delivered to several sessions of an application.
        self._twice: dict[str, None] = {}
        # By application and key: the processes with messages, their number, and the time of the first.
        self._owners: dict[tuple[str, str], dict[int, tuple[int, str]]] = {}
        self._healed = 0.0
        self._problems: dict[str, list[Problem]] = {}
        self._broken: Counter[str] = Counter()
        self._events = self._posted = self._acknowledged = self._delivered = self._confirmed = 0
        self._refused: Counter[str] = Counter()
        self._duplicates: Counter[str] = Counter()
        self._handled: Counter[str] = Counter()
        self.pending = 0

    def read(self, source: str, line: int, event: Mapping[str, Any]) -> None:
        """Read the next event.

        Args:
            source: the name of the history.
            line: the number of its line.
            event: the event.

        Raises:
            UsageError: a field is missing.
        """
        self._events += 1
        read = self._READERS.get((event["op"], event["type"]))
        if read is None:
            return
        name = event["process"]
        process = self._processes.get(name)
        if process is None:
            process = self._begin(name)
        try:
            read(self, process, f"{source}:{line}" if source else f"{line}", event)
        except (KeyError, TypeError) as error:
            where = f"line {line} of {source or 'the history'}"
            raise UsageError(f"{where}: {event['op']} has no valid field: {error}") from error

    # processes

    def _begin(self, name: str) -> _Process:
        process = self._processes[name] = _Process(name, len(self._lives))
        self._lives.append(process)
        return process

    def _started(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        if process.posted or process.delivered or process.unanswered:
            self._killed(process, where, event)  # a kill without a record

    def _killed(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        for guid, (count, _, _) in process.unanswered.items():
            self.pending -= count
            message = self._known(guid)
            if message is not None:
                self._settle_post(message, _UNKNOWN, where)
        process.unanswered.clear()
        process.handling.clear()
        process.busy.clear()
        self._disconnected(process, where, event)
        self._begin(process.name)

    def _disconnected(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        for application in process.holds.values():
            self._release(process, application)
        process.holds.clear()
        # The process's messages return to the broker. A session that has confirmed such a message before
        # confirms the message again, unseen by the program. A broker that has received a confirmation no
        # longer has the message, and the process had a copy delivered before.
        for guid in list(self._twice):
            message = self._open.get(guid)
            if message is None:
                del self._twice[guid]
                continue
            for uri, copies in message.copies.items():
                (number, _), newest = next(reversed(copies.items()))
                bit = message.queue.bit(uri)
                if number != process.number or newest.confirmed is not None:
                    continue
                if message.sent & bit or self._remembered(copies):
                    message.confirmed |= bit
            self._weigh(message)

    def _remembered(self, copies: Mapping[_Place, _Delivery]) -> bool:
        """Whether a living process has confirmed a copy."""
        lives = {each.number for each in self._processes.values()}
        return any(copy.confirmed is not None and number in lives for (number, _), copy in copies.items())

    # posts

    def _post(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        guid, queue = event["message"], self._queue(event["queue"])
        count = process.unanswered[guid][0] if guid in process.unanswered else 0
        process.unanswered[guid] = count + 1, where, queue
        self.pending += 1
        process.posted += 1
        self._posted += 1
        if "letter" in event:
            self._letter(process, where, event)
        if "request" in event:
            self._reply(process, where, event)
        message = self._known(guid)
        if message is not None:
            message.shared |= message.process is not process
            if message.status == _REFUSED:
                message.status = _NONE  # posted again
            self._post_later(message, event)
            self._weigh(message)
            return
        if guid in self._ended:
            return
        message = self._open[guid] = _TrackedMessage(guid, queue, process, self._events, where)
        message.crc, message.key, message.request = event.get("crc"), event.get("key"), event.get("request")
        self._post_later(message, event)
        self._weigh(message)

    def _post_later(self, message: _TrackedMessage, event: Mapping[str, Any]) -> None:
        """Expect a delayed message at its destination, under the mover's GUID."""
        destination, due = event.get("destination"), event.get("due")
        if destination is None or due is None:
            return
        guid = derived_guid(message.guid, destination, "due", str(due))
        if message.target is not None:
            if guid != message.target:
                self._alias[guid] = message.target
                if (target := self._known(guid)) is not None and target.due is not None:
                    target.due = min(target.due, due / 1000)
            return
        message.target = guid
        if (origin := self._known(event.get("origin", ""))) is not None:
            origin.retries.append(guid)
        if self._known(guid) is None and guid not in self._ended:
            target = _TrackedMessage(
                guid, self._queue(destination), message.process, self._events, message.posted_at
            )
            target.crc, target.key = message.crc, message.key
            target.due, target.moved = due / 1000, True
            self._open[guid] = target

    def _letter(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        guid, uri = event["letter"], event["letter_queue"]
        origin = self._known(guid)
        if origin is None:
            if guid not in self._ended:
                text = f"{event['message']} is a dead letter of {guid}, which no process has posted"
                self._problem("dead-letters", text, event["message"], None, [process], [where])
            return
        if uri not in origin.copies:
            text = f"{event['message']} is a dead letter of {guid}, which no process of {uri} has received"
            self._problem("dead-letters", text, guid, origin.queue, [process], [origin.posted_at, where])
            return
        # A retry is a separate message: its dead letter says nothing about a well-handled copy of the
        # original, such as a copy delivered again while the retry was waiting.
        own = [
            copy
            for message in (origin, *filter(None, map(self._known, origin.retries)))
            for (number, _), copy in message.copies.get(uri, {}).items()
            if number == process.number and derived_guid(copy.guid, uri, "dead letter") == event["message"]
        ]
        if own and all(copy.handled == "ok" for copy in own):
            text = f"{guid} of {uri} was put aside although its handler had succeeded"
            self._problem("dead-letters", text, guid, origin.queue, [process], [own[-1].handled_at, where])

    def _reply(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        guid, request = event["message"], event["request"]
        asked = self._known(request)
        if asked is None and request not in self._ended:
            text = f"{guid} is a reply to {request}, which no process has posted"
            self._problem("replies", text, request, None, [process], [where])
        elif self._replies.setdefault(request, guid) != guid:
            text = f"{request} has two replies, {self._replies[request]} and {guid}"
            lines = [where] if asked is None else [asked.posted_at, where]
            self._problem("replies", text, request, asked.queue if asked else None, [process], lines)

    def _outcome(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        guid, queue = event["message"], self._queue(event["queue"])
        message = self._known(guid)
        waiting = process.unanswered.pop(guid, None)
        if waiting is None:
            lines = [where] if message is None else [message.posted_at, message.acked_at, where]
            text = f"a post of {guid} to {queue.uri} has a second outcome, or does not exist"
            self._problem("outcome", text, guid, queue, [process], lines)
            return
        self.pending -= 1
        if waiting[0] > 1:
            process.unanswered[guid] = waiting[0] - 1, waiting[1], queue
        kind = event["type"]
        if "error" in event:  # not accepted by the queue
            process.posted -= 1
            self._posted -= 1
            if message is not None and message.status == _NONE and guid not in process.unanswered:
                self._drop(message)
                if message.target is not None and (target := self._known(message.target)) is not None:
                    self._drop(target)
            return
        if kind == "ok":
            process.acknowledged += 1
            self._acknowledged += 1
            status = _ACKED
        else:
            process.refused += 1
            self._refused[event["status"]] += 1
            status = _REFUSED if kind == "fail" else _UNKNOWN
        if message is not None:
            if status == _ACKED:
                message.since = max(message.since, event["at"])
                if message.request is not None and (asked := self._known(message.request)) is not None:
                    asked.replied = True
            self._settle_post(message, status, where)

    def _settle_post(self, message: _TrackedMessage, status: int, where: str) -> None:
        if message.status != _ACKED:
            message.status, message.acked_at = status, where
        if message.target is not None and (target := self._known(message.target)) is not None:
            if target.status != _ACKED:
                target.status, target.acked_at = message.status, where
                target.since = max(message.since, target.due or 0.0)
            if message.status == _REFUSED and not target.copies:
                self._drop(target)
            else:
                self._weigh(target)
        self._weigh(message)

    # deliveries

    def _deliver(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        guid, uri, at = event["message"], event["queue"], event["at"]
        connection = event.get("connection")
        queue = self._queue(uri)
        bit = queue.bit(uri)
        process.delivered += 1
        self._delivered += 1
        message = self._known(guid)
        if message is None:
            message = self._delivered_late(guid, queue, process, where)
        self._compare(message, process, where, event)
        copies = message.copies.setdefault(uri, {})
        first = not message.delivered & bit
        copy = _Delivery(guid, connection, connection, where, first and not event.get("redelivered"))
        if not first:
            self._again(message, copies, copy, process, uri)
        elif message.process is not None and not (
            event.get("redelivered") or message.moved or message.shared
        ):
            ordered = (uri, process.number, event.get("consumer"), message.process.number)
            self._in_order("order", ordered, connection, message, process, where)
            if message.key is not None:
                keyed = (uri, process.number, message.process.number, message.key)
                self._in_order("key-order", keyed, connection, message, process, where)
        if first and message.status == _ACKED and self._within is not None:
            limit = max(message.since, self._healed) + self._within
            if at > limit:
                text = f"{guid} reached {uri} {at - limit:.3f} s later than promised"
                self._problem("late", text, guid, queue, [process], [message.acked_at, where])
        place = _place(process, event)
        earlier = copies.pop(place, None)
        if earlier is not None and earlier.handled == "invoke":
            # A worker busy with the old delivery takes the new delivery for the old.
            copy.handled, copy.handled_at, copy.attempt = "invoke", earlier.handled_at, earlier.attempt
        copies[place] = copy
        if len(copies) > 1:
            self._twice[message.guid] = None
        message.delivered |= bit
        # The session confirms over the new connection after a confirmation that followed the loss of the old.
        if earlier is None or earlier.confirmed is not False:
            message.confirmed &= ~bit
        if message.key is not None and "one-owner" in self._rules:
            self._hold(message, process, uri, where)
        self._weigh(message)

    def _delivered_late(self, guid: str, queue: _Queue, process: _Process, where: str) -> _TrackedMessage:
        """Handle a delivery of a message outside of the recent messages."""
        guid = self._alias.get(guid, guid)
        ended = self._ended.pop(guid, None)
        if ended is None:
            text = f"{guid} of {queue.uri} was delivered, and no process has posted it"
            self._problem("content", text, guid, queue, [process], [where])
            message = _TrackedMessage(guid, queue, None, self._events, where)
            message.status = _UNKNOWN
        else:
            place, delivered, queue, poster = ended
            message = _TrackedMessage(guid, queue, poster, place, where)
            message.status = _UNKNOWN if delivered == _NOT_EXPECTED else _ACKED
            message.delivered = message.confirmed = max(0, delivered)
        self._open[guid] = message
        return message

    def _compare(
        self, message: _TrackedMessage, process: _Process, where: str, event: Mapping[str, Any]
    ) -> None:
        """Compare an arrival with its post."""
        guid, queue = message.guid, message.queue
        lines = [message.posted_at, where]
        damaged = event.get("damaged") or event.get("crc", message.crc) != message.crc
        if damaged and message.process is not None and message.crc is not None:
            text = f"{guid} of {queue.uri} was delivered with a payload that differs from the posted payload"
            self._problem("content", text, guid, queue, [message.process, process], lines)
        if message.status == _REFUSED:
            text = f"{guid} of {queue.uri} was delivered although its post was refused"
            self._problem("content", text, guid, queue, [process], [message.acked_at, where])
        if message.due is not None and event["at"] + self._clock_error < message.due:
            text = f"{guid} reached {event['queue']} {message.due - event['at']:.3f} s before it was due"
            self._problem("early", text, guid, queue, [process], lines)

    def _again(
        self,
        message: _TrackedMessage,
        copies: dict[_Place, _Delivery],
        copy: _Delivery,
        process: _Process,
        uri: str,
    ) -> None:
        """Handle a repeated delivery to an application."""
        (number, _), earlier = next(reversed(copies.items()), ((-1, ""), copy))
        if number != process.number:
            self._duplicates["other process"] += 1
        elif not earlier.confirmed:
            self._duplicates["in hand"] += 1
        else:
            self._duplicates["confirmed here"] += 1
            session, before = (str(each.connection).partition(".")[0] for each in (copy, earlier))
            if session == before and copy.guid == earlier.guid:
                text = f"{message.guid} was redelivered to {uri} after the session had confirmed the message"
                lines = [earlier.where, copy.where]
                self._problem("again", text, message.guid, message.queue, [process], lines)

    def _in_order(
        self,
        rule: str,
        ordered: tuple[Any, ...],
        connection: object,
        message: _TrackedMessage,
        process: _Process,
        where: str,
    ) -> None:
        """Compare a message with the latest of a sequence, which ends with its connection."""
        if rule not in self._rules:
            return
        ordered = (rule, *ordered)
        latest = self._latest.get(ordered)
        if latest is not None and latest[0] == connection and message.place < latest[1]:
            assert message.process is not None
            of = f" of key {message.key}" if rule == "key-order" else ""
            text = f"{message.guid}{of} reached {ordered[1]} after {latest[2]}, which was posted later"
            lines = [message.posted_at, latest[3], where]
            self._problem(rule, text, message.guid, message.queue, [message.process, process], lines)
            return
        self._latest[ordered] = connection, message.place, message.guid, where

    def _hold(self, message: _TrackedMessage, process: _Process, uri: str, where: str) -> None:
        """A process has a message of a key in hand."""
        assert message.key is not None
        application = uri, message.key
        held = uri, message.guid
        for number, _ in list(message.copies[uri]):  # lost by another process
            other = self._lives[number]
            if held in other.holds:
                del other.holds[held]
                self._release(other, application)
        owners = self._owners.setdefault(application, {})
        for number, (_, since) in owners.items():
            if number != process.number:
                other = self._lives[number]
                text = (
                    f"{message.guid} reached {process.name} while {other.name} had other messages of "
                    "the same key"
                )
                lines = [since, where]
                self._problem("one-owner", text, message.guid, message.queue, [other, process], lines)
        count, since = owners.get(process.number, (0, where))
        owners[process.number] = count + 1, since
        process.holds[held] = application

    def _release(self, process: _Process, application: tuple[str, str]) -> None:
        owners = self._owners[application]
        count, since = owners[process.number]
        owners[process.number] = count - 1, since
        if count == 1:
            del owners[process.number]
            if not owners:
                del self._owners[application]

    # confirmations and handlers

    def _confirm(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        guid, uri = event["message"], event["queue"]
        process.confirmed += 1
        self._confirmed += 1
        message = self._known(guid)
        copy = None if message is None else _copy_of(message, process, event)
        if message is None or copy is None:
            if guid not in self._ended:
                text = f"{process.name} confirmed {guid} of {uri}, but has not received the message"
                self._problem("confirm", text, guid, self._queue(uri), [process], [where])
            return
        lines = [copy.where, copy.handled_at, where]
        if event.get("connection", copy.connection) != copy.connection:
            pass  # an earlier delivery is confirmed, and this delivery with it
        elif copy.handled == "invoke" and copy.confirmed is None:
            text = f"{guid} of {uri} was confirmed while its handler was running"
            self._problem("confirm", text, guid, message.queue, [process], lines)
        elif copy.handled == "unknown":
            text = f"{guid} of {uri} was confirmed although its handler was cancelled"
            self._problem("confirm", text, guid, message.queue, [process], lines)
        elif copy.handled == "fail" and not self._put_aside(message, guid, uri, copy):
            text = (
                f"{guid} of {uri} was confirmed after its handler had failed, without having been put aside"
            )
            self._problem("dead-letters", text, guid, message.queue, [process], lines)
        if event.get("connection", copy.connection) == copy.connection:
            copy.confirmed = not event.get("stale")
        bit = message.queue.bit(uri)
        message.confirmed |= bit
        if event.get("sent", not event.get("stale")):
            message.sent |= bit
        held = process.holds.pop((uri, guid), None)
        if held is not None:
            self._release(process, held)
        self._weigh(message)

    def _put_aside(self, message: _TrackedMessage, received: str, uri: str, copy: _Delivery) -> bool:
        """Whether another message goes on where the handler has failed."""
        if message.replied:
            return True
        for words in (("dead letter",), ("attempt", str(copy.attempt))):
            guid = derived_guid(received, uri, *words)
            successor = self._known(guid)
            if guid in self._ended or (successor is not None and successor.status == _ACKED):
                return True
        return False

    def _handle(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        guid, uri = event["message"], event["queue"]
        message = self._known(guid)
        copy = None if message is None else _copy_of(message, process, event)
        if message is None or copy is None:
            return
        busy = uri, _place(process, event)[1], guid
        if (since := process.busy.setdefault(busy, where)) != where:
            text = f"{guid} of {uri} was handled while another handler of the session had the message"
            self._problem("one-copy", text, guid, message.queue, [process], [since, where])
        later = event.get("connection", copy.connection) != copy.connection
        if copy.confirmed is not None and copy.handled is None and not later:
            text = f"{guid} of {uri} was confirmed before it was handled"
            self._problem("confirm", text, guid, message.queue, [process], [copy.where, where])
        copy.handled, copy.handled_at, copy.attempt = "invoke", where, event.get("attempt", 1)
        if message.key is None:
            return
        application = uri, message.key
        other = process.handling.get(application)
        if other is not None and other[0] != guid:
            text = (
                f"{guid} of key {message.key} was handled while {other[0]} was in the hands of another "
                "handler"
            )
            self._problem("one-at-a-time", text, guid, message.queue, [process], [other[1], where])
        process.handling[application] = guid, where
        if copy.first and copy.attempt == 1 and message.process is not None and not message.moved:
            ordered = (uri, process.number, message.process.number, message.key, "handled")
            self._in_order("key-order", ordered, copy.arrived, message, process, where)

    def _handler_ended(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        guid, uri = event["message"], event["queue"]
        self._handled[event["type"]] += 1
        process.busy.pop((uri, _place(process, event)[1], guid), None)
        message = self._known(guid)
        copy = None if message is None else _copy_of(message, process, event)
        if message is None or copy is None:
            return
        copy.handled, copy.handled_at = event["type"], where
        if message.key is not None:
            busy = process.handling.get((uri, message.key))
            if busy is not None and busy[0] == guid:
                del process.handling[uri, message.key]

    # the rest

    def _effect(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        name = event["name"]
        process.effects += 1
        earlier = self._effects.setdefault(name, where)
        if earlier != where:
            text = f"the effect {name!r} has happened twice"
            self._problem("once", text, None, None, [process], [earlier, where])

    def _statistics(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        equal = {
            "posted": process.posted,
            "acknowledged": process.acknowledged,
            "refused": process.refused,
        }
        for name, count in equal.items():
            if event[name] != count:
                text = (
                    f"{process.name} has {event[name]:,} {name} according to its statistics, {count:,} "
                    "according to its history"
                )
                self._problem("statistics", text, None, None, [process], [where])
        if not process.unanswered and (event.get("unacked") or event.get("unacked_bytes")):
            text = (
                f"{process.name} waits for {event.get('unacked', 0):,} outcomes of "
                f"{event.get('unacked_bytes', 0):,} bytes according to its statistics, for none according "
                "to its history"
            )
            self._problem("statistics", text, None, None, [process], [where])
        # Sessions count deliveries and confirmations that the program never sees.
        least = {"received": process.delivered, "confirmed": process.confirmed}
        for name, count in least.items():
            if event[name] < count:
                text = (
                    f"{process.name} has {event[name]:,} {name} according to its statistics, {count:,} "
                    "according to its history"
                )
                self._problem("statistics", text, None, None, [process], [where])

    def _faults_end(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        self._healed = event["at"]

    def _applications(self, process: _Process, where: str, event: Mapping[str, Any]) -> None:
        queue = self._queue(event["queue"])
        for app_id in event["app_ids"]:
            queue.bit(f"{queue.uri}?id={app_id}" if app_id else queue.uri)
        queue.unread = not event["app_ids"]

    # messages

    def _queue(self, uri: str) -> _Queue:
        queue = self._queues.get(uri)
        if queue is None:
            plain = uri.partition("?")[0]
            queue = self._queues.get(plain)
            if queue is None:
                queue = _Queue(plain, self._judged is None or plain in self._judged)
            self._queues[uri] = self._queues[plain] = queue
        return queue

    def _known(self, guid: str) -> _TrackedMessage | None:
        guid = self._alias.get(guid, guid)
        return self._open.get(guid) or self._recent.get(guid)

    def _expected(self, message: _TrackedMessage) -> bool:
        """Whether the message's applications must receive it."""
        return message.target is None and message.request is None and not message.queue.unread

    def _weigh(self, message: _TrackedMessage) -> None:
        """Count a message under way, and put a finished message aside."""
        every, status = message.queue.every, message.status
        pending = status == _ACKED and (message.confirmed != every or not every) and self._expected(message)
        if pending != message.pending:
            self.pending += pending - message.pending
            message.pending = pending
        over = not pending and status != _NONE and message.delivered == message.confirmed
        if over and message.guid in self._open:
            del self._open[message.guid]
            self._recent[message.guid] = message
            if len(self._recent) > _RECENT:
                guid, oldest = self._recent.popitem(last=False)
                expected = oldest.status == _ACKED and self._expected(oldest)
                delivered = oldest.delivered if expected else _NOT_EXPECTED
                self._ended[guid] = oldest.place, delivered, oldest.queue, oldest.process
        elif not over and message.guid in self._recent:
            del self._recent[message.guid]
            self._open[message.guid] = message

    def _drop(self, message: _TrackedMessage) -> None:
        self.pending -= message.pending
        self._open.pop(message.guid, None)
        self._recent.pop(message.guid, None)

    # the end

    def _problem(
        self,
        rule: str,
        text: str,
        message: str | None,
        queue: _Queue | None,
        processes: list[_Process],
        lines: list[str],
    ) -> None:
        if rule in self._rules and (queue is None or queue.judged):
            self._broken[rule] += 1
            kept = self._problems.setdefault(rule, [])
            if len(kept) < _PROBLEMS_KEPT:
                names = tuple(dict.fromkeys(process.name for process in processes))
                uri = None if queue is None else queue.uri
                known = tuple(dict.fromkeys(line for line in lines if line))
                kept.append(Problem(rule, text, message, uri, names, known))

    def verdict(self, torn: Iterable[str] = ()) -> Verdict:
        """Judge missing events at the end, and return the result. No event may follow.

        Args:
            torn: unreadable lines.
        """
        for process in self._lives:
            for guid, (_, where, queue) in process.unanswered.items():
                text = f"a post of {guid} to {queue.uri} has no outcome"
                self._problem("outcome", text, guid, queue, [process], [where])
        for guid, (_, delivered, queue, poster) in self._ended.items():
            if delivered not in (queue.every, _NOT_EXPECTED):
                self._lost(guid, queue, queue.every & ~delivered, poster, [])
        for message in (*self._recent.values(), *self._open.values()):
            self._judge(message)
        return Verdict(
            problems=tuple(problem for rule in RULES for problem in self._problems.get(rule, ())),
            broken={rule: self._broken[rule] for rule in RULES if self._broken[rule]},
            events=self._events,
            processes=sum(bool(each.posted or each.delivered or each.effects) for each in self._lives),
            posted=self._posted,
            acknowledged=self._acknowledged,
            refused=dict(self._refused),
            delivered=self._delivered,
            duplicates=dict(self._duplicates),
            confirmed=self._confirmed,
            handled=dict(self._handled),
            effects=len(self._effects),
            torn=tuple(torn),
        )

    def _judge(self, message: _TrackedMessage) -> None:
        if message.status != _ACKED or not self._expected(message):
            return
        guid, queue = message.guid, message.queue
        lines = [message.posted_at, message.acked_at]
        missing = queue.every & ~message.delivered
        if missing or not queue.every:
            self._lost(guid, queue, missing, message.process, lines)
        for uri in queue.names(message.delivered & ~message.confirmed):
            copies = message.copies.get(uri, {})
            processes = [self._lives[number] for number, _ in copies]
            text = f"{guid} reached {uri} and was never confirmed"
            where = [copy.where for copy in copies.values()]
            self._problem("unfinished", text, guid, queue, processes, [*lines, *where])

    def _lost(
        self, guid: str, queue: _Queue, missing: int, poster: _Process | None, lines: list[str]
    ) -> None:
        whom = ", ".join(queue.names(missing)) or "any process: no process reads this queue"
        text = f"{guid} of {queue.uri} was acknowledged and never reached {whom}"
        self._problem("lost", text, guid, queue, [poster] if poster else [], lines)

    #: The method for each kind of event.
    _READERS: ClassVar = {
        ("process", "invoke"): _started,
        ("process", "ok"): _disconnected,
        ("process", "unknown"): _killed,
        ("connection", "fail"): _disconnected,
        ("post", "invoke"): _post,
        ("post", "ok"): _outcome,
        ("post", "fail"): _outcome,
        ("post", "unknown"): _outcome,
        ("deliver", "ok"): _deliver,
        ("confirm", "ok"): _confirm,
        ("handle", "invoke"): _handle,
        ("handle", "ok"): _handler_ended,
        ("handle", "fail"): _handler_ended,
        ("handle", "unknown"): _handler_ended,
        ("effect", "ok"): _effect,
        ("statistics", "ok"): _statistics,
        ("fault", "ok"): _faults_end,
        ("applications", "ok"): _applications,
    }


def _place(process: _Process, event: Mapping[str, Any]) -> _Place:
    """The place of a message: a session of a process."""
    return process.number, str(event.get("connection", "")).partition(".")[0]


def _losses(connection: object) -> int:
    """The number of connections that a session had lost before the delivery."""
    number = str(connection).partition(".")[2]
    return int(number) if number.isdecimal() else -1


def _copy_of(message: _TrackedMessage, process: _Process, event: Mapping[str, Any]) -> _Delivery | None:
    """The delivery of an event; without a connection, the last delivery to the process."""
    copies = message.copies.get(event["queue"], {})
    if "connection" in event:
        copy = copies.get(_place(process, event))
        if copy is not None and _losses(event["connection"]) > _losses(copy.connection):
            # Delivered again while in hand: not handed out once more, and the same copy.
            copy.connection = event["connection"]
        return copy
    return next((copy for place, copy in reversed(copies.items()) if place[0] == process.number), None)


def _rules(name: str, given: Iterable[str]) -> list[str]:
    rules = _checks.texts(name, given)
    for rule in rules:
        _checks.one_of(f"a rule in {name}", rule, RULES)
    return rules
