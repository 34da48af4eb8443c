# SPDX-License-Identifier: Apache-2.0
"""The client core's queues: opening and configuring them, with every answer."""

from __future__ import annotations

import pytest

from bmq.errors import (
    ConfigureQueueError,
    RequestTimeout,
)
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.control import CloseQueue, ConfigureStream, OpenQueue
from tests.protocol.bench import READ, WRITE, Bench, connected, guid

URI = "bmq://bmq.test.mem.priority/q"


# opening


@pytest.mark.statement("4.2")
def test_a_reader_is_opened_and_configured() -> None:
    bench = connected()
    queue = bench.begin_open(URI, READ)
    request = bench.broker.requests[0].body
    assert isinstance(request, OpenQueue)
    parameters = request.handle_parameters
    assert (parameters.uri, parameters.flags) == (URI, int(READ))
    assert (parameters.read_count, parameters.write_count) == (1, 0)
    assert bench.answer_all() == ["OpenQueue", "ConfigureStream"]
    assert bench.completed == {URI: [None]}
    assert queue.state is QueueState.OPEN


def expressions(bench: Bench) -> list[str]:
    """Return the expressions of the next unanswered configureStream."""
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


def test_an_open_that_times_out_and_succeeds_later_is_closed_again() -> None:
    bench = connected()
    queue = bench.begin_open(URI, timeout=5)
    bench.wait(5)
    (error,) = bench.completed[URI]
    assert isinstance(error, RequestTimeout)
    assert queue.state is QueueState.OVERDUE
    assert bench.answer_all() == ["OpenQueue", "CloseQueue"]
    assert queue.state is QueueState.CLOSED
    assert bench.completed == {URI: [error]}
    assert bench.core.next_deadline() is None
    bench.open(URI, token="again")


@pytest.mark.parametrize("late", [0, 1], ids=["the first answered first", "the second answered first"])
def test_the_first_of_two_answers_opens_and_the_second_is_undone(late: int) -> None:
    """A broker counts the openings of a queue: a single close would not be enough."""
    bench = connected()
    bench.begin_open(URI, timeout=5)
    bench.wait(5)
    queue = bench.begin_open(URI, token="again", timeout=5)
    assert bench.broker.log.count("OpenQueue") == 2
    bench.broker.requests.rotate(late)
    bench.answer()
    bench.broker.requests.rotate(1)  # the ConfigureStream before the second OpenQueue
    bench.answer()
    assert bench.completed["again"] == [None]
    assert isinstance(bench.answer(), OpenQueue)
    (taken_back,) = bench.broker.requests
    assert isinstance(taken_back.body, CloseQueue)
    assert not taken_back.body.is_final
    assert taken_back.body.handle_parameters == queue.handle_parameters()
    bench.answer_all()
    assert queue.state is QueueState.OPEN
    bench.close(queue)
    closing = [bench.answer(), bench.answer()]
    assert isinstance(closing[1], CloseQueue)
    assert closing[1].is_final
    assert bench.completed["close"] == [None]


def test_cleanup_of_a_refused_open_spares_a_later_open() -> None:
    bench = connected()
    bench.begin_open(URI, timeout=5)
    bench.wait(5)
    bench.begin_open(URI, token="again", timeout=5)
    bench.broker.requests.rotate(1)
    bench.refuse()
    queue = bench.begin_open(URI, token="third")
    assert bench.answer_all() == ["OpenQueue", "OpenQueue", "ConfigureStream"]
    assert queue.state is QueueState.OPEN


def test_an_open_repeated_before_the_timeout_takes_the_first_answer() -> None:
    bench = connected()
    first = bench.begin_open(URI, timeout=5)
    bench.core.abandon_queue(first, bench.now, bench.now + 60)
    bench.wait(4)
    queue = bench.begin_open(URI, token="again", timeout=5)
    assert bench.broker.log.count("OpenQueue") == 1
    bench.wait(4)
    assert bench.answer_all() == ["OpenQueue", "ConfigureStream"]
    assert bench.completed["again"] == [None]
    assert queue.state is QueueState.OPEN


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


# configuring


def test_changes_made_meanwhile_go_out_together_afterwards() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.configure(queue, "a > 1")
    bench.configure(queue, "b > 1")
    bench.configure(queue, "c > 1")
    assert bench.broker.log.count("ConfigureStream") == 2
    bench.answer()
    assert bench.completed[("a > 1",)] == [None]
    body = bench.broker.requests[0].body
    assert isinstance(body, ConfigureStream)
    assert [s.expression.text for s in body.stream_parameters.subscriptions] == ["c > 1"]
    bench.answer()
    assert bench.completed[("b > 1",)] == bench.completed[("c > 1",)] == [None]
    assert bench.broker.log.count("ConfigureStream") == 3


def test_a_refused_configuration_keeps_the_previous_configuration() -> None:
    bench = connected()
    queue = bench.open(URI)
    (old,) = bench.broker.s_ids[queue.q_id]
    bench.configure(queue, "x > 1")
    bench.refuse()
    (error,) = bench.completed[("x > 1",)]
    assert isinstance(error, ConfigureQueueError)
    assert [sub.expression for sub in queue.subscriptions.wanted] == [""]
    assert queue.state is QueueState.OPEN
    bench.push(queue, 1, s_id=old)
    assert bench.numbers_received == [1]


def test_a_late_configuration_is_reverted() -> None:
    bench = connected()
    queue = bench.open(URI)
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
    body = bench.broker.requests[0].body
    assert isinstance(body, ConfigureStream)
    assert [s.expression.text for s in body.stream_parameters.subscriptions] == [""]
    bench.answer()
    assert queue.state is QueueState.OPEN
    assert not bench.broker.requests


def broker_takes_a_change_late() -> tuple[Bench, QueueCore]:
    """Return a queue with a change that timed out, and is accepted while a second change is outstanding."""
    bench = connected()
    queue = bench.open(URI)
    bench.configure(queue, "x > 1", timeout=5)
    bench.wait(5)
    bench.configure(queue, "y > 1", timeout=5)
    bench.answer()
    return bench, queue


def test_a_late_configuration_is_reverted_when_the_next_change_is_refused() -> None:
    bench, queue = broker_takes_a_change_late()
    bench.refuse()
    assert isinstance(bench.completed[("y > 1",)][0], ConfigureQueueError)
    assert expressions(bench) == [""]
    bench.answer()
    assert queue.state is QueueState.OPEN
    assert not bench.broker.requests
    bench.configure(queue, "z > 1")  # all is well again: a refusal needs no repair
    bench.refuse()
    assert not bench.broker.requests
    assert not bench.failures


@pytest.mark.parametrize("answered", [True, False])
def test_a_reconnect_removes_a_late_configuration_that_the_broker_refuses_to_replace(answered: bool) -> None:
    bench, queue = broker_takes_a_change_late()
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


def test_messages_find_their_consumer_however_many_changes_stayed_unanswered() -> None:
    bench = connected()
    foo = bench.open("bmq://d/q?id=foo", READ, subscriptions=("x > 1", "x < 1"))
    bench.open("bmq://d/q?id=bar", READ)
    agreed = bench.broker.s_ids[foo.q_id][0]
    for number in range(5):
        bench.configure(foo, f"unanswered > {number}", timeout=5)
        bench.wait(5)
    bench.push(foo, 1, s_id=agreed)  # the broker has none of the changes
    assert [owner for owner, _ in bench.received] == ["x > 1"]
    bench.configure(foo, "y > 1")
    bench.answer_all()
    bench.push(foo, 2, s_id=agreed)  # routed before the change
    assert [owner for owner, _ in bench.received] == ["x > 1", "x > 1"]


def test_refused_change_keeps_an_earlier_unanswered_change() -> None:
    bench = connected()
    queue = bench.open(URI)
    (added,) = bench.subscriptions(["x > 1"])
    bench.core.configure_queue(queue, [added], "unanswered", bench.now + 5)
    bench.pump()
    s_id = bench.broker.s_ids[queue.q_id][-1]
    bench.wait(5)
    bench.broker.requests.clear()
    bench.core.configure_queue(queue, [added, *bench.subscriptions(["y > 1"])], "refused", bench.now + 60)
    bench.pump()
    bench.refuse()
    assert [type(bench.completed[token][0]) for token in ("unanswered", "refused")] == [
        RequestTimeout,
        ConfigureQueueError,
    ]
    bench.push(queue, 1, s_id=s_id)  # the broker has applied the change
    assert [owner for owner, _ in bench.received] == ["x > 1"]


def test_each_change_has_its_own_deadline() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.configure(queue, "a > 1", timeout=50)
    bench.configure(queue, "b > 1", timeout=5)
    bench.wait(5)
    assert isinstance(bench.completed[("b > 1",)][0], RequestTimeout)
    assert ("a > 1",) not in bench.completed
    bench.answer_all()
    assert bench.completed[("a > 1",)] == [None]


def test_changes_while_disconnected_wait_and_time_out() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.configure(queue, "a > 1", timeout=5)
    bench.lose()
    bench.configure(queue, "b > 1", timeout=50)
    bench.wait(5)
    assert isinstance(bench.completed[("a > 1",)][0], RequestTimeout)
    bench.connect()
    bench.answer()
    body = bench.broker.requests[0].body
    assert isinstance(body, ConfigureStream)
    assert [s.expression.text for s in body.stream_parameters.subscriptions] == ["b > 1"]
    bench.answer()
    assert bench.completed[("b > 1",)] == [None]
    assert not bench.broker.requests


# the reports to the layer above


@pytest.mark.parametrize("how", ["refused", "timeout"])
def test_failed_change_fails_the_changes_waiting_behind_it(how: str) -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.configure(queue, "agreed > 1")
    bench.answer()
    agreed = queue.subscriptions.wanted
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
    assert bench.signals[-4:] == ["StreamConfigured", "Completed", "Completed", "Completed"]
    # Wanted, asked and agreed subscriptions are equal, and no further request is sent.
    assert queue.subscriptions.wanted is queue.subscriptions.agreed is agreed
    assert [sub.expression for sub in queue.subscriptions.committed] == ["agreed > 1"]
    assert not bench.broker.requests
    bench.lose()
    bench.connect()
    bench.answer()
    assert expressions(bench) == ["agreed > 1"]


# reopened, while posts of other queues are pending


OTHER = "bmq://bmq.test.mem.priority/other"


def reopened_before_the_other(bench: Bench) -> tuple[QueueCore, QueueCore]:
    """Two queues after a reconnect; only the first was answered."""
    queue, other = bench.open(URI), bench.open(OTHER)
    bench.lose()
    bench.connect()
    bench.answer_queue(queue)
    assert queue.state is QueueState.REOPENED
    return queue, other


def test_a_reopened_queue_takes_messages_confirmations_and_posts() -> None:
    bench = connected()
    queue, _ = reopened_before_the_other(bench)
    assert queue.in_use
    assert queue.attached
    assert not queue.sending
    bench.push(queue, 7)
    bench.core.confirm(queue, guid(7))
    bench.post(queue, 1)
    assert [each.guid for each in bench.broker.confirms] == [guid(7)]
    assert bench.broker.puts == []
    assert queue.unacked == 1
    bench.wait(1)  # the second queue takes too long
    assert queue.state is QueueState.OPEN
    assert bench.ack_all() == [1]
