# SPDX-License-Identifier: Apache-2.0
"""This client and the official one side by side, under the same faults, for as long as wished.

    python benchmarks/soak.py --seconds 3600 --seed 7 --broker tcp://127.0.0.1:30114

Both have the same queues, rates and ways of posting, each in a process of its own, and connect through one
proxy, which cuts, stalls, delays and splits what passes. It goes in laps: every lap has new sessions, queues
and the next seed: a long run needs no more memory than a short one, and a bad lap can be had again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness

from bmq.testing import FaultProxy
from tests.integration import chaos
from tests.integration.accounts import (
    SUCCESS,
    Accounts,
    Key,
    Moment,
    Recoveries,
    Result,
    key_of,
    payload,
    recoveries,
)

#: Seconds between faults: often long enough for the official client to recover from one.
PAUSE = (0.5, 3.0)

# ---- one client, in a process of its own: says "ready", is told to stop, prints its result


async def ours(broker: str, uris: dict[str, str]) -> Result:
    """This project's client."""
    loop = asyncio.get_running_loop()
    async with chaos.Load(broker, uris) as load:
        print("ready", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        return await load.finish()


class Official:
    """The official client: it calls back from threads of its own."""

    def __init__(self, broker: str, uris: dict[str, str]) -> None:
        import blazingmq

        self.blazingmq = blazingmq
        self.accounts = Accounts(chaos.APPS)
        self.uris = uris
        self.broker = broker
        self.moments: dict[str, list[Moment]] = {}
        self.stopping = threading.Event()

    def run(self) -> Result:
        sessions = [self.session(name) for name in ("producer", "first consumer", "second consumer")]
        producer, first, second = sessions
        uris = self.uris
        for session, uri in (
            (first, uris["orders"]),
            (second, uris["orders"]),
            (first, uris["ledger"]),
            (first, f"{uris['news']}?id=foo"),
            (second, f"{uris['news']}?id=bar"),
        ):
            session.open_queue(uri, read=True, timeout=chaos.DEADLINE)
        for name in ("orders", "ledger", "news"):
            producer.open_queue(uris[name], write=True, timeout=chaos.DEADLINE)
        threads = [
            threading.Thread(target=self.post_and_wait, args=(producer, f"orders-{number}"))
            for number in range(chaos.WORKERS)
        ]
        threads += [threading.Thread(target=self.post, args=(producer, name)) for name in ("ledger", "news")]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.readline()
        complete = threading.Event()
        self.stopping.set()
        for thread in threads:
            thread.join()
        limit = time.monotonic() + chaos.DEADLINE
        self.accounts.on_complete = complete.set
        while time.monotonic() < limit:
            result = self.accounts.result()
            if not result.without_outcome and not result.lost:
                break
            complete.wait(0.1)
            complete.clear()
        result = self.accounts.result()
        result.sessions = self.moments
        for session in sessions:
            session.stop()
        return result

    def session(self, name: str) -> Any:
        moments = self.moments[name] = []
        names = {uri: app for app, uri in self.apps()}

        def on_event(event: Any) -> None:
            what = type(event).__name__
            if what in ("Connected", "ConnectionLost", "StateRestored"):
                moments.append(Moment(time.monotonic(), what))

        def on_message(message: Any, handle: Any) -> None:
            # The official client does not say which messages came out of order: their order is not judged.
            key, app = key_of(message.data), names[message.queue_uri]
            self.accounts.delivered(app, name, len(moments), key, redelivered=True)
            handle.confirm()
            self.accounts.confirmed(app, len(moments), key)

        return self.blazingmq.Session(
            on_event,
            on_message=on_message,
            broker=self.broker,
            timeout=chaos.DEADLINE,
            num_processing_threads=1,
        )

    def apps(self) -> Iterator[tuple[str, str]]:
        for app in chaos.APPS:
            queue, _, app_id = app.partition("/")
            yield app, self.uris[queue] + (f"?id={app_id}" if app_id else "")

    def give(self, session: Any, queue: str, key: Key, then: Callable[[], None] = lambda: None) -> bool:
        def on_ack(ack: Any) -> None:
            self.accounts.outcome(key, ack.status.name)
            then()

        self.accounts.posting(key)
        try:
            session.post(self.uris[queue], payload(key), on_ack=on_ack)
        except self.blazingmq.Error:
            self.accounts.refused(key)
            return False
        return True

    def post_and_wait(self, session: Any, stream: str) -> None:
        number = 0
        while not self.stopping.is_set():
            acked = threading.Event()
            if self.give(session, "orders", (stream, number), acked.set):
                acked.wait(chaos.DEADLINE)
                number += 1
            time.sleep(chaos.WORKERS / chaos.RATE_ORDERS)

    def post(self, session: Any, queue: str) -> None:
        number = 0
        while not self.stopping.is_set():
            for _ in range(round(chaos.RATE_LEDGER * chaos.TICK)):
                if not self.give(session, queue, (queue, number)):
                    break
                number += 1
            time.sleep(chaos.TICK)


def worker(arguments: dict[str, Any]) -> None:
    """Be one of the clients."""
    broker, uris = arguments["broker"], arguments["uris"]
    if arguments["client"] == "official":
        result = Official(broker, uris).run()
    else:
        import bmq

        result = bmq.run(ours(broker, uris))
    print(json.dumps(result.as_json()), flush=True)


# ---- the faults, and the table


async def lap(
    broker: str, clients: list[str], seed: int, seconds: float
) -> tuple[list[Moment], list[Result]]:
    """Put the clients through one schedule of faults."""
    async with FaultProxy(broker, seed=seed) as proxy, contextlib.AsyncExitStack() as stack:
        processes = [await start(stack, client, proxy.uri, seed) for client in clients]
        for process in processes:
            assert process.stdout is not None
            async with asyncio.timeout(chaos.DEADLINE):
                said = await process.stdout.readline()
            if said != b"ready\n":
                raise SystemExit("a client did not start")
        faults = await chaos.inject(chaos.plan(seed, seconds, restarts=False, pause=PAUSE), proxy, None)
        async with asyncio.timeout(3 * chaos.DEADLINE):
            said = await asyncio.gather(*(process.communicate(b"stop\n") for process in processes))
        for client, process, (_, complaints) in zip(clients, processes, said, strict=True):
            if process.returncode:
                raise SystemExit(f"{client} failed with seed {seed}:\n{complaints.decode()[-4000:]}")
        return faults, [Result.from_json(json.loads(out.splitlines()[-1])) for out, _ in said]


async def start(
    stack: contextlib.AsyncExitStack, client: str, broker: str, seed: int
) -> asyncio.subprocess.Process:
    """Start one client in a process."""
    arguments = {"client": client, "broker": broker, "uris": chaos.new_uris(f"soak-{client}-{seed}")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--worker",
        json.dumps(arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,  # the official client has much to say under faults
        limit=2**26,
        # It would lead both clients past the proxy.
        env={name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"},
    )

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    stack.push_async_callback(end)
    return process


class Column:
    """What one client did, over all laps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.results: list[Result] = []
        self.recoveries = Recoveries()

    def add(self, faults: list[Moment], result: Result) -> None:
        self.results.append(result)
        found = recoveries(faults, result.sessions.values())
        self.recoveries.times += found.times
        self.recoveries.disturbed += found.disturbed

    def total(self, number: Callable[[Result], int]) -> int:
        return sum(map(number, self.results))

    @property
    def lost(self) -> int:
        return self.total(lambda r: len(r.lost))

    def cells(self) -> dict[str, str]:
        nacks: Counter[str] = Counter()
        for result in self.results:
            nacks.update({status: n for status, n in result.outcomes.items() if status != SUCCESS})
        deliveries = self.total(lambda r: r.deliveries)
        duplicates = self.total(lambda r: sum(r.duplicates.values()))
        times = sorted(self.recoveries.times)
        both = sorted(times + self.recoveries.disturbed)
        judged, dropped = self.name == "bmq", self.total(lambda r: r.dropped or 0)
        return {
            "posted": f"{self.total(lambda r: r.posts):,}",
            "acknowledged": f"{self.total(lambda r: r.acknowledged):,}",
            "other outcomes": ", ".join(f"{n} {status}" for status, n in nacks.items()) or "0",
            "without outcome": f"{self.total(lambda r: r.without_outcome):,}",
            "with two outcomes": f"{self.total(lambda r: r.more_than_one_outcome):,}",
            "acknowledged and lost": f"{self.lost:,}",
            "handed to applications": f"{deliveries:,}",
            "of these duplicates": f"{duplicates:,} ({duplicates / max(deliveries, 1):.2%})",
            "recognised and dropped": f"{dropped:,}" if judged else "-",
            "out of order": f"{self.total(lambda r: len(r.disorder)):,}" if judged else "-",
            "times state restored": f"{self.total(_restored):,}",
            "cut to restored, median": f"{self.recoveries.median:.3f} s" if times else "-",
            "cut to restored, 90 %": f"{times[int(len(times) * 0.9)]:.3f} s" if times else "-",
            "cut to restored, longest": f"{times[-1]:.3f} s" if times else "-",
            "cuts measured": f"{len(times)}",
            "with disturbed ones, median": f"{statistics.median(both):.3f} s" if both else "-",
            "with disturbed ones, longest": f"{both[-1]:.3f} s" if both else "-",
            "cuts with disturbed ones": f"{len(both)}",
        }


def _restored(result: Result) -> int:
    return sum(moment.what == "StateRestored" for moments in result.sessions.values() for moment in moments)


def table(columns: list[Column]) -> str:
    """The columns side by side, as Markdown."""
    cells = [column.cells() for column in columns]
    lines = [["", *(column.name for column in columns)], ["---"] * (len(columns) + 1)]
    lines += [[row, *(each[row] for each in cells)] for row in cells[0]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


async def soak(broker: str, clients: list[str], seed: int, seconds: float, lap_seconds: float) -> bool:
    """Run the laps; returns whether this client came through without loss."""
    columns = {
        client: Column({"ours": "bmq", "official": "blazingmq (official)"}[client]) for client in clients
    }
    faults: list[Moment] = []
    left, number = seconds, 0
    while left > 0:
        done, results = await lap(broker, clients, seed + number, min(lap_seconds, left))
        faults += done
        for column, result in zip(columns.values(), results, strict=True):
            column.add(done, result)
        lost = ", ".join(f"{column.name} lost {column.lost}" for column in columns.values())
        print(f"lap {number + 1}, seed {seed + number}: {len(done)} faults; so far {lost}", flush=True)
        left, number = left - lap_seconds, number + 1
    print(f"\n{chaos.count_faults(faults)}\n\n{table(list(columns.values()))}")
    mine = columns.get("ours")
    return mine is None or not any(
        result.lost or result.without_outcome or result.more_than_one_outcome or result.disorder
        for result in mine.results
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to inject faults (60)")
    parser.add_argument("--lap", type=float, default=120.0, help="seconds with the same sessions (120)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="of the first lap")
    parser.add_argument("--broker", help="its address (BMQ_BROKER_URI; else an embedded one is started)")
    parser.add_argument("--only", choices=["ours", "official"], help="one client alone")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    with contextlib.ExitStack() as stack:
        if options.broker:
            broker, what = options.broker, "given"
        else:
            broker, what = stack.enter_context(harness.broker())
        print(f"soak for {options.seconds:g} s, seed {options.seed}, broker {broker} ({what})", flush=True)
        clients = [options.only] if options.only else ["ours", "official"]
        well = asyncio.run(soak(broker, clients, options.seed, options.seconds, options.lap))
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
