# SPDX-License-Identifier: Apache-2.0
"""The table, the page and the picture of ``results.json``.

python benchmarks/report.py    # write RESULTS.md and the picture again
"""

from __future__ import annotations

import ast
import json
import operator
import re
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ASSETS = HERE.parent / "docs" / "assets"
PICTURE = "performance.svg"
COMPARED = ("official", "floor", "before")
COLUMNS = ("path", "figure", "bmq", "official", "times", "floor", "times", "before", "times", "goal")
WRITE = 'write, format("bmq")'
HOLDS = {">=": operator.ge, "<=": operator.le}

INTRODUCTION = """\
# Measurements

This page is made by `make bench` from [`results.json`](results.json).
[Performance](../docs/explain/performance.md) explains the figures.
"""
METHOD = """\
Each program runs its measurements in rounds: a round makes each measurement once, in another order each time.
A measurement is a new process with a new queue; clients and broker share the cores. *bmq* is the median of
the rounds, with the minimum and the maximum, and *times* is the median of the ratios within a round: the
figure of bmq divided by the figure beside it. **Compare the ratios rather than the figures**: the machine is
virtual and shared, and its speed changes. *official* is the package `blazingmq`, based on C++; *floor* is the
least that any client needs for the same work; *before* is an earlier version of bmq.
"""

Row = dict[str, Any]
Document = dict[str, Any]


def number(value: float) -> str:
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:,.{digits}f}"


def ratio(row: Row, other: str) -> float | None:
    """Return the median of the ratios within a round, which cancel slow variations."""
    ratios = [ours / theirs for ours, theirs in zip(row["ours"], row[other], strict=False) if theirs]
    return statistics.median(ratios) if ratios else None


def cells(row: Row) -> list[str]:
    """Return a row of the table."""
    ours = row["ours"]
    spread = f" ({number(min(ours))}-{number(max(ours))})" if len(ours) > 1 else ""
    found = [row["path"], row["unit"], number(statistics.median(ours)) + spread]
    for other in COMPARED:
        times = ratio(row, other)
        found.append(number(statistics.median(row[other])) if row[other] else "")
        found.append("" if times is None else f"{times:.2f}")
    return [*found, goal(row)]


def goal(row: Row) -> str:
    """Return the goal and whether it is met."""
    if not row["goal"]:
        return ""
    other, holds, wanted = row["goal"].split()
    times = ratio(row, other)
    met = times is not None and HOLDS[holds](times, float(wanted))
    return f"{'≥' if holds == '>=' else '≤'} {wanted} {other}: {'met' if met else 'not met'}"


def table(rows: list[Row]) -> str:
    """Return a table as Markdown."""
    heads = ["---", "---", *["---:"] * (len(COLUMNS) - 3), "---"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (COLUMNS, heads, *map(cells, rows)))


def about(document: Document) -> str:
    """Return the machine, the broker and the rounds."""
    machine = document["machine"]
    parts = (
        f"{machine['cpu']}, {machine['cores']} cores, load at the start: {machine['load']}",
        f"Python {machine['python']} (a call of an empty function: {machine['call_ns']} ns)",
        machine["date"],
        f"broker: {document['broker']}",
        f"before: {document['before'] or 'none'}",
        f"{document['rounds']} rounds",
    )
    return "; ".join(parts) + "."


def explanation(program: str) -> str:
    """Return the docstring of a program."""
    text = ast.get_docstring(ast.parse((HERE / f"{program}.py").read_text(encoding="utf-8")))
    assert text is not None
    return text.replace("``", "`")


def results() -> Document:
    """Return what was measured last."""
    found: Document = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    return found


def rates(document: Document) -> dict[str, dict[str, float]]:
    """Return the rates, by path and by whose they are."""
    rows = [row for row in document["programs"]["throughput"] if row["unit"] == "a second"]
    whose = ("ours", "official", "floor")
    return {row["path"]: {key: statistics.median(row[key]) for key in whose} for row in rows}


def summary(document: Document) -> str:
    """Return the most important figures as a list."""
    rows = {(row["path"], row["unit"]): row for each in document["programs"].values() for row in each}

    def times(path: str, unit: str = "a second", other: str = "official") -> str:
        return f"{ratio(rows[path, unit], other):.2g}"

    def middle(path: str, unit: str, whose: str = "ours") -> str:
        return number(statistics.median(rows[path, unit][whose]))

    def paced(unit: str) -> str:
        ratios = [
            ratio(row, "official") or 0.0
            for (path, of), row in rows.items()
            if of == unit and "a second" in path
        ]
        return f"{min(ratios):.2f} to {max(ratios):.2f}"

    def several(**paths: str) -> str:
        return ", ".join(f"{name} {times(path)}" for name, path in paths.items())

    def beside(path: str, unit: str, *others: str) -> str:
        shown = [f"{whose} {middle(path, unit, whose)}" for whose in others]
        return f"{middle(path, unit)} ({', '.join(shown)})"

    posting = {"post_many": "post_many", "post_nowait": "post_nowait, a future each"}
    posting["with two properties"] = "post_many, two properties"
    receiving = {"async for": "async for + confirm", "batches": "batches + confirm"}
    receiving["reading two properties"] = "async for, two properties read"
    one, eight = (times(f"driver, {name}", other="floor") for name in ("one queue", "eight queues"))
    lines = {
        "Posting, times the official client's rate": several(**posting),
        "Receiving, times the official client's rate": several(**receiving),
        "One post to its acknowledgement, us": beside("post to ack", "p50 us", "floor", "official"),
        "At given rates, times the official client's latency": f"p50 {paced('p50 us')}, "
        f"p99 {paced('p99 us')}",
        "A connection cut, s without an acknowledgement": beside(
            "connection cut", "s without ack", "official"
        ),
        "A write of Spark, times the official client's rate in Spark": times(WRITE),
        "A driver of Spark, part of what queues deliver to a bare client": f"one queue {one}, eight {eight}",
    }
    return "\n".join(f"- **{name}**: {text}." for name, text in lines.items())


def page(document: Document) -> str:
    """Return RESULTS.md."""
    picture = f"![Messages a second of each path, beside the official client](../docs/assets/{PICTURE})\n"
    parts = [INTRODUCTION, METHOD, about(document) + "\n", picture]
    for name, each in document["programs"].items():
        parts += [f"## {name.capitalize()}\n", explanation(name) + "\n", table(each) + "\n"]
    return "\n".join(parts)


def picture(document: Document) -> str:
    """Return the rates of each path as bars, beside the official client's and the broker's limit."""
    sys.path.insert(0, str(HERE.parent))
    from docs.sketches import Sketch

    paths = rates(document)
    series = {"ours": ("bmq", "a"), "official": ("official", "n"), "floor": ("the broker's limit", "box")}
    longest = max(max(each.values()) for each in paths.values())
    height, left, room = 52, 230, 440
    sketch = Sketch(760, 40 + height * len(paths), "Messages a second of each path")
    for at, (text, kind) in enumerate(series.values()):
        sketch.box(left + 130 * at, 10, 14, 14, kind)
        sketch.text(left + 20 + 130 * at, 22, text, size=12, at="start")
    for line, (path, each) in enumerate(paths.items()):
        top = 40 + height * line
        sketch.text(left - 10, top + 26, path, at="end", bold=True)
        for at, (key, (_, kind)) in enumerate(series.items()):
            width = max(1, round(room * each[key] / longest))
            sketch.box(left, top + 14 * at, width, 12, kind)
            sketch.text(left + width + 6, top + 11 + 14 * at, f"{each[key]:,.0f}", "dim", size=11, at="start")
    return sketch.svg()


def write(document: Document, folder: Path) -> None:
    """Write the JSON, the page and the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    text = re.sub(r'{\s*"path"[^}]*}', lambda row: " ".join(row[0].split()), json.dumps(document, indent=1))
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    (folder / "RESULTS.md").write_text(page(document), encoding="utf-8")
    if "throughput" in document["programs"]:
        target = ASSETS if folder == HERE else folder
        (target / PICTURE).write_text(picture(document), encoding="utf-8")


if __name__ == "__main__":
    write(results(), HERE)
