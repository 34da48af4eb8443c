# SPDX-License-Identifier: Apache-2.0
"""The log of a session: a line at the beginning and the end of each problem, without forged lines."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator

import pytest

import bmq
from bmq.wire.control import StatusCategory
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
NASTY = "no\x1b[2J\r\nWARNING forged\u202e\u2028\x07"


class Said:
    """The lines shown by a program without a logging configuration."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def lines(self) -> list[str]:
        return [
            record.getMessage()
            for record in self._caplog.records
            if record.levelno >= logging.WARNING and record.name.startswith("bmq")
        ]

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


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


async def test_a_queue_that_is_refused_for_now_is_two_lines_a_minute(peer: Peer, said: Said) -> None:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.001)) as session:
        queue = await session.open_queue(URI, write=True)
        events = session.events()
        for outage in range(2):
            peer.refuse, peer.refused_as = {"OpenQueue"}, StatusCategory.E_NOT_READY
            peer.cut()
            refusals = 0
            async for event in events:
                refusals += isinstance(event, bmq.events.QueueReopenDelayed)
                if refusals == 2:
                    break
            peer.refuse.clear()
            async for event in events:
                if isinstance(event, bmq.events.QueueReopened):
                    break
            await queue.post(b"%d" % outage)
        delayed = [each for each in said.lines if each.startswith(f"queue {URI} ")]
        first, again = delayed
        assert "could not be reopened yet; trying again, with its posts kept: " in first
        assert "E_NOT_READY" in first
        assert again == f"queue {URI} is open again"


def test_a_suppressed_loss_is_counted_a_minute_later(said: Said) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        async with Peer() as peer, bmq.connect(peer.uri, liveness=None) as session:
            events = session.events()
            for outage in range(4):
                loop.ahead += 61 if outage == 3 else 0
                peer.cut()
                async for event in events:
                    if isinstance(event, bmq.events.StateRestored):
                        break
            lines = await said.so_many(4)
        assert ["was lost" in line for line in lines] == [True, False, True, False]
        assert lines[2].endswith("(and 2 more like this since)")

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main())


def test_long_outage_is_logged_less_and_less_often(said: Said) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
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
            async for event in events:
                if isinstance(event, bmq.events.StateRestored):
                    break
            await turns(1)
            reminder, restored = said.lines[-2:]
            assert f"no connection to {peer.uri} for 2 min" in reminder
            assert "still trying, with 0 posts kept (last: could not connect" in reminder
            assert "was restored after 3 min" in restored
            loop.ahead += 10_000
            await turns(5)
            assert said.lines[-1] == restored

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main())


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


# what a peer says
