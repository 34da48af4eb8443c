# SPDX-License-Identifier: Apache-2.0
"""Rows of messages that arrived twice are found once all rows are stored, and are left out of the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.spark._arrow import pa
from bmq.spark._ledger import Arrivals
from bmq.spark._log import BatchLog
from bmq.spark._raw import guid_keys, raw_schema

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
    arrivals = Arrivals()
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
    """The quick look is at 64 of the 128 bits."""
    spread = 0x9E3779B97F4A7C15
    one = (1).to_bytes(8, "little") + spread.to_bytes(8, "little")
    assert array([bytes(16), one]).view(np.uint64).tolist() == [0, 0, 1, spread]
    arrivals = Arrivals()
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
