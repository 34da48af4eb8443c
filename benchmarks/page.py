# SPDX-License-Identifier: Apache-2.0
"""Puts measured tables into a page of the documentation, and the picture beside it.

    python benchmarks/page.py [--results build] [--other build/other] [--page docs/performance.md]

Reads the output of the other programs (benchmark.json, scale.json, broker.json, stages.json, startup.json,
memory.json, idle.json) and replaces the text between ``<!-- measured: NAME -->`` and ``<!-- end -->``.
Parts without results stay unchanged. With results of another interpreter or another machine, all results with
a goal are shown side by side.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import report
from broker import STAGES, one_queue, stored_message
from harness import Series
from report import Grid

# Programs that make a whole table themselves.
TABLES = ("startup", "memory", "idle")
MARKED = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def comparison(document: dict[str, Any], picture: Path) -> dict[str, str]:
    series = {name: Series(name, results) for name, results in document["runs"].items()}
    if any(name.startswith("payload ") for name in series):
        report.picture(picture, document, series)
    return {
        "where": f"{report.where(document)}.",
        "throughput": report.throughput(series).markdown(),
        "beside": report.beside(series).markdown(),
        "latency": report.latency(series).markdown(),
        "rest": report.rest(series).markdown(),
    }


def scale(document: dict[str, Any]) -> dict[str, str]:
    costs = report.scale(document["cpu_us"]).markdown()
    return {
        "scale": f"{costs}\n\n"
        f"An unacknowledged message takes {document['window_bytes_a_message']:.0f} bytes above its "
        f"payload; a session with 1,000 open queues takes {document['bytes_of_1000_queues'] / 1e6:.1f} MB."
    }


def embedded(document: dict[str, Any]) -> dict[str, str]:
    one, ten, load = document["end_to_end"], document["ten_subscriptions"], document["many"]
    rows = [
        ["end to end, kept to one core, messages a second", f"{one['rate']:,.0f}"],
        ["its CPU time a message, end to end", f"{one['cpu_us']:.1f} us ({one['one_core']:,.0f} a second)"],
        ["with two properties and ten subscriptions", f"{ten['rate']:,.0f}"],
        ["its CPU time a message then", f"{ten['cpu_us']:.1f} us ({ten['one_core']:,.0f} a second)"],
        ["messages through 200 connections and 500 queues", f"{load['posted']:,}"],
        ["of these lost, duplicated", f"{load['lost']}, {load['duplicated']}"],
        ["posted, then consumed, a second", f"{load['post_rate']:,.0f}, {load['consume_rate']:,.0f}"],
        ["memory a stored message, above its payload", f"{stored_message(load):,.0f} bytes"],
        ["memory a queue, with its share of the connections", f"{one_queue(load) / 1000:,.1f} kB"],
        *(
            [f"memory {STAGES[when]}", f"{kept / 1e6:,.0f} MB, {used / 1e6:,.0f} MB in use"]
            for when, (kept, used) in load["memory"].items()
        ),
    ]
    return {"embedded": Grid("", ("the embedded broker", ""), rows).markdown()}


def stages(document: dict[str, Any]) -> dict[str, str]:
    floors = document.get("floors", {})
    measured: dict[str, str] = {}
    for name in ("producing", "consuming"):
        rows = [
            [stage, f"{us:.2f}", f"{floors[stage]:.2f}" if stage in floors else ""]
            for stage, us in document[name].items()
        ]
        if not any(floor for _, _, floor in rows):
            rows = [row[:2] for row in rows]
        columns = ("stage", "us a message", "floor")[: len(rows[0])]
        measured[name] = Grid("", columns, rows).markdown()
    return measured


def table(name: str, document: dict[str, Any]) -> dict[str, str]:
    """Return a table that its program has made."""
    return {name: Grid("", tuple(document["columns"]), document["rows"]).markdown()}


def goals(documents: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return each goal with a floor from the same run, beside the floor."""
    rows = [*report.reached(documents.get("benchmark", {}).get("runs", {}))]
    if "stages" in documents:
        rows += report.decoding(documents["stages"])
    if "scale" in documents:
        rows += report.growing(documents["scale"]["cpu_us"])
    if "broker" in documents:
        rows += report.brokering(documents["broker"])
    columns = ("what", "measured", "goal", "floor in the same run", "measured / floor")
    return {"goals": Grid("", columns, rows).markdown()} if rows else {}


def summary(documents: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return each result with a goal: its figure, the goal, and whether the goal is met."""
    benchmark = documents["benchmark"]
    series = {name: Series(name, results) for name, results in benchmark["runs"].items()}
    found = [(f"{row[0]}, times official", *row[3:5]) for row in report.throughput(series).rows]
    found += [(f"{row[0]}, times {row[2].split(':')[0]}", *row[3:5]) for row in report.beside(series).rows]
    found += [(row[0], *row[1:3]) for row in report.reached(benchmark["runs"]) if "16 KiB" in row[0]]
    found += [(row[0], *row[1:3]) for row in report.decoding(documents["stages"])]
    found += [(row[0], *row[1:3]) for row in report.brokering(documents["broker"])]
    return {what: (figure, goal) for what, figure, goal in found if goal}


def side_by_side(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return all results with a goal, on two machines or with two interpreters."""
    heads: list[str] = []
    for documents in (one, other):
        machine = documents["benchmark"]["machine"]
        heads.append(f"CPython {machine['python']}{report.interpreter(machine)}")
    left, right = summary(one), summary(other)
    rows: list[list[str]] = []
    for what in [each for each in left if each in right]:
        goal = left[what][1].removesuffix(" met").removesuffix(" not")
        marks = [f"{figure}{'' if 'not' in met else ' ✓'}" for figure, met in (left[what], right[what])]
        rows.append([what, goal, *marks])
    return {"side_by_side": Grid("", ("what", "goal", *heads), rows).markdown()}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    names = ("benchmark", "scale", "broker", "stages", *TABLES)
    paths = {name: folder / f"{name}.json" for name in names}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("build"))
    parser.add_argument("--other", type=Path, help="results of another interpreter or machine")
    parser.add_argument("--page", type=Path, default=Path("docs/performance.md"))
    options = parser.parse_args()
    measured: dict[str, str] = {}
    picture = options.page.parent / "assets" / "performance.png"
    makers: dict[str, Callable[[dict[str, Any]], dict[str, str]]]
    makers = {"scale": scale, "broker": embedded, "stages": stages}
    makers |= {name: partial(table, name) for name in TABLES}
    documents = read(options.results)
    for name, document in documents.items():
        measured |= makers[name](document) if name in makers else comparison(document, picture)
    if options.other:
        measured |= side_by_side(documents, read(options.other))
    measured |= goals(documents)
    text = options.page.read_text()
    options.page.write_text(
        MARKED.sub(lambda m: f"{m[1]}{measured[m[2]]}\n{m[3]}" if m[2] in measured else m[0], text)
    )


if __name__ == "__main__":
    main()
