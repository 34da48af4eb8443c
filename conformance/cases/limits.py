# SPDX-License-Identifier: Apache-2.0
"""Limits of a domain: the deduplication window, quotas of the domain, numbers of producers, consumers and queues."""

from __future__ import annotations

from functools import partial

from conformance.bench import Bench
from conformance.case import Cases, Level, check, fail
from conformance.peer import Peer, open_request, subscription
from conformance.scene import A, B, play

__all__ = ["GROUP"]

GROUP = Cases(11, "Limits of a domain")

_M, _O = Level.MUST, Level.OBSERVED
#: Seconds until a GUID is forgotten at the latest: the window of a second, and the interval of the clean-up.
_FORGOTTEN = 12.0


# ---- 11.1 the deduplication window


@GROUP.case("11.1.1", "7.17", domains=("window",))
async def _time(bench: Bench) -> None:
    """The answer to openQueue has the deduplication time of the domain.

    Sends: openQueue in a domain with deduplicationTimeMs 1000.
    Expects: deduplicationTimeMs 1000.
    """
    peer = await bench.client()
    reply = await peer.open(bench.uri("window"))
    check(reply.deduplication_time_ms, 1000, "deduplicationTimeMs")


GROUP.rows(partial(play, kind="window"), [
    ("11.1.2", "10.17", _M, "A GUID is recognised within the window",
     "two PUT with one GUID, the second at once, in a domain with deduplicationTimeMs 1000", "two ACK with the status 0, one delivery",
     A.opens(subscription(1)), A.posts(1), A.acks(0), A.posts(2, again=1), A.acks(0), A.gets(1), A.gets_nothing()),
], domains=("window",))  # fmt: skip


@GROUP.case("11.1.3", "10.17", _O, domains=("window",), seconds=30)
async def _after(bench: Bench) -> None:
    """A GUID may be used again after the window and the confirmation.

    Sends: a PUT and a CONFIRM in a domain with deduplicationTimeMs 1000; the same PUT again and again.
    Expects: an ACK with the status 0 for each, and a second delivery after a second or more.
    """
    peer, _ = await bench.consumer(subscription(1), kind="window")
    guid = peer.post(b"one")
    await peer.ack()
    await peer.push()
    peer.confirm(guid)
    await peer.barrier()
    waited = 0.0
    while True:
        await peer.wait(1.5)
        waited += 1.5
        peer.post(b"two", guid=guid)
        check((await peer.ack()).status, 0, "status")
        if await peer.some_push(0.2):
            return
        if waited > _FORGOTTEN:
            raise fail("a second delivery", f"none within {waited:g} s")


# ---- 11.2 quotas of the domain


async def _empty(peer: Peer, stored: int) -> None:
    """Confirm the stored messages of the queues 0 and 1."""
    for q_id in (0, 1):
        await peer.configure(q_id, subscription(q_id + 1))
    for each in await peer.pushes(stored):
        peer.confirm(each.push.guid, q_id=each.push.queue_id)
    await peer.barrier()


async def _two_queues(bench: Bench) -> Peer:
    peer = await bench.client()
    for q_id in (0, 1):
        await peer.open(bench.uri("quota"), q_id)
    return peer


async def _quota(bench: Bench, sizes: list[int], expected: list[int]) -> None:
    async with bench.alone("quota"):
        peer = await _two_queues(bench)
        found: list[int] = []
        for place, size in enumerate(sizes):
            peer.post(bytes(size), place % 2)
            found += await peer.statuses(1)
        await _empty(peer, found.count(0))
        check(found, expected, "statuses")


GROUP.rows(_quota, [
    ("11.2.1", "11.11", _O, "The quota of a domain counts the messages of all its queues",
     "30 PUT of a byte to two queues in turn, in a domain with a quota of 20 messages", "21 ACK with the status 0, then only the status 1", [1] * 30, [0] * 21 + [1] * 9),
    ("11.2.2", "11.11", _O, "The quota of a domain counts the bytes of all its queues",
     "6 PUT of 3,000 bytes to two queues in turn, in a domain with a quota of 8,192 bytes", "3 ACK with the status 0, then only the status 2", [3000] * 6,
     [0] * 3 + [2] * 3),
], domains=("quota",), seconds=60)  # fmt: skip


@GROUP.case("11.2.3", "11.10", domains=("quota",), seconds=60)
async def _other(bench: Bench) -> None:
    """A full domain refuses messages for each of its queues.

    Sends: 30 PUT to one queue in a domain with a quota of 20 messages, then a PUT to another queue.
    Expects: an ACK with the status 1 for the other queue.
    """
    async with bench.alone("quota"):
        peer = await _two_queues(bench)
        for _ in range(30):
            peer.post(b"x", 0)
        stored = (await peer.statuses(30)).count(0)
        peer.post(b"x", 1)
        status = (await peer.ack()).status
        await _empty(peer, stored + (status == 0))
        check(status, 1, "status")


@GROUP.case("11.2.4", "14.9", domains=("quota",), seconds=60)
async def _room(bench: Bench) -> None:
    """A confirmation makes room in the domain.

    Sends: 30 PUT to one queue in a domain with a quota of 20 messages, a CONFIRM of all, a PUT to another.
    Expects: an ACK with the status 0 for the other queue.
    """
    async with bench.alone("quota"):
        peer = await _two_queues(bench)
        for _ in range(30):
            peer.post(b"x", 0)
        await _empty(peer, (await peer.statuses(30)).count(0))
        peer.post(b"x", 1)
        status = (await peer.ack()).status
        if status == 0:
            peer.confirm((await peer.push()).push.guid, q_id=1)
            await peer.barrier()
        check(status, 0, "status")


# ---- 11.3 producers, consumers and queues


async def _second(bench: Bench, mode: dict[str, bool], other_mode: dict[str, bool]) -> None:
    one, two, uri = await bench.client(), await bench.client(), bench.uri("few")
    await one.open(uri, **mode)
    await two.refused(open_request(uri, **mode))
    await two.open(uri, **other_mode)


_READ, _WRITE = {"write": False}, {"read": False}

GROUP.rows(_second, [
    ("11.3.1", "7.26", _O, "A second consumer is refused in a domain with one consumer", "openQueue for reading in two sessions, in a domain with maxConsumers 1",
     "a status for the second", _READ, _WRITE),
    ("11.3.2", "7.26", _O, "A second producer is refused in a domain with one producer", "openQueue for writing in two sessions, in a domain with maxProducers 1",
     "a status for the second", _WRITE, _READ),
], domains=("few",))  # fmt: skip


GROUP.rows(partial(play, kind="few"), [
    ("11.3.3", "7.26", _O, "A consumer that leaves makes room for another",
     "openQueue for reading and closeQueue, then openQueue in another session, with maxConsumers 1", "openQueueResponse",
     A.reads(), A.leaves(), B.reads()),
], domains=("few",))  # fmt: skip


@GROUP.case("11.3.4", "7.26", _O, domains=("few",))
async def _lost(bench: Bench) -> None:
    """A lost connection makes room for another consumer.

    Sends: openQueue for reading, the end of the connection, then openQueue in another session.
    Expects: openQueueResponse within some seconds.
    """
    one, two, uri = await bench.client(), await bench.client(), bench.uri("few")
    await one.open(uri, write=False)
    one.drop()
    for _ in range(20):
        reply = await two.ask(open_request(uri, write=False))
        if type(reply).__name__ == "OpenQueueResponse":
            return
        await two.wait(0.2)
    raise fail("an openQueueResponse", "a status, 20 times")


@GROUP.case("11.3.5", "7.26", _O, domains=("few",))
async def _each(bench: Bench) -> None:
    """The limits hold for each queue.

    Sends: openQueue of two queues for reading and writing in two sessions, with both limits 1.
    Expects: openQueueResponse for both.
    """
    for _ in range(2):
        await bench.queue("few")


@GROUP.case("11.3.6", "7.26", _O, domains=("few-queues",))
async def _queues(bench: Bench) -> None:
    """A third queue is refused in a domain with two queues.

    Sends: openQueue of two queues, then of a third, in a domain with maxQueues 2.
    Expects: a status for the third.
    """
    peer = await bench.client()
    # The same names each time: a broker keeps a queue for a while.
    for q_id, name in enumerate(("probe", "second")):
        await peer.open(bench.uri("few-queues", name=name), q_id)
    await peer.refused(open_request(bench.uri("few-queues"), 2))
