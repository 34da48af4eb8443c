# SPDX-License-Identifier: Apache-2.0
"""A world for simulated programs: a broker, its domains, faults, and a history that is checked at the end.

A world has two phases. During the faults, the check of the history must find no violation. After the faults,
every message must arrive within a bound of virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Any

import bmq
from bmq.broker import DomainConfig, Mode
from bmq.testing import History, Recorder, SimulatedProcess, Simulation, Verdict, check
from bmq.testing._sim_faults import skipped_faults
from tests.simulation.books import Witness, unsettled

__all__ = ["APP_IDS", "FAULTS", "World"]

#: Time of day at the start of a simulation.
_EPOCH = 1893456000.0
APP_IDS = ("a", "b", "c")
DOMAINS = (
    DomainConfig("sim.priority", Mode.PRIORITY, message_ttl=30 * 86400),
    DomainConfig("sim.fanout", Mode.FANOUT, app_ids=APP_IDS, message_ttl=30 * 86400),
    DomainConfig("sim.broadcast", Mode.BROADCAST),
)
#: The faults that a client survives without the loss of an acknowledged message.
FAULTS = (
    "cut",
    "reset",
    "half_close",
    "stall",
    "partition",
    "one_way",
    "slow",
    "split",
    "narrow",
    "refuse",
    "stop",
    "crash",
    "failover",
    "pause",
    "kill",
)


class World:
    """A broker with two hosts, programs, and faults.

    Args:
        sim: the running simulation.
        domains: domains besides ``sim.priority``, ``sim.fanout`` and ``sim.broadcast``.

    Attributes:
        sim: the simulation.
        history: records of the programs.
        random: random numbers for the plans of programs.
        broker: the broker.
        options: options of the sessions.
        faults: number of faults so far.
        verdict: result of the check.
    """

    def __init__(self, sim: Simulation, domains: Iterable[DomainConfig] = ()) -> None:
        self.sim = sim
        self.history = History(key="k", clock=lambda: _EPOCH + sim.now)
        self.random = sim.random
        self.broker = sim.broker(
            "node1",
            "node2",
            domains=[*DOMAINS, *domains],
            heartbeat_interval_ms=sim.draw("heartbeat_interval_ms", 3000, 500, 10_000),
            max_missed_heartbeats=sim.draw("max_missed_heartbeats", 3, 1, 10),
        )
        self.options: dict[str, Any] = {
            "max_unacked_messages": sim.draw("max_unacked_messages", 10_000, 1, 2, 7, 100),
            "max_unacked_bytes": sim.draw("max_unacked_bytes", 1 << 26, 200, 5000),
            "max_buffered_messages": sim.draw("max_buffered_messages", 10_000, 1, 2, 17),
            "liveness": sim.draw("liveness", 10.0, 2.0, 60.0),
        }
        self.faults = 0
        self._chance = Random(sim.seed)
        self.verdict: Verdict | None = None
        self._programs: dict[str, SimulatedProcess] = {}
        self._witness = Witness()

    def uri(self, name: str, mode: str = "priority") -> str:
        """Return the URI of a queue."""
        return f"bmq://sim.{mode}/{name}"

    def connect(self, recorder: Recorder, **options: Any) -> bmq.connect:
        """Return a session with recorded calls."""
        return bmq.connect(self.broker.uri, **{**self._recorded(recorder), **options})

    def app(self, recorder: Recorder, **options: Any) -> bmq.App:
        """Return an app with recorded calls."""
        return bmq.App(self.broker.uri, **{**self._recorded(recorder), **options})

    def _recorded(self, recorder: Recorder) -> dict[str, Any]:
        return {
            "interceptors": [recorder, self._witness],
            "on_event": recorder.on_event,
            "retry_first_connect": True,
            **self.options,
        }

    def program(self, name: str, main: Callable[[Recorder], Awaitable[Any]]) -> SimulatedProcess:
        """Start a program that faults may kill; restart it, also after a passing error."""

        async def run() -> None:
            while True:
                recorder = self.history.process(name)
                try:
                    return await main(recorder)
                except bmq.QueueClosed:
                    pass  # the queue could not be reopened
                except bmq.Error as error:
                    if not error.retryable:
                        raise
                finally:
                    recorder.close()
                await asyncio.sleep(1)

        process = self._programs[name] = self.sim.process(name, run)
        return process

    def workers(self, main: Callable[[Recorder], Awaitable[Any]]) -> list[SimulatedProcess]:
        """Start two equal programs."""
        return [self.program(name, main) for name in ("first", "second")]

    async def post(
        self,
        recorder: Recorder,
        uri: str,
        count: int,
        *,
        over: float,
        properties: Callable[[int], dict[str, Any] | None] = lambda _: None,
        **options: Any,
    ) -> None:
        """Post messages over some seconds, in all three ways; refusals are in the history."""
        async with self.connect(recorder, **options) as session:
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
        self, recorder: Recorder, uri: str, pause: Callable[[], float] = lambda: 0.0, **options: Any
    ) -> None:
        """Receive and confirm the messages of a queue one by one."""
        async with self.connect(recorder, **options) as session:
            async for message in await session.open_queue(uri, read=True):
                async with message:
                    await asyncio.sleep(pause())

    # faults

    async def trouble(self, seconds: float, kinds: Sequence[str] = FAULTS) -> None:
        """Inject faults for some seconds, and heal everything; faults can be left out by their numbers."""
        until = self.sim.now + seconds
        while self.sim.now < until:
            self.sim._faults_drawn += 1
            number = self.sim._faults_drawn
            # One generator for each fault: omitting a fault does not change the others.
            self._chance = Random(f"{self.sim.seed}/fault/{number}")
            await asyncio.sleep(self._chance.expovariate(5 / seconds if seconds > 50 else 0.5))
            kind = self._chance.choice(kinds)
            if number not in skipped_faults():
                self.sim.note(kind, number=number)
                self.history.fault(kind)
                self.faults += 1
                await getattr(self, f"_{kind}")()
        await self.heal()

    async def heal(self) -> None:
        """End all faults."""
        self.sim.network.heal()
        if not self.broker.running:
            self.broker.start()
        for process in self._programs.values():
            process.resume()
        self.history.healed()

    async def settle(self, within: float = 120.0, **rules: Any) -> Verdict:
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
        try:
            # An app without work is not ready for a minute after its latest messages were given up.
            await self.sim.until(lambda: not self.wrong(), timeout=120, every=0.5)
        except TimeoutError:
            raise AssertionError(f"the broker's books do not balance: {'; '.join(self.wrong())}") from None
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

    def _pause_length(self) -> float:
        return self._chance.choice((0.01, 0.2, 2.0, 15.0)) * self._chance.random()

    def _one(self) -> Any:
        connections = self.sim.network.connections
        return self._chance.choice(connections) if connections else None

    async def _cut(self) -> None:
        if (connection := self._one()) is not None:
            connection.cut()

    async def _reset(self) -> None:
        for connection in self.sim.network.connections:
            if self._chance.random() < 0.5:
                connection.reset()

    async def _half_close(self) -> None:
        if (connection := self._one()) is not None:
            connection.half_close(towards_client=self._chance.random() < 0.5)

    async def _stall(self) -> None:
        if (connection := self._one()) is not None:
            connection.stall(self._pause_length(), towards_client=self._chance.random() < 0.5)

    async def _partition(self, both: bool = True) -> None:
        programs = [name for name, process in self._programs.items() if process.running]
        if programs:
            one, other = self._chance.choice(programs), self.broker.host
            if self._chance.random() < 0.5:
                one, other = other, one
            self.sim.network.partition(one, other, both=both)
            await asyncio.sleep(self._pause_length())
            self.sim.network.heal()

    async def _one_way(self) -> None:
        await self._partition(both=False)

    async def _set(self, **settings: Any) -> None:
        self.sim.network.set(**settings)
        await asyncio.sleep(self._pause_length())
        self.sim.network.set()

    async def _slow(self) -> None:
        await self._set(latency=(0.001, self._chance.choice((0.05, 0.5))))

    async def _split(self) -> None:
        await self._set(segment=(1, self._chance.choice((3, 50, 1000))))

    async def _narrow(self) -> None:
        await self._set(window=self._chance.choice((100, 4000)), rate=self._chance.choice((2000.0, 1e5)))

    async def _refuse(self) -> None:
        self.sim.network.refuse(self.broker.host)
        await self._reset()
        await asyncio.sleep(self._pause_length())
        self.sim.network.refuse(self.broker.host, refuse=False)

    async def _stop(self) -> None:
        self.broker.stop()
        await self.sim.until(lambda: not self.broker.running)
        await asyncio.sleep(self._pause_length())
        self.broker.start()

    async def _crash(self) -> None:
        self.broker.crash(machine=self._chance.random() < 0.3)
        await asyncio.sleep(self._pause_length())
        self.broker.start()

    async def _failover(self) -> None:
        self.broker.failover()

    async def _pause(self) -> None:
        process = self._chance.choice([*self._programs.values(), self.broker.process])
        process.pause()
        await asyncio.sleep(self._pause_length())
        process.resume()

    async def _kill(self) -> None:
        running = [name for name, process in self._programs.items() if process.running]
        if running:
            name = self._chance.choice(running)
            process = self._programs[name]
            process.kill(machine=self._chance.random() < 0.2)
            self.history.killed(name)
            await asyncio.sleep(self._pause_length())
            process.start()
