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
