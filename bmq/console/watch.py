# SPDX-License-Identifier: Apache-2.0
"""Polls a broker, and keeps the results for the plots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import bmq
from bmq import _world
from bmq._json import orjson
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.admin import Admin
from bmq.admin.explanation import Explanation
from bmq.admin.watch import HISTORY, BrokerWatch, QueueFigures, RateHistory
from bmq.console.findings import DeadLetters, QueueFinding, at_a_glance, inside, worst
from bmq.console.source import RemoteBroker

__all__ = ["Watch"]

logger = Log("bmq.console")

# Queues processed in one turn of the event loop.
_TURN = 200
# Seconds between two questions about a queue.
_ASKED_AGAIN = 0.5
# Share of the time for figures that a poll asks about subscriptions, and the least share of the interval.
_ASKING = 1 / 4
_ASKING_LEAST = 1 / 20
# The age of a queue's latest answer counts this many times for a queue whose messages do not move, and for a
# queue that grows without a confirmation, without readers, or with a problem to be confirmed.
_STANDING = 20
_SUSPECTED = 400
# Seconds for which the page reports expired messages.
_RECENTLY = 300.0
# Share of the time that polling may take while pages follow, and while no page follows.
_SHARE = 1 / 20
# Seconds between two polls of a broker that does not answer, at most, while pages follow.
_AGAIN = 5.0
_SHARE_ALONE = 1 / 100
# Errors with which a reachable broker refuses the console.
_REFUSALS = (bmq.AuthenticationError, bmq.NegotiationError, bmq.RequestError, bmq.errors.AdminError)


@dataclass(slots=True)
class _Sight(RateHistory):
    """The history of one queue, and its problems."""

    now: dict[str, Any] = field(default_factory=dict[str, Any])
    # The problem of the queue and its start; the problem that its subscriptions showed, and the time of the
    # question; and the problem of the question before: only a problem found twice is reported.
    finding: QueueFinding | None = None
    others: list[QueueFinding] = field(default_factory=list[QueueFinding])
    since: float = 0.0
    asked: float = 0.0
    found: QueueFinding | None = None
    suspected: QueueFinding | None = None
    # Expired messages, and the time of the last expiry; 0 without any in the last minutes. And the broker's
    # count of the last poll.
    expired: int = 0
    expired_at: float = 0.0
    expired_before: int | None = None
    # Whether messages came since the latest question, and none was confirmed meanwhile.
    grown: bool = False

    def expire(self, now: int | None, at: float) -> None:
        """Count the messages that expired since the last poll, and forget old ones."""
        before, self.expired_before = self.expired_before, now
        if before is not None and now is not None and now > before:
            self.expired += now - before
            self.expired_at = at
        elif at - self.expired_at > _RECENTLY:
            self.expired = 0

    def report(self, figures: QueueFigures, dead: DeadLetters) -> None:
        """Choose the most severe problem, and keep its start."""
        if not figures.messages:
            self.found = self.suspected = None
        found = [*at_a_glance(figures, dead, self.expired), *([self.found] if self.found else [])]
        seen = worst(found)
        self.others = [each for each in found if each is not seen]
        if seen is None or self.finding is None or seen.kind != self.finding.kind:
            self.since = _world.time()
        self.finding = seen

    def urgency(self, figures: QueueFigures, now: float) -> float:
        """Return a number that grows with the suspicion and with the age of the latest answer."""
        age = now - self.asked
        if self.found is not None:
            return age
        counted = figures.statistics
        # Late statistics show a new queue with zeros.
        unread = counted is not None and not counted.consumers and counted.posted
        if self.suspected is not None or self.grown or unread:
            return age * _SUSPECTED
        return age if self.confirmed[-1] else age * _STANDING

    def begin(self, now: float) -> None:
        """Note a question about the subscriptions."""
        self.asked = now
        self.grown = False

    def suspect(self, explanation: Explanation, dead: DeadLetters) -> None:
        """Find a problem in the subscriptions; only a problem found twice is reported."""
        problems = inside(explanation, dead)
        before, self.suspected = self.suspected, worst(problems)
        again = before is not None and self.suspected is not None and before.kind == self.suspected.kind
        self.found = self.suspected if again else None

    def tell(self) -> None:
        """Put the problem into the data for pages."""
        self.now["finding"] = asdict(self.finding) | {"since": self.since} if self.finding else None
        self.now["others"] = [asdict(other) for other in self.others]

    def shown(self, *, past: bool) -> dict[str, Any]:
        """Return the data for a page."""
        if not past:
            return self.now
        kept = {
            "messages": list(self.depth),
            "posted": list(self.posted),
            "confirmed": list(self.confirmed),
        }
        return self.now | {"history": kept}


class Watch:
    """Polls a broker every ``interval`` seconds, reachable or not.

    Attributes:
        error: reason why the broker cannot be polled; empty if reachable.
        refused: whether the broker has answered and refused, for lack of credentials or permission.
        gap: reason why the figures of a cluster are incomplete; empty if complete.
        unasked: queues with messages whose subscriptions are unknown so far.
        oldest: age in seconds of the oldest answer about the subscriptions of a queue with messages.
        broker: the broker of the latest poll.
        followers: number of pages that follow.
        number: polls so far.
    """

    def __init__(self, source: RemoteBroker, interval: float, dead: DeadLetters) -> None:
        self._source = source
        self._dead = dead
        self._interval = interval
        self._log = LogLimit(logger)
        self._admin: Admin | None = None
        self._watch = BrokerWatch(copies=True, left_out=self._left_out)
        self._queues: dict[str, _Sight] = {}
        self._looked = asyncio.Condition()
        self._ended = False
        self._came = asyncio.Event()
        self._latest: list[bytes] = []
        self._shared = -1
        self._rested = 0.0  # seconds of the poll without a question to the broker
        self.followers = 0
        self.number = 0
        self.error = "not yet queried"
        self.refused = False
        self.gap = ""
        self.unasked = 0
        self.oldest = 0.0
        self.broker = source.name

    # asking

    async def admin(self) -> Admin:
        """Return the admin client; connect on the first call.

        Raises:
            ConnectionFailed: the client has never been connected, and cannot connect now.
        """
        if self._admin is None:
            self._admin = await self._source.admin()
            self.broker = self._admin.broker
        return self._admin

    async def run(self) -> None:
        """Poll until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                started = loop.time()
                self._rested = 0.0
                await self._look_once()
                took = loop.time() - started - self._rested
                if self.error:  # a request that timed out must not hide the broker's return for minutes
                    took = min(took, _AGAIN * _SHARE)
                await self._pause(max(self._interval - took, took / _SHARE), took / _SHARE_ALONE)
        finally:
            self._ended = True
            if self._admin is not None:
                await self._admin.close()
            async with self._looked:
                self._looked.notify_all()

    async def _pause(self, followed: float, alone: float) -> None:
        """Wait between two looks: longer where a look is expensive, and longest while no page is open."""
        await asyncio.sleep(followed)
        if not self.followers and alone > followed:
            self._came.clear()
            try:
                async with asyncio.timeout(alone - followed):
                    await self._came.wait()
            except TimeoutError:
                pass

    async def _look_once(self) -> None:
        try:
            await self._look(await self.admin())
        except Exception as error:
            self.refused = isinstance(error, _REFUSALS)
            if not isinstance(error, bmq.Error):
                name = type(error).__name__
                self._log.warning(name, "a round of the console failed: %r; trying again", error)
            elif not self.error and self.refused:
                logger.warning("the broker refuses the console: %s; trying again", error)
            elif not self.error:
                logger.warning("the broker does not answer: %s; trying again", error)
            self.error = f"{error}{self._hint(error)}" if isinstance(error, bmq.Error) else repr(error)
            for sight in self._queues.values():
                sight.forget()
                sight.expired_before = None
        else:
            if self.error and self.number:
                logger.warning("the broker answers again")
            self.error = ""
            self.refused = False
        async with self._looked:
            self.number += 1
            self._looked.notify_all()

    def _hint(self, error: Exception) -> str:
        """A broker that requires a user closes the connection of an anonymous client without a reason."""
        if (
            isinstance(error, bmq.ConnectionFailed)
            and "handshake" in str(error)
            and not self._source.authenticates
        ):
            return ". If the broker requires a user, give the console a user: bmq console --user NAME"
        return ""

    def _left_out(self, name: str, error: bmq.ProtocolError) -> None:
        self._log.warning(name, "%s is left out: %s", name, error)

    async def _look(self, admin: Admin) -> None:
        started = _world.monotonic()
        self._source._check()
        view = await self._watch.look(admin)
        gap = await admin.gap()
        figures = [queue for queue in view.queues if queue.domain is not None]
        now = _world.monotonic()
        self.broker = admin.broker
        self.gap = gap
        seen: dict[str, _Sight] = {}
        for number, queue in enumerate(figures):
            if not number % _TURN:
                await asyncio.sleep(0)
            each = seen[queue.uri] = self._queues.get(queue.uri) or _Sight()
            counted = queue.statistics
            # Not in the first poll, in which every queue is new.
            deeper = bool(self._queues) and queue.messages > (each.depth[-1] if each.depth else 0)
            each.add(now, queue.messages, counted)
            each.grown = not each.confirming and (each.grown or deeper)
            each.now = {
                "uri": queue.uri,
                "domain": queue.name,
                "mode": queue.mode,
                "messages": queue.messages,
                "bytes": queue.held[1],
                "producers": counted.producers if counted else 0,
                "consumers": counted.consumers if counted else 0,
                "posted": each.posting,
                "confirmed": each.confirming,
                "quota": round(queue.use()[0], 3),
            }
            each.expire(counted.expired if counted else None, now)
            each.report(queue, self._dead)
            each.tell()
        budget = max((_world.monotonic() - started) * _ASKING, self._interval * _ASKING_LEAST)
        await self._look_inside(admin, [queue for queue in figures if queue.waits], seen, budget)
        self._queues = seen

    async def _look_inside(
        self, admin: Admin, waiting: list[QueueFigures], seen: dict[str, _Sight], budget: float
    ) -> None:
        """Ask about the subscriptions of queues with waiting messages for some seconds, a few at once.

        The order is by suspicion and by the age of the latest answer, so that every queue has a turn.
        Suspected problems get their second question in the same poll: the next poll may be a minute away.
        """
        now = _world.monotonic()
        again = min(_ASKED_AGAIN, self._interval)
        due = [each for each in waiting if now - seen[each.uri].asked >= again]
        due.sort(key=lambda each: seen[each.uri].urgency(each, now), reverse=True)
        asked: dict[str, QueueFigures] = {}

        async def ask(queues: list[QueueFigures]) -> None:
            started = _world.monotonic()

            def in_budget() -> Iterator[QueueFigures]:
                for queue in queues:
                    asked[queue.uri] = queue
                    seen[queue.uri].begin(_world.monotonic())
                    yield queue
                    if _world.monotonic() - started >= budget:
                        return

            for uri, explanation in (await self._watch.explain(admin, in_budget())).items():
                if explanation is not None:
                    seen[uri].suspect(explanation, self._dead)

        await ask(due)
        suspected = [each for uri, each in asked.items() if seen[uri].suspected and not seen[uri].found]
        if suspected:
            await asyncio.sleep(again)
            self._rested += again
            await ask(suspected)
        for each in asked.values():
            seen[each.uri].report(each, self._dead)
            seen[each.uri].tell()
        now = _world.monotonic()
        self.unasked = sum(not seen[each.uri].asked for each in waiting)
        self.oldest = max((now - at for each in waiting if (at := seen[each.uri].asked)), default=0.0)

    # telling

    def _state(self) -> dict[str, Any]:
        told = ("broker", "error", "refused", "gap", "unasked")
        return {name: getattr(self, name) for name in told} | {
            "oldest": round(self.oldest, 1),
            "time": _world.time(),
            "interval": self._interval,
        }

    def _written(self, about: dict[str, Any], queues: list[_Sight], *, past: bool) -> Iterator[bytes]:
        """Write a line in pieces of a few hundred queues, so that no turn of the loop is long."""
        head = orjson.dumps(about | self._state() | {"kept": HISTORY})
        yield head[:-1] + b',"queues":['
        for start in range(0, len(queues), _TURN):
            made = orjson.dumps([each.shown(past=past) for each in queues[start : start + _TURN]])
            yield (b"," if start else b"") + made[1:-1]
        yield b"]}\n"

    async def follow(self, about: dict[str, Any]) -> AsyncGenerator[bytes]:
        """Iterate over pieces of lines: first the full state with its past, then the result of each poll.

        A caller that misses a poll gets the full state again. Callers share the pieces of a poll, and a slow
        caller holds one piece. The iteration ends with the watch; cancelling it is safe.

        Args:
            about: further members of each line; the same for every caller.
        """
        self.followers += 1
        self._came.set()
        told = -1
        try:
            while not self._ended:
                number = self.number
                if number == told + 1 and told >= 0:
                    if self._shared != number:
                        self._latest = list(self._written(about, list(self._queues.values()), past=False))
                        self._shared = number
                    pieces: Iterable[bytes] = self._latest
                else:
                    pieces = self._written(about, list(self._queues.values()), past=True)
                told = number
                for piece in pieces:
                    yield piece
                    await asyncio.sleep(0)
                async with self._looked:
                    await self._looked.wait_for(lambda: self.number != told or self._ended)  # noqa: B023
        finally:
            self.followers -= 1
