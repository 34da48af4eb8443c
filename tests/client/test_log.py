# SPDX-License-Identifier: Apache-2.0
"""The log of a session: few and short lines, which no peer can forge; failing handlers; the wire trace."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

import bmq
from bmq.errors import Error
from bmq.events import QueueReopenDelayed, QueueReopened, SessionEvent, StateRestored
from bmq.wire.control import BrokerResponse, ClientIdentity, ClientType, Codec, Status, StatusCategory
from bmq.wire.control_event import encode_event
from bmq.wire.event import HEARTBEAT_REQ
from tests.client.bench import URI, opened
from tests.fakes.broker import FEATURES, Peer, ScriptedBroker, guid
from tests.sweeps import sweep
from tests.waiting import eventually


class Said:
    """The lines shown by a program without a logging configuration."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def lines(self) -> list[str]:
        mine = [record for record in self._caplog.records if record.name.startswith("bmq")]
        return [record.getMessage() for record in mine if record.levelno >= logging.WARNING]

    async def so_many(self, count: int) -> list[str]:
        await eventually(lambda: len(self.lines) >= count)
        return self.lines


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Said]:
    with caplog.at_level(logging.DEBUG, "bmq"):
        yield Said(caplog)


async def turns(count: int) -> None:
    """Let the event loop turn: what is due is done."""
    for _ in range(count):
        await asyncio.sleep(0)


async def seen(events: AsyncIterator[bmq.events.SessionEvent], kind: type, count: int = 1) -> None:
    for _ in range(count):
        while not isinstance(await anext(events), kind):
            pass


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def on_a_jumping_loop(
    test: Callable[[Said, JumpingLoop], Coroutine[Any, Any, None]],
) -> Callable[[Said], None]:
    def run(said: Said) -> None:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, JumpingLoop)
            runner.run(test(said, loop))

    return run


async def test_a_queue_that_is_refused_for_now_is_two_lines_a_minute(peer: Peer, said: Said) -> None:
    async with opened(peer, write=True, reconnect_delays=lambda: itertools.repeat(0.001)) as (session, queue):
        events = session.events()
        for outage in range(2):
            peer.refuse, peer.refused_as = {"OpenQueue"}, StatusCategory.E_NOT_READY
            peer.cut()
            await seen(events, QueueReopenDelayed, 2)
            peer.refuse.clear()
            await seen(events, QueueReopened)
            await queue.post(b"%d" % outage)
        delayed = [each for each in said.lines if each.startswith(f"queue {URI} ")]
        first, again = delayed
        assert "could not be reopened yet; trying again, with its posts kept: " in first
        assert "E_NOT_READY" in first
        assert again == f"queue {URI} is open again"


@on_a_jumping_loop
async def test_a_suppressed_loss_is_counted_a_minute_later(said: Said, loop: JumpingLoop) -> None:
    async with Peer() as peer, bmq.connect(peer.uri, liveness=None) as session:
        events = session.events()
        for outage in range(4):
            loop.ahead += 61 if outage == 3 else 0
            peer.cut()
            await seen(events, StateRestored)
        lines = await said.so_many(4)
    assert ["was lost" in line for line in lines] == [True, False, True, False]
    assert lines[2].endswith("(and 2 more like this since)")


@on_a_jumping_loop
async def test_long_outage_is_logged_less_and_less_often(said: Said, loop: JumpingLoop) -> None:
    async with Peer() as peer, bmq.connect(peer.uri) as session:
        events = session.events()
        await peer.stop()
        await said.so_many(1)
        by_then = []
        for second in range(1, 201):
            loop.ahead += 1
            await turns(5)
            if second in (10, 30, 70, 150):
                by_then.append(len(said.lines))
        assert by_then == [2, 3, 4, 5]
        assert len(said.lines) == 5, said.lines
        await peer.start()
        loop.ahead += 20  # whatever delay was under way
        await seen(events, StateRestored)
        await turns(1)
        reminder, restored = said.lines[-2:]
        assert f"no connection to {peer.uri} for 2 min" in reminder
        assert "still trying, with 0 posts kept (last: could not connect" in reminder
        assert "was restored after 3 min" in restored
        loop.ahead += 10_000
        await turns(5)
        assert said.lines[-1] == restored


async def test_errors_of_the_caller_and_closing_log_no_line(peer: Peer, said: Said) -> None:
    await (await bmq.connect(peer.uri)).close()
    peer.refuse.add("clientIdentity")
    with pytest.raises(bmq.NegotiationError):
        await bmq.connect(peer.uri)
    assert said.lines == []


LONG = "ü\n" * 200_000
#: A line with a few texts of a peer, each as long as it may be, and what is said about them.
LONGEST_LINE = 5000


def lengths(caplog: pytest.LogCaptureFixture) -> int:
    """Return the length of the longest line, with its error."""
    formatter = logging.Formatter("%(message)s")
    return max((len(formatter.format(record)) for record in caplog.records), default=0)


async def test_many_subscription_ids_lengthen_no_line(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(peer, write=True) as (_, queue):
        ids = tuple(range(100_000))
        for _ in range(2):
            peer.connection.send(peer.connection.script.push(7, [(guid(1), b"x")], ids))
        await queue.post(b"1")
        lines = [line for line in caplog.messages if "arrived for a queue" in line]
        assert len(lines) == 2
        assert "0, 1, 2, 3, 4 ... (100,000 in all)" in lines[0]
        assert lengths(caplog) < LONGEST_LINE


def _named(name: str) -> bytes:
    identity = ClientIdentity(
        client_type=ClientType.E_TCPBROKER, features=FEATURES, process_name=name, host_name=name
    )
    welcome = BrokerResponse(
        result=Status(), protocol_version=1, broker_version=999999, broker_identity=identity
    )
    return encode_event(welcome, Codec.JSON)


async def test_long_names_and_reasons_of_a_broker_are_truncated(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(ScriptedBroker, "welcome", staticmethod(lambda **_: _named(LONG)))
    peer.refusal = LONG
    happened: list[SessionEvent] = []
    errors: list[BaseException] = []
    async with opened(peer, read=True, write=True, on_event=happened.append) as (session, queue):
        peer.refuse |= {"OpenQueue", "ConfigureStream"}
        for call in (lambda: queue.receive(30), lambda: session.open_queue(URI + "2", write=True)):
            with pytest.raises(bmq.Error) as caught:
                await call()
            errors.append(caught.value)
        peer.cut()
        await eventually(lambda: any("Failed" in type(event).__name__ for event in happened))
    assert all(len(str(error)) < LONGEST_LINE for error in errors)
    assert all(len(repr(event)) < 3 * LONGEST_LINE for event in happened)
    assert lengths(caplog) < LONGEST_LINE


async def test_unreadable_bytes_are_cut_in_the_log(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    peer.greeting = b"HTTP/1.1 400 " + LONG.encode()
    with pytest.raises(bmq.Error) as caught:
        await bmq.connect(peer.uri, connect_timeout=30)
    assert len(str(caught.value)) < LONGEST_LINE
    assert lengths(caplog) < LONGEST_LINE


def _kinds(root: type[Error]) -> list[type[Error]]:
    return [root, *(each for kind in root.__subclasses__() for each in _kinds(kind))]


def _made(kind: type[Error]) -> Any:
    make: Callable[..., Any] = kind
    for arguments in ((LONG,), (LONG, LONG), (LONG, None), (bmq.AckStatus.UNKNOWN, LONG)):
        try:
            return make(*arguments)
        except (TypeError, AttributeError, ValueError):
            continue
    return None


@sweep("kind", _kinds(Error), ids=lambda kind: kind.__name__)
def test_every_error_text_is_truncated(kind: type[Error]) -> None:
    error = _made(kind)
    if error is not None:
        assert len(str(error)) < 2 * LONGEST_LINE
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


class Failing:
    """A part of the logging that raises: on each line, or on the first ones."""

    def __init__(self, error: Callable[[str], BaseException], times: float = math.inf) -> None:
        self._error = error
        self._times = times
        self.failed = 0

    def __call__(self, record: logging.LogRecord) -> bool:
        if self.failed < self._times:
            self.failed += 1
            raise self._error(record.getMessage())
        return True


Install = Callable[[Failing, str], None]


@pytest.fixture(params=["handler", "filter", "filter of the logger", "factory"])
def failing(request: pytest.FixtureRequest) -> Iterator[Install]:
    """Make a part of the logging of one logger fail, until the end of the test."""
    with contextlib.ExitStack() as undo:

        def install(fault: Failing, name: str) -> None:
            logger, handler = logging.getLogger(name), logging.Handler()
            handler.emit = fault if request.param == "handler" else lambda _: None  # type: ignore[assignment,method-assign]
            if request.param == "factory":
                make = logging.getLogRecordFactory()

                def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
                    record = make(*args, **kwargs)
                    if record.name == name:
                        fault(record)
                    return record

                logging.setLogRecordFactory(made)
                undo.callback(logging.setLogRecordFactory, make)
            elif request.param == "filter of the logger":
                logger.addFilter(fault)
                undo.callback(logger.removeFilter, fault)
            else:
                if request.param == "filter":
                    handler.addFilter(fault)
                logger.addHandler(handler)
                undo.callback(logger.removeHandler, handler)

        yield install


async def lose_twice(peer: Peer, session: bmq.Session) -> None:
    for reconnects in (1, 2):
        peer.cut()
        await eventually(lambda: session.stats().reconnects == reconnects)  # noqa: B023


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (AssertionError, 1),
        *((each, math.inf) for each in (AssertionError, asyncio.CancelledError, pytest.fail.Exception)),
    ],
)
async def test_session_reconnects_though_log_handlers_fail(
    peer: Peer, failing: Install, error: type[BaseException], times: float
) -> None:
    handler = Failing(error, times)
    async with opened(peer, write=True) as (session, queue):
        failing(handler, "bmq.client")
        await lose_twice(peer, session)
        await queue.post(b"1", timeout=10)
        assert session.health().ready
        assert handler.failed
    assert (await session.close()).clean


async def test_the_fault_of_a_log_handler_is_shown_once(
    peer: Peer, failing: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    class Own(Exception):
        pass

    failing(Failing(Own), "bmq.client")
    async with bmq.connect(peer.uri) as session:
        await lose_twice(peer, session)
    err = capsys.readouterr().err
    assert err.count("a log handler or filter failed on a line of 'bmq.client'") == 1
    assert "Own" in err


async def test_a_handler_may_post(peer: Peer) -> None:
    """Even on the lines of the trace: no handler runs in the middle of a write."""
    posted: list[asyncio.Future[bmq.Ack]] = []

    class Shipping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if len(posted) < 5:
                posted.append(queue.post_nowait(b"%d" % len(posted)))

    handler = Shipping()
    async with opened(peer, write=True) as (session, queue):
        session.set_trace(bmq.Trace.ON)
        logging.getLogger("bmq.trace").addHandler(handler)
        try:
            await queue.post(b"first")
            await eventually(lambda: len(posted) == 5)
            await asyncio.gather(*posted)
        finally:
            logging.getLogger("bmq.trace").removeHandler(handler)
    assert "ERROR" not in peer.log


PROPERTIES = {"Card": "4111-1111"}


async def a_conversation(**options: Any) -> None:
    auth = {"me": "hush-hush"}
    async with (
        bmq.broker.Broker(auth=auth) as broker,
        bmq.connect(broker.uri, credentials=bmq.Credentials.basic("me", "hush-hush"), **options) as session,
    ):
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"top secret", properties=PROPERTIES)
        (await queue.receive(timeout=30)).confirm()


@pytest.mark.parametrize("trace", [bmq.Trace.ON, bmq.Trace.PAYLOADS])
async def test_every_event_is_shown_field_by_field_and_credentials_never(
    caplog: pytest.LogCaptureFixture, trace: bmq.Trace
) -> None:
    with caplog.at_level(logging.DEBUG, "bmq.trace"):
        await a_conversation(trace=trace)
    records = [record for record in caplog.records if record.name == "bmq.trace"]
    assert {record.levelno for record in records} == {logging.DEBUG}
    address = records[0].broker  # type: ignore[attr-defined]
    kinds = {record.getMessage().split("\n")[0].split(f" {address}, ")[0] for record in records}
    for kind in ("AUTHENTICATION", "CONTROL"):
        assert {f"{kind} sent to", f"{kind} received from"} < kinds
    assert {"PUT sent to", "ACK received from", "PUSH received from", "CONFIRM sent to"} < kinds
    text = "\n".join(record.getMessage() for record in records)
    assert "processName" in text
    assert f"uri {URI}" in text
    hidden = ["hush", "bWU6aHVzaC1odXNo"]
    if trace is bmq.Trace.PAYLOADS:
        assert 'payload 10 bytes: "top secret"' in text
        assert "property Card '4111-1111' (STRING)" in text
    else:
        assert "property Card (STRING)" in text
        assert "payload 10 bytes\n" in text + "\n"
        hidden += ["top secret", "4111-1111"]
    for secret in hidden:
        assert secret not in text


PROGRAM = """
import asyncio, sys, bmq

async def main():
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri):
        pass

asyncio.run(main())
print("bmq.wire.anatomy" in sys.modules)
"""


@sweep("value, seen", [("1", True), ("payloads", True), ("0", False), ("", False)])
def test_environment_enables_the_trace(value: str, seen: bool) -> None:
    environment = {**os.environ, "BMQ_TRACE": value}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{seen}\n"  # the reader of whole events is imported only then
    assert ("CONTROL sent to tcp://127.0.0.1:" in done.stderr) is seen


def traced(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The kinds of the traced events, in order."""
    heads = [each.getMessage().split("\n")[0] for each in caplog.records if each.name == "bmq.trace"]
    return [" ".join(head.split(" ")[:2]) for head in heads]


async def test_trace_is_switched_in_a_running_session(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bmq.trace")
    async with opened(peer, write=True, trace=bmq.Trace.OFF) as (session, queue):
        await queue.post(b"before")
        session.set_trace(bmq.Trace.PAYLOADS)
        await queue.post(b"meanwhile")
        session.set_trace(bmq.Trace.ON)
        await queue.post(b"in private")
        session.set_trace(bmq.Trace.OFF)
        await queue.post(b"after")
    assert traced(caplog) == ["PUT sent", "ACK received"] * 2
    assert "meanwhile" in caplog.text
    for hidden in ("before", "private", "after"):
        assert hidden not in caplog.text


async def test_trace_ends_after_the_number_of_events(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bmq.trace")
    async with opened(peer, write=True) as (session, queue):
        session.set_trace(bmq.Trace.ON, count=3)
        for _ in range(5):
            await queue.post(b"x")
        assert traced(caplog) == ["PUT sent", "ACK received", "PUT sent"]
        session.set_trace(bmq.Trace.ON, count=1)
        session.set_trace(bmq.Trace.ON, count=2)
        await queue.post(b"x")
        await queue.post(b"x")
    assert traced(caplog)[3:] == ["PUT sent", "ACK received"]


async def test_trace_begins_in_the_middle_of_an_event(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bmq.trace")
    async with bmq.connect(peer.uri) as session:
        connection = peer.connection
        assert connection.transport is not None
        before = session.stats().bytes_received
        connection.transport.write(HEARTBEAT_REQ[:5])
        await eventually(lambda: session.stats().bytes_received == before + 5)
        session.set_trace(bmq.Trace.ON, count=2)
        connection.transport.write(HEARTBEAT_REQ[5:])
        await eventually(lambda: len(traced(caplog)) == 2)
    assert traced(caplog) == ["HEARTBEAT_REQ received", "HEARTBEAT_RSP sent"]
    assert "is not an event" not in caplog.text
