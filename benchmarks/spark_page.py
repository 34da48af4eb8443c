# SPDX-License-Identifier: Apache-2.0
"""Puts the measurements of Spark into a page of the documentation, with a picture.

    python benchmarks/spark_page.py [--sink build/spark_sink.json] [--source build/spark_source.json]

Reads the ``--output`` of ``spark_sink.py``, ``spark_source.py`` and ``spark_floors.py``, replaces the text
between ``<!-- measured: NAME -->`` and ``<!-- end -->`` in ``docs/spark-performance.md``, and draws
``docs/assets/spark-performance.svg``. Parts without results stay unchanged.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from page import MARKED
from report import Grid

DOCS = Path(__file__).resolve().parent.parent / "docs"
CEILING = "Spark's ceiling, "
#: Users of processor time, with their names on the page and their colours.
ROLES = {
    "client": ("the client alone", "n"),
    "worker": ("Spark's Python worker", "a"),
    "source": ("the stream's Python process", "b"),
    "jvm": ("the JVM", "o"),
}
PARTS = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")

#: The measurements of one case, round by round.
Rounds = list[dict[str, Any]]


def middle(rounds: Rounds, value: Callable[[dict[str, Any]], float]) -> float:
    return statistics.median(value(each) for each in rounds)


def rate(rounds: Rounds) -> float:
    return middle(rounds, lambda one: one["rate"])


def cost(rounds: Rounds, role: str) -> float:
    return middle(rounds, lambda one: one["cpu_us"].get(role, 0.0))


def where(document: dict[str, Any], broker: str) -> str:
    here = document["machine"]
    return (
        f"{here['cpu']}, {here['cores']} cores, Python {here['python']}, {here['date']}; "
        f"broker: {broker or document['broker']}"
    )


# the way in


def rates(results: dict[str, dict[str, dict[str, Rounds]]]) -> Grid:
    """Return all rates in rows a second."""
    columns = [(cores, size) for cores, sizes in results.items() for size in sizes]
    names = dict.fromkeys(name for sizes in results.values() for cases in sizes.values() for name in cases)
    rows: list[list[str]] = []
    for name in sorted(names, key=_order):
        found = [results[cores][size].get(name) for cores, size in columns]
        rows.append([name, *(f"{rate(each):,.0f}" if each else "" for each in found)])
    heads = [
        f"{int(size):,} rows, {cores} core{'s'[: cores != '1']} ({rounds_of(results[cores][size])})"
        for cores, size in columns
    ]
    return Grid("", ("rows a second", *heads), rows)


def rounds_of(cases: dict[str, Rounds]) -> int:
    return max(map(len, cases.values()))


def drawn(sizes: dict[str, dict[str, Rounds]]) -> str:
    """Return the number of rows for which costs are shown: a million, or else the maximum."""
    return "1000000" if "1000000" in sizes else max(sizes, key=int)


def _order(name: str) -> tuple[int, str, bool]:
    """Return the sort key: clients, then batches, then streams; each before its ceiling."""
    plain = name.removeprefix(CEILING)
    kind = next(
        (at for at, word in enumerate(("client", "batch", "stream")) if word in plain.split(",")[0]), 3
    )
    return kind, plain.replace(", cold", " "), name != plain


def parts_of(sizes: dict[str, dict[str, Rounds]]) -> Grid:
    """Return the parts of the bare client's rate, and of Spark's own, within one round each."""
    rows: list[list[str]] = []
    for name in sorted({name for cases in sizes.values() for name in cases}, key=_order):
        if CEILING in name or "client" in name or "cold" in name:
            continue
        for size, cases in sizes.items():
            if name not in cases:
                continue
            tables, spark = cases.get("client, tables", []), cases.get(CEILING + name, [])
            task = cases.get("client, tables, stored as a batch", tables)
            alone = task if name.startswith("batch") else tables
            beside = (tables, cases.get("client, batches", []), spark, _in_turn(alone, spark))
            rows.append([f"{name}, {int(size):,} rows", *(_part(cases[name], each) for each in beside)])
    heads = ("part of the rate of", "`queue.tables`", "`queue.batches`", "Spark alone", "both in turn")
    return Grid("", heads, rows)


def _in_turn(ones: Rounds, others: Rounds) -> Rounds:
    """Combine two cases that run one after the other, each at its own speed."""
    return [{"rate": 1 / (1 / a["rate"] + 1 / b["rate"])} for a, b in zip(ones, others, strict=False)]


def _part(rounds: Rounds, others: Rounds) -> str:
    if not others:
        return ""
    ratios = [one["rate"] / other["rate"] for one, other in zip(rounds, others, strict=False)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def costs(cases: dict[str, Rounds]) -> Grid:
    """Return the processor time of a row, by process."""
    rows: list[list[str]] = []
    for name in sorted(cases, key=_order):
        if "cold" not in name:
            each = [cost(cases[name], role) for role in ROLES]
            rows.append([name, *(f"{us:.1f}" if us else "" for us in each), f"{sum(each):.1f}"])
    return Grid("", ("us a row", *(text for text, _ in ROLES.values()), "all"), rows)


def triggers(cases: dict[str, Rounds]) -> Grid:
    """Return the time of a trigger, by phase."""
    names = [name for name in sorted(cases, key=_order) if "stream of" in name]
    rows = [
        [
            name,
            *(
                f"{middle(cases[name], lambda one, part=part: one['trigger_ms'].get(part, 0)):,.0f}"
                for part in PARTS
            ),
        ]
        for name in names
    ]
    return Grid("", ("ms a trigger", *PARTS), rows)


def memory(sizes: dict[str, dict[str, Rounds]]) -> Grid:
    """The largest resident memory of each process."""
    names = dict.fromkeys(name for cases in sizes.values() for name in cases)
    kept = [name for name in sorted(names, key=_order) if "client" not in name and "cold" not in name]
    rows: list[list[str]] = []
    for name in kept:
        for role, title in (("worker", "worker"), ("source", "source"), ("jvm", "JVM")):
            cells = [
                middle(cases[name], lambda one: one["memory"].get(role, 0) / 2**20) if name in cases else 0.0  # noqa: B023
                for cases in sizes.values()
            ]
            if role != "source" or "stream" in name:
                rows.append([f"{name}: {title}", *(f"{each:,.0f}" if each else "" for each in cells)])
    return Grid("", ("MiB", *(f"{int(size):,} rows" for size in sizes)), rows)


# the way out


def parts_of_sink(cores: dict[str, dict[str, dict[str, Rounds]]]) -> Grid:
    """Return the ratios to the bare client, to the official client in Spark, and to the ceiling."""
    rows: list[list[str]] = []
    for number, sizes in cores.items():
        for size, cases in sizes.items():
            if not any("client" in name for name in cases):
                continue
            ours = cases.get('format("bmq"), Arrow', [])
            tables, spark = cases.get("this client alone, post_table", []), cases.get(f"{CEILING}Arrow", [])
            beside = (
                cases.get("this client alone, post_many", []),
                cases.get("official client, rows", []),
                _in_turn(tables, spark),
            )
            found = [_part(ours, each) for each in beside]
            rows.append([f"{int(size):,} rows, {number} core{'s'[: number != '1']}", *found])
    heads = (
        '`format("bmq")`, times the rate of',
        "`post_many` alone",
        "the official client in Spark",
        "Spark and `post_table` in turn",
    )
    return Grid("", heads, rows)


# the picture

_STYLE = """
 text{fill:#24292f} .dim{fill:#6e7781} .a{fill:#4b7bec} .b{fill:#20a37a} .n{fill:#8c959f} .o{fill:#e0a030}
 .line{stroke:#d0d7de}
 @media (prefers-color-scheme: dark){
  text{fill:#e6edf3} .dim{fill:#9da7b3} .line{stroke:#3d444d}
 }
"""
_LEFT, _RIGHT, _BAR = 290, 96, 24

#: A name, the processor time of a row by colour class, and a rate.
Bar = tuple[str, list[tuple[str, float]], float]


def bars(cases: dict[str, Rounds]) -> list[Bar]:
    return [
        (name, [(kind, cost(cases[name], role)) for role, (_, kind) in ROLES.items()], rate(cases[name]))
        for name in sorted(cases, key=_order)
        if "cold" not in name
    ]


def picture(groups: list[tuple[str, list[Bar]]]) -> str:
    """Draw bars of the processor time of a row, stacked by process, with the rates beside them."""
    width, y = 820, 52
    body: list[str] = []

    def text(x: float, at: float, what: str, kind: str = "", size: int = 12, anchor: str = "start") -> None:
        body.append(
            f'<text x="{x:.0f}" y="{at:.0f}" font-size="{size}" text-anchor="{anchor}" class="{kind}">'
            f"{escape(what)}</text>"
        )

    x = _LEFT
    for label, kind in ROLES.values():
        body.append(f'<rect class="{kind}" x="{x}" y="12" width="11" height="11" rx="2"/>')
        text(x + 16, 22, label, size=11)
        x += 26 + round(5.8 * len(label))
    text(_LEFT - 10, 22, "us of processor time a row", "dim", 11, "end")
    for title, shown in groups:
        if not shown:
            continue
        text(16, y + 14, title, size=13)
        text(width - 12, y + 14, "rows a second", "dim", 11, "end")
        y += 26
        longest = max(sum(us for _, us in parts) for _, parts, _ in shown)
        scale = (width - _LEFT - _RIGHT - 44) / longest
        for name, parts, rows in shown:
            quiet = "dim" if name.startswith(CEILING) else ""
            pale = ' opacity="0.5"' if quiet else ""
            text(_LEFT - 10, y + 13, name, quiet, 11, "end")
            x = float(_LEFT)
            for kind, us in parts:
                if us:
                    body.append(
                        f'<rect class="{kind}"{pale} x="{x:.1f}" y="{y}" width="{us * scale:.1f}" '
                        'height="17"/>'
                    )
                    x += us * scale
            text(x + 6, y + 13, f"{sum(us for _, us in parts):.1f}", quiet, 11)
            text(width - 12, y + 13, f"{rows:,.0f}", quiet, 11, "end")
            y += _BAR
        y += 16
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" font-family="sans-serif" '
        'role="img" aria-label="Processor time of a row by the process that uses it, and rows a second, out '
        'of Spark and into it">'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", *body, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sink", type=Path, default=Path("build/spark_sink.json"))
    parser.add_argument("--source", type=Path, default=Path("build/spark_source.json"))
    parser.add_argument("--floors", type=Path, default=Path("build/spark_floors.json"))
    parser.add_argument("--broker", default="", help="what to call the broker")
    options = parser.parse_args()
    measured: dict[str, str] = {}
    groups: list[tuple[str, list[Bar]]] = []
    if options.sink.exists():
        sink = json.loads(options.sink.read_text())
        sizes = sink["results"][next(iter(sink["results"]))]
        size = drawn(sizes)
        measured |= {
            "where_out": f"{where(sink, options.broker)}; medians; in brackets of how many rounds.",
            "out": rates(sink["results"]).markdown(),
            "parts_out": parts_of_sink(sink["results"]).markdown(),
            "costs_out": costs(sizes[size]).markdown(),
            "memory_out": memory(sizes).markdown(),
        }
        groups.append((f"Out of Spark: posting {int(size):,} rows", bars(sizes[size])))
    if options.source.exists():
        source = json.loads(options.source.read_text())
        results = source["results"]
        sizes = results[next(iter(results))]
        size = drawn(sizes)
        cases = sizes[size]
        measured |= {
            "where_in": f"{where(source, options.broker)}; medians; in brackets of how many rounds.",
            "in": rates(results).markdown(),
            "parts": parts_of(sizes).markdown(),
            "costs": costs(cases).markdown(),
            "triggers": triggers(cases).markdown(),
            "memory": memory(sizes).markdown(),
        }
        if "stages" in source:
            rows = [[name, f"{us:.2f}"] for name, us in source["stages"].items()]
            measured["stages"] = Grid("", ("what a stream adds", "us a row"), rows).markdown()
        groups.append((f"Into Spark: reading {int(size):,} rows", bars(cases)))
    if options.floors.exists():
        floors = json.loads(options.floors.read_text())
        measured["where_floors"] = f"{where(floors, options.broker)}; {floors['rows']:,} rows."
        measured |= {name: Grid(**each).markdown() for name, each in floors["tables"].items()}
    page = DOCS / "spark-performance.md"
    page.write_text(
        MARKED.sub(
            lambda m: f"{m[1]}{measured[m[2]]}\n{m[3]}" if m[2] in measured else m[0], page.read_text()
        )
    )
    if len(groups) == 2:
        (DOCS / "assets" / "spark-performance.svg").write_text(picture(groups))


if __name__ == "__main__":
    main()
