# SPDX-License-Identifier: Apache-2.0
"""Expressions that must not be sent to a broker are refused at the call, in each way to subscribe."""

from __future__ import annotations

from typing import Any

import pytest

import bmq
from tests.extras import TABLES
from tests.fakes.broker import Peer

URI = "bmq://bmq.test.mem.priority/sendable"

TEXTS = {"a NUL": 'x == "\0"', "half of a surrogate pair": 'x == "\udc80"', "the other half": 'x == "\ud800"'}
WAYS: dict[str, Any] = {
    "subscribe": lambda _, queue, text: queue.subscribe(text, strict=False),
    "an expression": lambda _, queue, text: queue.subscribe(bmq.Expression(text, strict=False)),
    "discarding": lambda _, queue, text: queue.subscribe(text, discard_unmatched=True),
    "consume": lambda _, queue, text: bmq.consume(queue, print, expression=text),
    "open_queue": lambda session, _, text: session.open_queue(
        f"{URI}-2", read=True, subscriptions=[bmq.Subscription(bmq.Expression(text, strict=False))]
    ),
}
if TABLES:
    WAYS["tables"] = lambda _, queue, text: queue.tables(bmq.Expression(text, strict=False))


@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("way", WAYS)
async def test_text_that_would_arrive_changed_is_never_sent(peer: Peer, what: str, way: str) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        sent = len(peer.log)
        with pytest.raises(bmq.InvalidExpression):
            await WAYS[way](session, queue, TEXTS[what])
        await queue.post(b"1")
        assert peer.log[sent:] == ["PUT"]
