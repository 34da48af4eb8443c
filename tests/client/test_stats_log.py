# SPDX-License-Identifier: Apache-2.0
"""Statistics in the log, at an interval and at the end of a session."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

import bmq
from bmq.stats import SessionStats
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
FIELDS = [
    *("queues", "posted", "acknowledged", "refused", "retransmitted", "unacked"),
    *("received", "confirmed", "redelivered", "unconfirmed", "buffered"),
    *("bytes_sent", "bytes_received", "reconnects", "seconds_disconnected", "ack_seconds_p50"),
]


def records(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [each for each in caplog.records if each.name == "bmq.stats"]


def values(record: logging.LogRecord) -> dict[str, str]:
    pairs = record.getMessage().rpartition(": ")[2].split(" ")
    return dict(pair.split("=") for pair in pairs)


async def test_statistics_are_logged_at_the_interval_and_at_the_end(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bmq.stats")
    async with bmq.connect(peer.uri, log_stats_every=0.01) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post_many([b"x"] * 3)
        await eventually(lambda: records(caplog) and values(records(caplog)[-1])["acknowledged"] == "3")
    first, last = records(caplog)[0], records(caplog)[-1]
    assert first.getMessage().startswith(f"statistics of the session with {peer.uri}: queues=")
    assert last.getMessage().startswith(
        f"final statistics of the session with {peer.uri}: queues=0 posted=3 "
    )
    assert sum(each.getMessage().startswith("final") for each in records(caplog)) == 1
    assert {each.levelno for each in records(caplog)} == {logging.INFO}
    assert [list(values(each)) for each in (first, last)] == [FIELDS, FIELDS]
    assert isinstance(last.statistics, SessionStats)
    assert last.broker == peer.uri


async def test_no_statistics_are_logged_by_default(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bmq.stats")
    async with bmq.connect(peer.uri):
        pass
    assert records(caplog) == []


async def test_statistics_go_on_over_a_reconnect_and_end_with_a_lost_session(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bmq.stats")
    session = await bmq.connect(
        peer.uri, log_stats_every=0.01, reconnect_delays=lambda: itertools.repeat(0.0, 3)
    )
    peer.cut()
    await eventually(lambda: records(caplog) and values(records(caplog)[-1])["reconnects"] == "1")
    await peer.stop()
    await eventually(lambda: session.state is bmq.SessionState.CLOSED)
    # The record is written in the turn after the transition.
    await eventually(lambda: records(caplog)[-1].getMessage().startswith("final "))
    await session.close()
    assert sum(each.getMessage().startswith("final") for each in records(caplog)) == 1
