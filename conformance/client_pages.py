# SPDX-License-Identifier: Apache-2.0
"""Runs ``python -m conformance client`` for one client, and writes ``reports/clients.md`` and its page.

``reports/clients.json`` keeps the differences of the last run of each client, and
``reports/clients.toml`` their names and explanations, so that the table of all clients is written
anew after the run of one::

    python -m conformance.client_pages bmq -- python -m conformance harness
    python -m conformance.client_pages python -- python conformance/clients/official.py
    python -m conformance.client_pages bmqtool -- python conformance/clients/bmqtool.py
    python -m conformance.client_pages java -- java -cp 'build:jars/*' ConformJava

Without a program, the pages are written from the last runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from conformance import Level, Outcome, client_cases, run_client_suite, started

PAGES = Path(__file__).parent / "reports"
RESULTS = PAGES / "clients.json"
FEWEST_SECONDS = 8.0


async def run(program: list[str], *, at_once: int, patience: float) -> dict[str, Any]:
    """Run all cases; return the number of cases, and a record for each that did not pass."""
    report = await run_client_suite(started(program), client_cases(), at_once=at_once, patience=patience)
    return {
        "cases": len(report.results),
        "passed": report.count(Outcome.PASSED),
        "differences": {
            each.case.number: {"outcome": str(each.outcome), "expected": each.expected}
            | {"received": each.received or each.reason}
            for each in report.results
            if each.outcome is not Outcome.PASSED
        },
    }


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def page(client: dict[str, Any], result: dict[str, Any]) -> str:
    """The page of a client: its differences, each explained, and the cases that were not tested."""
    cases = {case.number: case for case in client_cases()}
    numbers = sorted(result["differences"], key=lambda number: cases[number].key)
    differences: dict[str, dict[str, str]] = {number: result["differences"][number] for number in numbers}
    failed = {number: each for number, each in differences.items() if each["outcome"] == "failed"}
    missing = {number: each for number, each in differences.items() if each["outcome"] != "failed"}
    counts = [sum(cases[number].level is level for number in failed) for level in Level]
    lines = [
        f"# {client['title']}",
        "",
        f"{client['tested']} {result['passed']} of {result['cases']} cases passed. "
        f"{counts[0]} `must` cases failed, "
        f"{counts[1]} `should` and {counts[2]} `observed` cases differ, {len(missing)} were not tested.",
        "",
    ]
    if failed:
        lines += ["## Differences", "", "| case | level | expected | received | explanation |"]
        lines += ["| --- | --- | --- | --- | --- |"]
    for number, each in failed.items():
        case = cases[number]
        lines.append(
            f"| {number} {cell(case.title)} | {case.level} "
            f"| {cell(each['expected'])} | {cell(each['received'])} | "
            f"{client['explanations'].get(number, '')} |"
        )
    if missing:
        lines += ["", "## Not tested", "", "| case | reason |", "| --- | --- |"]
    for number, each in missing.items():
        lines.append(f"| {number} {cell(cases[number].title)} | {cell(each['received'])} |")
    return "\n".join(lines).rstrip() + "\n"


def matrix(clients: dict[str, dict[str, Any]], results: dict[str, dict[str, Any]]) -> str:
    """The page of all clients: a row for each case that some client does not pass."""
    names = [name for name in clients if name in results]
    cases = {case.number: case for case in client_cases()}
    lines = [
        "# Clients",
        "",
        "Every client ran all cases of [`python -m conformance client`](../clients.md) on one machine. The "
        "table has the cases that at least one client does not pass. A dash stands for a passed case.",
        "",
        "| case | level | "
        + " | ".join(f"[{clients[name]['short']}](client-{name}.md)" for name in names)
        + " |",
        "| --- | --- |" + " --- |" * len(names),
    ]
    totals = [f"{results[name]['passed']} of {results[name]['cases']}" for name in names]
    lines.append("| passed | | " + " | ".join(totals) + " |")
    for number, case in sorted(cases.items(), key=lambda item: item[1].key):
        outcomes = [results[name]["differences"].get(number, {}).get("outcome", "-") for name in names]
        if set(outcomes) != {"-"}:
            lines.append(f"| {number} {cell(case.title)} | {case.level} | " + " | ".join(outcomes) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run one client, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", help="the client's name in clients.toml")
    parser.add_argument("program", nargs="*", help="the harness, after --")
    parser.add_argument("--at-once", type=int, default=2, help="cases at the same time")
    parser.add_argument("--patience", type=float, default=FEWEST_SECONDS, help="seconds for a step")
    chosen = parser.parse_args()
    clients = tomllib.loads((PAGES / "clients.toml").read_text(encoding="utf-8"))
    if chosen.name not in clients:
        parser.error(f"a client of clients.toml was expected ({', '.join(clients)}), not {chosen.name!r}")
    results: dict[str, dict[str, Any]] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    )
    if chosen.program:
        results[chosen.name] = asyncio.run(
            run(chosen.program, at_once=chosen.at_once, patience=chosen.patience)
        )
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name in clients:
        if name in results:
            (PAGES / f"client-{name}.md").write_text(page(clients[name], results[name]), encoding="utf-8")
            print(f"{name}: {results[name]['passed']} of {results[name]['cases']} passed")
    (PAGES / "clients.md").write_text(matrix(clients, results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
