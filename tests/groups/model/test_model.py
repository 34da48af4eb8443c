# SPDX-License-Identifier: Apache-2.0
"""Random walks through the model, and mistakes that they find.

``python -m tests.groups.model`` visits every state instead, which takes hours for three members.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from bmq.errors import StateError
from bmq.groups import _protocol
from bmq.groups._protocol import (
    Action,
    Assignment,
    AssignmentInput,
    AssignmentState,
    Crown,
    Effect,
    Leader,
    Member,
    Phase,
)
from bmq.protocol.machine import Transition
from tests.groups.model.world import Bundle, Limits, Node, Violation, World, explore, walk
from tests.sweeps import sweep

_S, _I = AssignmentState, AssignmentInput
FAULTS = {
    "joins": Limits(),
    "a leave and a kill": Limits(leaves=1, kills=1),
    "two lost connections": Limits(cuts=2, joined=3),
    "a lost connection and a killed leader": Limits(joined=3, cuts=1, kills=1),
    "everything": Limits(leaves=1, kills=1, cuts=1, pauses=1),
    "clocks that disagree": Limits(pauses=2, drift=True),
    "a frozen member": Limits(joined=3, freezes=1, deposes=1),
    "frozen members, and one killed": Limits(freezes=2, deposes=2, kills=1),
    "a frozen member and a lost connection": Limits(joined=3, freezes=1, deposes=1, cuts=1),
    "a frozen member whose buckets are taken over": Limits(joined=3, freezes=1, deposes=1, take_over=True),
    "two frozen members and a leave": Limits(freezes=2, deposes=2, leaves=1, take_over=True),
    "a frozen member, a killed one, a lost connection": Limits(
        joined=3, freezes=2, deposes=2, kills=1, cuts=1, take_over=True
    ),
}


@sweep("faults", FAULTS)
def test_every_guarantee_holds_on_random_walks(faults: str) -> None:
    for seed in range(15):
        walk(FAULTS[faults], Random(seed))


def test_every_guarantee_holds_in_every_state_of_one_member() -> None:
    assert explore(Limits(members=1, buckets=1, messages=1)) > 50


# Planted mistakes. A transition replaces the product's; a function changes a method.


def _transition(
    state: AssignmentState, what: AssignmentInput, action: Any, after: AssignmentState
) -> Callable[[Any], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setitem(Assignment.TRANSITIONS, (state, what), Transition(action, after))

    return plant


def _lease_ignored(patch: pytest.MonkeyPatch) -> None:
    def hands_out(self: Member, bucket: int, now: float) -> bool:
        assignment = self.assignments.get(bucket)
        return assignment is not None and assignment.state in (_S.OPEN, _S.DRAINING)

    patch.setattr(Member, "hands_out", hands_out)


def _crown_without_fence(patch: pytest.MonkeyPatch) -> None:
    crowned = Leader.crown

    def crown(self: Leader, who: str, crown: Crown, now: float) -> Crown | None:
        claim = crowned(self, who, crown, now)
        self.fence = 1
        return claim

    patch.setattr(Leader, "crown", crown)


def _leads_at_once(patch: pytest.MonkeyPatch) -> None:
    crowned = Leader.crown

    def crown(self: Leader, who: str, crown: Crown, now: float) -> Crown | None:
        claim = crowned(self, who, crown, now)
        if self.phase is Phase.COLLECTING:
            self.phase = Phase.LEADING
        return claim

    patch.setattr(Leader, "crown", crown)


def _leases_of_the_living_end(patch: pytest.MonkeyPatch) -> None:
    ordered = Member.order

    def order(self: Member, order: Any) -> Any:
        before = self.lease_until
        effects = ordered(self, order)
        self.lease_until = before
        return effects

    patch.setattr(Member, "order", order)


def _nothing_is_asked_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_protocol, "shares", lambda weights, buckets, held=None: dict.fromkeys(weights, buckets))


def _the_dead_keep_their_buckets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_remove", lambda self, who: None)


def _a_lost_connection_keeps_buckets(patch: pytest.MonkeyPatch) -> None:
    def lost(self: Member, who: str) -> list[Any]:
        self._was, self.who, self.seen = self.who, who, (0, 0)
        return []

    patch.setattr(Member, "lost", lost)


def _any_grant_is_believed(patch: pytest.MonkeyPatch) -> None:
    """A member takes an order for its former connection."""
    ordered = Member.order
    patch.setattr(Member, "order", lambda self, order: ordered(self, replace(order, seq=0)))


def _bundled_in(*states: AssignmentState, proof: bool = True) -> Callable[[Any], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def bundled(self: Member) -> list[int]:
            assignments = sorted(self.assignments.items())
            return [
                bucket
                for bucket, assignment in assignments
                if assignment.state in states and (assignment.alone or not proof)
            ]

        patch.setattr(Member, "bundled", property(bundled))

    return plant


def _bundles_stay_on_recall(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "_unbundle", lambda self, node, bucket: None)


def _the_bundle_leaves_with_the_withdrawal(patch: pytest.MonkeyPatch) -> None:
    """The bucket drains while its bundle stands."""

    def apply(self: World, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            if effect.do is Action.WITHDRAW:
                self._unbundle(node, effect.bucket)
            node.requests += (effect,)

    patch.setattr(World, "_apply", apply)


def _bundles_outlive_the_connection(patch: pytest.MonkeyPatch) -> None:
    noticed = World._do_notice

    def notice(self: World, i: int) -> None:
        before = self.nodes[i].bundled
        noticed(self, i)
        self.nodes[i].bundled = before

    patch.setattr(World, "_do_notice", notice)


def _a_bundle_replaces_subscriptions(patch: pytest.MonkeyPatch) -> None:
    requested = World._do_request

    def request(self: World, i: int) -> None:
        node = self.nodes[i]
        first = node.requests[0]
        if isinstance(first, Bundle) and first.has:
            self.subscriptions.pop((first.bucket, node.name), None)
        requested(self, i)

    patch.setattr(World, "_do_request", request)


def _a_frozen_member_ignores_the_time(patch: pytest.MonkeyPatch) -> None:
    """It works on what it has after others took its buckets over."""
    gone, hands_out = Member.gone, Member.hands_out
    patch.setattr(World, "_do_give_way", lambda self, i: None)

    def hand_out(self: Member, bucket: int, now: float) -> bool:
        assignment = self.assignments.get(bucket)
        taken = gone(self, 0.0) and assignment is not None and assignment.state is _S.OPEN
        return taken or hands_out(self, bucket, now)

    patch.setattr(Member, "hands_out", hand_out)


def _a_deposing_crown_has_old_fences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "deposing_crown", lambda self, clock, limit: Crown("", clock, 1))


def _raises_at_once(patch: pytest.MonkeyPatch) -> None:
    """Buckets are taken over from a member that has a lease."""
    patch.setattr(World, "_may_take_over", lambda self, who: True)
    patch.setattr(World, "_may_expire", lambda self, who: True)
    patch.setattr(Member, "gone", lambda self, now: False)


MISTAKES: dict[str, Callable[[Any], None]] = {
    "withdraws at once": _transition(_S.OPEN, _I.RECALLED, Assignment._withdraw, _S.LEAVING),
    "gone at once": _transition(_S.OPEN, _I.RECALLED, Assignment._withdraw, _S.GONE),
    "never opens": _transition(_S.READY, _I.GRANTED, None, _S.OPEN),
    "never shuts": _transition(_S.OPEN, _I.RECALLED, None, _S.DRAINING),
    "never withdraws": _transition(_S.DRAINING, _I.DRAINED, None, _S.LEAVING),
    "keeps a recalled subscription": _transition(_S.READY, _I.RECALLED, None, _S.READY),
    "a lease is ignored": _lease_ignored,
    "a new leader forgets the fences": _crown_without_fence,
    "a new leader leads at once": _leads_at_once,
    "an order renews no lease": _leases_of_the_living_end,
    "nothing is asked back": _nothing_is_asked_back,
    "the dead keep their buckets": _the_dead_keep_their_buckets,
    "a lost connection keeps its buckets": _a_lost_connection_keeps_buckets,
    "an order answers no report": _any_grant_is_believed,
    "a bundle has every open bucket": _bundled_in(_S.OPEN, proof=False),
    "a bundle has draining buckets": _bundled_in(_S.OPEN, _S.DRAINING),
    "a bundle keeps a recalled bucket": _bundles_stay_on_recall,
    "a bucket drains before it leaves the bundle": _the_bundle_leaves_with_the_withdrawal,
    "a bundle outlives the connection": _bundles_outlive_the_connection,
    "a bundle replaces subscriptions": _a_bundle_replaces_subscriptions,
    "a frozen member ignores the time": _a_frozen_member_ignores_the_time,
    "a deposing crown has old fences": _a_deposing_crown_has_old_fences,
    "takes over from a member with a lease": _raises_at_once,
}


# Where rare mistakes are found soon.
RARE = {
    "a lease is ignored": Limits(buckets=1, joined=3, cuts=2, bundles=0),
    "a new leader leads at once": Limits(buckets=1, joined=3, cuts=2, bundles=0),
    "a bundle has every open bucket": Limits(buckets=1, pauses=2, drift=True),
    "a bucket drains before it leaves the bundle": Limits(members=2),
    "a deposing crown has old fences": FAULTS["frozen members, and one killed"],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_random_walks_find_a_planted_mistake(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MISTAKES[mistake](monkeypatch)
    faults = [RARE[mistake]] if mistake in RARE else list(FAULTS.values())
    with pytest.raises((Violation, StateError)):
        _walk_often(faults)


def _walk_often(faults: list[Limits]) -> None:
    for seed in range(400):
        for limits in faults:
            walk(limits, Random(seed))
