# SPDX-License-Identifier: Apache-2.0
"""Batch reads: the columns of a queue, rows that are stored before a task sees them, and confirmations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import types

import bmq
import bmq.spark
from bmq.spark import batch_reader
from bmq.spark.batch_reader import READS, Application, Drain
from bmq.spark.log import filesystem
from bmq.spark.receiver import ReceivedMessages, SourceReceiver
from tests.spark.bench import BAD, NOWHERE, WHOLE, Stage, numbers, read, rows_of, source, struct

#: A broker that cannot be reached.
AWAY = {"broker": "tcp://127.0.0.1:1", "connectTimeoutMs": "100"}
#: Options of a read whose rows are in a temporary folder.
UNSTORED = {"checkpointLocation": ""}
THREE = bmq.PropertyValue(bmq.PropertyType.SHORT, 3)
TYPED = {"n": 7, "text": "ä", "yes": True, "raw": b"\xff\x00", "short": THREE}


def test_queue_is_read_until_drained(stage: Stage) -> None:
    stage.broker.post(stage.queue, [bmq.PutMessage(b"x", TYPED), b"y"])
    first, second = stage.rows()
    properties = dict(first["properties"])
    types = json.loads(properties.pop("bmq_types"))
    assert types == {"n": "INT64", "yes": "BOOL", "raw": "BINARY", "short": "SHORT"}
    assert properties == {"n": "7", "text": "ä", "yes": "true", "raw": "/wA=", "short": "3"}
    assert (first["value"], first["queue"], first["subscription"]) == (b"x", stage.queue, None)
    assert (len(first["guid"]), first["redelivered"]) == (32, False)
    assert first["receivedAt"].tzinfo is not None
    assert (second["value"], second["properties"], second["error"]) == (b"y", [], None)
    assert stage.confirm() == 2
    assert stage.left() == []


def test_properties_can_be_a_struct(stage: Stage) -> None:
    stage.broker.post(stage.queue, [bmq.PutMessage(b"x", TYPED)])
    fields = struct(
        n=types.LongType(),
        text=types.StringType(),
        yes=types.BooleanType(),
        raw=types.BinaryType(),
        short=types.LongType(),
    )
    fields.add("missing", types.LongType())
    (row,) = rows_of(source(**stage.options()), struct(properties=fields, value=types.BinaryType()))
    assert row["properties"] == {**TYPED, "short": 3, "missing": None}


@pytest.mark.parametrize("policy", ["row", "drop", "fail", "deadLetters"])
def test_a_policy_decides_about_undecodable_messages(
    policy: str, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.post_bad_between()
    options = stage.dead if policy == "deadLetters" else {"onInvalidMessage": policy}
    about = f"of {stage.queue} cannot be decoded"
    if policy == "fail":
        with pytest.raises(bmq.ProtocolError, match=f"message [0-9A-F]{{32}} {about}"):
            stage.rows(**options)
        return
    rows = stage.rows(**options)
    if policy == "row":
        bad = [rows.pop(1) for _ in BAD]
        assert [(row["value"], row["properties"]) for row in bad] == [(data, None) for data in BAD]
        assert all(row["error"] and len(row["guid"]) == 32 for row in bad)
    assert [(row["value"], row["error"]) for row in rows] == [(b"good", None), (b"too", None)]
    if policy == "drop":
        assert f"{about}, and is omitted" in caplog.text
    if policy == "deadLetters":
        assert stage.letters() == BAD
    stage.confirm(**options)
    assert stage.left() == []


@pytest.mark.timeout(30)
def test_a_count_of_decodable_messages_ends_the_read_and_the_rest_stays(stage: Stage) -> None:
    stage.post_bad(3)
    stage.post(0, 25)
    assert stage.values(**stage.dead, idleTimeoutMs=60_000, maxMessages=20) == numbers(0, 20)
    assert sorted(stage.letters()) == sorted(BAD * 3)
    stage.confirm(**stage.dead)
    assert stage.left() == numbers(20, 25)


def test_subscriptions_select_and_are_named(stage: Stage) -> None:
    stage.post_values(range(30))
    options = {"expression": json.dumps({"small": "n < 10", "big": "n >= 20"})}
    assert sorted((row["subscription"], int(row["value"])) for row in stage.rows(**options)) == [
        *(("big", n) for n in range(20, 30)),
        *(("small", n) for n in range(10)),
    ]
    stage.confirm(**options)
    assert stage.left() == numbers(10, 20)


def test_several_queues_are_one_source(stage: Stage) -> None:
    one, two = f"{stage.queue}-1", f"{stage.queue}-2"
    stage.broker.post(one, [b"x"])
    stage.broker.post(two, [b"x", b"x"])
    options = {"queue": f"{one}, {two}"}
    assert sorted(row["queue"] for row in stage.rows(**options)) == [one, two, two]
    assert stage.confirm(**options) == 3
    assert stage.left(one) == stage.left(two) == []


def test_a_partition_has_the_same_rows_in_each_attempt(stage: Stage) -> None:
    stage.post(0, 25)
    reader = source(**stage.options(numPartitions=3)).reader(WHOLE)
    partitions = reader.partitions()
    assert len(partitions) == 3
    first, again = (
        [row["value"].decode() for each in partitions for row in read(reader, each)] for _ in "12"
    )
    assert first == again == numbers(0, 25)
    assert stage.left() == numbers(0, 25)


def test_a_read_refuses_to_stop_readers_with_an_expression(stage: Stage) -> None:
    """The broker delivers returned messages first, and nothing else while no expression matches one."""
    stage.post(0, 5)

    async def selecting(broker: bmq.broker.Broker) -> bmq.Session:
        session = await bmq.connect(broker.uri)
        opened = await session.open_queue(stage.queue, read=True, default_subscription=False)
        await opened.subscribe("n >= 100").open()
        return session

    session = stage.broker.call(selecting)
    for given in ({}, UNSTORED):
        with pytest.raises(bmq.StateError, match=r"has readers with an expression \(.*confirm=onStore"):
            stage.values(**given)
    assert stage.values(confirm="onStore") == numbers(0, 5)
    stage.broker.call(lambda _: session.close())


def test_unconfirmed_read_is_repeated_exactly(stage: Stage) -> None:
    """Even without its messages."""
    stage.post(0, 5)
    assert stage.values() == numbers(0, 5)
    assert stage.left() == numbers(0, 5)  # and is empty now
    stage.post(5, 8)
    assert stage.values() == numbers(0, 5)
    assert [stage.confirm(), stage.confirm()] == [5, 0]
    assert stage.values() == numbers(5, 8)
    assert stage.left() == numbers(5, 8)


@pytest.mark.parametrize("by", ["read", "confirm"])
def test_unsent_confirmations_are_sent_by_the_next_call(by: str, stage: Stage) -> None:
    stage.post(0, 5)
    stage.values()
    with pytest.raises(bmq.ConnectionFailed):
        stage.confirm(**AWAY)
    stage.post(5, 7)
    if by == "read":
        assert stage.values() == numbers(5, 7)
    else:
        assert stage.confirm() == 0
    assert stage.left() == numbers(5, 7)


def test_rows_of_a_dead_driver_are_neither_lost_nor_duplicated(stage: Stage) -> None:
    stage.post(0, 5)
    stage.values()
    folder = stage.folder / "reads" / READS
    (folder / "reads.json").unlink()  # it died before it could note the read
    (folder / "000001" / f"{9:020d}.partial").touch()
    stage.post(5, 7)
    assert sorted(stage.values()) == numbers(0, 7)
    stage.confirm()
    assert stage.left() == []


def test_stored_messages_can_be_taken_out_at_once(stage: Stage) -> None:
    stage.post(0, 5)
    assert stage.values(confirm="onStore") == numbers(0, 5)
    assert stage.left() == []
    assert stage.values(confirm="onStore") == numbers(0, 5)
    with pytest.raises(bmq.StateError, match=r"original options \(bmq.spark.confirm\)$"):
        stage.values(expression="n > 1")
    assert stage.confirm(**AWAY) == 5  # the broker has nothing to be told
    assert stage.values(confirm="onStore") == []


def test_stored_messages_whose_confirmation_may_be_lost_are_confirmed_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.post(0, 5)

    async def unsettled(_: SourceReceiver) -> bool:
        return False

    monkeypatch.setattr(SourceReceiver, "confirm", lambda *_: None)
    monkeypatch.setattr(SourceReceiver, "settle", unsettled)
    assert stage.values(confirm="onStore") == numbers(0, 5)
    assert stage.confirm() == 5
    assert stage.left() == []


@pytest.mark.parametrize("change", [{"expression": "n > 1"}, {"queue": NOWHERE}])
def test_unconfirmed_read_of_another_queue_is_refused(stage: Stage, change: dict[str, str]) -> None:
    stage.post(0, 3)
    stage.values()
    refused = "confirm the read with its original options .*or delete (.*) to leave its messages"
    with pytest.raises(bmq.StateError, match=refused) as info:
        stage.values(**change)
    if "queue" in change:
        with pytest.raises(bmq.StateError, match=refused):
            stage.confirm(**change)
    assert stage.confirm() == 3
    assert stage.values(**change) == []
    # A read can be given up.
    stage.post(3, 5)
    stage.values()
    Path(re.findall(refused, str(info.value))[0]).unlink()
    stage.post(5, 6)
    assert sorted(stage.values()) == numbers(3, 6)


@pytest.mark.parametrize("options", [{}, UNSTORED], ids=["stored", "temporary"])
def test_reads_planned_at_the_same_time_have_all_rows(stage: Stage, options: dict[str, str]) -> None:
    """Spark plans a read in each thread that uses a frame first."""
    stage.post(0, 300)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: stage.values(**options), range(6)))
    assert found == [numbers(0, 300)] * 6


HERE = Application.of(os.getpid())
ENDED = msgspec.structs.replace(HERE, started=HERE.started - 1)  # the number of the process was given again
ELSEWHERE = msgspec.structs.replace(HERE, host="another.example")


@pytest.mark.parametrize("before", [ENDED, ELSEWHERE, None], ids=["ended", "elsewhere", "without Spark"])
def test_read_of_an_ended_application_is_repeated_before_its_confirmation(
    before: Application | None, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def become(application: Application | None) -> None:
        monkeypatch.setattr(batch_reader, "application_of_planner", lambda: application)
        monkeypatch.setattr(batch_reader, "application_of_program", lambda: application)

    stage.post(0, 3)
    become(before or HERE)
    stage.values()
    become(before and HERE)
    if before is not None:
        with pytest.raises(bmq.StateError, match="this application has not read the rows since"):
            stage.confirm()
        assert stage.values() == numbers(0, 3)
    assert stage.confirm() == 3
    assert stage.left() == []


def test_the_rows_of_a_confirmed_read_last_until_the_next_read(stage: Stage) -> None:
    stage.post(0, 3)
    reader = source(**stage.options()).reader(WHOLE)
    (part,) = reader.partitions()
    stage.confirm()
    assert len(read(reader, part)) == 3
    stage.values()
    with pytest.raises(bmq.StateError, match="the next read removed its rows"):
        read(reader, part)


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("bad", [False, True], ids=["good", "undecodable"])
def test_connection_cut_during_a_read_duplicates_no_row_or_dead_letter(
    bad: bool, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages stored before the cut are delivered again. The selection leaves a message in the queue."""
    store, batches = Drain._new, []

    async def and_cut(drain: Drain, arrived: ReceivedMessages) -> Any:
        rows = await store(drain, arrived)
        batches.append(rows)
        if len(batches) == 1:
            stage.broker.call(lambda b: b.faults.disconnect())
        return rows

    monkeypatch.setattr(Drain, "_new", and_cut)
    if bad:
        stage.post_bad_between()
        options = stage.dead
    else:
        stage.post_values(range(21))
        options = {"expression": "n < 20"}
    found = stage.values(idleTimeoutMs=500, **options)
    assert len(batches) > 1
    stage.confirm(**options)
    if bad:
        assert (found, stage.letters(), stage.left()) == (["good", "too"], BAD, [])
    else:
        assert (sorted(found, key=int), stage.left()) == (numbers(0, 20), ["20"])


def test_guids_are_confirmed_for_their_application_alone(stage: Stage) -> None:
    fanout = f"bmq://bmq.test.mem.fanout/{stage.queue.rpartition('/')[2]}"
    stage.broker.post(fanout, [b"0", b"1"])
    assert stage.values(queue=f"{fanout}?id=foo") == numbers(0, 2)
    stage.confirm(queue=f"{fanout}?id=foo")
    assert [stage.left(f"{fanout}?id={app}") for app in ("foo", "bar")] == [[], numbers(0, 2)]


def test_unconfirmable_arguments_are_refused(stage: Stage) -> None:
    arguments: list[tuple[dict[str, Any], Any, str]] = [
        (UNSTORED, None, "checkpointLocation is missing"),
        ({"checkpoint": "/x"}, None, "unknown option"),
        ({}, 7, "a DataFrame with the messages to confirm"),
    ]
    for options, rows, text in arguments:
        with pytest.raises(bmq.UsageError, match=text):
            stage.confirm(rows, **options)
    with pytest.raises(bmq.UsageError, match="options"):
        bmq.spark.confirm(7)  # type: ignore[arg-type]


def test_file_systems_of_hadoop_are_those_of_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("s3", "s3a", "s3n"):
        found, path = filesystem(f"{scheme}://bucket/folder?region=eu-west-1")
        assert (type(found).__name__, path) == ("S3FileSystem", "bucket/folder")
    monkeypatch.setattr("bmq.spark.log._DATABRICKS", str(tmp_path))
    for path in ("dbfs:/checkpoints/orders", "dbfs://checkpoints/orders"):
        assert filesystem(path)[1] == f"{tmp_path}/checkpoints/orders"
    monkeypatch.setattr("bmq.spark.log._DATABRICKS", str(tmp_path / "not mounted"))
    with pytest.raises(bmq.UsageError, match=r"dbfs:/x is in no file system.*give readStream the option log"):
        filesystem("dbfs:/x")
    with pytest.raises(bmq.UsageError, match="nosuch://x/bmq-reads is in no file system supported"):
        rows_of(source(queue=NOWHERE, checkpointLocation="nosuch://x"))


def test_a_temporary_folder_is_private_and_removed_with_its_application(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(stage.folder))
    stage.post(0, 3)
    root = stage.folder / f"bmq-spark-{os.getuid()}"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    root.mkdir(mode=0o700)
    (root / f"{ended.pid}-old").mkdir()
    reader = source(**stage.options(**UNSTORED)).reader(WHOLE)
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
        stage.rows(**UNSTORED)
