# SPDX-License-Identifier: Apache-2.0
"""A search that takes every possible transition of the client's tables, and checks the promises on the way.

The problem: random walks take frequent transitions thousands of times, and rare transitions hardly ever. A
    queue closed while its second openQueue is overdue needs four rare steps in one
order.

The search keeps the shortest ways to each situation: the state of a queue, its flags, whether the queue is
being closed, and whether there is a connection. Each round continues a way by a few random steps. Every other
round begins where a transition is missing, and the rounds between begin at the situation that was continued
least. A way is a list of numbers: each draws a step and its arguments, so a way can be repeated. The numbers
come from one seed, so the search finds the same transitions each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from random import Random
from typing import Any

import pytest

from bmq.protocol.client.core import ClientCore, SessionInput, SessionState
from bmq.protocol.client.queue import QueueCore, QueueInput, QueueState
from bmq.protocol.client.subscription import SubscriptionSet
from bmq.protocol.machine import Machine
from tests.fakes.broker import FEATURES
from tests.protocol.bench import READ, WRITE
from tests.protocol.walk import BEFORE_DRAINING, OLD, URIS, Walk

#: Seeds 8, 16, 19 and 21 take every possible transition within 1,900 rounds. Seeds 1 to 45 break no promise.
SEED, ROUNDS = 16, 6000
#: The number of shortest ways kept for each situation.
WAYS = 4

Way = tuple[int, ...]
Pair = tuple[Enum, Enum]

IMPOSSIBLE: dict[Pair, str] = {
    (QueueState.CLOSED, QueueInput.STOP): "a closed queue has left the session",
    (
        QueueState.BEHIND,
        QueueInput.STOP,
    ): "a session ends its oldest queues first, and lets the next ones move on",
    (
        SessionState.STARTING,
        SessionInput.CHANNEL_DOWN,
    ): "a session hears of no connection before it is negotiated",
    (SessionState.RECONNECTING, SessionInput.CHANNEL_DOWN): "as before",
    (SessionState.DRAINING_LOST, SessionInput.CHANNEL_DOWN): "as before",
    (SessionState.SEALED_LOST, SessionInput.CHANNEL_DOWN): "as before",
    (SessionState.CLOSED, SessionInput.STOP): "to end a closed session is complete at once",
}


def begin(random: Random) -> Walk:
    walk = Walk()
    walk.begin(
        reopen_timeout=random.choice((60, 20, 2)),
        drop=random.random() < 0.5,
        quiet_for=0,
        patient=random.random() < 0.1,
        opened=random.sample(URIS, random.randrange(4)),
        suspends=random.random() < 0.5,
    )
    walk.all_is_well()
    return walk


def steps(walk: Walk, random: Random) -> dict[float, list[Callable[[], object]]]:
    """Return the steps that are possible now, by their weight."""
    bench = walk.bench
    flip, count = random.random() < 0.5, random.randrange(4)
    timeout = random.choice((30, 1))
    uri, flags = random.choice(URIS), random.choice((READ, WRITE, READ | WRITE))
    common: list[Callable[[], object]] = []
    usual: list[Callable[[], object]] = [
        lambda: walk.open(uri, flags, count, timeout, flip),
        lambda: walk.wait(random.choice((0.01, 1.0, 6.0, 40.0))),
        lambda: walk.wait(max(0.0, (bench.core.next_deadline() or bench.now) - bench.now)),
        lambda: walk.health(flip, random.random() < 0.5),
    ]
    rare: list[Callable[[], object]] = [lambda: walk.stop(flip)]
    if bench.state is not SessionState.CLOSED:
        rare.append(walk.drain)
    if bench.state not in BEFORE_DRAINING:
        rare.append(walk.seal)
    if walk.all:
        queue = random.choice(walk.all)
        usual += [
            lambda: walk.open(queue.uri_text, queue.flags, count, timeout, flip),  # the same action again
            lambda: walk.configure(queue, count, timeout, flip),
            lambda: walk.close(queue, timeout, flip),
            lambda: walk.abandon(queue),
        ]
        rare += [
            lambda: walk.leave(queue),
            lambda: walk.post(queue, count + 1, random.choice(("together", "one by one")), flip),
        ]
    if bench.up and bench.broker.requests:
        common.append(lambda: walk.answer(random.randrange(3), "accept", 300_000, 2))
        usual += [
            lambda: walk.answer(random.randrange(3), "refuse", 300_000, 2),
            lambda: walk.answer(random.randrange(3), "refuse for now", 300_000, 2),
            lambda: walk.answer(random.randrange(3), "misunderstand", 300_000, 2),
            lambda: walk.answer(0, "everything", 300_000, 2),
        ]
    if bench.up:
        usual.append(walk.cut)
    if bench.core.connected:
        rare.append(lambda: bench.send(b"garbage" * 10))
    elif not bench.failures and bench.state not in (SessionState.CLOSED, SessionState.SEALED_LOST):
        common.append(lambda: walk.connect(flip, random.choice((FEATURES, FEATURES, OLD)), 0))
    return {4: common, 1: usual, 0.4: rare}


def step(walk: Walk, random: Random) -> None:
    possible = [(weight, each) for weight, some in steps(walk, random).items() for each in some]
    random.choices([each for _, each in possible], [weight for weight, _ in possible])[0]()
    walk.all_is_well()


def situations(walk: Walk) -> list[tuple[Enum, Hashable]]:
    """Return the states of a walk's machines, each with its relevant conditions."""
    if walk.bench.state is SessionState.CLOSED:
        return []
    found: list[tuple[Enum, Hashable]] = [(walk.bench.state, None)]
    for queue in walk.all:
        if queue.state is not QueueState.CLOSED:
            found.append((queue.state, (int(queue.flags), queue.closing, walk.bench.core.connected)))
            found.append((queue.state, (queue.suspended, queue.reported_suspended)))
    return found


def explore(random: Random, taken: dict[Pair, None], wanted: list[Pair]) -> None:
    """Search until every wanted transition was taken, or the rounds are over."""
    start: Way = (random.getrandbits(32),)
    ways: dict[tuple[Enum, Hashable], list[Way]] = {(SessionState.STARTING, None): [start]}
    continued: dict[tuple[Enum, Hashable], int] = dict.fromkeys(ways, 0)
    for number in range(ROUNDS):
        missing = [each for each in wanted if each not in taken]
        if not missing:
            return
        state = random.choice(missing)[0]
        nearest = [each for each in ways if each[0] is state] if number % 2 else []
        situation = min(nearest or ways, key=lambda each: continued[each])
        continued[situation] += 1
        way = random.choice(ways[situation])
        if number % 8 == 0:
            way = (random.getrandbits(32),)
        walk = begin(Random(way[0]))
        for each in way[1:]:
            step(walk, Random(each))
        for _ in range(6):
            way = (*way, random.getrandbits(32))
            step(walk, Random(way[-1]))
            for found in situations(walk):
                known = ways.setdefault(found, [])
                continued.setdefault(found, 0)
                known.append(way)
                known.sort(key=len)
                del known[WAYS:]
        walk.teardown()


@pytest.mark.timeout(300)
def test_every_possible_transition_is_taken_and_breaks_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[Pair, None] = {}
    fire = Machine.fire

    def noting(machine: Machine, event: Enum, *arguments: Any) -> Any:
        taken[machine.state, event] = None
        return fire(machine, event, *arguments)

    monkeypatch.setattr(Machine, "fire", noting)
    table: list[Pair] = [*QueueCore.TRANSITIONS, *ClientCore.TRANSITIONS]
    wanted = [each for each in table if each not in IMPOSSIBLE]
    explore(Random(SEED), taken, wanted)
    wanted += SubscriptionSet.TRANSITIONS  # taken on the way
    assert [f"{state.name}+{event.name}" for state, event in wanted if (state, event) not in taken] == []
    assert [reason for pair, reason in IMPOSSIBLE.items() if pair in taken] == []
