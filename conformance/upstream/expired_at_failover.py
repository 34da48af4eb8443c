# SPDX-License-Identifier: Apache-2.0
"""The primary is killed, and the new primary deletes an acknowledged message as expired.

    python conformance/upstream/expired_at_failover.py --broker /usr/local/bin/bmqbrkr --kills 20

The program starts three nodes on loopback. Each round posts one message at a time to each of some queues with
strong consistency, through a replica, kills the primary with SIGKILL, restarts it, and posts on. Consumers
at the same replica confirm each message on arrival, so that the queues are empty at most times. The program
then prints the acknowledged messages that no consumer has, and the lines of the nodes' logs about expired
messages. The
messages' lifetime in the domain is five minutes. The program needs the package of bmq.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import bmq
from bmq.testing import fresh_queue_uri
from tests.integration.cluster import NODES, RealCluster

DOMAIN = "bmq.test.persistent.priority.sc"
QUIET = 15.0


class Traffic:
    """The messages of one queue: the times of acknowledgements, and arrivals, by GUID."""

    def __init__(self, derived: bool) -> None:
        self.derived = derived
        self.uri = fresh_queue_uri(DOMAIN, "expired")
        self.acknowledged: dict[str, tuple[float, float]] = {}
        self.arrived: collections.Counter[str] = collections.Counter()

    async def post(self, session: bmq.Session, pause: float) -> None:
        queue = await session.open_queue(self.uri, write=True)
        number = 0
        while True:
            posted = time.monotonic()
            with contextlib.suppress(bmq.PostError):
                guid = bmq.conventions.derived_guid(self.uri, str(number)) if self.derived else None
                ack = await queue.post(b"message %d" % number, guid=guid)
                self.acknowledged[str(ack.guid)] = posted, time.monotonic()
            number += 1
            await asyncio.sleep(pause)

    async def read(self, session: bmq.Session) -> None:
        queue = await session.open_queue(self.uri, read=True)
        async for message in queue:
            self.arrived[str(message.guid)] += 1
            message.confirm()

    @property
    def missing(self) -> list[str]:
        return sorted(self.acknowledged.keys() - self.arrived.keys())


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def round_(cluster: RealCluster, arguments: argparse.Namespace) -> int:
    primary = await cluster.primary()
    nodes = cluster.ways["nodes"]
    replica = next(each for each in range(NODES) if each != primary)
    address = ",".join([nodes[replica], *nodes])
    queues = [Traffic(each % 2 == 1) for each in range(arguments.queues)]
    async with bmq.connect(address) as producer, bmq.connect(address) as consumer:
        reading = [asyncio.create_task(each.read(consumer)) for each in queues]
        await asyncio.sleep(1)
        posting = [asyncio.create_task(each.post(producer, arguments.pause)) for each in queues]
        await asyncio.sleep(3)
        killed = time.monotonic()
        await cluster.kill(primary, signal.SIGKILL)
        await asyncio.sleep(arguments.down)
        await cluster.revive(primary)
        await asyncio.sleep(3)
        await stop(posting)
        until = time.monotonic() + QUIET
        while any(each.missing for each in queues) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await stop(reading)
    for each in queues:
        for guid in each.missing:
            posted, acknowledged = (when - killed for when in each.acknowledged[guid])
            print(
                f"  missing: {guid}, posted {posted:+.3f} s and acknowledged {acknowledged:+.3f} s from "
                "the kill"
            )
    return sum(len(each.missing) for each in queues)


def expired(cluster: RealCluster) -> list[str]:
    """Return the lines of the nodes' logs about expired messages."""
    return [
        f"  node{node}: {line}"
        for node in range(NODES)
        for line in (cluster.folder(node) / "stdout.log").read_text(errors="replace").splitlines()
        if "garbage-collected" in line and "01JAN1970" in line
    ]


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", required=True, help="executable of the broker")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--queues", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two posts to a queue")
    parser.add_argument("--down", type=float, default=5.0, help="seconds until the node is restarted")
    parser.add_argument("--work", type=Path, help="folder for the nodes' logs and storage")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        cluster = RealCluster(arguments.broker, arguments.work or Path(work))
        seen = 0
        try:
            await cluster.start()
            for number in range(1, arguments.kills + 1):
                missing = await round_(cluster, arguments)
                lines = expired(cluster)
                print(f"kill {number}: {missing} missing, {len(lines) - seen} lines about expired messages")
                print(*lines[seen:], sep="\n", flush=True)
                seen = len(lines)
        finally:
            await cluster.stop()


if __name__ == "__main__":
    asyncio.run(main())
