# SPDX-License-Identifier: Apache-2.0
"""The memory of a task does not grow with its rows."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bmq.arrow.decoding import pa
from bmq.spark import write_partition
from bmq.spark.log import BatchLog, LogPartition, raw_schema, read_partition
from bmq.spark.partition import TaskScope, post_partition
from bmq.spark.schema import OnInvalidMessage
from bmq.spark.writer import WritePartition
from tests.spark.readers import WHOLE

MIB = 2**20
PAYLOAD = 8 * 1024
#: Rows of a batch, which is a MiB, and batches of a partition.
BATCH, BATCHES = 128, 128
URI = "bmq://bmq.test.mem.priority/memory"


def batches() -> Iterator[tuple[int, Any]]:
    """Yield the rows of a partition in batches, each with the position of its first row."""
    for first in range(0, BATCHES * BATCH, BATCH):
        values = [f"row {first + at}".ljust(PAYLOAD, ".").encode() for at in range(BATCH)]
        yield first, pa.record_batch({"value": values, "CustomerId": [1234] * BATCH})


@pytest.fixture
def broker_process() -> Iterator[str]:
    """The address of a broker whose memory is not that of the tests."""
    command = [sys.executable, "-m", "bmq", "broker", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


@pytest.mark.parametrize("kind", ["arrow", "rows"])
def test_a_partition_is_posted_while_it_is_read(kind: str, broker_process: str) -> None:
    """A writer that collects its rows would hold the whole partition."""
    held: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for _, batch in watched():
            yield from batch.to_pylist()

    def watched() -> Iterator[tuple[int, Any]]:
        for each in batches():
            yield each
            held.append(pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])

    settings = write_partition(queue=URI, broker=broker_process, properties=["CustomerId"]).options
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        if kind == "arrow":
            report = post_partition(watched(), settings, TaskScope("job"))
        else:
            report = WritePartition(settings, None, None).post(rows(), TaskScope("job"))
    finally:
        tracemalloc.stop()
    assert report.acknowledged == BATCHES * BATCH
    assert max(held) < BATCHES * MIB / 2


def resident() -> int:
    """Return the bytes of files in this process's memory; 0 on systems that do not tell."""
    status = Path("/proc/self/status")
    found = re.search(r"RssFile:\s+(\d+) kB", status.read_text(encoding="utf-8")) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def test_a_task_keeps_no_page_of_its_log(tmp_path: Path) -> None:
    log = BatchLog(str(tmp_path))
    schema = raw_schema([(URI, None)])
    file = log.begin(0, schema)
    data = pa.array([bytes(PAYLOAD)] * BATCH, pa.binary())
    guids = pa.array([bytes(16)] * BATCH, pa.binary(16))
    plain = [pa.array([0] * BATCH, schema.field(at).type) for at in range(2, len(schema))]
    for _ in range(48):
        file.write([pa.RecordBatch.from_arrays([data, guids, *plain], schema=schema)])
    path = file.finish().path
    before, most, rows = resident(), 0, 0
    held = pa.total_allocated_bytes()
    partition = LogPartition(str(tmp_path), path, 0, 48 * BATCH)
    for batch in read_partition(partition, WHOLE, OnInvalidMessage.ROW):
        rows += batch.num_rows
        most = max(most, resident() - before, pa.total_allocated_bytes() - held)
    assert rows == 48 * BATCH
    assert most < 12 * MIB, "the log has 48 MiB"
