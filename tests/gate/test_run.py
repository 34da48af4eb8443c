# SPDX-License-Identifier: Apache-2.0
"""Odd values for what starts an event loop."""

from __future__ import annotations

import pytest

import bmq
from bmq.broker import DomainConfig, Mode
from tests.gate.odd import ODD, close
from tests.sweeps import sweep

URI = "bmq://d.x/orders"


@sweep("kind", sorted(set(ODD) - {"coroutine"}))
def test_run_takes_a_coroutine_only(kind: str) -> None:
    value = ODD[kind]()
    with pytest.raises(bmq.UsageError, match="run needs a coroutine"):
        bmq.run(value)
    close(value)


async def test_domain_made_in_python_keeps_posted_messages() -> None:
    async with (
        bmq.broker.Broker(
            domains=[DomainConfig("d.x", Mode.PRIORITY)], clock=bmq.broker.ManualClock()
        ) as broker,
        bmq.connect(broker.uri) as session,
    ):
        queue = await session.open_queue(URI, write=True)
        report = await queue.post_many([b"payload"] * 10)
        assert (report.acknowledged, report.failures) == (10, [])
        broker.clock.advance(60)  # type: ignore[attr-defined]
        assert len(broker.queues[URI]) == 10
