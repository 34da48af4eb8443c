# SPDX-License-Identifier: Apache-2.0
"""Counters and interceptors, with a broker on the other side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import bmq
from tests.integration.steps import TIMEOUT, Connect, take

COUNT = 1200


class Marking(bmq.Interceptor):
    """Marks posts, and counts their outcomes."""

    def __init__(self) -> None:
        self.marked = self.acknowledged = self.received = self.confirmed = 0

    def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> int:
        for post in posts:
            post.properties["mark"] = post.guid
        self.marked += len(posts)
        return len(posts)

    def on_ack(self, context: Any, outcome: bmq.interceptors.PostOutcome) -> None:
        assert outcome.posted == context
        self.acknowledged += outcome.acknowledged

    def on_receive(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
        self.received += len(messages)

    def on_confirm(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
        self.confirmed += len(messages)


async def test_counters_and_interceptors_agree_with_the_history(
    bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    marking = Marking()
    session = await bmq_connect(interceptors=[marking])
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True, max_unconfirmed_messages=COUNT + 2)
    async with queue.subscribe("exists(mark)") as consumer:
        (await queue.post_many(b"%d" % n for n in range(COUNT))).raise_for_failures()
        ack = await queue.post(b"last", properties={"kind": "x"})
        messages = await take(consumer, COUNT + 1)
        assert all(message.properties["mark"] == message.guid for message in messages)
        assert messages[-1].guid == ack.guid
        for message in messages[:COUNT]:
            message.confirm()
        assert consumer.stats().unconfirmed == queue.stats().unconfirmed == 1
        messages[-1].confirm()
        for stats in (queue.stats(), session.stats()):
            assert stats.posted == stats.acknowledged == stats.ack_seconds.count == COUNT + 1
            assert stats.received == stats.confirmed == stats.confirm_seconds.count == COUNT + 1
            assert stats.unacked_messages == stats.unconfirmed == stats.retransmitted == 0
            assert 0 < stats.ack_seconds.sum < TIMEOUT * COUNT
        assert (marking.marked, marking.acknowledged) == (COUNT + 1, COUNT + 1)
        assert (marking.received, marking.confirmed) == (COUNT + 1, COUNT + 1)
    whole = session.stats()
    assert whole.bytes_sent > whole.posted_bytes > 0
    assert whole.bytes_received > whole.received_bytes > 0
