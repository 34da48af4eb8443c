# SPDX-License-Identifier: Apache-2.0
"""Kill the nodes of a cluster while this client and the official client post and consume.

    python benchmarks/failover.py --broker /usr/local/bin/bmqbrkr

Starts three real nodes and a proxy on loopback. Each round kills a different process, with SIGKILL or
SIGTERM, restarts it, and balances the books: posted messages, their outcomes, and arrived messages. Both
clients have the same queues, with eventual and strong consistency, priority and fanout. Each client connects
twice, to the nodes (this client knows all addresses, the official client takes one) and to the proxy, each
time in a separate process. Without --broker, an embedded broker replaces the cluster, to test the benchmark
itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bmq
from bmq.testing import History, Verdict, examine, fresh_queue_uri
from tests.integration.chaos import connections, everything_arrives, payload
from tests.integration.cluster import PROXY, Cluster, EmbeddedNode, RealCluster

#: The queues, by their kind.
DOMAINS = {
    "priority eventual": "bmq.test.persistent.priority",
    "priority strong": "bmq.test.persistent.priority.sc",
    "fanout eventual": "bmq.test.persistent.fanout",
    "fanout strong": "bmq.test.persistent.fanout.sc",
}
APP_IDS = ("foo", "bar")
#: Posts a second to each queue.
RATE = 50
#: Timeout of a single step, in seconds.
DEADLINE = 90.0
#: Rules without a meaning for the official client, because it does not mark redelivered messages.
OFFICIAL_LEAVES_OUT = ("order", "again")
_OPEN = frozenset({"UNKNOWN", "TIMEOUT", "CANCELED", "NOT_CONNECTED"})


def apps() -> dict[str, str]:
    """Return the receiving application of each queue."""
    found = {}
    for name in DOMAINS:
        for app_id in APP_IDS if name.startswith("fanout") else ("",):
            found[f"{name}/{app_id}" if app_id else name] = name
    return found


# ---- one client in a separate process: prints "ready", runs until told to stop, and leaves a history


class Ours:
    """This project's client: one session posts, another consumes."""

    def __init__(self, broker: str, uris: dict[str, str], history: History) -> None:
        self.broker, self.uris, self.history = broker, uris, history
        self.posting = True

    async def run(self) -> None:
        """Post and consume until told to stop; then wait for pending work."""
        loop = asyncio.get_running_loop()
        async with self.session("producer") as producer, self.session("consumer") as consumer:
            consumers = []
            for app, name in apps().items():
                app_id = app.partition("/")[2]
                queue = await consumer.open_queue(
                    self.uris[name] + (f"?id={app_id}" if app_id else ""), read=True
                )
                consumers.append(asyncio.create_task(self.consume(queue)))
            written = {name: await producer.open_queue(uri, write=True) for name, uri in self.uris.items()}
            posting = [asyncio.create_task(self.post(name, queue)) for name, queue in written.items()]
            print("ready", flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
            self.posting = False
            await asyncio.gather(*posting)
            with contextlib.suppress(TimeoutError):  # the history shows posts without an outcome
                async with asyncio.timeout(DEADLINE):
                    for queue in written.values():
                        await queue.flush()
            await everything_arrives(self.history, DEADLINE)
            for task in consumers:
                task.cancel()

    def session(self, name: str) -> bmq.client.connect.connect:
        recorder = self.history.process(name)
        return bmq.connect(
            self.broker,
            process_name=f"failover {name}",
            interceptors=[recorder],
            on_event=recorder.on_event,
        )

    async def post(self, name: str, queue: bmq.Queue) -> None:
        """Post without waiting for outcomes."""
        number = 0
        for due in beats():
            await asyncio.sleep(due - time.monotonic())
            if not self.posting:
                return
            with contextlib.suppress(bmq.BufferFull):
                post = queue.post_nowait(payload(name, number))
                post.add_done_callback(asyncio.Future.exception)
                number += 1

    async def consume(self, queue: bmq.Queue) -> None:
        """Confirm all messages."""
        async for message in queue:
            message.confirm()


class OfficialClient:
    """Sessions of the official client, with callbacks from its own threads.

    Messages are identified by the beginning of their payload, up to the filling dots.

    Args:
        broker: address of the broker.
        history: records all operations.
        timeout: timeout for opening, in seconds.

    Attributes:
        buffer_full: number of refused posts.
    """

    def __init__(self, broker: str, history: History, timeout: float) -> None:
        import blazingmq

        self._blazingmq = blazingmq
        self._broker, self._history, self._timeout = broker, history, timeout
        self.buffer_full = 0

    def session(self, name: str) -> Any:
        """Start a session that records and confirms each message."""
        history, connection = self._history, 0

        def on_event(event: Any) -> None:
            nonlocal connection
            what = type(event).__name__
            if what in ("Connected", "ConnectionLost", "StateRestored"):
                connection += what == "ConnectionLost"
                history.record(name, "connection", "fail" if what == "ConnectionLost" else "ok", event=what)

        def on_message(message: Any, handle: Any) -> None:
            where = {"queue": message.queue_uri, "message": _identity(message.data)}
            history.record(name, "deliver", "ok", connection=f"0.{connection}", **where)
            handle.confirm()
            history.record(name, "confirm", "ok", **where)

        return self._blazingmq.Session(
            on_event,
            on_message=on_message,
            broker=self._broker,
            timeout=self._timeout,
            num_processing_threads=1,
        )

    def post(self, session: Any, uri: str, data: bytes, then: Callable[[], None] = lambda: None) -> bool:
        """Post a message; return whether the client has accepted it."""
        where = {"queue": uri, "message": _identity(data)}

        def on_ack(ack: Any) -> None:
            status = ack.status.name
            kind: Any = "ok" if status == "SUCCESS" else "unknown" if status in _OPEN else "fail"
            self._history.record("producer", "post", kind, status=status, **where)
            then()

        self._history.record("producer", "post", "invoke", **where)
        try:
            session.post(uri, data, on_ack=on_ack)
        except self._blazingmq.Error as error:
            self.buffer_full += 1
            self._history.record("producer", "post", "fail", error=type(error).__name__, **where)
            return False
        return True

    def wait(self, seconds: float) -> None:
        """Wait up to this many seconds until no message is in flight."""
        limit = time.monotonic() + seconds
        while self._history.pending() and time.monotonic() < limit:
            time.sleep(0.1)


def _identity(data: bytes) -> str:
    return data.rstrip(b".").decode()


class Official:
    """The official client, with callbacks from its own threads."""

    def __init__(self, broker: str, uris: dict[str, str], history: History) -> None:
        self.broker, self.uris = broker, uris
        self.client = OfficialClient(broker, history, DEADLINE)
        self.posting = True

    def run(self) -> None:
        """Post and consume until told to stop; then wait for pending work."""
        producer, consumer = self.client.session("producer"), self.client.session("consumer")
        for app, name in apps().items():
            consumer.open_queue(self.consumed(app, name), read=True, timeout=DEADLINE)
        for uri in self.uris.values():
            producer.open_queue(uri, write=True, timeout=DEADLINE)
        threads = [threading.Thread(target=self.post, args=(producer, name)) for name in self.uris]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.readline()
        self.posting = False
        for thread in threads:
            thread.join()
        self.client.wait(DEADLINE)
        # Do not stop the sessions: stopping could wait for a lost broker. The sessions end with the process.

    def consumed(self, app: str, name: str) -> str:
        app_id = app.partition("/")[2]
        return self.uris[name] + (f"?id={app_id}" if app_id else "")

    def post(self, session: Any, name: str) -> None:
        """Post without waiting for outcomes."""
        number = 0
        for due in beats():
            time.sleep(max(0.0, due - time.monotonic()))
            if not self.posting:
                return
            number += self.client.post(session, self.uris[name], payload(name, number))


def beats() -> Iterator[float]:
    """Yield the times of posts, by the monotonic clock; missed posts are not made up for."""
    due = time.monotonic()
    while True:
        due = max(due + 1 / RATE, time.monotonic() - 1 / RATE)
        yield due


def worker(arguments: dict[str, Any]) -> None:
    """Run one of the clients."""
    broker, uris = arguments["broker"], arguments["uris"]
    with History(arguments["history"]) as history:
        for name, uri in uris.items():
            if name.startswith("fanout"):
                history.applications(uri, APP_IDS)
        if arguments["client"] == "official":
            Official(broker, uris, history).run()
            os._exit(0)  # the sessions are alive
        run = asyncio.run if arguments["loop"] == "asyncio" else bmq.run
        run(Ours(broker, uris, history).run())


# ---- victims


@dataclass(frozen=True)
class Case:
    """A kind of failure.

    Attributes:
        name: description, for people.
        victims: function from the numbers of the primary and another node to the nodes to kill.
        connected: the same for the node that clients connect to.
    """

    name: str
    victims: Callable[[int, int, int], list[int]]
    connected: Callable[[int, int, int], int]


# Called with the numbers of the primary and of the two remaining nodes.
CASES = {
    "primary": Case("the primary", lambda p, a, b: [p], lambda p, a, b: a),
    "connected": Case("the node connected to", lambda p, a, b: [a], lambda p, a, b: a),
    "same": Case("the primary, connected to", lambda p, a, b: [p], lambda p, a, b: p),
    "both": Case("the primary and the node connected to", lambda p, a, b: [p, a], lambda p, a, b: a),
    "other": Case("the third node", lambda p, a, b: [b], lambda p, a, b: a),
    "proxy": Case("the proxy", lambda p, a, b: [PROXY], lambda p, a, b: a),
}


@dataclass
class Lap:
    """One failure, and its effect on one client with one address.

    Attributes:
        verdict: result of the check.
        pauses: longest time without an acknowledgement after the failure, in seconds, by queue.
        recoveries: seconds from the loss of a connection to its restoration, for each session.
        mishaps: sessions and queues that were permanently lost.
    """

    verdict: Verdict
    pauses: dict[str, float]
    recoveries: list[float]
    mishaps: list[str]

    def broken(self, rule: str) -> int:
        return self.verdict.broken.get(rule, 0)


def lap_of(history: History, ours: bool, killed_at: float, uris: dict[str, str]) -> Lap:
    """Check a history, and return the effect of a failure."""
    mishaps = [
        f"{event['process']}: {event['event']}, {event['reason']}"
        for event in history.events(op="session")
        if event["event"] in ("QueueReopenFailed", "Disconnected") and "reason" in event
    ]
    acknowledged: dict[str, list[float]] = {uri: [] for uri in uris.values()}
    for event in history.events(op="post", type="ok"):
        acknowledged[event["queue"]].append(event["at"])
    pauses = {name: pause(acknowledged[uri], killed_at) for name, uri in uris.items()}
    verdict = examine(history, without=() if ours else OFFICIAL_LEAVES_OUT)
    return Lap(verdict, pauses, recoveries(history), mishaps)


def pause(times: list[float], killed_at: float) -> float:
    """Return the longest time without an acknowledgement after the failure."""
    before = max((at for at in times if at <= killed_at), default=killed_at)
    after = [at for at in sorted(times) if at > killed_at]
    moments = [before, *after, *([] if after else [float("inf")])]
    return max(b - a for a, b in itertools.pairwise(moments))


def recoveries(history: History) -> list[float]:
    """Return the seconds from the loss of each connection to the full restoration of its session."""
    found = []
    for moments in connections(history).values():
        lost: float | None = None
        for at, what in moments:
            if what == "ConnectionLost" and lost is None:
                lost = at
            elif what == "StateRestored" and lost is not None:
                found.append(at - lost)
                lost = None
        if lost is not None:
            found.append(float("inf"))
    return found


@dataclass
class Column:
    """The results of one client with one address, over all failures."""

    client: str
    way: str
    laps: dict[str, list[Lap]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        who = {"ours": "bmq", "official": "official"}[self.client]
        one = self.client == "official" and self.way == "nodes"
        return f"{who}, {'one node' if one else self.way}"

    @property
    def all(self) -> list[Lap]:
        return [lap for laps in self.laps.values() for lap in laps]

    def total(self, number: Callable[[Verdict], int]) -> int:
        return sum(number(lap.verdict) for lap in self.all)

    def broken(self, rule: str) -> int:
        return sum(lap.broken(rule) for lap in self.all)

    @property
    def well(self) -> bool:
        """Whether no message is missing, except for losses when two of three nodes end at once."""
        both = CASES["both"].name
        lost = any(lap.broken("lost") for name, laps in self.laps.items() if both not in name for lap in laps)
        return not lost and not any(lap.broken("outcome") or lap.mishaps for lap in self.all)

    def books(self) -> dict[str, str]:
        other: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for lap in self.all:
            other.update(lap.verdict.refused)
            kinds.update(lap.verdict.duplicates)
        duplicates = sum(kinds.values())
        return {
            "posted": f"{self.total(lambda verdict: verdict.posted):,}",
            "acknowledged": f"{self.total(lambda verdict: verdict.acknowledged):,}",
            "other outcomes": ", ".join(f"{n} {status}" for status, n in other.items()) or "0",
            "without an outcome, or with two": f"{self.broken('outcome'):,}",
            "acknowledged and lost": f"{self.broken('lost'):,}",
            "received": f"{self.total(lambda verdict: verdict.delivered):,}",
            "of these duplicates": f"{duplicates:,}" + (f" ({_counts(kinds)})" if duplicates else ""),
            "out of order": f"{self.broken('order'):,}" if self.client == "ours" else "-",
            "connections lost": f"{sum(len(lap.recoveries) for lap in self.all):,}",
        }


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counts.most_common())


def _seconds(times: list[float]) -> str:
    """Return the median and the maximum as text."""
    if not times:
        return "-"
    shown = [f"{at:.2f}" if at < float("inf") else "never" for at in (statistics.median(times), max(times))]
    return " / ".join(dict.fromkeys(shown))


def tables(columns: list[Column]) -> str:
    """Return the books, the pauses and the recoveries, as Markdown."""
    head = [column.name for column in columns]
    books = [column.books() for column in columns]
    parts = ["The books:", _table(["", *head], [[row, *(each[row] for each in books)] for row in books[0]])]
    kinds = {"eventual": "eventual consistency", "strong": "strong consistency"}
    rows = []
    for case in columns[0].laps:
        for kind, what in kinds.items():
            cells = []
            for column in columns:
                pauses = [
                    pause
                    for lap in column.laps[case]
                    for name, pause in lap.pauses.items()
                    if name.endswith(kind)
                ]
                cells.append(_seconds(pauses))
            rows.append([f"{case}; {what}", *cells])
    parts += ["Seconds without an acknowledgement, median / longest:", _table(["killed", *head], rows)]
    rows = []
    for case in columns[0].laps:
        cells = [_seconds([r for lap in column.laps[case] for r in lap.recoveries]) for column in columns]
        rows.append([case, *cells])
    parts += [
        "Seconds from a lost connection to state restored, median / longest:",
        _table(["killed", *head], rows),
    ]
    return "\n\n".join(parts)


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


# ---- the rounds


async def lap(
    cluster: Cluster, columns: list[Column], case: Case, number: signal.Signals, options: argparse.Namespace
) -> tuple[list[Lap], str]:
    """Cause one failure; return its effects on the clients, and the victims' description."""
    primary = await cluster.primary()
    first, second = [(primary + step) % cluster.nodes for step in (1, 2)]
    connected = case.connected(primary, first, second)
    victims = list(dict.fromkeys(case.victims(primary, first, second)))
    async with contextlib.AsyncExitStack() as stack:
        processes = []
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        uris = [
            {name: fresh_queue_uri(domain, f"failover-{column.client}") for name, domain in DOMAINS.items()}
            for column in columns
        ]
        paths = [folder / f"{number}.jsonl" for number in range(len(columns))]
        for column, names, path in zip(columns, uris, paths, strict=True):
            addresses = cluster.ways[column.way]
            if column.way == "nodes":
                addresses = addresses[connected:] + addresses[:connected]
            if column.client == "official":
                addresses = addresses[:1]
            arguments = {"client": column.client, "broker": ",".join(addresses), "uris": names}
            arguments |= {"loop": options.loop, "history": str(path)}
            processes.append(await start(stack, arguments))
        for process in processes:
            assert process.stdout is not None
            async with asyncio.timeout(DEADLINE):
                said = await process.stdout.readline()
            if said != b"ready\n":
                raise SystemExit(f"a client did not start:\n{await complaints(process)}")
        await asyncio.sleep(options.traffic)
        killed_at = time.time()
        await asyncio.gather(*(cluster.kill(victim, number) for victim in victims))
        ended = time.time() - killed_at
        await asyncio.sleep(options.down)
        for victim in victims:
            await cluster.revive(victim)
        await cluster.healthy()
        up_at = time.time()
        await asyncio.sleep(options.traffic)
        async with asyncio.timeout(4 * DEADLINE):
            said = await asyncio.gather(*(process.communicate(b"stop\n") for process in processes))
        laps = []
        for column, process, names, path, (_, complaint) in zip(
            columns, processes, uris, paths, said, strict=True
        ):
            if process.returncode:
                raise SystemExit(f"{column.name} failed:\n{complaint.decode()[-4000:]}")
            with History(path) as history:
                laps.append(lap_of(history, column.client == "ours", killed_at, names))
    what = f"killed node {' and '.join(map(str, victims))}, primary {primary}, connected to {connected}"
    return laps, f"{what}; ended after {ended:.1f} s, all up after {up_at - killed_at:.1f} s"


async def start(stack: contextlib.AsyncExitStack, arguments: dict[str, Any]) -> asyncio.subprocess.Process:
    """Start one client in a process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--worker",
        json.dumps(arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=2**26,
        # The variable would direct the clients elsewhere.
        env={name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"},
    )

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    stack.push_async_callback(end)
    return process


async def complaints(process: asyncio.subprocess.Process) -> str:
    """Return the output of a failed client."""
    _, said = await process.communicate()
    return said.decode()[-4000:]


async def failover(
    cluster: Cluster,
    clients: list[str],
    cases: list[str],
    signals: list[signal.Signals],
    options: argparse.Namespace,
) -> bool:
    """Run the rounds; return whether this client lost no message."""
    await cluster.start()
    try:
        columns = [Column(client, way) for client in clients for way in cluster.ways]
        for turn in range(options.rounds):
            for name in cases:
                for number in signals:
                    label = f"{CASES[name].name}, {number.name}"
                    laps, what = await lap(cluster, columns, CASES[name], number, options)
                    print(f"round {turn + 1}, {label}: {what}", flush=True)
                    for column, each in zip(columns, laps, strict=True):
                        column.laps.setdefault(label, []).append(each)
                        tell(column, each)
    finally:
        await cluster.stop()
    print(f"\n{tables(columns)}")
    return all(column.well for column in columns if column.client == "ours")


def tell(column: Column, done: Lap) -> None:
    """Print the effect of one failure on one client."""
    verdict = done.verdict
    recovered = _seconds(done.recoveries)
    refused = verdict.posted - verdict.acknowledged
    print(
        f"  {column.name}: {verdict.posted:,} posts, {refused:,} not acknowledged, "
        f"{done.broken('lost')} lost, {sum(verdict.duplicates.values())} duplicates; pause "
        f"{max(done.pauses.values()):.2f} s; restored {recovered}",
        *done.mishaps,
        flush=True,
    )
    if not verdict.ok:
        print(verdict, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", help="the real broker's executable")
    parser.add_argument("--rounds", type=int, default=1, help="how often to go through the cases (1)")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), help="what to kill (everything)")
    parser.add_argument(
        "--signals", nargs="+", choices=["KILL", "TERM"], default=["KILL", "TERM"], help="how (both)"
    )
    parser.add_argument("--down", type=float, default=8.0, help="seconds until it is started again (8)")
    parser.add_argument(
        "--traffic",
        type=float,
        default=3.0,
        help="seconds before a kill, and after everything is up again (3)",
    )
    parser.add_argument("--only", choices=["ours", "official"], help="one client alone")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop", help="of this client")
    parser.add_argument("--keep", help="a folder for configurations, logs and storage that is kept")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    clients = [options.only] if options.only else ["ours", "official"]
    signals = [signal.Signals[f"SIG{name}"] for name in options.signals]
    work = Path(options.keep or tempfile.mkdtemp(prefix="bmq-failover-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        cluster: Cluster = RealCluster(options.broker, work) if options.broker else EmbeddedNode(work)
        cases = options.cases or (list(CASES) if options.broker else ["same"])
        well = asyncio.run(failover(cluster, clients, cases, signals, options))
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
