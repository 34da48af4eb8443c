# SPDX-License-Identifier: Apache-2.0
"""The results of a run as JSON, and as a page of documentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from conformance.case import Case, Level
from conformance.catalogue import GROUPS
from conformance.run import Outcome, Report, Result

__all__ = ["as_json", "as_markdown", "group_rows"]


def _result(result: Result) -> dict[str, Any]:
    case = result.case
    found: dict[str, Any] = {
        "number": case.number,
        "title": case.title,
        "level": str(case.level),
        "statement": case.statement,
        "outcome": str(result.outcome),
        "seconds": round(result.seconds, 3),
        "sends": case.sends,
        "expects": case.expects,
    }
    if result.reason:
        found["reason"] = result.reason
    if result.outcome is Outcome.FAILED:
        found["expected"] = result.expected
        found["received"] = result.received
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


def as_json(report: Report) -> dict[str, Any]:
    """Return the results as values of JSON."""
    return {
        "broker": report.broker,
        "version": report.version,
        "conforms": report.conforms,
        "verdict": report.verdict,
        "died": report.died,
        "seconds": round(report.seconds, 3),
        "passed": report.count(Outcome.PASSED),
        "failed": {str(level): report.count(Outcome.FAILED, level) for level in Level},
        "not_tested": report.count(Outcome.NOT_TESTED),
        "cases": [_result(each) for each in report.results],
    }


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
    yield f"statement: {case.statement} (docs/protocol/protocol.md#{_anchor('s', case.statement)})"
    for each in result.trace:
        yield from f"  {each}".splitlines()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def as_markdown(report: Report, title: str) -> str:
    """Return a page of documentation: a table of the groups, the differences, the cases not tested."""
    lines = [
        f"# {title}",
        "",
        f"{report.count(Outcome.PASSED)} of {len(report.results)} cases passed. "
        f"{report.count(Outcome.FAILED, Level.MUST)} `must` cases failed, "
        f"{report.count(Outcome.FAILED, Level.SHOULD)} `should` cases and "
        f"{report.count(Outcome.FAILED, Level.OBSERVED)} `observed` cases differ, "
        f"{report.count(Outcome.NOT_TESTED)} were not tested. The broker calls itself `{report.version}`.",
        "",
        "| group | passed | must | should | observed | not tested |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for number, name, passed, must, should, observed, not_tested in group_rows(report):
        lines.append(f"| {number} {name} | {passed} | {must} | {should} | {observed} | {not_tested} |")
    lines += ["", "The columns `must`, `should` and `observed` count differences.", ""]
    different = [each for each in report.results if each.outcome is Outcome.FAILED]
    if different:
        lines += ["## Differences", "", "| case | level | expected | received |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {each.case.number} {_cell(each.case.title)} | {each.case.level} | {_cell(each.expected)} | "
            f"{_cell(each.received)} |"
            for each in different
        ]
        lines.append("")
    missing = [each for each in report.results if each.outcome is Outcome.NOT_TESTED]
    if missing:
        lines += ["## Not tested", "", "| case | reason |", "| --- | --- |"]
        lines += [
            f"| {each.case.number} {_cell(each.case.title)} | {_cell(each.reason)} |" for each in missing
        ]
        lines.append("")
    return "\n".join(lines)


def catalogue_markdown(cases: Iterable[Case]) -> str:
    """Return a page of documentation with all cases."""
    lines = [
        "# Cases",
        "",
        "Every case of `python -m conformance`: what the suite sends, what it expects, and the statement of",
        "the [protocol](../../docs/protocol/protocol.md) that the case checks. Groups below 20 are for",
        "brokers, the others for clients.",
    ]
    group = 0
    for case in cases:
        if case.key[0] != group:
            group = case.key[0]
            lines += [
                "",
                f"## {group} {GROUPS[group]}",
                "",
                "| case | level | statement | sends | expects |",
                "| --- | --- | --- | --- | --- |",
            ]
        lines.append(
            f'| <a id="{_anchor("c", case.number)}"></a>{case.number} {_cell(case.title)} | {case.level} | '
            f"[{case.statement}](../../docs/protocol/protocol.md#{_anchor('s', case.statement)}) | "
            f"{_cell(case.sends)} | {_cell(case.expects)} |"
        )
    return "\n".join(lines) + "\n"


def _anchor(kind: str, number: str) -> str:
    """The anchor of a case or a statement on its page."""
    return f"{kind}-{number.replace('.', '-')}"
