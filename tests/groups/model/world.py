# SPDX-License-Identifier: Apache-2.0
"""One state of the model: the product's members and leaders, a broker, and the network between them.

The transitions of members and leaders are those of :mod:`bmq.groups._protocol`. The model adds a broker with
the documented rules: of the subscriptions to a bucket, the lowest fence has the highest priority; a closed
window blocks lower priorities; the messages of a lost connection come first again, in order. A bundle has a
higher priority than the subscriptions to single buckets. Each bucket joins and leaves bundles by itself: this
stands for any grouping of buckets.

A node may be frozen: it takes no step, its connection stands, and the broker delivers to it. Its lease ends
meanwhile. Another node may depose a leader at any time, frozen or not. With ``take_over=True``, the leader
raises the buckets of a silent node, whose clock then tells it to give up its connection before anything else.

Checked at each delivery of a message: no other node has an unconfirmed message of the bucket, except for one
whose buckets were taken over.

Checked at each hand-out of a message:

- every earlier message of the bucket is finished, except for those that a node had whose buckets were taken
  over;
- no member has handed out a message of the bucket under a higher fence;
- no other node that runs and has a lease has a message of the bucket in hand.

Checked in each state without a further step: every message is confirmed, every bucket is open at a living
member, and the shares are fair.

Clocks: a lease may end at any time. A leader assigns the buckets of a silent member only after the lease of
this member has ended, which is the bounded drift that the documentation asks for. With ``drift=True`` the
leader does so at any time, while connections stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

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

__all__ = ["Limits", "Violation", "World", "explore", "walk"]

LEASE = 10.0
_TAKE_OVER = 2 * LEASE
_LONG_AGO = -100 * LEASE
# Random walks put these steps off: losses are noticed late, and messages wait.
_OFTEN = dict.fromkeys(("cut", "kill", "leave", "pause", "unbundle", "freeze", "depose"), 0.05)
_OFTEN |= {"notice": 0.02, "thaw": 0.03, "hand_out": 0.1, "expire": 0.1, "post": 0.2, "join": 0.2}


class Violation(AssertionError):
    """A guarantee does not hold in a state of the model."""


class Bundle(NamedTuple):
    """A request for bundles with the bucket, or without it."""

    bucket: int
    has: bool


@dataclass(frozen=True)
class Limits:
    """How much may happen in a run of the model."""

    members: int = 3
    buckets: int = 2
    messages: int = 5
    joined: int = 1
    leaves: int = 0
    kills: int = 0
    cuts: int = 0
    pauses: int = 0
    drift: bool = False
    freezes: int = 0
    deposes: int = 0
    take_over: bool = False
    bundles: int = 4  # how often nodes ask for bundles with a bucket, or without one that is not recalled


class Node:
    """A process with a member, a leader, and a connection."""

    def __init__(self, name: str, limits: Limits) -> None:
        take_over = _TAKE_OVER if limits.take_over else None
        self.name = name
        self.life = "absent"  # absent, up, gone, dead
        self.connected = False  # at the broker
        self.notices = True  # whether the process knows the state of the connection
        self.connections = 0
        self.dirty = False
        self.frozen = self.slept = False
        self.crowned = False  # has a crown
        self.member = Member(f"{name}0", 1.0, LEASE, take_over)
        self.leader = Leader(limits.buckets, LEASE, take_over)
        self.requests: tuple[Any, ...] = ()  # to the broker: effects, bundles and confirmations
        self.bundled: tuple[int, ...] = ()  # the buckets of the bundles asked for
        self.line: tuple[tuple[int, int], ...] = ()
        self.hand: tuple[tuple[int, int], ...] = ()
        self.shut: tuple[int, ...] = ()  # buckets whose window the broker has closed
        self.reports: tuple[Report, ...] = ()  # to this node as the leader
        self.posts: tuple[Any, ...] = ()  # control messages that wait for a connection

    def clone(self) -> Node:
        other = copy(self)
        other.member = copy(self.member)
        other.member.assignments = {
            bucket: copy(assignment) for bucket, assignment in self.member.assignments.items()
        }
        other.leader = copy(self.leader)
        other.leader.known = {who: copy(known) for who, known in self.leader.known.items()}
        other.leader.owners = {bucket: copy(owner) for bucket, owner in self.leader.owners.items()}
        other.leader.behind = {bucket: copy(behind) for bucket, behind in self.leader.behind.items()}
        other.leader._raised = set(self.leader._raised)
        return other


class World:
    """A state of the model, and its steps."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.nodes = [Node("abc"[i], limits) for i in range(limits.members)]
        self.posted = 0
        self.queue: tuple[tuple[int, int], ...] = ()  # undelivered messages
        self.delivered: dict[str, tuple[tuple[int, int], ...]] = {}  # by node, unconfirmed
        # fence, whether open, and whether raised
        self.subscriptions: dict[tuple[int, str], tuple[int, bool, bool]] = {}
        self.bundles: frozenset[tuple[int, str]] = frozenset()  # buckets in bundles, at the broker
        self.finished: frozenset[tuple[int, int]] = frozenset()
        self.confirmed: frozenset[tuple[int, int]] = frozenset()
        self.highest: dict[int, int] = {}
        self.crown: Crown | None = Crown("", 0, 1, ())  # None while a node holds the crown
        self.stale: tuple[Crown, ...] = ()  # returned crowns of deposed leaders
        self.late: frozenset[tuple[int, int]] = frozenset()  # messages of nodes that were taken over
        self.holder = ""
        self.unread: tuple[Report, ...] = ()
        self.mail: dict[str, tuple[Order, ...]] = {}
        self.left = {"join": limits.members - limits.joined, "leave": limits.leaves, "kill": limits.kills}
        self.left |= {"cut": limits.cuts, "pause": limits.pauses, "beat": 3, "bundle": limits.bundles}
        self.left |= {"freeze": limits.freezes, "depose": limits.deposes}
        for node in self.nodes[: limits.joined]:
            self._join(node)

    def clone(self) -> World:
        other = copy(self)
        other.nodes = [node.clone() for node in self.nodes]
        other.delivered = dict(self.delivered)
        other.subscriptions = dict(self.subscriptions)
        other.highest = dict(self.highest)
        other.mail = dict(self.mail)
        other.left = dict(self.left)
        return other

    # the state as a key: numbers that only grow are replaced by their ranks

    def key(self) -> object:
        controls = [*self.unread, *(order for mail in self.mail.values() for order in mail)]
        controls += [each for node in self.nodes for each in (*node.reports, *node.posts)]
        fences = {0, *self.highest.values(), *(fence for fence, _, _ in self.subscriptions.values())}
        stamps: set[tuple[int, int]] = {(0, 0)}
        for node in self.nodes:
            stamps.add(node.member.seen)
            fences |= {assignment.fence for assignment in node.member.assignments.values()}
            fences |= {effect.fence for effect in node.requests if isinstance(effect, Effect)}
            fences |= {owner.fence for owner in node.leader.owners.values()}
            stamps |= {(node.leader.term, owner.number) for owner in node.leader.owners.values()}
        for each in controls:
            stamps.add((each.term, each.number) if isinstance(each, Order) else each.seen)
            fences |= {fence for fence, _ in each.buckets.values()}
        fence_of = {fence: rank for rank, fence in enumerate(sorted(fences))}
        rank = {stamp: number for number, stamp in enumerate(sorted(stamps))}

        def requested(each: Any) -> Any:
            if isinstance(each, Effect):
                return (each.do.name, each.bucket, fence_of.get(each.fence, -1))
            return each

        def control(each: Report | Order) -> Any:
            buckets = [(bucket, fence_of[fence], state) for bucket, (fence, state) in each.buckets.items()]
            content = each.who, tuple(sorted(buckets)), tuple(sorted(each.behind.items())), each.raised
            if isinstance(each, Order):
                return (*content, rank[each.term, each.number])
            return (*content, each.was, each.weight, each.leaving, rank[each.seen])

        nodes = tuple(
            (
                node.life,
                node.connected,
                node.notices,
                node.connections,
                node.dirty,
                rank[node.member.seen],
                node.member.lease_until > 0,
                tuple(
                    (b, fence_of[s.fence], s.state.name, s.alone, s.behind, s.raised)
                    for b, s in sorted(node.member.assignments.items())
                ),
                node.frozen,
                node.slept,
                node.crowned,
                node.member.gone(0.0),
                tuple((b, each.who, each.over) for b, each in sorted(node.leader.behind.items())),
                tuple(sorted(node.leader._raised)),
                node.leader.phase.name,
                node.leader.awaited and tuple(sorted(node.leader.awaited)),
                tuple((who, known.weight) for who, known in sorted(node.leader.known.items())),
                tuple(
                    (b, o.who, fence_of[o.fence], o.granted, o.recalled, rank[node.leader.term, o.number])
                    for b, o in sorted(node.leader.owners.items())
                ),
                tuple(map(requested, node.requests)),
                node.line,
                node.hand,
                node.shut,
                node.bundled,
                tuple(map(control, node.reports)),
                tuple(map(control, node.posts)),
            )
            for node in self.nodes
        )
        return (
            nodes,
            self.posted,
            self.queue,
            tuple(sorted(self.delivered.items())),
            tuple(
                (at, fence_of[fence], opened, raised)
                for at, (fence, opened, raised) in sorted(self.subscriptions.items())
            ),
            len(self.stale),
            self.late,
            tuple(sorted(self.bundles)),
            self.finished,
            self.confirmed,
            tuple((bucket, fence_of[fence]) for bucket, fence in sorted(self.highest.items())),
            self.holder,
            self.crown and self.crown.members,
            tuple(map(control, self.unread)),
            tuple((who, tuple(map(control, mail))) for who, mail in sorted(self.mail.items()) if mail),
            tuple(self.left.values()),
        )

    # steps

    def steps(self) -> Iterator[tuple[str, World]]:
        """Yield each possible step with the next state."""
        for name, arguments in self._possible():
            after = self.clone()
            getattr(after, f"_do_{name}")(*arguments)
            yield f"{name} {' '.join(map(str, arguments))}", after

    def _possible(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        possible = list(self._events())
        if not possible and self.left["beat"]:
            possible.append(("beat", ()))
        return iter(possible)

    def _events(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        if self.posted < self.limits.messages:
            yield "post", ()
        if self.left["join"]:
            absent = next((i for i, node in enumerate(self.nodes) if node.life == "absent"), None)
            if absent is not None:
                yield "join", (absent,)
        for i, node in enumerate(self.nodes):
            if node.life != "up":
                continue
            if node.frozen:
                yield from self._of_frozen(i, node)
                continue
            if self.left["freeze"] and node.connected and node.notices:
                yield "freeze", (i,)
            if node.connected and self.left["depose"] and self.holder not in ("", node.name):
                yield "depose", (i,)
            if node.connected and self.stale and self.holder == node.name:
                yield "stale", (i,)
            if node.connected and node.notices and node.member.gone(0.0):
                yield "give_way", (i,)
                continue
            if node.leader.phase is Phase.LEADING and node.leader.limit <= node.leader.fence:
                yield "renew", (i,)
            if node.leader.phase is Phase.LEADING and self.limits.take_over:
                owners = node.leader.owners
                owned = {bucket for bucket, owner in owners.items() if not owner.recalled}
                waiting = {it.who for b, it in node.leader.behind.items() if b in owned and not it.over}
                for who in sorted(waiting):
                    if self._may_take_over(who):
                        yield "take_over", (i, who)
            known = node.notices  # a process whose connection is lost without notice works on what is here
            if node.connected and self.crown is not None:
                yield "crown", (i,)
            if node.connected and node.requests:
                yield "request", (i,)
            if known and node.connected and node.dirty:
                yield "report", (i,)
            if self.mail.get(node.member.who):
                yield "order", (i,)
            if node.reports and node.leader.phase is not Phase.NONE:
                yield "lead", (i,)
            for bucket in range(self.limits.buckets):
                if self._can_hand_out(node, bucket):
                    yield "hand_out", (i, bucket)
                if any(each[0] == bucket for each in node.hand):
                    yield "finish", (i, bucket)
                if self._drained(node, bucket):
                    yield "drained", (i, bucket)
                if self.left["bundle"] and bucket in node.bundled:
                    yield "unbundle", (i, bucket)
                elif self.left["bundle"] and bucket in node.member.bundled:
                    yield "bundle", (i, bucket)
            if node.leader.phase is Phase.COLLECTING and self._may_end_collecting(node):
                yield "collected", (i,)
            if node.leader.phase is Phase.LEADING:
                for who in sorted(node.leader.known):
                    if self._may_expire(who):
                        yield "expire", (i, who)
            if not node.connected and not node.notices:
                yield "notice", (i,)
            if not node.connected and node.notices:
                yield "reconnect", (i,)
            if node.life == "up" and node.connected:
                if self.left["leave"] and self._others(node) and not node.hand:
                    yield "leave", (i,)
                if self.left["kill"] and self._others(node):
                    yield "kill", (i,)
                # A member that was silent and is heard again finishes its messages under a new lease.
                if self.left["cut"] and not node.slept:
                    yield "cut", (i,)
            unaware = not node.connected and not node.notices
            if (self.left["pause"] or unaware) and node.member.lease_until > 0:
                yield "pause", (i,)

    def _of_frozen(self, i: int, node: Node) -> Iterator[tuple[str, tuple[Any, ...]]]:
        yield "thaw", (i,)
        if node.connected and node.requests:
            yield "request", (i,)
        if node.member.lease_until > 0:
            yield "pause", (i,)
        if node.connected and self.left["kill"] and self._others(node):
            yield "kill", (i,)

    def _may_take_over(self, who: str) -> bool:
        """Whether the time of a silent member is over, by its own clock."""
        node = self._node_of(who)
        return node is None or node.life != "up" or node.member.lease_until < 0

    def _others(self, node: Node) -> bool:
        return any(other is not node and other.life == "up" for other in self.nodes)

    def _node_of(self, who: str) -> Node | None:
        return next((node for node in self.nodes if node.member.who == who), None)

    def _may_expire(self, who: str) -> bool:
        """Whether the lease of a silent member is over."""
        node = self._node_of(who)
        if node is None or node.life in ("dead", "gone"):
            return True
        if self.limits.drift and node.connected and self.left["pause"]:
            return True
        return node.member.lease_until < 0 and (not node.connected or node.frozen)

    def _may_end_collecting(self, leader: Node) -> bool:
        return all(
            node.member.who in leader.leader.known or node.life != "up" or node.member.lease_until < 0
            for node in self.nodes
        )

    def _can_hand_out(self, node: Node, bucket: int) -> bool:
        if not any(each[0] == bucket for each in node.line) or any(each[0] == bucket for each in node.hand):
            return False
        return node.member.hands_out(bucket, 0.0)

    def _drained(self, node: Node, bucket: int) -> bool:
        assignment = node.member.assignments.get(bucket)
        return (
            assignment is not None
            and assignment.state is AssignmentState.DRAINING
            and bucket in node.shut
            and not any(each[0] == bucket for each in node.line + node.hand)
        )

    def _do_beat(self) -> None:
        """Every member reports from time to time."""
        self.left["beat"] -= 1
        for node in self.nodes:
            node.dirty = node.life == "up"

    def _do_post(self) -> None:
        bucket = self.posted % self.limits.buckets
        self.queue += ((bucket, self.posted),)
        self.posted += 1
        self._deliver()

    def _do_join(self, i: int) -> None:
        self.left["join"] -= 1
        self._join(self.nodes[i])

    def _join(self, node: Node) -> None:
        node.life, node.connected, node.notices, node.dirty = "up", True, True, True
        self.delivered[node.name] = ()

    def _do_crown(self, i: int) -> None:
        node, crown = self.nodes[i], self.crown
        assert crown is not None
        self.crown = None
        self._crowned(node, crown)
        node.reports = self.unread
        self.unread = ()
        for other in self.nodes:  # the next beat of every member
            other.dirty = other.life == "up"

    def _crowned(self, node: Node, crown: Crown) -> None:
        claim = node.leader.crown(node.member.who, crown, 0.0)
        if claim is not None:
            node.leader.crown(node.member.who, claim, 0.0)
        self.holder, node.crowned = node.name, True

    def _do_renew(self, i: int) -> None:
        """A leader without fences renews its crown."""
        node = self.nodes[i]
        node.leader.crown(node.member.who, node.leader.renewed(node.member.who), 0.0)
        self._send_all(node, node.leader.tick(0.0))

    def _do_stale(self, i: int) -> None:
        crown, self.stale = self.stale[0], self.stale[1:]
        self._crowned(self.nodes[i], crown)
        for other in self.nodes:
            other.dirty = other.life == "up"

    def _do_freeze(self, i: int) -> None:
        self.left["freeze"] -= 1
        self.nodes[i].frozen = self.nodes[i].slept = True

    def _do_thaw(self, i: int) -> None:
        self.nodes[i].frozen = False
        self.nodes[i].dirty = True

    def _do_depose(self, i: int) -> None:
        """Reports reach this node from now on; those sent before stay with the former leader."""
        self.left["depose"] -= 1
        clock = 20_000 * (self.limits.deposes - self.left["depose"])  # above the terms of earlier leaders
        node = self.nodes[i]
        former = next(other for other in self.nodes if other.name == self.holder)
        self._crowned(node, node.member.deposing_crown(clock, node.leader.limit))
        node.leader.deposed = former.member.who
        for other in self.nodes:
            other.dirty = other.life == "up"

    def _do_take_over(self, i: int, who: str) -> None:
        node, silent = self.nodes[i], self._node_of(who)
        if silent is not None and silent.life == "up":
            silent.member.lease_until = _LONG_AGO
        for behind in node.leader.behind.values():
            if behind.who == who:
                behind.since = _LONG_AGO
        self._send_all(node, node.leader.tick(0.0))

    def _do_give_way(self, i: int) -> None:
        """Both connections are given up before anything else."""
        node = self.nodes[i]
        self._drop(node)
        node.notices = False
        self._do_notice(i)

    def _do_request(self, i: int) -> None:
        node = self.nodes[i]
        request, node.requests = node.requests[0], node.requests[1:]
        if isinstance(request, Effect):
            at = (request.bucket, node.name)
            if request.do is Action.SUBSCRIBE:
                self.subscriptions[at] = (request.fence, False, request.raised)
            elif request.do is Action.WITHDRAW:
                self.subscriptions.pop(at, None)
            elif at in self.subscriptions:
                self.subscriptions[at] = (request.fence, request.do is Action.OPEN, request.raised)
            self._arrive(node, request)
        elif isinstance(request, Bundle):
            self.bundles = self.bundles - {(request.bucket, node.name)}
            if request.has:
                self.bundles |= {(request.bucket, node.name)}
        else:
            self.delivered[node.name] = tuple(each for each in self.delivered[node.name] if each != request)
            self.confirmed |= {request}
        self._deliver()

    def _deliver(self) -> None:
        rest: list[tuple[int, int]] = []
        by_bucket: dict[int, list[tuple[int, str, bool]]] = {}
        for (bucket, name), (fence, opened, raised) in self.subscriptions.items():
            by_bucket.setdefault(bucket, []).append((fence if raised else -fence, name, opened))
        bundles = dict(sorted(self.bundles))
        for message in self.queue:
            bucket = message[0]
            found = by_bucket.get(bucket)
            top = max(found) if found else None
            name = bundles.get(bucket, "") if top is None or top[0] < 0 else ""
            by_bundle = bool(name)
            if not name:
                if top is None or not top[2]:
                    rest.append(message)
                    continue
                name = top[1]
            node = next(node for node in self.nodes if node.name == name)
            for other, delivered in self.delivered.items():
                if any(it.name == other and it.member.gone(0.0) for it in self.nodes):
                    self.late |= set(delivered)
                elif other != name and any(each[0] == bucket for each in delivered):
                    raise Violation(f"{message} reaches {name} before {other} has confirmed")
            self._arrive(node, message)
            if not by_bundle:
                node.member.arrived(bucket)
            self.delivered[node.name] += (message,)
        self.queue = tuple(rest)

    def _arrive(self, node: Node, arrival: Any) -> None:
        """A message or an answer of the broker.

        It arrives at once: in flight, it could do nothing but be lost with the connection.
        """
        if not isinstance(arrival, Effect):
            node.line += (arrival,)
            return
        bucket = arrival.bucket
        if arrival.do is Action.SHUT:
            node.shut = tuple(sorted({*node.shut, bucket}))
        elif arrival.do is Action.SUBSCRIBE:
            self._apply(node, node.member.done(bucket, arrival.fence, AssignmentInput.ANSWERED))
            node.dirty = True
        elif arrival.do is Action.WITHDRAW:
            self._apply(node, node.member.done(bucket, arrival.fence, AssignmentInput.WITHDRAWN))
            node.shut = tuple(each for each in node.shut if each != bucket)
            node.dirty = True

    def _apply(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            if effect.do is Action.SHUT:
                self._unbundle(node, effect.bucket)
            node.requests += (effect,)

    def _unbundle(self, node: Node, bucket: int) -> None:
        if bucket in node.bundled:
            node.bundled = tuple(each for each in node.bundled if each != bucket)
            node.requests += (Bundle(bucket, False),)

    def _do_bundle(self, i: int, bucket: int) -> None:
        self.left["bundle"] -= 1
        node = self.nodes[i]
        node.bundled += (bucket,)
        node.requests += (Bundle(bucket, True),)

    def _do_unbundle(self, i: int, bucket: int) -> None:
        """Another grouping, for a time without the bucket."""
        self.left["bundle"] -= 1
        self._unbundle(self.nodes[i], bucket)

    def _do_report(self, i: int) -> None:
        node = self.nodes[i]
        node.dirty = False
        self._send(node, node.member.report(0.0))

    def _send(self, node: Node, what: Report | Order) -> None:
        if not node.connected:
            node.posts += (what,)
        elif isinstance(what, Order):
            if self._node_of(what.who) is not None:
                self.mail[what.who] = (*self.mail.get(what.who, ()), what)
        else:
            holder = next((other for other in self.nodes if other.name == self.holder), None)
            if holder is None:
                self.unread += (what,)
            else:
                holder.reports += (what,)

    def _do_lead(self, i: int) -> None:
        node = self.nodes[i]
        report, node.reports = node.reports[0], node.reports[1:]
        self._send_all(node, node.leader.report(report, 0.0))

    def _send_all(self, node: Node, orders: list[Order]) -> None:
        for order in orders:
            self._send(node, order)

    def _do_order(self, i: int) -> None:
        node = self.nodes[i]
        who = node.member.who
        order, self.mail[who] = self.mail[who][0], self.mail[who][1:]
        node.leader.outranked(order.term)
        effects = node.member.order(order)
        self._apply(node, effects)
        # The next beat: an order that leaves the member as it is changes nothing at the leader either, except
        # for a bucket given up before.
        given_up = order.buckets.keys() - node.member.assignments.keys()
        node.dirty = node.dirty or bool(effects or given_up)

    def _do_hand_out(self, i: int, bucket: int) -> None:
        node = self.nodes[i]
        message = next(each for each in node.line if each[0] == bucket)
        node.line = tuple(each for each in node.line if each != message)
        node.hand += (message,)
        fence = node.member.assignments[bucket].fence
        for number in range(message[1]):
            earlier = (bucket, number)
            if number % self.limits.buckets == bucket and earlier not in self.finished | self.late:
                raise Violation(f"{node.name} hands out {message} before {number} is finished")
        if self.highest.get(bucket, 0) > fence:
            raise Violation(
                f"{node.name} hands out {message} under fence {fence} after {self.highest[bucket]}"
            )
        self.highest[bucket] = fence
        for other in self.nodes:
            zombie = other.frozen or other.member.lease_until < 0 or not other.connected
            if other is not node and not zombie and any(each[0] == bucket for each in other.hand):
                raise Violation(f"{node.name} hands out {message} while {other.name} has one of the bucket")

    def _do_finish(self, i: int, bucket: int) -> None:
        node = self.nodes[i]
        message = next(each for each in node.hand if each[0] == bucket)
        node.hand = tuple(each for each in node.hand if each != message)
        self.finished |= {message}
        if node.notices and message in self.delivered[node.name]:
            node.requests += (message,)

    def _do_drained(self, i: int, bucket: int) -> None:
        node = self.nodes[i]
        self._apply(
            node, node.member.done(bucket, node.member.assignments[bucket].fence, AssignmentInput.DRAINED)
        )

    def _do_leave(self, i: int) -> None:
        """The queue is closed once the messages in hand are confirmed, and the departure is reported."""
        self.left["leave"] -= 1
        node = self.nodes[i]
        while node.requests:
            self._do_request(i)
        self._send(node, node.member.report(0.0, leaving=True))
        while node.leader.phase is not Phase.NONE and node.reports:
            self._do_lead(i)
        node.life = "gone"
        self._drop(node, node.leader.left())
        node.line = node.reports = node.posts = ()

    def _do_kill(self, i: int) -> None:
        self.left["kill"] -= 1
        node = self.nodes[i]
        node.life = "dead"
        self._drop(node)
        node.line = node.hand = node.reports = node.requests = node.posts = ()

    def _do_cut(self, i: int) -> None:
        self.left["cut"] -= 1
        node = self.nodes[i]
        node.notices = False
        self._drop(node)

    def _drop(self, node: Node, left: Crown | None = None) -> None:
        """The broker drops a connection: its messages come first again, in order."""
        node.connected = False
        node.requests = ()
        back = self.delivered.get(node.name, ())
        if node.member.gone(0.0):
            self.late |= set(back)
        self.delivered[node.name] = ()
        self.queue = back + self.queue
        for at in [at for at in self.subscriptions if at[1] == node.name]:
            del self.subscriptions[at]
        self.bundles = frozenset(at for at in self.bundles if at[1] != node.name)
        if self.holder == node.name:
            self.holder = ""
            self.crown = left or Crown("", node.leader.term, node.leader.limit)
            self.unread += node.reports
        elif node.crowned:
            self.stale += (Crown("", node.leader.term, node.leader.limit),)
        node.crowned = False
        self._deliver()

    def _do_notice(self, i: int) -> None:
        node = self.nodes[i]
        node.notices = True
        node.connections += 1
        node.member.lost(f"{node.name}{node.connections}")
        node.leader.resign()
        node.line = node.hand = node.requests = node.reports = ()
        node.shut = node.bundled = ()

    def _do_reconnect(self, i: int) -> None:
        """The session subscribes again to the present bundles."""
        node = self.nodes[i]
        node.connected, node.dirty = True, True
        self.bundles |= {(bucket, node.name) for bucket in node.bundled}
        posts, node.posts = node.posts, ()
        for each in posts:
            self._send(node, each)

    def _do_collected(self, i: int) -> None:
        node = self.nodes[i]
        node.leader.until = 0.0
        self._send_all(node, node.leader.tick(0.0))

    def _do_expire(self, i: int, who: str) -> None:
        node = self.nodes[i]
        other = self._node_of(who)
        if self.limits.drift and other is not None and other.life == "up" and other.connected:
            self.left["pause"] -= 1
        node.leader.known[who].heard = -LEASE
        self._send_all(node, node.leader.tick(0.0))
        if other is not None and other.life == "up":
            other.dirty = True  # its next beat

    def _do_pause(self, i: int) -> None:
        """The lease ends before the next order."""
        node = self.nodes[i]
        if (node.connected or node.notices) and not node.frozen:
            self.left["pause"] -= 1
        node.member.lease_until = -1.0
        node.member._sent = {}  # a late answer to an earlier report does not renew the lease
        node.dirty = True

    # the end

    def check_end(self) -> None:
        """Check a state without a further step."""
        up = [node for node in self.nodes if node.life == "up"]
        if len(self.confirmed) != self.posted:
            raise Violation(f"{self.posted} posted, {len(self.confirmed)} confirmed")
        counts: list[int] = []
        for node in up:
            states = [assignment.state for assignment in node.member.assignments.values()]
            if any(state is not AssignmentState.OPEN for state in states):
                raise Violation(f"{node.name} ends with {states}")
            counts.append(len(states))
        if sum(counts) != self.limits.buckets or max(counts) - min(counts) > 1:
            raise Violation(f"the shares are {counts}")


def explore(limits: Limits, most: int = 10_000_000) -> int:
    """Visit every state; return their number.

    Raises:
        Violation: a guarantee does not hold; the steps to the state are in the notes of the exception.
    """
    start = World(replace(limits))
    seen = {hash(start.key())}
    stack: list[tuple[World, tuple[Any, ...]]] = [(start, ())]
    while stack:
        world, path = stack.pop()
        ended = True
        try:
            for name, after in world.steps():
                ended = False
                key = hash(after.key())
                if key not in seen:
                    seen.add(key)
                    stack.append((after, (name, path)))
            if ended:
                world.check_end()
        except Violation as violation:
            steps: list[str] = []
            while path:
                steps.append(path[0])
                path = path[1]
            violation.add_note("\n".join(reversed(steps)))
            raise
        if len(seen) > most:
            raise Violation(f"more than {most} states")
    return len(seen)


def walk(limits: Limits, random: Random, most: int = 3000) -> World:
    """Take random steps to a state without a further step; return the state.

    Raises:
        Violation: a guarantee does not hold; the steps are in the notes of the exception.
    """
    world, path = World(limits), list[str]()
    try:
        for _ in range(most):
            possible = list(world._possible())
            if not possible:
                world.check_end()
                return world
            weights = [_OFTEN.get(name, 1.0) for name, _ in possible]
            name, arguments = random.choices(possible, weights)[0]
            path.append(f"{name} {' '.join(map(str, arguments))}")
            getattr(world, f"_do_{name}")(*arguments)
        raise Violation(f"no end after {most} steps")
    except Violation as violation:
        violation.add_note("\n".join(path))
        raise
