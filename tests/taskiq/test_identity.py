# SPDX-License-Identifier: Apache-2.0
"""How the broker of taskiq names itself to the broker of BlazingMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import bmq
import bmq.taskiq
from tests.fakes.broker import Peer

URI = "bmq://bmq.test.mem.priority/q"


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with Peer() as peer:
        yield peer


async def test_taskiq_names_itself_unless_the_program_does(peer: Peer) -> None:
    for more, agent in (
        ({}, "taskiq "),
        ({"user_agent": "billing"}, "billing "),
        ({"user_agent": ""}, "bmq"),
    ):
        broker = bmq.taskiq.BmqBroker(peer.uri, URI, mover=False, **more)  # type: ignore[arg-type]
        await broker.startup()
        identity = peer.connection.script.identity
        await broker.shutdown()
        assert identity is not None
        assert identity.user_agent.startswith(agent)
