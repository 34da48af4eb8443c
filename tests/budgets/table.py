# SPDX-License-Identifier: Apache-2.0
"""The budgets of ``budgets.toml``, compared with the counts of today.

A budget is a little more than the count of today. A greater count shows that a change has made the path more
expensive. A count far below the figure of today is a gain, and must be written into the table: otherwise, a
later change could lose the gain without a failure.
"""

from __future__ import annotations

import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final, cast

from tests.budgets.bench import Counts
from tests.budgets.measures import MEASURES, Measure
from tests.budgets.paths import PATHS

__all__ = ["BUDGETS", "VERSIONS", "Row", "costs", "read", "rows", "write"]

BUDGETS: Final = Path(__file__).with_name("budgets.toml")
#: Interpreters with separate figures. The counts of another interpreter are compared with the figures of the
#: newest older version, and may exceed the budget by a fifth.
VERSIONS: Final = ("3.11", "3.12", "3.13")
_FIFTH = 1.2
#: A count below this part of today's figure must be written into the table.
_FAR_BELOW = 0.85
#: The budget is today's figure times this factor, for measures without whole numbers. On most paths, the
#: difference is less than one call for a message.
_ALLOWANCE = 1.03
#: A smaller difference says nothing: two threads divide the work differently from run to run.
_LEAST = 0.05
#: Allowed blocks for each message beyond today's figure, because caches fill on each path. A whole block for
#: each message would be a leak.
_SPARE = 0.5


@dataclass(frozen=True)
class Row:
    """A count beside the budget.

    Attributes:
        measure: name of the measure.
        path: name of the path of a message.
        count: the count of the present run.
        budget: the greatest allowed count.
        problem: the reason for a failure; "" if the count is right.
    """

    measure: str
    path: str
    count: float
    budget: float
    problem: str


def costs(name: str, counts: Counts) -> dict[str, float]:
    """Return each cost of a path, in the unit of the measure."""
    _, messages, measures = PATHS[name]
    # Without the GIL, memory comes from another allocator.
    elsewhere = ("allocations", "left") if sysconfig.get_config_var("Py_GIL_DISABLED") else ()
    return {
        each: getattr(counts, each) if MEASURES[each].whole else round(getattr(counts, each) / messages, 2)
        for each in measures
        if each not in elsewhere
    }


def budget_of(measure: Measure, today: float) -> float:
    """Return the budget that ``--write`` gives to a figure."""
    if measure.whole:
        return today
    if measure is MEASURES["left"]:
        return round(today + _SPARE, 2)
    return ceil(max(today * _ALLOWANCE, today + _LEAST) * 100) / 100


def read(file: Path) -> dict[str, Any]:
    """Return the table."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


def pair(entry: Any, version: str) -> list[float] | None:
    """Return budget and figure of today for an interpreter, or for the newest older one; None if unknown."""
    if isinstance(entry, list):
        return cast("list[float]", entry)
    known = [each for each in entry or () if _number(each) <= _number(version)]
    return entry[max(known, key=_number)] if known else None


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def running() -> str:
    """Return the running interpreter's version, as written in the table."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def rows(
    table: Mapping[str, Any], counted: Mapping[str, Mapping[str, float]], version: str = running()
) -> Iterator[Row]:
    """Compare counts with the table: a row for each."""
    for measure, found in counted.items():
        entries = table.get(measure, {})
        for path, count in found.items():
            known = pair(entries.get(path), version)
            if known is None:
                yield Row(measure, path, count, 0, "has no budget yet: python -m tests.budgets --write")
                continue
            budget, today = known
            if version not in VERSIONS and not MEASURES[measure].whole:
                budget *= _FIFTH
            problem = ""
            if count > budget:
                problem = f"exceeds the budget; {today:g} when the table was written"
            elif count < today * _FAR_BELOW and count < today - (_SPARE if measure == "left" else _LEAST):
                problem = f"is far below {today:g}: python -m tests.budgets --write keeps the gain"
            yield Row(measure, path, count, budget, problem)


def write(counted: Mapping[str, Mapping[str, float]], version: str = running()) -> None:
    """Write the counts into the table as figures of an interpreter; keep all other figures."""
    before = read(BUDGETS) if BUDGETS.exists() else {}
    text = _HEAD
    for name, measure in MEASURES.items():
        text += f'\n[{name}]\nunit = "{measure.unit}"\n'
        for path, (_, _, measures) in PATHS.items():
            if name not in measures:
                continue
            entry = before.get(name, {}).get(path, {})
            known = {each: pair(entry, each) or [0, 0] for each in VERSIONS}
            count = counted.get(name, {}).get(path)
            if count is not None:
                known[version] = [budget_of(measure, count), count]
            if len({tuple(each) for each in known.values()}) == 1:
                figures = _pair(known[version])
            else:
                columns = (f'"{each}" = {_pair(known[each])}' for each in VERSIONS)
                figures = f"{{ {', '.join(columns)} }}"
            text += f'"{path}" = {figures}\n'
    BUDGETS.write_text(text, encoding="utf-8")


def _pair(figures: list[float]) -> str:
    return f"[{figures[0]:g}, {figures[1] or 0:g}]"  # or 0: no minus sign before a zero


_HEAD = """# SPDX-License-Identifier: Apache-2.0
# What a message may cost on each path: [budget, figure of today], for each interpreter or for all.
# CONTRIBUTING.md says how to change a budget; "python -m tests.budgets" shows the counts.
"""
