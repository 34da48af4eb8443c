# SPDX-License-Identifier: Apache-2.0
"""Streams: batches, their limits and ends, the log between triggers, and connections that are cut."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bmq
from bmq.spark.connection import ConnectionOptions, run, shutdown
from bmq.spark.options import ReadOptions, parse
from bmq.spark.receiver import SourceReceiver, new_messages
from tests.spark.bench import (
    NOWHERE,
    WHOLE,
    BrokerThread,
    OldQuery,
    Query,
    Stage,
    cut,
    numbers,
    source,
)
from tests.sweeps import sweep
from tests.waiting import eventually


def test_stream_confirms_committed_messages_only(stage: Stage) -> None:
    query = Query(stage, maxMessagesPerTrigger=6)
    stage.post(0, 10)
    assert query.batch() == numbers(0, 6)
    assert query.latest() == {"messages": 10}  # proves the first six, and hands out the rest
    query.stop()
    assert stage.left() == numbers(6, 10)


@pytest.mark.parametrize(
    ("limits", "texts", "batches"),
    [
        ({"maxMessagesPerTrigger": 4}, numbers(0, 10), [numbers(0, 4), numbers(4, 8), numbers(8, 10)]),
        (
            {"maxBytesPerTrigger": "2k"},
            [each * size for each, size in zip("abcdef", (1000, 1000, 5000, 600, 400, 1), strict=True)],
            [["a" * 1000, "b" * 1000], ["c" * 5000], ["d" * 600, "e" * 400, "f"]],
        ),
    ],
    ids=["messages", "bytes"],
)
def test_a_batch_keeps_its_limits(
    limits: dict[str, Any], texts: list[str], batches: list[list[str]], stage: Stage
) -> None:
    query = Query(stage, **limits)
    stage.broker.post(stage.queue, [text.encode() for text in texts])
    assert [query.batch() for _ in range(5)] == [*batches, [], []]
    query.stop()
    assert stage.left() == []


def test_a_crash_replays_exactly_the_logged_range(stage: Stage) -> None:
    query = Query(stage, numPartitions=3)
    stage.post(0, 5)
    assert query.batch() == numbers(0, 5)
    stage.post(5, 12)
    start, end = query.start, query.latest()
    assert len(query.runner.partitions(start, end)) == 3
    query.stop()  # in the middle of the batch
    stage.post(12, 15)

    again = Query(stage)
    assert again.rows(start, end) == numbers(5, 12)
    again.start = end  # committed
    assert [again.batch(), again.batch()] == [numbers(12, 15), []]  # messages are not handed out again
    again.stop()
    assert stage.left() == []


@pytest.mark.parametrize("ends", ["idleTimeoutMs", "maxMessages"])
def test_available_now_ends(ends: str, stage: Stage) -> None:
    last = 8 if ends == "maxMessages" else 10
    query = Query(stage, maxMessagesPerTrigger=6, **{ends: 8 if ends == "maxMessages" else 300})
    query.runner.prepareForTriggerAvailableNow()
    stage.post(0, 10)
    assert [query.batch() for _ in range(3)] == [numbers(0, 6), numbers(6, last), []]
    stage.post(10, 11)
    assert query.batch() == []
    query.stop()


@pytest.mark.usefixtures("uncounted")
def test_a_slow_sink_is_no_drained_queue(stage: Stage) -> None:
    """The window of the consumer is full for longer than ``idleTimeoutMs``."""
    query = Query(stage, idleTimeoutMs=100, maxMessagesPerTrigger=5)
    query.runner.prepareForTriggerAvailableNow()
    stage.post(0, 40)
    rows = []
    while batch := query.batch():
        rows += batch
        time.sleep(0.4)  # the sink: nothing to wait for, since nothing happens
    assert rows == numbers(0, 40)
    query.stop()


@pytest.mark.usefixtures("uncounted")
def test_a_lost_broker_is_no_drained_queue(queue: str) -> None:
    with BrokerThread() as broker:
        broker.post(queue, [b"x"])
        given = {"broker": broker.uri, "queue": queue, "idletimeoutms": "200", "reconnecttimeoutms": "1000"}
        receiver = SourceReceiver(parse(ReadOptions, given))
        run(receiver.open())
        (taken,) = run(receiver.take(10, 20, drains=True))
        assert taken.batch.num_rows == 1
        broker.stop()
        with pytest.raises(bmq.SessionClosed):
            run(receiver.take(10, 0.2, drains=True))


def test_messages_of_the_start_in_other_hands_are_a_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.post(0, 5)
    options = {"broker": stage.broker.uri, "queue": stage.queue}
    receiver = SourceReceiver(parse(ReadOptions, options))
    run(receiver.open())
    run(receiver.take(5, 10))
    assert stage.values() == []
    run(receiver.close())
    assert f"{stage.queue}: the broker counted 5 messages at the start, and delivered 0" in caplog.text


#: Messages that are selected, of those in the queue.
@pytest.mark.parametrize(("expression", "most"), [("", 10), ("n >= 5", 5)])
@pytest.mark.parametrize("way", ["read", "availableNow"])
def test_a_run_ends_with_the_messages_of_its_start(
    way: str, expression: str, most: int, stage: Stage
) -> None:
    """A producer posts more often than ``idleTimeoutMs``, and goes on for as long as the run takes."""
    stage.post_values(range(10))
    options = {"expression": expression, "idleTimeoutMs": 2000}
    with stage.broker.posting(stage.queue, bmq.PutMessage(b"later", {"n": 7}), 0.2):
        if way == "read":
            rows = stage.values(**options)
        else:
            query = Query(stage, **options)
            query.runner.prepareForTriggerAvailableNow()
            rows = []
            while batch := query.batch():
                rows += batch
            query.stop()
    assert rows[:most] == numbers(10 - most, 10)
    assert len(rows) < most + 50  # the messages of about ten seconds


def test_a_small_batch_is_held_back(stage: Stage) -> None:
    query = Query(stage, minMessagesPerTrigger=5, maxTriggerDelay="1h", pollTimeoutMs=50)
    stage.post(0, 3)
    assert [query.batch() for _ in range(10)] == [[]] * 10
    stage.post(3, 6)
    assert query.upto(1) == numbers(0, 6)
    query.stop()


def test_a_small_batch_goes_after_a_delay(stage: Stage) -> None:
    query = Query(stage, minMessagesPerTrigger=5, maxTriggerDelay="500ms", pollTimeoutMs=50)
    stage.post(0, 3)
    begun = time.monotonic()
    assert query.upto(1) == numbers(0, 3)
    assert time.monotonic() - begun > 0.4
    query.stop()


def test_a_batch_that_is_full_is_not_held_back(stage: Stage) -> None:
    options = {"minMessagesPerTrigger": 5, "maxTriggerDelay": "1h", "maxBytesPerTrigger": 2}
    query = Query(stage, **options)
    stage.post(0, 4)
    assert [query.batch(), query.batch()] == [numbers(0, 2), numbers(2, 4)]
    query.stop()


# older engines


@sweep("option", ["idleTimeoutMs", "maxMessages", "minMessagesPerTrigger"])
def test_options_unsupported_by_an_old_engine_are_refused_by_name(option: str) -> None:
    query = source(queue=NOWHERE, checkpointLocation="/x", **{option: 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bmq.spark.stream_reader.READ_LIMITS", False)
        with pytest.raises(
            bmq.UsageError, match=rf"option {option} needs pyspark 4\.2 or newer, and this is"
        ):
            query.streamReader(WHOLE).initialOffset()


def test_filters_are_refused_by_name_where_spark_pushes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pyspark.sql.datasource.EqualTo", raising=False)
    monkeypatch.setattr("pyspark.__version__", "4.0.1")
    with pytest.raises(bmq.UsageError, match=r"pushFilters needs pyspark 4\.1 or newer, and this is 4\.0\.1"):
        source(queue=NOWHERE, pushFilters="true").reader(WHOLE)


def test_old_engine_without_a_commit_confirms_no_message(stage: Stage) -> None:
    query = OldQuery(stage)
    stage.post(0, 10)
    assert query.latest() == {"messages": 10}
    stage.broker.call(lambda b: b.faults.disconnect())
    stage.post(10, 12)
    while query.latest() != {"messages": 12}:
        pass  # redelivered: the first ten, before the rest
    query.stop()
    assert stage.left() == numbers(0, 12)


def test_old_engine_confirms_committed_messages_only(stage: Stage) -> None:
    query = OldQuery(stage, maxMessagesPerTrigger=6)
    stage.post(0, 10)
    assert [query.batch(), query.batch()] == [numbers(0, 6), numbers(6, 10)]
    query.stop()
    assert stage.left() == numbers(6, 10)


def test_old_engine_gets_messages_received_ahead(stage: Stage) -> None:
    """The engine does not report its progress: the complete log is its next batch."""
    query = OldQuery(stage, maxMessagesPerTrigger=4)
    stage.post(0, 20)
    rows = query.batch()
    while len(logged(stage.folder)) < 3:
        query.runner.reportLatestOffset()
    cut(stage.broker)
    query.stop()

    again = OldQuery(stage, maxMessagesPerTrigger=4)
    again.start = query.start
    while len(rows) < 20:
        rows += again.batch()
        again.runner.commit(again.start)
    assert rows == numbers(0, 20)
    again.stop()
    assert stage.left() == []


def logged(folder: Path) -> list[str]:
    """Return the complete batches, by their first and last number."""
    names = [path.stem for path in folder.rglob("*.arrow")]
    return sorted(f"{int(name[:20])}-{int(name[21:])}" for name in names)


def test_the_time_between_triggers_is_used_for_receiving(stage: Stage) -> None:
    """While Spark processes a batch, two more are written; batches unknown to Spark are received again."""
    query = Query(stage, maxMessagesPerTrigger=4)
    assert query.runner.reportLatestOffset() is None
    stage.post(0, 4)
    start, end = query.start, query.latest()
    stage.post(4, 20)
    while len(logged(stage.folder)) < 3:
        assert query.latest() == end  # no further message is handed out before the commit of this batch
    assert logged(stage.folder) == ["0-4", "4-8", "8-12"]
    while query.runner.reportLatestOffset()["messages"] < 12:
        pass  # for Spark's progress
    cut(stage.broker)
    query.stop()

    again = Query(stage, maxMessagesPerTrigger=6)
    assert again.rows(start, end) == numbers(0, 4)
    again.start = end  # committed
    assert again.upto(16) == numbers(4, 20)
    assert again.batch() == []
    again.stop()
    assert stage.left() == []


def test_batch_received_before_a_cut_is_delivered_once(stage: Stage) -> None:
    query = Query(stage, maxMessagesPerTrigger=4)
    stage.post(0, 20)
    rows = query.batch()
    while len(logged(stage.folder)) < 3:
        query.runner.reportLatestOffset()
    cut(stage.broker)
    assert rows + query.upto(16) == numbers(0, 20)
    assert query.batch() == []
    query.stop()
    assert stage.left() == []


def test_several_receivers_share_a_queue(stage: Stage) -> None:
    """One receiver is cut off meanwhile; its messages are redelivered to the receivers, none twice."""
    others = stage.broker.call(lambda b: set(b._connections))
    query = Query(stage, numReceivers=3, maxMessagesPerTrigger=20)
    stage.post(0, 30)
    rows = query.batch()

    async def cut_one(b: bmq.broker.Broker) -> None:
        """Cut a receiver, after the posting sessions have gone."""
        await eventually(lambda: len(set(b._connections) - others) == 3)
        next(iter(set(b._connections) - others)).transport.abort()

    stage.broker.call(cut_one)
    stage.post(30, 60)
    rows += query.upto(60 - len(rows))
    assert sorted(map(int, rows)) == list(range(60))
    assert query.batch() == []
    query.stop()
    assert stage.left() == []


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full when a file reaches the given size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("engine", [Query, OldQuery])
def test_half_a_batch_in_the_log_is_no_batch(stage: Stage, engine: type[Query]) -> None:
    text = "x" * 8_000_000
    stage.broker.post(stage.queue, [text.encode()])
    query = engine(stage)
    with files_of_at_most(4_000_000), pytest.raises(OSError, match="too large"):
        query.arrived()
    query.stop()
    again = engine(stage)
    assert again.upto(1) == [text]
    again.stop()


def test_log_drops_long_committed_batches(stage: Stage) -> None:
    query = Query(stage)
    kept: list[list[str]] = []
    for n in range(20):
        stage.post(n, n + 1)
        assert query.batch() == [f"{n}"]
        kept.append(logged(stage.folder))
    # One file a batch; after eight committed batches and the newest, each new batch replaces the oldest.
    assert [len(each) for each in kept] == [*range(1, 10), *[9] * 11]
    assert set(kept[-1]) == {f"{n}-{n + 1}" for n in range(11, 20)}
    query.stop()


def test_two_queries_cannot_share_a_log(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.spark.log._LOCK_PATIENCE", 0.1)
    one, other = Query(stage), Query(stage)
    one.latest()
    with pytest.raises(bmq.StateError, match="another query or source uses the log"):
        other.latest()
    one.stop()


def test_a_process_that_ends_closes_the_sessions_of_its_readers(broker: BrokerThread) -> None:
    """Spark does not always stop a reading stream."""
    session = run(ConnectionOptions(broker=broker.uri).open())
    shutdown()  # as at the end of the process
    assert session.state is bmq.SessionState.CLOSED


@given(st.lists(st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1), max_size=5))
def test_each_arrived_message_is_new_once(arrived: list[list[bytes]]) -> None:
    known, seen = set[bytes](), set[bytes]()
    for guids in arrived:
        expected = [at for at, guid in enumerate(guids) if guid not in seen and guid not in guids[:at]]
        seen.update(guids)
        fresh = new_messages(known, guids)
        assert (list(range(len(guids))) if fresh is None else fresh) == expected
        assert known == seen
