# SPDX-License-Identifier: Apache-2.0
"""PUT and ACK: headers, flags, padding, properties, compression, deduplication, quotas."""

from __future__ import annotations

from bmq.conform.bench import Bench
from bmq.conform.case import Cases, check
from bmq.conform.peer import subscription

__all__ = ["GROUP"]

GROUP = Cases(4, "Posting")


@GROUP.case(
    "4.1.1",
    "A post is acknowledged by its GUID",
    sends="a PUT with the flag ACK_REQUESTED",
    expects="an ACK with the status 0, the GUID and the qId",
    statement="5-acknowledgement",
    domains=("priority",),
)
async def _acknowledged(bench: Bench) -> None:
    peer = await bench.client()
    await peer.open(bench.uri(), 5)
    await peer.configure(5, subscription(1))
    guid = peer.post(b"x", 5)
    check(tuple(await peer.ack()), (0, 0, guid, 5), "status, correlationId, GUID, qId")
    check((await peer.push()).payload, b"x", "payload")
