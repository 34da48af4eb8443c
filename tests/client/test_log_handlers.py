# SPDX-License-Identifier: Apache-2.0
"""Log handlers, filters and record factories are code of the application: they cannot affect a session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bmq
from bmq._logging import Log
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


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


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (AssertionError, 1),
        *((each, math.inf) for each in (AssertionError, asyncio.CancelledError, pytest.fail.Exception)),
    ],
)
async def test_session_reconnects(
    peer: Peer, failing: Install, error: type[BaseException], times: float
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


async def test_the_fault_is_shown_once(
    peer: Peer, failing: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    class Own(Exception):
        pass

    failing(Failing(Own), "bmq.client")
    async with bmq.connect(peer.uri) as session:
        for reconnects in (1, 2):
            peer.cut()
            await eventually(lambda: session.stats().reconnects == reconnects)  # noqa: B023
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
