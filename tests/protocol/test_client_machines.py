# SPDX-License-Identifier: Apache-2.0
"""The client's state machines: walks that check the promises on the way, and their tables as graphs.

A random walk takes frequent transitions thousands of times, and rare ones hardly ever. The search takes
every possible one. It keeps the shortest ways to each situation: the state of a queue, its flags, whether
it is being closed, and whether there is a connection. Each round continues a way by a few random steps;
every other round begins where a transition is missing, and the rounds between at the situation that was
continued least. A way is a list of numbers, each of which draws a step and its arguments, so a way can be
repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from enum import Enum
from functools import partial
from random import Random
from typing import Any

import pytest

from bmq.errors import AckStatus, StateError
from bmq.protocol.client.core import ClientCore, SessionInput, SessionState
from bmq.protocol.client.handshake import Handshake, HandshakeState
from bmq.protocol.client.queue import QueueCore, QueueInput, QueueState
from bmq.protocol.client.subscription import SubscriptionSet
from bmq.protocol.machine import Machine
from bmq.wire.control import ClientIdentity, ClientType
from tests.fakes.broker import FEATURES
from tests.protocol.bench import READ, WRITE
from tests.protocol.walk import BEFORE_DRAINING, OLD, URIS, Walk
from tests.sweeps import sweep

#: Seeds 8, 16, 19 and 21 take every possible transition within 1,900 rounds. Seeds 1 to 45 break no promise.
SEED, ROUNDS = 16, 6000
#: The number of steps for which a wild walk does not end, and no garbage arrives.
QUIET = 60
#: The number of shortest ways kept for each situation.
WAYS = 4

Way = tuple[int, ...]
Pair = tuple[Enum, Enum]

IMPOSSIBLE: dict[Pair, str] = {
    (QueueState.CLOSED, QueueInput.STOP): "a closed queue has left the session",
    (QueueState.BEHIND, QueueInput.STOP): "a session ends its oldest queues first, and the next ones move on",
    (SessionState.CLOSED, SessionInput.STOP): "to end a closed session is complete at once",
    **{
        (state, SessionInput.CHANNEL_DOWN): "a session hears of no connection before it is negotiated"
        for state in (
            *(SessionState.STARTING, SessionState.RECONNECTING),
            *(SessionState.DRAINING_LOST, SessionState.SEALED_LOST),
        )
    },
}


def begin(random: Random) -> Walk:
    walk = Walk(
        reopen_timeout=random.choice((60, 20, 2)),
        drop=random.random() < 0.5,
        patient=random.random() < 0.1,
        opened=random.sample(URIS, random.randrange(4)),
        suspends=random.random() < 0.5,
    )
    walk.all_is_well()
    return walk


def steps(walk: Walk, random: Random, wild: bool) -> dict[float, list[Callable[[], object]]]:
    """Return the steps that are possible now, by their weight.

    Wild walks also carry messages, and do not end early.
    """
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
    rare: list[Callable[[], object]] = []
    may_end = not wild or walk.steps > QUIET
    if may_end:
        rare.append(lambda: walk.stop(flip))
        if bench.state is not SessionState.CLOSED:
            rare.append(walk.drain)
    answer = partial(walk.answer, dedup_ms=300_000, routing=2)
    if wild:
        answer = partial(
            walk.answer, dedup_ms=random.choice((300_000, 5000, 0)), routing=random.choice((2, 2, 10, 7))
        )
        usual += [lambda: walk.wait(310.0), *messages(walk, random)]
        usual += messages(walk, random)
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
        common.append(lambda: answer(random.randrange(3), "accept"))
        usual += [
            lambda: answer(random.randrange(3), "refuse"),
            lambda: answer(random.randrange(3), "refuse for now"),
            lambda: answer(random.randrange(3), "misunderstand"),
            lambda: answer(0, "everything"),
        ]
    if bench.up:
        usual.append(walk.cut)
    if bench.core.connected:
        if may_end:
            rare.append(lambda: bench.send(b"garbage" * 10))
    elif not bench.failures and bench.state not in (SessionState.CLOSED, SessionState.SEALED_LOST):
        common.append(lambda: walk.connect(flip, random.choice((FEATURES, FEATURES, OLD)), 0))
    return {4: common, 1: usual, 0.4: rare}


def messages(walk: Walk, random: Random) -> list[Callable[[], object]]:
    """Return the possible steps of messages, which change no state of a machine."""
    bench, found = walk.bench, list[Callable[[], object]]()
    number, flip = random.randrange(1, 6), random.random() < 0.5
    if walk.all:
        queue, how = random.choice(walk.all), random.choice(("together", "one by one"))
        found += [lambda: walk.post(queue, number, how, flip), lambda: walk.confirm(queue, number, flip)]
        if bench.core.connected and any(walk.streams.values()):
            numbers = random.sample(range(1, 6), random.randrange(1, 4))
            found += [lambda: walk.push(queue, flip, numbers)] * 2
    if bench.up and bench.broker.puts:
        status = random.choice((AckStatus.SUCCESS, AckStatus.LIMIT_MESSAGES, AckStatus.UNKNOWN))
        found.append(lambda: walk.ack([random.randrange(20) for _ in range(5)], status))
    if bench.core.connected:
        what = random.choice(("ack", "push", "heartbeat"))
        found.append(lambda: walk.say_something_unexpected(what, random.randrange(20), [number]))
    return found


def step(walk: Walk, random: Random, wild: bool = False) -> None:
    possible = [(weight, each) for weight, some in steps(walk, random, wild).items() for each in some]
    random.choices([each for _, each in possible], [weight for weight, _ in possible])[0]()
    walk.all_is_well()


def situations(walk: Walk) -> list[tuple[Enum, Hashable]]:
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
        walk.end()


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


def walked(way: Way) -> Exception | None:
    """Walk to the end of the session; return the broken promise."""
    try:
        walk = begin(Random(way[0]))
        for each in way[1:]:
            step(walk, Random(each), wild=True)
        walk.end()
    except Exception as error:
        return error
    return None


@pytest.mark.timeout(900)  # making a failure small takes a while
def test_no_random_walk_breaks_a_promise() -> None:
    """BMQ_WALKS takes another number of walks, and other walks each time: thousands by night."""
    chosen = os.environ.get("BMQ_WALKS", "")
    random = Random() if chosen else Random(1)
    for _ in range(int(chosen or 40)):
        way = tuple(random.getrandbits(32) for _ in range(100))
        if walked(way):
            for at in reversed(range(1, len(way))):
                shorter = way[:at] + way[at + 1 :]
                way = shorter if walked(shorter) else way
            error = walked(way)
            assert error is not None
            raise AssertionError(f"walked({way})") from error


def reachable(machine: type[Machine], start: Enum, *, backwards: bool = False) -> set[Enum]:
    found, new = {start}, {start}
    while new:
        edges = [(a, transition.next_state) for (a, _), transition in machine.TRANSITIONS.items()]
        if backwards:
            edges = [(b, a) for a, b in edges]
        new = {b for a, b in edges if a in new} - found
        found |= new
    return found


@sweep(
    "machine, start, end",
    [
        (Handshake, HandshakeState.IDLE, HandshakeState.DONE),
        (ClientCore, SessionState.STARTING, SessionState.CLOSED),
        (QueueCore, QueueState.CLOSED, QueueState.CLOSED),
    ],
)
@pytest.mark.statement("7.2")
def test_every_state_is_reached_and_left_for_the_end(machine: type[Machine], start: Enum, end: Enum) -> None:
    states = set(type(start))
    assert reachable(machine, start) == states
    assert reachable(machine, end, backwards=True) == states


def test_impossible_input_is_an_error_with_state_and_input_and_no_change() -> None:
    core = ClientCore(ClientIdentity(client_type=ClientType.E_TCPCLIENT))
    with pytest.raises(StateError, match=r"DISCONNECTED is not possible in state SessionState\.STARTING"):
        core.fire(SessionInput.DISCONNECTED, 0.0)
    assert core.state is SessionState.STARTING
