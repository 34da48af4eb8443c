# SPDX-License-Identifier: Apache-2.0
"""The first crown of a control queue: no member posts it while another connected member may have a crown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import bmq
from bmq.client.consumer import Consumer
from bmq.errors import ConfigureQueueError
from bmq.groups._coordinator import Coordinator, encoded
from bmq.groups._protocol import (
    Candidate,
    CandidateInput,
    CandidateState,
    Crown,
    Member,
    Order,
    Report,
    Request,
)
from bmq.testing import FaultProxy
from tests.waiting import eventually

Connect = Callable[..., Awaitable[bmq.Session]]
OPTIONS: dict[str, Any] = {"buckets": 3, "lease": 0.3}
WAYS = {
    CandidateState.YIELDED: [],
    CandidateState.OPENING: [CandidateInput.RETURNED],
    CandidateState.CANDIDATE: [CandidateInput.WAKE, CandidateInput.ANSWERED],
    CandidateState.POSTED: [CandidateInput.WAKE, CandidateInput.ANSWERED, CandidateInput.PROVED],
    CandidateState.NARROWING: [CandidateInput.WAKE, CandidateInput.ANSWERED, CandidateInput.SMALLER],
    CandidateState.WIDENING: [
        CandidateInput.WAKE,
        CandidateInput.ANSWERED,
        CandidateInput.SMALLER,
        CandidateInput.WAKE,
    ],
    CandidateState.CLOSING: [
        CandidateInput.WAKE,
        CandidateInput.ANSWERED,
        CandidateInput.SMALLER,
        CandidateInput.ANSWERED,
    ],
    CandidateState.REOPENING: [
        CandidateInput.WAKE,
        CandidateInput.ANSWERED,
        CandidateInput.SMALLER,
        CandidateInput.ANSWERED,
        CandidateInput.WAKE,
    ],
    CandidateState.HOLDING: [CandidateInput.CROWN],
}


def candidate(state: CandidateState, seq: int = 0) -> Candidate:
    made = Candidate("m")
    for each in WAYS[state]:
        made.fire(each, seq)
    assert made.state is state
    return made


@pytest.fixture
def crowns(monkeypatch: pytest.MonkeyPatch) -> list[Crown]:
    """The crowns posted by the members."""
    posted: list[Crown] = []
    post = Coordinator._post

    def note(self: Coordinator, what: Report | Order | Crown, to: str, guid: str | None = None) -> None:
        if isinstance(what, Crown):
            posted.append(what)
        post(self, what, to, guid)

    monkeypatch.setattr(Coordinator, "_post", note)
    return posted


def coordinator_of(group: bmq.groups.Group) -> Coordinator:
    coordinator = group._coordinator
    assert coordinator is not None
    return coordinator


def firsts(crowns: list[Crown]) -> list[Crown]:
    return [crown for crown in crowns if crown.term == 0]


# the table


@pytest.mark.parametrize("state", CandidateState)
def test_a_crown_in_any_state_is_held(state: CandidateState) -> None:
    made = candidate(state)
    assert made.fire(CandidateInput.CROWN, 0) is None
    for each in CandidateInput:
        assert made.fire(each, 0) is None
        assert made.state is CandidateState.HOLDING
    assert not made.proves(99)


@pytest.mark.parametrize("state", CandidateState)
def test_a_member_that_wakes_up_becomes_a_candidate(state: CandidateState) -> None:
    """Both subscriptions are requested in one request, after the answer to an earlier request."""
    made = candidate(state)
    made.fire(CandidateInput.WAKE, 0)
    asked = [made.fire(CandidateInput.ANSWERED, 0) for _ in range(2)]
    assert Request.CLOSE not in asked
    assert made.state is (
        CandidateState.HOLDING if state is CandidateState.HOLDING else CandidateState.CANDIDATE
    )


def test_a_candidate_gives_up_crowns_first() -> None:
    made = candidate(CandidateState.CANDIDATE)
    asked = [
        made.fire(each, 0)
        for each in (CandidateInput.SMALLER, CandidateInput.ANSWERED, CandidateInput.ANSWERED)
    ]
    assert asked == [Request.NARROW, Request.CLOSE, None]
    assert made.state is CandidateState.YIELDED


def test_only_a_report_after_both_subscriptions_is_a_proof() -> None:
    made = candidate(CandidateState.CANDIDATE, 7)
    assert [made.proves(seq) for seq in (7, 8)] == [False, True]
    made.fire(CandidateInput.PROVED, 9)
    assert not made.proves(10)
    made.fire(CandidateInput.SMALLER, 10)
    assert made.state is CandidateState.POSTED, (
        "an earlier report of another member may still be in the queue"
    )
    made.fire(CandidateInput.WAKE, 12)
    assert [made.proves(seq) for seq in (12, 13)] == [False, True]
    assert not any(
        candidate(state).proves(99) for state in CandidateState if state is not CandidateState.CANDIDATE
    )


def test_the_larger_of_two_names_gives_way() -> None:
    made = candidate(CandidateState.CANDIDATE)
    assert made.heard("p") == "p"
    assert made.heard("k") == "m"
    assert made.heard("k") == ""
    made.fire(CandidateInput.SMALLER, 0)
    assert made.heard("l") == "l"
    assert made.heard("a") == "k"
    made.fire(CandidateInput.ANSWERED, 0)
    assert made.heard("p") == "", "not a candidate any more"


def test_a_first_crown_has_fences_above_all_known_ones() -> None:
    member = Member("m")
    assert member.first_crown(5) == Crown("", 0, 5, ())
    member.order(Order("m", 1, 1, 0, {0: (70, False)}))
    member.order(Order("m", 1, 2, 0, {}))
    assert member.first_crown(5) == Crown("", 0, 71, None), "other members may still have buckets"
    member.lost("n")
    assert member.first_crown(5) == Crown("", 0, 71, ())


# members


async def test_no_first_crown_while_a_member_has_not_read_its_crown(
    bmq_connect: Connect, bmq_queue_uri: str, crowns: list[Crown], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader leaves, and the member that receives the crown is paused before it reads the crown."""
    awake, paused = asyncio.Event(), list[Coordinator]()
    handle, catch_up, report = Coordinator._handle, Coordinator._catch_up, Coordinator._report
    watching = False

    async def pausing(self: Coordinator, message: bmq.Message) -> None:
        if watching and not paused and b'"crown"' in message.data:
            paused.append(self)
        if self in paused:
            await awake.wait()
        await handle(self, message)

    async def late(self: Coordinator) -> None:
        if self in paused:
            await awake.wait()
        await catch_up(self)

    def silent(self: Coordinator) -> None:
        if self not in paused or awake.is_set():
            report(self)

    monkeypatch.setattr(Coordinator, "_handle", pausing)
    monkeypatch.setattr(Coordinator, "_catch_up", late)
    monkeypatch.setattr(Coordinator, "_report", silent)
    queues = [await (await bmq_connect()).open_queue(bmq_queue_uri, read=True) for _ in range(4)]
    groups = [await queue.group("k", member=f"m{n}", **OPTIONS) for n, queue in enumerate(queues[:3])]
    await eventually(lambda: [len(group.owned) for group in groups] == [1, 1, 1])
    fences = [group.fence(bucket) for group in groups for bucket in group.owned]
    watching = True
    leader = next(group for group in groups if coordinator_of(group)._crown is not None)
    await leader.close()
    await eventually(lambda: paused)
    crowns.clear()
    rest = [each for each in groups if each is not leader]
    other = next(each for each in map(coordinator_of, rest) if each not in paused)
    rest.append(await queues[3].group("k", member="a", **OPTIONS))
    seq = other._member.seq
    await eventually(lambda: other._member.seq > seq + 4)
    assert not firsts(crowns)  # after a time, another member deposes the paused one
    awake.set()
    await eventually(lambda: [len(group.owned) for group in rest] == [1, 1, 1])
    assert not firsts(crowns)
    assert all(group.fence(bucket) >= min(fences) for group in rest for bucket in group.owned)
    await asyncio.gather(*(group.close() for group in rest))


@pytest.mark.parametrize("ask", [Request.OPEN, Request.NARROW, Request.CLOSE])
async def test_a_member_paused_while_it_gives_way(
    ask: Request,
    bmq_connect: Connect,
    bmq_queue_uri: str,
    crowns: list[Crown],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before each request, and nobody leads while the paused member may receive a crown."""
    awake, paused = asyncio.Event(), list[Coordinator]()
    do = Coordinator._ask

    async def pausing(self: Coordinator, what: Request) -> None:
        if what is ask and not paused:
            paused.append(self)
            await awake.wait()
        await do(self, what)

    monkeypatch.setattr(Coordinator, "_ask", pausing)
    queues = [await (await bmq_connect()).open_queue(bmq_queue_uri, read=True) for _ in range(3)]
    groups = await asyncio.gather(
        *(queue.group("k", member=f"m{n}", **OPTIONS).open() for n, queue in enumerate(queues))
    )
    await eventually(lambda: paused)
    if ask is not Request.OPEN:
        others = [coordinator_of(group) for group in groups if coordinator_of(group) not in paused]
        await eventually(lambda: all(each._member.seq > 4 for each in others))
        assert not firsts(crowns)
    awake.set()
    await eventually(lambda: [len(group.owned) for group in groups] == [1, 1, 1])
    assert len(firsts(crowns)) == 1
    await asyncio.gather(*(group.close() for group in groups))


async def test_the_death_of_the_smallest_member_before_the_first_crown(
    bmq_connect: Connect, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [await bmq_connect() for _ in range(3)]
    queues = [await session.open_queue(bmq_queue_uri, read=True) for session in sessions]
    post, dead = Coordinator._post, list[Coordinator]()

    def dies(self: Coordinator, what: Any, to: str, guid: str | None = None) -> None:
        if isinstance(what, Crown) and self not in dead and not dead:
            dead.append(self)
        if self not in dead:
            post(self, what, to, guid)

    monkeypatch.setattr(Coordinator, "_post", dies)
    groups = [queue.group("k", member=f"m{n}", **OPTIONS) for n, queue in enumerate(queues)]
    await asyncio.gather(*(group.open() for group in groups))
    await eventually(lambda: dead)
    index = next(n for n, group in enumerate(groups) if coordinator_of(group) in dead)
    await sessions[index].close()
    rest = [group for n, group in enumerate(groups) if n != index]
    await eventually(lambda: sorted(len(group.owned) for group in rest) == [1, 2])
    await asyncio.gather(*(group.close() for group in rest), return_exceptions=True)


@pytest.mark.parametrize("ask", [Request.NARROW, Request.CLOSE])
async def test_a_crown_that_arrives_while_a_candidate_gives_way(
    ask: Request, bmq_connect: Connect, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    do = Coordinator._ask

    async def crown_before(self: Coordinator, what: Request) -> None:
        if what is ask:
            # Straight into the line of the candidate, as if the crown had overtaken the answer.
            assert self._control is not None
            properties = {"bmq_to": self._member.who if ask is Request.CLOSE else "", "bmq_from": ""}
            data = encoded(Crown("", 3, 9000, ()), self._text)
            await self._control.post(data, properties=properties)
            await eventually(lambda: self._candidacy.state is CandidateState.HOLDING)
        await do(self, what)

    proves = Candidate.proves
    monkeypatch.setattr(Candidate, "proves", lambda self, seq: False)
    monkeypatch.setattr(Coordinator, "_ask", crown_before)
    async with queue.group("k", **OPTIONS) as group:
        coordinator = coordinator_of(group)
        await eventually(lambda: coordinator._candidacy.state is CandidateState.CANDIDATE)
        monkeypatch.setattr(Candidate, "proves", proves)
        coordinator._step(CandidateInput.SMALLER)
        await eventually(lambda: len(group.owned) == 3)
        assert min(group.fence(bucket) for bucket in group.owned) >= 9000
        assert coordinator._candidacy.state is CandidateState.HOLDING


@pytest.mark.parametrize("ask", [Request.OPEN, Request.NARROW, Request.CLOSE])
async def test_requests_that_the_broker_refuses_are_repeated(
    ask: Request,
    bmq_connect: Connect,
    bmq_queue_uri: str,
    crowns: list[Crown],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: list[Request] = []
    do, configure = Coordinator._ask, Consumer.configure
    asking: dict[int, Request] = {}

    async def note(self: Coordinator, what: Request) -> None:
        asking[id(self._candidate)] = what
        await do(self, what)

    async def refuse(self: Consumer, expression: Any = None, **limits: Any) -> None:
        if asking.get(id(self)) is ask and not limits and len(refused) < 2:
            refused.append(ask)
            raise ConfigureQueueError("no")
        await configure(self, expression, **limits)

    monkeypatch.setattr(Coordinator, "_ask", note)
    monkeypatch.setattr(Consumer, "configure", refuse)
    queues = [await (await bmq_connect()).open_queue(bmq_queue_uri, read=True) for _ in range(2)]
    groups = await asyncio.gather(
        *(queue.group("k", member=f"m{n}", **OPTIONS).open() for n, queue in enumerate(queues))
    )
    await eventually(lambda: sorted(len(group.owned) for group in groups) == [1, 2])
    assert len(firsts(crowns)) == 1
    assert len(refused) == 2
    assert caplog.text.count("and is repeated: no") == 2
    await asyncio.gather(*(group.close() for group in groups))


async def test_a_first_crown_that_is_refused_is_posted_again(
    bmq_connect: Connect, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, lost = Coordinator._post, list[Crown]()

    def loses(self: Coordinator, what: Any, to: str, guid: str | None = None) -> None:
        if isinstance(what, Crown) and not lost:
            lost.append(what)
        else:
            post(self, what, to, guid)

    monkeypatch.setattr(Coordinator, "_post", loses)
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with queue.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 3)
        assert lost


@pytest.mark.parametrize("end", ["closed", "cut"])
@pytest.mark.parametrize("state", [each for each in CandidateState if each is not CandidateState.YIELDED])
async def test_a_member_ends_or_begins_anew_in_any_state(
    state: CandidateState,
    end: str,
    bmq_connect: Connect,
    bmq_broker: bmq.broker.Broker,
    bmq_queue_uri: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = list(WAYS[state])
    reached = asyncio.Event()
    step = Coordinator._step

    def forced(self: Coordinator, what: CandidateInput) -> None:
        """Lead the first life into the state."""
        if self._candidacy is not first:
            step(self, what)

    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True)
        group = queue.group("k", **OPTIONS)
        first: Candidate | None = None
        begin = Coordinator._begin

        async def begun(self: Coordinator, control: bmq.Queue) -> None:
            nonlocal first
            await begin(self, control)
            if first is None:
                first = self._candidacy
                for each in ways:
                    step(self, each)
                assert self._candidacy.state is state
                reached.set()

        monkeypatch.setattr(Coordinator, "_begin", begun)
        monkeypatch.setattr(Coordinator, "_step", forced)
        async with group:
            await reached.wait()
            if end == "cut":
                proxy.cut()
                await eventually(lambda: len(group.owned) == 3)
        assert coordinator_of(group)._ending is None


async def test_a_member_whose_host_falls_ill_passes_the_crown_on(
    bmq_broker: bmq.broker.Broker, bmq_queue_uri: str, crowns: list[Crown]
) -> None:
    host = bmq.health.HostHealth()
    async with bmq.connect(bmq_broker.uri, host_health=host) as ill, bmq.connect(bmq_broker.uri) as well:
        queue = await ill.open_queue(bmq_queue_uri, read=True, suspends_on_bad_host_health=True)
        first = await queue.group("k", member="a", **OPTIONS)
        await eventually(lambda: len(first.owned) == 3)
        second = await (await well.open_queue(bmq_queue_uri, read=True)).group("k", member="b", **OPTIONS)
        await eventually(lambda: second.owned)
        fences = [each.fence(bucket) for each in (first, second) for bucket in each.owned]
        crowns.clear()
        for _ in range(2):
            host.set(False)
            await eventually(lambda: len(second.owned) == 3)
            assert not first.owned
            host.set(True)
            await eventually(lambda: first.owned and len(second.owned) < 3)
        assert not firsts(crowns)
        fences.sort()
        assert all(each.fence(bucket) > fences[0] for each in (first, second) for bucket in each.owned)
        host.set(False)
        await eventually(lambda: len(second.owned) == 3)
        await first.close()
        await second.close()
