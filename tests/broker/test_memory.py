# SPDX-License-Identifier: Apache-2.0
"""The memory of a broker for stored messages, and its release."""

from __future__ import annotations

import gc
import os
import random
import sys
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bmq.broker import Limits
from bmq.broker._storage import CapacityMeter, MessageRecord, MessageStore
from tests.broker.core import BROADCAST, FANOUT, PRIORITY, Core, CoreClient, subscription

COUNT = 20_000
PAYLOAD = bytes(256)
URIS = [f"{PRIORITY}-{number}" for number in range(10)]
#: GUIDs are remembered for so many seconds, and forgotten at the next look.
WINDOW = 302


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def memory() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def producer(core: Core) -> CoreClient:
    peer = core.client()
    for q_id, uri in enumerate(URIS):
        peer.open(uri, q_id, write=True)
    return peer


def fill(core: Core, peer: CoreClient, count: int) -> list[list[bytes]]:
    """Store messages, a thousand an event, over some seconds; return the GUIDs by queue."""
    guids: list[list[bytes]] = [[] for _ in URIS]
    for _ in range(count // 1000 // len(URIS)):
        for q_id, known in enumerate(guids):
            known += peer.put(*[PAYLOAD] * 1000, q_id=q_id)
            peer.output.pieces()
        core.advance(1)
    return guids


def drain(core: Core, guids: list[list[bytes]]) -> None:
    """Confirm all of them, and go."""
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
    peer = producer(core)
    drain(core, fill(core, peer, COUNT))
    core.advance(WINDOW)
    with traced():
        before, blocks = memory(), sys.getallocatedblocks()
        drain(core, fill(core, peer, COUNT))
        assert sum(len(queue.store.remembered) for queue in core.node.queues.values()) == COUNT
        assert memory() - before < COUNT * 150
        core.advance(WINDOW)
        assert sum(len(queue.store.remembered) for queue in core.node.queues.values()) == 0
        assert memory() - before < 50_000
        assert sys.getallocatedblocks() - blocks < 500


def test_memory_of_a_client_is_freed_with_it() -> None:
    core = Core()
    reader = core.client()
    reader.consume(PRIORITY)
    reader.open(PRIORITY, write=True)
    reader.confirm(*reader.put(*[PAYLOAD] * 10)[:5])
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


def store(window: float, limit: int) -> MessageStore:
    return MessageStore(Limits(), CapacityMeter(Limits()), window, limit)


def pass_through(store: MessageStore, guid: bytes, arrival: float) -> None:
    """Store a message that arrived then, and delete it."""
    message = MessageRecord(guid, b"", 0, 0, 0, 0, arrival, 1)
    store.append(message)
    store.remove(message)


def test_every_guid_of_the_window_is_known_and_no_other() -> None:
    """The store against a dictionary: many seconds, pauses, messages that stay long."""
    chance = random.Random(1)
    known = store(20, 10**6)
    now = 1000.0
    stored: list[tuple[bytes, float]] = []
    arrivals: dict[bytes, float] = {}
    for _ in range(80):
        now += chance.choice([0.1, 0.1, 0.5, 1, 5])
        for _ in range(chance.choice([1, 10, 100])):
            guid = os.urandom(16)
            stored.append((guid, now))
            arrivals[guid] = now
        chance.shuffle(stored)
        known.forget(now)
        for guid, arrival in stored[len(stored) // 3 :]:
            pass_through(known, guid, arrival)
        del stored[len(stored) // 3 :]
        waiting = {guid for guid, _ in stored}
        for guid, arrival in arrivals.items():
            assert (guid in known) is (guid not in waiting and int(arrival) >= now - 21)
        assert os.urandom(16) not in known
    assert now < known.next_deadline(300) <= now + 22
    known.forget(now + 22)
    assert not known.remembered
    assert known.next_deadline(300) == float("inf")


def test_of_too_many_guids_the_oldest_are_forgotten() -> None:
    known = store(20, 3)
    guids = [bytes([number]) * 16 for number in range(6)]
    for guid, arrival in zip(guids, (5.0, 3.0, 3.5, 4.0, 5.5, 5.5), strict=True):
        pass_through(known, guid, arrival)
    known.forget(6.0)
    assert [guid in known for guid in guids] == [True, False, False, False, True, True]
