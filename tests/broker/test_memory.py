# SPDX-License-Identifier: Apache-2.0
"""The memory of a broker for stored messages, and its release."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref

import pytest

from tests.broker.core import BROADCAST, FANOUT, PRIORITY, Core, CoreClient, subscription

COUNT = 20_000
PAYLOAD = bytes(256)
URIS = [f"{PRIORITY}-{number}" for number in range(10)]
#: GUIDs are remembered for so many seconds, and forgotten at the next look.
WINDOW = 302


def memory() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def pass_through(core: Core, sender: CoreClient) -> None:
    """Store messages in many queues, a thousand an event, over some seconds; confirm all of them."""
    guids: list[list[bytes]] = [[] for _ in URIS]
    for _ in range(COUNT // 1000 // len(URIS)):
        for q_id, known in enumerate(guids):
            known += sender.put(*[PAYLOAD] * 1000, q_id=q_id)
            sender.output.pieces()
        core.advance(1)
    reader = core.client()
    for q_id, uri in enumerate(URIS):
        reader.consume(uri, q_id, messages=10**6, size=10**9)
        reader.output.pieces()
        for start in range(0, len(guids[q_id]), 500):
            reader.confirm(*guids[q_id][start : start + 500], q_id=q_id)
    core.advance(1)
    reader.disconnect()
    core.advance(1)


def test_guids_take_little_memory_and_none_after_their_window() -> None:
    core = Core()
    sender = core.client()
    for q_id, uri in enumerate(URIS):
        sender.open(uri, q_id, write=True)
    pass_through(core, sender)
    core.advance(WINDOW)
    tracemalloc.start()
    try:
        before, blocks = memory(), sys.getallocatedblocks()
        pass_through(core, sender)
        assert sum(len(queue.store.remembered) for queue in core.node.queues.values()) == COUNT
        assert memory() - before < COUNT * 150
        core.advance(WINDOW)
        assert sum(len(queue.store.remembered) for queue in core.node.queues.values()) == 0
        assert memory() - before < 50_000
        assert sys.getallocatedblocks() - blocks < 500
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("confirmed", [5, 10])
def test_memory_of_a_client_is_freed_with_it(confirmed: int) -> None:
    core = Core()
    reader = core.consumer()
    reader.open(PRIORITY, write=True)
    reader.confirm(*reader.put(*[PAYLOAD] * 10)[:confirmed])
    gone = [
        weakref.ref(each)
        for each in (reader.session, next(iter(core.node.clients)), core.node.queues[PRIORITY])
    ]
    gc.collect()
    gc.disable()
    try:
        reader.crash()
        del reader
        assert [reference() is None for reference in gone] == [True, True, False]
    finally:
        gc.enable()


@pytest.mark.parametrize("uri", [PRIORITY, BROADCAST, f"{FANOUT}?id=foo", f"{FANOUT}?id=unknown"])
def test_withdrawn_subscriptions_of_an_idle_queue_are_forgotten(uri: str) -> None:
    core = Core()
    reader = core.client()
    reader.open(uri, read=True)
    app_id = uri.partition("?id=")[2] or "__default"
    for number in range(0, 100, 2):
        reader.configure(subscription(number), subscription(number + 1), app_id=app_id)
    (queue,) = core.node.queues.values()
    (stream,) = queue.apps[app_id].streams
    assert list(stream.subscribers) == [98, 99]
    reader.configure(app_id=app_id)
    assert not stream.subscribers
