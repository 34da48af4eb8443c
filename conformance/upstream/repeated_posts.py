# SPDX-License-Identifier: Apache-2.0
"""The first reader of a queue opens it at a node, while posts of a writer at the same node are under way.

    python conformance/upstream/repeated_posts.py --broker /usr/local/bin/bmqbrkr --at proxy --runs 300

The program starts three nodes and a proxy on loopback. In each round, a writer opens a new queue with strong
consistency, a reader begins to open it through a second connection, and the writer posts 1,000 numbered
messages in one event within the next 4 ms. The program counts messages with a negative acknowledgement, those
of them that the reader received, and messages received directly after a later one. It needs bmq's package.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import bmq
from bmq.testing import fresh_queue_uri
from tests.integration.cluster import RealCluster

DOMAIN = "bmq.test.persistent.priority.sc"
MESSAGES = 1000
#: Seconds for all messages to arrive.
PATIENCE = 20.0


async def one_round(writing: bmq.Session, reading: bmq.Session) -> Counter[str]:
    name = fresh_queue_uri(DOMAIN, "repeated")
    writer = await writing.open_queue(name, write=True)
    opening = asyncio.create_task(reading.open_queue(name, read=True))
    await asyncio.sleep(random.uniform(0.0, 0.004))
    posts = [writer.post_nowait(b"%d" % number) for number in range(MESSAGES)]
    reader, received = await opening, list[int]()

    async def receive() -> None:
        async for message in reader:
            received.append(int(message.data))
            message.confirm()
            if len(received) == MESSAGES:
                return

    try:
        await asyncio.wait_for(receive(), PATIENCE)
    except TimeoutError:
        print(f"{name}: {MESSAGES - len(set(received))} messages did not arrive", flush=True)
    acks = await asyncio.gather(*posts, return_exceptions=True)
    refused = {number for number, ack in enumerate(acks) if isinstance(ack, bmq.PostError)}
    await reader.close()
    await writer.close()
    return Counter(
        {
            "refused": len(refused),
            "refused and received": len(refused & set(received)),
            "out of order": sum(after < before for before, after in itertools.pairwise(received)),
            "rounds with a refusal": bool(refused),
        }
    )


async def main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as work:
        cluster = RealCluster(arguments.broker, Path(work), heartbeats=20)
        await cluster.start()
        try:
            nodes, primary = cluster.ways["nodes"], await cluster.primary()
            places = {
                "primary": nodes[primary],
                "replica": nodes[(primary + 1) % len(nodes)],
                "proxy": cluster.ways["proxy"][0],
            }
            counts = Counter[str]()
            address = places[arguments.at]
            async with bmq.connect(address) as writing, bmq.connect(address) as reading:
                for _ in range(arguments.runs):
                    counts += await one_round(writing, reading)
            shown = (
                ", ".join(f"{count} {name}" for name, count in counts.items())
                or "nothing refused, everything in order"
            )
            print(
                f"{arguments.at}: {arguments.runs} rounds, {arguments.runs * MESSAGES} posts, {shown}",
                flush=True,
            )
        finally:
            await cluster.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", required=True, help="executable of the broker")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--at", choices=("primary", "replica", "proxy"), default="proxy")
    asyncio.run(main(parser.parse_args()))
