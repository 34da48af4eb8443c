# SPDX-License-Identifier: Apache-2.0
"""Puts measured tables into a page of the documentation, and the picture beside it.

    python benchmarks/page.py [--results build] [--other build/other] [--page docs/performance.md]

Reads the output of the other programs (benchmark.json, scale.json, broker.json, stages.json, and the tables
of :data:`TABLES`) and replaces the text between ``<!-- measured: NAME -->`` and ``<!-- end -->``.
Parts without results stay unchanged. With results of another interpreter or another machine, all results with
a goal are shown side by side.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import memory_hour
import report
from broker import STAGES, one_queue, stored_message
from harness import Series, ratio
from report import Grid, made

# Programs with a whole table as output.
TABLES = (
    "startup", "memory", "idle", "tails", "payloads", "limits", "typed", "lanes", "observed", "waiting",
    "properties", "interpreters", "threads", "cores", "blocking", "blocking_rates",
)  # fmt: skip
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
        f"\n\n{made(document)}"
    }


def embedded(document: dict[str, Any]) -> dict[str, str]:
    one, ten, load = document["end_to_end"], document["ten_subscriptions"], document["many"]
    wire, plain = document["wire_us"], document["plain_wire_us"]
    rows = [
        ["end to end, kept to one core, messages a second", f"{one['rate']:,.0f}", ""],
        [
            "its CPU time a message, end to end",
            f"{one['cpu_us']:.1f} us ({one['one_core']:,.0f} a second)",
            f"{plain:.1f} us: decoding and encoding alone",
        ],
        ["with two properties and ten subscriptions", f"{ten['rate']:,.0f}", ""],
        [
            "its CPU time a message then",
            f"{ten['cpu_us']:.1f} us ({ten['one_core']:,.0f} a second)",
            f"{wire:.1f} us: decoding, encoding and evaluating alone",
        ],
        ["messages through 200 connections and 500 queues", f"{load['posted']:,}", ""],
        ["of these lost, duplicated", f"{load['lost']}, {load['duplicated']}", ""],
        ["posted, then consumed, a second", f"{load['post_rate']:,.0f}, {load['consume_rate']:,.0f}", ""],
        [
            "memory a stored message, above its payload",
            f"{stored_message(load):,.0f} bytes",
            f"{document['parts']:,.0f} bytes: GUID, data, tuple, dictionary",
        ],
        ["memory a queue, with its share of the connections", f"{one_queue(load) / 1000:,.1f} kB", ""],
        *(
            [f"memory {STAGES[when]}", f"{kept / 1e6:,.0f} MB, {used / 1e6:,.0f} MB in use", ""]
            for when, (kept, used) in load["memory"].items()
        ),
    ]
    grid = Grid("", ("the embedded broker", "", "floor in the same run"), rows)
    return {"embedded": f"{grid.markdown()}\n\n{made(document)}"}


def stages(document: dict[str, Any]) -> dict[str, str]:
    floors, code = document["floors"], document["least"]
    columns = ("stage", "us a message", "floor", "code of the floor")
    measured: dict[str, str] = {}
    for name in ("producing", "consuming"):
        rows = [
            [stage, f"{us:.2f}", f"{floors[stage]:.2f}", code[stage]] for stage, us in document[name].items()
        ]
        measured[name] = f"{Grid('', columns, rows).markdown()}\n\n{made(document)}"
    return measured


def table(name: str, document: dict[str, Any]) -> dict[str, str]:
    """Return a table from the output of a program in ``TABLES``."""
    grid = Grid("", tuple(document["columns"]), document["rows"])
    return {name: f"{grid.markdown()}\n\n{made(document)}" if "machine" in document else grid.markdown()}


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


def short(documents: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the main figures in a few lines; nothing unless all of them were measured."""
    if not documents.keys() >= {"benchmark", "tails", "memory", "startup"}:
        return {}
    series = {name: Series(name, results) for name, results in documents["benchmark"]["runs"].items()}

    def times(ours: str, official: str, suffix: str = "") -> str:
        return f"{ratio(series[ours + suffix], series[official + suffix])[0]:.1f} times"

    def every(suffix: str) -> str:
        posts = f"`post_many` {times('post_many', 'official post', suffix)} the official client"
        nowait = f"`post_nowait` {times('post_nowait', 'official post', suffix)}"
        return f"{posts}, {nowait}, `async for` {times('iterate', 'official consume', suffix)}"

    ours, official, raw = (series[name].median("p50_us") for name in ("ack", "official ack", "raw ack"))
    above = [row[3] for row in documents["memory"]["rows"]]
    started = {row[0]: row[1] for row in documents["startup"]["rows"]}
    lines = [
        f"**Throughput**: {every('')}, batches {times('batches', 'official consume')}.",
        f"**Throughput with two properties**: {every(', properties')}.",
        f"**One message at a time**: {ours:.0f} us from the post to the acknowledgement, beside {raw:.0f} us "
        f"of a bare blocking socket and {official:.0f} us of the official client.",
        *_late(documents["tails"]["runs"]),
        f"**Memory of a held message**: {min(above)} to {max(above)} times the sum of its parts.",
        f"**Start**: `import bmq` takes {started['import bmq']} ms of CPU time, an empty program "
        f"{started['python -c pass']} ms, `bmq post` {started['bmq post']} ms.",
    ]
    return {"short": "\n".join(f"- {line}" for line in lines)}


def _late(runs: dict[str, dict[str, list[dict[str, Any]]]]) -> list[str]:
    """Return a line for each path of ``tails.py``: the parts of the official client's latency."""
    lines: list[str] = []
    for case, what in report.TAILS.items():
        found = {int(name.split()[1]): both for name, both in runs.items() if name.split()[0] == case}
        parts: list[str] = []
        for key, name, _ in report.PERCENTILES:
            ratios = [
                statistics.median(
                    a[key] / b[key] for a, b in zip(both["ours"], both["official"], strict=True)
                )
                for both in found.values()
            ]
            least, most = min(ratios), max(ratios)
            parts.append(f"{name} {max(least, 0.01):.2f} to {most:.2f}")
        rates = f"{min(found):,} to {max(found):,} messages a second"
        lines.append(f"**{what}, at {rates}**: {', '.join(parts)} times the official client's latency.")
    return lines


def hour(folder: Path, picture: Path) -> dict[str, str]:
    """Return the result of ``memory_hour.py``, and draw its picture."""
    path = folder / "hour.jsonl"
    if not path.exists():
        return {}
    samples, result = memory_hour.read(path)
    if not result:
        return {}
    memory_hour.draw(samples, result, picture)
    resident = [line["resident"] / 1e6 for line in samples]
    quarters = [resident[at * len(resident) // 4 : (at + 1) * len(resident) // 4] for at in range(4)]
    medians = ", ".join(f"{statistics.median(quarter):.1f}" for quarter in quarters)
    reconnects = " and ".join(f"{count:,}" for count in result["reconnects"])
    missing = result["posted"] - result["received"]
    return {
        "hour": f"In {result['seconds']:,.0f} seconds the process posted {result['posted']:,} messages "
        f"({result['rate']:,.0f} a second), with {reconnects} restored connections. {result['acked']:,} "
        f"were acknowledged, {missing:,} did not arrive, and {result['received again']:,} arrived twice. The "
        f"memory in use was {medians} MB in the median of each quarter, and at most {max(resident):.1f} MB. "
        f"CPython {result['python']}."
    }


def summary(documents: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return each result with a goal: its figure, the goal, and whether the goal is met."""
    benchmark = documents["benchmark"]
    series = {name: Series(name, results) for name, results in benchmark["runs"].items()}
    found = [(f"{row[0]}, times official", *row[3:5]) for row in report.throughput(series).rows]
    found += [(f"{row[0]}, times {row[2].split(':')[0]}", *row[3:5]) for row in report.beside(series).rows]
    found += [(row[0], *row[1:3]) for row in report.reached(benchmark["runs"]) if "16 KiB" in row[0]]
    if "stages" in documents:
        found += [(row[0], *row[1:3]) for row in report.decoding(documents["stages"])]
    if "broker" in documents:
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
    if "tails" in documents:
        report.tails_picture(picture.with_name("tails.png"), documents["tails"])
    for name, document in documents.items():
        measured |= makers[name](document) if name in makers else comparison(document, picture)
    if options.other:
        measured |= side_by_side(documents, read(options.other))
    measured |= goals(documents) | short(documents)
    measured |= hour(options.results, picture.with_name("memory.png"))
    text = options.page.read_text()
    options.page.write_text(
        MARKED.sub(lambda m: f"{m[1]}{measured[m[2]]}\n{m[3]}" if m[2] in measured else m[0], text)
    )


if __name__ == "__main__":
    main()
