# SPDX-License-Identifier: Apache-2.0
"""The client core's queues: opening a queue while an earlier opening is in progress or being undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bmq.errors import RequestTimeout, StateError
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.control import CloseQueue, QueueFlags
from tests.protocol.bench import READ, WRITE, Bench, connected

URI = "bmq://d/q"
BOTH = READ | WRITE


def abandon(bench: Bench, queue: QueueCore) -> None:
    bench.core.abandon_queue(queue, bench.now, bench.now + 60)
    bench.pump()


def cancelled_at_once(bench: Bench) -> None:
    abandon(bench, bench.begin_open(URI))


def cancelled_while_configuring(bench: Bench) -> None:
    queue = bench.begin_open(URI)
    bench.answer()
    abandon(bench, queue)


def cancelled_once_open(bench: Bench) -> None:
    abandon(bench, bench.open(URI))


def cancelled_behind_another(bench: Bench) -> None:
    bench.close(bench.open(URI, token="first"))
    abandon(bench, bench.begin_open(URI))


def timed_out(bench: Bench) -> None:
    bench.begin_open(URI, timeout=5)
    bench.wait(5)


def timed_out_while_configuring(bench: Bench) -> None:
    bench.begin_open(URI, timeout=5)
    bench.answer()
    bench.wait(5)


def closing(bench: Bench) -> None:
    bench.close(bench.open(URI))


def closing_in_its_second_step(bench: Bench) -> None:
    bench.close(bench.open(URI))
    bench.answer()


def closing_while_reopening(bench: Bench) -> None:
    queue = bench.open(URI)
    bench.lose()
    bench.connect()
    bench.close(queue)


def closing_while_restoring(bench: Bench) -> None:
    queue = bench.open(URI)
    bench.lose()
    bench.connect()
    bench.answer()
    bench.close(queue)


def close_timed_out_while_reopening(bench: Bench) -> None:
    queue = bench.open(URI)
    bench.lose()
    bench.connect()
    bench.close(queue, timeout=5)
    bench.wait(5)


UNDONE: list[Callable[[Bench], None]] = [
    cancelled_at_once,
    cancelled_while_configuring,
    cancelled_once_open,
    cancelled_behind_another,
    timed_out,
    timed_out_while_configuring,
    closing,
    closing_in_its_second_step,
    closing_while_reopening,
    closing_while_restoring,
    close_timed_out_while_reopening,
]
every_undoing = pytest.mark.parametrize("begin", UNDONE, ids=[each.__name__ for each in UNDONE])
every_way = pytest.mark.parametrize("flags", [BOTH, READ, WRITE], ids=["both", "reading", "writing"])


@every_undoing
@every_way
def test_an_open_waits_until_the_earlier_one_is_undone(
    begin: Callable[[Bench], None], flags: QueueFlags
) -> None:
    bench = connected()
    begin(bench)
    queue = bench.begin_open(URI, flags, token="again")
    bench.answer_all()
    assert bench.completed["again"] == [None]
    assert queue.state is QueueState.OPEN
    bench.post(queue, 1) if flags & WRITE else None
    # The broker has it open as often as the client: once.
    opened = bench.broker.log.count("OpenQueue") - bench.broker.log.count("CloseQueue")
    assert opened == 1 if begin is not closing else True
    bench.close(queue, token="close again")
    bench.answer_all()
    assert bench.completed["close again"] == [None]


@every_undoing
def test_an_open_that_waits_ends_at_its_own_deadline(begin: Callable[[Bench], None]) -> None:
    bench = connected()
    begin(bench)
    queue = bench.begin_open(URI, READ, token="again", timeout=1)
    bench.wait(1)
    (error,) = bench.completed["again"]
    assert isinstance(error, RequestTimeout)
    assert queue.state in (QueueState.CLOSED, QueueState.OVERDUE)
    bench.answer_all()
    bench.open(URI, token="at last")


@every_undoing
def test_first_of_several_waiting_opens_wins_and_the_others_fail(
    begin: Callable[[Bench], None],
) -> None:
    bench = connected()
    begin(bench)
    queues = [bench.begin_open(URI, BOTH, token=n) for n in range(4)]
    abandon(bench, queues.pop(2))
    bench.answer_all()
    assert bench.completed[0] == [None]
    assert 2 not in bench.completed
    for token in (1, 3):
        (error,) = bench.completed[token]
        assert isinstance(error, StateError)
        assert "already open" in str(error)
    assert [queue.state for queue in queues] == [QueueState.OPEN, QueueState.CLOSED, QueueState.CLOSED]


def test_waiting_open_does_not_change_a_final_close() -> None:
    bench = connected()
    bench.close(bench.open(URI, WRITE))
    bench.begin_open(URI, WRITE, token="again")
    (request,) = bench.broker.requests
    assert isinstance(request.body, CloseQueue)
    assert request.body.is_final


def test_an_open_waits_for_a_close_that_the_application_has_begun() -> None:
    bench = connected()
    leaving = bench.open(URI)
    leaving.leaving = True  # posts are waited for; the close follows
    queue = bench.begin_open(URI, token="again")
    bench.lose()
    bench.connect()
    bench.answer_all()
    assert (leaving.state, queue.state) == (QueueState.OPEN, QueueState.BEHIND)
    bench.close(leaving)
    bench.answer_all()
    assert bench.completed["again"] == [None]
    assert queue.state is QueueState.OPEN
