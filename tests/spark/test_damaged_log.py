# SPDX-License-Identifier: Apache-2.0
"""A file of the log that a crash left empty or incomplete is an error with its path and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bmq
from bmq.arrow.decoding import pa
from bmq.spark.log import BatchLog, LogPartition, raw_schema, read_partition
from bmq.spark.schema import OnInvalidMessage
from tests.spark.readers import WHOLE

ROWS = 5


def written(folder: Path) -> Path:
    """Write a batch of a few rows; return its path."""
    log, schema = BatchLog(str(folder)), raw_schema([("bmq://d/q", None)])
    file = log.begin(0, schema)
    plain = [pa.array([0] * ROWS, schema.field(at).type) for at in range(2, len(schema))]
    columns = [pa.array([b"payload"] * ROWS, pa.binary()), pa.array([bytes(16)] * ROWS, pa.binary(16))]
    file.write([pa.RecordBatch.from_arrays([*columns, *plain], schema=schema)])
    return Path(file.finish().path)


def cut(whole: bytes, length: int) -> bytes:
    return whole[:length]


def blank(whole: bytes, length: int) -> bytes:
    """Replace bytes of the file by zeros, as a file system may after a crash."""
    return whole[:8] + bytes(length) + whole[8 + length :]


@pytest.mark.parametrize(
    ("damage", "length"),
    [(cut, 0), (cut, 3), (cut, 900), (blank, 900), (blank, 100_000)],
    ids=lambda given: given if isinstance(given, int) else given.__name__,
)
def test_a_damaged_file_is_named_with_a_remedy(
    tmp_path: Path, damage: Callable[[bytes, int], bytes], length: int
) -> None:
    path = written(tmp_path)
    path.write_bytes(damage(path.read_bytes(), length))
    partition = LogPartition(str(tmp_path), str(path), 0, ROWS)
    remedy = r"is empty or damaged .*delete the file, and start the query once with failOnDataLoss"
    with pytest.raises(bmq.StateError, match=remedy) as caught:
        list(read_partition(partition, WHOLE, OnInvalidMessage.ROW))
    assert str(path) in str(caught.value)


def test_a_whole_file_has_its_rows(tmp_path: Path) -> None:
    partition = LogPartition(str(tmp_path), str(written(tmp_path)), 0, ROWS)
    assert len(next(read_partition(partition, WHOLE, OnInvalidMessage.ROW))) == ROWS
