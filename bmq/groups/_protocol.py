# SPDX-License-Identifier: Apache-2.0
"""The agreement about buckets: a member and a leader without I/O, clock or randomness.

The problem: a bucket changes its owner while the old owner still has messages. The new owner must hand out
no message before the old owner has finished, although either may be paused, cut off or dead, and although
control messages may be late, doubled or lost.

The broker enforces the order, with the priorities of subscriptions. Each ownership has a *fence*, a growing
number, and a higher fence subscribes with a lower priority. While the subscription of an older owner stands,
the broker delivers no message to a newer owner. Invariants:

- A subscription begins with window 0. The window is opened only by a grant for a report sent while the
  subscription stood, on the same connection.
- A subscription is withdrawn only after the confirmation of every message delivered to the subscription.
- A leader grants only the newest fence of a bucket, and never assigns a fence twice.

If a newer owner received a message, no older subscription stood at the time. A later subscription with an
older fence has window 0 and is never granted. Clocks matter where the broker cannot help: a member cut off
from the broker does not know of a new owner. The member's *lease* ends by the member's clock, at the latest
when the leader assigns the buckets again, and the member hands out no message afterwards.

Reports and orders contain the full state of a member. A repeated message therefore has no effect, and the
next message repairs a lost message. Every connection of a member has a new name, ``who``: an order for a
lost connection has no receiver.

The leader holds the *crown*, an unconfirmed message of the control queue: the broker gives the crown to the
next candidate when the leader's connection is gone. The crown has the term of the leader and the first fence
not yet reserved. A new leader posts a crown of the next term. After the delivery of the new crown, the leader
collects reports for a lease, and leads afterwards. A leaving leader names the remaining members in a crown,
and the next leader leads as soon as the named members have reported.

The first crown of a queue is posted by a member that can prove that no connected member has a crown: its own
report came back by a subscription of the lowest priority, which receives the member's own messages only.
Whoever may have a crown receives the reports of other members with a higher priority. See
:class:`Candidate`.

A dead claimant may leave two crowns, for two candidates. Both candidates lead, with different fences. The
leader of the higher term has the higher priority in the control queue, and receives all reports and crowns.
Members ignore orders of the lower term. The leader of the lower term forgets all members at the first order
of the higher term.

The broker evaluates the subscriptions in turn, and a member has a subscription for each bucket. A *bundle* is
a further subscription for several buckets of a member, with a higher priority than all buckets, so that most
messages match early. A bundle could take messages from an older owner, whose subscription to the bucket
still stands. A bucket therefore joins a bundle only after a message has arrived by the subscription of the
bucket itself: no older subscription stood then, and a later subscription with an older fence is never
granted. A recalled bucket leaves its bundle before the window of its own subscription is closed. Until the
bucket is withdrawn, its own subscription keeps newer owners waiting, in a bundle or not.

A leader may be frozen: its process stands still while the broker keeps its connection, its crown, and its
bucket's subscriptions. A member that the leader does not answer, although the broker delivers, *deposes* the
leader: it takes the leader's place in the control queue by a higher priority, and posts a crown with a higher
term and with fences above those reserved. This breaks no order: two leaders with different fences are
safe, see above. The buckets of the frozen member have new owners, whose subscriptions have a lower priority
and receive nothing while the connection stands. The messages that the broker has delivered to the frozen
member are with nobody else, and nobody else knows their keys: to go on without them is to give up the order
of these keys. The group does so only with ``take_over``: the leader then *raises* the bucket, its new fence
subscribes above all others, and the frozen member gives up its connection once it notices the time. Raised
fences are in the opposite order: the newest is the highest.

Rejected: standby subscriptions (a new primary restores subscriptions in another order, and messages reach the
standby); leases without fences (safe only with correct clocks); a message of the control queue for each
bucket (the loss of a message stops the bucket).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from bmq.protocol.machine import Machine, Transition

# Fences reserved with each crown.
_BLOCK: Final = 4096
# Whoever may write to the control queue may post any number. A fence becomes the priority of a subscription,
# down to -2**30. Numbers that leave a next leader no room, or far above those known, come from no member.
_FENCES: Final = 2**30 - 2**16
_TERMS: Final = 2**53
_FAR: Final = 2**26
# Members of a group that one message may name.
_MOST_MEMBERS: Final = 10_000

_Name = Annotated[str, Meta(max_length=200)]
_Fence = Annotated[int, Meta(ge=0, lt=_FENCES)]
_Number = Annotated[int, Meta(ge=0, lt=_TERMS)]
#: The limits of a group's options.
MAX_BUCKETS: Final = 512
MIN_WEIGHT: Final = 0.01
MAX_WEIGHT: Final = 100.0
_Bucket = Annotated[int, Meta(ge=0, lt=MAX_BUCKETS)]
_State = Literal["ASKED", "READY", "OPEN", "DRAINING", "LEAVING", "GONE"]


class AssignmentState(Enum):
    """The states of a bucket in a member."""

    ASKED = "the subscription with window 0 was requested"
    READY = "the broker has the subscription, and the leader has not granted the bucket yet"
    OPEN = "the bucket is granted: messages arrive and are handed out"
    DRAINING = "the window is closed, and the remaining messages are handed out"
    LEAVING = "the subscription is being withdrawn"
    GONE = "the bucket is not here"


class AssignmentInput(Enum):
    """The inputs of a bucket's state machine."""

    ANSWERED = "the broker has the subscription"
    GRANTED = "the leader's order grants the bucket"
    RECALLED = "the leader's order lacks the bucket"
    DRAINED = "every message is confirmed, and the broker has closed the window"
    WITHDRAWN = "the broker has withdrawn the subscription"
    LOST = "the connection was lost"


class Action(Enum):
    """The actions of a member for a bucket."""

    SUBSCRIBE = "subscribe with window 0 and the priority of the fence"
    OPEN = "open the window"
    SHUT = "set the window to 0"
    WITHDRAW = "withdraw the subscription"
    FORGET = "drop the bucket: the connection was lost"


class Effect(NamedTuple):
    """An action for a bucket, the fence of the ownership, and whether the fence is raised."""

    do: Action
    bucket: int
    fence: int
    raised: bool = False


class _Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=str.lower):
    """A message of the control queue: types and ranges are checked when a message is read.

    Attributes:
        group: the expression of the sender's first bucket, equal in all members; "" before it is sent.
        time: when the message was sent, by the sender's clock; 0 before.
    """

    group: str = ""
    time: float = 0.0


class Report(_Message, frozen=True):
    """The state of a member, for the leader.

    Attributes:
        who: name of the member's connection.
        was: name of the member's former connection, now lost; "" if none.
        seq: number of the report.
        seen: term and number of the latest order.
        weight: share relative to the other members.
        leaving: whether the member has closed its queue, and leaves.
        buckets: fence and name of the state, by bucket; empty if the member leaves.
        stands: whether the member is a candidate, or has a crown.
        behind: the silent former owner, by bucket, as in the orders; "" if a message has proved that no older
            subscription stands.
        raised: the buckets whose fence is raised.
    """

    who: _Name
    was: _Name
    seq: _Number
    seen: tuple[_Number, _Number]
    weight: Annotated[float, Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)]
    leaving: bool
    buckets: dict[_Bucket, tuple[_Fence, _State]]
    stands: bool = False
    behind: dict[_Bucket, _Name] = {}
    raised: tuple[_Bucket, ...] = ()


class Order(_Message, frozen=True):
    """The buckets of a member, from the leader.

    Attributes:
        who: name of the member's connection.
        term: term of the leader.
        number: number of the order within the term.
        seq: number of the answered report.
        buckets: fence, and whether the bucket is granted, by bucket.
        limit: the first fence not reserved by the leader.
        leader: name of the leader's connection.
        behind: the silent former owner, by bucket: its subscription may stand.
        raised: the buckets whose fence is raised.

    An order of term 0 asks a candidate to give way. With a ``seq``, it only shows whether the broker
    delivers: to the sender itself, or to a silent member, whose mail comes back once its connection is over.
    """

    who: _Name
    term: _Number
    number: _Number
    seq: _Number
    buckets: dict[_Bucket, tuple[_Fence, bool]]
    limit: _Fence = 0
    leader: _Name = ""
    behind: dict[_Bucket, _Name] = {}
    raised: tuple[_Bucket, ...] = ()


class Crown(_Message, frozen=True):
    """The right to lead.

    Attributes:
        who: name of the leader's connection; "" for the first crown, and for one that deposes a leader.
        term: term of the leader.
        fence: the first fence not reserved.
        members: names of the remaining members, from a leader that leaves; None if the leader still leads.
    """

    who: _Name
    term: _Number
    fence: _Fence
    members: Annotated[tuple[_Name, ...], Meta(max_length=_MOST_MEMBERS)] | None = None


_S, _I = AssignmentState, AssignmentInput


@dataclass(eq=False)
class Assignment(Machine):
    """A bucket of a member.

    Attributes:
        fence: number of the ownership.
        behind: name of the silent former owner, whose subscription may stand; "" if none.
        raised: whether the subscription is above those of former owners.
        since: number of the first report that names the subscription as standing. An order grants the bucket
            only if the order answers this report or a later one: orders of a former leader may arrive late.
        alone: whether a message has arrived by the subscription: no older owner has one.
    """

    fence: int
    behind: str = ""
    raised: bool = False
    since: int = 0
    alone: bool = False
    state: Any = _S.ASKED

    @property
    def here(self) -> bool:
        """Whether messages are handed out."""
        return self.state in (_S.OPEN, _S.DRAINING)

    def _open(self) -> Action:
        return Action.OPEN

    def _shut(self) -> Action:
        return Action.SHUT

    def _withdraw(self) -> Action:
        return Action.WITHDRAW

    def _forget(self) -> Action:
        return Action.FORGET

    TRANSITIONS: ClassVar = {
        (_S.ASKED, _I.ANSWERED): Transition(None, _S.READY),
        (_S.ASKED, _I.GRANTED): Transition(None, _S.ASKED),  # granted on an earlier report only
        (_S.ASKED, _I.RECALLED): Transition(_withdraw, _S.LEAVING),
        (_S.ASKED, _I.LOST): Transition(_forget, _S.GONE),
        (_S.READY, _I.GRANTED): Transition(_open, _S.OPEN),
        (_S.READY, _I.RECALLED): Transition(_withdraw, _S.LEAVING),
        (_S.READY, _I.LOST): Transition(_forget, _S.GONE),
        (_S.OPEN, _I.GRANTED): Transition(None, _S.OPEN),
        (_S.OPEN, _I.RECALLED): Transition(_shut, _S.DRAINING),
        (_S.OPEN, _I.LOST): Transition(_forget, _S.GONE),
        (_S.DRAINING, _I.GRANTED): Transition(None, _S.DRAINING),
        (_S.DRAINING, _I.RECALLED): Transition(None, _S.DRAINING),
        (_S.DRAINING, _I.DRAINED): Transition(_withdraw, _S.LEAVING),
        (_S.DRAINING, _I.LOST): Transition(_forget, _S.GONE),
        (_S.LEAVING, _I.ANSWERED): Transition(None, _S.LEAVING),
        (_S.LEAVING, _I.GRANTED): Transition(None, _S.LEAVING),
        (_S.LEAVING, _I.RECALLED): Transition(None, _S.LEAVING),
        (_S.LEAVING, _I.WITHDRAWN): Transition(None, _S.GONE),
        (_S.LEAVING, _I.LOST): Transition(_forget, _S.GONE),
    }


class Member:
    """A member's view of its buckets.

    Args:
        who: name of the present connection.
        weight: share relative to the other members.
        lease: seconds from the sending of a report until the member hands out nothing, if the report is not
            answered.
        take_over: seconds from the sending of a report until other members may have messages of this member's
            buckets although its connection stands; None if they never do.

    Attributes:
        who: see above.
        assignments: the buckets, by number.
        lease_until: end of the lease, by the member's clock.
        seen: term and number of the latest order.
        seq: number of the latest report.
        leader: name of the leader of the latest order; "" if none.
    """

    def __init__(
        self, who: str, weight: float = 1.0, lease: float = 5.0, take_over: float | None = None
    ) -> None:
        self.assignments: dict[int, Assignment] = {}
        self._was = ""
        self._weight = weight
        self._lease = lease
        self._take_over = take_over
        # Of all connections: the next unused fence, higher than every fence in an order; the first fence that
        # no leader has reserved (0 if unknown); and the highest term.
        self._fence = 1
        self._limit = self._term = 0
        self._begin(who)

    def _begin(self, who: str) -> None:
        self.who = who
        self.seen = (0, 0)
        self.leader = ""
        self.lease_until = float("-inf")
        self.seq = 0
        # When the unanswered reports were sent, by number.
        self._sent: dict[int, float] = {}

    def report(self, now: float, *, leaving: bool = False, stands: bool = False) -> Report:
        """Return the report to be sent now."""
        self.seq += 1
        self._sent[self.seq] = now
        assignments = [] if leaving else sorted(self.assignments.items())
        return Report(
            self.who,
            self._was,
            self.seq,
            self.seen,
            self._weight,
            leaving,
            {bucket: (assignment.fence, assignment.state.name) for bucket, assignment in assignments},
            stands,
            {
                bucket: "" if assignment.alone and not assignment.raised else assignment.behind
                for bucket, assignment in assignments
                if assignment.behind
            },
            tuple(bucket for bucket, assignment in assignments if assignment.raised),
        )

    def gone(self, now: float) -> bool:
        """Whether other members may have messages of this member's buckets: the connection must be given up.

        A message that this member still has may be older than messages of its key that were handled.
        """
        over = now - self.lease_until + self._lease
        return self._take_over is not None and self._take_over <= over < math.inf

    def sent(self, seq: int) -> float:
        """Return when a report was sent; minus infinity if unknown, or answered."""
        return self._sent.get(seq, -math.inf)

    def order(self, order: Order) -> list[Effect]:
        """Process an order of the leader; return the resulting actions."""
        if order.who != self.who or (order.term, order.number) <= self.seen:
            return []
        self.seen = (order.term, order.number)
        self.leader = order.leader
        self._term = max(self._term, order.term)
        self._limit = max(self._limit, order.limit)
        sent = self._sent.get(order.seq)
        if sent is not None:
            self.lease_until = max(self.lease_until, sent + self._lease)
            self._sent = {seq: at for seq, at in self._sent.items() if seq > order.seq}
        effects: list[Effect] = []
        for bucket, assignment in sorted(self.assignments.items()):
            fence, granted = order.buckets.get(bucket, (0, False))
            if fence != assignment.fence:
                effects += self._fire(bucket, _I.RECALLED)
            else:
                assignment.behind = order.behind.get(bucket, "")
                if granted and order.seq >= assignment.since:
                    effects += self._fire(bucket, _I.GRANTED)
        for bucket, (fence, _) in sorted(order.buckets.items()):
            self._fence = max(self._fence, fence + 1)
            if bucket not in self.assignments:
                raised = bucket in order.raised
                self.assignments[bucket] = Assignment(fence, order.behind.get(bucket, ""), raised)
                effects.append(Effect(Action.SUBSCRIBE, bucket, fence, raised))
        return effects

    def done(self, bucket: int, fence: int, what: AssignmentInput) -> list[Effect]:
        """Process the end of an action; return the resulting actions. A former ownership is ignored."""
        assignment = self.assignments.get(bucket)
        if assignment is None or assignment.fence != fence:
            return []
        if what is _I.ANSWERED:
            assignment.since = self.seq + 1
        return self._fire(bucket, what)

    def arrived(self, bucket: int) -> bool:
        """Note a message by the subscription of an open bucket; return whether it is the first message."""
        assignment = self.assignments.get(bucket)
        if assignment is None or assignment.state is not _S.OPEN or assignment.alone:
            return False
        assignment.alone = True
        return True

    @property
    def bundled(self) -> list[int]:
        """The buckets that may be in a bundle, in ascending order."""
        return sorted(
            bucket
            for bucket, assignment in self.assignments.items()
            if assignment.alone and assignment.state is _S.OPEN and not assignment.raised
        )

    def lost(self, who: str) -> list[Effect]:
        """Forget all buckets after the loss of the connection; the next connection has a new name."""
        effects = [effect for bucket in sorted(self.assignments) for effect in self._fire(bucket, _I.LOST)]
        self._was = self.who
        self._begin(who)
        return effects

    def first_crown(self, fence: int, limit: int = 1, *, lost: bool = False) -> Crown:
        """Return the first crown of a queue.

        The fences begin at ``fence``; if there is room, at ``limit`` and above those known to this member. If
        the member had a leader on this connection, or knows that a crown was lost in the queue (it expired,
        say), other connected members may still have buckets: the next leader waits for their reports.
        """
        members = () if self.seen == (0, 0) and not lost else None
        known = max(limit, self._fence)
        return Crown("", 0, fence if known + 2 * _BLOCK > _FENCES else max(fence, known), members)

    def deposing_crown(self, clock: int, limit: int = 1) -> Crown:
        """Return a crown above the one of a leader that does not answer.

        Args:
            clock: seconds since 2025: above the first fence of a leader that is not known to this member.
            limit: the first fence not reserved, if this member has led.
        """
        known = max(clock + _BLOCK, self._limit + _BLOCK, self._fence + 2 * _BLOCK, limit)
        return Crown("", max(self._term, clock // 60), min(known, _FENCES - 2 * _BLOCK))

    def hands_out(self, bucket: int, now: float) -> bool:
        """Whether a message of the bucket may be handed out now."""
        assignment = self.assignments.get(bucket)
        return assignment is not None and assignment.here and now < self.lease_until

    def _fire(self, bucket: int, what: AssignmentInput) -> list[Effect]:
        assignment = self.assignments[bucket]
        do = assignment.fire(what)
        if assignment.state is _S.GONE:
            del self.assignments[bucket]
        return [] if do is None else [Effect(do, bucket, assignment.fence, assignment.raised)]


class CandidateState(Enum):
    """The states of a candidate."""

    YIELDED = "only own messages are received: another member leads, or becomes the leader"
    OPENING = "the reports of other members, and crowns, were requested"
    CANDIDATE = "the broker has both subscriptions"
    POSTED = "a crown was posted, and neither a crown nor an order has arrived since"
    NARROWING = "crowns are being given up"
    WIDENING = "crowns are being given up, and will be requested again"
    CLOSING = "the reports of other members are being given up"
    REOPENING = "the reports of other members are being given up, and will be requested again"
    HOLDING = "a crown arrived"


class CandidateInput(Enum):
    """The inputs of a candidate's state machine."""

    WAKE = "an order arrived, or the state has lasted too long"
    RETURNED = "an own report came back"
    ANSWERED = "the broker has performed the request"
    SMALLER = "there is a member with a smaller name"
    PROVED = "no connected member has a crown"
    CROWN = "a crown arrived"


class Request(Enum):
    """The requests of a candidate."""

    OPEN = "receive the reports of other members, and crowns"
    NARROW = "receive the reports of other members"
    CLOSE = "receive neither"


_C, _CI = CandidateState, CandidateInput


class Candidate(Machine):
    """What a member without a crown receives, on one connection.

    The problem: a crown may be with a member that is paused before it reads the crown. No other member may
    conclude that there is no crown. Invariant: while a member receives crowns, or has one in hand or on the
    way, the member also receives the reports of other members, with a higher priority than the members that
    sent them. A report that returns to its sender therefore proves that no other connected member has a
    crown. A crown that waits in the queue would have reached the sender before the report. A redelivered
    report proves nothing: the member that had it before may have posted a crown behind it.

    Candidates that receive the reports of each other would never receive their own. Of two candidates, the
    larger name gives way: it first gives up crowns, and the reports only after the broker's answer, if no
    crown has arrived before the answer. A candidate that has posted the first crown gives way only after a
    crown or an order has arrived: an earlier report of another member may still be in the queue.

    A broker delivers nothing new while a redelivered message has no receiver. A crown of a dead leader then
    holds back the reports of members that have all given way. Each of them becomes a candidate again after a
    time.

    Args:
        who: name of the member's connection.

    Attributes:
        since: number of the first own report that is a proof: posted while the broker had both subscriptions.
    """

    def __init__(self, who: str) -> None:
        self.state = _C.YIELDED
        self.since = 0
        self._who = who
        # The smallest name of a candidate known.
        self._least = who

    def heard(self, who: str) -> str:
        """Process a report of another candidate; return the name of the one that must give way, or ""."""
        if self.state not in (_C.CANDIDATE, _C.NARROWING) or who == self._least:
            return ""
        larger, self._least = max(who, self._least), min(who, self._least)
        return larger

    @property
    def stands(self) -> bool:
        """Whether this member is a candidate, or has a crown."""
        return self.state in (_C.CANDIDATE, _C.POSTED, _C.HOLDING)

    def proves(self, seq: int) -> bool:
        """Whether an own report with this number, delivered for the first time, is a proof on its return."""
        return self.state is _C.CANDIDATE and seq >= self.since

    def depose(self) -> None:
        """Begin to receive reports and crowns instead of a leader that does not answer."""
        self.state = _C.POSTED

    def _open(self, seq: int) -> Request:
        return Request.OPEN

    def _narrow(self, seq: int) -> Request:
        return Request.NARROW

    def _close(self, seq: int) -> Request:
        return Request.CLOSE

    def _candidacy(self, seq: int) -> None:
        self.since = seq + 1
        self._least = self._who

    TRANSITIONS: ClassVar = {
        **{(state, event): Transition(None, state) for state in CandidateState for event in CandidateInput},
        (_C.YIELDED, _CI.WAKE): Transition(_open, _C.OPENING),
        (_C.YIELDED, _CI.RETURNED): Transition(_open, _C.OPENING),
        (_C.OPENING, _CI.ANSWERED): Transition(_candidacy, _C.CANDIDATE),
        (_C.CANDIDATE, _CI.SMALLER): Transition(_narrow, _C.NARROWING),
        (_C.CANDIDATE, _CI.PROVED): Transition(None, _C.POSTED),
        (_C.POSTED, _CI.WAKE): Transition(_candidacy, _C.CANDIDATE),  # refused, or dropped as a duplicate
        (_C.NARROWING, _CI.ANSWERED): Transition(_close, _C.CLOSING),
        (_C.NARROWING, _CI.WAKE): Transition(None, _C.WIDENING),
        (_C.WIDENING, _CI.ANSWERED): Transition(_open, _C.OPENING),
        (_C.CLOSING, _CI.ANSWERED): Transition(None, _C.YIELDED),
        (_C.CLOSING, _CI.WAKE): Transition(None, _C.REOPENING),
        (_C.REOPENING, _CI.ANSWERED): Transition(_open, _C.OPENING),
        **{(state, _CI.CROWN): Transition(None, _C.HOLDING) for state in CandidateState},
    }


class Phase(Enum):
    """The phases of a leader."""

    NONE = "another member leads"
    CLAIMING = "the crown arrived, and a crown of the next term was posted"
    COLLECTING = "reports arrive, and nothing is assigned"
    LEADING = "buckets are assigned"


@dataclass(slots=True)
class _Known:
    """A member, as known to the leader."""

    seq: int
    weight: float
    heard: float


@dataclass(slots=True)
class _Owner:
    """The newest ownership of a bucket.

    Attributes:
        number: the first order that contained, or lacked, the bucket.
    """

    who: str
    fence: int
    number: int
    granted: bool = False
    recalled: bool = False


@dataclass(slots=True)
class _Behind:
    """A silent member whose subscription to a bucket may stand.

    Attributes:
        since: when the member was heard last.
        over: whether the bucket was taken over.
        gone: whether the connection seems to be over: mail for the member came back.
    """

    who: str
    since: float
    over: bool = False
    gone: bool = False


class Leader:
    """A leader's view of the group. Every member has a view, and one member leads.

    Args:
        buckets: number of buckets.
        lease: seconds without a report after which the buckets of a member are assigned again.
        take_over: seconds without a report after which these buckets are taken over, although the silent
            member may be connected; None for never.

    Attributes:
        phase: the phase.
        deposed: name of the leader whose place this one has taken; "" if a crown was free.
        deposed_at: when this leader certainly answered nobody any more.
        former: name of the former leader; "" if not known.
        behind: the silent former owner of each bucket that may still be subscribed.
        term: term of the crown held or claimed.
        fence: the next fence.
        limit: the first fence that is not reserved.
        until: end of the collecting.
        awaited: members named by the former leader that have not reported yet; None if the former leader
            named no members.
        known: the members that have reported.
        owners: the newest ownership of each bucket.
    """

    def __init__(self, buckets: int, lease: float = 5.0, take_over: float | None = None) -> None:
        self.phase = Phase.NONE
        self.term = 0
        self.fence = 1
        # All buckets; a member gets neighbours in this order, which make large bundles.
        self._in_turn = nested(buckets)
        self._lease = lease
        self.limit = 1
        self.awaited: frozenset[str] | None = None
        self.until = 0.0
        self._who = self.former = ""
        self.deposed_at = 0.0
        self._take_over = take_over
        self.resign()

    # the crown

    def crown(self, who: str, crown: Crown, now: float) -> Crown | None:
        """Process a crown delivered to ``who``, this member; return the crown to post, if any."""
        if self.phase is Phase.CLAIMING and (crown.who, crown.term) == (who, self.term):
            self.phase = Phase.COLLECTING
            self.until = now + self._lease
            self._heard()
            return None
        if self.phase is not Phase.NONE and crown.who == who and crown.term < self.term:
            return None  # an own claim that a later one has replaced; a new claim would follow for ever
        if self.phase in (Phase.COLLECTING, Phase.LEADING):
            if (crown.who, crown.term) == (who, self.term):
                self.limit = max(self.limit, crown.fence)  # the renewed crown
                return None
            if crown.term < self.term and crown.fence <= self.fence:
                return None  # a crown from before, or of a rival; a rival of the same term needs a new claim
        # With a second crown, a member may be unknown to either former leader.
        alone = self.phase is Phase.NONE and crown.members is not None
        self.resign()
        self._who = who
        self.awaited = frozenset(crown.members) if alone and crown.members is not None else None
        self.phase = Phase.CLAIMING
        self.term = max(self.term, crown.term) + 1
        self.fence = max(self.fence, crown.fence)
        self.limit = self.fence + _BLOCK
        return Crown(who, self.term, self.limit)

    def doubt(self, what: Report | Order | Crown, seen: int, clock: int) -> str:
        """Return why a message, in range, cannot come from a member of the group; empty if it can.

        Args:
            what: the message.
            seen: the highest term known to this member; 0 if none.
            clock: the first fence of a group that starts now.
        """
        term = what.seen[0] if isinstance(what, Report) else what.term
        known = max(seen, self.term)
        if known and term > known + _FAR:
            return f"term {term} is far above the known {known}"
        if isinstance(what, Crown):
            if term + _BLOCK > _TERMS or what.fence + 2 * _BLOCK > _FENCES:
                return f"term {term} and fence {what.fence} leave no room for a next leader"
            fence = what.fence
        else:
            if any(bucket >= len(self._in_turn) for bucket in what.buckets):
                return f"the group has {len(self._in_turn)} buckets, not {max(what.buckets) + 1}"
            fence = max((fence for fence, _ in what.buckets.values()), default=0)
        most = max(self.fence, self.limit, clock) + _FAR
        return f"fence {fence} is far above the known ones" if self.limit > 1 and fence > most else ""

    def resign(self) -> None:
        """Lead no more: the connection was lost, or another crown arrived."""
        self.phase = Phase.NONE
        self._forget()
        self._number = 0
        self.awaited = None
        self.deposed = ""

    def _forget(self) -> None:
        self.known: dict[str, _Known] = {}
        self.owners: dict[int, _Owner] = {}
        self.behind: dict[int, _Behind] = {}
        # Buckets whose next owner is above the silent one.
        self._raised: set[int] = set()
        # The broker's node with the messages of the last owner, by bucket, until the next owner has them.
        self._left_at: dict[int, str] = {}

    def outranked(self, term: int) -> None:
        """Forget the members if an order of a higher term has arrived: its sender receives all reports."""
        if term > self.term:
            self._forget()

    def left(self) -> Crown | None:
        """Return the crown to post instead of the present one when this member has left.

        The next leader needs to wait only for the reports of the members that the crown names. None if this
        member does not know all members.
        """
        if self.phase is not Phase.LEADING:
            return None
        return Crown("", self.term, self.limit, tuple(sorted(self.known)))

    def renewed(self, who: str) -> Crown:
        """Return the crown to post instead of the present one, before a message of the queue expires.

        More fences are reserved once the crown was delivered.
        """
        more = _BLOCK if self.limit - self.fence < _BLOCK // 2 else 0
        return Crown(who, self.term, min(max(self.limit, self.fence) + more, _FENCES - 1))

    # reports

    def report(self, report: Report, now: float) -> list[Order]:
        """Process a report; return the orders to be sent."""
        if self.phase not in (Phase.COLLECTING, Phase.LEADING):
            return []
        for who in filter(None, (report.was, report.who if report.leaving else "")):
            self._remove(who)
            self._returned(who)
        if report.leaving:
            self._heard(report.was, report.who)
            return self._orders(self._assign())
        known = self.known.get(report.who)
        if known is not None and report.seq <= known.seq:
            return []
        self.known[report.who] = _Known(report.seq, report.weight, now)
        # A member subscribes to a bucket anew only after it has withdrawn its former subscription.
        owned = {(bucket, owner.fence) for bucket, owner in self.owners.items() if owner.who == report.who}
        left = [bucket for bucket, (fence, _) in report.buckets.items() if (bucket, fence) not in owned]
        self._returned(report.who, left, now)
        changed = {report.who: None}
        for bucket, (fence, state) in sorted(report.buckets.items()):
            self.fence = max(self.fence, fence + 1)
            owner = self.owners.get(bucket)
            if owner is None or owner.fence < fence:
                if owner is not None:
                    changed[owner.who] = None
                # An ownership that an earlier leader has not granted is never granted: a newer one may exist.
                owner = self.owners[bucket] = _Owner(report.who, fence, 0, state == "OPEN", state != "OPEN")
            if owner.who != report.who or owner.fence != fence:
                continue
            self._stands_behind(bucket, report, now)
            if state == "OPEN":
                self._left_at.pop(bucket, None)
            if not owner.recalled:
                if owner.number == 0 and state != "OPEN":
                    # The report that named the ownership of an earlier leader was old: the member has given
                    # the bucket back meanwhile, and another member may have a newer fence.
                    owner.recalled = True
                    owner.number = self._number + 1
                elif state == "READY":
                    owner.granted = True
        for bucket, owner in list(self.owners.items()):
            # A bucket that is not asked back is absent because the member had to withdraw the subscription of
            # a former fence first. The next order repeats the assignment. A new fence would have to wait for
            # another withdrawal, and so on.
            if (
                owner.who == report.who
                and owner.recalled
                and bucket not in report.buckets
                and report.seen >= (self.term, owner.number)
            ):
                del self.owners[bucket]
        self._heard(report.was, report.who)
        return self._orders(changed | self._assign())

    def tick(self, until: float) -> list[Order]:
        """Process the passing of time; return the orders to be sent.

        A broker may deliver no message of the control queue for seconds, while the members are well.

        Args:
            until: the members' reports until this time were received, because an own report posted then has
                come back.
        """
        if self.phase is Phase.COLLECTING and until >= self.until:
            self._lead()
            for bucket in self._in_turn if self.deposed else ():
                if bucket not in self.owners:
                    self.behind.setdefault(bucket, _Behind(self.deposed, self.deposed_at))
        if self.phase is not Phase.LEADING:
            return []
        for who, known in list(self.known.items()):
            if until - known.heard >= self._lease:
                for bucket, owner in self.owners.items():
                    if owner.who == who:
                        # Not above the silent one yet: it may still be at work.
                        self._raised.discard(bucket)
                        self.behind[bucket] = _Behind(who, known.heard)
                self._remove(who)
        return self._orders(self._assign() | self._raise(until))

    def _raise(self, until: float) -> dict[str, None]:
        """Take over the buckets of members that have been silent for long; return the changed members."""
        changed: dict[str, None] = {}
        for bucket, behind in self.behind.items() if self._take_over is not None else ():
            owner = self.owners.get(bucket)
            due = not behind.over and until >= behind.since + (self._take_over or 0)
            if due and owner and not owner.recalled and self.fence < self.limit:
                behind.over = True
                self._raised.add(bucket)
                self.owners[bucket] = _Owner(owner.who, self.fence, self._number + 1)
                self.fence += 1
                changed[owner.who] = None
        return changed

    def silent(self) -> dict[str, list[int]]:
        """Return the silent members, each with the buckets whose new owners may have to wait."""
        found: dict[str, list[int]] = {}
        for bucket, behind in sorted(self.behind.items()):
            if not (behind.over or behind.gone):
                found.setdefault(behind.who, []).append(bucket)
        return found

    def mail_returned(self, who: str) -> bool:
        """Note that mail for a member came back; return whether a silent member is gone.

        This is no proof: a new primary may return mail for a member before it restores its subscriptions.
        """
        found = [behind for behind in self.behind.values() if behind.who == who and not behind.gone]
        for behind in found:
            behind.gone = True
        return bool(found)

    def _returned(self, who: str, buckets: Collection[int] = (), now: float = 0.0) -> None:
        """Note what a silent member still has; nothing if its connection is over."""
        for bucket, behind in list(self.behind.items()):
            if behind.who != who:
                continue
            if bucket in buckets:
                behind.since = max(behind.since, now)
            else:
                del self.behind[bucket]
                self._raised.discard(bucket)

    def _stands_behind(self, bucket: int, report: Report, now: float) -> None:
        """Learn from the owner of a bucket whether a former owner may be subscribed."""
        who = report.behind.get(bucket)
        if who == "":
            self.behind.pop(bucket, None)
        if report.seen[0] == self.term:
            return  # the member repeats what this leader has told, perhaps before a change
        if bucket in report.raised:
            self._raised.add(bucket)
        if who:
            self.behind.setdefault(bucket, _Behind(who, now, over=bucket in report.raised))

    def deadline(self) -> float:
        """Return the earliest time until which reports must be received for a change by :meth:`tick`."""
        if self.phase is Phase.COLLECTING:
            return self.until
        if self.phase is Phase.LEADING:
            lease = min((known.heard for known in self.known.values()), default=math.inf) + self._lease
            if self._take_over is None:
                return lease
            waiting = [behind.since + self._take_over for behind in self.behind.values() if not behind.over]
            return min([lease, *waiting])
        return math.inf

    def _heard(self, *who: str) -> None:
        """Lead as soon as every member has reported."""
        if self.awaited is None:
            return
        self.awaited = self.awaited.difference(who)
        if not self.awaited and self.phase is Phase.COLLECTING:
            self._lead()

    def _lead(self) -> None:
        self.phase = Phase.LEADING
        self._left(self.former, [bucket for bucket in self._in_turn if bucket not in self.owners])

    def _remove(self, who: str) -> None:
        self.known.pop(who, None)
        self._left(who, [bucket for bucket, owner in self.owners.items() if owner.who == who])
        self.owners = {bucket: owner for bucket, owner in self.owners.items() if owner.who != who}

    def _left(self, who: str, buckets: Iterable[int]) -> None:
        """Note the node of a member that is gone, which has the messages that the member has not confirmed.

        A node delivers these messages to its own clients only, and nothing else before them, until no client
        of the node has the queue open.
        """
        if node := node_of(who):
            for bucket in buckets:
                self._left_at.setdefault(bucket, node)

    # assigning

    def _assign(self) -> dict[str, None]:
        """Ask buckets back where a member has too many, and assign free ones; return the changed members.

        A bucket goes to a member at the node of the last owner, if there is one, and is not asked back before
        this member has opened the bucket.
        """
        changed: dict[str, None] = {}
        if self.phase is not Phase.LEADING or not self.known:
            return changed
        held = Counter(owner.who for owner in self.owners.values() if not owner.recalled)
        share = shares({who: known.weight for who, known in self.known.items()}, len(self._in_turn), held)
        opened: dict[str, list[_Owner]] = {who: [] for who in share}
        for bucket in self._in_turn:
            owner = self.owners.get(bucket)
            if owner and not owner.recalled and owner.who in share and bucket not in self._left_at:
                opened[owner.who].append(owner)
        for who, owners in opened.items():
            for owner in owners[: max(0, held[who] - share[who])]:
                owner.recalled = True
                owner.number = self._number + 1
                changed[who] = None
        has = {who: min(held[who], share[who]) for who in share}
        for bucket in self._in_turn:
            if bucket in self.owners or self.limit <= self.fence:
                continue
            node = self._left_at.get(bucket, "")
            near = [who for who in share if node and node_of(who) == node]
            if not near:
                self._left_at.pop(bucket, None)
            lacking = next((who for who in near or share if has[who] < share[who]), None)
            chosen = lacking or min(near, key=has.__getitem__, default=None)
            if chosen is None:
                continue
            has[chosen] += 1
            self.owners[bucket] = _Owner(chosen, self.fence, self._number + 1)
            self.fence += 1
            changed[chosen] = None
        return changed

    def _orders(self, members: Mapping[str, None]) -> list[Order]:
        """Return the orders for these members, all with the next number."""
        self._number += 1
        return [self._order(who) for who in members if who in self.known]

    def _order(self, who: str) -> Order:
        wanted = {
            bucket: (owner.fence, owner.granted)
            for bucket, owner in sorted(self.owners.items())
            if owner.who == who and not owner.recalled
        }
        behind = {
            bucket: silent.who
            for bucket in wanted
            if (silent := self.behind.get(bucket)) is not None and not silent.gone
        }
        raised = tuple(bucket for bucket in wanted if bucket in self._raised)
        seq = self.known[who].seq
        return Order(who, self.term, self._number, seq, wanted, self.limit, self._who, behind, raised)


@lru_cache(maxsize=64)
def divisors(buckets: int) -> tuple[int, ...]:
    """Return the divisors of a number of buckets, in ascending order."""
    return tuple(each for each in range(1, buckets + 1) if buckets % each == 0)


@lru_cache(maxsize=64)
def nested(buckets: int) -> tuple[int, ...]:
    """Return all buckets, ordered so that neighbours make large classes.

    Buckets with neighbouring numbers are far apart in the order, because keys with neighbouring numbers are
    often new and busy at the same time.
    """
    order = [0]
    step = 1
    while step < buckets:
        prime = next(each for each in divisors(buckets // step) if each > 1)
        order = [bucket + part * step for bucket in order for part in range(prime)]
        step *= prime
    return tuple(order)


def node_of(who: str) -> str:
    """Return the broker's node in the name of a connection, ``member@node#number``; "" if there is none."""
    return who.rpartition("#")[0].rpartition("@")[2] if "@" in who else ""


def shares(weights: Mapping[str, float], buckets: int, held: Mapping[str, int]) -> dict[str, int]:
    """Return the number of buckets of each member, in proportion to the weights, by largest remainder.

    Args:
        weights: weight by member.
        buckets: number of buckets.
        held: buckets held at present; of equal remainders, the member with more buckets keeps one more.
    """
    total = sum(weights.values())
    exact = {who: buckets * weights[who] / total for who in sorted(weights)}
    share = {who: int(each) for who, each in exact.items()}
    by_remainder = sorted(exact, key=lambda who: (round(share[who] - exact[who], 9), -held.get(who, 0), who))
    for who in by_remainder[: buckets - sum(share.values())]:
        share[who] += 1
    return share
