# SPDX-License-Identifier: Apache-2.0
"""What a message costs on each path, in calls, memory, writes and wake-ups, beside ``budgets.toml``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.budgets.measures import MEASURES
from tests.budgets.paths import PATHS
from tests.budgets.table import BUDGETS, VERSIONS, budget_of, pair, read, rows


def test_every_path_stays_within_its_budgets() -> None:
    """All paths in one small process: pytest's own has a heap that takes seconds to count."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.budgets", "--json"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    wrong = [
        f"{row.path}: {row.count:g} {MEASURES[row.measure].unit} of {row.budget:g}: {row.problem}"
        for row in rows(read(BUDGETS), json.loads(ran.stdout))
        if row.problem
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_has_a_budget_near_the_figure_of_today_for_each_path_measure_and_interpreter() -> None:
    table = read(BUDGETS)
    assert list(table) == list(MEASURES)
    for name, measure in MEASURES.items():
        entries = table[name]
        assert entries.pop("unit") == measure.unit
        assert list(entries) == [path for path, (_, _, measures) in PATHS.items() if name in measures]
        for path, entry in entries.items():
            for version in VERSIONS:
                known = pair(entry, version)
                assert known is not None
                budget, today = known
                assert today <= budget <= budget_of(measure, today * 1.05), (name, path)


def problem(measure: str, count: float, entry: Any = None, version: str = "3.12") -> str:
    table = {measure: {"p": entry or {"3.11": [21, 20], "3.12": [11, 10]}}}
    (row,) = rows(table, {measure: {"p": count}}, version)
    return row.problem


def test_a_count_above_its_budget_or_far_below_the_figure_of_today_is_a_problem() -> None:
    assert problem("calls", 11.1) == "exceeds the budget; 10 when the table was written"
    assert problem("calls", 11.0) == problem("calls", 8.5) == ""
    assert problem("calls", 8.4).startswith("is far below 10: ")
    assert problem("calls", 11.1, version="3.11").startswith("is far below 20: ")
    assert problem("writes", 2, [1, 1]) == "exceeds the budget; 1 when the table was written"
    assert problem("writes", 1, [1, 1]) == ""
    assert problem("left", 0.0, [0.3, 0.2]) == "", "a fraction of a block is no gain"


def test_an_interpreter_without_figures_has_those_of_the_newest_before_it_and_a_fifth_more() -> None:
    assert problem("calls", 13.2, version="3.14") == ""
    assert problem("calls", 13.3, version="3.14").startswith("exceeds")
    assert problem("calls", 1, version="3.10").startswith("has no budget yet")
