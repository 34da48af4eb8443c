# SPDX-License-Identifier: Apache-2.0
"""Walks over all events of a client core, which check the invariants at each step."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from bmq.errors import AckStatus, QueueClosed, SessionClosed, StateError, StatusCategory, UsageError
from bmq.protocol.client.core import CoreOptions, SessionState
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.control import CloseQueue, ConfigureStream, ControlMessage, Disconnect, OpenQueue, QueueFlags
from bmq.wire.put import DecodedPut
from tests.fakes.broker import FEATURES
from tests.protocol.bench import READ, WRITE, Bench, guid, held

__all__ = ["BEFORE_DRAINING", "OLD", "URIS", "Walk"]


URIS = ["bmq://d/a", "bmq://d/b", "bmq://d/f", "bmq://d/f?id=foo", "bmq://d/f?id=bar"]
OLD = "PROTOCOL_ENCODING:JSON"
SUCCESS = AckStatus.SUCCESS
ENDING = {SessionState.SEALED_LOST, SessionState.CLOSING, SessionState.CLOSED}
BEFORE_DRAINING = {SessionState.STARTING, SessionState.STARTED, SessionState.RECONNECTING}
TAKES_POSTS = {
    QueueState.OPEN,
    QueueState.RECONFIGURING,
    QueueState.LOST,
    QueueState.REOPENING,
    QueueState.RESTORING,
    QueueState.REOPEN_DELAYED,
    QueueState.REOPEN_OVERDUE,
    QueueState.RESTORE_DELAYED,
    QueueState.REOPENED,
}
NOT_YET_OPEN = {QueueState.BEHIND, QueueState.WAITING, QueueState.OPENING, QueueState.CONFIGURING}


class Walk:
    """A session from beginning to end.

    Args:
        drop: whether the client drops redeliveries of confirmed messages.
        patient: whether a broker answers all requests at the end.
        opened: queues that are open at the beginning.
        suspends: whether these queues are suspended on an unhealthy host.
    """

    def __init__(
        self, reopen_timeout: float, drop: bool, patient: bool, opened: list[str], suspends: bool
    ) -> None:
        self.bench = Bench(CoreOptions(reopen_timeout=reopen_timeout, drop_confirmed_redeliveries=drop))
        self.drop = drop
        self.patient = patient
        self.steps = 0
        self.all: list[QueueCore] = []
        self.opening: dict[Any, QueueCore] = {}
        self.tokens: set[Any] = set()
        self.abandoned: set[Any] = set()
        self.subscriptions = 0
        self.posted: dict[int, tuple[QueueCore, float]] = {}
        self.tokens_of: dict[Any, int] = {}  # the posts of each token
        self.acked: list[DecodedPut] = []
        self.confirmed: set[bytes] = set()
        # The time of the last confirmation of each message, while a redelivery may be recognised.
        self.remembered: dict[tuple[QueueCore, bytes], float] = {}
        # The expressions by sId, valid for deliveries on this connection.
        self.streams: dict[QueueCore, dict[int, str]] = {}
        self.asked: dict[int, QueueCore] = {}
        self.new_connection()
        for uri in opened:
            self.open(uri, READ | WRITE, 1, 30, suspends)
        if opened:
            self.connect(True)
            self.answer_everything()

    # ---- actions of users

    def open(self, uri: str, flags: QueueFlags, count: int, timeout: float, suspends: bool) -> None:
        token = self.token("open")
        try:
            queue = self.bench.begin_open(
                uri,
                READ if "?" in uri else flags,
                token=token,
                subscriptions=self.expressions(count),
                timeout=timeout,
                suspends=suspends,
            )
        except (StateError, SessionClosed):
            self.tokens.discard(token)
            return
        self.opening[token] = queue
        self.remembered = {key: when for key, when in self.remembered.items() if key[0] is not queue}
        if queue not in self.all:
            self.all.append(queue)

    def abandon(self, queue: QueueCore) -> None:
        for token, opening in list(self.opening.items()):
            if opening is queue:
                del self.opening[token]
                self.abandoned.add(token)
                self.bench.core.abandon_queue(queue, self.bench.now, self.bench.now + 10)
                self.bench.pump()

    def configure(self, queue: QueueCore, count: int, timeout: float, pump: bool) -> None:
        queue = self.newest(queue)
        if not queue.readable:
            return
        token = self.token("configure")
        wanted = self.bench.subscriptions(self.expressions(count))
        try:
            self.bench.core.configure_queue(queue, wanted, token, self.bench.now + timeout)
        except QueueClosed:
            self.tokens.discard(token)
        else:
            assert queue.subscriptions.wanted is wanted
        if pump:
            self.bench.pump()

    def leave(self, queue: QueueCore) -> None:
        queue.leaving = True

    def close(self, queue: QueueCore, timeout: float, at_once: bool) -> None:
        token = self.token("close")
        try:
            self.bench.close(queue, token=token, timeout=timeout, at_once=at_once)
        except QueueClosed:
            self.tokens.discard(token)

    def post(self, queue: QueueCore, count: int, how: str, pump: bool) -> None:
        together = how == "together"
        queue = self.newest(queue)
        numbers = range(len(self.posted) + 1, len(self.posted) + 1 + count)
        usable = queue.state in TAKES_POSTS and queue.writable and not queue.closing and not queue.suspended
        try:
            if together:
                self.bench.core.post_many(
                    queue, [(guid(n), b"%d" % n, 1, 0, 0) for n in numbers], numbers[0], self.bench.now
                )
            else:
                for n in numbers:
                    self.bench.core.post(queue, guid(n), b"%d" % n, n, self.bench.now)
        except (UsageError, StateError):
            assert not usable, f"a usable queue refused a post: {queue.state}"
        else:
            assert usable, f"a queue took a post: {queue.state}"
            self.posted.update(dict.fromkeys(numbers, (queue, self.bench.now)))
            self.tokens_of.update({numbers[0]: count} if together else dict.fromkeys(numbers, 1))
        if pump:
            self.bench.pump()

    def confirm(self, queue: QueueCore, number: int, together: bool) -> None:
        if queue.state in NOT_YET_OPEN:
            return  # no consumer has the message yet
        self.confirmed.add(guid(number))
        if queue.state is not QueueState.CLOSED and not queue.at_most_once:
            self.remembered[queue, guid(number)] = self.bench.now
        before = held(self.bench.core) if queue.state is QueueState.CLOSED else None
        if together:
            self.bench.core.confirm_many(queue, [guid(number)])
        else:
            self.bench.core.confirm(queue, guid(number))
        assert before is None or held(self.bench.core) == before, "a closed queue's confirmation is kept"
        self.bench.pump()

    def health(self, healthy: bool, pump: bool) -> None:
        self.bench.core.host_health(healthy)
        if pump:
            self.bench.pump()

    def stop(self, gracefully: bool) -> None:
        if gracefully:
            self.bench.core.stop(self.token("stop"), self.bench.now, self.bench.now + 5)
        else:
            self.bench.core.give_up("no reason", self.bench.now)
        self.bench.pump()

    def drain(self) -> None:
        self.bench.core.drain(self.bench.now)

    def seal(self) -> None:
        self.bench.core.seal(self.bench.now)

    # ---- actions of brokers

    def answer(self, which: int, how: str, dedup_ms: int, routing: int) -> None:
        if how == "everything":
            self.answer_everything()
            return
        # Mostly in order, as brokers do.
        request = self.bench.broker.requests[which % len(self.bench.broker.requests)]
        if request.r_id in self.asked:  # messages of one queue always are
            queue = self.asked[request.r_id]
            request = next(r for r in self.bench.broker.requests if self.asked.get(r.r_id or 0) is queue)
        self.bench.broker.requests.remove(request)
        if how == "accept" or isinstance(request.body, Disconnect):
            options = {}
            if isinstance(request.body, OpenQueue):
                options = {"dedup_ms": dedup_ms, "routing": routing}
            self.accepted(request)
            self.bench.send(self.bench.broker.accept(request, **options))
        elif how != "ignore":
            if isinstance(request.body, ConfigureStream):
                for s_id in subscriptions_of(request.body):
                    self.stream_of(request).pop(s_id, None)
            if how == "misunderstand":
                self.bench.send(self.bench.broker.misunderstand(request))
                return
            code = -11 if how == "refuse for now" else -1
            self.bench.send(self.bench.broker.refuse(request, StatusCategory.E_REFUSED, code=code))

    def answer_everything(self) -> None:
        while self.bench.broker.requests:
            self.note_requests()
            request = self.bench.broker.requests.popleft()
            self.accepted(request)
            self.bench.send(self.bench.broker.accept(request))
        if self.bench.core.connected:
            self.both_sides_agree()

    def both_sides_agree(self) -> None:
        """With all requests answered, the broker has the client's subscriptions."""
        for queue in self.all:
            if queue.state is QueueState.OPEN and queue in self.current:
                wanted = [] if queue.suspended else [each.expression for each in queue.subscriptions.wanted]
                assert [each.expression for each in queue.subscriptions.committed] == wanted
                assert list(self.current[queue]) == wanted, "the broker has something else"

    def ack(self, picks: list[int], status: AckStatus) -> None:
        puts = self.bench.broker.puts
        chosen = [put for i, put in enumerate(puts) if i in picks]
        self.bench.broker.puts = [put for i, put in enumerate(puts) if i not in picks]
        self.puts_seen = len(self.bench.broker.puts)
        self.acked = [*self.acked, *chosen][-20:]
        self.bench.send(self.bench.broker.ack(chosen, status))

    def push(self, queue: QueueCore, both: bool, numbers: list[int]) -> None:
        """Deliver as a broker may: each message arrives, or was confirmed before."""
        queue = self.newest(queue)
        stream = self.streams.get(queue)
        if not stream:
            return
        s_ids = tuple(sorted(stream, reverse=True)[: 2 if both else 1])
        if queue.state is QueueState.CLOSED:
            self.bench.send(
                self.bench.broker.push(queue.q_id, [(guid(n), b"%d" % n) for n in numbers], s_ids)
            )
            return
        for number in numbers:
            before, confirms = len(self.bench.received), len(self.bench.broker.confirms)
            self.bench.send(self.bench.broker.push(queue.q_id, [(guid(number), b"%d" % number)], s_ids))
            arrived = sorted(owner for owner, _ in self.bench.received[before:])
            confirmed = self.remembered.get((queue, guid(number)))
            if self.drop and confirmed is not None and (not arrived or self.bench.now - confirmed < 60):
                assert not arrived, f"{number} was confirmed, and went to {arrived}"
                self.bench.wait(0.01)  # it may wait, behind others
                again = self.bench.broker.confirms[confirms:]
                assert guid(number) in {each.guid for each in again}
                self.remembered[queue, guid(number)] = self.bench.now
            else:
                assert arrived == sorted(stream[s_id] for s_id in s_ids), f"{number} went to {arrived}"

    def say_something_unexpected(self, what: str, number: int, s_ids: list[int]) -> None:
        """Send an acknowledgement that is late, unknown, from another connection, or malformed."""
        bench = self.bench
        if what == "ack" and self.acked:
            bench.send(bench.broker.ack([self.acked[number % len(self.acked)]]))
        elif what == "push":
            bench.send(bench.broker.push(number % 10, [(guid(99), b"99")], tuple(s_ids)))
        elif what == "heartbeat":
            bench.send(Bench.pulse(response=bool(number % 2)))

    # ---- actions of networks and clocks

    def cut(self) -> None:
        self.bench.failures.clear()
        self.bench.lose()
        self.new_connection()

    def connect(self, at_once: bool, features: str = FEATURES, max_missed: int = 0) -> None:
        if not self.bench.up:
            self.bench.open_channel()
            self.new_connection()
            if not at_once:
                return
        if self.bench.broker.identity is not None and not self.bench.core.connected:
            self.bench.send(
                self.bench.broker.welcome(features=features, max_missed=max_missed, interval_ms=2000)
            )

    def wait(self, seconds: float) -> None:
        self.bench.wait(seconds)

    # ---- invariants

    def all_is_well(self) -> None:
        self.steps += 1
        self.look()
        if self.bench.up and self.bench.failures and self.steps % 3 == 0:
            self.cut()  # the transport notices the close a little later

    def look(self) -> None:
        self.note_requests()
        self.one_outcome_for_each()
        self.posts_arrive_as_they_were_posted_and_in_order()
        self.only_what_the_application_confirmed_is_confirmed()
        self.the_window_is_what_has_no_outcome()

    def one_outcome_for_each(self) -> None:
        bench = self.bench
        for token, outcomes in bench.outcomes.items():
            assert token in self.tokens_of, f"an outcome without a post: {token}"
            assert len(outcomes) <= self.tokens_of[token], f"post {token} has {outcomes}"
        for token, errors in bench.completed.items():
            assert token is None or token in self.tokens, token
            assert token is None or len(errors) == 1, (token, errors)
            assert token not in self.abandoned, f"nobody waits for {token}"
            self.opening.pop(token, None)

    def posts_arrive_as_they_were_posted_and_in_order(self) -> None:
        for put in self.bench.broker.puts[self.puts_seen :]:
            number = int(put.data)
            queue, _ = self.posted[number]
            assert (put.queue_id, put.guid) == (queue.q_id, guid(number))
            assert self.last_put[put.queue_id] < number, "posts of a queue overtake each other"
            self.last_put[put.queue_id] = number
        self.puts_seen = len(self.bench.broker.puts)

    def only_what_the_application_confirmed_is_confirmed(self) -> None:
        for confirm in self.bench.broker.confirms:
            assert confirm.guid in self.confirmed

    def the_window_is_what_has_no_outcome(self) -> None:
        core = self.bench.core
        window = core.posts
        posts = [(window.batches[number].queue, message) for message, number, _ in window.entries.values()]
        assert window.bytes == sum(len(message[1]) for _, message in posts)
        unacked = Counter(queue for queue, _ in posts)
        assert len(window) == sum(unacked.values())
        first = next((int(message[1]) for _, message in posts), None)
        assert window.oldest() == (None if first is None else self.posted[first][1])
        open_posts = len(self.posted) - sum(map(len, self.bench.outcomes.values()))
        assert len(window) == open_posts
        for queue in self.all:
            assert queue.unacked == unacked[queue]
            assert queue.unacked == 0 or queue.state is not QueueState.CLOSED
            if queue.sending:
                assert core.connected or self.bench.failures or not self.bench.up

    def end(self) -> None:
        """End the session: no post and no caller may be left waiting."""
        bench = self.bench
        if self.patient and bench.state is not SessionState.CLOSED:
            self.let_the_broker_answer()
        bench.core.stop(self.token("stop"), bench.now, bench.now + 5)
        bench.pump()
        bench.wait(5)
        if bench.up:
            bench.lose()
        self.look()
        assert bench.state is SessionState.CLOSED
        assert {t: len(o) for t, o in bench.outcomes.items()} == self.tokens_of, "posts without outcome"
        missing = self.tokens - set(bench.completed) - self.abandoned
        assert not missing, f"callers left waiting: {missing}"
        assert all(queue.state is QueueState.CLOSED for queue in self.all)
        assert len(bench.core.posts) == bench.core.posts.bytes == 0
        assert bench.core.next_deadline() is None
        assert held(bench.core) < 100, "the session holds on to what is over"

    def let_the_broker_answer(self) -> None:
        """Let the broker answer all requests, for longer than any timeout."""
        bench = self.bench
        for _ in range(18):
            if bench.up and bench.failures:
                self.cut()
            while not bench.core.connected and bench.state not in ENDING:
                self.connect(True)
                self.look()
            bench.pump()
            self.answer_everything()
            bench.ack_all()
            self.puts_seen = 0
            self.look()
            bench.wait(4)
            self.look()
        if bench.state is SessionState.SEALED_LOST:
            return  # no connection follows: posts end with the session
        self.answer_everything()  # quiet subscriptions may just have been repeated
        assert not len(bench.core.posts), "posts nobody answers"
        waiting = self.tokens - set(bench.completed) - self.abandoned
        assert not waiting, f"callers nobody answers: {waiting}"
        for queue in self.all:
            if queue.state in (QueueState.CLOSED, QueueState.ABANDONED, QueueState.OVERDUE):
                continue  # an openQueue without an answer is awaited in vain
            assert queue.state is QueueState.OPEN

    # helpers

    def note_requests(self) -> None:
        """Record the owners of requests, and the ids permitted to a broker from now on."""
        for request in self.bench.broker.requests:
            assert request.r_id is not None
            queue = self.asked.get(request.r_id)
            if queue is None and not isinstance(request.body, Disconnect):
                queue = self.asked[request.r_id] = self.whose(request)
                if isinstance(request.body, ConfigureStream):
                    self.stream_of(request).update(subscriptions_of(request.body))

    def whose(self, request: ControlMessage) -> QueueCore:
        assert request.r_id is not None
        outstanding = self.bench.core.requests._outstanding.get(request.r_id)
        if outstanding is not None and isinstance(outstanding.subject, QueueCore):
            return outstanding.subject
        body = request.body
        # A failed queue that waited behind another queue is newer than the sending queue.
        alive = [queue for queue in self.all if queue.state not in (QueueState.BEHIND, QueueState.CLOSED)]
        gone = [queue for queue in self.all if queue.state is QueueState.CLOSED]
        for queue in (*reversed(alive), *reversed(gone)):
            if isinstance(body, (OpenQueue, CloseQueue)):
                if queue.handle_parameters() == body.handle_parameters:
                    return queue
            elif isinstance(body, ConfigureStream):
                app = body.stream_parameters.app_id
                if queue.q_id == body.q_id and queue.readable and app == (queue.sub_app_id or "__default"):
                    return queue
            elif queue.q_id == body.q_id and queue.readable:  # type: ignore[union-attr]
                info = body.stream_parameters.sub_id_info  # type: ignore[union-attr]
                if queue.sub_id == (info.sub_id if info else 0):
                    return queue
        raise AssertionError(f"a request of nobody: {request}")

    def newest(self, queue: QueueCore) -> QueueCore:
        """Return the open instance of a queue, or a closed one."""
        gone = QueueState.CLOSED, QueueState.BEHIND
        alive = [each for each in self.all if each.uri == queue.uri and each.state not in gone]
        return queue if queue in alive or not alive else alive[-1]

    def stream_of(self, request: ControlMessage) -> dict[int, str]:
        assert request.r_id is not None
        return self.streams.setdefault(self.asked[request.r_id], {})

    def accepted(self, request: ControlMessage) -> None:
        body = request.body
        if isinstance(body, Disconnect):
            return
        assert request.r_id is not None
        queue = self.asked[request.r_id]
        if isinstance(body, ConfigureStream):
            new = subscriptions_of(body)
            self.current[queue] = tuple(new.values())
            self.streams[queue] = new
        elif not isinstance(body, OpenQueue):
            self.streams[queue] = {}
            self.current.pop(queue, None)

    def new_connection(self) -> None:
        self.puts_seen = 0
        self.last_put: dict[int, int] = defaultdict(lambda: -1)
        self.streams.clear()
        self.asked.clear()
        self.current: dict[QueueCore, tuple[str, ...]] = {}

    def expressions(self, count: int) -> list[str]:
        first = self.subscriptions
        self.subscriptions += count
        return [f"x > {n}" for n in range(first, first + count)]

    def token(self, kind: str) -> Any:
        token = (kind, len(self.tokens), self.steps)
        self.tokens.add(token)
        return token


def subscriptions_of(body: ConfigureStream) -> dict[int, str]:
    """Return the expected expressions of a stream, by sId, without the placeholder."""
    return {
        each.s_id: each.expression.text
        for each in body.stream_parameters.subscriptions
        if each.consumers[0].max_unconfirmed_messages
    }
