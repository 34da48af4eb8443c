# SPDX-License-Identifier: Apache-2.0
"""The shares of the members of an exclusive group, and the buckets that move."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature

import bmq
from bmq.groups._protocol import Crown, Leader, Phase, Report, shares
from tests.sweeps import sweep

DEFAULT = signature(bmq.Queue.group).parameters["buckets"].default


class Members:
    """Members that follow the orders of a leader at once."""

    def __init__(self, buckets: int) -> None:
        self.leader = Leader(buckets)
        claim = self.leader.crown("leader", Crown("", 0, 1, ()), 0.0)
        assert claim is not None
        self.leader.crown("leader", Crown("leader", 1, claim.fence), 0.0)
        self.weights: dict[str, float] = {}
        self.held: dict[str, Mapping[int, tuple[int, str]]] = {}
        self.seen = 0, 0
        self.seq = 0
        #: Who has opened a bucket, in turn.
        self.opened: list[tuple[int, str]] = []

    def join(self, name: str, weight: float = 1.0) -> None:
        self.weights[name], self.held[name] = weight, {}
        self.settle()

    def leave(self, name: str) -> None:
        self.report(name, leaving=True)
        del self.weights[name], self.held[name]
        self.settle()

    def settle(self) -> None:
        before = None
        while before != self.held:
            before = self.held.copy()
            for name in self.held:
                self.report(name)

    def report(self, name: str, *, leaving: bool = False, was: str = "") -> None:
        self.seq += 1
        report = Report(name, was, self.seq, self.seen, self.weights[name], leaving, self.held[name])
        for order in self.leader.report(report, 0.0):
            self.seen = order.term, order.number
            if order.who in self.held:
                self.opened += [
                    (bucket, order.who)
                    for bucket, (fence, granted) in order.buckets.items()
                    if granted and self.held[order.who].get(bucket) != (fence, "OPEN")
                ]
                self.held[order.who] = {
                    bucket: (fence, "OPEN" if granted else "READY")
                    for bucket, (fence, granted) in order.buckets.items()
                }

    @property
    def owners(self) -> dict[int, str]:
        return {bucket: name for name, buckets in self.held.items() for bucket in buckets}

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(buckets) for name, buckets in self.held.items()}


@sweep("buckets", [DEFAULT, 512])
@sweep(
    "weights",
    [(1, 2), (1, 1, 3), (0.5, 1, 2, 4), (1, 1, 1, 1, 2, 2), (3, 5, 7), (0.01, 1), (100, 1), (1,) * 20],
)
def test_weights_are_met_within_a_tenth(buckets: int, weights: tuple[float, ...]) -> None:
    given = {f"m{number}": float(weight) for number, weight in enumerate(weights)}
    share = shares(given, buckets, {})
    assert sum(share.values()) == buckets
    for name, weight in given.items():
        fair = buckets * weight / sum(weights)
        assert abs(share[name] - fair) < 1
        # A tenth of a few buckets is less than a bucket.
        assert abs(share[name] - fair) <= 0.1 * fair or fair < 5


def test_shares_stay_even_while_members_come_and_go_and_few_buckets_move() -> None:
    members = Members(DEFAULT)
    steps = [(count, count) for count in range(1, 21)] + [(count, count - 1) for count in range(20, 1, -1)]
    for number, left in steps:
        name, before = f"m{number}", members.owners
        if left == number:
            members.join(name)
        else:
            members.leave(name)
        after = members.owners
        assert set(after) == set(range(DEFAULT))
        assert max(members.counts.values()) <= 1.15 * DEFAULT / left
        moved = [bucket for bucket in before if before[bucket] != after[bucket]]
        assert all(name in (before[bucket], after[bucket]) for bucket in moved), "a bucket of others moves"


A, B, C = "a@node1:30114#1", "b@node1:30114#2", "c@node2:30114#3"


@sweep("way", ["silent", "left", "back elsewhere"])
@sweep("weight", [1.0, 20.0])
def test_a_member_at_the_same_node_opens_the_buckets_of_one_that_is_gone(way: str, weight: float) -> None:
    """The node has the unconfirmed messages, and gives them to its own clients only."""
    members = Members(12)
    for name in (A, B):
        members.join(name)
    members.join(C, weight)
    lost = [bucket for bucket, owner in members.owners.items() if owner == A]
    members.opened.clear()
    if way == "silent":
        for name in (B, C):
            members.leader.known[name].heard = 10.0
        members.leader.tick(10.0)
        del members.held[A]
        members.settle()
    elif way == "left":
        members.leave(A)
    else:
        del members.held[A]
        members.weights["a@node2:30114#4"], members.held["a@node2:30114#4"] = 1.0, {}
        members.report("a@node2:30114#4", was=A)
        members.settle()
    first = dict(reversed(members.opened))
    assert {bucket: first[bucket] for bucket in lost} == dict.fromkeys(lost, B)
    fair = 12 / sum(members.weights[name] for name in members.held)
    assert all(abs(count - fair * members.weights[name]) < 1 for name, count in members.counts.items())


def test_buckets_of_a_former_leader_go_to_a_member_at_its_node_first() -> None:
    members = Members(12)
    members.leader.former = A
    members.leader.phase = Phase.COLLECTING
    members.leader.awaited = frozenset((C, B))
    for name in (C, B):
        members.weights[name], members.held[name] = 1.0, {}
    members.settle()
    assert set(dict(reversed(members.opened)).values()) == {B}
    assert members.counts == {B: 6, C: 6}


@sweep("count", [2, 3, 5, 20])
def test_neighbouring_keys_go_to_different_members(count: int) -> None:
    """The keys of a young shop are small numbers."""
    members = Members(128)
    for number in range(count):
        members.join(f"m{number}")
    owners = members.owners
    for first in range(128):
        keys = {owners[(first + step) % 128] for step in range(4 * count)}
        assert len(keys) > count / 2


def test_a_member_is_silent_no_longer_once_it_has_its_buckets_again() -> None:
    """Its report without them was lost, and no message arrives in them."""
    members = Members(2)
    members.join("a")
    members.join("b")
    (bucket,) = members.held["b"]
    members.leader.known["a"].heard = 10.0
    members.leader.tick(10.0)
    assert members.leader.silent() == {"b": [bucket]}
    members.report("b")
    assert members.leader.silent() == {"b": [bucket]}
    assert members.held["b"] == {}
    while not members.held["b"]:
        members.report("a")
    members.report("b")
    assert members.leader.silent() == {}
