# SPDX-License-Identifier: Apache-2.0
"""Batch reads: rows are stored before a task sees them, and messages are confirmed by name alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bmq
import bmq.spark
from bmq.spark import batch_reader
from bmq.spark.batch_reader import READS, Application, Drain, application_of_planner
from bmq.spark.log import filesystem
from bmq.spark.receiver import ReceivedMessages, SourceReceiver
from tests.spark.brokers import BrokerThread
from tests.spark.readers import WHOLE, read, rows_of, source, values_of
from tests.spark.test_datasource import BAD, post_bad_between


def texts(first: int, last: int) -> list[str]:
    return [f"{number}" for number in range(first, last)]


def post(broker: BrokerThread, queue: str, first: int, last: int) -> None:
    broker.post(queue, [text.encode() for text in texts(first, last)])


def left_in(broker: BrokerThread, queue: str) -> list[str]:
    return sorted((m.data.decode() for m in broker.drain(queue, idle=0.2)), key=int)


@pytest.fixture
def options(broker: BrokerThread, queue: str, tmp_path: Path) -> dict[str, str]:
    return {
        "broker": broker.uri,
        "queue": queue,
        "checkpointLocation": str(tmp_path / "reads"),
        "idleTimeoutMs": "150",
    }


def test_a_partition_has_the_same_rows_in_each_attempt(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    post(broker, queue, 0, 25)
    reader = source(**options, numPartitions=3).reader(WHOLE)
    partitions = reader.partitions()
    assert len(partitions) == 3
    first, again = ([row["value"] for each in partitions for row in read(reader, each)] for _ in range(2))
    assert first == again == [text.encode() for text in texts(0, 25)]
    assert left_in(broker, queue) == texts(0, 25)


def test_a_read_refuses_to_stop_readers_with_an_expression(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    """The broker delivers returned messages first, and nothing else while no expression matches one."""
    post(broker, queue, 0, 5)

    async def selecting() -> bmq.Session:
        session = await bmq.connect(broker.uri)
        opened = await session.open_queue(queue, read=True, default_subscription=False)
        await opened.subscribe("n >= 100").open()
        return session

    session = broker.call(lambda _: selecting())
    for given in (options, {name: options[name] for name in ("broker", "queue")}):
        with pytest.raises(bmq.StateError, match=r"has readers with an expression \(.*confirm=onStore"):
            values_of(**given)
    assert values_of(**options, confirm="onStore") == texts(0, 5)
    broker.call(lambda _: session.close())


def test_unconfirmed_read_is_repeated_exactly(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    post(broker, queue, 0, 5)
    assert values_of(**options) == texts(0, 5)
    post(broker, queue, 5, 8)
    assert values_of(**options) == texts(0, 5)
    assert bmq.spark.confirm(options) == 5
    assert bmq.spark.confirm(options) == 0
    assert values_of(**options) == texts(5, 8)
    assert left_in(broker, queue) == texts(5, 8)


def test_rows_survive_the_loss_of_their_messages(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    post(broker, queue, 0, 5)
    assert values_of(**options) == texts(0, 5)
    assert left_in(broker, queue) == texts(0, 5)  # and is empty now
    assert values_of(**options) == texts(0, 5)
    assert bmq.spark.confirm(options) == 5
    assert values_of(**options) == []


class Frame:
    """A DataFrame of some rows, as far as it matters here."""

    columns = ("guid", "value")

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def select(self, *_: str) -> Frame:
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._rows


def test_rows_can_be_confirmed_by_name(broker: BrokerThread, queue: str, options: dict[str, str]) -> None:
    post(broker, queue, 0, 10)
    rows = rows_of(source(**options))
    written: Any = Frame(rows[2:6])
    assert bmq.spark.confirm(options, written) == 4
    assert bmq.spark.confirm(options, written) == 0
    assert values_of(**options) == texts(0, 2) + texts(6, 10)
    assert bmq.spark.confirm(options) == 6
    assert left_in(broker, queue) == []


def test_unsent_confirmations_are_sent_by_the_next_read(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    post(broker, queue, 0, 5)
    values_of(**options)
    away = {**options, "broker": "tcp://127.0.0.1:1", "connectTimeoutMs": "100"}
    with pytest.raises(bmq.ConnectionFailed):
        bmq.spark.confirm(away)
    post(broker, queue, 5, 7)
    assert values_of(**options) == texts(5, 7)
    assert left_in(broker, queue) == texts(5, 7)


def test_unsent_confirmations_are_sent_by_the_next_call(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    post(broker, queue, 0, 5)
    values_of(**options)
    away = {**options, "broker": "tcp://127.0.0.1:1", "connectTimeoutMs": "100"}
    with pytest.raises(bmq.ConnectionFailed):
        bmq.spark.confirm(away)
    assert bmq.spark.confirm(options) == 0
    assert left_in(broker, queue) == []


def test_rows_of_a_dead_driver_are_neither_lost_nor_duplicated(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    post(broker, queue, 0, 5)
    values_of(**options)
    folder = Path(options["checkpointLocation"]) / READS
    (folder / "reads.json").unlink()  # it died before it could note the read
    (folder / "000001" / f"{9:020d}.partial").touch()
    post(broker, queue, 5, 7)
    assert sorted(values_of(**options), key=int) == texts(0, 7)
    bmq.spark.confirm(options)
    assert left_in(broker, queue) == []


def test_stored_messages_can_be_taken_out_at_once(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    post(broker, queue, 0, 5)
    assert values_of(**options, confirm="onStore") == texts(0, 5)
    assert left_in(broker, queue) == []
    assert values_of(**options, confirm="onStore") == texts(0, 5)
    with pytest.raises(bmq.StateError, match=r"original options \(bmq.spark.confirm\)$"):
        values_of(**options, expression="n > 1")
    away = {**options, "broker": "tcp://127.0.0.1:1", "connectTimeoutMs": "100"}
    assert bmq.spark.confirm(away) == 5  # the broker has nothing to be told
    assert values_of(**options, confirm="onStore") == []


def test_stored_messages_whose_confirmation_may_be_lost_are_confirmed_again(
    broker: BrokerThread, queue: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    post(broker, queue, 0, 5)

    async def unsettled(_: SourceReceiver) -> bool:
        return False

    monkeypatch.setattr(SourceReceiver, "confirm", lambda *_: None)
    monkeypatch.setattr(SourceReceiver, "settle", unsettled)
    assert values_of(**options, confirm="onStore") == texts(0, 5)
    assert bmq.spark.confirm(options) == 5
    assert left_in(broker, queue) == []


@pytest.mark.parametrize("change", [{"expression": "n > 1"}, {"queue": "bmq://bmq.test.mem.priority/other"}])
def test_unconfirmed_read_of_another_queue_is_refused(
    broker: BrokerThread, queue: str, options: dict[str, str], change: dict[str, str]
) -> None:
    post(broker, queue, 0, 3)
    values_of(**options)
    with pytest.raises(bmq.StateError, match="is not confirmed: confirm the read with its original options"):
        values_of(**{**options, **change})
    if "queue" in change:
        with pytest.raises(
            bmq.StateError, match="is not confirmed: confirm the read with its original options"
        ):
            bmq.spark.confirm({**options, **change})
    assert bmq.spark.confirm(options) == 3
    assert values_of(**{**options, **change}) == []


def test_a_read_can_be_given_up(broker: BrokerThread, queue: str, options: dict[str, str]) -> None:
    post(broker, queue, 0, 3)
    values_of(**options)
    with pytest.raises(bmq.StateError, match=r"or delete .* to leave its messages") as refused:
        values_of(**options, expression="n > 1")
    Path(str(refused.value).partition("or delete ")[2].partition(" to leave")[0]).unlink()
    post(broker, queue, 3, 5)
    assert sorted(values_of(**options), key=int) == texts(0, 5)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "temporary"])
def test_reads_planned_at_the_same_time_have_all_rows(
    broker: BrokerThread, queue: str, options: dict[str, str], stored: bool
) -> None:
    """Spark plans a read in each thread that uses a frame first."""
    post(broker, queue, 0, 300)
    if not stored:
        del options["checkpointLocation"]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: values_of(**options), range(6)))
    assert found == [texts(0, 300)] * 6


def become(monkeypatch: pytest.MonkeyPatch, application: Application | None) -> None:
    """Have reads planned and confirmed by an application."""
    monkeypatch.setattr(batch_reader, "application_of_planner", lambda: application)
    monkeypatch.setattr(batch_reader, "application_of_program", lambda: application)


HERE = Application.of(os.getpid())
ENDED = msgspec.structs.replace(HERE, started=HERE.started - 1)  # the number of the process was given again
ELSEWHERE = msgspec.structs.replace(HERE, host="another.example")


def test_two_applications_do_not_share_a_read(
    broker: BrokerThread, queue: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would write the rows, and either could confirm the other's next read."""
    post(broker, queue, 0, 3)
    become(monkeypatch, HERE)
    assert values_of(**options) == texts(0, 3)
    become(monkeypatch, Application.of(os.getppid()))
    with pytest.raises(bmq.StateError, match="which has not confirmed the read: both would write"):
        values_of(**options)
    become(monkeypatch, HERE)
    assert values_of(**options) == texts(0, 3)
    assert bmq.spark.confirm(options) == 3


@pytest.mark.parametrize("before", [ENDED, ELSEWHERE], ids=["ended", "elsewhere"])
def test_read_of_an_ended_application_is_repeated_before_its_confirmation(
    broker: BrokerThread,
    queue: str,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    before: Application,
) -> None:
    post(broker, queue, 0, 3)
    become(monkeypatch, before)
    rows = rows_of(source(**options))
    become(monkeypatch, HERE)
    with pytest.raises(bmq.StateError, match="this application has not read the rows since"):
        bmq.spark.confirm(options)
    written: Any = Frame(rows[:1])
    assert bmq.spark.confirm(options, written) == 1
    assert values_of(**options) == texts(1, 3)
    assert bmq.spark.confirm(options) == 2
    assert left_in(broker, queue) == []


def test_a_program_without_spark_may_confirm(
    broker: BrokerThread, queue: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    post(broker, queue, 0, 3)
    become(monkeypatch, HERE)
    values_of(**options)
    become(monkeypatch, None)
    assert bmq.spark.confirm(options) == 3


def test_an_application_lasts_as_long_as_its_process() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert HERE.runs
    assert not Application.of(ended.pid).runs
    assert not ENDED.runs
    assert not ELSEWHERE.runs
    assert application_of_planner() is None  # no Java is above this process


def test_the_rows_of_a_confirmed_read_last_until_the_next_read(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    post(broker, queue, 0, 3)
    reader = source(**options).reader(WHOLE)
    (part,) = reader.partitions()
    bmq.spark.confirm(options)
    assert len(read(reader, part)) == 3
    values_of(**options)
    with pytest.raises(bmq.StateError, match="the next read removed its rows"):
        read(reader, part)


def test_a_read_of_an_empty_queue_is_not_stored(queue: str, options: dict[str, str]) -> None:
    assert values_of(**options) == []
    assert bmq.spark.confirm(options) == 0
    assert not (Path(options["checkpointLocation"]) / READS / "reads.json").exists()


def test_connection_cut_during_a_read_duplicates_no_rows(
    broker: BrokerThread, queue: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages stored before the cut are delivered again. The selection leaves a message in the queue."""
    broker.post(queue, [bmq.PutMessage(f"{n}".encode(), {"n": n}) for n in range(21)])
    store, batches = Drain._new, []

    async def cut(drain: Drain, arrived: ReceivedMessages) -> Any:
        rows = await store(drain, arrived)
        batches.append(rows)
        if len(batches) == 1:
            broker.call(lambda b: b.faults.disconnect())
        return rows

    monkeypatch.setattr(Drain, "_new", cut)
    more = {"idleTimeoutMs": "500", "expression": "n < 20"}
    assert sorted(values_of(**options | more), key=int) == texts(0, 20)
    assert len(batches) > 1


@pytest.mark.usefixtures("uncounted")
def test_a_dead_letter_of_a_read_that_is_cut_is_posted_once(
    broker: BrokerThread, queue: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    post_bad_between(broker, queue)
    store, cuts = Drain._new, []

    async def cut(drain: Drain, arrived: ReceivedMessages) -> Any:
        rows = await store(drain, arrived)
        if rows.num_rows and not cuts:
            cuts.append(broker.call(lambda b: b.faults.disconnect()))
        return rows

    monkeypatch.setattr(Drain, "_new", cut)
    policy = {"onInvalidMessage": "deadLetters", "deadLetterQueue": f"{queue}-dead", "idleTimeoutMs": "500"}
    assert values_of(**{**options, **policy}) == ["good", "too"]
    assert cuts
    assert [letter.data for letter in broker.drain(f"{queue}-dead", expect=1)] == [BAD]
    bmq.spark.confirm({**options, **policy})
    assert left_in(broker, queue) == []


def test_guids_are_confirmed_for_their_application_alone(
    broker: BrokerThread, queue: str, options: dict[str, str]
) -> None:
    fanout = f"bmq://bmq.test.mem.fanout/{queue.rpartition('/')[2]}"
    post(broker, fanout, 0, 4)
    one = {**options, "queue": f"{fanout}?id=foo"}
    assert values_of(**one) == texts(0, 4)
    bmq.spark.confirm(one)
    assert left_in(broker, f"{fanout}?id=foo") == []
    assert left_in(broker, f"{fanout}?id=bar") == texts(0, 4)


def test_unconfirmable_arguments_are_refused(queue: str, tmp_path: Path) -> None:
    with pytest.raises(bmq.UsageError, match="option checkpointLocation is missing"):
        bmq.spark.confirm({"queue": queue})
    with pytest.raises(bmq.UsageError, match="unknown option"):
        bmq.spark.confirm({"queue": queue, "checkpoint": tmp_path})
    frame: Any = Frame([])
    frame.columns = ("value",)
    with pytest.raises(bmq.UsageError, match="a DataFrame with the messages to confirm"):
        bmq.spark.confirm({"queue": queue, "checkpointLocation": tmp_path}, frame)
    with pytest.raises(bmq.UsageError, match="options"):
        bmq.spark.confirm(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_names_of_hadoop_are_those_of_pyarrow(scheme: str) -> None:
    found, path = filesystem(f"{scheme}://bucket/folder?region=eu-west-1")
    assert (type(found).__name__, path) == ("S3FileSystem", "bucket/folder")


def test_databricks_file_system_is_its_mounted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.spark.log._DATABRICKS", str(tmp_path))
    for path in ("dbfs:/checkpoints/orders", "dbfs://checkpoints/orders"):
        assert filesystem(path)[1] == f"{tmp_path}/checkpoints/orders"
    monkeypatch.setattr("bmq.spark.log._DATABRICKS", str(tmp_path / "not mounted"))
    with pytest.raises(
        bmq.UsageError, match=r"dbfs:/x is in no file system.*give readStream the option logPath"
    ):
        filesystem("dbfs:/x")


def test_an_unsupported_file_system_is_named(options: dict[str, str]) -> None:
    with pytest.raises(bmq.UsageError, match="nosuch://x/bmq-reads is in no file system supported"):
        values_of(**{**options, "checkpointLocation": "nosuch://x"})


def test_a_temporary_folder_is_private_and_removed_with_its_application(
    broker: BrokerThread, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    post(broker, queue, 0, 3)
    plain = {"broker": broker.uri, "queue": queue, "idleTimeoutMs": "150"}
    root = tmp_path / f"bmq-spark-{os.getuid()}"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    root.mkdir(mode=0o700)
    (root / f"{ended.pid}-old").mkdir()
    reader = source(**plain).reader(WHOLE)
    (part,) = reader.partitions()
    (folder,) = (each for each in root.iterdir() if not (each / "lock").exists())
    assert folder.stat().st_mode & 0o077 == 0
    assert len(read(reader, part)) == 3
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(bmq.StateError, match="On a cluster set checkpointLocation"):
        read(reader, part)
    root.chmod(0o755)
    with pytest.raises(bmq.StateError, match="must be a folder that only this user can change"):
        source(**plain).reader(WHOLE).partitions()
