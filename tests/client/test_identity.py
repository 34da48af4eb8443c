# SPDX-License-Identifier: Apache-2.0
"""How a session names itself to the broker, and how received messages were transmitted."""

from __future__ import annotations

import pytest

import bmq
from bmq._version import __version__
from tests.fakes.broker import Peer

URI = "bmq://bmq.test.mem.priority/q"


@pytest.mark.parametrize(
    ("prefix", "sent"),
    [
        ("", f"bmq-py:{__version__}"),
        ("orders/1.2", f"orders/1.2 bmq-py:{__version__}"),
        ("a" * 127, "a" * 127 + f" bmq-py:{__version__}"),
    ],
)
async def test_user_agent_stands_before_the_name_of_the_client(peer: Peer, prefix: str, sent: str) -> None:
    async with bmq.connect(peer.uri, user_agent=prefix):
        identity = peer.connection.script.identity
    assert identity is not None
    assert identity.user_agent == sent


@pytest.mark.parametrize("odd", ["a" * 128, "tab\t", "caf\u00e9", "line\n", b"orders", None])
def test_user_agents_that_a_broker_cannot_show_are_refused(odd: object) -> None:
    with pytest.raises(bmq.UsageError, match="user_agent must"):
        bmq.connect("tcp://127.0.0.1:1", user_agent=odd)  # type: ignore[arg-type]


async def test_message_tells_how_it_was_transmitted() -> None:
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"a" * 5000, compression=bmq.Compression.ZLIB)
        await queue.post(b"a" * 5000)
        zipped, plain = [await queue.receive(timeout=30) for _ in range(2)]
    assert (zipped.compression, plain.compression) == (bmq.Compression.ZLIB, bmq.Compression.NONE)
    assert len(zipped.raw) < 100
    assert len(plain.raw) == len(zipped.data) == 5000
