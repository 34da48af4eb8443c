# SPDX-License-Identifier: Apache-2.0
"""The memory of a task does not grow with its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bmq.spark._arrow import pa
from bmq.spark._log import BatchLog
from bmq.spark._log_partition import LogPartition, read_partition
from bmq.spark._partition import WritePartition
from bmq.spark._posting import Scope, post_partition
from bmq.spark._raw import raw_schema
from bmq.spark._rows import OnInvalidMessage
from tests.budgets.bench import URI, Bench, run
from tests.budgets.partitions import batches_of, in_this_thread, settings_for
from tests.spark.readers import WHOLE

MIB = 2**20
PAYLOAD = 8 * 1024
#: Rows of a batch: a MiB.
BATCH = 128


class Feed:
    """The rows of a partition, and how far the writer is behind when it asks for more.

    Attributes:
        behind: most rows taken and not posted.
        held: most bytes of Arrow's memory.
    """

    def __init__(self, bench: Bench, batches: int) -> None:
        self.behind = self.held = 0
        self._bench = bench
        self._batches = batches
        self._before = pa.total_allocated_bytes()

    def arrow(self) -> Iterator[tuple[int, Any]]:
        for first, batch in batches_of(self._batches * BATCH, BATCH, payload=PAYLOAD):
            yield first, batch
            self._look(first + BATCH)

    def rows(self) -> Iterator[dict[str, Any]]:
        for first, batch in self.arrow():
            for number, row in enumerate(batch.to_pylist()):
                yield row
                self._look(first + number)

    def _look(self, taken: int) -> None:
        self.behind = max(self.behind, taken - self._bench.server.post_count)
        self.held = max(self.held, pa.total_allocated_bytes() - self._before)


@pytest.mark.parametrize("kind", ["arrow", "rows"])
def test_a_partition_is_posted_while_it_is_read(kind: str) -> None:
    """A writer that collects its rows would be behind by the whole partition."""
    feeds: list[Feed] = []

    def write(bench: Bench, batches: int) -> None:
        feed = Feed(bench, batches)
        settings = settings_for(bench.uri, URI)
        with in_this_thread(bench.loop):
            if kind == "arrow":
                report = post_partition(feed.arrow(), settings, Scope("job"))
            else:
                report = WritePartition(settings, None, None).post(feed.rows(), Scope("job"))
        assert report.acknowledged == batches * BATCH
        feeds.append(feed)

    for batches in (16, 48):
        run(lambda bench, batches=batches: write(bench, batches))  # type: ignore[misc]
    small, large = feeds
    assert large.behind <= small.behind <= 11 * BATCH
    assert large.held <= small.held <= 24 * MIB


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
