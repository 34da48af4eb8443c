# SPDX-License-Identifier: Apache-2.0
"""The results of a run as rows of a table, and the lines that explain a failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.case import Level
from conformance.catalogue import GROUPS
from conformance.run import Outcome, Report, Result

__all__ = ["FIELDS", "anchor", "explanation", "group_rows", "record"]

#: Fields of the record of a result. In JSON, a record has the events of a failed case as well.
FIELDS = (
    "number",
    "title",
    "level",
    "outcome",
    "expected",
    "received",
    "reason",
    "seconds",
    "sends",
    "statement",
)


def record(result: Result) -> dict[str, Any]:
    """Return a result as a record of JSON or CSV."""
    found: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(result if hasattr(result, name) else result.case, name)
        found[name] = round(value, 3) if name == "seconds" else str(value)
    if result.trace:
        found["events"] = [
            {
                "connection": each.connection,
                "direction": "sent" if each.sent else "received",
                "size": each.size,
                "hex": each.hex,
                "text": each.text,
            }
            for each in result.trace
        ]
    return found


def group_rows(report: Report) -> Iterator[tuple[str, str, int, int, int, int, int]]:
    """Return a row for each group: number, title, passed, three columns of differences, not tested."""
    for group, title in GROUPS.items():
        results = [each for each in report.results if each.case.key[0] == group]
        if not results:
            continue
        failed = [each.case.level for each in results if each.outcome is Outcome.FAILED]
        yield (
            str(group),
            title,
            sum(each.outcome is Outcome.PASSED for each in results),
            failed.count(Level.MUST),
            failed.count(Level.SHOULD),
            failed.count(Level.OBSERVED),
            sum(each.outcome is Outcome.NOT_TESTED for each in results),
        )


def explanation(result: Result) -> Iterator[str]:
    """Return lines that explain a failure: what was sent, expected and received, and the events."""
    case = result.case
    yield f"sends:     {case.sends}"
    yield f"expects:   {case.expects}"
    yield f"expected:  {result.expected}"
    yield f"received:  {result.received}"
    yield f"statement: {case.statement} (docs/protocol/protocol.md#{anchor('s', case.statement)})"
    for each in result.trace:
        yield from f"  {each}".splitlines()


def anchor(kind: str, number: str) -> str:
    """The anchor of a case or a statement on its page."""
    return f"{kind}-{number.replace('.', '-')}"
