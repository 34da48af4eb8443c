# SPDX-License-Identifier: Apache-2.0
"""After a reconnect, queues that are reopened late: their posts follow soon, at a cost that does not grow."""

from __future__ import annotations

import sys
from types import FrameType

from bmq.protocol.client.core import CoreOptions
from tests.protocol.bench import WRITE, Bench, guid

URI = "bmq://bmq.test.mem.priority/q"


def _lost(queues: int, posts: int) -> Bench:
    """A lost session with posts to each of its queues, which take long to reopen."""
    bench = Bench(CoreOptions(max_unacked_messages=1_000_000))
    bench.connect()
    for number in range(queues):
        queue = bench.open(f"{URI}{number}", WRITE)
        for at in range(posts):
            bench.core.post(queue, guid(number * posts + at + 1), b"x", at, bench.now)
    bench.pump()
    bench.lose()
    bench.connect()
    bench.wait(1.5)
    return bench


def test_posts_to_a_late_queue_do_not_wait_for_other_queues() -> None:
    bench = _lost(3, 2)
    assert not bench.broker.puts
    bench.answer()
    bench.wait(0.1)
    assert len(bench.broker.puts) == 2
    bench.answer()
    bench.wait(0.1)
    assert len(bench.broker.puts) == 4
    bench.answer()
    assert len(bench.broker.puts) == 6


def _calls(queues: int) -> int:
    bench = _lost(queues, 20)
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        bench.answer_all()
    finally:
        sys.setprofile(None)
    assert len(bench.broker.puts) == 20 * queues
    return count


def test_reopening_many_queues_visits_each_post_a_few_times() -> None:
    few, many = _calls(20), _calls(80)
    assert many < 5 * few, f"{few} calls for 20 queues, {many} for 80"
