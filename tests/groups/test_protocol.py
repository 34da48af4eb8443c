# SPDX-License-Identifier: Apache-2.0
"""Late orders and reports in the agreement about buckets: two findings of ``model/Exclusive.tla``."""

from __future__ import annotations

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
)

NOW = 0.0


def _leader(who: str, after: Crown) -> Leader:
    leader = Leader(1)
    claim = leader.crown(who, after, NOW)
    assert claim is not None
    assert leader.crown(who, claim, NOW) is None
    leader.until = NOW
    leader.tick(NOW)
    return leader


def test_an_assignment_stands_until_the_member_has_withdrawn_a_former_fence() -> None:
    """The member answers the new assignment while it still leaves the bucket of a former leader."""
    leader = _leader("a", Crown("b", 1, 100))
    member = Member("a")
    member.order(Order("a", 1, 1, 0, {0: (7, False)}))
    (assigned,) = leader.report(replace(member.report(NOW), buckets={}), NOW)
    fence = assigned.buckets[0][0]
    assert member.order(assigned) == [Effect(Action.WITHDRAW, 0, 7)]
    (repeated,) = leader.report(member.report(NOW), NOW)
    member.done(0, 7, AssignmentInput.WITHDRAWN)
    absent = member.report(NOW)
    assert member.order(repeated) == [Effect(Action.SUBSCRIBE, 0, fence)]
    (answer,) = leader.report(absent, NOW)
    assert answer.buckets == {0: (fence, False)}, "a new fence would be withdrawn again, and so on"
    assert member.order(answer) == []


def test_a_grant_for_a_former_subscription_opens_nothing() -> None:
    """A late order answers a report about an earlier subscription under the same fence."""
    member = Member("a")
    member.order(Order("a", 1, 1, 0, {0: (7, False)}))
    member.done(0, 7, AssignmentInput.ANSWERED)
    ready = member.report(NOW)
    member.order(Order("a", 1, 2, 0, {}))
    member.done(0, 7, AssignmentInput.WITHDRAWN)
    member.order(Order("a", 2, 1, ready.seq, {0: (7, True)}))
    member.done(0, 7, AssignmentInput.ANSWERED)
    assert member.order(Order("a", 2, 2, ready.seq, {0: (7, True)})) == []
    assert member.assignments[0].state is AssignmentState.READY
    again = member.report(NOW)
    assert member.order(Order("a", 2, 3, again.seq, {0: (7, True)})) == [Effect(Action.OPEN, 0, 7)]


def test_two_leaders_of_an_equal_term_end() -> None:
    """Crowns of dead claimants may reach several candidates."""
    leader = _leader("a", Crown("x", 1, 100))
    assert leader.crown("a", Crown("a", leader.term, leader.limit), NOW) is None
    claim = leader.crown("a", Crown("b", leader.term, 100), NOW)
    assert claim is not None
    assert claim.term == 3
    assert leader.crown("a", claim, NOW) is None
    assert leader.crown("a", Crown("b", 2, 100), NOW) is None, "the lower term has no effect"


def test_an_old_report_about_an_open_bucket_grants_nothing() -> None:
    """A candidate keeps a report, and leads only after the bucket has moved to another member."""
    member = Member("a")
    member.order(Order("a", 1, 1, 0, {0: (7, False)}))
    member.done(0, 7, AssignmentInput.ANSWERED)
    member.order(Order("a", 1, 2, member.report(NOW).seq, {0: (7, True)}))
    old = member.report(NOW)
    assert old.buckets == {0: (7, "OPEN")}
    member.order(Order("a", 1, 3, old.seq, {}))
    member.done(0, 7, AssignmentInput.DRAINED)
    member.done(0, 7, AssignmentInput.WITHDRAWN)  # now another member has the bucket, under fence 8

    leader = Leader(1)
    claim = leader.crown("b", Crown("x", 1, 100), NOW)
    assert claim is not None
    leader.crown("b", claim, NOW)
    (order,) = leader.report(old, NOW)
    assert member.order(order) == [Effect(Action.SUBSCRIBE, 0, 7)]
    member.done(0, 7, AssignmentInput.ANSWERED)
    (order,) = leader.report(member.report(NOW), NOW)
    assert member.order(order) == [Effect(Action.WITHDRAW, 0, 7)], "fence 8 may be open"
    member.done(0, 7, AssignmentInput.WITHDRAWN)
    leader.report(member.report(NOW), NOW)
    assert not leader.owners
