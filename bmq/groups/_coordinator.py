# SPDX-License-Identifier: Apache-2.0
"""Exclusive groups: the agreement of :mod:`bmq.groups._protocol` over a control queue.

The control queue has a session of its own: on the connection of the data queue, orders would wait behind
all messages that the application has not taken yet. The two connections share their fate: if one is lost, the
member drops the other one. Only then does the broker give the unconfirmed messages, or the crown, to other
members. To close the queue is not enough: a real broker of a cluster may crash when a client opens a queue
again right after closing it.

The coordinator has one life for each pair of connections: a new name, three subscriptions of the control
queue, and reports until a connection is lost. The subscriptions are the mailbox of this name, the own
messages that nobody else receives, and the messages for a candidate or a leader.
Each bucket has a lane whose task performs the actions of the member in turn. The bundles follow the buckets:
a bucket leaves its bundle at once, and joins a bundle after some time.

Rejected: a member that receives the messages of a dead member at once, and hands them out after the lease.
Mail for the dead member that returns to the leader proves the death only at a single node. While a new
primary restores subscriptions, mail for living members returns too, and their messages would be divided.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from bmq import _world, events
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._turn import look_at
from bmq.client.options import SessionOptions
from bmq.conventions import GROUP_MEMBER as TO
from bmq.conventions import GROUP_SENDER as FROM
from bmq.conventions import derived_guid
from bmq.errors import ConnectionFailed, Error, ProtocolError, QueueClosed, SessionClosed, UsageError
from bmq.groups._bundles import TOP, Bundles
from bmq.groups._lanes import WIDEST, BucketLane, Dispatcher, ignoring_errors, repeated
from bmq.groups._protocol import (
    Action,
    AssignmentInput,
    AssignmentState,
    Candidate,
    CandidateInput,
    CandidateState,
    Crown,
    Effect,
    Leader,
    Member,
    Order,
    Phase,
    Report,
    Request,
)
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.events import CloseChannel

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.client.posts import Ack
    from bmq.client.queue import Queue
    from bmq.client.session import Session

logger = Log("bmq.groups")

# An expression that matches nothing, above all buckets. A real broker stops delivery to the whole queue if a
# message matches the first expression that the broker evaluates, and the window of this expression is full. A
# bucket that changes hands has a window of 0.
_NOTHING: Final = "exists(bmq_none) && bmq_none % 1 == 1"
# Priorities in the control queue. The term is added to the priority of a leader: two crowns of a dead
# claimant may reach two candidates, and the leader of the higher term then receives every report and crown.
# Twice the term: whoever deposes a leader is between this leader and the next one.
_MAILBOX, _LEADER, _CANDIDATE, _OWN = TOP, 3, 2, 1
# Seconds between two looks of a leader at the leases, at least.
_SHORTEST_PAUSE: Final = 0.01
# The first fence of a group counts the seconds since 2025, so that the fences of a group that starts
# anew with an empty control queue are higher than before.
_EPOCH: Final = 1_735_689_600
# The lease of the leader, in leases of a member: clocks may differ a little in speed.
_DRIFT: Final = 1.25
# Part of the lease. A member without an answer reports again after twice the time, and then after doubled
# pauses, up to a third of the lease.
_FIRST_STEP: Final = 0.01
# Part of the lease after which a new member becomes a candidate: the crown of the last member may wait in the
# queue, and hold back the reports of the new member.
_FIRST_STAND: Final = 0.06
# Part of the lease after which a member without an order looks whether the broker delivers, by a message to
# itself; and part of the lease until it deposes the leader, from the return of the first such message on.
_LOOK_AFTER: Final = 0.5
_DEPOSE_AFTER: Final = 1.0
# An election takes its time: a member that no leader has answered yet is more patient.
_PATIENCE: Final = 3.0
# A leader collects reports, and answers each member once. After the report of a new member, the leader waits
# for a part of the lease, and for a number of seconds at most: members often start together, and each bucket
# should move once. After the report of a known member, the pause is a number of seconds for each member that
# is known, because many members report at a change.
_GATHER_PART: Final = 0.1
_GATHER_MOST: Final = 0.2
_GATHER_EACH: Final = 0.001
# Two clocks that are synchronised differ by less, in seconds.
_CLOCKS_DIFFER: Final = 2.0
# Seconds for the departure, at least: the broker may be silent.
_LEAVE_WITHIN: Final = 5.0
# Buckets join bundles together: at most once in a part of the lease, and in a number of seconds.
_BUNDLE_PART: Final = 0.1
_BUNDLE_MOST: Final = 1.0
# Bytes of a message that names as many members as a crown may.
_LONGEST: Final = 2 * 1024 * 1024


_decoder: msgspec.json.Decoder[Report | Order | Crown] = msgspec.json.Decoder(Report | Order | Crown)


def encoded(message: Report | Order | Crown, group: str = "") -> bytes:
    """Return the payload of a control message, with the present time of the sender's clock."""
    return msgspec.json.encode(msgspec.structs.replace(message, group=group, time=_world.time()))


def decoded(payload: bytes) -> Report | Order | Crown:
    """Return the message of a payload.

    Raises:
        ProtocolError: the payload is not a control message of this version, or a value is out of its range.
    """
    try:
        if len(payload) > _LONGEST:
            raise ValueError(f"it has {len(payload)} bytes")
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{payload[:100]!r} is not a control message of a group: {error}") from error


class Coordinator:
    """The member's part, and if elected the leader's part, of an exclusive group.

    Args:
        dispatcher: runs the tasks of the member.
        lanes: the buckets.
        bundles: the bundles of the buckets.
        control_uri: URI of the control queue.
        weight: share relative to the other members.
        lease: seconds until the buckets of a silent member are assigned again.
        take_over: seconds until the buckets of a silent member are taken over, although it may be connected;
            None for never.

    Attributes:
        bundles: see above.
        ceiling: a subscription to nothing, with the highest priority.
    """

    # The control queue, and the consumer of the messages for a candidate or a leader.
    _control: Queue
    _candidate: Consumer
    # Watches the session of the control queue.
    _watching: asyncio.Task[None]

    def __init__(
        self,
        dispatcher: Dispatcher,
        lanes: list[BucketLane],
        bundles: Bundles,
        control_uri: str,
        weight: float,
        lease: float,
        take_over: float | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._queue = dispatcher.queue
        self._name = dispatcher.name
        self._control_uri = control_uri
        # Equal in all members with the same key, number of buckets and expression.
        self._text = lanes[0].consumer.expressions[0]
        self._lease = lease
        self._lanes = lanes
        self.bundles = bundles
        self._bundling: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._member = Member(self._new_name(), weight, lease, take_over)
        self._leader = Leader(len(lanes), lease * _DRIFT, None if take_over is None else take_over * _DRIFT)
        self._crown: Message | None = None
        # Whether a message was skipped since this member last had a crown.
        self._skipped = False
        self._log = LogLimit(logger)
        self._candidacy = Candidate(self._member.who)
        self._asking: asyncio.Task[None] | None = None
        # Ends a state of the candidate that has lasted too long, or reports again.
        self._ending: asyncio.TimerHandle | None = None
        # The latest report of each sender that arrived before this member leads.
        self._early: dict[str, Report] = {}
        # Reports that the leader processes together, soon. Each counts: one may show that a bucket was given
        # back, before the next one shows that its sender has the bucket again.
        self._gathered: list[Report] = []
        self._gathering: asyncio.Handle | None = None
        self._life: asyncio.Task[None] | None = None
        # Since when the leader gives this member no bucket, as far as was asked.
        self._spare_since: float | None = None
        # Whether the member has a life on both connections.
        self._alive = False
        # Cleared while the data queue is suspended, or not reopened yet: the member is no member then.
        self._in_service = asyncio.Event()
        self._in_service.set()
        self._reporting: asyncio.Handle | None = None
        # When the latest report was sent, and the latest own report that has come back.
        self._reported_at = self._returned = -math.inf
        # Whether the leader's clock differs.
        self._clocks_differ = False
        # When the latest order arrived, or the life began; and when the first message to this member itself
        # has come back since.
        self._led_at = -math.inf
        self._delivered_at: float | None = None
        # When this member deposed a leader: when a message to itself came back before.
        self._silent_at: float | None = None
        # The silent members that were logged.
        self._told: dict[str, None] = {}
        # When the crown was posted last, when the next report is due, and the seconds between two reports.
        self._since = self._due = self._step_size = 0.0
        # The session of the control queue.
        self._session: Session | None = None
        self.ceiling = self._queue.subscribe(_NOTHING, priority=TOP, max_unconfirmed_messages=1)
        for lane in lanes:
            lane.coordinator = self

    def _new_name(self) -> str:
        return f"{self._name[:100]}@{self._node()}#{_world.token_hex(6)}"

    def _node(self) -> str:
        """Return the broker's node of the present or latest connection: host and port."""
        session = self._queue.session
        broker = session._connection.core.broker
        host = broker.name.rpartition(" on ")[2] if broker is not None else ""
        node = f"{host}:{session.address.rpartition(':')[2]}"
        return re.sub(r"[^\w.:-]", "_", node, flags=re.ASCII)[-60:]

    # for the lanes and the group

    def hands_out(self, bucket: int) -> bool:
        """Whether messages of a bucket may be handed out now."""
        return self._member.hands_out(bucket, self._loop.time())

    @property
    def settled(self) -> bool:
        """Whether the lease is valid, and every bucket of this member is handed out.

        A new member gets its buckets one by one, and those of a dead member after the leader's lease. A
        member without buckets for two leases is a spare member.
        """
        now, assignments = self._loop.time(), self._member.assignments.values()
        if assignments or now >= self._member.lease_until:
            self._spare_since = None
            return now < self._member.lease_until and all(each.here for each in assignments)
        self._spare_since = self._spare_since if self._spare_since is not None else now
        return now - self._spare_since >= 2 * self._lease

    def state(self, bucket: int, fence: int) -> AssignmentState:
        """Return the state of a bucket under a fence."""
        assignment = self._member.assignments.get(bucket)
        return AssignmentState.GONE if assignment is None or assignment.fence != fence else assignment.state

    def fence(self, bucket: int) -> int:
        """Return the fence of an owned bucket.

        Raises:
            UsageError: the bucket is not owned.
        """
        assignment = self._member.assignments.get(bucket)
        if assignment is None or not assignment.here:
            raise UsageError(
                f"bucket {bucket!r} is not owned by this member, which owns "
                f"{sorted(self._member.assignments)}: ask for the fence of a bucket while handling its "
                "message"
            )
        return assignment.fence

    @property
    def behind(self) -> int:
        """How many buckets may have to wait for a silent former owner."""
        assignments = self._member.assignments.values()
        return sum(bool(each.behind) and not (each.alone or each.raised) for each in assignments)

    @property
    def granted(self) -> float | None:
        """Seconds since the latest order; None without one."""
        return self._loop.time() - self._led_at if self._member.seen > (0, 0) else None

    def arrived(self, bucket: int) -> None:
        """Note a message that arrived by the bucket's own subscription."""
        if self._member.arrived(bucket) and self._bundling is None:
            pause = min(_BUNDLE_MOST, _BUNDLE_PART * self._lease)
            self._bundling = self._loop.call_later(pause, self._bundle)

    def _bundle(self) -> None:
        """Ask for bundles of the present buckets."""
        self._bundling = _cancelled(self._bundling)
        self.bundles.change(self._member.bundled)

    def done(self, effect: Effect, what: AssignmentInput) -> None:
        """Process the end of an action of a lane, and report the result."""
        self._apply(self._member.done(effect.bucket, effect.fence, what))
        self._report_soon()

    def _apply(self, effects: list[Effect]) -> None:
        if any(effect.do in (Action.SHUT, Action.FORGET) for effect in effects):
            self._bundle()  # before the windows are closed
        for effect in effects:
            self._lanes[effect.bucket].act(effect)

    # life

    async def join(self) -> None:
        """Connect, open the control queue, and begin a life. The data queue is in service.

        Raises:
            Error: no connection, or the control queue was refused.
        """
        try:
            self._session = session = await _connect_beside(self._queue.session)
            self._watching = self._dispatcher.spawn(self._watch(session.events()))
            self._control = await session.open_queue(self._control_uri, read=True, write=True)
            await self._begin()
        except Error as error:
            error.add_note(
                f"{self._control_uri} is the control queue, which each member of the group reads and writes "
                "on a second connection: control_queue= names another queue"
            )
            raise

    async def _begin(self) -> None:
        """Begin a life: the data queue is in service, and the control queue open."""
        control = self._control
        who = self._member.who = self._new_name()  # perhaps at another node than the former connection
        mailbox = control.subscribe(f'{TO} == "{who}"', priority=_MAILBOX, **WIDEST)
        own = control.subscribe(f'{FROM} == "{who}"', priority=_OWN, **WIDEST)
        candidate = self._candidate = control.subscribe(_NOTHING, priority=_CANDIDATE, **WIDEST)
        await asyncio.gather(mailbox.open(), own.open(), candidate.open())
        self._candidacy = Candidate(who)
        self._led_at, self._delivered_at, self._silent_at = self._loop.time(), None, None
        self._ending = self._loop.call_later(_FIRST_STAND * self._lease, self._step, CandidateInput.WAKE)
        self._life = self._dispatcher.spawn(self._live((mailbox, own, candidate)))
        self._alive = True

    async def _watch(self, watching: AsyncIterator[events.SessionEvent]) -> None:
        """Drop the connection of the data queue if the connection of the control queue is lost."""
        async for event in watching:
            if isinstance(event, events.ConnectionLost) and self._alive:
                why = f"the connection of {self._control_uri} was lost ({event.reason})"
                _drop_connection(self._queue.session, why)
                # At once: the session restores the subscriptions of this life otherwise, and there is no
                # event of the data queue's session if that connection was lost earlier.
                self.lost()
        self._dispatcher.fail(SessionClosed(f"the session of {self._control_uri} is over"))

    def serve(self, in_service: bool) -> None:
        """Note whether the data queue is in service: a next life begins only then."""
        if in_service:
            self._in_service.set()
        else:
            self._in_service.clear()

    def lost(self) -> None:
        """Forget all buckets, whose subscriptions must not be restored, and begin a new life later."""
        if self._alive:
            self._alive = False
            for lane in self._lanes:
                self._dispatcher.spawn(ignoring_errors(lane.consumer.pause()))
            self._apply(self._member.lost(self._new_name()))
            self._resign()
            self._ask_no_more()
        life, self._life = self._life, None
        if life is not None:
            life.cancel()
            session = self._session
            assert session is not None
            _drop_connection(session, f"{self._queue.uri} is out of service")
            for consumer in self._control.consumers:
                self._dispatcher.spawn(ignoring_errors(consumer.close()))
            self._life = self._dispatcher.spawn(self._again(session))

    async def _again(self, session: Session) -> None:
        """Begin the next life, as soon as the data queue is in service and the broker answers."""
        while True:
            await self._in_service.wait()
            try:
                if self._control.closed:  # the broker refused to open the queue again
                    self._control = await session.open_queue(self._control_uri, read=True, write=True)
                await self._begin()
            except SessionClosed:
                return
            except Error as error:
                logger.warning("%s cannot rejoin the group of %s yet: %s", self._name, self._queue.uri, error)
                await asyncio.sleep(0.5)
            else:
                return

    async def _live(self, consumers: Sequence[Consumer]) -> None:
        tasks = [self._dispatcher.spawn(self._read(each)) for each in consumers]
        try:
            self._since = self._due = self._loop.time()
            self._step_size = self._lease * _FIRST_STEP
            while True:
                pause = self._lease * _FIRST_STEP
                with self._log.surviving(f"a round of {self._name} in the group of {self._queue.uri}"):
                    pause = self._look(self._loop.time())
                await asyncio.sleep(max(pause, _SHORTEST_PAUSE))
        finally:
            for task in tasks:
                task.cancel()

    def _look(self, now: float) -> float:
        """Report and lead as far as due; return the seconds until the next look."""
        if self._give_way(now):
            return 0.0
        if now >= self._due:
            # While the members elect a leader, a report may reach a member that does not lead.
            led, longest = self._member.seen > (0, 0), self._lease / 3
            self._step_size = longest if led else min(2 * self._step_size, longest)
            self._due = now + self._step_size
            self._report()
        deadline = self._leader.deadline()
        if now >= deadline > self._reported_at:
            # The return of the report shows that reports of members would have arrived, too.
            self._report()
        self._tick()
        # A leader whose fences are used up assigns nothing.
        renewed = 4 if self._leader.fence < self._leader.limit else 1
        if self._crown is not None and now - self._since >= renewed * self._lease:
            self._since = now
            self._post(self._leader.renewed(self._member.who))
        deadline = self._leader.deadline()
        return (self._due if deadline <= now else min(self._due, deadline)) - now

    async def _read(self, consumer: Consumer) -> None:
        with contextlib.suppress(QueueClosed):
            async for message in consumer:
                with self._log.surviving(f"a message of control queue {self._control_uri}"):
                    await self._handle(message)

    async def _handle(self, message: Message) -> None:
        try:
            what = decoded(message.data)
        except ProtocolError as error:
            self._skip(message, str(error))
            return
        if isinstance(what, Crown):
            await self._crowned(message, what)
            return
        message.confirm()
        if what.group != self._text and not (isinstance(what, Report) and what.leaving):
            self._differs(what)
        elif why := self._doubt(what):
            self._skip(message, why)
        elif isinstance(what, Order):
            self._ordered(what)
        elif self._leads:
            self._reported(what)
        else:
            await self._stray(what, again=message.redelivered)

    def _skip(self, message: Message, why: str) -> None:
        """Ignore a message that no member has sent. It may have taken the place of the group's crown."""
        self._skipped = True
        self._log.warning("skipped", "a message of control queue %s is skipped: %s", self._control_uri, why)
        message.confirm()

    def _doubt(self, what: Report | Order | Crown) -> str:
        return self._leader.doubt(what, self._member.seen[0], int(_world.time()) - _EPOCH)

    def _differs(self, what: Report | Order) -> None:
        """A peer has different buckets: only the leader of the two is a member."""
        if isinstance(what, Report):
            if self._leader.phase is not Phase.NONE:
                self._post(Order(what.who, 0, 0, 0, {}))
        elif what.who == self._member.who:
            self._dispatcher.fail(
                UsageError(
                    f"the group of {self._queue.uri} has the first bucket {what.group!r}, and this member "
                    f"{self._text!r}: give all members the same key, buckets and expression, and stop all "
                    "members before you change these"
                )
            )

    # the member

    def _report_soon(self) -> None:
        if self._reporting is None:
            self._reporting = self._loop.call_soon(self._report)

    def _report(self) -> None:
        self._reporting = _cancelled(self._reporting)
        if self._alive:
            now = self._reported_at = self._loop.time()
            report = self._member.report(now, stands=self._candidacy.stands)
            self._post(report)
            for who in self._told:
                self._post(Order(who, 0, 0, 1, {}))
            if now - self._led_at > _LOOK_AFTER * self._lease and not self._leads:
                self._post(Order(report.who, 0, 0, report.seq, {}))

    def _ordered(self, order: Order) -> None:
        now = self._loop.time()
        if order.who != self._member.who:
            if self._leader.mail_returned(order.who):
                logger.info("member %s of the group of %s is gone", order.who, self._queue.uri)
            return
        if not order.term:
            if order.seq:
                self._unled(order.seq, now)
            else:
                self._step(CandidateInput.SMALLER)
            return
        if self._give_way(now):
            return
        self._compare_clocks(order, now)
        if (order.term, order.number) > self._member.seen:
            self._led_at, self._delivered_at = now, None
        self._leader.outranked(order.term)
        effects = self._member.order(order)
        self._apply(effects)
        self._step(CandidateInput.WAKE)
        for lane in self._lanes:
            lane.allow()
        if effects or order.buckets.keys() - self._member.assignments.keys():
            self._report_soon()

    def _compare_clocks(self, order: Order, now: float) -> None:
        """Log once that the leader's clock shows another time than this process's clock.

        The leader has sent the order after the latest report of this member.
        """
        if self._leads or order.seq != self._member.seq:
            return
        ahead = order.time - _world.time()
        ahead = max(ahead, 0.0) or min(ahead + now - self._reported_at, 0.0)
        differ = abs(ahead) > _CLOCKS_DIFFER
        if differ and not self._clocks_differ:
            logger.warning(
                "the clocks of %s and of %s, the leader of the group of %s, differ: the leader's clock is "
                "%.0f s %s. Due times and deadlines of messages are wrong by the difference",
                self._name,
                order.leader,
                self._queue.uri,
                abs(ahead),
                "ahead" if ahead > 0 else "behind",
            )
        self._clocks_differ = differ

    def _give_way(self, now: float) -> bool:
        """Give up both connections if other members may have messages of this member's buckets."""
        if not self._alive or not self._member.gone(now):
            return False
        why = f"{self._name} was silent for longer than take_over_after, and others have its buckets"
        _drop_connection(self._queue.session, why)
        self.lost()
        return True

    def _unled(self, seq: int, now: float) -> None:
        """A message to this member itself has come back; the report before it has no answer yet."""
        if self._leads or self._member.sent(seq) == -math.inf:
            return
        if self._delivered_at is None:
            self._delivered_at = now
            return
        after = _DEPOSE_AFTER if self._member.seen > (0, 0) else _PATIENCE
        if now - self._delivered_at >= after * self._lease:
            self._depose(now)

    def _depose(self, now: float) -> None:
        """Take the place of a leader that does not answer although the broker delivers."""
        crown = self._member.deposing_crown(int(_world.time()) - _EPOCH, self._leader.limit)
        logger.warning(
            "%s, the leader of the group of %s, has not answered for %.1f s: %s stands in for it",
            self._member.leader or "a member without a name",
            self._queue.uri,
            now - self._led_at,
            self._name,
        )
        self._silent_at = self._delivered_at
        self._led_at, self._delivered_at = now, None
        self._ask_no_more()
        self._candidacy.depose()
        self._asking = self._dispatcher.spawn(self._ask_for(crown))

    async def _ask_for(self, crown: Crown) -> None:
        """Receive reports and crowns before the leader, and post a crown; at once, or not at all."""
        priority = min(_LEADER + 2 * crown.term + 1, _MAILBOX - 1)
        with contextlib.suppress(Error):
            await self._candidate.configure(f'{FROM} != "{self._member.who}"', priority=priority)
            # The broker keeps one of the crowns of members that do so at the same time.
            self._post(crown, derived_guid("bmq.groups", self._control_uri, "crown", str(crown.term)))
        self._ending = self._loop.call_later(self._lease / 3, self._step, CandidateInput.WAKE)

    async def close(self) -> None:
        """Report the departure, and close the control queue. The data queue is closed already."""
        session, life = self._session, self._life
        self._session = self._life = None
        if session is None:
            return
        self._alive = False
        self._ask_no_more()
        self._reporting = _cancelled(self._reporting)
        ending = [self._watching] if life is None else [self._watching, life]
        for task in ending:
            task.cancel()
        await asyncio.wait(ending)
        try:
            with contextlib.suppress(Error, TimeoutError):
                # After a lease, the other members need no report.
                async with asyncio.timeout(max(self._lease, _LEAVE_WITHIN)):
                    if session.state is SessionState.STARTED:
                        if life is not None:
                            await self._leave()
                        await session.close()
        finally:
            session._connection.give_up()
        self._member.lost(self._new_name())
        self._bundle()
        self._resign()

    async def _leave(self) -> None:
        left = self._member.report(self._loop.time(), leaving=True)
        orders = self._answers([*self._taken(), left])
        # The leader itself cannot rely on reading its own report.
        crown = self._leader.left() if self._crown is not None else None
        messages: list[Report | Order | Crown] = [left, *orders, *([] if crown is None else [crown])]
        for what in messages:
            await self._posted(what)
        if crown is not None and self._crown is not None:
            self._crown.confirm()
        await self._control.close(at_once=True)

    # the candidate

    def _step(self, what: CandidateInput) -> None:
        """Process an input of the candidate."""
        candidacy = self._candidacy
        before = candidacy.state
        ask = candidacy.fire(what, self._member.seq)
        if candidacy.state is before:
            return
        self._ending = _cancelled(self._ending)
        if ask is not None:
            self._asking = self._dispatcher.spawn(self._ask(ask))
        elif candidacy.state in (CandidateState.YIELDED, CandidateState.CANDIDATE, CandidateState.POSTED):
            self._probe(_FIRST_STEP * self._lease)

    def _probe(self, step: float) -> None:
        """Report until an order arrives: to the candidate that may lead, or as a proof on the return."""
        candidate = self._candidacy.state is CandidateState.CANDIDATE
        if candidate and self._member.seen > (0, 0):
            return
        if 2 * step <= self._lease / 3:
            step *= 2
        elif not candidate:
            self._step(CandidateInput.WAKE)
            return
        self._report()
        self._ending = self._loop.call_later(step, self._probe, step)

    async def _ask(self, ask: Request) -> None:
        """Change the candidate's subscription, however often the broker refuses."""
        candidate, who = self._candidate, self._member.who
        expression = {
            Request.OPEN: f'{FROM} != "{who}"',
            Request.NARROW: f'{FROM} != "{who}" && {FROM} != ""',
            Request.CLOSE: _NOTHING,
        }[ask]
        try:
            where = f"control queue {self._control_uri}"
            await repeated(partial(candidate.configure, expression), where, ask.value)
        except QueueClosed:
            return
        await self._catch_up()
        self._step(CandidateInput.ANSWERED)

    def _ask_no_more(self) -> None:
        """The connection was lost, or the member leads or leaves."""
        asking, self._asking = self._asking, None
        if asking is not None and asking is not asyncio.current_task():
            asking.cancel()
        self._ending = _cancelled(self._ending)

    async def _catch_up(self) -> None:
        """Handle what the candidate has received so far: a crown may be among the messages."""
        while self._candidacy.state is not CandidateState.HOLDING:
            message = self._candidate.receive_nowait()
            if message is None:
                return
            await self._handle(message)

    async def _stray(self, report: Report, *, again: bool) -> None:
        """Process a report that arrived before this member leads."""
        if report.who == self._member.who:
            await self._catch_up()
        self._early[report.who] = report
        if report.who != self._member.who:
            larger = self._candidacy.heard(report.who) if report.stands else ""
            if larger == self._member.who:
                self._step(CandidateInput.SMALLER)
            elif larger:
                self._post(Order(larger, 0, 0, 0, {}))
        elif again or not self._candidacy.proves(report.seq):
            self._step(CandidateInput.RETURNED)
        else:
            self._step(CandidateInput.PROVED)
            least = int(_world.time()) - _EPOCH
            guid = derived_guid("bmq.groups", self._control_uri, "crown")
            crown = self._member.first_crown(least, self._leader.limit, lost=self._skipped)
            self._post(crown, guid)

    # the leader

    def _resign(self) -> None:
        """Forget the crown and all reports."""
        self._leader.resign()
        self._crown = None
        self._early = {}
        self._taken()

    def _taken(self) -> list[Report]:
        """Return the reports collected so far, and collect no longer."""
        reports, self._gathered = self._gathered, []
        self._gathering = _cancelled(self._gathering)
        return reports

    async def _crowned(self, message: Message, crown: Crown) -> None:
        if crown.who != self._member.who and (why := self._doubt(crown)):
            self._skip(message, why)
            return
        claim = self._leader.crown(self._member.who, crown, self._loop.time())
        if claim is None and (crown.who, crown.term) != (self._member.who, self._leader.term):
            message.confirm()  # from before
            return
        former, self._crown, self._skipped = self._crown, message, False
        if claim is not None:
            self._leader.former = self._member.leader
            if not crown.who and crown.term and crown.members is None:
                self._leader.deposed = self._member.leader or "a former leader"
                self._leader.deposed_at = self._silent_at or self._loop.time()
            self._step(CandidateInput.CROWN)
            self._ask_no_more()
            with contextlib.suppress(Error):
                priority = min(_LEADER + 2 * claim.term, _MAILBOX - 1)
                await self._candidate.configure("", priority=priority)
            self._post(claim)
        # The group keeps a crown whatever happens to the post: the present one is not confirmed. A new
        # primary may deliver the present one again.
        if former is not None and former.guid != message.guid:
            former.confirm()
        if self._leads:
            early, self._early = self._early, {}
            self._send(self._answers([*early.values()]))

    def _answers(self, reports: list[Report]) -> list[Order]:
        """Process reports; return the last order for each member, which has its full state."""
        now = self._loop.time()
        credible = [each for each in reports if not self._doubt(each)]
        return [*{order.who: order for each in credible for order in self._leader.report(each, now)}.values()]

    def _answer(self) -> None:
        """Process the collected reports, as late as messages may be."""
        reports = self._taken()
        if self._leads:
            orders = self._answers(reports)
            own = [self._member.sent(report.seq) for report in reports if report.who == self._member.who]
            self._returned = max(self._returned, *own, -math.inf)
            self._send(orders)
            self._tick()
        else:  # another crown arrived meanwhile
            self._early.update((report.who, report) for report in reports)

    def _reported(self, report: Report) -> None:
        self._gathered.append(report)
        if self._gathering is None:
            members = self._leader.known
            pause = min(_GATHER_MOST, self._lease * _GATHER_PART)
            if not members or report.who in members:
                pause = min(pause, _GATHER_EACH * len(members))
            self._gathering = self._loop.call_later(pause, self._answer)

    @property
    def _leads(self) -> bool:
        return self._leader.phase in (Phase.COLLECTING, Phase.LEADING)

    def _tick(self) -> None:
        """Assign the buckets of silent members, and log these members once."""
        self._send(self._leader.tick(self._returned))
        silent = self._leader.silent()
        for who in silent.keys() - self._told.keys():
            since = min(each.since for each in self._leader.behind.values() if each.who == who)
            logger.warning(
                "member %s of the group of %s is silent for %.1f s and holds %d buckets: the remaining "
                "members take them over. Their messages wait while the silent member is connected",
                who,
                self._queue.uri,
                self._loop.time() - since,
                len(silent[who]),
            )
        for who in self._told.keys() - silent.keys():
            logger.info("the group of %s waits for member %s no longer", self._queue.uri, who)
        if silent.keys() - self._told.keys():
            self._report_soon()  # is the member's connection over?
        self._told = dict.fromkeys(silent)

    def _send(self, orders: list[Order]) -> None:
        for order in orders:
            self._post(order)

    def _post(self, what: Report | Order | Crown, guid: str | None = None) -> None:
        """Post a message, which may get lost: the next report or order repeats the content."""
        try:
            self._posted(what, guid).add_done_callback(look_at)
        except Error as error:
            logger.debug("%s did not post to %s: %s", self._name, self._control_uri, error)

    def _posted(self, what: Report | Order | Crown, guid: str | None = None) -> asyncio.Future[Ack]:
        properties = {
            TO: what.who if isinstance(what, Order) else "",
            FROM: "" if isinstance(what, Crown) else self._member.who,
        }
        return self._control.post_nowait(encoded(what, self._text), properties=properties, guid=guid)


def _cancelled(handle: asyncio.Handle | None) -> asyncio.TimerHandle | None:
    """Cancel a handle, if any; return None."""
    if handle is not None:
        handle.cancel()
    return None


async def _connect_beside(session: Session) -> Session:
    """Connect a further session with the addresses and options of a session, without any interceptors.

    For messages that must not wait behind the application's. Its window has room for the messages that a
    leader posts to many members at once.

    Raises:
        ConnectionFailed, NegotiationError, AuthenticationError: as for :class:`bmq.connect`.
    """
    usual = SessionOptions()
    options = replace(
        session.options,
        log_stats_every=0.0,
        busy_poll=0.0,
        max_unacked_messages=usual.max_unacked_messages,
        max_unacked_bytes=usual.max_unacked_bytes,
    )
    beside = type(session)(session._connection.dialer.broker, options, interceptors=None)
    await beside._connection.connect()
    return beside


def _drop_connection(session: Session, why: str) -> None:
    """Drop the connection, if any, so that the session reconnects."""
    session._connection.handle(CloseChannel(ConnectionFailed(why)))
