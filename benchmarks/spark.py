# SPDX-License-Identifier: Apache-2.0
"""Rows a second out of Spark and into Spark, with two properties, and what Spark's driver sustains.

Two cores of Spark share the machine with the broker; the first write and the first read of a Spark are not
measured. Writes are compared with the official client in ``foreachPartition``, and with this client alone,
which posts the same columns: the floor. Reads into Parquet, in a batch and in a stream of three triggers,
are compared with Spark alone: the same rows, generated in Spark's workers. All messages of a stream pass
through the driver, which receives them, writes the log and confirms; *driver* is this part without the
tasks that read the log, and its floor is this client, which only receives and confirms. An earlier version
is not measured.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from functools import cache
from typing import IO

from harness import Bench, Row, Step

ROWS_OF_A_CASE = 50_000

ROWS = [
    Row('write, format("bmq")', "write", "rate", "official write", "post_table", "official >= 3"),
    Row('write, format("bmq")', "write", "cpu_us", "official write"),
    Row("write_partition", "write_partition", "rate", "official write", "post_table"),
    Row("batch read into Parquet", "batch", floor="Spark batch"),
    Row("stream into Parquet", "stream", floor="Spark stream"),
    Row("stream into Parquet", "stream", "cpu_us", floor="Spark stream"),
    Row("driver, one queue", "driver, one queue", floor="received, one queue"),
    Row("driver, eight queues", "driver, eight queues", floor="received, eight queues"),
]


@cache
def _spark(bench: Bench) -> tuple[subprocess.Popen[str], IO[bytes]]:
    """Start the process of all rounds; its start takes longer than a round."""
    command = bench.command("spark", "", bench.count(ROWS_OF_A_CASE))
    complaints = tempfile.TemporaryFile()  # noqa: SIM115
    pipe = subprocess.PIPE
    return subprocess.Popen(**command, stdin=pipe, stdout=pipe, stderr=complaints, text=True), complaints


def _round(bench: Bench) -> dict[str, dict[str, float]]:
    process, complaints = _spark(bench)
    assert process.stdin is not None
    assert process.stdout is not None
    print(file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        complaints.seek(0)
        raise SystemExit(f"Spark failed:\n{complaints.read().decode()}")
    found: dict[str, dict[str, float]] = json.loads(line)
    return found


OURS: list[Step] = []
OTHERS = [_round]
