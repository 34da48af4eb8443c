# SPDX-License-Identifier: Apache-2.0
"""Puts measured tables into a page of the documentation, and the picture beside it.

    python benchmarks/page.py [--results build] [--page docs/performance.md]

Reads what the other programs wrote (benchmark.json, scale.json, broker.json, stages.json) and replaces what
stands between ``<!-- measured: NAME -->`` and ``<!-- end -->``. What has no results stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import report
from broker import STAGES, one_queue, stored_message
from harness import Series
from report import Grid

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


def goals(documents: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Every goal that has a floor measured in the same run, beside that floor."""
    rows = [*report.reached(documents.get("benchmark", {}).get("runs", {}))]
    if "stages" in documents:
        rows += report.decoding(documents["stages"])
    if "scale" in documents:
        rows += report.growing(documents["scale"]["cpu_us"])
    if "broker" in documents:
        rows += report.brokering(documents["broker"])
    columns = ("what", "measured", "goal", "floor in the same run", "measured / floor")
    return {"goals": Grid("", columns, rows).markdown()} if rows else {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("build"))
    parser.add_argument("--page", type=Path, default=Path("docs/performance.md"))
    options = parser.parse_args()
    measured: dict[str, str] = {}
    picture = options.page.parent / "assets" / "performance.png"
    makers = {"scale": scale, "broker": embedded, "stages": stages}
    documents: dict[str, dict[str, Any]] = {}
    for name in ("benchmark", *makers):
        path = options.results / f"{name}.json"
        if path.exists():
            document = documents[name] = json.loads(path.read_text())
            measured |= makers[name](document) if name in makers else comparison(document, picture)
    measured |= goals(documents)
    text = options.page.read_text()
    options.page.write_text(
        MARKED.sub(lambda m: f"{m[1]}{measured[m[2]]}\n{m[3]}" if m[2] in measured else m[0], text)
    )


if __name__ == "__main__":
    main()
