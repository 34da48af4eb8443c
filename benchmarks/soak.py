# SPDX-License-Identifier: Apache-2.0
"""This client and the official client side by side, under the same faults, for any duration.

    python benchmarks/soak.py --seconds 3600 --seed 7 --broker tcp://127.0.0.1:30114

Both have the same queues, rates and ways of posting, each in a separate process, and connect through one
proxy. The proxy cuts, stalls, delays and splits the traffic.
Each lap has new sessions and queues, and the next seed: a long run needs no more memory than a short run, and
    a bad
lap can be repeated.
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
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness
from recorded import OFFICIAL_LEAVES_OUT, OfficialClient

from bmq.testing import FaultProxy, History, Verdict, examine
from tests.integration import chaos
from tests.integration.chaos import Recoveries, payload, recoveries

#: Seconds between faults: often long enough for the official client to recover.
PAUSE = (0.5, 3.0)

# ---- one client in a separate process: prints "ready", runs until told to stop, and leaves a history


async def ours(broker: str, uris: dict[str, str], history: History) -> None:
    """This project's client."""
    loop = asyncio.get_running_loop()
    async with chaos.Load(broker, uris, history) as load:
        print("ready", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        await load.finish()


class Official:
    """The official client, with callbacks from its own threads."""

    def __init__(self, broker: str, uris: dict[str, str], history: History) -> None:
        self.client = OfficialClient(broker, history, chaos.DEADLINE)
        self.history = history
        self.uris = uris
        self.stopping = threading.Event()

    def run(self) -> None:
        uris = self.uris
        self.history.applications(uris["news"], chaos.APP_IDS)
        sessions = [self.client.session(name) for name in ("producer", "first consumer", "second consumer")]
        producer, first, second = sessions
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
        self.stopping.set()
        for thread in threads:
            thread.join()
        self.client.wait(chaos.DEADLINE)
        for session in sessions:
            session.stop()
        self.history.record("load", "counts", "ok", dropped=0, buffer_full=self.client.buffer_full)

    def post_and_wait(self, session: Any, stream: str) -> None:
        number = 0
        while not self.stopping.is_set():
            acked = threading.Event()
            if self.client.post(session, self.uris["orders"], payload(stream, number), acked.set):
                acked.wait(chaos.DEADLINE)
                number += 1
            time.sleep(chaos.WORKERS / chaos.RATE_ORDERS)

    def post(self, session: Any, queue: str) -> None:
        number = 0
        while not self.stopping.is_set():
            for _ in range(round(chaos.RATE_LEDGER * chaos.TICK)):
                if not self.client.post(session, self.uris[queue], payload(queue, number)):
                    break
                number += 1
            time.sleep(chaos.TICK)


def worker(arguments: dict[str, Any]) -> None:
    """Run one of the clients."""
    broker, uris = arguments["broker"], arguments["uris"]
    with History(arguments["history"]) as history:
        if arguments["client"] == "official":
            Official(broker, uris, history).run()
        else:
            import bmq

            bmq.run(ours(broker, uris, history))


# ---- the faults, and the table


async def lap(
    broker: str, clients: list[str], seed: int, seconds: float, folder: Path
) -> tuple[History, list[History]]:
    """Run the clients through one schedule of faults; return its history, and the clients' histories."""
    schedule = History()
    paths = [folder / f"{client}-{seed}.jsonl" for client in clients]
    async with FaultProxy(broker, seed=seed) as proxy, contextlib.AsyncExitStack() as stack:
        processes = [
            await start(stack, client, proxy.uri, seed, path)
            for client, path in zip(clients, paths, strict=True)
        ]
        for process in processes:
            assert process.stdout is not None
            async with asyncio.timeout(chaos.DEADLINE):
                said = await process.stdout.readline()
            if said != b"ready\n":
                raise SystemExit("a client did not start")
        steps = chaos.plan(seed, seconds, restarts=False, pause=PAUSE)
        await chaos.inject(steps, proxy, None, schedule)
        async with asyncio.timeout(3 * chaos.DEADLINE):
            said = await asyncio.gather(*(process.communicate(b"stop\n") for process in processes))
        for client, process, (_, complaints) in zip(clients, processes, said, strict=True):
            if process.returncode:
                raise SystemExit(f"{client} failed with seed {seed}:\n{complaints.decode()[-4000:]}")
        return schedule, [History(path) for path in paths]


async def start(
    stack: contextlib.AsyncExitStack, client: str, broker: str, seed: int, history: Path
) -> asyncio.subprocess.Process:
    """Start one client in a process."""
    uris = chaos.new_uris(f"soak-{client}-{seed}")
    arguments = {"client": client, "broker": broker, "uris": uris, "history": str(history)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--worker",
        json.dumps(arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,  # the official client prints much under faults
        limit=2**26,
        # The variable would direct both clients past the proxy.
        env={name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"},
    )

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    stack.push_async_callback(end)
    return process


class Column:
    """The results of one client, over all laps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.judged = name == "bmq"
        self.verdicts: list[Verdict] = []
        self.recoveries = Recoveries()
        self.dropped = self.restored = 0

    def add(self, schedule: History, history: History) -> None:
        self.verdicts.append(examine(history, without=() if self.judged else OFFICIAL_LEAVES_OUT))
        found = recoveries(schedule, history)
        self.recoveries.times += found.times
        self.recoveries.disturbed += found.disturbed
        self.restored += len(list(history.events(op="connection", event="StateRestored")))
        self.dropped += sum(event["dropped"] for event in history.events(op="counts"))
        history.close()

    def total(self, number: Callable[[Verdict], int]) -> int:
        return sum(map(number, self.verdicts))

    def broken(self, rule: str) -> int:
        return self.total(lambda verdict: verdict.broken.get(rule, 0))

    def cells(self) -> dict[str, str]:
        nacks: Counter[str] = Counter()
        for verdict in self.verdicts:
            nacks.update(verdict.refused)
        deliveries = self.total(lambda verdict: verdict.delivered)
        duplicates = self.total(lambda verdict: sum(verdict.duplicates.values()))
        times = sorted(self.recoveries.times)
        both = sorted(times + self.recoveries.disturbed)
        return {
            "posted": f"{self.total(lambda verdict: verdict.posted):,}",
            "acknowledged": f"{self.total(lambda verdict: verdict.acknowledged):,}",
            "other outcomes": ", ".join(f"{n} {status}" for status, n in nacks.items()) or "0",
            "without an outcome, or with two": f"{self.broken('outcome'):,}",
            "acknowledged and lost": f"{self.broken('lost'):,}",
            "handed to applications": f"{deliveries:,}",
            "of these duplicates": f"{duplicates:,} ({duplicates / max(deliveries, 1):.2%})",
            "recognised and dropped": f"{self.dropped:,}" if self.judged else "-",
            "out of order": f"{self.broken('order'):,}" if self.judged else "-",
            "times state restored": f"{self.restored:,}",
            "cut to restored, median": f"{self.recoveries.median:.3f} s" if times else "-",
            "cut to restored, 90 %": f"{times[int(len(times) * 0.9)]:.3f} s" if times else "-",
            "cut to restored, longest": f"{times[-1]:.3f} s" if times else "-",
            "cuts measured": f"{len(times)}",
            "with disturbed ones, median": f"{statistics.median(both):.3f} s" if both else "-",
            "with disturbed ones, longest": f"{both[-1]:.3f} s" if both else "-",
            "cuts with disturbed ones": f"{len(both)}",
        }


def table(columns: list[Column]) -> str:
    """Return the results side by side, as Markdown."""
    cells = [column.cells() for column in columns]
    lines = [["", *(column.name for column in columns)], ["---"] * (len(columns) + 1)]
    lines += [[row, *(each[row] for each in cells)] for row in cells[0]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


async def soak(
    broker: str, clients: list[str], seed: int, seconds: float, lap_seconds: float, folder: Path
) -> bool:
    """Run the laps; return whether this client kept all promises."""
    columns = {
        client: Column({"ours": "bmq", "official": "blazingmq (official)"}[client]) for client in clients
    }
    faults: Counter[str] = Counter()
    left, number = seconds, 0
    while left > 0:
        lap_folder = folder / f"lap-{number + 1}"
        lap_folder.mkdir(parents=True)
        schedule, histories = await lap(broker, clients, seed + number, min(lap_seconds, left), lap_folder)
        kinds = Counter(fault["kind"] for fault in schedule.events(op="fault", type="invoke"))
        faults += kinds
        for column, history in zip(columns.values(), histories, strict=True):
            column.add(schedule, history)
            if not column.verdicts[-1].ok:
                print(f"{column.name}, {history.path}: {column.verdicts[-1]}", flush=True)
        lost = ", ".join(f"{column.name} lost {column.broken('lost')}" for column in columns.values())
        print(f"lap {number + 1}, seed {seed + number}: {kinds.total()} faults; so far {lost}", flush=True)
        left, number = left - lap_seconds, number + 1
    print(f"\n{chaos.shown_faults(faults)}\n\n{table(list(columns.values()))}")
    mine = columns.get("ours")
    return mine is None or all(verdict.ok for verdict in mine.verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to inject faults (60)")
    parser.add_argument("--lap", type=float, default=120.0, help="seconds with the same sessions (120)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="of the first lap")
    parser.add_argument("--broker", help="its address (BMQ_BROKER_URI; else an embedded one is started)")
    parser.add_argument("--only", choices=["ours", "official"], help="one client alone")
    parser.add_argument("--keep", help="a folder for the histories, which are deleted otherwise")
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
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory()))
        well = asyncio.run(soak(broker, clients, options.seed, options.seconds, options.lap, folder))
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
