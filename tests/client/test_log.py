# SPDX-License-Identifier: Apache-2.0
"""The log of a session: few and short lines, which no peer can forge, and no log handler can break."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import pickle
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

import bmq
from bmq.errors import Error
from bmq.events import QueueReopenDelayed, QueueReopened, SessionEvent, StateRestored
from bmq.wire.control import BrokerResponse, ClientIdentity, ClientType, Codec, Status, StatusCategory
from bmq.wire.control_event import encode_event
from tests.client.bench import URI, opened
from tests.fakes.broker import FEATURES, Peer, ScriptedBroker, guid
from tests.sweeps import sweep
from tests.waiting import eventually

NASTY = "no\x1b[2J\r\nWARNING forged\u202e\u2028\x07"


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
    """Wait for some events of a kind."""
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


async def test_a_queue_that_is_not_reopened_is_logged(peer: Peer, said: Said) -> None:
    async with bmq.connect(peer.uri) as session:
        await session.open_queue(URI, read=True)
        peer.refuse.add("OpenQueue")
        peer.refusal = NASTY
        peer.cut()
        lines = await said.so_many(3)
        (failed,) = [line for line in lines if "could not be reopened, and" in line]
        assert failed.startswith(f"queue {URI} could not be reopened, and is closed: the broker refused")
        assert r"no\x1b[2J\r\nWARNING forged" in failed


LONG = "ü\n" * 200_000
#: A line with a few texts of a peer, each as long as it may be, and what is said about them.
LONGEST_LINE = 5000


def lengths(caplog: pytest.LogCaptureFixture) -> int:
    """Return the length of the longest line, with its error."""
    formatter = logging.Formatter("%(message)s")
    return max((len(formatter.format(record)) for record in caplog.records), default=0)


async def test_a_million_subscription_ids_do_not_lengthen_the_line(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_unreadable_bytes_are_truncated_in_the_log(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
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


class Own(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "times"),
    [(Own, 1), *((each, math.inf) for each in (Own, asyncio.CancelledError, pytest.fail.Exception))],
)
async def test_session_reconnects_and_the_fault_of_a_log_handler_is_shown_once(
    peer: Peer,
    failing: Install,
    error: type[BaseException],
    times: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = Failing(error, times)
    session = await bmq.connect(peer.uri)
    queue = await session.open_queue(URI, write=True)
    failing(handler, "bmq.client")
    for reconnects in (1, 2):
        peer.cut()
        await eventually(lambda: session.stats().reconnects == reconnects)  # noqa: B023
        await queue.post(b"1", timeout=10)
    assert session.state is bmq.SessionState.STARTED
    assert session.health().ready
    assert handler.failed
    async with asyncio.timeout(10):
        assert (await session.close()).clean
    err = capsys.readouterr().err
    assert err.count("a log handler or filter failed on a line of 'bmq.client'") == 1
    assert error.__name__ in err


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
