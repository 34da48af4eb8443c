# SPDX-License-Identifier: Apache-2.0
"""The page of versions shows the recorded runs of cases and tests, and names tests that exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import works_with

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def program() -> Any:
    return works_with


def test_page_has_the_table_of_the_recorded_runs(program: Any) -> None:
    runs = json.loads(program.RECORD.read_text(encoding="utf-8"))
    assert program.table(runs) in program.PAGE.read_text(encoding="utf-8")
    assert "embedded broker" in [run["release"] for run in runs]


def test_every_feature_has_tests(program: Any) -> None:
    for files in program.FEATURES.values():
        assert [each for each in files if not (ROOT / "tests" / each).is_file()] == []


def test_failed_and_missing_tests_show_in_the_table(program: Any) -> None:
    assert program.cell({"passed": 3, "failed": []}) == "3 of 3"
    assert program.cell({"passed": 2, "failed": ["test_a", "test_b"]}) == "2 of 4: `test_a`, `test_b`"
    assert program.cell({"passed": 0, "failed": []}) == "not run"
    many = {"passed": 2, "failed": [*"1234567"], "not tested": 1}
    assert program.cell(many) == "2 of 9: `1`, `2`, `3`, `4`, `5` and 2 more (1 not tested)"
