# SPDX-License-Identifier: Apache-2.0
"""Worlds without faults: every count, time and share is exactly as promised.

Faults allow many outcomes, and the check of a history admits every allowed outcome. Without faults a single
outcome is right. The worlds compute the right outcome from the drawn limits, sizes and plans, never from the
program's own counts.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

import bmq
from bmq.broker import DomainConfig, Limits, Mode
from bmq.conventions import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_GUID, DEAD_QUEUE, DESTINATION, DUE
from bmq.delays import Mover
from bmq.testing import SimulatedBroker, Simulation, Verdict, check
from tests.simulation.books import unbalanced, unsettled

__all__ = ["PEACE"]

PEACE: dict[str, Callable[[Simulation], Coroutine[Any, Any, Verdict]]] = {}
#: Virtual seconds for all data under way to arrive.
SOON = 0.5
#: Virtual seconds for a few messages to cross the network.
NEAR = 0.05

Body = Callable[[Simulation, SimulatedBroker], Coroutine[Any, Any, None]]


def peace(body: Body) -> Body:
    """Register a world with a broker."""

    async def run(sim: Simulation) -> Verdict:
        month = {"message_ttl": 30 * 86400}
        broker = sim.broker(
            domains=[
                DomainConfig("peace", Mode.PRIORITY, **month),
                DomainConfig("peace.fanout", Mode.FANOUT, app_ids=("foo", "bar"), **month),
            ]
        )
        await body(sim, broker)
        # Expired, skipped and left messages are no loss here: the world itself counts these messages.
        return check(sim.history, without=["lost", "unfinished", "dead-letters"])

    PEACE[body.__name__.replace("_", " ")] = run
    return body


def uri(name: str) -> str:
    return f"bmq://peace/{name}"


def connect(sim: Simulation, broker: SimulatedBroker, **options: Any) -> bmq.connect:
    recorder = sim.recorder
    return bmq.connect(broker.uri, interceptors=[recorder], on_event=recorder.on_event, **options)


def balanced(broker: SimulatedBroker, *sessions: bmq.Session) -> None:
    found = unsettled(broker, sessions)
    assert not found, found


async def joined(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for tasks; gather() takes other turns of the loop in Python 3.11 than in 3.12."""
    for each in tasks:
        await each


def left_over(queue: bmq.Queue) -> Iterator[bmq.Message]:
    """Yield the messages that have arrived."""
    while (message := queue.receive_nowait()) is not None:
        yield message


def near(value: float | None, expected: float, tolerance: float = NEAR) -> bool:
    return value is not None and abs(value - expected) <= tolerance


@peace
async def windows(sim: Simulation, broker: SimulatedBroker) -> None:
    """A reader's limits are used fully, never exceeded, and open again at 80 %."""
    random = sim.random
    limit, size = random.choice((1, 2, 5, 10, 37)), random.choice((20, 100, 3000))
    by_bytes, app = random.random() < 0.5, random.random() < 0.3
    total = 3 * limit + random.randrange(10)
    limits = (
        {"max_unconfirmed_messages": 10_000, "max_unconfirmed_bytes": limit * size}
        if by_bytes
        else {"max_unconfirmed_messages": limit, "max_unconfirmed_bytes": 1 << 30}
    )
    low = math.ceil(limit * size * 0.8) // size if by_bytes else math.ceil(limit * 0.8)
    where = "bmq://peace.fanout/windows" if app else uri("windows")
    async with connect(sim, broker) as writer, connect(sim, broker) as session:
        output = await writer.open_queue(where, write=True)
        posts = [(b"%d " % number).ljust(size, b".") for number in range(total)]
        (await output.post_many(posts)).raise_for_failures()
        queue = await session.open_queue(f"{where}?id=foo" if app else where, read=True, **limits)
        other = await session.open_queue(f"{where}?id=bar", read=True) if app else None
        stored = broker.broker.queues[where]
        held: dict[str, tuple[bmq.Message, float]] = {}
        taken = confirmed = 0
        delivered = expected = min(limit, total)
        while confirmed < total:
            first = queue.receive_nowait()
            await asyncio.sleep(SOON)
            while message := first or queue.receive_nowait():
                first = None
                assert message.data == posts[taken], (message.data, taken)
                held[message.guid] = message, sim.now - (message.age or 0.0)
                taken += 1
            assert len(held) == expected, (len(held), expected, limit, low)
            counts = session.stats()
            for each in (counts, queue.stats(), queue.consumers[0].stats()):
                found = each.received, each.confirmed, each.unconfirmed
                assert found == (taken, confirmed, len(held)), each
                assert (each.received_bytes, each.buffered_messages) == (taken * size, 0), each
            assert len(stored.apps["foo" if app else "__default"].unconfirmed) == len(held)
            oldest = max((sim.now - arrived for _, arrived in held.values()), default=0.0)
            assert near(counts.oldest_unconfirmed_seconds, oldest), (counts, oldest)
            assert session.health().ready
            assert not unbalanced(session), unbalanced(session)
            for guid in random.sample(list(held), random.randint(1, len(held))):
                if random.random() < 0.8:
                    held.pop(guid)[0].confirm()
                else:
                    queue.confirm(held.pop(guid)[0])
                confirmed += 1
                expected -= 1
                if expected <= low:  # a full window is filled again from 80 % on
                    delivered, more = min(total, confirmed + limit), delivered
                    expected += delivered - more
        if other is not None:
            async for message in other:
                message.confirm()
                confirmed += 1
                if confirmed == 2 * total:
                    break
        await asyncio.sleep(SOON)
        balanced(broker, writer, session)
        counts = stored.stats()
        copies = 2 * total if app else total
        assert (counts.pushed, counts.confirmed, counts.messages) == (copies, copies, 0), counts
        assert (counts.posted, counts.acknowledged) == (total, total), counts
        assert (counts.posted_bytes, counts.pushed_bytes) == (total * size, copies * size), counts


@peace
async def accounts(sim: Simulation, broker: SimulatedBroker) -> None:
    """Posts of every kind, and slow readers: client and broker report equal counts."""
    random = sim.random
    names = [uri(f"account{number}") for number in range(random.randint(1, 3))]
    plain = random.random() < 0.5
    compression = None if plain else random.choice((None, bmq.Compression.ZLIB))
    async with connect(sim, broker) as writer, connect(sim, broker) as reader:
        wrote = read = 0
        for name in names:
            output = await writer.open_queue(name, write=True, compression=compression)
            count = size = 0
            waiting: list[Any] = []
            for _ in range(random.randint(1, 15)):
                posts = []
                for _ in range(random.choice((1, 1, 2, 20))):
                    data = b"." * random.choice((1, 10, 500, 5000))
                    named = {} if plain else {"x": random.randrange(9), "name": "n" * random.randrange(9)}
                    posts.append(bmq.PutMessage(data, named or None))
                    size += len(data)
                count += len(posts)
                if len(posts) > 1:
                    report = await output.post_many(posts)
                    assert (report.posted, report.acknowledged) == (len(posts), len(posts)), report
                elif random.random() < 0.5:
                    await output.post(posts[0].data, properties=posts[0].properties)
                else:
                    waiting.append(output.post_nowait(posts[0].data, properties=posts[0].properties))
            began = sim.now
            await output.flush()
            assert sim.now - began < NEAR
            assert all(each.done() for each in waiting)
            counts, stored = output.stats(), broker.broker.queues[name].stats()
            assert (counts.posted, counts.acknowledged, counts.refused) == (count, count, {}), counts
            assert (counts.unacked_messages, counts.unacked_bytes, counts.retransmitted) == (0, 0, 0), counts
            assert counts.ack_seconds.count == count, counts
            assert 0 < (counts.ack_seconds.mean or 0) < NEAR, counts
            assert (stored.posted, stored.acknowledged, stored.refused) == (count, count, 0), stored
            assert counts.posted_bytes == stored.posted_bytes == stored.bytes, (counts, stored)
            assert not plain or counts.posted_bytes == size, (counts, size)
            assert stored.messages == count, stored
            assert (stored.producers, stored.consumers) == (1, 0), stored
            wrote += count
            # The same GUID again: accepted, and stored once.
            guid = broker.broker.posted(name)[-1].guid
            await output.post(b"again", guid=guid)
            assert broker.broker.queues[name].stats().posted == count
            wrote += 1
            posted_at = sim.now
            read += await _read_slowly(sim, broker, reader, name, count, posted_at)
            if random.random() < 0.5:
                await output.close()
        await asyncio.sleep(SOON)
        balanced(broker, writer, reader)
        counts = writer.stats()
        assert (counts.posted, counts.acknowledged) == (wrote, wrote), counts
        assert counts.bytes_sent > counts.posted_bytes, counts
        assert counts.reconnects == counts.seconds_disconnected == counts.buffer_full_errors == 0, counts
        counts = reader.stats()
        assert (counts.received, counts.confirmed, counts.unconfirmed) == (read, read, 0), counts
        assert counts.bytes_received > counts.received_bytes, counts
        for session in (writer, reader):
            health = session.health()
            assert (health.ready, health.degraded, health.troubles) == (True, False, ()), health
    assert writer.state is bmq.SessionState.CLOSED
    assert not writer.health().ready
    assert not any(each.clients for each in broker.broker.queues.values())


async def _read_slowly(
    sim: Simulation, broker: SimulatedBroker, session: bmq.Session, name: str, count: int, posted_at: float
) -> int:
    """Read a queue, with pauses before confirmations; return the number of messages."""
    random = sim.random
    before = session.stats()
    queue = await session.open_queue(name, read=True)
    together = random.random() < 0.5
    held = longest = 0.0
    left = count
    came_at = 0.0
    while left:
        some = random.choice((1, 3, 100)) if together else 1
        batch = list(await queue.receive_many(some)) if together else [await queue.receive()]
        came_at = came_at or sim.now
        if random.random() < 0.3:
            await asyncio.sleep(random.choice((0.003, 0.3, 7.0)))
        for message in batch:
            held += message.age or 0.0
            longest = max(longest, message.age or 0.0)
            message.confirm()
        left -= len(batch)
    await asyncio.sleep(SOON)
    counts, stored = queue.stats(), broker.broker.queues[name].stats()
    assert (counts.received, counts.confirmed, counts.unconfirmed) == (count, count, 0), counts
    assert (counts.redelivered, counts.confirmed_again) == (0, 0), counts
    assert (counts.buffered_messages, counts.buffered_bytes) == (0, 0), counts
    assert counts.received_bytes == stored.posted_bytes == stored.pushed_bytes, (counts, stored)
    assert (stored.pushed, stored.confirmed, stored.messages, stored.bytes) == (count, count, 0, 0), stored
    assert (stored.expired, stored.poisoned, stored.consumers) == (0, 0, 1), stored
    assert counts.confirm_seconds.count == count, counts
    assert near(counts.confirm_seconds.sum, held, count * 0.002), (counts, held)
    assert (counts.confirm_seconds.quantile(1.0) or 0) >= min(longest, 5.0) / 2, (counts, longest)
    # The broker also counts the network, and confirmations are sent together.
    assert held - 0.001 <= stored.held_seconds <= held + count * NEAR, (stored, held)
    assert near(stored.queued_seconds, count * (came_at - posted_at), count * NEAR + 1), stored
    since = session.stats() - before
    assert (since.received, since.received_bytes) == (count, counts.received_bytes), since
    await queue.close()
    assert queue.closed
    assert not broker.broker.queues[name].stats().consumers
    return count


@peace
async def late_outcomes(sim: Simulation, broker: SimulatedBroker) -> None:
    """Late outcomes: the window of posts is used fully, and never exceeded; posts stay in order."""
    random = sim.random
    window, late = random.choice((1, 2, 5, 20)), random.choice((0.5, 2.0))
    size = 100
    by_bytes = random.random() < 0.4
    limits = {"max_unacked_bytes": window * size} if by_bytes else {"max_unacked_messages": window}
    count = window * random.randint(1, 3) + random.randrange(3)
    async with connect(sim, broker, **limits) as session:
        queue = await session.open_queue(uri("late"), write=True)
        broker.broker.faults.delay_acks(late)
        began = sim.now
        done: list[int] = []

        async def post(number: int) -> None:
            await queue.post((b"%d " % number).ljust(size, b"."))
            done.append(number)

        tasks = [asyncio.create_task(post(number)) for number in range(count)]
        gone = set(random.sample(range(count), count // 4)) if count > window else set()
        gone = {number for number in gone if number >= window}
        await asyncio.sleep(late / 4)
        for number in gone:
            tasks[number].cancel()
        left = [number for number in range(count) if number not in gone]
        while len(done) < len(left):
            counts = session.stats()
            turn = int((sim.now - began) / late)
            expected = min(window, len(left) - len(done))
            assert counts.unacked_messages <= window, counts
            assert counts.unacked_messages == queue.unacked == queue.stats().unacked_messages
            assert counts.unacked_bytes == counts.unacked_messages * size, counts
            if (sim.now - began) % late > 0.1 * late:
                assert counts.unacked_messages == expected, (counts, expected)
                age = sim.now - began - turn * late
                assert near(counts.oldest_unacked_seconds, age, 0.2 * late), (counts, age)
                assert session.health().oldest_unacked_seconds is not None
            if counts.unacked_messages == window and random.random() < 0.3:
                with pytest.raises(bmq.BufferFull):
                    queue.post_nowait(b"x" * size)
                for each in (session.stats(), queue.stats()):
                    assert each.buffer_full_errors == counts.buffer_full_errors + 1
            await asyncio.sleep(late / 5)
        turns = math.ceil(len(left) / window)
        assert turns * late <= sim.now - began <= turns * (late + NEAR) + late / 5 + NEAR, (turns, late)
        assert done == left
        payloads = [int(each.payload.partition(b" ")[0]) for each in broker.broker.posted(queue.uri)]
        assert payloads == left, payloads
        counts = session.stats()
        assert (counts.posted, counts.acknowledged) == (len(left), len(left)), counts
        assert (counts.buffer_full_waits > 0) == (count > window), counts
        assert near(counts.ack_seconds.mean, late), counts
        assert counts.oldest_unacked_seconds is None
        future = queue.post_nowait(b"last")
        with pytest.raises(bmq.TimedOut):
            await queue.flush(timeout=late / 2)
        assert not future.done()
        await queue.flush()
        assert future.done()
        broker.broker.faults.clear()
        refusals = random.randint(1, 5)
        status = random.choice((bmq.AckStatus.NOT_READY, bmq.AckStatus.UNKNOWN))
        broker.broker.faults.nack(status, refusals)
        report = await queue.post_many([b"r"] * (refusals + 2))
        assert [each.error.status for each in report.failures] == [status] * refusals, report
        assert report.acknowledged == 2, report
        counts = session.stats()
        assert (dict(counts.refused), counts.acknowledged) == ({status: refusals}, len(left) + 3), counts
        await asyncio.sleep(SOON)
        balanced(broker, session)


@peace
async def rooms(sim: Simulation, broker: SimulatedBroker) -> None:
    """Quotas admit exactly the promised messages and bytes, and messages expire exactly after the TTL."""
    random = sim.random
    limit, size, ttl = random.randint(0, 6), random.choice((10, 100)), random.randint(2, 20)
    by_bytes, of_domain = random.random() < 0.5, random.random() < 0.5
    limits = Limits(bytes=limit * size) if by_bytes else Limits(messages=limit)
    kind = "domain_limits" if of_domain else "queue_limits"
    broker.broker.add_domain(DomainConfig("small", Mode.PRIORITY, message_ttl=ttl, **{kind: limits}))
    names = ["bmq://small/one", "bmq://small/two"]
    stored: dict[str, deque[float]] = {name: deque() for name in names}
    accepted, refused, expired = Counter[str](), Counter[str](), Counter[str]()
    full = bmq.AckStatus.LIMIT_BYTES if by_bytes else bmq.AckStatus.LIMIT_MESSAGES
    async with connect(sim, broker) as session, connect(sim, broker) as other:
        outputs = {name: await session.open_queue(name, write=True) for name in names}
        for _ in range(random.randint(5, 40)):
            name = random.choice(names)
            used = sum(map(len, stored.values())) if of_domain else len(stored[name])
            report = await outputs[name].post_many([b"." * size])
            assert [each.error.status for each in report.failures] == [full] * (used > limit), (used, limit)
            if report.failures:
                refused[name] += 1
            else:
                accepted[name] += 1
                stored[name].append(sim.now)
            if random.random() < 0.2 and stored[name]:
                queue = await other.open_queue(name, read=True)
                for _ in range(random.randint(1, len(stored[name]))):
                    (await queue.receive(timeout=SOON)).confirm()
                    stored[name].popleft()
                await queue.close()
                await asyncio.sleep(SOON)
            await asyncio.sleep(random.choice((0.0, 0.1, 1.0, ttl / 2)))
            for each in names:
                # A message lives for the TTL, and at most a second and a turn of the broker longer.
                view = broker.broker.queues[each]
                young = sum(sim.now - at < ttl for at in stored[each])
                assert young <= len(view) <= sum(sim.now - at < ttl + 2.5 for at in stored[each]), (each, ttl)
                while len(stored[each]) > len(view):
                    stored[each].popleft()
                    expired[each] += 1
                counts = view.stats()
                assert (counts.posted, counts.refused) == (accepted[each], refused[each]), counts
                assert (counts.expired, counts.bytes) == (expired[each], len(view) * size), counts
        counts = session.stats()
        assert counts.acknowledged == accepted.total(), counts
        assert sum(counts.refused.values()) == refused.total(), counts
        await asyncio.sleep(ttl + 3)
        assert not any(map(len, broker.broker.queues.values()))
        balanced(broker, session, other)


@peace
async def routes(sim: Simulation, broker: SimulatedBroker) -> None:
    """Consumers with drawn expressions and priorities leave in turn: each message finds its consumer."""
    random = sim.random
    where = uri("routes")
    texts = ["", "x < 3", "x >= 2 && x < 6", "x == 4 || x == 5", "x > 6"]
    names = [f"reader{number}" for number in range(random.randint(2, 5))]
    # The last reader matches every message: without this reader, unmatched messages would block the queue.
    plans = {name: (random.choice(texts), random.randrange(3)) for name in names} | {"last": ("", -1)}
    matches: dict[str, Callable[[int], bool]] = {
        "": lambda x: True,
        texts[1]: lambda x: x < 3,
        texts[2]: lambda x: 2 <= x < 6,
        texts[3]: lambda x: x in (4, 5),
        texts[4]: lambda x: x > 6,
    }
    sessions: dict[str, bmq.Session] = {}
    consumers: dict[str, bmq.Consumer] = {}
    at_hand: dict[str, list[tuple[int, bmq.Message]]] = {name: [] for name in plans}

    def receivers(x: int, left: list[str]) -> set[str]:
        fitting = [name for name in left if matches[plans[name][0]](x)]
        best = max(plans[name][1] for name in fitting)
        return {name for name in fitting if plans[name][1] == best}

    async def gather(left: list[str], again: list[int], new: list[int]) -> None:
        """Take the arrived messages: first those of departed readers, each once, at the right reader."""
        await asyncio.sleep(SOON)
        seen: list[int] = []
        shares: dict[frozenset[str], Counter[str]] = {}
        for name in left:
            mine: list[int] = []
            while message := consumers[name].receive_nowait():
                number = int(message.data)
                x = message.properties["x"]
                assert isinstance(x, int)
                assert name in receivers(x, left), (number, x, name, plans)
                assert message.redelivered == (number in again), (number, again)
                mine.append(number)
                at_hand[name].append((number, message))
                if number in new:
                    shares.setdefault(frozenset(receivers(x, left)), Counter())[name] += 1
            old = [number for number in again if number in mine]
            assert mine == old + sorted(set(mine) - set(old)), (mine, again)
            seen += mine
        assert sorted(seen) == sorted([*again, *new]), (sorted(seen), again, new)
        for group, counts in shares.items():
            # Readers with the same expression receive in turn.
            if len({plans[name][0] for name in group}) == 1 and len(shares) == 1:
                assert max(counts.values()) - min(counts[name] for name in group) <= 1, counts

    async with connect(sim, broker) as writer:
        output = await writer.open_queue(where, write=True)
        for name, (text, priority) in plans.items():
            session = sessions[name] = await connect(sim, broker)
            queue = await session.open_queue(where, read=True, default_subscription=False)
            consumers[name] = await queue.subscribe(text or None, priority=priority)
        left, posted = list(plans), 0
        again: list[int] = []
        while left:
            new = list(range(posted, posted + random.randint(1, 25)))
            for number in new:
                await output.post(b"%d" % number, properties={"x": random.randrange(9)})
            posted += len(new)
            await gather(left, again, new)
            for name in left:
                for number, message in random.sample(at_hand[name], len(at_hand[name]) // 2):
                    message.confirm()
                    at_hand[name].remove((number, message))
                counts = consumers[name].stats()
                assert counts.unconfirmed == len(at_hand[name]), counts
                assert consumers[name].queue.stats().unconfirmed == len(at_hand[name])
            await asyncio.sleep(SOON)
            view = broker.broker.queues[where].apps["__default"]
            assert len(view.unconfirmed) == view.pending == sum(len(at_hand[name]) for name in left)
            balanced(broker, writer, *sessions.values())
            gone = random.choice(left[:-1]) if len(left) > 1 else left[0]
            left.remove(gone)
            again = [number for number, _ in at_hand.pop(gone)]
            await sessions.pop(gone).close()
            if not left:
                break
            await gather(left, again, [])
            again = []
        view = broker.broker.queues[where]
        assert len(view) == len(again) == len(view.apps["__default"].redelivery), (view, again)


@peace
async def breaks(sim: Simulation, broker: SimulatedBroker) -> None:
    """Consumers pause, change limits, and put messages back: the queue keeps the order of messages."""
    random = sim.random
    where, posted, taken = uri("breaks"), 0, 0
    limit = 1000
    async with connect(sim, broker) as writer, connect(sim, broker) as session:
        output = await writer.open_queue(where, write=True)
        queue = await session.open_queue(where, read=True, default_subscription=False)
        consumer = await queue.subscribe(max_unconfirmed_messages=limit)
        held: list[bmq.Message] = []
        line: deque[int] = deque()
        paused = False

        async def look() -> None:
            await asyncio.sleep(SOON)
            waiting = 0 if paused else len(line)
            stored = broker.broker.queues[where]
            assert consumer.buffered == consumer.stats().buffered_messages == waiting, (consumer, line)
            assert queue.stats().buffered_messages == waiting + queue.unclaimed, (queue.stats(), line)
            assert queue.stats().unconfirmed == stored.unconfirmed, (queue.stats(), stored)
            assert len(stored) == posted - (taken - len(held)), (stored, posted, taken, held)
            assert consumer.paused == paused
            assert not unbalanced(session), unbalanced(session)
            assert not unbalanced(writer), unbalanced(writer)

        for _ in range(random.randint(5, 25)):
            what = random.choice(("post", "post", "take", "take", "confirm", "put back", "pause", "wait"))
            if what == "post":
                for _ in range(random.randint(1, 5)):
                    await output.post(b"%d" % posted)
                    line.append(posted)
                    posted += 1
            elif what == "pause":
                paused = not paused
                await (consumer.pause() if paused else consumer.resume())
            elif what == "take" and not paused and line:
                batch = list(await consumer.receive_many(random.choice((1, 2, 100)), timeout=SOON))
                expected = [line.popleft() for _ in batch]
                assert [int(each.data) for each in batch] == expected, (batch, expected)
                held += batch
                taken += len(batch)
            elif what == "confirm":
                for each in random.sample(held, len(held) // 2):
                    held.remove(each)
                    queue.confirm(each)
            elif what == "put back" and held and not paused:
                returned = held[-random.randint(1, len(held)) :]
                del held[-len(returned) :]
                consumer.put_back(returned)
                line.extendleft(int(each.data) for each in reversed(returned))
                taken -= len(returned)
            elif what == "wait" and not paused:
                began = sim.now
                with nullcontext() if line else pytest.raises(bmq.TimedOut):
                    await consumer.wait(timeout=SOON)
                assert near(sim.now - began, 0 if line else SOON)
            await look()
        if paused:
            await consumer.resume()
            paused = False
        while line:
            message = await consumer.receive(timeout=SOON)
            assert int(message.data) == line.popleft()
            message.confirm()
        for each in held:
            each.confirm()
        await asyncio.sleep(SOON)
        assert not len(broker.broker.queues[where])
        balanced(broker, writer, session)


@peace
async def fates(sim: Simulation, broker: SimulatedBroker) -> None:
    """Handlers fail by plan: each message has the attempts, the pauses and the end given by the policy."""
    random = sim.random
    where, dead = uri("fates"), uri("letters")
    every, factor = random.choice((0.0, 0.5, 3.0)), random.choice((1.0, 2.0))
    cap = random.choice((2.0, 3600.0))
    retries = random.choice((0, 1, 2, 4))
    then: Any = random.choice(("discard", "skip", "leave", bmq.DeadLetter(dead), bmq.DeadLetter(dead)))
    durable = random.random() < 0.3 and every > 0
    policy = bmq.Backoff(
        every, retries=retries, factor=factor, cap=cap, then=then, durable=durable, no_retry=ValueError
    )
    count, took, deadline = random.randint(1, 20), random.choice((0.0, 0.2)), random.choice((None, 1.0))
    # By message: the number of failing attempts, and whether the last failure rules out a further attempt.
    plans = [
        (random.choice((0, 0, 1, 3, 9)), random.random() < 0.2, random.random() < 0.2) for _ in range(count)
    ]
    attempts: dict[int, list[float]] = {number: [] for number in range(count)}
    told: list[bmq.Failure] = []
    hopeless, rejected = ValueError("never"), bmq.Reject("no")

    def expected(number: int) -> tuple[int, bool]:
        """Return the number of attempts, and whether the last attempt succeeds."""
        failures, stops, _ = plans[number]
        if stops and failures:
            return 1, False
        return min(failures, retries) + 1, failures <= retries

    app = bmq.App(broker.uri, interceptors=[sim.recorder])

    @app.consumer(
        where,
        concurrency=count + 1,
        retry=policy,
        timeout=deadline,
        on_error=told.append,
        max_unconfirmed_messages=count + 1,
    )
    async def handle(message: bmq.Message) -> None:
        number = int(message.data)
        failures, stops, slow = plans[number]
        attempts[number].append(sim.now)
        await asyncio.sleep(took)
        if len(attempts[number]) <= failures:
            if stops:
                raise random.choice((hopeless, rejected))
            if slow and deadline:
                await asyncio.sleep(10)
            raise OSError("not now")

    running = asyncio.create_task(app.run(signals=False))
    async with connect(sim, broker) as session:
        output = await session.open_queue(where, write=True)
        graves = await session.open_queue(dead, read=True)
        await sim.until(lambda: app.status())
        for number in range(count):
            await output.post(b"%d" % number, properties={"number": number})
        pauses = [min(every * factor**each, cap if factor > 1 else every) for each in range(retries)]
        await asyncio.sleep(SOON + (sum(pauses) + (retries + 1) * ((deadline or 0) + took + 1 + durable)))
        for number in range(count):
            runs, _ = expected(number)
            times = attempts[number]
            assert len(times) == runs, (number, plans[number], times, runs)
            for before, after, pause in zip(times, times[1:], pauses, strict=False):
                spent = deadline if plans[number][2] and deadline else took
                late = 1.0 if durable else NEAR
                assert -0.001 <= after - before - spent - pause <= late, (number, times, pause, spent)
        lost = [number for number in range(count) if not expected(number)[1]]
        fails = sum(expected(number)[0] - expected(number)[1] for number in range(count))
        assert len(told) == fails, (len(told), fails)
        assert sum(each.retry_in is None for each in told) == len(lost), told
        letters = {int(letter.data): letter for letter in left_over(graves)}
        # A rejected message too is confirmed only as a dead letter, or by then="discard".
        if isinstance(then, bmq.DeadLetter):
            await asyncio.sleep(SOON)
            letters |= {int(letter.data): letter for letter in left_over(graves)}
            assert sorted(letters) == lost, (sorted(letters), lost)
            for number, letter in letters.items():
                properties = letter.properties
                assert properties[DEAD_ATTEMPTS] == expected(number)[0], properties
                assert properties[DEAD_QUEUE] == where
                assert properties[DEAD_GUID] in {each.guid for each in broker.broker.posted(where)}
                assert properties["number"] == number
                assert properties[DEAD_ERROR], properties
                letter.confirm()
            kept: list[int] = []
        else:
            assert not letters
            kept = [] if then == "discard" else lost
        await asyncio.sleep(SOON)
        stored = sorted(int(each.payload) for each in broker.broker.queues[where].messages)
        assert stored == kept, (stored, kept, policy)
        (status, *_) = [each for each in app.status() if each.queue == where]
        assert (status.handled, status.given_up) == (count - len(lost), len(lost)), status
        assert (status.attempts_failed, status.left) == (fails, len(kept)), status
        assert status.unconfirmed == len(kept), status
        assert (status.waiting, status.handling, status.failing, status.hung) == (0, 0, 0, 0), status
        assert status.handler.endswith("handle")
        app.stop()
        await running
        await asyncio.sleep(SOON)
        balanced(broker, session)


@peace
async def due_times(sim: Simulation, broker: SimulatedBroker) -> None:
    """A single mover: each message arrives unchanged at the due time, and the mover's counts are exact."""
    random = sim.random
    where, dead = uri("due"), uri("due.dead")
    tick, ahead = random.choice((0.1, 0.5, 2.0)), random.choice((5.0, 60.0, 3600.0))
    most = random.choice((3, 20, 10_000))
    due: dict[int, float] = {}
    arrived: list[tuple[int, float]] = []
    start = sim._true_time() - sim.now

    async with connect(sim, broker) as session, connect(sim, broker) as moving:
        output = await session.open_queue(where, write=True)
        queue = await session.open_queue(where, read=True)
        waiting = await moving.open_queue(f"{where}.delayed", read=True, default_subscription=False)
        graves = await moving.open_queue(dead, write=True)
        limits: Any = {"tick": tick, "lookahead": max(ahead, tick), "max_held": most}
        mover = Mover(waiting, dead_letters=graves, clock=sim._true_time, **limits)
        running = asyncio.create_task(mover.run())

        async def receive() -> None:
            async for message in queue:
                number = int(message.data)
                arrived.append((number, sim.now))
                assert message.properties["number"] == number
                assert DESTINATION not in message.properties, message.properties
                assert near(message.properties[DUE] / 1000 - start, due[number], 0.002)  # type: ignore[operator]
                message.confirm()

        receiving = asyncio.create_task(receive())
        count, lost = random.randint(1, 30), 0
        direct = await session.open_queue(f"{where}.delayed", write=True)
        for number in range(count):
            delay = random.choice((random.uniform(0, 3), random.uniform(0, 40), 10.0))
            due[number] = sim.now + delay
            await output.post(b"%d" % number, delay=delay, properties={"number": number})
            if random.random() < 0.1:
                lost += 1
                await direct.post(
                    b"bad", properties={DESTINATION: random.choice(("bmq://else/where", "nowhere"))}
                )
            await asyncio.sleep(random.choice((0.0, 0.3)))
            assert mover.held <= count + lost
        await sim.until(lambda: len(arrived) == count, timeout=120)
        await asyncio.sleep(3)
        # A mover with room for few messages fetches further messages after passing some on.
        slack = NEAR if most > 100 else 2 * tick + 1.1
        for number, at in arrived:
            assert due[number] - 0.002 <= at <= due[number] + slack, (number, due[number], at, tick, most)
        assert len({number for number, _ in arrived}) == len(arrived) == count
        assert (mover.held, mover.moved, mover.put_aside) == (0, count, lost), (mover.held, mover.moved)
        assert len(broker.broker.queues[waiting.uri]) == 0
        assert len(broker.broker.posted(dead)) == lost
        running.cancel()
        await asyncio.wait([running])
        receiving.cancel()
        await asyncio.wait([receiving])
        balanced(broker, session, moving)


@peace
async def bad_hosts(sim: Simulation, broker: SimulatedBroker) -> None:
    """A host falls ill and recovers: queues are suspended in between, and report each change once."""
    random = sim.random
    host = bmq.health.HostHealth(random.random() < 0.8)
    events: list[bmq.events.SessionEvent] = []
    names = [uri(f"ward{number}") for number in range(random.randint(1, 3))]
    suspends = {name: random.random() < 0.7 for name in names}
    connection = bmq.connect(
        broker.uri, host_health=host, on_event=events.append, interceptors=[sim.recorder],
        retry_first_connect=True,
    )  # fmt: skip
    async with connection as session, connect(sim, broker) as writer:
        queues: dict[str, bmq.Queue] = {}
        outputs = {name: await writer.open_queue(name, write=True) for name in names}
        waiting = Counter[str]()

        async def read(name: str) -> None:
            how: Any = {"default_subscription": True, "suspends_on_bad_host_health": suspends[name]}
            queues[name] = await session.open_queue(name, read=True, write=True, **how)

        opening = [asyncio.create_task(read(name)) for name in names]
        if random.random() < 0.5:
            await joined(opening)
        for _ in range(random.randint(1, 12)):
            what = random.random()
            if what < 0.5:
                host.set(not host.healthy)
                if random.random() < 0.3:
                    continue  # and back again, before the broker has answered
            elif what < 0.7:
                sim.network.connections[0].cut()
            await asyncio.sleep(SOON + 10 * (what >= 0.5))
            await joined(opening)
            for name in names:
                count = random.randrange(3)
                for _ in range(count):
                    await outputs[name].post(b"%d" % waiting[name])
                waiting[name] += count
            await asyncio.sleep(SOON)
            ill = [name for name in names if suspends[name] and not host.healthy]
            for name, queue in queues.items():
                for message in left_over(queue):
                    waiting[name] -= 1
                    message.confirm()
                assert waiting[name] == 0 or name in ill, (name, waiting, ill)
                with pytest.raises(bmq.StateError) if name in ill else nullcontext():
                    await queue.post_nowait(b"mine")
                    waiting[name] += 1
            health = session.health()
            assert health.ready
            assert health.degraded == bool(ill), (health, ill)
            assert len(health.troubles) == len(ill), (health, ill)
            assert not unbalanced(session), unbalanced(session)
            of_queues, of_host = {name: list[type]() for name in names}, list[type]()
            for event in events:
                if isinstance(event, bmq.events.QueueSuspended | bmq.events.QueueResumed):
                    of_queues[event.queue_uri].append(type(event))
                elif isinstance(event, bmq.events.HostUnhealthy | bmq.events.HostHealthRestored):
                    of_host.append(type(event))
            for told in (*of_queues.values(), of_host):
                assert all(one is not two for one, two in pairwise(told)), told
            for name, told in of_queues.items():
                assert (told[-1:] == [bmq.events.QueueSuspended]) == (name in ill), (name, told, ill)
        host.set(True)
        await joined(opening)
        await asyncio.sleep(2 * SOON)
        for queue in queues.values():
            for message in left_over(queue):
                message.confirm()
        await asyncio.sleep(SOON)
        assert not any(map(len, broker.broker.queues.values()))
        balanced(broker, session, writer)


@peace
async def changes_of_mind(sim: Simulation, broker: SimulatedBroker) -> None:
    """Calls are cancelled at any moment: a repeated call works, and nothing is lost or left over."""
    random = sim.random
    sim.network.set(latency=(0.001, 0.02))
    where, other = uri("minds"), uri("minds.group")

    async def tried(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Make a call, cancel the call after a while, and repeat both until a call ends in time."""
        while True:
            task = asyncio.create_task(call())
            done, _ = await asyncio.wait([task], timeout=random.choice((0.0, 0.01, 0.05, 0.2, 5.0)))
            if done:
                return task.result()
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                return task.result()

    async with connect(sim, broker) as writer, connect(sim, broker) as reader, connect(sim, broker) as third:
        output: bmq.Queue = await tried(lambda: writer.open_queue(where, write=True))
        opening = partial(reader.open_queue, where, read=True, default_subscription=False)
        queue: bmq.Queue = await tried(opening)
        consumer = queue.subscribe(max_unconfirmed_messages=random.choice((2, 1000)))
        seen: set[str] = set()
        for number in range(random.randint(1, 8)):
            data = b"%d" % number
            what = random.randrange(5)
            if what == 0:
                await tried(consumer.pause)
                assert consumer.paused
            elif what == 1:
                await tried(partial(consumer.configure, priority=random.randrange(9)))
            elif what == 2:
                await tried(consumer.close)
                assert consumer.closed
                consumer = queue.subscribe()
            elif what == 3:
                await tried(partial(output.post, data))
            await tried(partial(output.post, data))
            await tried(output.flush)
            await tried(consumer.open)
            await asyncio.sleep(SOON)
            while len(seen) < len(broker.broker.posted(where)):
                for each in await tried(partial(consumer.receive_many, 2)):
                    assert each.guid not in seen
                    seen.add(each.guid)
                    each.confirm()
        await asyncio.sleep(SOON)
        assert seen == {each.guid for each in broker.broker.posted(where)}
        counts = writer.stats()
        assert counts.posted == counts.acknowledged == len(seen), (counts, seen)

        # Callers of a group come and go: the member stays in the group while any caller waits.
        jobs: bmq.Queue = await tried(lambda: third.open_queue(other, read=True))
        source = await writer.open_queue(other, write=True)
        group = jobs.group(buckets=4)
        patient = random.random() < 0.5
        waiting = asyncio.create_task(group.receive()) if patient else None
        for _ in range(random.randint(1, 3)):
            task = asyncio.create_task(random.choice((group.open, group.receive))())
            await asyncio.sleep(random.choice((0.0, 0.01, 0.03, 0.2)))
            task.cancel()
            await asyncio.wait([task])
            if random.random() < 0.5:
                await asyncio.sleep(SOON)
        if patient:
            await asyncio.sleep(SOON)
            await source.post(b"job", key="k")
            assert waiting is not None
            async with asyncio.timeout(SOON):  # wait_for() takes other turns of the loop in Python 3.11
                message = await waiting
        else:
            await source.post(b"job", key="k")
            await tried(group.open)
            message = await group.receive(timeout=SOON)
        message.confirm()
        await asyncio.sleep(SOON)
        balanced(broker, writer, reader, third)
        await tried(group.close)
        assert group.closed
        assert jobs.closed
        await tried(queue.close)
        await tried(output.close)
        await asyncio.sleep(SOON)
        # The crown stays in the control queue of a group.
        assert not any(len(each) for uri, each in broker.broker.queues.items() if uri != f"{other}.group")
        assert not any(broker.broker.queues[each].clients for each in (where,)), broker.broker.queues[where]
        again = await reader.open_queue(where, read=True)
        await writer.open_queue(where, write=True)
        assert broker.broker.queues[where].stats().producers == 1
        await again.close()
        balanced(broker, writer, reader, third)


@peace
async def silences(sim: Simulation, broker: SimulatedBroker) -> None:
    """A broker falls silent: a short silence has no effect, a longer one is reported, the longest ends."""
    random = sim.random
    limit = random.choice((2.0, 10.0, 60.0))
    events: list[tuple[float, bmq.events.SessionEvent]] = []
    where, posted = uri("silence"), 0

    def told(kind: type[bmq.events.SessionEvent], since: float) -> list[float]:
        return [at - since for at, event in events if isinstance(event, kind) and at >= since]

    def note(event: bmq.events.SessionEvent) -> None:
        sim.recorder.on_event(event)
        events.append((sim.now, event))

    async with bmq.connect(
        broker.uri, liveness=limit, on_event=note, interceptors=[sim.recorder], retry_first_connect=True
    ) as session:
        queue = await session.open_queue(where, read=True, write=True, default_subscription=True)
        for _ in range(random.randint(1, 4)):
            await asyncio.sleep(random.uniform(0, limit))
            began, how = sim.now, random.choice(("pause", "partition", "no acknowledgements"))
            seconds = limit * random.choice((0.1, 0.3, 0.8, 3.0))
            waiting = how == "no acknowledgements" or random.random() < 0.5
            if how == "pause":
                broker.process.pause()
            elif how == "partition":
                sim.network.partition("main", broker.host)
            else:
                broker.broker.faults.drop_acks()
            future = queue.post_nowait(b"%d" % posted) if waiting else None
            posted += waiting
            for part in range(1, 21):
                await asyncio.sleep(began + seconds * part / 20 - sim.now)
                health, lost = session.health(), told(bmq.events.ConnectionLost, began)
                stalled = told(bmq.events.Stalled, began)
                assert health.ready == (not lost) or how == "no acknowledgements", (health, events)
                assert bool(lost) or health.degraded == bool(stalled), (health, events)
                if waiting and future is not None and not future.done() and not lost:
                    assert near(health.oldest_unacked_seconds, sim.now - began), health
                if how != "no acknowledgements" and health.silent_seconds is not None:
                    # Bytes on the way still arrive; the session requested the last bytes not long ago.
                    heard = health.silent_seconds - (sim.now - began)
                    assert -NEAR <= heard <= limit / 2, (health, began)
            if how == "pause":
                broker.process.resume()
            elif how == "partition":
                sim.network.heal()
            else:
                broker.broker.faults.clear()
            stalled, lost = told(bmq.events.Stalled, began), told(bmq.events.ConnectionLost, began)
            if seconds < limit / 2 and not (how == "partition" and seconds > limit / 5):
                assert not lost, events
            if seconds < limit / 6:
                assert not stalled, events
            if seconds > 2 * limit:
                assert stalled or lost, events
                # The last byte came a third of the limit before, at most.
                assert not stalled or limit / 6.1 <= stalled[0] <= 0.6 * limit + NEAR, (stalled, limit)
                assert not lost or lost[0] >= 0.65 * limit, (lost, limit)
                if how != "no acknowledgements":
                    assert lost, events
                    assert lost[0] <= 1.25 * limit + NEAR, (lost, limit)
            if how == "no acknowledgements":
                # The broker never repeats a lost acknowledgement: the next connection has to ask.
                for connection in sim.network.connections:
                    connection.cut()
            await sim.until(lambda: session.health().ready, timeout=120)
            await asyncio.sleep(2 * SOON)
            if future is not None:
                async with asyncio.timeout(120):
                    await future
            await queue.post(b"%d" % posted)
            posted += 1
            await asyncio.sleep(SOON)
            health = session.health()
            assert (health.ready, health.troubles) == (True, ()), health
            assert len(told(bmq.events.Stalled, 0)) >= len(told(bmq.events.StallOver, 0)), events
            assert len(told(bmq.events.ConnectionLost, 0)) == session.stats().reconnects, events
            for message in left_over(queue):
                message.confirm()
        await asyncio.sleep(SOON)
        counts, stored = session.stats(), broker.broker.queues[where]
        assert (counts.posted, counts.acknowledged, stored.posted) == (posted, posted, posted), counts
        assert not len(stored)
        assert counts.seconds_disconnected > 0 or not counts.reconnects, counts
        balanced(broker, session)
