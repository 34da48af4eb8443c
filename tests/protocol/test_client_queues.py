# SPDX-License-Identifier: Apache-2.0
"""The client core's queues: opening, configuring and closing them, with every answer."""

from __future__ import annotations

import pytest

from bmq.errors import ConfigureQueueError, QueueClosed, RequestTimeout, StateError
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.control import CloseQueue, ConfigureStream, OpenQueue, QueueFlags
from tests.protocol.bench import READ, WRITE, Bench, connected, guid, held, opened
from tests.sweeps import sweep

URI = "bmq://bmq.test.mem.priority/q"
OTHER = "bmq://bmq.test.mem.priority/other"


@sweep("flags", [READ, WRITE, READ | WRITE])
@pytest.mark.statement("4.2", "4.20")
def test_a_queue_is_opened_with_flags_and_counts_and_never_as_administrator(flags: QueueFlags) -> None:
    bench = connected()
    queue = bench.begin_open(URI, flags)
    request = bench.broker.requests[0].body
    assert isinstance(request, OpenQueue)
    parameters = request.handle_parameters
    assert (parameters.uri, parameters.flags) == (URI, int(flags))
    counts = (parameters.read_count, parameters.write_count, parameters.admin_count)
    assert counts == (bool(flags & READ), bool(flags & WRITE), 0)
    assert bench.answer_all() == ["OpenQueue", "ConfigureStream"][: 2 if flags & READ else 1]
    assert bench.completed == {URI: [None]}
    assert queue.state is QueueState.OPEN


@pytest.mark.statement("4.18", "4.19")
def test_several_requests_are_pending_and_each_answer_is_found_by_its_number() -> None:
    bench = connected()
    uris = [f"{URI}{n}" for n in range(5)]
    assert [bench.begin_open(uri, WRITE).q_id for uri in uris] == [0, 1, 2, 3, 4]
    requests = list(bench.broker.requests)
    assert len({each.r_id for each in requests}) == 5
    for number, request in reversed(list(enumerate(requests))):
        bench.send(bench.broker.accept(request))
        assert set(bench.completed) == set(uris[number:])


@pytest.mark.statement("4.21")
def test_a_stream_is_configured_with_its_application_and_with_each_subscription() -> None:
    bench = connected()
    queue = bench.begin_open("bmq://d/q?id=foo", READ, subscriptions=["x == 1", "x == 2"])
    bench.answer()
    body = bench.broker.requests[0].body
    assert isinstance(body, ConfigureStream)
    assert (body.q_id, body.stream_parameters.app_id) == (queue.q_id, "foo")
    one, two = body.stream_parameters.subscriptions
    assert (one.expression.text, two.expression.text) == ("x == 1", "x == 2")
    assert one.s_id != two.s_id
    for subscription in (one, two):
        (consumer,) = subscription.consumers
        assert consumer.max_unconfirmed_messages == 1000
        assert consumer.max_unconfirmed_bytes == 1 << 20
        assert consumer.consumer_priority_count == 1


def expressions(bench: Bench) -> list[str]:
    """The expressions of the next unanswered configureStream."""
    body = bench.broker.requests[0].body
    assert isinstance(body, ConfigureStream)
    return [each.expression.text for each in body.stream_parameters.subscriptions]


def asks_for_nothing(bench: Bench) -> bool:
    """Whether the only subscription is the placeholder without limits."""
    body = bench.broker.requests[0].body
    assert isinstance(body, ConfigureStream)
    (only,) = body.stream_parameters.subscriptions
    return only.consumers[0].max_unconfirmed_messages == only.consumers[0].max_unconfirmed_bytes == 0


def test_a_reader_without_subscriptions_sends_a_placeholder_without_room() -> None:
    """A node other than the primary, and a proxy, drop posts through a handle without subscriptions."""
    bench = connected()
    queue = bench.begin_open(URI, READ | WRITE, subscriptions=())
    bench.answer()
    assert asks_for_nothing(bench)
    bench.answer()
    assert bench.completed == {URI: [None]}
    bench.configure(queue, "x == 1")
    assert expressions(bench) == ["x == 1"]
    bench.answer()
    bench.configure(queue)
    assert asks_for_nothing(bench)
    bench.answer()
    bench.lose()
    bench.connect()
    bench.answer()
    assert asks_for_nothing(bench)


@pytest.mark.statement("3.21")
def test_applications_of_one_queue_share_its_id() -> None:
    bench = connected()
    foo = bench.open("bmq://d/q?id=foo", READ)
    bar = bench.open("bmq://d/q?id=bar", READ)
    writer = bench.open("bmq://d/q", WRITE)
    assert foo.q_id == bar.q_id == writer.q_id
    assert len({foo.sub_id, bar.sub_id, 0}) == 3
    other = bench.open("bmq://d/other", WRITE)
    assert other.q_id != foo.q_id
    # A PUSH for both applications is two messages.
    ids = tuple(bench.broker.s_ids[foo.q_id])
    bench.send(bench.broker.push(foo.q_id, [(b"g" * 16, b"1")], ids))
    assert bench.numbers_received == [1, 1]


def test_opening_while_disconnected_times_out_and_can_be_abandoned() -> None:
    bench = Bench()
    bench.begin_open(URI, timeout=5)
    other = bench.begin_open("bmq://d/other", timeout=5)
    bench.core.abandon_queue(other, bench.now, bench.now)
    bench.wait(5)
    (error,) = bench.completed[URI]
    assert isinstance(error, RequestTimeout)
    assert list(bench.completed) == [URI]
    bench.connect()
    assert not bench.broker.requests


def test_changes_made_meanwhile_go_out_together_afterwards() -> None:
    bench, queue = opened(URI)
    for text in ("a > 1", "b > 1", "c > 1"):
        bench.configure(queue, text)
    assert bench.broker.log.count("ConfigureStream") == 2
    bench.answer()
    assert bench.completed[("a > 1",)] == [None]
    assert expressions(bench) == ["c > 1"]
    bench.answer()
    assert bench.completed[("b > 1",)] == bench.completed[("c > 1",)] == [None]
    assert bench.broker.log.count("ConfigureStream") == 3


def test_a_late_configuration_is_reverted() -> None:
    bench, queue = opened(URI)
    bench.configure(queue, "x > 1", timeout=5)
    late_id = bench.broker.s_ids[queue.q_id][-1]
    bench.wait(5)
    (error,) = bench.completed[("x > 1",)]
    assert isinstance(error, RequestTimeout)
    # The broker has applied the change: messages find their consumer until the former configuration is
    # restored.
    bench.push(queue, 1, s_id=late_id)
    assert [owner for owner, _ in bench.received] == ["x > 1"]
    bench.answer()
    assert expressions(bench) == [""]
    bench.answer()
    assert queue.state is QueueState.OPEN
    assert not bench.broker.requests


@pytest.mark.parametrize("answered", [True, False])
def test_a_reconnect_removes_a_late_configuration_that_the_broker_refuses_to_replace(answered: bool) -> None:
    bench, queue = opened(URI)
    bench.configure(queue, "x > 1", timeout=5)
    bench.wait(5)
    bench.configure(queue, "y > 1", timeout=5)
    bench.answer()  # the first change is accepted late
    bench.refuse()
    if answered:
        bench.refuse()
    else:
        bench.wait(100)
    (error,) = bench.failures
    assert f"could not restore the subscriptions of queue {URI}" in str(error)
    bench.lose()
    bench.connect()
    bench.answer()  # openQueue
    assert expressions(bench) == [""]
    bench.answer()
    assert queue.state is QueueState.OPEN
    bench.configure(queue, "z > 1")  # the new connection began without a late configuration
    bench.refuse()
    assert not bench.broker.requests
    assert len(bench.failures) == 1


def test_each_change_has_its_own_deadline() -> None:
    bench, queue = opened(URI)
    bench.configure(queue, "a > 1", timeout=50)
    bench.configure(queue, "b > 1", timeout=5)
    bench.wait(5)
    assert isinstance(bench.completed[("b > 1",)][0], RequestTimeout)
    assert ("a > 1",) not in bench.completed
    bench.answer_all()
    assert bench.completed[("a > 1",)] == [None]


def test_changes_while_disconnected_wait_and_time_out() -> None:
    bench, queue = opened(URI)
    bench.configure(queue, "a > 1", timeout=5)
    bench.lose()
    bench.configure(queue, "b > 1", timeout=50)
    bench.wait(5)
    assert isinstance(bench.completed[("a > 1",)][0], RequestTimeout)
    bench.connect()
    bench.answer()
    assert expressions(bench) == ["b > 1"]
    bench.answer()
    assert bench.completed[("b > 1",)] == [None]
    assert not bench.broker.requests


@pytest.mark.parametrize("how", ["refused", "timeout"])
def test_failed_change_fails_the_changes_waiting_behind_it(how: str) -> None:
    bench, queue = opened(URI)
    bench.configure(queue, "agreed > 1")
    bench.answer()
    s_id = bench.broker.s_ids[queue.q_id][-1]
    bench.configure(queue, "a > 1", timeout=5)
    bench.configure(queue, "b > 1")
    bench.configure(queue)
    if how == "refused":
        bench.refuse()
    else:
        bench.wait(5)
        bench.broker.requests.clear()
    error = ConfigureQueueError if how == "refused" else RequestTimeout
    for token in (("a > 1",), ("b > 1",), ()):
        (outcome,) = bench.completed[token]
        assert isinstance(outcome, error)
    # Wanted and agreed subscriptions are equal, and no further request is sent.
    assert [sub.expression for sub in queue.subscriptions.wanted] == ["agreed > 1"]
    assert [sub.expression for sub in queue.subscriptions.committed] == ["agreed > 1"]
    assert not bench.broker.requests
    bench.push(queue, 1, s_id=s_id)
    assert [owner for owner, _ in bench.received] == ["agreed > 1"]
    bench.lose()
    bench.connect()
    bench.answer()
    assert expressions(bench) == ["agreed > 1"]


def test_requests_that_timed_out_are_remembered_up_to_a_limit() -> None:
    bench, queue = opened("bmq://d/q")
    subscriptions = bench.subscriptions(["x == 1"])

    def time_out(count: int) -> int:
        for _ in range(count):
            bench.core.configure_queue(queue, subscriptions, None, bench.now + 1.0)
            bench.pump()
            bench.wait(1.0)
            bench.broker.requests.clear()
            bench.completed.clear()
        bench.broker.log.clear()
        return held(bench.core)

    time_out(1100)
    before = time_out(100)
    assert time_out(100) == before


def test_a_reopened_queue_takes_messages_confirmations_and_posts() -> None:
    bench = connected()
    queue, _ = bench.open(URI), bench.open(OTHER)
    bench.lose()
    bench.connect()
    bench.answer_queue(queue)  # the other one is not answered
    assert queue.state is QueueState.REOPENED
    bench.push(queue, 7)
    bench.core.confirm(queue, guid(7))
    bench.post(queue, 1)
    assert [each.guid for each in bench.broker.confirms] == [guid(7)]
    assert bench.broker.puts == []
    assert queue.unacked == 1
    bench.wait(1)  # the second queue takes too long
    assert queue.state is QueueState.OPEN
    assert bench.ack_all() == [1]


@pytest.mark.statement("4.13", "4.22")
def test_a_reader_is_deconfigured_before_it_is_closed() -> None:
    bench = connected()
    queue = bench.begin_open(URI, READ)
    assert bench.answer_all() == ["OpenQueue", "ConfigureStream"]
    bench.configure(queue, "x == 1")
    assert bench.answer_all() == ["ConfigureStream"]
    bench.close(queue)
    assert expressions(bench) == []
    bench.answer()
    body = bench.answer()
    assert isinstance(body, CloseQueue)
    assert body.is_final
    assert bench.completed["close"] == [None]
    assert queue.state is QueueState.CLOSED


@pytest.mark.statement("4.30")
def test_only_the_last_application_sends_the_final_close() -> None:
    bench = connected()
    queues = [bench.open(f"bmq://d/q?id={app}", READ) for app in ("foo", "bar", "baz")]
    final = []
    for queue in queues:
        bench.close(queue, token=queue)
        bench.answer()
        body = bench.answer()
        assert isinstance(body, CloseQueue)
        final.append(body.is_final)
    assert final == [False, False, True]


@pytest.mark.parametrize("answered", [0, 1])
def test_a_close_that_is_not_answered_ends_at_its_deadline(answered: int) -> None:
    bench, queue = opened(URI)
    bench.close(queue, timeout=5)
    for _ in range(answered):
        bench.answer()
    bench.wait(5)
    assert isinstance(bench.completed["close"][0], RequestTimeout)
    assert queue.state is QueueState.CLOSED
    bench.answer_all()  # late
    # The broker may have it open still: the same id means the same queue to it.
    assert bench.open(URI, token="again").q_id == queue.q_id


def test_closed_queue_leaves_no_state() -> None:
    bench = connected()
    before = held(bench.core)
    ids = set()
    for number in range(300):
        queue = bench.open(f"bmq://d/q{number}")
        ids.add(queue.q_id)
        bench.close(queue, token=number)
        bench.answer_all()
    assert len(ids) == 300  # an id is never used for another queue: late messages find nobody
    assert held(bench.core) < before + 20


def test_closing_ends_the_changes_that_wait() -> None:
    bench, queue = opened(URI)
    bench.configure(queue, "a > 1")
    bench.configure(queue, "b > 1")
    bench.close(queue)
    for text in ("a > 1", "b > 1"):
        assert isinstance(bench.completed[(text,)][0], QueueClosed)
    assert bench.answer_all() == ["ConfigureStream", "ConfigureStream", "CloseQueue"]


def test_a_closing_queue_refuses_every_call() -> None:
    bench, queue = opened(URI)
    bench.close(queue)
    for call in (bench.close, bench.configure):
        with pytest.raises(QueueClosed):
            call(queue)
    with pytest.raises(QueueClosed):
        bench.post(queue, 1)
    bench.answer_all()
    with pytest.raises(QueueClosed):
        bench.close(queue)


#: The ways to an opening that is to be undone, step by step.
UNDONE = {
    "cancelled at once": "begin abandon",
    "cancelled while it is configured": "begin answer abandon",
    "cancelled once it is open": "open abandon",
    "cancelled behind another": "open close begin abandon",
    "timed out": "begin wait",
    "timed out while it is configured": "begin answer wait",
    "closing": "open close",
    "closing in its second step": "open close answer",
    "closing while it reopens": "open reconnect close",
    "closing while it is restored": "open reconnect answer close",
    "the close timed out while it reopened": "open reconnect close wait",
}


def undone(steps: str) -> Bench:
    bench = connected()
    queue: QueueCore | None = None
    for step in steps.split():
        if step == "begin":
            queue = bench.begin_open(URI, timeout=5)
        elif step == "open":
            queue = bench.open(URI)
        elif step == "answer":
            bench.answer()
        elif step == "wait":
            bench.wait(5)
        elif step == "reconnect":
            bench.lose()
            bench.connect()
        else:
            assert queue is not None
            if step == "close":
                bench.close(queue, timeout=5)
            else:
                abandon(bench, queue)
    return bench


def abandon(bench: Bench, queue: QueueCore) -> None:
    bench.core.abandon_queue(queue, bench.now, bench.now + 60)
    bench.pump()


@sweep("how", UNDONE)
@sweep("flags", [READ | WRITE, READ, WRITE])
def test_an_open_waits_until_the_earlier_one_is_undone(how: str, flags: QueueFlags) -> None:
    bench = undone(UNDONE[how])
    queue = bench.begin_open(URI, flags, token="again")
    bench.answer_all()
    assert bench.completed["again"] == [None]
    assert queue.state is QueueState.OPEN
    if flags & WRITE:
        bench.post(queue, 1)
    # The broker has it open as often as the client: once.
    assert bench.broker.log.count("OpenQueue") - bench.broker.log.count("CloseQueue") == 1
    bench.close(queue, token="close again")
    bench.answer_all()
    assert bench.completed["close again"] == [None]


@sweep("how", UNDONE)
def test_an_open_that_waits_ends_at_its_own_deadline(how: str) -> None:
    bench = undone(UNDONE[how])
    queue = bench.begin_open(URI, READ, token="again", timeout=1)
    bench.wait(1)
    (error,) = bench.completed["again"]
    assert isinstance(error, RequestTimeout)
    assert queue.state in (QueueState.CLOSED, QueueState.OVERDUE)
    bench.answer_all()
    bench.open(URI, token="at last")


@sweep("how", UNDONE)
def test_first_of_several_waiting_opens_wins_and_the_others_fail(how: str) -> None:
    bench = undone(UNDONE[how])
    queues = [bench.begin_open(URI, token=n) for n in range(4)]
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
