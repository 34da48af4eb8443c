# SPDX-License-Identifier: Apache-2.0
"""Time of a message, and what a client takes to start and to hold messages.

One at a time, the next post follows the acknowledgement, or the own message; the floor is an encoded event,
sent and answered over a bare blocking socket, with ``busy_poll`` over a polled one. At a given rate, an
independent process writes a tick for each message, and the time begins with the tick: a client that falls
behind does not hide the delay. Where the official client has seconds, it does not reach the rate. *Start* is
the processor time of a process until its first acknowledgement. *Held* is the memory of a received message of
256 bytes that is not confirmed; its floor is the sum of its parts: the bytes, the GUID, and a record in a
list.
"""

from __future__ import annotations

from harness import Bench, Row, Step

SINGLE = 2_000
HELD = 20_000
SECONDS = 2.0
RATES = (1_000, 5_000)

ROWS = [
    Row("post to ack", "ours ack", "p50_us", "official ack", "raw ack", "floor <= 1.6"),
    Row("post to ack", "ours ack", "p99_us", "official ack", "raw ack", "floor <= 2"),
    Row("post to own message", "ours own", "p50_us", "official own"),
    Row("post to own message", "ours own", "p99_us", "official own"),
    Row("post to ack, busy_poll", "ours ack, awake", "p50_us", "official ack", "raw ack, awake"),
    Row("post to own message, busy_poll", "ours own, awake", "p50_us", "official own"),
    Row("post to ack, bmq.blocking", "ours blocking_ack", "p50_us", "official ack", "raw ack"),
    *(
        Row(f"post to own message, {rate:,} a second", f"ours {rate}", figure, f"official {rate}")
        for rate in RATES
        for figure in ("p50_us", "p99_us")
    ),
    Row("start to first ack", "ours first", "CPU ms", "official first"),
    Row("held, a message", "ours hold", "bytes", "", "raw hold", "floor <= 1.3"),
]


def _single(client: str, case: str, *, awake: bool = False) -> Step:
    """Return a step with one message at a time."""
    name = f"{client} {case}" + (", awake" if awake else "")
    return lambda bench: {name: bench.job(client, case, bench.count(SINGLE), awake=awake)}


def _paced(client: str, rate: int) -> Step:
    """Return a step at a rate."""

    def step(bench: Bench) -> dict[str, dict[str, float]]:
        count = int(rate * max(0.5, SECONDS * bench.scale))
        return {f"{client} {rate}": bench.job(client, "paced", count, rate=rate)}

    return step


def _held(bench: Bench) -> dict[str, dict[str, float]]:
    jobs = (("", "ours", "post_many"), ("ours hold", "ours", "hold"))
    return bench.chain(*jobs, count=bench.count(HELD))


def _first(client: str) -> Step:
    return lambda bench: {f"{client} first": bench.job(client, "first", 1)}


OURS = [
    _single("ours", "ack"),
    _single("ours", "own"),
    _single("ours", "ack", awake=True),
    _single("ours", "own", awake=True),
    _single("ours", "blocking_ack"),
    *(_paced("ours", rate) for rate in RATES),
    _first("ours"),
    _held,
]
OTHERS = [
    _single("official", "ack"),
    _single("official", "own"),
    _single("raw", "ack"),
    _single("raw", "ack", awake=True),
    *(_paced("official", rate) for rate in RATES),
    _first("official"),
    lambda bench: {"raw hold": bench.job("raw", "hold", bench.count(HELD))},
]
