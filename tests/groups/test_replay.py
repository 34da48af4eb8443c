# SPDX-License-Identifier: Apache-2.0
"""Members and leaders of the product take the steps of traces of the specification in TLA+.

After each step, the states are equal. Numbers differ: fences of a bucket are in the same order, and orders
are compared by their effect. ``model/README.md`` says how to make the traces.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from bmq.groups._protocol import (
    Action,
    AssignmentInput,
    AssignmentState,
    Crown,
    Effect,
    Leader,
    Member,
    Order,
    Phase,
    Report,
)
from tests.groups.model import traces

LEASE = 10.0
_CHANGES = {
    ("GONE", "ASKED"): Action.SUBSCRIBE,
    ("READY", "OPEN"): Action.OPEN,
    ("OPEN", "DRAINING"): Action.SHUT,
    ("ASKED", "LEAVING"): Action.WITHDRAW,
    ("READY", "LEAVING"): Action.WITHDRAW,
    ("DRAINING", "LEAVING"): Action.WITHDRAW,
}
# Steps of the broker and of the handlers.
_ELSEWHERE = {
    *("DeliverBundle", "Finish", "Opened", "Uncover", "Shut", "Former", "Reconnect", "Restored", "Failover"),
    "Join",
}
_ANSWERS = {
    "Subscribed": AssignmentInput.ANSWERED,
    "Drained": AssignmentInput.DRAINED,
    "Withdrawn": AssignmentInput.WITHDRAWN,
}


class Replay:
    """The product's objects, and the messages between them."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.old: dict[str, Any] = {}
        self.new = state
        names = sorted(state["life"])
        self.buckets = len(state["seat"][names[0]])
        self.members = {name: Member(f"{name}.0", 1.0, LEASE) for name in names}
        self.leaders = {name: Leader(self.buckets, LEASE) for name in names}
        self.clock = dict.fromkeys(names, 0.0)
        self.mail: dict[str, list[Order]] = {name: [] for name in names}
        self.obeys = dict.fromkeys(names, "")  # the sender of the latest order
        self.sender = dict.fromkeys(names, "")  # of the last order in the mail
        self.reports: dict[str, list[Report]] = {name: [] for name in names}
        self.early: dict[str, dict[str, list[Report]]] = {name: {} for name in names}
        self.claims: dict[str, Crown] = {}
        self.crowns = {_key(state["crowns"][0]): Crown("", 0, 1, ())}
        # The product's fence for each of the specification, by bucket.
        self.fences: list[dict[int, int]] = [{} for _ in range(self.buckets)]

    def step(self, changes: dict[str, Any]) -> str:
        """Take a step, and compare; return its name."""
        self.old, self.new = self.new, self.new | changes
        name: str = changes["step"][0]
        arguments = changes["step"][1:]
        if name in _ANSWERS:
            self._answered(_ANSWERS[name], *arguments)
        elif name not in _ELSEWHERE:
            getattr(self, f"_{name.lower()}")(*arguments)
        if len(changes) > 1 or name not in _ELSEWHERE:
            for each in self.members:
                self._compare(each)
        return name

    # members

    def _report(self, m: str, *, leaving: bool = False) -> None:
        report = self.members[m].report(self.clock[m], leaving=leaving)
        self.reports[m].append(report)
        wanted = self.new["reports"][m][-1]
        assert (report.who, report.leaving) == (wanted["who"], wanted["leaving"])
        if not leaving:
            states = [report.buckets.get(bucket, (0, "GONE"))[1] for bucket in range(self.buckets)]
            assert states == [state for state, _ in wanted["seats"]]

    def _order(self, m: str) -> None:
        order = self.mail[m].pop(0)
        wanted = self.old["mail"][m][0]
        before = self.members[m].seen
        effects = self.members[m].order(order)
        accepted = self.members[m].seen != before
        assert accepted == (self.new["seen"][m] == [wanted["term"], wanted["num"]])
        self.obeys[m] = self.sender[m] if accepted else self.obeys[m]
        self._effects(m, effects)

    def _answered(self, what: AssignmentInput, m: str, b: int) -> None:
        self._effects(m, self.members[m].done(b - 1, self.members[m].assignments[b - 1].fence, what))

    def _effects(self, m: str, effects: list[Effect]) -> None:
        """The product acts where the specification changes the state of a bucket."""
        wanted: dict[int, Action] = {}
        for bucket in range(self.buckets):
            change = self.old["seat"][m][bucket]["st"], self.new["seat"][m][bucket]["st"]
            if change in _CHANGES:
                wanted[bucket] = _CHANGES[change]
        assert {effect.bucket: effect.do for effect in effects} == wanted

    def _deliver(self, m: str, b: int) -> None:
        assignment = self.old["seat"][m][b - 1]
        first = assignment["st"] == "OPEN" and not assignment["alone"]
        assert self.members[m].arrived(b - 1) == first

    def _cover(self, m: str, b: int) -> None:
        if self.new["seat"][m][b - 1]["st"] == "OPEN":  # or asked for before the recall
            assert b - 1 in self.members[m].bundled

    def _handout(self, m: str, b: int) -> None:
        assert self.members[m].hands_out(b - 1, self.clock[m])

    def _notice(self, m: str) -> None:
        held = sorted(self.members[m].assignments)
        effects = self.members[m].lost(f"{m}.{self.new['inc'][m]}")
        assert [(each.do, each.bucket) for each in effects] == [(Action.FORGET, each) for each in held]
        self.leaders[m].resign()
        self.mail[m] = []

    def _ended(self, m: str) -> None:
        self.clock[m] += LEASE

    def _leave(self, m: str) -> None:
        self._report(m, leaving=True)
        self.mail[m] = []

    def _kill(self, m: str) -> None:
        self.mail[m], self.early[m] = [], {}

    def _cut(self, m: str) -> None:
        self.early[m] = {}

    def _crash(self) -> None:
        for m, state in self.new["conn"].items():
            if state == "cut":
                self._cut(m)

    # the leader

    def _early(self, m: str, n: str) -> None:
        self.early[m][n] = [self.reports[n].pop(0)]

    def _crowned(self, m: str) -> None:
        given = self.old["crowns"][0]
        crown = self.crowns[_key(given)]
        who, leader = self.members[m].who, self.leaders[m]
        before = leader.phase
        claim = leader.crown(who, crown, 0.0)
        kept = claim is not None or (crown.who, crown.term) == (who, leader.term)
        assert kept == (len(self.new["kept"][m]) > len(self.old["kept"][m]))
        assert (claim is not None) == self.new["ldr"][m]["post"]
        if claim is not None:
            self.claims[m] = claim
        elif before is Phase.CLAIMING and leader.phase is not before:
            for n, reports in self.early[m].items():
                self.reports[n] = reports + self.reports[n]
            self.early[m] = {}

    def _claim(self, m: str) -> None:
        posted = self.new["crowns"][-1]
        assert posted["term"] == self.claims[m].term
        self.crowns[_key(posted)] = self.claims[m]

    def _renew(self, m: str) -> None:
        self.crowns[_key(self.new["crowns"][-1])] = self.leaders[m].renewed(self.members[m].who)

    def _left(self, m: str) -> None:
        crown = self.leaders[m].left()
        assert (crown is not None) == (self.old["ldr"][m]["phase"] == "LEADING")
        if crown is not None:
            posted = self.new["crowns"][-1]
            assert sorted({*(crown.members or ())} - {self.members[m].who}) == posted["mem"]
            self.crowns[_key(posted)] = replace(crown, members=tuple(posted["mem"]))
        self.early[m] = {}

    def _read(self, m: str, n: str) -> None:
        self._sent(m, self.leaders[m].report(self.reports[n].pop(0), 0.0))

    def _collected(self, m: str) -> None:
        self.leaders[m].until = 0.0
        self._sent(m, self.leaders[m].tick(0.0))

    def _expire(self, m: str, who: str) -> None:
        self.leaders[m].known[who].heard = -LEASE
        self._sent(m, self.leaders[m].tick(0.0))

    def _sent(self, m: str, orders: list[Order]) -> None:
        """Put the orders where the specification has them."""
        sent = {order.who: order for order in orders}
        assert len(sent) == len(orders)
        for n, member in self.members.items():
            old, new = self.old["mail"][n], self.new["mail"][n]
            order = sent.get(member.who)
            if self.new["conn"][n] != "on" or self.new["life"][n] != "up":
                continue
            if order is None:
                assert new == old, f"no order for {n}"
                continue
            elif len(new) > len(old):
                self.mail[n].append(order)
            elif not new:
                # The product repeats an order if an ownership that was asked back is replaced.
                own = enumerate(self.new["ldr"][m]["own"])
                wanted = [bucket for bucket, owner in own if owner["who"] == member.who and not owner["rec"]]
                assert sorted(order.buckets) == wanted
                continue
            elif new != old or self.sender[n] == m:
                self.mail[n][-1] = order  # also a repeated order
            else:
                assert new[-1]["term"] >= order.term
                continue  # the order of a rival has taken the place
            self.sender[n] = m

    # comparing

    def _compare(self, m: str) -> None:
        life = self.new["life"][m]
        member = self.members[m]
        if life == "up":
            for bucket, wanted in enumerate(self.new["seat"][m]):
                assignment = member.assignments.get(bucket)
                assert ("GONE" if assignment is None else assignment.state.name) == wanted["st"]
                if assignment is not None:
                    self._same(bucket, wanted["fence"], assignment.fence)
                    assert (bucket in member.bundled) == (wanted["st"] == "OPEN" and wanted["alone"])
            assert (self.clock[m] < member.lease_until) == self.new["lease"][m]
            assert (member.seen == (0, 0)) == (self.new["seen"][m] == [0, 0])
            assert member.seen[0] == self.new["seen"][m][0]
            for order, wanted in zip(self.mail[m], self.new["mail"][m], strict=True):
                self._same_order(member, order, wanted)
        if life in ("up", "closing"):
            self._compare_leader(m, self.leaders[m], self.new["ldr"][m])

    def _same_order(self, member: Member, order: Order, wanted: dict[str, Any]) -> None:
        assert (order.who, order.term) == (member.who, wanted["term"])
        for bucket, (fence, granted) in enumerate(wanted["buckets"]):
            found = order.buckets.get(bucket)
            assert (found is None) == (fence == 0)
            if found is not None:
                self._same(bucket, fence, found[0])
                assert found[1] == granted
            self._same_ready(member, bucket, order.seq, wanted["ready"][bucket])

    def _same_ready(self, member: Member, bucket: int, seq: int, ready: bool) -> None:
        assignment = member.assignments.get(bucket)
        if assignment is not None and assignment.state is AssignmentState.READY:
            assert (seq >= assignment.since) == ready

    def _compare_leader(self, m: str, leader: Leader, wanted: dict[str, Any]) -> None:
        assert (leader.phase.name, leader.term) == (wanted["phase"], wanted["term"])
        assert leader.awaited == (frozenset(wanted["await"]) if wanted["named"] else None)
        assert sorted(leader.known) == sorted(wanted["known"])
        current = {member.who: (name, member) for name, member in self.members.items()}
        for bucket, owner in enumerate(wanted["own"]):
            found = leader.owners.get(bucket)
            assert (found is None) == (owner["who"] == [])
            if found is None:
                continue
            assert (found.who, found.granted, found.recalled) == tuple(
                map(owner.get, ("who", "granted", "rec"))
            )
            self._same(bucket, owner["fence"], found.fence)
            name, member = current.get(found.who, ("", None))
            rivals = name and self.obeys[name] != m and self.new["seen"][name][0] == leader.term
            if member is not None and self.new["life"][name] == "up" and not rivals:
                later = self.new["seen"][name] >= [wanted["term"], owner["num"]]
                assert (member.seen >= (leader.term, found.number)) == later
        for who, known in leader.known.items():
            if who in current and self.new["life"][current[who][0]] == "up":
                for bucket in range(self.buckets):
                    ready = wanted["known"][who]["ready"][bucket]
                    self._same_ready(current[who][1], bucket, known.seq, ready)

    def _same(self, bucket: int, specified: int, fence: int) -> None:
        fences = self.fences[bucket]
        if specified not in fences:
            assert all((other < specified) == (mine < fence) for other, mine in fences.items())
            fences[specified] = fence
        assert fences[specified] == fence


def _key(crown: dict[str, Any]) -> tuple[str, int]:
    return str(crown["who"]), crown["term"]


def _replay(trace: list[dict[str, Any]]) -> list[str]:
    replay = Replay(trace[0])
    taken: list[str] = []
    try:
        for changes in trace[1:]:
            taken.append(" ".join(map(str, changes["step"])))
            replay.step(changes)
    except AssertionError as error:
        error.add_note(" - ".join(taken))
        raise
    return [step.partition(" ")[0] for step in taken]


def test_the_product_takes_the_steps_of_the_specification() -> None:
    steps = Counter(step for trace in traces.read() for step in _replay(trace))
    assert steps.total() > 8000
    taken = {*_ELSEWHERE, *_ANSWERS, "Report", "Order", "HandOut", "Notice", "Ended", "Leave", "Left", "Kill"}
    taken |= {"Deliver", "Cover", "Cut", "Crash", "Early", "Crowned", "Claim", "Read", "Collected", "Expire"}
    assert not taken - steps.keys()
