# SPDX-License-Identifier: Apache-2.0
"""A stream that restarts after a change loses and duplicates nothing, or refuses with the reason."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bmq
import bmq.admin
from bmq.broker import AppSubscription, DomainConfig, Mode
from bmq.spark import receiver, stream_reader
from bmq.spark.receiver import DropCounts
from tests.spark.brokers import BrokerThread
from tests.spark.readers import WHOLE, ask, read, source, struct, travelled
from tests.spark.test_datasource import BAD, left_in, numbers, post_bad_between, post_numbers


class Query:
    """Calls a stream's reader as Spark does, with Spark's own checkpoint."""

    def __init__(self, broker: BrokerThread, queue: str, folder: Path, **options: Any) -> None:
        self._schema = options.pop("schema", WHOLE)
        options = {"pollTimeoutMs": 300, "lingerMs": 50, **options}
        self._folder = folder
        self._source = source(broker=broker.uri, queue=queue, checkpointLocation=folder, **options)
        self.runner = self._source.streamReader(self._schema)
        self.start: dict[str, Any] = self.runner.initialOffset()
        self.number = 0
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if not (folder / "metadata").exists():
            (folder / "metadata").write_text('{"id":"one"}')
        for path in sorted((folder / "commits").iterdir(), key=lambda path: int(path.name)):
            self.number = int(path.name) + 1
            self.start = json.loads((folder / "offsets" / path.name).read_text().splitlines()[2])

    def plan(self) -> dict[str, Any]:
        """Have a batch, and note it as Spark does."""
        planned = self._folder / "offsets" / f"{self.number}"
        if planned.exists():
            return json.loads(planned.read_text().splitlines()[2])
        while (end := self.ask()) == self.start:
            pass
        planned.write_text(f"v1\n{{}}\n{json.dumps(end)}")
        return end

    def rows(self, end: dict[str, Any]) -> list[dict[str, Any]]:
        worker = travelled(self._source.streamReader(self._schema))
        partitions = travelled(self.runner.partitions(self.start, end))
        return [row for part in partitions for row in read(worker, part)]

    def commit(self, end: dict[str, Any]) -> None:
        (self._folder / "commits" / f"{self.number}").touch()
        self.number += 1
        self.start = end

    def batch(self) -> list[str]:
        end = self.plan()
        rows = [row["value"].decode() for row in self.rows(end)]
        self.commit(end)
        return rows

    def ask(self) -> dict[str, Any]:
        return ask(self.runner, self.start)

    def stop(self) -> None:
        self.runner.stop()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is confirmed but by what the test does: Spark's commits are not looked at."""
    monkeypatch.setattr(stream_reader, "_LOOK", 3600.0)
    monkeypatch.setattr(stream_reader.StreamReceiver, "_commit_known", _nothing)


async def _nothing(_: Any) -> None:
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


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_a_batch_neither_loses_nor_duplicates_messages(
    broker: BrokerThread, queue: str, tmp_path: Path, change: str
) -> None:
    query = Query(broker, queue, tmp_path)
    post_numbers(broker, queue, 0, 6)
    query.plan()
    query.stop()
    post_numbers(broker, queue, 6, 9)
    again = Query(broker, queue, tmp_path, **CHANGES[change])
    assert again.batch() == numbers(0, 6)
    rows: list[str] = []
    while len(rows) < 3:
        rows += again.batch()
    assert rows == numbers(6, 9)
    assert again.ask() == again.start
    again.stop()
    assert left_in(broker, queue) == []


@pytest.mark.usefixtures("quick")
def test_committed_messages_are_confirmed_after_a_changed_subscription(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    query = Query(broker, queue, tmp_path)
    broker.post(queue, [bmq.PutMessage(b"%d" % n, {"n": n}) for n in range(4)])
    assert query.batch() == numbers(0, 4)
    query.stop()
    again = Query(broker, queue, tmp_path, expression="n >= 100")
    assert again.ask() == again.start
    again.stop()
    assert left_in(broker, queue) == []


@pytest.mark.usefixtures("quick")
def test_committed_messages_of_a_removed_queue_are_confirmed(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    query = Query(broker, f"{queue},{queue}-too", tmp_path)
    post_numbers(broker, f"{queue}-too", 0, 4)
    assert query.batch() == numbers(0, 4)
    query.stop()
    again = Query(broker, queue, tmp_path)
    assert again.ask() == again.start
    again.stop()
    assert left_in(broker, f"{queue}-too") == []


@pytest.mark.usefixtures("quick")
def test_a_new_schema_decodes_the_interrupted_batch(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType

    broker.post(queue, [bmq.PutMessage(b"x", {"n": 7, "kind": "new"})])
    old = struct(value=BinaryType(), properties=struct(n=LongType()))
    query = Query(broker, queue, tmp_path, schema=old, propertiesSchema="n BIGINT")
    query.plan()
    query.stop()
    new = struct(value=BinaryType(), properties=struct(n=LongType(), kind=StringType()))
    again = Query(broker, queue, tmp_path, schema=new, propertiesSchema="n BIGINT, kind STRING")
    (row,) = again.rows(again.plan())
    assert row["properties"] == {"n": 7, "kind": "new"}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("lost", ["folder", "batches"])
def test_missing_log_is_refused_before_any_duplicate(
    broker: BrokerThread, queue: str, tmp_path: Path, lost: str
) -> None:
    query = Query(broker, queue, tmp_path)
    post_numbers(broker, queue, 0, 6)
    query.batch()
    query.stop()
    if lost == "folder":
        shutil.rmtree(tmp_path / "bmq")
    else:
        for path in (tmp_path / "bmq").glob("*.arrow"):
            path.unlink()
    again = Query(broker, queue, tmp_path)
    with pytest.raises(
        bmq.StateError, match=r"not have the last of them: .*failOnDataLoss=false, the query continues"
    ):
        again.ask()
    again.stop()
    assert left_in(broker, queue) == numbers(0, 6)


@pytest.mark.usefixtures("quick")
def test_a_missing_log_is_reported_once_without_fail_on_data_loss(
    broker: BrokerThread, queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(broker, queue, tmp_path)
    post_numbers(broker, queue, 0, 6)
    query.batch()
    query.stop()
    left_in(broker, queue)
    shutil.rmtree(tmp_path / "bmq")
    again = Query(broker, queue, tmp_path, failOnDataLoss="false")
    assert again.ask() == again.start
    again.stop()
    assert "the query continues and may duplicate the last commit" in caplog.text
    post_numbers(broker, queue, 6, 8)
    third = Query(broker, queue, tmp_path)
    assert third.batch() == numbers(6, 8)
    third.stop()


@pytest.mark.usefixtures("quick")
def test_an_interrupted_batch_without_its_log_is_read_later(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    query = Query(broker, queue, tmp_path)
    post_numbers(broker, queue, 0, 6)
    query.plan()
    query.stop()
    shutil.rmtree(tmp_path / "bmq")
    refused = Query(broker, queue, tmp_path)
    with pytest.raises(bmq.StateError, match="messages 0 to 6 of this query are in its checkpoint"):
        refused.batch()
    again = Query(broker, queue, tmp_path, failOnDataLoss="false")
    assert again.batch() == []
    assert again.batch() == numbers(0, 6)
    again.stop()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("half", [False, True], ids=["between", "within"])
def test_the_log_of_another_query_is_refused(
    broker: BrokerThread, queue: str, tmp_path: Path, half: bool
) -> None:
    query = Query(broker, queue, tmp_path / "one", logPath=tmp_path / "log")
    post_numbers(broker, queue, 0, 6)
    end = query.plan() if half else {}
    if not half:
        query.batch()
    query.stop()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "metadata").write_text('{"id":"two"}')
    again = Query(broker, queue, tmp_path / "two", logPath=tmp_path / "log")
    with pytest.raises(bmq.StateError, match="belongs to query one, and the checkpoint to query two"):
        again.rows(end) if half else again.ask()
    again.stop()


def test_committed_messages_are_confirmed_while_spark_is_idle(
    broker: BrokerThread, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "_LOOK", 0.01)
    query = Query(broker, queue, tmp_path, maxMessagesPerTrigger=4)
    post_numbers(broker, queue, 0, 7)
    query.batch()
    end = query.plan()  # handed out, and not committed
    until(lambda: depth(broker, queue) == 3)
    query.commit(end)
    until(lambda: depth(broker, queue) == 0)
    query.stop()


def test_ending_query_confirms_committed_batches(
    broker: BrokerThread, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "_LOOK", 3600.0)
    query = Query(broker, queue, tmp_path, maxMessagesPerTrigger=4)
    post_numbers(broker, queue, 0, 4)
    query.batch()
    query.stop()
    assert left_in(broker, queue) == []


def test_sources_of_one_query_are_distinguished_by_name(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    """Spark's checkpoint has an offset of each source; a source does not take the other's offset."""
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata").write_text('{"id":"one"}')
    post_numbers(broker, queue, 0, 3)
    options = {"broker": broker.uri, "checkpointLocation": tmp_path, "pollTimeoutMs": 300, "lingerMs": 50}
    one = source(queue=queue, sourceName="one", **options).streamReader(WHOLE)
    two = source(queue=f"{queue}-2", sourceName="two", **options).streamReader(WHOLE)
    ends = [ask(each, each.initialOffset()) for each in (one, two)]
    assert ends == [{"messages": 3, "source": "one"}, {"messages": 0, "source": "two"}]
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", "{}", *map(json.dumps, reversed(ends))]))
    (tmp_path / "commits" / "0").touch()
    one.stop()
    two.stop()
    assert left_in(broker, queue) == []


def test_possibly_foreign_offset_confirms_no_message(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    query = Query(broker, queue, tmp_path)
    post_numbers(broker, queue, 0, 3)
    end = query.plan()
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(end), json.dumps(end)]))
    (tmp_path / "commits" / "0").touch()
    query.stop()
    assert left_in(broker, queue) == numbers(0, 3)


@pytest.mark.parametrize("text", ["", "v1", "v1\n{}\n-\n{", 'v1\n{}\n{"messages": 99999}', "v1\n{}\n[1]"])
def test_unreadable_checkpoint_confirms_no_message(
    broker: BrokerThread, queue: str, tmp_path: Path, text: str
) -> None:
    query = Query(broker, queue, tmp_path)
    post_numbers(broker, queue, 0, 3)
    query.plan()
    (tmp_path / "offsets" / "0").write_text(text)
    (tmp_path / "commits" / "0").touch()
    query.stop()
    assert left_in(broker, queue) == numbers(0, 3)


def test_other_readers_of_the_queue_are_named(
    broker: BrokerThread, queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fanout = f"bmq://bmq.test.mem.fanout/{queue.rpartition('/')[2]}"
    one = Query(broker, f"{queue},{fanout}?id=foo", tmp_path / "one")
    one.ask()
    alone = Query(broker, f"{fanout}?id=bar", tmp_path / "two")
    alone.ask()
    assert "other consumers read the same queue" not in caplog.text
    both = Query(broker, f"{queue},{fanout}?id=foo", tmp_path / "three")
    both.ask()
    (line,) = [text for text in caplog.messages if "other consumers read the same queue" in text]
    assert f"{queue}: " in line
    assert f"{fanout}?id=foo: " in line
    for each in (one, alone, both):
        each.stop()


def test_dropped_messages_are_an_error_once(
    broker: BrokerThread, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = {queue: 3}

    async def dropped(*_: Any) -> dict[str, DropCounts]:
        return {queue: DropCounts(totals[queue])}

    monkeypatch.setattr(receiver, "dropped_totals", dropped)
    query = Query(broker, queue, tmp_path)
    post_numbers(broker, queue, 0, 2)
    assert query.batch() == numbers(0, 2)
    query.stop()
    totals[queue] += 5
    again = Query(broker, queue, tmp_path)
    with pytest.raises(
        bmq.StateError, match=rf"the broker has dropped .*: 5 of {queue}\. The messages are lost"
    ):
        again.ask()
    again.stop()
    third = Query(broker, queue, tmp_path)
    assert third.ask() == third.start
    third.stop()


def test_dropped_messages_are_in_the_progress(
    broker: BrokerThread,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    totals = {queue: 3}

    async def dropped(*_: Any) -> dict[str, DropCounts]:
        return {queue: DropCounts(totals[queue])}

    monkeypatch.setattr(receiver, "dropped_totals", dropped)
    monkeypatch.setattr(stream_reader, "_LOOK", 0.01)
    monkeypatch.setattr(stream_reader, "_ASK", 0.0)
    query = Query(broker, queue, tmp_path, failOnDataLoss="false")
    query.ask()
    totals[queue] += 5
    until(lambda: query.runner.reportLatestOffset().get("dropped") == {queue: 5})
    totals[queue] = 2  # the broker has started anew
    until(lambda: query.runner.reportLatestOffset().get("dropped") == {queue: 7})
    query.stop()

    def warned() -> list[int]:
        return [record.levelno for record in list(caplog.records) if "has dropped" in record.getMessage()]

    until(lambda: warned() == [logging.WARNING] * 2)  # a thread of its own writes the log


@pytest.mark.parametrize("kind", ["fanout", "subscribed"])
def test_messages_without_a_reader_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    config = {
        "fanout": DomainConfig(name="simple", mode=Mode.FANOUT, app_ids=("one", "other")),
        "subscribed": DomainConfig(
            name="simple", mode=Mode.PRIORITY, subscriptions=(AppSubscription("", "n < 5"),)
        ),
    }[kind]
    uri = "bmq://simple/queue"
    broker = BrokerThread(domains=[config])
    with broker:
        read_from = f"{uri}?id=one" if kind == "fanout" else uri
        query = Query(broker, read_from, tmp_path)
        broker.post(uri, [bmq.PutMessage(b"%d" % n, properties={"n": n}) for n in range(5)])
        assert query.batch() == numbers(0, 5)
        query.stop()
        broker.post(uri, [bmq.PutMessage(b"%d" % n, properties={"n": n}) for n in (4, 5, 6)])
        if kind == "fanout":
            asyncio.run(purge(broker, f"{uri}?id=other"))
        again = Query(broker, read_from, tmp_path)
        assert again.batch()[0] == "4"
        again.stop()


async def purge(broker: BrokerThread, uri: str) -> None:
    async with bmq.admin.connect(broker.uri) as admin:
        await admin.queue(uri).purge()


def test_messages_that_cannot_be_decoded_are_put_aside_and_confirmed(
    broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    post_bad_between(broker, queue)
    options = {"onInvalidMessage": "deadLetters", "deadLetterQueue": f"{queue}-dead"}
    query = Query(broker, queue, tmp_path, **options)
    rows: list[str] = []
    while len(rows) < 2:
        rows += query.batch()
    assert rows == ["good", "too"]
    query.stop()
    (letter,) = broker.drain(f"{queue}-dead", expect=1)
    assert letter.data == BAD
    assert left_in(broker, queue) == []


def test_failed_batch_continues_with_another_policy(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
    post_bad_between(broker, queue)
    query = Query(broker, queue, tmp_path, onInvalidMessage="fail", maxMessagesPerTrigger=3, lingerMs=1000)
    with pytest.raises(bmq.ProtocolError, match=r"onInvalidMessage \(row, drop\) the query"):
        query.batch()
    query.stop()
    again = Query(broker, queue, tmp_path, onInvalidMessage="drop")
    assert again.batch() == ["good", "too"]
    again.stop()
    assert left_in(broker, queue) == []


def depth(broker: BrokerThread, queue: str) -> int:
    async def ask(_: Any) -> int:
        async with bmq.admin.connect(broker.uri) as admin:
            return (await admin.queue(queue).depth()).messages

    return int(broker.call(ask))


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        pass
