# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of tracing and metrics: a trace through a queue, and Prometheus' record of a minute.

usage: python docs/observed.py   (with matplotlib, and Prometheus: `apt-get install prometheus`)

The program starts its own broker. Every query of the dashboard is sent to Prometheus; a query without a
result is an error.
"""

from __future__ import annotations

import asyncio
import html
import io
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import prometheus_client
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import bmq
from bmq.otel import OpenTelemetry
from bmq.prometheus import SessionCollector
from bmq.testing import FaultProxy

mpl.use("svg")
from matplotlib import pyplot

#: Contents of the panels: legend, unit, and Prometheus' series, for each query.
Found = dict[str, list[tuple[str, str, list[Any]]]]

ASSETS = Path(__file__).parent / "assets"
ORDERS = "bmq://bmq.test.mem.priority/orders"
LETTERS = "bmq://bmq.test.mem.priority/letters"
SMALL = "bmq://bmq.test.small.priority/quota"
COLOURS = {"shop": "#3f51b5", "billing": "#00897b", "mail": "#ef6c00"}
SECONDS = 60


# a trace


async def traced(uri: str) -> list[ReadableSpan]:
    """A shop posts an order, billing handles it and posts a letter, mail prints it."""
    exporter = InMemorySpanExporter()
    providers = {name: TracerProvider(resource=Resource({"service.name": name})) for name in COLOURS}
    for provider in providers.values():
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracers = {name: provider.get_tracer(name) for name, provider in providers.items()}

    def connect(name: str) -> bmq.connect:
        return bmq.connect(uri, interceptors=[OpenTelemetry(tracer_provider=providers[name])])

    async with connect("shop") as shop, connect("billing") as billing, connect("mail") as mail:
        orders_out = await shop.open_queue(ORDERS, write=True)
        orders_in = await billing.open_queue(ORDERS, read=True)
        letters_out = await billing.open_queue(LETTERS, write=True)
        letters_in = await mail.open_queue(LETTERS, read=True)
        done = asyncio.Event()

        async def bill(message: bmq.Message) -> None:
            with tracers["billing"].start_as_current_span("charge the card"):
                await asyncio.sleep(0.02)
            await letters_out.post(b"Dear customer")

        async def print_letter(message: bmq.Message) -> None:
            await asyncio.sleep(0.012)
            done.set()

        tasks = [
            asyncio.ensure_future(bmq.consume(orders_in, bill)),
            asyncio.ensure_future(bmq.consume(letters_in, print_letter)),
        ]
        for _ in range(2):  # the first order waits for the subscriptions
            done.clear()
            with tracers["shop"].start_as_current_span("POST /orders", kind=SpanKind.SERVER):
                await asyncio.sleep(0.004)
                await orders_out.post(b"order")
            await done.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    spans = list(exporter.get_finished_spans())
    last = next(span for span in reversed(spans) if span.name == "POST /orders").get_span_context().trace_id
    return [span for span in spans if span.get_span_context().trace_id == last]


def tree(spans: list[ReadableSpan]) -> list[tuple[int, ReadableSpan]]:
    """Spans behind their parents, with their depth."""

    def below(parent: int | None, depth: int) -> list[tuple[int, ReadableSpan]]:
        found = [span for span in spans if (span.parent.span_id if span.parent else None) == parent]
        return [
            each
            for span in sorted(found, key=lambda span: span.start_time or 0)
            for each in [(depth, span), *below(span.get_span_context().span_id, depth + 1)]
        ]

    return below(None, 0)


def draw_trace(spans: list[ReadableSpan]) -> None:
    rows = tree(spans)
    assert len(rows) == len(spans), "every span has its parent"
    start = min(span.start_time or 0 for span in spans)
    end = max(span.end_time or 0 for span in spans)
    left, width, line, top = 330, 560, 26, 58
    full = left + width + 90
    height = top + line * len(rows) + 16
    out = io.StringIO()

    def text(x: float, y: float, what: str, colour: str, size: int = 13, anchor: str = "start") -> None:
        out.write(f'<text x="{x:.1f}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">')
        out.write(f"{what}</text>\n")

    out.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full} {height}" ')
    out.write('font-family="system-ui, sans-serif"><title>A trace through two queues</title>\n')
    out.write(f'<rect width="{full}" height="{height}" rx="8" fill="#ffffff"/>\n')
    for index, (name, colour) in enumerate(COLOURS.items()):
        x = 16 + index * 90
        out.write(f'<rect x="{x}" y="14" width="12" height="12" rx="2" fill="{colour}"/>\n')
        text(x + 18, 25, name, "#333333")
    total = (end - start) / 1e6
    for tick in range(0, int(total) + 1, 10):
        at = left + width * tick / total
        out.write(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top - 8}" y2="{height - 12}" stroke="#e4e4e4"/>\n')
        text(at, top - 14, f"{tick} ms", "#777777", 11, "middle")
    for row, (depth, span) in enumerate(rows):
        y = top + row * line
        began, ended = (span.start_time or 0) - start, (span.end_time or 0) - start
        at, wide = left + width * began / (end - start), max(2.0, width * (ended - began) / (end - start))
        colour = COLOURS[str(span.resource.attributes["service.name"])]
        name = html.escape(span.name.replace("bmq://bmq.test.mem.priority/", ""))
        kind = f'<tspan fill="#999999" font-size="11"> {span.kind.name.lower()}</tspan>'
        text(16 + depth * 18, y + 14, name + kind, "#222222")
        out.write(f'<rect x="{at:.1f}" y="{y + 3}" width="{wide:.1f}" height="14" rx="3" fill="{colour}"/>\n')
        text(at + wide + 6, y + 14, f"{(ended - began) / 1e6:.1f} ms", "#777777", 11)
    out.write("</svg>\n")
    (ASSETS / "trace.svg").write_text(out.getvalue(), encoding="utf-8")


# plots


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.load(answer)


async def traffic(proxy: FaultProxy, session: bmq.Session) -> None:
    """Orders arrive in waves; their consumer is slow for a while, a queue is full, a connection is cut."""
    orders = await session.open_queue(ORDERS, read=True, write=True)
    letters = await session.open_queue(LETTERS, read=True, write=True)
    small = await session.open_queue(SMALL, write=True)
    start = time.monotonic()

    async def handle(message: bmq.Message) -> None:
        slow = 0.35 < (time.monotonic() - start) / SECONDS < 0.55
        await asyncio.sleep(random.uniform(0.02, 0.06) if slow else random.uniform(0.001, 0.004))

    async def read(message: bmq.Message) -> None:
        await asyncio.sleep(random.uniform(0.0005, 0.002))

    working = [
        asyncio.ensure_future(bmq.consume(orders, handle, concurrency=4)),
        asyncio.ensure_future(bmq.consume(letters, read, concurrency=2)),
    ]
    cut = False
    while (past := (time.monotonic() - start) / SECONDS) < 1:
        for _ in range(random.randint(6, 18)):
            orders.post_nowait(b"order" * 20)
        for _ in range(random.randint(2, 6)):
            letters.post_nowait(b"letter")
        await small.post_many([b"quota"])  # the queue is soon full
        if past > 0.7 and not cut:
            cut = True
            proxy.connections[-1].cut()
        await asyncio.sleep(0.1)
    for task in working:
        task.cancel()
    await asyncio.wait(working)


async def scraped(uri: str) -> Found:
    """The results of the dashboard's queries for a minute, by panel: expression, legend, series."""
    dashboard = json.loads((ASSETS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    async with FaultProxy(uri) as proxy, bmq.connect(proxy.uri) as session:
        registry = prometheus_client.CollectorRegistry()
        registry.register(SessionCollector(session))
        server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
        try:
            with prometheus(server.server_port) as url:
                began = time.time()
                await traffic(proxy, session)
                await asyncio.sleep(2)
                return await asyncio.to_thread(ask, url, dashboard, began, time.time())
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def prometheus(scraped: int) -> Generator[str]:
    """A Prometheus with one scrape a second; yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        config, port = Path(folder, "prometheus.yml"), free_port()
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            "scrape_configs:\n- job_name: shop\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{scraped}']}}]\n",
            encoding="utf-8",
        )
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        process = subprocess.Popen(command)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def ask(url: str, dashboard: Any, began: float, ended: float) -> Found:
    version = get(f"{url}/api/v1/status/buildinfo")["data"]["version"]
    found: Found = {}
    print(f"Prometheus {version}: panel, query, series, points, greatest value")
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5s")
            expression = expression.replace("$job", ".*").replace("$queue", ".*")
            answer = get(
                f"{url}/api/v1/query_range", query=expression, start=str(began + 5), end=str(ended), step="1"
            )
            assert answer["status"] == "success", answer
            series = answer["data"]["result"]
            values = [float(value) for each in series for _, value in each["values"] if value != "NaN"]
            greatest = max(values, default=-1)
            print(f"{panel['title']:26} {len(series):2} {len(values):4} {greatest:10.4g}  {target['expr']}")
            unit = panel["fieldConfig"]["defaults"]["unit"]
            found.setdefault(panel["title"], []).append((target["legendFormat"], unit, series))
    for variable in ("job", "queue"):
        names = get(f"{url}/api/v1/label/{variable}/values")["data"]
        print(f"{variable}: {', '.join(names)}")
    empty = [title for title, targets in found.items() if not all(series for *_, series in targets)]
    if empty:
        raise SystemExit(f"queries without an answer: {', '.join(empty)}")
    return found


def draw_plots(found: Found) -> None:
    shown = ("Posted", "Confirmed", "Arrival to confirmation", "Not confirmed", "Refused", "Connections lost")
    pyplot.rcParams.update({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "bmq"})
    figure, axes = pyplot.subplots(3, 2, figsize=(10, 8), sharex=True)
    every = [each for targets in found.values() for *_, series in targets for each in series]
    first = min(at for each in every for at, _ in each["values"])
    for axis, title in zip(axes.flat, shown, strict=True):
        unit = found[title][0][1]
        for legend, _, series in found[title]:
            for each in sorted(series, key=lambda each: str(each["metric"])):
                label = legend
                for name, value in each["metric"].items():
                    label = label.replace(f"{{{{{name}}}}}", value.rpartition("/")[2])
                points = [(at - first, float(value)) for at, value in each["values"] if value != "NaN"]
                if any(value for _, value in points):
                    axis.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
        axis.set_title(title, loc="left", fontweight="bold")
        axis.set_ylabel({"cps": "messages/s", "s": "seconds"}.get(unit, ""))
        axis.set_ylim(0, axis.get_ylim()[1] * 1.35)  # with room for the legend
        axis.grid(alpha=0.25)
        axis.legend(fontsize=7, loc="upper left", ncols=2)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(ASSETS / "metrics.svg", metadata={"Date": None})


async def main() -> None:
    async with bmq.broker.Broker() as broker:
        draw_trace(await traced(broker.uri))
    async with bmq.broker.Broker() as broker:
        draw_plots(await scraped(broker.uri))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
