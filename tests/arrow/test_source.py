# SPDX-License-Identifier: Apache-2.0
"""Queues as readers of Arrow batches, for programs without an event loop."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import bmq
import bmq.arrow
from bmq.arrow import Confirm, Source, reader
from bmq.broker import Broker
from bmq.testing import BackgroundBroker, FaultProxy

URI = "bmq://bmq.test.mem.priority/source"
COUNT = 5_000
TABLE = pa.table({"value": [f"order {n}" for n in range(COUNT)], "n": range(COUNT)})
OPTIONS: dict[str, Any] = {"properties": {"n": pa.int64()}, "idle_timeout": 0.3, "max_rows": 1000}


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker() as broker:
        bmq.run(post(broker.uri, TABLE))
        yield broker


async def post(uri: str, table: Any) -> None:
    async with bmq.connect(uri) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post_table(table, properties=["n"])


def left(uri: str) -> list[int]:
    """Return the messages in the queue, without taking them."""
    numbers = reader(uri, URI, confirm="never", **OPTIONS).read_all()["n"]
    return sorted(numbers.to_pylist())


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "bmq.arrow"]


WAYS = {
    "pyarrow": lambda each: each.read_all().column("n").to_pylist(),
    "pandas": lambda each: each.read_pandas()["n"].tolist(),
    "Polars": lambda each: pl.from_arrow(each)["n"].to_list(),  # type: ignore[index]
    "the C interface": lambda each: pa.RecordBatchReader.from_stream(each).read_all()["n"].to_pylist(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_all_messages_are_read_and_confirmed(broker: BackgroundBroker, way: Any) -> None:
    assert way(reader(broker.uri, URI, **OPTIONS)) == list(range(COUNT))
    assert threads() == []
    assert left(broker.uri) == []


def test_batch_is_confirmed_by_the_next_read(broker: BackgroundBroker) -> None:
    stream = reader(broker.uri, URI, **OPTIONS)
    assert stream.schema.names == ["value", "n"]
    for n in range(3):
        assert stream.read_next_batch()["n"][0].as_py() == n * 1000
    del stream
    assert threads() == []
    assert left(broker.uri) == list(range(2000, COUNT))


def test_all_or_no_messages_are_confirmed_at_the_end(broker: BackgroundBroker) -> None:
    stream = reader(broker.uri, URI, confirm=Confirm.END, **OPTIONS)
    for _ in range(4):
        stream.read_next_batch()
    del stream
    assert left(broker.uri) == list(range(COUNT))
    assert reader(broker.uri, URI, confirm="end", **OPTIONS).read_all().num_rows == COUNT
    assert left(broker.uri) == []


def test_program_chooses_the_confirmed_messages(broker: BackgroundBroker) -> None:
    with Source(broker.uri, URI, max_messages=3000, **OPTIONS) as source:
        assert source.reader is source.reader
        frame = pl.DataFrame(source)
        assert frame["n"].to_list() == list(range(3000))
        assert source.confirm() == 3000
        assert source.confirm() == 0
    source.close()
    assert left(broker.uri) == list(range(3000, COUNT))
    with pytest.raises(bmq.StateError, match="closed: the broker redelivers unconfirmed rows"):
        source.confirm()


def test_stream_ends_with_the_messages_of_its_start_although_producers_go_on(
    broker: BackgroundBroker,
) -> None:
    rows = 0
    for batch in reader(broker.uri, URI, **OPTIONS | {"idle_timeout": 60}):
        rows += batch.num_rows
        bmq.run(post(broker.uri, TABLE[:1]))
    assert COUNT <= rows <= COUNT + 6


def test_queue_is_not_drained_while_a_lost_connection_is_restored() -> None:
    """The next message arrives long after the connection is restored: only then is the queue open again."""

    async def main() -> None:
        async with Broker(port=0) as broker, FaultProxy(broker.uri) as proxy:
            await post(broker.uri, TABLE[:2])
            proxy.delay(0.15)
            options = OPTIONS | {"idle_timeout": 0.5, "max_unconfirmed_messages": 1}
            source = await asyncio.to_thread(Source, proxy.uri, URI, confirm="next", **options)
            first = await asyncio.to_thread(source.reader.read_next_batch)
            proxy.cut()
            rest = await asyncio.to_thread(source.reader.read_all)
            await asyncio.to_thread(source.close)
        assert first["n"].to_pylist() == [0]
        assert 1 in rest["n"].to_pylist()

    bmq.run(main())


def test_source_ends_after_max_messages(broker: BackgroundBroker) -> None:
    """The source ends at once, even with a long idle timeout."""
    options = OPTIONS | {"idle_timeout": None}
    sizes = [batch.num_rows for batch in reader(broker.uri, URI, max_messages=2500, **options)]
    assert sum(sizes) == 2500
    assert max(sizes) <= 1000
    assert left(broker.uri) == list(range(2500, COUNT))


def test_errors_are_raised_while_reading(broker: BackgroundBroker) -> None:
    session = bmq.SessionOptions(reconnect_timeout=1.0)
    stream = reader(broker.uri, URI, session=session, **OPTIONS)
    stream.read_next_batch()
    broker.stop()
    with pytest.raises(bmq.SessionClosed, match="the session is over"):
        list(stream)  # a queue that cannot be heard is not drained
    assert threads() == []


def test_unopenable_queue_is_reported_at_once() -> None:
    with pytest.raises(bmq.ConnectionFailed, match=r"127\.0\.0\.1:1"):
        reader("tcp://127.0.0.1:1", URI)
    with BackgroundBroker() as broker:
        with pytest.raises(bmq.OpenQueueError, match=r"no\.such\.domain"):
            reader(broker.uri, "bmq://no.such.domain/q")
        options: dict[str, Any]
        for options, text in (
            ({"properties": {"a": pa.float64()}}, "cannot be read as double"),
            ({"confirm": "later"}, "confirm must be one of 'next', 'end', 'never', not 'later'"),
            ({"max_messages": 0}, "max_messages must be an integer from 1 to"),
        ):
            with pytest.raises(bmq.UsageError, match=text):
                reader(broker.uri, URI, **options)
    assert threads() == []


def test_a_program_may_end_in_the_middle_of_a_stream(broker: BackgroundBroker) -> None:
    code = f"""
import bmq.arrow
stream = bmq.arrow.reader("{broker.uri}", "{URI}", max_rows=1000)
print(stream.read_next_batch().num_rows)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (run.stdout, run.stderr) == ("1000\n", "")


@pytest.mark.parametrize("missing", ["numpy", "pyarrow"])
def test_a_missing_extra_is_named(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; import bmq.arrow"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = run.stderr.splitlines()[-1]
    assert last.endswith(f"bmq.arrow needs {missing}, which is not installed: pip install 'bmq[arrow]'")


def test_unread_source_ends_when_dropped(broker: BackgroundBroker) -> None:
    stream = reader(broker.uri, URI, **OPTIONS)
    assert threads() == ["bmq.arrow"]
    del stream
    gc.collect()
    assert threads() == []
    assert len(left(broker.uri)) == COUNT


def test_failing_program_confirms_no_message(broker: BackgroundBroker) -> None:
    def handle() -> None:
        with Source(broker.uri, URI, **OPTIONS) as source:
            next(iter(source.reader))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle()
    assert threads() == []
    assert left(broker.uri) == list(range(COUNT))
