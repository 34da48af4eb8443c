# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder share: each runs one case in its process, and prints the figures as JSON.

The argument is a JSON object, see ``harness.Bench.job``.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROPERTIES: dict[str, Any] = {"CustomerId": 1234, "OrderType": "EXPRESS"}
#: Messages before a measurement of single messages.
WARM = 500
#: Bytes of a tick of the pacer.
TICK = 8
#: Posts a second while something fails.
RATE = 500
#: Seconds for what is under way to arrive.
PATIENCE = 120.0

Job = dict[str, Any]
Result = dict[str, Any]
clock = time.monotonic_ns


def job() -> Job:
    found: Job = json.loads(sys.argv[1])
    return found


def answer(result: Result) -> None:
    print(json.dumps(result), flush=True)


class Meter:
    """Wall and CPU time of all threads since the creation of the object."""

    def __init__(self) -> None:
        gc.collect()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def result(self, count: int) -> Result:
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return {"rate": count / wall, "cpu_us": cpu / count * 1e6}


def percentiles(nanoseconds: list[int]) -> Result:
    times = sorted(nanoseconds)
    return {f"p{part}_us": times[len(times) * part // 100] / 1000 for part in (50, 99)}


def memory() -> int:
    """Return the bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# at a given rate


def pacer(job: Job) -> subprocess.Popen[bytes]:
    """Start the process that writes ticks."""
    program = str(Path(__file__).with_name("pacer.py"))
    command = [sys.executable, "-S", "-E", program, str(job["rate"]), str(job["count"])]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def ticks(data: bytes) -> Iterator[bytes]:
    """Divide the bytes from the pacer; a pipe keeps writes of this size together."""
    return (data[at : at + TICK] for at in range(0, len(data), TICK))


def since(tick: bytes) -> int:
    return clock() - int(struct.unpack("=q", tick[:TICK])[0])


# while something fails


class Books:
    """The messages of a client whose broker fails, by number."""

    def __init__(self) -> None:
        self.posted = 0
        self.acked: dict[int, float] = {}
        self.received: Counter[int] = Counter()

    def acknowledged(self, number: int) -> None:
        self.acked[number] = time.monotonic()

    def complete(self) -> bool:
        return len(self.acked) == self.posted and not self.acked.keys() - self.received.keys()

    def result(self) -> Result:
        """Return the counts, and the longest times between two acknowledgements, in seconds."""
        times = sorted(self.acked.values())
        gaps = sorted((b - a for a, b in itertools.pairwise(times)), reverse=True)
        return {
            "posted": self.posted,
            "acked": len(self.acked),
            "lost": len(self.acked.keys() - self.received.keys()),
            "twice": sum(self.received.values()) - len(self.received),
            "gaps": gaps[:10],
        }
