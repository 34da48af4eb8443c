# SPDX-License-Identifier: Apache-2.0
"""Received messages: the due time of a batch, and messages received twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bmq.spark.connection import Seconds
from bmq.spark.options import Duration, StreamOptions
from bmq.spark.receiver import new_messages
from bmq.spark.stream_reader import due_at

GUIDS = [bytes([number]) * 16 for number in range(6)]


@given(st.lists(st.lists(st.sampled_from(GUIDS), min_size=1, max_size=6), max_size=5))
def test_each_message_is_new_once(arrived: list[list[bytes]]) -> None:
    known: set[bytes] = set()
    seen: set[bytes] = set()
    for guids in arrived:
        expected: list[int] = []
        for place, guid in enumerate(guids):
            if guid not in seen:
                expected.append(place)
            seen.add(guid)
        fresh = new_messages(known, guids)
        assert (list(range(len(guids))) if fresh is None else fresh) == expected
        assert known == seen


def due(latest: float, *, rows: int = 5, drains: bool = False, linger: float = 0.5) -> tuple[bool, float]:
    """Return whether and when a batch is due whose first message arrived at 100 s."""
    options = StreamOptions(
        min_messages_per_trigger=3, max_trigger_delay=Duration(30), linger=Seconds(linger)
    )
    return due_at(rows, 100.0, latest, options, drains=drains)


def test_a_batch_is_due_after_its_first_message() -> None:
    assert due(100.4) == (True, 100.5)
    assert due(100.4, rows=2) == (False, 130.0), "fewer than the minimum"


def test_a_run_that_drains_the_queue_waits_for_the_last_message_but_not_for_long() -> None:
    """Otherwise the first trigger would have few messages, and take the time of a full trigger."""
    assert due(100.4, drains=True) == (True, 100.9)
    assert due(100.4, rows=2, drains=True) == (True, 100.9)
    assert due(101.9, drains=True) == (True, 102.0)
    assert due(101.9, drains=True, linger=60.0) == (True, 160.0)
