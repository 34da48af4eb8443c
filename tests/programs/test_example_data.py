# SPDX-License-Identifier: Apache-2.0
"""The demo's records match the description in their README."""

from __future__ import annotations

import csv
import re
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent.parent / "examples" / "data"


@pytest.fixture(scope="module")
def departures() -> list[dict[str, str]]:
    with (DATA / "departures.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_readme_names_every_column(departures: list[dict[str, str]]) -> None:
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE) == list(departures[0])


def test_rows_are_in_order_and_unique(departures: list[dict[str, str]]) -> None:
    assert len(departures) == 4015
    keys = [(row["scheduled"], row["carrier"], int(row["flight"])) for row in departures]
    assert keys == sorted(set(keys))
    assert datetime.fromisoformat(keys[0][0]).tzinfo is not None


def test_unknown_values_match_the_readme(departures: list[dict[str, str]]) -> None:
    assert Counter(row["status"] for row in departures) == {"arrived": 3701, "cancelled": 267, "diverted": 47}
    for row in departures:
        assert (row["dep_delay"] == "") == (row["status"] == "cancelled")
        assert (row["arr_delay"] == "") == (row["status"] != "arrived")
        assert row["tailnum"] or row["status"] == "cancelled"
        known = [row[column] for column in ("dep_delay", "arr_delay", "air_time", "distance") if row[column]]
        assert all(-60 < int(value) < 5000 for value in known)


def test_the_file_is_small_enough_to_ship() -> None:
    assert (DATA / "departures.csv").stat().st_size < 1_000_000
