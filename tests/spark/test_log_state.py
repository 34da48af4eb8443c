# SPDX-License-Identifier: Apache-2.0
"""A stream that restarts after a change loses and duplicates nothing, or refuses with the reason."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types

import bmq
import bmq.admin
from bmq.arrow.decoding import pa
from bmq.broker import AppSubscription, Broker, DomainConfig, Mode
from bmq.spark import receiver, stream_reader
from bmq.spark.log import LogPartition, read_partition
from bmq.spark.receiver import DropCounts
from bmq.spark.schema import OnInvalidMessage
from tests.spark.bench import BAD, WHOLE, BrokerThread, Query, Stage, logged_file, numbers, struct
from tests.waiting import until_depth


class Restartable(Query):
    """A query with Spark's own checkpoint, in which it continues."""

    def __init__(self, stage: Stage, folder: Path | None = None, **options: Any) -> None:
        super().__init__(stage, folder, **options)
        self._offsets, self._commits = self.folder / "offsets", self.folder / "commits"
        self._offsets.mkdir(exist_ok=True)
        self._commits.mkdir(exist_ok=True)
        self._number = len(list(self._commits.iterdir()))
        if self._number:
            self.start = self._planned(self._number - 1)

    def _planned(self, number: int) -> dict[str, Any]:
        end: dict[str, Any] = json.loads((self._offsets / f"{number}").read_text().splitlines()[2])
        return end

    def plan(self) -> dict[str, Any]:
        """Have a batch, and note it as Spark does."""
        if not (self._offsets / f"{self._number}").exists():
            self.note(f"v1\n{{}}\n{json.dumps(self.arrived())}")
        return self._planned(self._number)

    def note(self, text: str) -> None:
        (self._offsets / f"{self._number}").write_text(text)

    def commit(self, end: dict[str, Any]) -> None:
        (self._commits / f"{self._number}").touch()
        self._number += 1
        self.start = end

    def batch(self) -> list[str]:
        end = self.plan()
        rows = self.rows(self.start, end)
        self.commit(end)
        return rows


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is confirmed but by what the test does: Spark's commits are not looked at."""

    async def nothing(_: Any) -> None:
        pass

    monkeypatch.setattr(stream_reader, "_LOOK", 3600.0)
    monkeypatch.setattr(stream_reader.StreamReceiver, "_commit_known", nothing)


@pytest.fixture
def interrupted(quick: None, stage: Stage) -> Restartable:
    """A query that ended within the batch of the numbers 0 to 5."""
    query = Restartable(stage)
    stage.post(0, 6)
    query.plan()
    query.stop()
    return query


@pytest.fixture
def between(interrupted: Restartable) -> None:
    """A query that ended after the batch of the numbers 0 to 5, which is not confirmed."""
    interrupted.commit(interrupted.plan())


def goes_on(query: Restartable) -> None:
    assert query.latest() == query.start
    query.stop()


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        pass


CHANGES: dict[str, dict[str, Any]] = {
    "expression": {"expression": "!exists(n)"},
    "properties": {"propertiesSchema": "n BIGINT"},
    "partitions": {"numPartitions": 3},
    "trigger": {"maxMessagesPerTrigger": 2},
    "receivers": {"numReceivers": 2},
    "invalid": {"onInvalidMessage": "drop"},
    "nothing": {},
}


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_a_batch_neither_loses_nor_duplicates_messages(stage: Stage, change: str) -> None:
    stage.post(6, 9)
    again = Restartable(stage, **CHANGES[change])
    assert again.batch() == numbers(0, 6)
    assert again.upto(3) == numbers(6, 9)
    goes_on(again)
    assert stage.left() == []


@pytest.mark.usefixtures("between")
def test_committed_messages_are_confirmed_after_a_changed_subscription(stage: Stage) -> None:
    goes_on(Restartable(stage, expression="n >= 100"))
    assert stage.left() == []


@pytest.mark.usefixtures("quick")
def test_committed_messages_of_a_removed_queue_are_confirmed(stage: Stage) -> None:
    query = Restartable(stage, queue=f"{stage.queue},{stage.queue}-too")
    stage.broker.post(f"{stage.queue}-too", [b"0", b"1", b"2", b"3"])
    assert query.batch() == numbers(0, 4)
    query.stop()
    goes_on(Restartable(stage))
    assert stage.left(f"{stage.queue}-too") == []


@pytest.mark.usefixtures("quick")
def test_a_new_schema_decodes_the_interrupted_batch(stage: Stage) -> None:
    stage.broker.post(stage.queue, [bmq.PutMessage(b"x", {"n": 7, "kind": "new"})])
    old = struct(value=types.BinaryType(), properties=struct(n=types.LongType()))
    query = Restartable(stage, schema=old, propertiesSchema="n BIGINT")
    query.plan()
    query.stop()
    new = struct(value=types.BinaryType(), properties=struct(n=types.LongType(), kind=types.StringType()))
    again = Restartable(stage, schema=new, propertiesSchema="n BIGINT, kind STRING")
    (row,) = again.records(again.start, again.plan())
    assert row["properties"] == {"n": 7, "kind": "new"}


@pytest.mark.usefixtures("between")
@pytest.mark.parametrize("lost", ["bmq", "bmq/*.arrow"], ids=["folder", "batches"])
def test_missing_log_is_refused_before_any_duplicate(stage: Stage, lost: str) -> None:
    lose(stage.folder, lost)
    again = Restartable(stage)
    with pytest.raises(
        bmq.StateError, match=r"not have the last of them: .*failOnDataLoss=false, the query continues"
    ):
        again.latest()
    again.stop()
    assert stage.left() == numbers(0, 6)


def lose(folder: Path, pattern: str = "bmq") -> None:
    """Remove a log: its folder, or its batches."""
    for path in folder.glob(pattern):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.usefixtures("between")
def test_a_missing_log_is_reported_once_without_fail_on_data_loss(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.left()
    lose(stage.folder)
    goes_on(Restartable(stage, failOnDataLoss="false"))
    assert "the query continues and may duplicate the last commit" in caplog.text
    stage.post(6, 8)
    third = Restartable(stage)
    assert third.batch() == numbers(6, 8)
    third.stop()


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_batch_without_its_log_is_read_later(stage: Stage) -> None:
    lose(stage.folder)
    with pytest.raises(bmq.StateError, match="messages 0 to 6 of this query are in its checkpoint"):
        Restartable(stage).batch()
    again = Restartable(stage, failOnDataLoss="false")
    assert [again.batch(), again.batch()] == [[], numbers(0, 6)]
    again.stop()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("half", [False, True], ids=["between", "within"])
def test_the_log_of_another_query_is_refused(stage: Stage, half: bool) -> None:
    query = Restartable(stage, stage.folder / "one", logPath=stage.folder / "log")
    stage.post(0, 6)
    end = query.plan()
    if not half:
        query.commit(end)
    query.stop()
    (stage.folder / "two").mkdir()
    (stage.folder / "two" / "metadata").write_text('{"id":"two"}')
    again = Restartable(stage, stage.folder / "two", logPath=stage.folder / "log")
    with pytest.raises(bmq.StateError, match="belongs to query one, and the checkpoint to query two"):
        again.rows(again.start, end) if half else again.latest()
    again.stop()


def test_committed_messages_are_confirmed_while_spark_is_idle(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "_LOOK", 0.01)
    query = Restartable(stage, maxMessagesPerTrigger=4)
    stage.post(0, 7)
    query.batch()
    end = query.plan()  # handed out, and not committed
    stage.broker.call(lambda b: until_depth(b.uri, stage.queue, 3))
    query.commit(end)
    stage.broker.call(lambda b: until_depth(b.uri, stage.queue, 0))
    query.stop()


def test_sources_of_one_query_are_distinguished_by_name(stage: Stage) -> None:
    """Spark's checkpoint has an offset of each source; a source does not take the other's offset."""
    stage.post(0, 3)
    one = Restartable(stage, sourceName="one")
    two = Restartable(stage, queue=f"{stage.queue}-2", sourceName="two")
    ends = [one.latest(), two.latest()]
    assert ends == [{"messages": 3, "source": "one"}, {"messages": 0, "source": "two"}]
    one.note("\n".join(["v1", "{}", *map(json.dumps, reversed(ends))]))
    one.commit(ends[0])
    one.stop()
    two.stop()
    assert stage.left() == []


@pytest.mark.parametrize(
    "text",
    [
        'v1\n{}\n{"messages": 3}\n{"messages": 3}',  # of which source?
        "",
        "v1",
        "v1\n{}\n-\n{",
        'v1\n{}\n{"messages": 99999}',
        "v1\n{}\n[1]",
    ],
)
def test_unreadable_checkpoint_confirms_no_message(stage: Stage, text: str) -> None:
    query = Restartable(stage)
    stage.post(0, 3)
    end = query.plan()
    query.note(text)
    query.commit(end)
    query.stop()
    assert stage.left() == numbers(0, 3)


def test_other_readers_of_the_queue_are_named(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    fanout = f"bmq://bmq.test.mem.fanout/{stage.queue.rpartition('/')[2]}"
    both = f"{stage.queue},{fanout}?id=foo"
    readers = [
        Restartable(stage, stage.folder / name, queue=queue)
        for name, queue in (("one", both), ("two", f"{fanout}?id=bar"), ("three", both))
    ]
    for each in readers:
        assert "other consumers read the same queue" not in caplog.text
        each.latest()
    (line,) = [text for text in caplog.messages if "other consumers read the same queue" in text]
    assert f"{stage.queue}: " in line
    assert f"{fanout}?id=foo: " in line
    for each in readers:
        each.stop()


@pytest.fixture
def totals(queue: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The broker's count of dropped messages of the queue."""
    counts = {queue: 3}

    async def dropped(*_: Any) -> dict[str, DropCounts]:
        return {uri: DropCounts(count) for uri, count in counts.items()}

    monkeypatch.setattr(receiver, "dropped_totals", dropped)
    return counts


def test_dropped_messages_are_an_error_once(stage: Stage, totals: dict[str, int]) -> None:
    query = Restartable(stage)
    stage.post(0, 2)
    assert query.batch() == numbers(0, 2)
    query.stop()
    totals[stage.queue] += 5
    again = Restartable(stage)
    with pytest.raises(
        bmq.StateError, match=rf"the broker has dropped .*: 5 of {stage.queue}\. The messages are lost"
    ):
        again.latest()
    again.stop()
    goes_on(Restartable(stage))


def test_dropped_messages_are_in_the_progress(
    stage: Stage, totals: dict[str, int],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(stream_reader, "_LOOK", 0.01)
    monkeypatch.setattr(stream_reader, "_ASK", 0.0)
    query = Restartable(stage, failOnDataLoss="false")
    query.latest()
    totals[stage.queue] += 5
    until(lambda: query.runner.reportLatestOffset().get("dropped") == {stage.queue: 5})
    totals[stage.queue] = 2  # the broker has started anew
    until(lambda: query.runner.reportLatestOffset().get("dropped") == {stage.queue: 7})
    query.stop()

    def warned() -> list[int]:
        return [record.levelno for record in list(caplog.records) if "has dropped" in record.getMessage()]

    until(lambda: warned() == [logging.WARNING] * 2)  # a thread of its own writes the log


@pytest.mark.parametrize("kind", ["fanout", "subscribed"])
def test_messages_without_a_reader_are_not_lost(tmp_path: Path, kind: str) -> None:
    config = {
        "fanout": DomainConfig(name="simple", mode=Mode.FANOUT, app_ids=("one", "other")),
        "subscribed": DomainConfig(
            name="simple", mode=Mode.PRIORITY, subscriptions=(AppSubscription("", "n < 5"),)
        ),
    }[kind]

    async def purge(b: Broker) -> None:
        async with bmq.admin.connect(b.uri) as admin:
            await admin.queue("bmq://simple/queue?id=other").purge()

    with BrokerThread(domains=[config]) as broker:
        stage = Stage(broker, "bmq://simple/queue", tmp_path)
        read_from = {"queue": f"{stage.queue}?id=one"} if kind == "fanout" else {}
        query = Restartable(stage, **read_from)
        stage.post_values(range(5))
        assert query.batch() == numbers(0, 5)
        query.stop()
        stage.post_values([4, 5, 6])
        if kind == "fanout":
            broker.call(purge)
        again = Restartable(stage, **read_from)
        assert again.batch()[0] == "4"
        again.stop()


def test_messages_that_cannot_be_decoded_are_put_aside_and_confirmed(stage: Stage) -> None:
    stage.post_bad_between()
    query = Restartable(stage, **stage.dead)
    assert query.upto(2) == ["good", "too"]
    query.stop()
    assert stage.letters() == BAD
    assert stage.left() == []


def test_failed_batch_continues_with_another_policy(stage: Stage) -> None:
    stage.post_bad_between()
    query = Restartable(stage, onInvalidMessage="fail", maxMessagesPerTrigger=6, lingerMs=1000)
    with pytest.raises(bmq.ProtocolError, match=r"onInvalidMessage \(row, drop\) the query"):
        query.batch()
    query.stop()
    again = Restartable(stage, onInvalidMessage="drop")
    assert again.batch() == ["good", "too"]
    again.stop()
    assert stage.left() == []


@pytest.mark.parametrize(("kept", "length"), [(0, 0), (3, 0), (900, 0), (8, 900), (8, 100_000)])
def test_a_damaged_file_is_named_with_a_remedy(tmp_path: Path, kept: int, length: int) -> None:
    """As after a crash: the file is cut, or some of it is zeros."""
    path = logged_file(tmp_path, rows=5)
    whole = path.read_bytes()
    partition = LogPartition(str(tmp_path), str(path), 0, 5)
    assert len(next(read_partition(partition, WHOLE, OnInvalidMessage.ROW))) == 5
    path.write_bytes(whole[:kept] + (bytes(length) + whole[kept + length :] if length else b""))
    remedy = r"is empty or damaged .*delete the file, and start the query once with failOnDataLoss"
    with pytest.raises(bmq.StateError, match=remedy) as caught:
        list(read_partition(partition, WHOLE, OnInvalidMessage.ROW))
    assert str(path) in str(caught.value)


def resident() -> int:
    """Return the bytes of files in this process's memory; 0 on systems that do not tell."""
    status = Path("/proc/self/status")
    found = re.search(r"RssFile:\s+(\d+) kB", status.read_text(encoding="utf-8")) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def test_a_task_keeps_no_page_of_its_log(tmp_path: Path) -> None:
    path = str(logged_file(tmp_path, 128, 48, bytes(8 * 1024)))
    before, most, rows = resident(), 0, 0
    held = pa.total_allocated_bytes()
    partition = LogPartition(str(tmp_path), path, 0, 48 * 128)
    for batch in read_partition(partition, WHOLE, OnInvalidMessage.ROW):
        rows += batch.num_rows
        most = max(most, resident() - before, pa.total_allocated_bytes() - held)
    assert rows == 48 * 128
    assert most < 12 << 20, "the log has 48 MiB"
