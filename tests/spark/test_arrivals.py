# SPDX-License-Identifier: Apache-2.0
"""Received messages: the due time of a batch, and rows of messages received twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.arrow.decoding import pa
from bmq.spark.batch_reader import RepeatedRows
from bmq.spark.connection import Seconds
from bmq.spark.log import BatchLog, guid_keys, raw_schema
from bmq.spark.options import Duration, StreamOptions
from bmq.spark.stream_reader import due_at

#: GUIDs that agree in their first half, in their second half, or end with zeros.
GUIDS = [bytes(8) + bytes(8), bytes(8) + b"\1" * 8, b"\1" * 8 + bytes(8), b"\1" * 16, b"\0\1" * 8, b"\2" * 16]


def array(guids: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(guids), "V16")


@given(
    st.lists(
        st.tuples(st.sampled_from(["one", "two"]), st.lists(st.sampled_from(GUIDS), min_size=1, max_size=6)),
        max_size=5,
    )
)
def test_each_row_but_the_first_of_a_message_in_a_queue_is_found(
    arrived: list[tuple[str, list[bytes]]],
) -> None:
    arrivals = RepeatedRows()
    for uri, guids in arrived:
        arrivals.add(uri, array(guids))
    seen: set[tuple[str, bytes]] = set()
    expected: list[int] = []
    rows = [(uri, guid) for uri, guids in arrived for guid in guids]
    for number, row in enumerate(rows):
        if row in seen:
            expected.append(number)
        seen.add(row)
    assert arrivals.repeated().tolist() == expected


def test_guids_with_equal_mixed_halves_are_distinguished() -> None:
    """The fast comparison uses 64 of the 128 bits."""
    spread = 0x9E3779B97F4A7C15
    one = (1).to_bytes(8, "little") + spread.to_bytes(8, "little")
    assert array([bytes(16), one]).view(np.uint64).tolist() == [0, 0, 1, spread]
    arrivals = RepeatedRows()
    arrivals.add("q", array([bytes(16), one]))
    assert arrivals.repeated().tolist() == []
    arrivals.add("q", array([one]))
    assert arrivals.repeated().tolist() == [2]


@pytest.mark.parametrize("gone", [[0], [2], [0, 1], [1, 2, 4], [0, 1, 2, 3, 4, 5]])
def test_a_batch_without_some_rows_has_the_others_in_order(tmp_path: Path, gone: list[int]) -> None:
    log, schema = BatchLog(str(tmp_path)), raw_schema([("q", None)])
    file = log.begin(0, schema)
    guids = [bytes([number]) * 16 for number in range(6)]
    for part in (guids[:1], guids[1:4], guids[4:]):
        count = len(part)
        arrays = [
            pa.array([b"payload"] * count, pa.binary()),
            pa.array(part, pa.binary(16)),
            *(pa.array([0] * count, schema.field(column).type) for column in range(2, 7)),
        ]
        file.write([pa.RecordBatch.from_arrays(arrays, schema=schema)])
    file = file.without(np.array(gone))
    assert file.rows == 6 - len(gone)
    batches, _ = log.read(file.finish().path)
    assert [key for batch in batches for key in guid_keys(batch)] == [
        guid for number, guid in enumerate(guids) if number not in gone
    ]
    assert [path.suffix for path in tmp_path.iterdir()] == [".arrow"], "no file is left behind"


def due(latest: float, *, rows: int = 5, drains: bool = False, linger: float = 0.5) -> tuple[bool, float]:
    """Return whether and when a batch is due whose first message arrived at 100 s."""
    options = StreamOptions(
        min_messages_per_trigger=3, max_trigger_delay=Duration(30), linger=Seconds(linger)
    )
    return due_at(rows, 100.0, latest, options, drains=drains)


def test_a_batch_is_due_after_its_first_message() -> None:
    assert due(100.4) == (True, 100.5)
    assert due(100.4, rows=2) == (False, 130.0), "fewer than the minimum"


def test_a_run_that_drains_the_queue_waits_for_the_last_message_but_not_for_long() -> None:
    """Otherwise the first trigger would have few messages, and take the time of a full trigger."""
    assert due(100.4, drains=True) == (True, 100.9)
    assert due(100.4, rows=2, drains=True) == (True, 100.9)
    assert due(101.9, drains=True) == (True, 102.0)
    assert due(101.9, drains=True, linger=60.0) == (True, 160.0)
