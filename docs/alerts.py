# SPDX-License-Identifier: Apache-2.0
"""Cause every alert of docs/assets/alerts.yml on a broker, and watch a real Prometheus notice and forget.

    python docs/alerts.py --broker tcp://localhost:30114 [--program /usr/local/bin/bmqbrkr]

Needs Prometheus (`apt-get install prometheus`), the extras cli and prometheus, and a broker with the test
domains; without --broker, an embedded broker takes its place. --program is the executable of a real broker,
for three nodes on loopback with a small domain, which then lose their quorum; without it, the alerts for a
missing primary and for the domain's quota are left out. The causes run at the same time, with the intervals
of a real installation, and last some twelve minutes.

For each alert the script prints the cause, the seconds until Prometheus fired, the output of the command in
the alert's annotation, the remedy, and the seconds until the alert was resolved. Every query of the
dashboard and of the KEDA example is evaluated too; a query without a result is an error. --plots FILE draws
the queries.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bmq
from bmq.conventions import delay_queue_of
from tests.integration.cluster import RealCluster

ROOT = Path(__file__).resolve().parent.parent
PRIORITY = "bmq://bmq.test.mem.priority"
GROWING, UNMATCHED, FULL, EXPIRING, HELD = (
    f"{PRIORITY}/alerts.{name}" for name in ("growing", "unmatched", "full", "expiring", "held")
)
DEAD = f"{PRIORITY}/alerts.dead"
DELAYED = f"{PRIORITY}/alerts.reminders"
EXPIRED = "bmq://bmq.test.ttl.priority/alerts.expired"
SMALL = "bmq://bmq.test.small.priority/alerts.quota"
#: A domain of the cluster, for 20 messages in all of its queues.
FEW = "bmq.test.few.priority"
SCRAPE = 15.0
#: Seconds in which an alert must fire, or be resolved. One alert waits for ten minutes.
PATIENCE = 780.0


@dataclass
class Course:
    """What happened to one alert.

    Attributes:
        labels: labels that identify the alert.
        cause: what was done.
        remedy: what was done against it.
        fired: seconds from the cause to the alert.
        resolved: seconds from the remedy to the end of the alert.
        output: output of the command in the annotation.
    """

    alert: str
    labels: dict[str, str]
    cause: str
    remedy: str
    fired: float | None = None
    resolved: float | None = None
    command: str = ""
    output: str = ""


class Prometheus:
    """A Prometheus with the rules, scraping an exporter."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=20) as answer:
            content = json.load(answer)
        assert content["status"] == "success", content
        return content["data"]

    def firing(self, course: Course) -> dict[str, Any] | None:
        for alert in self.get("alerts")["alerts"]:
            labels = alert["labels"]
            if (
                alert["state"] == "firing"
                and labels["alertname"] == course.alert
                and course.labels.items() <= labels.items()
            ):
                return dict(alert)
        return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


class Narrow:
    """An exporter beside the other one, with a limit of queues that a restart raises."""

    def __init__(self, broker: str, folder: Path) -> None:
        self.port = free_port()
        self._broker, self._folder = broker, folder
        self._running = contextlib.ExitStack()

    def start(self, *options: str) -> None:
        """Start the exporter, instead of a running one."""
        self.stop()
        words = [sys.executable, "-m", "bmq", "exporter", self._broker, "--listen", f"127.0.0.1:{self.port}"]
        words += ["--interval", f"{SCRAPE:g}", *options]
        self._running.enter_context(running(words, self._folder / "narrow.log"))

    def stop(self) -> None:
        """End the exporter."""
        self._running.close()


@contextlib.contextmanager
def watching(brokers: list[str], folder: Path, narrow: int) -> Iterator[Prometheus]:
    """Run an exporter and a Prometheus, which scrapes a further exporter at the port *narrow*."""
    exporter, port = free_port(), free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: {SCRAPE:g}s, evaluation_interval: {SCRAPE:g}s}}\n"
        f"rule_files: ['{ROOT / 'docs' / 'assets' / 'alerts.yml'}']\n"
        "scrape_configs:\n- job_name: blazingmq\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]\n"
        f"- job_name: narrow\n  static_configs: [{{targets: ['127.0.0.1:{narrow}']}}]\n",
        encoding="utf-8",
    )
    words = [sys.executable, "-m", "bmq", "exporter", ",".join(brokers), "--listen", f"127.0.0.1:{exporter}"]
    words += ["--interval", f"{SCRAPE:g}"]
    server = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    server += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    with running(words, folder / "exporter.log"), running(server, folder / "prometheus.log"):
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        for _ in range(300):
            with contextlib.suppress(OSError):
                if prometheus.get("query", query="bmq_broker_up")["result"]:
                    break
            time.sleep(0.2)
        else:
            raise SystemExit((folder / "exporter.log").read_text() + (folder / "prometheus.log").read_text())
        yield prometheus


@dataclass
class Scene:
    """Where the alerts are caused."""

    broker: str
    prometheus: Prometheus
    courses: list[Course] = field(default_factory=list)

    async def follow(
        self,
        course: Course,
        remedy: Callable[[], Awaitable[object]],
        together: asyncio.Barrier | None = None,
    ) -> None:
        """Wait for the alert, run its command, apply the remedy, and wait for the end.

        Alerts with one cause wait for one another before the remedy.
        """
        self.courses.append(course)
        began = time.monotonic()
        alert = await self._until(course, fires=True)
        if alert is None:
            if together is not None:
                await together.abort()
            return
        course.fired = time.monotonic() - began
        course.command = alert["annotations"]["command"]
        course.output = await asyncio.to_thread(self._run, course.command)
        if together is not None:
            await together.wait()
        began = time.monotonic()
        await remedy()
        if await self._until(course, fires=False) is None:
            course.resolved = time.monotonic() - began
        print(
            f"{course.alert}: fired {course.fired:.0f} s, resolved {course.resolved or 0:.0f} s", flush=True
        )

    async def _until(self, course: Course, *, fires: bool) -> dict[str, Any] | None:
        deadline = time.monotonic() + PATIENCE
        alert = None
        while time.monotonic() < deadline:
            alert = await asyncio.to_thread(self.prometheus.firing, course)
            if (alert is not None) is fires:
                return alert
            await asyncio.sleep(0.5)
        return alert

    def _run(self, command: str) -> str:
        words = shlex.split(command)[1:]
        if words[0] == "exporter":
            return ""  # runs until it is stopped
        if words[0] != "doctor":
            words += ["--broker", self.broker]
        done = subprocess.run(
            [sys.executable, "-m", "bmq", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "110"},
            check=False,
        )
        return done.stdout.strip()


async def drain(queue: bmq.Queue) -> None:
    """Consume until cancelled."""
    async for message in queue:
        message.confirm()


@contextlib.asynccontextmanager
async def draining(session: bmq.Session, uri: str) -> Any:
    queue = await session.open_queue(uri, read=True)
    task = asyncio.create_task(drain(queue))
    yield
    task.cancel()
    await asyncio.wait([task])


async def growing(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    writer = await stack.enter_async_context(bmq.connect(scene.broker, process_name="shop"))
    reader = await stack.enter_async_context(bmq.connect(scene.broker, process_name="billing"))
    queue = await writer.open_queue(GROWING, write=True)

    async def post() -> None:
        while True:
            await queue.post(b"order")
            await asyncio.sleep(0.5)

    task = asyncio.create_task(post())
    course = Course(
        "BmqQueueGrowsWithoutConsumers",
        {"queue": GROWING},
        "two posts a second, and no consumer",
        "a consumer starts",
    )
    await scene.follow(course, lambda: stack.enter_async_context(draining(reader, GROWING)))
    task.cancel()
    await asyncio.wait([task])


async def unmatched(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="billing"))
    queue = await session.open_queue(UNMATCHED, read=True, write=True)
    await stack.enter_async_context(queue.subscribe('OrderType == "EXPRESS"'))
    await queue.post_many([bmq.PutMessage(b"order", properties={"OrderType": "STANDARD"})] * 3)
    other = await stack.enter_async_context(bmq.connect(scene.broker, process_name="shipping"))
    course = Course(
        "BmqMessagesMatchNothing",
        {"queue": UNMATCHED},
        'three messages with OrderType "STANDARD", and one subscription: OrderType == "EXPRESS"',
        "a consumer without an expression starts",
    )
    await scene.follow(course, lambda: stack.enter_async_context(draining(other, UNMATCHED)))


async def full(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="billing"))
    queue = await session.open_queue(FULL, read=True, write=True)
    consumer = await stack.enter_async_context(queue.subscribe(max_unconfirmed_messages=2))
    await queue.post_many([b"order"] * 10)
    held = [await consumer.receive() for _ in range(2)]

    async def confirm() -> None:
        for message in held:
            message.confirm()
        for _ in range(8):
            (await consumer.receive()).confirm()

    course = Course(
        "BmqSubscriptionFull",
        {"queue": FULL},
        "ten messages, and a consumer with a limit of two that confirms none",
        "the consumer confirms",
    )
    await scene.follow(course, confirm)


async def quota(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="shop"))
    queue = await session.open_queue(SMALL, write=True)
    await queue.post_many([b"order"] * 9)
    other = await stack.enter_async_context(bmq.connect(scene.broker, process_name="billing"))
    course = Course(
        "BmqQueueNearQuota", {"queue": SMALL}, "nine messages in a queue for ten", "a consumer starts"
    )
    await scene.follow(course, lambda: stack.enter_async_context(draining(other, SMALL)))


async def expiring(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="shop"))
    await (await session.open_queue(EXPIRING, write=True)).post(b"order")
    other = await stack.enter_async_context(bmq.connect(scene.broker, process_name="billing"))
    course = Course(
        "BmqMessagesAboutToExpire",
        {"queue": EXPIRING},
        "a message without a consumer, in a domain with a time to live of 300 s",
        "a consumer starts",
    )
    await scene.follow(course, lambda: stack.enter_async_context(draining(other, EXPIRING)))


async def expired(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="shop"))
    queue = await session.open_queue(EXPIRED, write=True)

    async def post() -> None:
        while True:
            await queue.post(b"order")
            await asyncio.sleep(1)

    task = asyncio.create_task(post())
    other = await stack.enter_async_context(bmq.connect(scene.broker, process_name="billing"))
    course = Course(
        "BmqMessagesExpired",
        {"queue": EXPIRED},
        "a post a second, and no consumer, in a domain with a time to live of two seconds",
        "a consumer starts",
    )
    await scene.follow(course, lambda: stack.enter_async_context(draining(other, EXPIRED)))
    task.cancel()
    await asyncio.wait([task])


async def held(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="billing"))
    queue = await session.open_queue(HELD, read=True, write=True)
    await queue.post_many([b"order"] * 3)
    messages = [await queue.receive() for _ in range(3)]

    async def confirm() -> None:
        for message in messages:
            message.confirm()

    course = Course(
        "BmqConfirmationsMissing",
        {"queue": HELD},
        "three messages, and a consumer that confirms none",
        "the consumer confirms",
    )
    await scene.follow(course, confirm)


async def dead(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    orders, letters = f"{PRIORITY}/alerts.orders", bmq.DeadLetter(DEAD)
    app = bmq.App(scene.broker, process_name="billing")

    @app.consumer(orders, retry=bmq.NoRetry(then=letters))
    async def handle(message: bmq.Message) -> None:
        raise ValueError("no address")

    await stack.enter_async_context(app)
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="operator"))
    await (await session.open_queue(orders, write=True)).post(b"order")
    course = Course(
        "BmqDeadLetters",
        {"queue": DEAD},
        "a handler fails, and its policy puts the message aside",
        "the dead letter is confirmed",
    )
    await scene.follow(course, lambda: stack.enter_async_context(draining(session, DEAD)))


async def unmoved(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="shop"))
    queue = await session.open_queue(DELAYED, write=True)
    await queue.post(b"reminder", delay=240)
    waiting = delay_queue_of(DELAYED)
    course = Course(
        "BmqDelayedMessagesWithoutMover",
        {"queue": waiting},
        "a message with a delay of 240 s, and no mover",
        "a mover starts",
    )
    app = bmq.App(scene.broker, process_name="mover")
    app.mover(waiting)
    await scene.follow(course, lambda: stack.enter_async_context(app))


async def down(scene: Scene, stack: contextlib.AsyncExitStack, port: int) -> None:
    course = Course(
        "BmqBrokerDown",
        {"broker": f"tcp://127.0.0.1:{port}"},
        "no broker listens at one of the addresses",
        "a broker starts there",
    )
    await scene.follow(course, lambda: stack.enter_async_context(bmq.broker.Broker(port=port)))


async def left_out(scene: Scene, stack: contextlib.AsyncExitStack, narrow: Narrow) -> None:
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="shop"))
    for number in range(3):
        await session.open_queue(f"{PRIORITY}/alerts.many.{number}", write=True)
    narrow.start("--max-queues", "2")
    course = Course(
        "BmqQueuesLeftOut",
        {"job": "narrow"},
        "an exporter with `--max-queues 2`, and a broker with more queues",
        "the exporter starts again with `--max-queues 1000`",
    )
    await scene.follow(course, lambda: asyncio.to_thread(narrow.start, "--max-queues", "1000"))


def small_domain(folder: Path) -> None:
    """Give the nodes of the cluster a domain whose quota is smaller than the quotas of its queues."""
    for path in folder.glob("node*/etc/domains/bmq.test.persistent.priority.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        parameters = content["definition"]["parameters"]
        parameters["name"] = FEW
        parameters["storage"]["domainLimits"]["messages"] = 20
        path.with_name(f"{FEW}.json").write_text(json.dumps(content), encoding="utf-8")


async def small(scene: Scene, stack: contextlib.AsyncExitStack) -> None:
    """Fill the domain; the remedy consumes one of its two queues."""
    session = await stack.enter_async_context(bmq.connect(scene.broker, process_name="shop"))
    for name in ("orders", "returns"):
        queue = await session.open_queue(f"bmq://{FEW}/{name}", write=True)
        await queue.post_many([b"order"] * 9)
    other = await stack.enter_async_context(bmq.connect(scene.broker, process_name="billing"))
    course = Course(
        "BmqDomainNearQuota",
        {"domain": FEW},
        "nine messages in each of two queues of a domain for 20",
        "a consumer of one of the queues starts",
    )
    await scene.follow(course, lambda: stack.enter_async_context(draining(other, f"bmq://{FEW}/orders")))


async def of_cluster(scene: Scene, stack: contextlib.AsyncExitStack, cluster: RealCluster) -> None:
    """Fill the small domain, and then kill the primary and another node: the quota needs a primary."""
    await small(scene, stack)
    nodes = list(range(cluster.nodes))
    nodes.remove(await cluster.primary())
    scene.broker = cluster.ways["nodes"][nodes.pop()]
    await leaderless(scene, cluster, [await cluster.primary(), *nodes])


async def leaderless(scene: Scene, cluster: RealCluster, killed: list[int]) -> None:
    for node in killed:
        await cluster.kill(node, signal.SIGKILL)

    async def revive() -> None:
        for node in killed:
            await cluster.revive(node)

    async def revived() -> None:
        """The other course starts the nodes."""

    together = asyncio.Barrier(2)
    cause, remedy = "two of three nodes are killed, the primary and another one", "both nodes start again"
    await asyncio.gather(
        scene.follow(
            Course("BmqPartitionWithoutPrimary", {"partition": "0"}, cause, remedy), revive, together
        ),
        scene.follow(Course("BmqClusterWithoutLeader", {}, cause, remedy), revived, together),
    )


# queries


def dashboard() -> list[tuple[str, str, str, str]]:
    """Return title, unit, legend and expression of all queries."""
    content = json.loads((ROOT / "docs" / "assets" / "grafana-brokers.json").read_text(encoding="utf-8"))
    found: list[tuple[str, str, str, str]] = []
    for panel in content["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "60s")
            for name in ("cluster", "domain", "queue"):
                expression = expression.replace(f"${name}", ".*")
            unit = panel["fieldConfig"]["defaults"]["unit"]
            found.append((panel["title"], unit, target["legendFormat"], expression))
    return found


def ask(prometheus: Prometheus, began: float) -> dict[str, tuple[str, list[tuple[str, Any]]]]:
    """Evaluate the dashboard's queries since the beginning, and KEDA's query."""
    plots: dict[str, tuple[str, list[tuple[str, Any]]]] = {}
    print("\n| panel | series | points | greatest value |\n| --- | --- | --- | --- |")
    empty: list[str] = []
    for title, unit, legend, expression in dashboard():
        series = prometheus.get(
            "query_range", query=expression, start=str(began), end=str(time.time()), step="5"
        )["result"]
        values = [float(value) for each in series for _, value in each["values"] if value != "NaN"]
        print(f"| {title}: {legend} | {len(series)} | {len(values)} | {max(values, default=-1):.4g} |")
        # An in-memory broker has no files, and refuses and expires nothing here.
        if not series and "files" not in title and "in use" not in title:
            empty.append(title)
        plots.setdefault(title, (unit, []))[1].extend((legend, each) for each in series)
    import yaml

    keda = yaml.safe_load((ROOT / "examples" / "keda" / "scaledobject.yaml").read_text(encoding="utf-8"))
    query = keda["spec"]["triggers"][0]["metadata"]["query"].replace(f"{PRIORITY}/orders", GROWING)
    answer = prometheus.get("query_range", query=query, start=str(began), end=str(time.time()), step="15")[
        "result"
    ]
    depths = [float(value) for each in answer for _, value in each["values"]]
    print(f"\nKEDA's query for {GROWING}: {len(depths)} values, 0 to {max(depths, default=-1):.0f}")
    if empty or not depths:
        raise SystemExit(f"queries without an answer: {', '.join(empty)}")
    return plots


def draw(plots: dict[str, tuple[str, list[tuple[str, Any]]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg" if path.suffix == ".svg" else "agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "bmq"})
    shown = {
        title: (unit, moving)
        for title, (unit, series) in plots.items()
        if (
            moving := [each for each in series if any(float(value) > 0.001 for _, value in each[1]["values"])]
        )
    }
    figure, axes = pyplot.subplots((len(shown) + 1) // 2, 2, figsize=(12, 2.5 * len(shown) / 2), sharex=True)
    first = min(at for _, series in shown.values() for _, each in series for at, _ in each["values"])
    for axis in axes.flat[len(shown) :]:
        axis.remove()
    for axis, (title, (unit, series)) in zip(axes.flat, shown.items(), strict=False):
        for legend, each in series:
            label = legend
            for name, value in each["metric"].items():
                label = label.replace(f"{{{{{name}}}}}", value.rpartition("/")[2])
            points = [(at - first, float(value)) for at, value in each["values"] if value != "NaN"]
            axis.plot(*zip(*points, strict=True), label=label.replace("__default ", ""), linewidth=1.3)
        axis.set_title(title, loc="left", fontweight="bold")
        axis.set_ylabel({"cps": "messages/s", "s": "seconds", "percentunit": "share"}.get(unit, ""))
        axis.set_ylim(0, axis.get_ylim()[1] * 1.6)
        axis.grid(alpha=0.25)
        axis.legend(fontsize=6, loc="upper left", ncols=2)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


async def watch(broker: str, program: str | None, plots: Path | None) -> int:
    port = free_port()
    brokers = [broker, f"tcp://127.0.0.1:{port}"]
    began = time.time()
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = None
        if program is not None:
            cluster = RealCluster(program, folder)
            stack.push_async_callback(cluster.stop)
            await cluster.start()
            brokers += cluster.ways["nodes"]
            small_domain(folder)
        narrow = Narrow(broker, folder)
        stack.callback(narrow.stop)
        prometheus = stack.enter_context(watching(brokers, folder, narrow.port))
        scene = Scene(broker, prometheus)
        causes = [
            each(scene, stack)
            for each in (growing, unmatched, full, quota, expiring, expired, held, dead, unmoved)
        ]
        causes += [down(scene, stack, port), left_out(scene, stack, narrow)]
        if cluster is not None:
            elsewhere = Scene(cluster.ways["nodes"][2], prometheus, scene.courses)
            causes.append(of_cluster(elsewhere, stack, cluster))
        await asyncio.gather(*causes)
        found = await asyncio.to_thread(ask, prometheus, began)
    print("\n| alert | caused by | fired after | remedy | resolved after |\n| --- | --- | --- | --- | --- |")
    for each in scene.courses:
        fired, resolved = (
            "never" if seconds is None else f"{seconds:.0f} s" for seconds in (each.fired, each.resolved)
        )
        print(f"| `{each.alert}` | {each.cause} | {fired} | {each.remedy} | {resolved} |")
    for each in scene.courses:
        print(f"\n{each.alert}\n$ {each.command}\n{each.output}")
    if plots is not None:
        draw(found, plots)
    return int(any(each.fired is None or each.resolved is None for each in scene.courses))


async def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--broker", help="address of a broker with the test domains")
    parser.add_argument("--program", help="executable of a real broker, for a cluster")
    parser.add_argument("--plots", type=Path, help="file for a picture of the dashboard's queries")
    chosen = parser.parse_args()
    if chosen.plots is not None:
        importlib.import_module("matplotlib")  # fails now rather than at the end
    if chosen.broker is not None:
        return await watch(chosen.broker, chosen.program, chosen.plots)
    async with bmq.broker.Broker() as broker:
        return await watch(broker.uri, chosen.program, chosen.plots)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
