# SPDX-License-Identifier: Apache-2.0
"""A world for simulated programs: a broker, its domains, faults, and a history that is checked at the end.

A world has two phases. During the faults, the check of the history must find no violation. After the faults,
every message must arrive within a bound of virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

import bmq
from bmq.broker import DomainConfig, Limits, Mode
from bmq.testing import (
    SIMULATED_FAULTS,
    History,
    Recorder,
    SimulatedProcess,
    Simulation,
    Verdict,
    check,
    examine,
)
from tests.simulation.books import Witness, unsettled

__all__ = ["APP_IDS", "BOUND", "SCENES", "World", "scene"]

APP_IDS = ("a", "b", "c")
#: Queues keep everything for a month, and GUIDs for a day.
KEPT: dict[str, Any] = {
    "message_ttl": 30 * 86400,
    "max_delivery_attempts": 0,
    "deduplication_time_ms": 86_400_000,
}
DOMAINS = (
    DomainConfig("sim.priority", Mode.PRIORITY, **KEPT),
    DomainConfig("sim.fanout", Mode.FANOUT, app_ids=APP_IDS, **KEPT),
    DomainConfig("sim.broadcast", Mode.BROADCAST),
    DomainConfig("sim.small", Mode.PRIORITY, queue_limits=Limits(5, 10_000), **KEPT),
    DomainConfig("sim.short", Mode.PRIORITY, message_ttl=3),
)
#: Virtual seconds after the last fault in which everything arrives: brokers and clients notice a silent
#: connection, a request is given up, and the longest pause of a drawn policy passes.
BOUND = 600.0

Scene = Callable[["World"], Coroutine[Any, Any, None]]
SCENES: dict[str, Callable[[Simulation], Coroutine[Any, Any, Verdict]]] = {}


def scene(play: Scene) -> Scene:
    """Register a world."""

    async def run(sim: Simulation) -> Verdict:
        world = World(sim)
        await play(world)
        return world.verdict or examine(world.history)

    SCENES[play.__name__.replace("_", " ")] = run
    return play


class World:
    """A broker with two hosts, programs, and faults; limits and conditions are drawn, absurd values included.

    Args:
        sim: the running simulation.

    Attributes:
        sim: the simulation.
        history: records of the programs.
        random: random numbers for the plans of programs.
        broker: the broker.
        options: options of the sessions.
        limits: options of queues that are read.
        around: interceptors before and behind the recorder.
        verdict: result of the check.
    """

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.history = sim.history = History(key="k", clock=sim._true_time)
        self.random = sim.random
        # Without heartbeats a broker keeps the messages of a silent connection until TCP gives up, in a
        # quarter of an hour: longer than the bound of a world.
        self.broker = sim.broker(
            *sim.draw("hosts", ("node1", "node2"), ("node1",), ("node1", "node2", "node3")),
            domains=DOMAINS,
            heartbeat_interval_ms=sim.draw("heartbeat_interval_ms", 3000, 200, 500, 20_000),
            max_missed_heartbeats=sim.draw("max_missed_heartbeats", 3, 1, 10),
            high_water=sim.draw("high_water", 16 * 1024 * 1024, 1000, 100_000),
        )
        self.options: dict[str, Any] = {
            "max_unacked_messages": sim.draw("max_unacked_messages", 10_000, 1, 2, 7, 100),
            "max_unacked_bytes": sim.draw("max_unacked_bytes", 1 << 26, 200, 5000),
            "max_buffered_messages": sim.draw("max_buffered_messages", 10_000, 1, 2, 17),
            "liveness": sim.draw("liveness", 10.0, 1.0, 2.0, 60.0),
            "connect_timeout": sim.draw("connect_timeout", 5.0, 0.5, 60.0),
            "busy_poll": sim.draw("busy_poll", 0.0, 5e-7),
            "open_timeout": BOUND,
            "configure_timeout": BOUND,
        }
        self.limits = {"max_unconfirmed_messages": sim.draw("max_unconfirmed_messages", 1000, 1, 2, 10)}
        sim.network.set(
            latency=sim.draw("latency", (50e-6, 500e-6), (0.0, 1e-6), (1e-3, 0.2)),
            segment=sim.draw("segment", None, (1, 50), (1, 5000)),
            window=sim.draw("window", 256 * 1024, 500, 10_000),
        )
        self.around: tuple[bmq.Interceptor, ...] = ()
        self.verdict: Verdict | None = None
        self._programs: list[SimulatedProcess] = []
        self._witness = Witness()

    def uri(self, name: str, mode: str = "priority") -> str:
        """Return the URI of a queue."""
        return f"bmq://sim.{mode}/{name}"

    def connect(self, recorder: Recorder, **options: Any) -> bmq.connect:
        """Return a session with recorded calls."""
        return bmq.connect(self.broker.uri, **{**self.recorded(recorder), **options})

    def app(self, recorder: Recorder, **options: Any) -> bmq.App:
        """Return an app with recorded calls."""
        return bmq.App(self.broker.uri, **{**self.recorded(recorder), **options})

    def recorded(self, recorder: Recorder) -> dict[str, Any]:
        """Return the options of a session with recorded calls."""
        return {
            "interceptors": [*self.around[:1], recorder, *self.around[1:], self._witness],
            "on_event": recorder.on_event,
            "retry_first_connect": True,
            **self.options,
        }

    def program(
        self, name: str, main: Callable[..., Awaitable[Any]], *arguments: object, **options: Any
    ) -> SimulatedProcess:
        """Start a program that faults may kill; restart it, also after a passing error.

        The program's arguments are its recorder, and those given here.
        """

        async def run() -> None:
            task = asyncio.current_task()
            assert task is not None
            while True:
                try:
                    return await main(self.sim.recorder, *arguments, **options)
                except bmq.Error as error:
                    # A queue is closed if it could not be reopened.
                    if not (error.retryable or isinstance(error, bmq.QueueClosed)) or task.cancelling():
                        raise
                await asyncio.sleep(1)

        process = self.sim.process(name, run)
        self._programs.append(process)
        return process

    def workers(self, main: Callable[[Recorder], Awaitable[Any]]) -> list[SimulatedProcess]:
        """Start two equal programs."""
        return [self.program(name, main) for name in ("first", "second")]

    def apps(self, register: Callable[[bmq.App], object]) -> list[SimulatedProcess]:
        """Start two equal apps."""

        async def work(recorder: Recorder) -> None:
            app = self.app(recorder, grace=5)
            register(app)
            await app.run(signals=False)

        return self.workers(work)

    def producer(self, uri: str, count: int = 40, **options: Any) -> SimulatedProcess:
        """Start a program that posts."""
        return self.program("producer", self.post, uri, count, over=12, **options)

    async def post(
        self,
        recorder: Recorder,
        uri: str,
        count: int,
        *,
        over: float,
        properties: Callable[[int], dict[str, Any] | None] = lambda _: None,
    ) -> None:
        """Post messages over some seconds, in all three ways; refusals are in the history."""
        async with self.connect(recorder) as session:
            queue = await session.open_queue(uri, write=True)
            tasks: list[asyncio.Task[Any]] = []
            number = 0
            while number < count:
                some = min(count - number, self.random.choice((1, 1, 5, 30)))
                posts = [
                    bmq.PutMessage(b"%d" % each, properties(each)) for each in range(number, number + some)
                ]
                if self.random.random() < 0.3:
                    report = await queue.post_many(posts)
                    assert report.posted == some
                else:
                    tasks += [asyncio.create_task(self._post(queue, each)) for each in posts]
                number += some
                await asyncio.sleep(self.random.expovariate(count / over / some))
            for task in tasks:
                await task  # gather() takes other turns of the loop in Python 3.11 than in 3.12
            recorder.statistics(session)

    async def _post(self, queue: bmq.Queue, post: bmq.PutMessage) -> None:
        try:
            await queue.post(post.data, properties=post.properties)
        except (bmq.PostError, bmq.QueueClosed):
            pass  # recorded in the history

    async def read(
        self,
        recorder: Recorder,
        uri: str,
        pause: Callable[[], float] = lambda: 0.0,
        into: list[bytes] | None = None,
    ) -> None:
        """Receive and confirm the messages of a queue one by one."""
        async with self.connect(recorder) as session:
            async for message in await session.open_queue(uri, read=True, **self.limits):
                async with message:
                    if into is not None:
                        into.append(message.data)
                    await asyncio.sleep(pause())

    async def end_of_trouble(self, *producers: SimulatedProcess, clocks: bool = False) -> None:
        """Inject faults for a while, and wait until the producers have posted all messages.

        Some worlds have long faults, others have many short ones.

        Args:
            producers: the programs to wait for.
            clocks: whether the clocks of programs jump, which changes their deadlines.
        """
        chance = Random(f"{self.sim.seed}/trouble")
        seconds, pause, longest = chance.choice(((15.0, (0.2, 3.0), 15.0), (6.0, (0.02, 0.6), 1.5)))
        kinds = [kind for kind in SIMULATED_FAULTS if clocks or kind != "clock"]
        common: Any = {"duration": (0.01, longest)}
        of_programs = self.sim.faults(seconds, kinds=kinds, victims=self._programs, pause=pause, **common)
        of_broker = self.sim.faults(
            seconds, kinds=["pause"], victims=[self.broker.process], pause=(1, 10), **common
        )
        for task in [asyncio.create_task(each) for each in (of_programs, of_broker)]:
            await task
        ended = "the producers have not ended"
        await self.until(lambda: not any(each.running for each in producers), ended, 3600)

    async def until(
        self, condition: Callable[[], Any], what: str | Callable[[], object], within: float = BOUND
    ) -> None:
        """Wait until a condition is true; the error tells ``what``, or its result."""
        try:
            await self.sim.until(condition, timeout=within, every=0.5)
        except TimeoutError:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"{within:g} s after the last fault: {told}") from None

    async def settle(self, within: float = BOUND, **rules: Any) -> Verdict:
        """Wait until every message has arrived, and check the history."""
        try:
            await self.sim.until(lambda: not self.history.pending(), timeout=within, every=0.05)
        except TimeoutError:
            pass  # the check names the messages
        verdict = self.check(within=within, **rules)
        await self.balance()
        return verdict

    async def balance(self) -> None:
        """Compare the broker's books: with nothing under way, no queue counts a byte too many or too few.

        Confirmations may still travel when the history ends, so the comparison waits for them.
        """
        if self.history.pending():
            return
        # An app without work is not ready for a minute after its latest messages were given up.
        await self.until(lambda: not self.wrong(), self.wrong)
        twice = self.stored_twice()
        assert not twice, f"the broker stored a message twice: {'; '.join(twice)}"

    def wrong(self) -> list[str]:
        """Return wrong sums of the broker and of living sessions, and forgotten messages."""
        living = (each for each in list(self._witness.sessions) if not each._connection.loop.dead)
        queues = self.broker.broker.queues
        kept = [
            f"{uri} keeps {app.pending} messages for {name}, all of them confirmed"
            for uri in queues
            for name, app in queues[uri].apps.items()
            if app.consumers and app.pending
        ]
        return unsettled(self.broker, living) + kept

    def stored_twice(self) -> list[str]:
        """Return queues with more stored messages than posted GUIDs: repeated posts were not recognised."""
        if self.broker.process.incarnation > 1:
            return []  # a restart forgets the GUIDs of confirmed messages
        queues, posted = self.broker.broker.queues, dict[str, set[str]]()
        for event in self.history.events(op="post", type="invoke"):
            posted.setdefault(event["queue"], set()).add(event["message"])
        return [
            f"{uri} stored {queues[uri].stats().posted} messages, and {len(posted[uri])} GUIDs were posted"
            for uri in queues
            if uri in posted and queues[uri].stats().posted > len(posted[uri])
        ]

    def check(self, **rules: Any) -> Verdict:
        """Check the history; a failure has the last events as a note."""
        try:
            self.verdict = check(self.history, **rules)
        except AssertionError as error:
            error.add_note("last events:\n  " + "\n  ".join(self.history.tail(15)))
            raise
        return self.verdict
