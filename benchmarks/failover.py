# SPDX-License-Identifier: Apache-2.0
"""The longest time without an acknowledgement while a connection or a node fails.

A client posts 500 messages a second to a queue and receives them, in one session. A proxy cuts the connection
three times, or refuses connections for two seconds: the floor. With ``BMQ_CLUSTER_PROGRAM``, the program of a
real broker, three nodes run on loopback, and one is killed: the primary, or the node of the client (this
client knows all addresses, the official client accepts one). No client may lose an acknowledged message, or
the program ends. *Twice* counts the messages handed to the application again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness import HERE, Bench, Row, Step

sys.path.insert(0, str(HERE.parent))

from bmq.testing import FaultProxy, fresh_queue_uri
from tests.integration.cluster import RealCluster

CUTS = 3
AWAY = 2.0
PROGRAM = os.environ.get("BMQ_CLUSTER_PROGRAM")
STRONG = "bmq.test.persistent.priority.sc"
PAUSE = "s without ack"

ROWS = [
    Row("connection cut", "ours cut", PAUSE, "official cut"),
    Row("connection cut", "ours cut", "twice", "official cut"),
    Row("no connection for 2 s", "ours away", PAUSE, "official away", "away"),
    Row("the primary killed", "ours primary", PAUSE, "official primary"),
    Row("the client's node killed", "ours connected", PAUSE, "official connected"),
]


async def _cut(proxy: FaultProxy) -> int:
    for _ in range(CUTS):
        proxy.cut(reset=True)
        await asyncio.sleep(AWAY)
    return CUTS


async def _away(proxy: FaultProxy) -> int:
    proxy.refuse()
    proxy.cut(reset=True)
    await asyncio.sleep(AWAY)
    await proxy.accept()
    return 1


async def _endured(
    bench: Bench, client: str, strike: Callable[[], Awaitable[int]], **job: Any
) -> dict[str, float]:
    """Return the figures of a client while something fails; the function returns the number of faults."""
    command = bench.command(client, "endure", **job)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command["args"], env=command["env"], stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    if await process.stdout.readline() != b"ready\n":
        raise RuntimeError(f"{client} did not start: {await process.communicate()}")
    await asyncio.sleep(1)
    faults = await strike()
    await asyncio.sleep(AWAY)
    said, complaints = await process.communicate(b"stop\n")
    if process.returncode:
        raise RuntimeError(f"{client} failed:\n{complaints.decode()}")
    books = json.loads(said.splitlines()[-1])
    if books["lost"] or not books["acked"]:
        raise RuntimeError(f"{client}: {books}")
    return {PAUSE: statistics.median(books["gaps"][:faults]), "twice": books["twice"]}


async def _by_proxy(
    bench: Bench, client: str, strike: Callable[[FaultProxy], Awaitable[int]]
) -> dict[str, float]:
    async with FaultProxy(bench.broker) as proxy:
        return await _endured(replace(bench, broker=proxy.uri), client, lambda: strike(proxy))


async def _in_cluster(bench: Bench, client: str) -> dict[str, dict[str, float]]:
    """Kill nodes of a cluster."""
    assert PROGRAM is not None
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        cluster = RealCluster(PROGRAM, Path(folder))
        await cluster.start()

        async def strike(victim: int) -> int:
            await cluster.kill(victim, signal.SIGKILL)
            await asyncio.sleep(4 * AWAY)
            await cluster.revive(victim)
            await cluster.healthy()
            return 1

        try:
            for name in ("primary", "connected"):
                primary = await cluster.primary()
                connected = (primary + 1) % cluster.nodes
                victim = primary if name == "primary" else connected
                nodes = cluster.ways["nodes"][connected:] + cluster.ways["nodes"][:connected]
                where = replace(bench, broker=nodes[0] if client == "official" else ",".join(nodes))
                queue = fresh_queue_uri(STRONG, "failover")
                found[f"{client} {name}"] = await _endured(
                    where, client, partial(strike, victim), queue=queue
                )
        finally:
            await cluster.stop()
    return found


def _client(client: str) -> Step:
    """Return a step with all faults, those of connections at the same time."""

    async def all_faults(bench: Bench) -> dict[str, dict[str, float]]:
        cut, away = await asyncio.gather(_by_proxy(bench, client, _cut), _by_proxy(bench, client, _away))
        found = {f"{client} cut": cut, f"{client} away": away}
        return found | (await _in_cluster(bench, client) if PROGRAM else {})

    return lambda bench: asyncio.run(all_faults(bench))


OURS = [_client("ours")]
OTHERS = [_client("official"), lambda bench: {"away": {PAUSE: AWAY}}]
