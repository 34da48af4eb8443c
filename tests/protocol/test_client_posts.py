# SPDX-License-Identifier: Apache-2.0
"""The client core's posts: outcomes, retransmission, and expiry."""

from __future__ import annotations

from random import Random

import pytest

from bmq.errors import (
    AckStatus,
    ConnectionFailed,
    UsageError,
)
from bmq.protocol.client.core import CoreOptions
from bmq.protocol.client.events import QueueReopened
from bmq.protocol.client.queue import QueueState
from bmq.wire.constants import PutFlags
from tests.protocol.bench import WRITE, Bench, connected, guid
from tests.sweeps import sweep

URI = "bmq://bmq.test.mem.priority/q"
OTHER = "bmq://bmq.test.mem.priority/other"


def sent(bench: Bench) -> list[int]:
    """The numbers of arrived posts, in order."""
    return [int(put.data) for put in bench.broker.puts]


# outcomes


def test_single_posts_of_one_turn_are_one_batch_until_a_caller_waits_for_them() -> None:
    bench = connected()
    queue = bench.open(URI)
    posts = bench.core.posts
    bench.post(queue, 1, 2)
    waiting_for = posts.last_batch
    assert len(posts.batches) == 1
    posts.seal()
    bench.post(queue, 3)
    assert len(posts.batches) == 2
    assert posts.first_batch(queue) == waiting_for
    first, second, third = bench.broker.puts
    bench.send(bench.broker.ack([first, second]))
    assert posts.first_batch(queue) > waiting_for
    bench.send(bench.broker.ack([third]))
    assert bench.outcomes == {number: [AckStatus.SUCCESS] for number in (1, 2, 3)}
    assert not posts.batches


@sweep(
    "status",
    [
        AckStatus.LIMIT_MESSAGES,
        AckStatus.LIMIT_BYTES,
        AckStatus.STORAGE_FAILURE,
        AckStatus.NOT_READY,
        AckStatus.UNKNOWN,
    ],
)
@pytest.mark.statement("3.20")
def test_every_negative_acknowledgement_keeps_its_meaning(status: AckStatus) -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.post(queue, 1)
    bench.ack_all(status)
    assert bench.outcomes == {1: [status]}


def test_a_guid_cannot_be_posted_twice_while_the_first_has_no_outcome() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.post(queue, 1)
    with pytest.raises(UsageError, match="no outcome yet"):
        bench.post(queue, 1)
    bench.ack_all()
    bench.post(queue, 1)
    bench.ack_all()
    assert bench.outcomes == {1: [AckStatus.SUCCESS, AckStatus.SUCCESS]}


# one at a time


def test_confirmations_are_sent_before_a_post() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.core.confirm(queue, guid(9))
    bench.post(queue, 1)
    assert bench.broker.log[-2:] == ["CONFIRM", "PUT"]


def test_only_a_whole_event_accepts_a_post() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.post(queue, 1)
    acceptance = bench.broker.ack(bench.broker.puts)
    bench.send(acceptance[:20])
    assert bench.outcomes == {}
    bench.send(acceptance[20:])
    assert bench.outcomes == {1: [AckStatus.SUCCESS]}
    bench.send(acceptance)
    assert bench.outcomes == {1: [AckStatus.SUCCESS]}, "again, and nobody waits for it"
    bench.post(queue, 2)
    acceptance = bench.broker.ack(bench.broker.puts[1:])
    s_id = bench.broker.s_ids[queue.q_id][-1]
    message = bench.broker.push(queue.q_id, [(guid(8), acceptance)], (s_id,))
    begin = message.index(acceptance)
    end = begin + len(acceptance)
    bench.send(message[:begin], message[begin:end], message[end:])
    assert 2 not in bench.outcomes, "these bytes are the data of a message"
    assert [message.data for _, message in bench.received] == [acceptance]
    bench.send(acceptance)
    assert bench.outcomes[2] == [AckStatus.SUCCESS]


def test_single_post_is_resent_and_late_answers_of_the_old_connection_are_dropped() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.post(queue, 1)
    acceptance = bench.broker.ack(bench.broker.puts)
    bench.lose()
    bench.send(acceptance)
    assert bench.outcomes == {}
    bench.open_channel()
    bench.send(acceptance)
    assert bench.outcomes == {}
    assert isinstance(bench.failures[-1], ConnectionFailed), "it has not said hello"
    bench.lose()
    bench.connect()
    bench.answer_all()
    assert bench.ack_all() == [1]
    assert bench.outcomes == {1: [AckStatus.SUCCESS]}
    assert queue.counts.retransmitted == 1


@sweep("seed", range(50))
def test_each_post_of_repeated_guids_has_one_outcome(seed: int) -> None:
    random, bench, tokens = Random(seed), connected(), 0
    queue, other = bench.open(URI), bench.open(OTHER)
    unanswered = bench.broker.puts
    for _ in range(60):
        step, number = random.choice(("usual", "together", "ack", "ack", "cut")), random.randrange(3)
        if step == "cut":
            if random.random() < 0.2:
                unanswered.clear()
                bench.lose()
                bench.connect()
                bench.answer_all()
        elif step == "ack":
            if unanswered:
                event = bench.broker.ack([unanswered.pop(0)])
                at = random.choice((0, 20))
                bench.send(*filter(None, (event[:at], event[at:])))
        elif guid(number) not in bench.core.posts.entries:
            tokens += 1
            target = random.choice((queue, other))
            message = guid(number), b"%d" % number, int(PutFlags.ACK_REQUESTED), 0, 0
            if step == "together":
                bench.core.post_many(target, [message], tokens, bench.now)
            else:
                bench.core.post(target, *message[:2], tokens, bench.now)
            bench.pump()
    bench.ack_all()
    assert bench.outcomes == {token: [AckStatus.SUCCESS] for token in range(1, tokens + 1)}


# reconnecting


def test_queues_reopen_in_order_then_posts_are_sent_then_the_state_is_restored() -> None:
    bench = connected()
    queue, other = bench.open(URI), bench.open(OTHER)
    bench.post(other, 1)
    bench.lose()
    before = len(bench.happened)
    bench.connect()
    assert bench.broker.log == ["clientIdentity", "OpenQueue", "OpenQueue"]
    assert [r.body.handle_parameters.uri for r in bench.broker.requests] == [URI, OTHER]  # type: ignore[union-attr]
    bench.answer_all()
    assert bench.broker.log[-1] == "PUT"
    assert bench.names[before:] == ["Reconnected", "QueueReopened", "QueueReopened", "StateRestored"]
    assert bench.happened[-3] == QueueReopened(URI)
    assert queue.state is other.state is QueueState.OPEN


def test_a_slowly_reopening_queue_does_not_delay_other_queues() -> None:
    bench = connected(CoreOptions(reopen_timeout=60))
    slow, quick = bench.open(URI), bench.open(OTHER)
    bench.post(slow, 1)
    bench.post(quick, 2)
    bench.lose()
    bench.connect()
    waiting = bench.broker.requests.popleft()
    bench.answer_all()
    assert sent(bench) == []
    bench.wait(1.0)
    assert sent(bench) == [2]
    assert bench.names[-1] == "QueueReopened"
    bench.wait(30)
    bench.send(bench.broker.accept(waiting))
    bench.answer_all()
    assert sent(bench) == [2, 1]
    assert bench.names[-2:] == ["QueueReopened", "StateRestored"]


@pytest.mark.parametrize("size", [1, 700_000])
def test_a_half_sent_turn_is_rebuilt_not_resumed(size: int) -> None:
    bench = connected()
    queue = bench.open(URI)
    for number in (1, 2):
        bench.core.post(queue, guid(number), bytes(size), number, bench.now)
    assert bench.core.data_to_send(bench.now, 1)  # accepted by a transport that never sends
    bench.core.post(queue, guid(3), b"3", 3, bench.now)  # never taken
    bench.lose()
    bench.connect()
    bench.answer_all()
    assert [put.guid for put in bench.broker.puts] == [guid(1), guid(2), guid(3)]


# posts waiting too long


@pytest.mark.statement("4.29")
def test_a_post_unanswered_for_the_deduplication_time_is_a_timeout() -> None:
    bench = connected()
    queue = bench.begin_open(URI, WRITE)
    bench.answer(dedup_ms=10_000)
    bench.post(queue, 1)
    bench.wait(5)
    bench.post(queue, 2)
    bench.wait(4.9)
    assert bench.outcomes == {}
    bench.wait(1.2)
    assert bench.outcomes == {1: [AckStatus.TIMEOUT]}
    bench.wait(5)
    assert bench.outcomes == {1: [AckStatus.TIMEOUT], 2: [AckStatus.TIMEOUT]}
    bench.ack_all()
    assert bench.outcomes == {1: [AckStatus.TIMEOUT], 2: [AckStatus.TIMEOUT]}


def test_each_queue_has_its_own_deduplication_time() -> None:
    bench = connected()
    long = bench.open(URI)
    bench.post(long, 1)
    short = bench.begin_open(OTHER, WRITE)
    bench.answer(dedup_ms=2000)
    bench.post(short, 2)
    bench.wait(3.1)
    assert bench.outcomes == {2: [AckStatus.TIMEOUT]}
    bench.wait(300)
    assert bench.outcomes == {2: [AckStatus.TIMEOUT], 1: [AckStatus.TIMEOUT]}


def test_sent_posts_are_not_resent_without_deduplication() -> None:
    bench = connected()
    queue = bench.begin_open(URI, WRITE)
    bench.answer(dedup_ms=0)
    bench.post(queue, 1)
    bench.wait(1000)
    assert bench.outcomes == {}  # connected, the broker may take its time
    bench.lose()
    assert bench.outcomes == {1: [AckStatus.TIMEOUT]}
    bench.post(queue, 2)  # not sent so far
    bench.connect()
    bench.answer_all(dedup_ms=0)
    assert sent(bench) == [2]


def test_a_post_that_was_never_sent_survives_a_second_loss_without_deduplication() -> None:
    bench = connected()
    queue = bench.begin_open(URI, WRITE)
    bench.answer_all(dedup_ms=0)
    bench.lose()
    bench.post(queue, 1)  # without a connection, the post waits
    bench.connect()
    bench.lose()  # before the queue was open again
    assert bench.outcomes == {}
    bench.connect()
    bench.answer_all(dedup_ms=0)
    assert sent(bench) == [1]
    bench.ack_all()
    assert bench.outcomes == {1: [AckStatus.SUCCESS]}
