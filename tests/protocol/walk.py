"""A random walk over everything that can happen to a client core; what must hold is checked at every step."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from bmq.errors import AckStatus, QueueClosed, SessionClosed, StateError, StatusCategory, UsageError
from bmq.protocol.client.core import CoreOptions, SessionState
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.control import Disconnect, OpenQueue
from bmq.wire.put import PutMessage
from tests.protocol.bench import READ, WRITE, Bench, ScriptedBroker, guid

__all__ = ["Walk"]

URIS = ["bmq://d/a", "bmq://d/b", "bmq://d/f", "bmq://d/f?id=foo", "bmq://d/f?id=bar"]
EXPRESSIONS = ["", "x > 1", "x > 2", "x > 3"]
STATUSES = [
    AckStatus.SUCCESS,
    AckStatus.SUCCESS,
    AckStatus.SUCCESS,
    AckStatus.LIMIT_MESSAGES,
    AckStatus.UNKNOWN,
]


class Walk:
    """One session from beginning to end.

    Attributes:
        seed: what the walk is drawn from: the same seed is the same walk.
        steps: how many there were.
        done: how often each kind of step was taken.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.steps = 0
        self.done: Counter[str] = Counter()
        self.bench = Bench(
            CoreOptions(
                handshake_timeout=5,
                reopen_timeout=self.random.choice([2, 20, 60]),
                drop_confirmed_redeliveries=self.random.random() < 0.8,
            )
        )
        # Most sessions are long; some end soon, at every stage of their life.
        self.restless = self.random.choice([0.005, 0.005, 0.3])
        self.queues: list[QueueCore] = []
        self.opening: dict[Any, QueueCore] = {}
        self.tokens: set[Any] = set()
        self.abandoned: set[Any] = set()
        self.posted: dict[int, tuple[QueueCore, bytes]] = {}
        self.pushed: dict[int, int] = {}
        self.confirmed: set[bytes] = set()
        self.queue_of: dict[int, QueueCore] = {}
        self.numbers = 0
        self.acked: list[PutMessage] = []
        self._puts_seen = 0
        self._confirms_seen = 0
        self._last_put: dict[int, int] = defaultdict(lambda: -1)
        self._broker: ScriptedBroker | None = None

    # the walk

    def run(self, steps: int) -> None:
        """Take steps, then let everything end, and see that everything has."""
        for _ in range(steps):
            if self.bench.state is SessionState.CLOSED:
                break
            self.step()
        self.finish()

    def step(self) -> None:
        """Do one thing, and look whether all is well."""
        self.steps += 1
        name = self.random.choices(_NAMES, _WEIGHTS)[0]
        self.done[name] += 1
        getattr(self, f"do_{name}")()
        self.look()

    # what users do

    def do_open(self) -> None:
        uri = self.random.choice(URIS)
        flags = READ if "?" in uri else self.random.choice([READ, WRITE, READ | WRITE])
        token = self._token("open")
        try:
            queue = self.bench.begin_open(
                uri,
                flags,
                token=token,
                subscriptions=self.random.sample(EXPRESSIONS, self.random.randint(0, 2)),
                timeout=self.random.choice([1, 30]),
                suspends=self.random.random() < 0.3,
            )
        except (StateError, SessionClosed):
            self.tokens.discard(token)
        else:
            self.opening[token] = queue

    def do_abandon(self) -> None:
        if self.opening:
            token = self.random.choice(list(self.opening))
            queue = self.opening.pop(token)
            self.abandoned.add(token)
            self.bench.core.abandon_queue(queue, self.bench.now, self.bench.now + 10)
            self.bench.pump()

    def do_configure(self) -> None:
        queue = self._queue()
        if queue is None or not queue.readable:
            return
        token = self._token("configure")
        expressions = self.random.sample(EXPRESSIONS, self.random.randint(0, 3))
        try:
            self.bench.configure(queue, *expressions, token=token, timeout=self.random.choice([1, 30]))
        except QueueClosed:
            self.tokens.discard(token)

    def do_close(self) -> None:
        queue = self._queue()
        if queue is None:
            return
        token = self._token("close")
        try:
            self.bench.close(queue, token=token, timeout=self.random.choice([1, 30]))
        except QueueClosed:
            self.tokens.discard(token)

    def do_post(self) -> None:
        queue = self._queue()
        if queue is None:
            return
        for _ in range(self.random.randint(1, 5)):
            number = self.numbers = self.numbers + 1
            try:
                self.bench.core.post(queue, guid(number), b"%d" % number, number, self.bench.now)
            except (QueueClosed, UsageError):
                usable = queue.state in _TAKES_POSTS and queue.writable and queue.closing is None
                assert not usable, f"a usable queue refused a post: {queue.state}"
            else:
                self.posted[number] = (queue, b"%d" % number)
        if self.random.random() < 0.7:
            self.bench.pump()

    def do_confirm(self) -> None:
        if self.bench.received:
            _, message = self.random.choice(self.bench.received[-20:])
            queue = self.queue_of.get(message.queue_id)
            if queue is not None:
                self.confirmed.add(message.guid)
                if self.random.random() < 0.5:
                    self.bench.core.confirm(queue, message.guid)
                else:
                    self.bench.core.confirm_many(queue, [message.guid])
                self.bench.pump()

    def do_health(self) -> None:
        self.bench.core.host_health(self.random.random() < 0.5)
        self.bench.pump()

    def do_stop(self) -> None:
        if self.random.random() < self.restless:
            self.bench.core.stop(self._token("stop"), self.bench.now, self.bench.now + 5)
            self.bench.pump()

    def do_give_up(self) -> None:
        if self.random.random() < self.restless:
            self.bench.core.give_up("no reason", self.bench.now)
            self.bench.pump()

    # what brokers do

    def do_answer(self) -> None:
        requests = self.bench.broker.requests
        if not requests or not self.bench.up:
            return
        # Mostly in order, as brokers do.
        index = 0 if self.random.random() < 0.8 else self.random.randrange(len(requests))
        request = requests[index]
        del requests[index]
        if isinstance(request.body, Disconnect) or self.random.random() < 0.85:
            options: dict[str, Any] = {}
            if isinstance(request.body, OpenQueue):
                options = {
                    "dedup_ms": self.random.choice([300_000, 300_000, 5000, 0]),
                    "routing": self.random.choice([2, 2, 10, 7]),
                }
            self.bench.send(self.bench.broker.accept(request, **options))
        elif self.random.random() < 0.7:
            self.bench.send(self.bench.broker.refuse(request, StatusCategory.E_REFUSED))
        # else it is never answered

    def do_ack(self) -> None:
        puts = self.bench.broker.puts
        if puts and self.bench.up:
            chosen = self.random.sample(puts, self.random.randint(1, len(puts)))
            for put in chosen:
                puts.remove(put)
            self._puts_seen = len(puts)
            self.acked = (self.acked + chosen)[-20:]
            self.bench.send(self.bench.broker.ack(chosen, self.random.choice(STATUSES)))

    def do_ack_again(self) -> None:
        """Acknowledge posts that may have their outcome already, or belong to another connection."""
        if self.acked and self.bench.up:
            self.bench.send(self.bench.broker.ack(self.random.sample(self.acked, 1)))

    def do_push(self) -> None:
        if not self.bench.up or not self.bench.core.connected or not self.bench.core._routes.by_queue:
            return
        q_id = self.random.choice(list(self.bench.core._routes.by_queue))
        known = list(self.bench.core._routes.by_queue[q_id])
        s_ids = tuple(self.random.sample(known, min(len(known), self.random.randint(1, 2))))
        if self.random.random() < 0.05:
            s_ids = (self.random.randrange(10_000),)
        numbers = []
        for _ in range(self.random.randint(1, 4)):
            if self.pushed and self.random.random() < 0.4:
                numbers.append(self.random.choice(list(self.pushed)[-20:]))  # once more
            else:
                numbers.append(10_000_000 + len(self.pushed))
            self.pushed[numbers[-1]] = q_id
        self.bench.send(self.bench.broker.push(q_id, [(guid(n), b"%d" % n) for n in numbers], s_ids))

    def do_heartbeat(self) -> None:
        if self.bench.up:
            self.bench.send(Bench.pulse(response=self.random.random() < 0.5))

    def do_garbage(self) -> None:
        if self.bench.up and self.random.random() < 0.1:
            self.bench.send(self.random.randbytes(self.random.randint(1, 40)))

    # what networks and clocks do

    def do_lose(self) -> None:
        if self.bench.up:
            self.bench.failures.clear()
            self.bench.lose()
            self._new_connection()

    def do_connect(self) -> None:
        if self.bench.state is SessionState.CLOSED or self.bench.failures:
            return
        if not self.bench.up:
            self.bench.open_channel()
            self._new_connection()
        elif self.bench.broker.identity is not None and not self.bench.core.connected:
            self.bench.send(
                self.bench.broker.welcome(max_missed=self.random.choice([0, 0, 0, 3]), interval_ms=2000)
            )

    def do_wait(self) -> None:
        self.bench.wait(self.random.choice([0.01, 0.1, 0.5, 1.0, 2.0, 6.0]))

    def do_wait_long(self) -> None:
        if self.random.random() < 0.05:
            self.bench.wait(310)

    # what must hold

    def look(self) -> None:
        """See that all is well."""
        bench = self.bench
        if bench.up and bench.failures and (self.random.random() < 0.7 or self.steps % 5 == 0):
            # The transport notices a little later that it was closed.
            bench.failures.clear()
            bench.lose("failed")
            self._new_connection()
        for number, outcomes in bench.outcomes.items():
            assert number in self.posted, f"an outcome without a post: {number}"
            assert len(outcomes) == 1, f"post {number} has {outcomes}"
        for token, errors in bench.completed.items():
            assert token is None or token in self.tokens or token in self.abandoned, token
            assert token is None or len(errors) == 1, (token, errors)
            queue = self.opening.pop(token, None)
            if queue is not None and errors[0] is None:
                self.queues.append(queue)
                self.queue_of[queue.q_id] = queue
        for put in bench.broker.puts[self._puts_seen :]:
            number = int(put.data)
            queue, data = self.posted[number]
            assert (put.queue_id, put.guid, put.data) == (queue.q_id, guid(number), data)
            assert self._last_put[put.queue_id] < number, "posts of a queue overtake each other"
            self._last_put[put.queue_id] = number
        self._puts_seen = len(bench.broker.puts)
        for confirm in bench.broker.confirms[self._confirms_seen :]:
            assert confirm.guid in self.confirmed, "confirmed, and the application never said so"
        self._confirms_seen = len(bench.broker.confirms)
        if self.steps % 10 == 0:
            self.look_closely()
        self._forget()

    def look_closely(self) -> None:
        """The same, for what takes a while to see."""
        core = self.bench.core
        window = core.posts
        assert window.bytes == sum(len(message[1]) for _, message in window)
        assert Counter({number: lot.left for number, lot in window.lots.items()}) == Counter(
            number for _, number, _ in window.entries.values()
        )
        open_ = Counter(queue for queue, _ in window)
        for queue in self.queues:
            assert queue.unacked == open_[queue]
            assert queue.unacked == 0 or queue.state is not QueueState.CLOSED
            if queue.sending:
                assert core.connected or not self.bench.up
        assert len(window) == sum(open_.values())
        assert len(core._queues) <= 2 * len(URIS)  # one for each side
        assert len(core._requests) <= 1000 + 2 * len(URIS)
        assert len(core._queues._families) <= len({uri.partition("?")[0] for uri in URIS})
        assert sum(map(len, core._routes.by_queue.values())) <= 5 * len(URIS) * len(EXPRESSIONS)
        assert len(core._queues._steps.dirty) <= len(URIS)

    def finish(self) -> None:
        """Let everything end: no post and no caller may be left waiting."""
        bench = self.bench
        if self.random.random() < 0.5 and bench.state is not SessionState.CLOSED:
            # A broker that answers everything, for longer than any request may take.
            for _ in range(140):
                while not bench.core.connected and bench.state not in _ENDING:
                    self.do_connect()
                    self.look()
                bench.pump()
                bench.answer_all()
                bench.ack_all()
                self._puts_seen = 0
                self.look()
                bench.wait(0.5)
                self.look()
            assert not len(bench.core.posts), "posts nobody answers"
            waiting = self.tokens - set(bench.completed) - self._ended - self.abandoned
            assert not waiting, f"callers nobody answers: {waiting}"
        bench.core.stop(self._token("stop"), bench.now, bench.now + 5)
        bench.pump()
        bench.wait(5)
        if bench.up:
            bench.lose()
        self.look()
        assert bench.state is SessionState.CLOSED
        assert set(bench.outcomes) | self._settled == set(self.posted), "posts without outcome"
        missing = self.tokens - set(bench.completed) - self._ended - self.abandoned
        assert not missing, f"callers left waiting: {missing}"
        assert len(bench.core.posts) == bench.core.posts.bytes == len(bench.core._queues) == 0
        assert bench.core.next_deadline() is None

    # helpers

    _settled: set[int]
    _ended: set[Any]

    def _forget(self) -> None:
        """Outcomes were looked at: the walk's own books must not grow without end either."""
        if not hasattr(self, "_settled"):
            self._settled, self._ended = set(), set()
        if len(self.bench.outcomes) > 500:
            again = self._settled & self.bench.outcomes.keys()
            assert not again, f"posts with a second outcome: {again}"
            self._settled.update(self.bench.outcomes)
            self.bench.outcomes = _Once(self._settled)
        if len(self.bench.completed) > 100:
            self._ended.update(self.bench.completed)
            self.bench.completed = _Once(self._ended - {None})
        del self.bench.received[:-50]

    def _new_connection(self) -> None:
        self._puts_seen = self._confirms_seen = 0
        self._last_put.clear()

    def _queue(self) -> QueueCore | None:
        self.queues = [queue for queue in self.queues if queue.state is not QueueState.CLOSED]
        return self.random.choice(self.queues) if self.queues else None

    def _token(self, kind: str) -> Any:
        token = (kind, self.steps, len(self.tokens))
        self.tokens.add(token)
        return token


class _Once(dict[Any, Any]):
    """Outcomes still to come; one that was there already is a second one."""

    def __init__(self, before: set[Any]) -> None:
        super().__init__()
        self._before = before

    def setdefault(self, key: Any, default: Any = None) -> Any:
        assert key not in self._before, f"a second outcome of {key}"
        return super().setdefault(key, default)


_ENDING = {SessionState.CLOSING, SessionState.CLOSED}
_TAKES_POSTS = {
    QueueState.OPEN,
    QueueState.RECONFIGURING,
    QueueState.LOST,
    QueueState.REOPENING,
    QueueState.RESTORING,
}
_ACTIONS = {
    "open": 6,
    "abandon": 1,
    "configure": 3,
    "close": 2,
    "post": 12,
    "confirm": 6,
    "health": 1,
    "stop": 1,
    "give_up": 1,
    "answer": 22,
    "ack": 6,
    "ack_again": 1,
    "push": 8,
    "heartbeat": 1,
    "garbage": 1,
    "lose": 2,
    "connect": 8,
    "wait": 5,
    "wait_long": 1,
}
_NAMES, _WEIGHTS = list(_ACTIONS), list(_ACTIONS.values())
