# SPDX-License-Identifier: Apache-2.0
"""The output and the pictures of the benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Series, ratio
from rich.console import Console
from rich.table import Table

# Path, our case, the official client's case, the broker's limit, goal as a multiple of the official client,
# and goal as a part of the limit.
PATHS = (
    ("post_many", "post_many", "official post", "raw post", 3.5, 0.6),
    ("post_nowait, a future each", "post_nowait", "official post", "raw post", 2.0, 0.0),
    ("200 tasks awaiting post", "200 tasks", "official post", "raw post", 1.8, 0.0),
    (
        "post_many, two properties",
        "post_many, properties",
        "official post, properties",
        "raw post, properties",
        4.0,
        0.0,
    ),
    (
        "post_nowait, two properties",
        "post_nowait, properties",
        "official post, properties",
        "raw post, properties",
        3.0,
        0.0,
    ),
    ("async for + confirm", "iterate", "official consume", "raw consume", 2.5, 0.0),
    ("batches + confirm", "batches", "official consume", "raw consume", 4.0, 0.6),
    (
        "async for, two properties read",
        "iterate, properties",
        "official consume, properties",
        "raw consume, properties",
        3.0,
        0.0,
    ),
    ("post_many, plain asyncio", "post_many, asyncio", "official post", "raw post", 0.0, 0.0),
    ("batches, plain asyncio", "batches, asyncio", "official consume", "raw consume", 0.0, 0.0),
)
# Case, reference, compared figure, and maximum ratio. CPU time, because rates depend on other load: a worker
# with 0.8 of the rate takes 1.25 times the time.
BESIDE = (
    ("post_many, two properties: CPU us", "post_many, properties", "post_many", "cpu_us", 1.6),
    ("async for, two properties read: CPU us", "iterate, properties", "iterate", "cpu_us", 1.6),
    ("consume(concurrency=1): CPU us", "consume 1", "iterate", "cpu_us", 1 / 0.8),
    ("consume(concurrency=100): CPU us", "consume 100", "iterate", "cpu_us", 1 / 0.7),
    ("consume(concurrency=1, timeout=30): CPU us", "consume 1, timeout", "iterate", "cpu_us", 1 / 0.6),
    ("async for that awaits a handler: CPU us", "iterate, handler", "iterate", "cpu_us", 0.0),
    ("consume(concurrency=1): CPU us", "consume 1", "iterate, handler", "cpu_us", 0.0),
    ("one task awaiting post, p50 us", "ack", "raw ack", "p50_us", 1.6),
    ("one task awaiting post, p99 us", "ack", "raw ack", "p99_us", 2.0),
    ("one task awaiting post, plain asyncio, p50 us", "ack, asyncio", "raw ack", "p50_us", 0.0),
    ("a protocol that resolves a future, p50 us", "future ack", "raw ack", "p50_us", 0.0),
    ("the same, p99 us", "future ack", "raw ack", "p99_us", 0.0),
    ("the same, plain asyncio, p50 us", "future ack, asyncio", "raw ack", "p50_us", 0.0),
    ("one task awaiting post, p50 us", "ack", "future ack", "p50_us", 0.0),
    ("one task awaiting post, plain asyncio, p50 us", "ack, asyncio", "future ack, asyncio", "p50_us", 0.0),
)
_BESIDE = {
    "post_many": "without",
    "iterate": "async for",
    "iterate, handler": "async for that awaits a handler",
    "raw ack": "a bare blocking socket",
    "future ack": "a protocol that resolves a future",
    "future ack, asyncio": "the same, plain asyncio",
}
#: Maximum growth of a message's cost with many queues, subscriptions or posts.
FLAT = 0.15
LATENCIES = (
    ("post to ack", "ack", "official ack", 0.3, 0.4),
    ("post to own message", "push", "official push", 0.3, 0.4),
    ("post to ack, busy_poll", "ack, awake", "official ack", 0.3, 0.4),
    ("post to own message, busy_poll", "push, awake", "official push", 0.3, 0.4),
    ("post to ack, plain asyncio", "ack, asyncio", "official ack", 0.0, 0.0),
    ("post to own message, plain asyncio", "push, asyncio", "official push", 0.0, 0.0),
)


@dataclass(frozen=True)
class Grid:
    """A table that can be printed and written."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]

    def printed(self) -> Table:
        table = Table(title=self.title)
        for i, name in enumerate(self.columns):
            table.add_column(name, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [self.columns, tuple("---:" if i else "---" for i in range(len(self.columns))), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(console: Console, document: dict[str, Any], series: dict[str, Series]) -> None:
    """Print the results. Parts are measured as a whole, so one name of each shows whether it was measured."""
    console.print(f"\n[bold]{where(document)}[/]")
    if "post_many" in series:
        console.print(throughput(series).printed())
    console.print(beside(series).printed())
    if "official ack" in series:
        console.print(latency(series).printed())
    if {"official 16 KiB", "first ack"} <= series.keys():
        console.print(rest(series).printed())


def where(document: dict[str, Any]) -> str:
    """Return a description of the measurement's environment."""
    machine = document["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
        f"{interpreter(machine)}, {machine['date']}; broker: "
        f"{document['broker']}; median of {document['rounds']} runs, {document['count']:,} messages each"
    )


def made(document: dict[str, Any]) -> str:
    """Return the line below a table: the machine, the interpreter, the day, and what was measured."""
    machine, about = document["machine"], document.get("about", "")
    line = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, {machine['date']}"
    return f"*{line}{'; ' if about else ''}{about}.*"


def interpreter(machine: dict[str, Any]) -> str:
    """Return a description of the interpreter's speed."""
    return (
        f" (a call of a function that does nothing: {machine['call_ns']:.0f} ns)"
        if "call_ns" in machine
        else ""
    )


def throughput(series: dict[str, Series]) -> Grid:
    rows = []
    for title, mine, theirs, limit, goal, part in PATHS:
        ours, official, raw = series[mine], series[theirs], series[limit]
        times, low, high = ratio(ours, official)
        share = ratio(ours, raw)[0]
        rows.append(
            [
                title,
                f"{ours.median():,.0f}",
                f"{official.median():,.0f}",
                f"{times:.1f} ({low:.1f}-{high:.1f})",
                _goal(times >= goal, f"{goal:.1f}" if goal else ""),
                f"{raw.median():,.0f}",
                f"{share:.0%}",
                _goal(share >= part, f"{part:.0%}" if part else ""),
                f"{ours.median('cpu_us'):.1f}",
                f"{official.median('cpu_us'):.1f}",
            ]
        )
    return Grid(
        "Messages a second",
        (
            "path", "bmq", "official", "times (spread)", "goal", "broker's limit", "part of it", "goal",
            "CPU us a message", "official",
        ),
        rows,
    )  # fmt: skip


def beside(series: dict[str, Series]) -> Grid:
    rows = []
    for title, mine, other, key, goal in BESIDE:
        if mine not in series or other not in series:
            continue  # measured by an older version of run.py
        times, low, high = ratio(series[mine], series[other], key)
        digits = 2 if key == "cpu_us" else 1
        rows.append(
            [
                title,
                f"{series[mine].median(key):,.{digits}f}",
                f"{_BESIDE[other]}: {series[other].median(key):,.{digits}f}",
                f"{times:.2f} ({low:.2f}-{high:.2f})",
                _goal(times <= goal, f"{goal:.2f}" if goal else ""),
            ]
        )
    return Grid("Beside what it stands on", ("what", "", "beside", "times (spread)", "goal"), rows)


def latency(series: dict[str, Series]) -> Grid:
    rows = []
    for title, mine, theirs, goal50, goal99 in LATENCIES:
        row = [title]
        for key, goal in (("p50_us", goal50), ("p99_us", goal99)):
            ours, official = series[mine].median(key), series[theirs].median(key)
            row += [
                f"{ours:,.0f}",
                f"{official:,.0f}",
                f"{ours / official:.2f}",
                _goal(ours / official <= goal, f"{goal:.1f}" if goal else ""),
            ]
        rows.append(row)
    official = series["official ack"]
    for title, name in (("a bare blocking socket", "raw ack"), ("a bare socket, polled", "raw ack, awake")):
        row = [f"{title}, post to ack"]
        for key in ("p50_us", "p99_us"):
            floor, theirs = series[name].median(key), official.median(key)
            row += [f"{floor:,.0f}", f"{theirs:,.0f}", f"{floor / theirs:.2f}", ""]
        rows.append(row)
    return Grid(
        "Closed loop, one message at a time, us",
        ("path", "p50", "official", "times", "goal", "p99", "official", "times", "goal"),
        rows,
    )


def rest(series: dict[str, Series]) -> Grid:
    ours, raw = series["16 KiB"], series["raw 16 KiB"]
    alone, copied = series["16 KiB, acking"], series["loopback 16 KiB"]
    share = ratio(alone, copied)[0]
    refused = series["official 16 KiB"].results[0]
    first, official = series["first ack"].median("ms"), series["official first ack"].median("ms")
    return Grid(
        "And",
        ("what", "bmq", "to compare"),
        [
            [
                "16 KiB payloads in one go, messages a second",
                f"{ours.median():,.0f}",
                f"pre-encoded: {raw.median():,.0f} (times {ratio(ours, raw)[0]:.2f})",
            ],
            [
                "the same, to a peer that acknowledges and does nothing else",
                f"{alone.median():,.0f}",
                f"loopback copy of pre-encoded events: {copied.median():,.0f} "
                f"(times {share:.2f}, goal {_goal(share >= 0.7, '0.70')})",
            ],
            *(_large_floors(series, copied) if "gathered 16 KiB" in series else ()),
            [
                "the same, official client",
                "",
                f"raised after {refused['posted']:,} messages"
                if refused["raised"]
                else f"posted all {refused['posted']:,}",
            ],
            [
                "import to first ack, ms",
                f"{first:.0f} {_goal(first < 150, '(goal 150)')}",
                f"official: {official:.0f}",
            ],
        ],
    )


def _large_floors(series: dict[str, Series], copied: Series) -> list[list[str]]:
    """Return the unavoidable costs between a client and the copy."""
    rows = []
    for title, name in (
        ("events encoded beforehand, to the same peer", "raw 16 KiB, acking"),
        ("CRC, header and a gathered write, to the same peer", "gathered 16 KiB"),
    ):
        floor = series[name]
        rows.append([title, f"{floor.median():,.0f}", f"loopback copy: times {ratio(floor, copied)[0]:.2f}"])
    return rows


def scale(costs: dict[str, dict[str, list[float]]]) -> Grid:
    """Return the minimum of the rounds, because other load only adds time, and their median."""
    rows = []
    for case, by_count in costs.items():
        least = [min(values) for values in by_count.values()]
        middle = [statistics.median(values) for values in by_count.values()]
        growth = max(least) / least[0]
        rows.append(
            [
                case,
                ", ".join(
                    f"{int(count):,}: {low:.2f} ({mid:.2f})"
                    for count, low, mid in zip(by_count, least, middle, strict=True)
                ),
                f"{growth:.2f} ({max(middle) / middle[0]:.2f})",
                _goal(growth <= 1 + FLAT, f"{1 + FLAT:.2f}") if case != "plain" else "",
            ]
        )
    return Grid(
        "CPU time a message (queues and subscriptions: post, receive, confirm; the others: post)",
        ("what grows", "CPU us a message: least (median)", "most over the first", "goal"),
        rows,
    )


def reached(runs: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """Return latency and large payloads, beside the minimum of a client in Python."""
    series = {name: Series(name, results) for name, results in runs.items()}
    rows: list[list[str]] = []
    if "future ack" in series:
        for title, mine, least, goal in (
            ("one awaited post, p50, times a bare socket", "ack", "future ack", 1.6),
            ("the same on plain asyncio", "ack, asyncio", "future ack, asyncio", 0.0),
        ):
            ours = ratio(series[mine], series["raw ack"], "p50_us")[0]
            floor = ratio(series[least], series["raw ack"], "p50_us")[0]
            rows.append(
                [
                    title,
                    f"{ours:.2f}",
                    _goal(ours <= goal, f"{goal:.2f}" if goal else ""),
                    f"{floor:.2f}: a protocol whose data_received resolves a future",
                    f"{ratio(series[mine], series[least], 'p50_us')[0]:.2f}",
                ]
            )
    if "iterate, handler" in series:
        ours = ratio(series["consume 1"], series["iterate"], "cpu_us")[0]
        floor = ratio(series["iterate, handler"], series["iterate"], "cpu_us")[0]
        above = ratio(series["consume 1"], series["iterate, handler"], "cpu_us")[0]
        row = ["consume(concurrency=1): CPU, times async for", f"{ours:.2f}", _goal(ours <= 1.25, "1.25")]
        rows.append([*row, f"{floor:.2f}: async for that awaits a handler", f"{above:.2f}"])
    if "gathered 16 KiB" in series:
        copied, mine = series["loopback 16 KiB"], series["16 KiB, acking"]
        ours = ratio(mine, copied)[0]
        for name, what in (
            ("gathered 16 KiB", "CRC, header and a gathered write, to the same peer"),
            ("raw 16 KiB, acking", "encoded beforehand, to the same peer"),
        ):
            rows.append(
                [
                    "16 KiB, part of a loopback copy",
                    f"{ours:.2f}",
                    _goal(ours >= 0.7, "0.70"),
                    f"{ratio(series[name], copied)[0]:.2f}: {what}",
                    f"{ratio(mine, series[name])[0]:.2f}",
                ]
            )
    return rows


#: The suffix of floors without checks, after the name of the stage.
UNCHECKED = "the same bytes decoded, nothing checked"
CHECKED = "the same, checked and in an object of its own"
SAFELY = ", checked"

#: Stages with a goal, in microseconds.
DECODING = {
    'batch.column("CustomerId")': 0.25,
    'batch.column("OrderType")': 0.25,
    "Expression.matches, one comparison, properties not read before": 1 / 1.5,
    "with two properties: find and read both": 0.0,
}


def decoding(document: dict[str, Any]) -> list[list[str]]:
    """Return the costs of properties, beside the same bytes decoded by the interpreter alone."""
    floors = document.get("floors", {})
    rows: list[list[str]] = []
    for stage, goal in DECODING.items():
        if stage in floors:
            us, wanted = document["consuming"][stage], f"{goal:.2f}" if goal else ""
            for case, what in ((stage, UNCHECKED), (stage + SAFELY, CHECKED)):
                if (floor := floors.get(case)) is not None:
                    row = [f"{stage}, us", f"{us:.2f}", _goal(us <= goal, wanted)]
                    rows.append([*row, f"{floor:.2f}: {what}", f"{us / floor:.2f}"])
    return rows


def growing(costs: dict[str, dict[str, list[float]]]) -> list[list[str]]:
    """Return the growth of a post's cost with a million unacknowledged posts, beside the memory alone."""
    if "plain" not in costs:
        return []

    def rounds(case: str) -> list[tuple[float, float]]:
        first, *_, last = costs[case].values()
        return list(zip(first, last, strict=True))

    def growth(case: str) -> float:
        return statistics.median([last - first for first, last in rounds(case)])

    times = statistics.median([last / first for first, last in rounds("unacknowledged")])
    ours, floor = growth("unacknowledged"), growth("plain")
    return [
        [
            "a post with a million unacknowledged, us more than the first",
            f"{ours:.2f} ({times:.2f} times)",
            _goal(times <= 1.25, "1.25 times"),
            f"{floor:.2f}: as many GUIDs and tuples put into a dictionary",
            f"{ours / floor:.2f}" if floor > 0 else "",
        ]
    ]


def brokering(document: dict[str, Any]) -> list[list[str]]:
    """Return the costs of the embedded broker, beside its messages' costs on the wire alone."""
    ten = document["ten_subscriptions"]
    floor = document.get("wire_us")
    if floor is None:
        return []
    return [
        [
            "the embedded broker, ten subscriptions, CPU us a message",
            f"{ten['cpu_us']:.1f}",
            _goal(ten["cpu_us"] <= 10, "10.0"),
            f"{floor:.1f}: decoding, encoding and evaluating alone",
            f"{ten['cpu_us'] / floor:.2f}",
        ]
    ]


def _goal(met: bool, goal: str) -> str:
    return f"{goal} {'met' if met else 'not met'}" if goal else ""


#: Colours of this client, the official client and the broker's limit in all pictures.
OURS, THEIRS, LIMIT = "#3f51b5", "#e67e22", "#9e9e9e"
#: Percentiles of the tails, with their names and lines.
PERCENTILES = (("p50", "p50", "-"), ("p99", "p99", "--"), ("p999", "p99.9", ":"))
#: Cases of ``tails.py``, with the titles of their panels.
TAILS = {"ack": "Post to ack", "own": "Post to own message"}


def tails_picture(path: Path, document: dict[str, Any]) -> None:
    """Draw the latency by rate: median, p99 and p99.9 of both clients, a panel for each path."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    runs: dict[str, dict[str, list[dict[str, Any]]]] = document["runs"]
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
    for axes, (case, title) in zip(panels, TAILS.items(), strict=True):
        rates = sorted(int(name.split()[1]) for name in runs if name.split()[0] == case)
        for who, colour, mark in (("ours", OURS, "o"), ("official", THEIRS, "s")):
            for key, _, style in PERCENTILES:
                times = [
                    statistics.median(one[key] for one in runs[f"{case} {rate}"][who]) / 1e6 for rate in rates
                ]
                axes.plot(rates, times, color=colour, linestyle=style, marker=mark, markersize=4)
        axes.set(title=title, xlabel="messages a second", xscale="log", yscale="log")
        axes.set_xticks(rates)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("milliseconds")
    lines = [
        Line2D([], [], color=colour, linestyle=style, marker=mark, markersize=4, label=f"{who}, {name}")
        for who, colour, mark in (("bmq", OURS, "o"), ("official client", THEIRS, "s"))
        for _, name, style in PERCENTILES
    ]
    panels[0].legend(handles=lines, fontsize=8, ncols=2, loc="upper left")
    figure.suptitle(made(document).strip("*."), fontsize=9)
    figure.savefig(path, dpi=110)


def picture(path: Path, document: dict[str, Any], series: dict[str, Series]) -> None:
    """Draw throughput by payload and by batch size, and latency by rate."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure, (by_payload, by_burst, by_rate) = plt.subplots(1, 3, figsize=(13.5, 4.2), layout="constrained")

    def numbers(prefix: str) -> list[int]:
        return sorted({int(name.split()[1]) for name in series if name.startswith(prefix)})

    def line(axes: Any, xs: list[int], value: Callable[[int], float], **style: Any) -> None:
        axes.plot(xs, [value(x) for x in xs], marker="o", markersize=4, **style)

    sizes = numbers("payload ")
    for who, label, colour in (
        ("raw", "broker's limit (pre-encoded)", LIMIT),
        ("ours", "bmq, post_many", OURS),
        ("official", "official client", THEIRS),
    ):
        line(
            by_payload,
            sizes,
            lambda x, who=who: series[f"payload {x} {who}"].median() / 1000,
            label=label,
            color=colour,
        )
    by_payload.set(title="Posting by payload", xlabel="bytes a message", ylabel="thousand messages a second")

    bursts = numbers("burst ")
    line(
        by_burst,
        bursts,
        lambda x: series[f"burst {x}"].median() / 1000,
        label="bmq, post_nowait",
        color=OURS,
    )
    official = series["official post"].median() / 1000
    by_burst.axhline(official, color=THEIRS, label="official client")
    by_burst.set(title="Posting by batch size", xlabel="posts in one turn of the event loop")

    paces = numbers("pace ")
    for who, label, colour in (("ours", "bmq", OURS), ("official", "official client", THEIRS)):
        for key, style in (("p50_us", "-"), ("p99_us", ":")):
            line(
                by_rate,
                paces,
                lambda x, who=who, key=key: series[f"pace {x} {who}"].median(key),
                label=f"{label}, {key[:3]}",
                color=colour,
                linestyle=style,
            )
    by_rate.set(title="Post to ack by rate", xlabel="messages a second", ylabel="microseconds", yscale="log")

    for axes, ticks in ((by_payload, sizes), (by_burst, bursts), (by_rate, paces)):
        axes.set_xscale("log")
        axes.set_xticks(ticks)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    for axes in (by_payload, by_burst):
        axes.set_ylim(bottom=0)
    drawn = [len(one.results) for name, one in series.items() if name.startswith("payload ")]
    figure.suptitle(where(document | {"rounds": min(drawn)}), fontsize=9)
    figure.savefig(path, dpi=110)
