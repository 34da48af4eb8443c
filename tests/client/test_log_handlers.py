# SPDX-License-Identifier: Apache-2.0
"""Log handlers, filters and record factories are code of the application: they cannot affect a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest

import bmq
from bmq._logging import Log
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"

#: The ways to fail; pytest.fail() raises a BaseException, and so does a test that fails on a log line.
ERRORS = [AssertionError, asyncio.CancelledError, pytest.fail.Exception]


class Failing(logging.Handler):
    """A handler that raises: on each line, or on the first."""

    def __init__(self, error: Callable[[str], BaseException], times: float) -> None:
        super().__init__()
        self._error = error
        self._left = times
        self.failed = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._left:
            self._left -= 1
            self.failed += 1
            raise self._error(record.getMessage())

    def filter(self, record: logging.LogRecord) -> bool:
        if "filter" in self.__dict__.get("kind", ""):
            self.emit(record)
        return True


@pytest.fixture(params=["handler", "filter", "filter of the logger", "factory"])
def failing(request: pytest.FixtureRequest) -> Iterator[Callable[[Failing, str], None]]:
    """Make a part of the logging of one logger fail, until the end of the test."""
    undo: list[Callable[[], object]] = []

    def install(handler: Failing, name: str) -> None:
        logger = logging.getLogger(name)
        if request.param == "factory":
            before = logging.getLogRecordFactory()

            def make(*args: object, **kwargs: object) -> logging.LogRecord:
                record = before(*args, **kwargs)  # type: ignore[arg-type]
                if record.name == name:
                    handler.emit(record)
                return record

            logging.setLogRecordFactory(make)
            undo.append(lambda: logging.setLogRecordFactory(before))
        elif request.param == "filter of the logger":
            fails = handler.emit
            logger.addFilter(lambda record: fails(record) is None)
            undo.append(lambda: logger.filters.clear())
        else:
            handler.__dict__["kind"] = request.param
            logger.addHandler(handler)
            undo.append(lambda: logger.removeHandler(handler))

    yield install
    for each in undo:
        each()


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("times", [1, float("inf")])
async def test_session_reconnects(
    peer: Peer, failing: Callable[[Failing, str], None], error: type[BaseException], times: float
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


async def test_workers_go_on(peer: Peer, failing: Callable[[Failing, str], None]) -> None:
    handler = Failing(AssertionError, float("inf"))
    failing(handler, "bmq.workers")
    seen: list[bytes] = []

    async def handle(message: bmq.Message) -> None:
        seen.append(message.data)
        raise ValueError

    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        consuming = asyncio.ensure_future(bmq.consume(queue, handle))
        await eventually(lambda: queue.consumers)
        peer.connection.push(1)
        await eventually(lambda: handler.failed)
        peer.connection.push(2)
        await eventually(lambda: len(seen) == 2)
        assert not consuming.done()
        consuming.cancel()


async def test_an_interceptor_and_the_trace_may_fail_in_the_log(
    peer: Peer, failing: Callable[[Failing, str], None]
) -> None:
    class Broken(bmq.Interceptor):
        def on_post(self, queue: object, posts: object) -> None:
            raise ValueError

    failing(Failing(AssertionError, float("inf")), "bmq.interceptors")
    failing(Failing(AssertionError, float("inf")), "bmq.trace")
    async with bmq.connect(peer.uri, interceptors=[Broken()], trace=bmq.Trace.ON) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"1", timeout=10)


async def test_the_fault_is_shown_once(
    peer: Peer, failing: Callable[[Failing, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    class Own(Exception):
        pass

    failing(Failing(Own, float("inf")), "bmq.client")
    async with bmq.connect(peer.uri) as session:
        for reconnects in (1, 2):
            peer.cut()
            await eventually(lambda: session.stats().reconnects == reconnects)  # noqa: B023
    err = capsys.readouterr().err
    assert err.count("a log handler or filter failed on a line of 'bmq.client'") == 1
    assert err.count("Own") == err.count(__name__ + ".Own") or "Own" in err


async def test_a_handler_may_post(peer: Peer) -> None:
    """Even on the lines of the trace: no handler runs in the middle of a write."""
    posted: list[asyncio.Future[bmq.Ack]] = []

    class Shipping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if len(posted) < 5:
                posted.append(queue.post_nowait(b"%d" % len(posted)))

    handler = Shipping()
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        session.set_trace(bmq.Trace.ON)
        logging.getLogger("bmq.trace").addHandler(handler)
        try:
            await queue.post(b"first")
            await eventually(lambda: len(posted) == 5)
            await asyncio.gather(*posted)
        finally:
            logging.getLogger("bmq.trace").removeHandler(handler)
    assert "ERROR" not in peer.log


async def test_lines_are_in_order_and_keep_their_origin(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bmq.client"):
        async with bmq.connect(peer.uri) as session:
            await session.open_queue(URI, write=True)
            peer.cut()
            await eventually(lambda: len(caplog.records) == 2)
    lost, restored = caplog.records
    assert "was lost" in lost.getMessage()
    assert "was restored" in restored.getMessage()
    assert lost.created <= restored.created
    assert restored.filename == "reporting.py"


async def test_many_lines_of_one_turn_reach_the_handlers() -> None:
    """More lines than may wait for the next turn: each reaches the handlers once, and none is lost."""
    count = 3000
    logger = logging.getLogger("bmq.client.many")
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        log = Log(logger.name, later=True)
        for number in range(count):
            log.warning("line %d", number)  # this event loop makes no turn meanwhile
        await eventually(lambda: len(seen) == count)
        assert set(seen) == {f"line {number}" for number in range(count)}
    finally:
        logger.removeHandler(handler)
