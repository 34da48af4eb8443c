# SPDX-License-Identifier: Apache-2.0
"""Histories: the operations of several processes as JSON lines, for a check afterwards.

A history is written while a program runs and judged when the program has ended. Writing is therefore kept
simple: one line an event, appended with one ``write`` for each call of a hook, without a lock and without a
buffer. A killed process loses at most the line it was writing. A reader skips a torn line, and a history that
continues a file with a torn last line begins a new line first.

Each event has a process, an operation and a type. The types are Jepsen's: ``invoke`` begins an operation,
``ok`` and ``fail`` end the operation with a known outcome, ``unknown`` ends it without one. A message is
identified by its GUID, which is the same for the producer and for every consumer.
"""

from __future__ import annotations

import heapq
import itertools
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args
from weakref import WeakKeyDictionary

from bmq import _checks, _world
from bmq._json import orjson
from bmq.client.attempt import Attempt, CallNext
from bmq.client.consumer import Consumer
from bmq.client.interceptors import Interceptor, PostOutcome
from bmq.client.message import Message
from bmq.client.posts import OutgoingMessage
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.conventions import (
    BUCKET,
    DEAD_GUID,
    DEAD_QUEUE,
    DESTINATION,
    DUE,
    ORIGIN,
    REPLY_TO,
    REQUEST,
)
from bmq.errors import AckStatus, ProtocolError, UsageError
from bmq.events import Connected, ConnectionLost, SessionEvent, StateRestored
from bmq.groups import GroupEvent, Lost
from bmq.protocol.client.core import SessionState
from bmq.testing._checker import Checker, Verdict
from bmq.wire.crc import crc32c
from bmq.wire.properties import PropertyValue

__all__ = ["EventType", "History", "Recorder", "check", "examine"]

T = TypeVar("T")

#: The relation of an event to its operation.
EventType: TypeAlias = Literal["invoke", "ok", "fail", "unknown"]
_TYPES: Final[frozenset[str]] = frozenset(get_args(EventType))

#: Statuses with which the broker may have stored the message nevertheless.
_OPEN: Final = frozenset({AckStatus.UNKNOWN, AckStatus.TIMEOUT, AckStatus.CANCELED, AckStatus.NOT_CONNECTED})
#: Properties of posts for the checker, and their fields.
_FIELDS: Final = (
    (DUE, "due"),
    (DESTINATION, "destination"),
    (ORIGIN, "origin"),
    (REPLY_TO, "reply_to"),
    (REQUEST, "request"),
    (DEAD_GUID, "letter"),
    (DEAD_QUEUE, "letter_queue"),
)


class History:
    """The events of one or more processes, in memory or in a file.

    ::

        history = bmq.testing.History("orders.jsonl", key="CustomerId")
        shop = history.process("shop")
        session = await bmq.connect(uri, interceptors=[shop], on_event=shop.on_event)
        ...
        bmq.testing.check(history)

    Several operating system processes may append to one file, each with its own ``History``; or each process
    writes a file, and the check reads all files.

    Args:
        path: the file to append to; None keeps the lines in memory.
        key: the property with a message's key, for the rules about keys; None for ``bmq_bucket``, which
            ``post(..., key=...)`` sets.
        clock: returns seconds since 1970.

    Attributes:
        path: the file; None if the lines are in memory.

    Raises:
        OSError: the file cannot be opened.
        UsageError: an argument is out of its range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        key: str | None = None,
        clock: Callable[[], float] = _world.time,
    ) -> None:
        _checks.function("clock", clock, 0, plain=True)
        key = BUCKET if key is None else _checks.text("key", key, empty=False)
        # For pending(): the check so far, and the number of lines, or bytes of the file, read so far.
        self._follower = Checker(rules=[])
        self._read = 0
        self.path: Path | None = None
        # The lines, without a file.
        self._lines: list[bytes] = []
        self._file: int | None = None
        self._key = key
        self._clock = clock
        # The recorders that still record, by process.
        self._running: dict[str, Recorder] = {}
        if path is not None:
            _checks.instance("path", path, (str, os.PathLike), "a path")
            self.path = Path(_checks.text("path", os.fspath(path), empty=False))
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            torn = _is_torn(self.path)
            self._file = os.open(self.path, flags, 0o644)
            if torn:
                os.write(self._file, b"\n")

    def process(self, name: str) -> Recorder:
        """Return a recorder for a process that starts now.

        A process is a part that can fail on its own: usually a program with one session. A process restarted
        after a kill has the same name and a new recorder.

        Args:
            name: the name of the process in the history.

        Raises:
            UsageError: the history has a process of the name that was neither closed nor killed.
        """
        name = _checks.text("name", name, empty=False)
        if name in self._running:
            raise UsageError(
                f"the process {name!r} is running: call close() of its recorder, or killed({name!r}), first"
            )
        return Recorder(self, name)

    def killed(self, name: str) -> None:
        """Record a kill of a process: the outcomes of its operations under way stay unknown.

        The code that kills the process calls this method, because the process cannot. The process's recorder
        records nothing more.

        Args:
            name: the name of the process.
        """
        self.record(_checks.text("name", name, empty=False), "process", "unknown")
        self._running.pop(name, None)

    def fault(self, kind: str, **attributes: Any) -> None:
        """Record the beginning of a fault.

        Args:
            kind: the kind of fault.
            attributes: further details, as JSON values.
        """
        self.record("faults", "fault", "invoke", kind=_checks.text("kind", kind), **attributes)

    def applications(self, uri: str, app_ids: Iterable[str] = ("",)) -> None:
        """Record the applications of a queue.

        By default these are the applications that have received a message of the queue.

        Args:
            uri: the queue's URI, without ``?id=``.
            app_ids: the appIds of a fanout queue; ``[""]`` for other queues, ``[]`` for a queue without
                readers.
        """
        app_ids = _checks.texts("app_ids", app_ids, empty=True)
        self.record("history", "applications", "ok", queue=_checks.text("uri", uri), app_ids=app_ids)

    def healed(self) -> None:
        """Record the end of all faults. The check measures the arrival of messages from here."""
        self.record("faults", "fault", "ok")

    def record(self, process: str, op: str, type: EventType, **fields: Any) -> None:
        """Append one event, for programs without hooks.

        Args:
            process: the name of the process.
            op: the operation.
            type: the relation of the event to the operation.
            fields: further details, as JSON values; see *Histories* on the page on simulation.

        Raises:
            UsageError: the type does not exist, or a field is not a JSON value.
        """
        _checks.text("process", process, empty=False)
        _checks.text("op", op, empty=False)
        _checks.one_of("type", type, _TYPES)
        try:
            self._append([self._line(process, op, type, fields)])
        except TypeError as error:
            raise UsageError(f"a field of {op} is not a JSON value: {error}") from None

    def events(self, **fields: Any) -> Iterator[dict[str, Any]]:
        """Yield the events so far with these fields, for assertions of your own.

        Args:
            fields: required values of fields: ``op="deliver"``, for example.
        """
        for _, _, event in _parsed("", self._so_far(), []):
            if all(event.get(name) == value for name, value in fields.items()):
                yield event

    def tail(self, count: int = 20) -> list[str]:
        """Return the last lines.

        Args:
            count: how many lines at most.
        """
        count = _checks.integer("count", count)
        lines = self._so_far()
        return [line.decode("utf-8", "replace") for line in lines[max(0, len(lines) - count) :]]

    def _so_far(self) -> list[bytes]:
        return self._lines if self.path is None else self.path.read_bytes().splitlines()

    def pending(self) -> int:
        """Return the number of messages under way, for a test that waits for the end.

        These are posts without an outcome, and acknowledged messages without a confirmation by an
        application. Only events since the last call are read.
        """
        torn: list[str] = []
        for name, line, event in self._newer(torn):
            self._follower.read(name, line, event)
        return self._follower.pending

    def _newer(self, torn: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """The events not yet read by :meth:`pending`."""
        if self.path is None:
            lines = self._lines[self._read :]
            self._read += len(lines)
        else:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]  # another process may be writing the rest
            self._read += len(whole)
            lines = whole.splitlines()
        return _parsed("", lines, torn)

    def close(self) -> None:
        """Close the file; later events are lost. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _line(self, process: str, op: str, type: str, fields: Mapping[str, Any]) -> bytes:
        event = {"at": self._clock(), "process": process, "op": op, "type": type, **fields}
        return orjson.dumps(event, default=str)  # a property of a wrong type is recorded as text

    def _append(self, lines: list[bytes]) -> None:
        if self.path is None:
            self._lines += lines
        elif self._file is not None:
            os.write(self._file, b"".join([line + b"\n" for line in lines]))

    def _note_key(self, fields: dict[str, Any], properties: Mapping[str, Any]) -> None:
        """Add the value of the key property to the fields of an event."""
        value = properties.get(self._key)
        if value is not None:
            fields["key"] = str(value.value if isinstance(value, PropertyValue) else value)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Recorder(Interceptor):
    """Records the operations of one process, made by :meth:`History.process`.

    The recorder is an interceptor for the sessions of the process: it records posts with their outcomes,
    deliveries, confirmations and the attempts of handlers. ``on_event`` records lost connections and buckets
    of groups. Messages of the control queues of groups are not recorded.

    Attributes:
        name: the name of the process.
    """

    def __init__(self, history: History, name: str) -> None:
        self._history = history
        self._sessions: WeakKeyDictionary[Session, int] = WeakKeyDictionary()
        self._session_numbers, self._consumer_numbers = itertools.count(), itertools.count()
        self._consumers: WeakKeyDictionary[Consumer, int] = WeakKeyDictionary()
        self.name = name
        # Neither closed nor killed.
        history._running[name] = self
        self._record("process", "invoke")

    def close(self) -> None:
        """Record the clean end of the process: every post has its outcome.

        Idempotent.
        """
        if self._history._running.get(self.name) is self:
            self._record("process", "ok")
            del self._history._running[self.name]

    def on_event(self, event: SessionEvent | GroupEvent) -> None:
        """Record a session's or a group's event; for ``on_event=`` of both.

        Args:
            event: the event.
        """
        if isinstance(event, GroupEvent):
            ended = isinstance(event, Lost)
            fields = {"bucket": event.bucket, "event": type(event).__name__}
            self._record("assign", "fail" if ended else "ok", **fields)
        else:
            name = type(event).__name__
            if isinstance(event, ConnectionLost):
                self._record("connection", "fail", event=name)
            elif isinstance(event, Connected | StateRestored):
                self._record("connection", "ok", event=name)
            else:
                reason = getattr(event, "reason", None) or getattr(event, "error", None)
                self._record("session", "ok", event=name, **({"reason": str(reason)} if reason else {}))

    @contextmanager
    def effect(self, name: str) -> Generator[None]:
        """Record an effect of a handler on the world, which must happen once.

        The check's rule ``once`` reports effects of the same name with two good ends. ::

            with shop.effect(f"charge order {number}"):
                await charge(number)

        Args:
            name: the name of the effect, equal for every attempt of the same work.
        """
        name = _checks.text("name", name, empty=False)
        self._record("effect", "invoke", name=name)
        try:
            yield
        except BaseException as error:
            self._record("effect", "fail" if isinstance(error, Exception) else "unknown", name=name)
            raise
        self._record("effect", "ok", name=name)

    def statistics(self, *sessions: Session) -> None:
        """Record the statistics of sessions, for a comparison with the history.

        Call the method when all posts have their outcomes. The sessions must be all sessions of this
        recorder.

        Args:
            sessions: the sessions.
        """
        found = [_checks.choice("a session", each, Session).stats() for each in sessions]
        self._record(
            "statistics",
            "ok",
            posted=sum(each.posted for each in found),
            acknowledged=sum(each.acknowledged for each in found),
            refused=sum(sum(each.refused.values()) for each in found),
            unacked=sum(each.unacked_messages for each in found),
            unacked_bytes=sum(each.unacked_bytes for each in found),
            received=sum(each.received for each in found),
            confirmed=sum(each.confirmed for each in found),
        )

    def _record(self, op: str, type: EventType, **fields: Any) -> None:
        self._append([self._history._line(self.name, op, type, fields)])

    def _append(self, lines: list[bytes]) -> None:
        if self._history._running.get(self.name) is self:
            self._history._append(lines)

    # the hooks

    def on_post(self, queue: Queue, posts: Sequence[OutgoingMessage]) -> list[str]:
        """Record posts of messages."""
        history, uri = self._history, queue.uri
        lines: list[bytes] = []
        guids: list[str] = []
        for post in posts:
            fields: dict[str, Any] = {"queue": uri, "message": post.guid, "crc": crc32c(post.data)}
            properties = post.properties
            if properties:
                history._note_key(fields, properties)
                for name, field in _FIELDS:
                    if name in properties:
                        value = properties[name]
                        fields[field] = value.value if isinstance(value, PropertyValue) else value
            guids.append(post.guid)
            lines.append(history._line(self.name, "post", "invoke", fields))
        self._append(lines)
        return guids

    def on_ack(self, context: list[str], outcome: PostOutcome) -> None:
        """Record the outcomes of posts."""
        history = self._history
        failures = {each.index: each.error.status for each in outcome.failures}
        lines: list[bytes] = []
        for index, guid in enumerate(context):
            fields: dict[str, Any] = {"queue": outcome.queue.uri, "message": guid}
            kind = "ok"
            if index >= outcome.posted:
                kind, fields["error"] = "fail", type(outcome.error).__name__
            elif index in failures:
                status = failures[index]
                kind, fields["status"] = "unknown" if status in _OPEN else "fail", status.name
            lines.append(history._line(self.name, "post", kind, fields))
        self._append(lines)

    def on_receive(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Record deliveries to the process."""
        history, uri = self._history, consumer.queue.uri
        number = _number(self._consumers, consumer, self._consumer_numbers)
        lines: list[bytes] = []
        for message in messages:
            fields: dict[str, Any] = {
                "queue": uri,
                "message": message.guid,
                "consumer": number,
                "connection": self._connection(message),
            }
            if message.redelivered:
                fields["redelivered"] = True
            try:
                fields["crc"] = crc32c(message.data)
                history._note_key(fields, message.properties)
            except ProtocolError:
                fields["damaged"] = True
            lines.append(history._line(self.name, "deliver", "ok", fields))
        self._append(lines)

    def _connection(self, message: Message) -> str:
        """Return the connection of a message: its session's number, and the number of losses."""
        session = message.consumer.queue.session
        _, losses = message._arrival
        return f"{_number(self._sessions, session, self._session_numbers)}.{losses}"

    def on_confirm(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Record confirmations of the process."""
        history, uri = self._history, consumer.queue.uri
        lines: list[bytes] = []
        for message in messages:
            fields: dict[str, Any] = {
                "queue": uri,
                "message": message.guid,
                "connection": self._connection(message),
            }
            if message.stale:
                fields["stale"] = True
                if message.consumer.queue.session.state is SessionState.STARTED:
                    fields["sent"] = True
            lines.append(history._line(self.name, "confirm", "ok", fields))
        self._append(lines)

    async def handle(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Record the beginning and the end of an attempt of a handler."""
        self._handled(attempt, "invoke")
        try:
            result = await call_next()
        except BaseException as error:
            self._handled(attempt, "fail" if isinstance(error, Exception) else "unknown", error)
            raise
        self._handled(attempt, "ok")
        return result

    def _handled(self, attempt: Attempt, kind: EventType, error: BaseException | None = None) -> None:
        history = self._history
        lines: list[bytes] = []
        failed = _failed_of_a_batch(error) if error is not None else None
        for index, message in enumerate(attempt.messages):
            fields: dict[str, Any] = {
                "queue": message.queue_uri,
                "message": message.guid,
                "connection": self._connection(message),
                "attempt": attempt.number,
                "handler": attempt.handler,
            }
            if failed is not None and index not in failed:
                lines.append(history._line(self.name, "handle", "ok", fields))
                continue
            if error is not None:
                fields["error"] = type(error if failed is None else failed[index]).__name__
            lines.append(history._line(self.name, "handle", kind, fields))
        self._append(lines)


def _failed_of_a_batch(error: BaseException) -> Mapping[int, BaseException] | None:
    """Return the errors of a partly failed batch, by position; None for another error."""
    from bmq.workers import PartlyFailed

    return error.failed if isinstance(error, PartlyFailed) else None


#: The source of events: a history, a file, or several of these.
HistorySource: TypeAlias = History | str | os.PathLike[str] | Iterable["History | str | os.PathLike[str]"]


def check(
    history: HistorySource,
    *,
    rules: Iterable[str] | None = None,
    without: Iterable[str] = (),
    queues: Iterable[str] | None = None,
    within: float | None = None,
    clock_error: float = 0.0,
) -> Verdict:
    """Check a history, and raise if it breaks a rule.

    ::

        bmq.testing.check(history, without=["order"], within=60)

    Args:
        history: a :class:`History`, the path of a file, or several of these, merged by time.
        rules: the names of the rules to check; None for the rules of every priority and fanout queue:
            all but ``key-order``, ``one-owner``, ``one-at-a-time`` and ``late``.
        without: rules to leave out.
        queues: the queues to judge, by URI without ``?id=``; None for all.
        within: seconds from a message's acknowledgement, its due time or the last ``healed`` mark, whichever
            is last, to its arrival; adds the rule ``late``.
        clock_error: seconds by which the clocks of processes may differ, for ``early``.

    Returns:
        The counts.

    Raises:
        BrokenPromise: the history breaks a rule.
        UsageError: an argument is out of its range, or a line of a file is no event.
        OSError: a file cannot be read.
    """
    verdict = examine(
        history, rules=rules, without=without, queues=queues, within=within, clock_error=clock_error
    )
    verdict.raise_for_problems()
    return verdict


def examine(
    history: HistorySource,
    *,
    rules: Iterable[str] | None = None,
    without: Iterable[str] = (),
    queues: Iterable[str] | None = None,
    within: float | None = None,
    clock_error: float = 0.0,
) -> Verdict:
    """Check a history like :func:`check`, and return the result instead of raising.

    Args:
        history: as for :func:`check`, like all further arguments.
        rules: names.
        without: names.
        queues: URIs.
        within: seconds.
        clock_error: seconds.

    Raises:
        UsageError: an argument is out of its range, or a line of a file is no event.
        OSError: a file cannot be read.
    """
    checker = Checker(rules=rules, without=without, queues=queues, within=within, clock_error=clock_error)
    torn: list[str] = []
    for source, line, event in _merged(history, torn):
        checker.read(source, line, event)
    return checker.verdict(torn)


def _merged(source: HistorySource, torn: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the events of histories, ordered by time: the source's name, the line, the event.

    The events of a source stay in order.

    Args:
        source: the histories.
        torn: receives the places of lines without JSON.

    Raises:
        UsageError: the source is none, or a line is no event.
        OSError: a file cannot be read.
    """
    if isinstance(source, History | str | os.PathLike):
        return _events(source, torn)
    several: list[object] = list(_checks.items("history", source, "histories or paths"))
    if len(several) == 1:
        return _events(several[0], torn)
    return heapq.merge(*(_events(each, torn) for each in several), key=lambda found: found[2]["at"])


def _events(source: object, torn: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    if isinstance(source, History) and source.path is None:
        yield from _parsed("", source._lines, torn)
        return
    kinds: tuple[type[Any], ...] = (History, str, os.PathLike)
    _checks.instance("history", source, kinds, "a bmq.testing.History or a path")
    path = (
        source.path
        if isinstance(source, History)
        else Path(_checks.text("history", os.fspath(cast("str", source))))
    )
    assert path is not None
    with path.open("rb") as lines:
        yield from _parsed(path.name, lines, torn)


def _parsed(name: str, lines: Iterable[bytes], torn: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the events of lines, with the name of their source and the line number.

    Args:
        name: name of the source.
        lines: the lines.
        torn: receives the places of lines without JSON.

    Raises:
        UsageError: a line is no event.
    """
    name = sys.intern(name)
    for number, line in enumerate(lines, 1):
        try:
            event: Any = orjson.loads(line)
        except orjson.JSONDecodeError:
            if line.strip():
                torn.append(f"{name}:{number}")
            continue
        if not isinstance(event, dict) or not _is_event(cast("dict[str, Any]", event)):
            raise UsageError(
                f"line {number} of {name or 'the history'} is not an event; an event must have at, "
                "process, op and type"
            )
        yield name, number, event


def _is_event(event: dict[str, Any]) -> bool:
    at = event.get("at")
    return (
        isinstance(at, float | int)
        and isinstance(event.get("process"), str)
        and isinstance(event.get("op"), str)
        and event.get("type") in _TYPES
    )


def _is_torn(path: Path) -> bool:
    """Whether a file ends in the middle of a line."""
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except FileNotFoundError:
        return False


def _number(known: WeakKeyDictionary[T, int], of: T, numbers: Iterator[int]) -> int:
    """Return the number of a session or a consumer, which the recorder does not keep alive."""
    number = known.get(of)
    if number is None:
        number = known[of] = next(numbers)
    return number
