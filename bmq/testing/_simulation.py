# SPDX-License-Identifier: Apache-2.0
# pyright: reportPrivateUsage=false
"""Whole programs under virtual time: processes, brokers and the network between them, from one seed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import logging
import os
import random as random_module
import sys
import time as time_module
import traceback
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from itertools import count
from random import Random
from typing import Any, ClassVar, Final, TypeVar

from bmq import _checks, _world
from bmq.broker import Broker
from bmq.client.session import disown
from bmq.errors import StateError, UsageError
from bmq.testing._history import History, Recorder
from bmq.testing._sim_faults import SIMULATED_FAULTS, SKIP, Faults, SimulatedFault
from bmq.testing._sim_loop import Engine, SimLoop, place_of
from bmq.testing._sim_network import PORT, Host, SimulatedNetwork, pair

__all__ = [
    "SimulatedBroker",
    "SimulatedNetwork",
    "SimulatedProcess",
    "Simulation",
    "SimulationError",
    "simulated",
]

T = TypeVar("T")

#: The first reading of monotonic clocks, and of clocks of the day: 1 January 2030.
_START: Final = 1000.0
_EPOCH: Final = 1893456000.0
#: Virtual seconds for processes to end after the simulation.
_GRACE: Final = 3600.0
_LAST_FAULTS: Final = 10
#: The environment variable with the seed to repeat.
REPLAY: Final = "BMQ_SIM_SEED"
_LAST_EVENTS: Final = 15
_MOST_TASKS: Final = 40
# A run leaves about a megabyte in reference cycles, and a collection takes as long as a short run.
_COLLECT_AFTER: Final = 16


class SimulationError(AssertionError):
    """A simulated program has failed: it cannot continue, has left an exception, or does not end."""


class SimulatedProcess:
    """A simulated process, with an event loop, a host, a clock and random numbers.

    Created by :meth:`Simulation.process`. Only code of the same process can await its tasks and futures.

    Attributes:
        name: the process's name, and by default the name of its host.
        incarnation: number of starts.
    """

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        main: Callable[..., Awaitable[Any]],
        arguments: tuple[object, ...],
        host: Host,
    ) -> None:
        self.name = name
        self.incarnation = 0
        self._simulation = simulation
        self._main = main
        self._arguments = arguments
        self._host = host
        self._ahead = 0.0
        self._loop: SimLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._retrieved = False
        self._done = False
        self._waiting: list[asyncio.Future[None]] = []
        self._stopping = False
        self._recorder: Recorder | None = None

    def __repr__(self) -> str:
        return f"<simulated process {self.name}, {self.state}>"

    @property
    def state(self) -> str:
        """The state: "running", "paused", "killed" or "ended"."""
        if self._loop is None or self._loop.dead:
            return "ended" if self._done else "killed"
        return "paused" if self._loop.paused else "running"

    @property
    def running(self) -> bool:
        """Whether the process's code may run, now or after :meth:`resume`."""
        return self._loop is not None and not self._loop.dead

    @property
    def clock(self) -> float:
        """Seconds by which the process's clock of the day is ahead of the simulation's."""
        return self._ahead

    def jump(self, seconds: float) -> None:
        """Set the clock of the day forward, or back with a negative number; the monotonic clock continues.

        Raises:
            UsageError: the seconds are no number.
        """
        self._ahead += _checks.number("seconds", seconds, -1e9, 1e9, unit="seconds")

    @property
    def recorder(self) -> Recorder:
        """The process's recorder in the simulation's history; a new recorder after each start."""
        if self._recorder is None:
            self._recorder = self._simulation.history.process(self.name)
        return self._recorder

    def busy(self, seconds: float) -> None:
        """Give the process no turn for a while, as blocking code or a slow machine does.

        Args:
            seconds: virtual seconds.
        """
        seconds = _checks.seconds("seconds", seconds)
        if self._loop is not None and not self._loop.dead:
            self._loop.busy(seconds)

    def start(self) -> None:
        """Start the process again after its end or a kill.

        Raises:
            StateError: the process is running.
        """
        if self.running:
            raise StateError(f"the process {self.name} is running")
        self.incarnation += 1
        simulation = self._simulation
        seed = f"{simulation.seed}/process/{self.name}/{self.incarnation}"
        engine = simulation._engine
        loop = self._loop = SimLoop(engine, self._host, self.name, Random(f"{seed}/threads"))
        simulation._loops.append(loop)
        pid = next(simulation._pids)
        world = _world.World(
            monotonic=engine.read,
            monotonic_ns=lambda: round(engine.read() * 1e9),
            time=self._time,
            time_ns=lambda: round(self._time() * 1e9),
            random=Random(seed),
            hostname=lambda: self._host.name,
            pid=lambda: pid,
            program=lambda: self.name,
            session_ids=count(1),
            simulated=True,
        )
        self._task, self._error, self._result = None, None, None
        self._retrieved = self._stopping = self._done = False
        self._host.up = True
        self._host.network._changed()
        context = copy_context()
        context.run(_world.world.set, world)
        self._context: Context = context
        loop.call_soon(self._begin, context=context)

    def _time(self) -> float:
        # Not read(): every log record has a time, and logging must not change the run.
        return _EPOCH - _START + self._simulation._engine.time() + self._ahead

    def _begin(self) -> None:
        assert self._loop is not None
        loop = self._loop
        self._task = loop.create_task(self._run(loop), name=self.name)
        # In a callback: a task cancelled before its first step runs no part of its coroutine.
        self._task.add_done_callback(lambda _: self._ended(loop))

    async def _run(self, loop: SimLoop) -> None:
        task = asyncio.current_task()
        try:
            self._result = await self._main(*self._arguments)
        except asyncio.CancelledError as error:
            if not self._stopping:
                self._error = error
        except Exception as error:
            # Cleanup that Python runs for a killed process, when its objects are released, does not count.
            if not loop.dead:
                self._error = error
        finally:
            if not loop.dead:
                await self._end_others(loop, task)

    async def _end_others(self, loop: SimLoop, task: asyncio.Task[Any] | None) -> None:
        others = [each for each in sorted(asyncio.all_tasks(loop), key=hash) if each is not task]
        for each in others:
            each.cancel()
        if others:
            await asyncio.gather(*others, return_exceptions=True)
        for each in others:
            if not each.cancelled() and each.exception() is not None:
                loop.call_exception_handler(
                    {"message": "a task failed while its process ended", "exception": each.exception()}
                )
        await loop.shutdown_asyncgens()

    def _ended(self, loop: SimLoop) -> None:
        self._done = True
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
        loop.kill()
        self._host.release(loop)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def kill(self, *, machine: bool = False) -> None:
        """End the process at once: no more code runs, no cleanup either. Idempotent.

        The kernel closes the process's connections, as after SIGKILL.

        Args:
            machine: whether the whole machine loses its power: peers hear nothing, and attempts to connect do
                not even fail, until the process is started again.
        """
        self._kill(machine=_checks.boolean("machine", machine))

    def _kill(self, *, machine: bool, sent: bool = True) -> None:
        """End the process; ``sent`` tells whether bytes that it sent may still arrive."""
        if self._loop is not None and not self._loop.dead:
            self._loop.problems.clear()
            self._loop.set_exception_handler(_ignore)
            self._loop.kill()
            if self._recorder is not None:
                self._simulation.history.killed(self.name)
                self._recorder = None
            self._host.up = not machine
            self._host.release(self._loop, sent=sent)
            self._wake()

    def pause(self) -> None:
        """Stop the process, as SIGSTOP does: peers still connect and send, without an answer. Idempotent."""
        if self._loop is not None and not self._loop.dead:
            self._loop.pause()

    def resume(self) -> None:
        """Continue the process after :meth:`pause`. Idempotent."""
        if self._loop is not None and not self._loop.dead:
            self._loop.resume()

    def stop(self) -> None:
        """Request the end of the process: its coroutine is cancelled, as by Ctrl-C. Idempotent."""
        loop = self._loop
        if loop is not None and not loop.dead:
            self._stopping = True
            loop.resume()
            loop.call_soon(self._cancel, context=self._context)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def restart(self) -> None:
        """Kill the process if it runs, and start it again."""
        self.kill()
        self.start()

    async def wait(self) -> Any:
        """Wait for the end of the process; return its coroutine's result, None after a kill.

        Raises:
            Exception: raised by the coroutine.

        Cancelling the call changes nothing.
        """
        if self.running:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        if self._error is not None:
            self._retrieved = True
            raise self._error
        return self._result if self.state == "ended" else None


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Drop the reports of a killed process."""


class _MortalBroker(Broker):
    """A broker whose process may end without any further code."""

    def vanish(self, forget: float = 0.0) -> None:
        self._abandon(forget)

    def forget(self) -> None:
        self._node.forget_all()


class SimulatedBroker:
    """A broker of a simulation, whose stored messages survive the death, restart or move of its process.

    Created by :meth:`Simulation.broker`.

    Attributes:
        broker: the broker itself: ``broker.queues``, ``broker.posted(uri)``, ``broker.faults``.
        process: the broker's process.
        uri: the addresses of all hosts, for clients.
        hosts: the names of all hosts, in the order of :meth:`failover`.
        port: the port.
    """

    def __init__(self, simulation: Simulation, hosts: Sequence[str], options: dict[str, Any]) -> None:
        self._simulation = simulation
        self.hosts = tuple(hosts)
        self._options = options
        self.port: int = options.setdefault("port", PORT)
        port = self.port
        self.uri = ",".join(f"tcp://{host}:{port}" for host in hosts)
        for host in hosts:
            simulation.network._host(host)
        home = simulation.network._host(hosts[0])
        self.process = SimulatedProcess(simulation, hosts[0], self._serve, (), home)
        home.booting = True
        self.process.start()
        self._broker: _MortalBroker = self.process._context.run(self._make)
        self.broker: Broker = self._broker
        self._graceful = True
        simulation._processes.append(self.process)

    def _make(self) -> _MortalBroker:
        options: dict[str, Any] = {"posts_kept": 10_000, **self._options}
        return _MortalBroker(host=self.hosts[0], **options)

    async def _serve(self) -> None:
        self.broker.host = self.process._host.name
        await self.broker.start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.broker.stop(graceful=self._graceful)

    @property
    def running(self) -> bool:
        """Whether the broker's process runs."""
        return self.process.running

    @property
    def host(self) -> str:
        """The present or last host."""
        return self.process._host.name

    def crash(self, *, machine: bool = False, lose: float = 0.0) -> None:
        """Kill the broker. Stored messages are available again after :meth:`start`. Idempotent.

        Args:
            machine: see :meth:`SimulatedProcess.kill`.
            lose: seconds; messages that arrived within this time were not stored yet, and are lost. A time
                longer than a segment's way to a client also loses acknowledged messages.
        """
        machine, lose = _checks.boolean("machine", machine), _checks.seconds("lose", lose)
        if self.process.running:
            # The acknowledgement of a message that was not stored yet never arrives.
            self.process._kill(machine=machine, sent=not lose)
            self._broker.vanish(lose)

    def start(self, host: str | None = None) -> None:
        """Start the broker after :meth:`crash`, with its stored messages.

        Args:
            host: another host of the broker; None for the last host.

        Raises:
            StateError: the broker is running.
            UsageError: the host was not given to :meth:`Simulation.broker`.
        """
        host = _checks.optional(_checks.text, "host", host)
        if host is not None:
            _checks.one_of("host", host, self.hosts)
        if self.process.running:
            raise StateError("the broker is running")
        if host is not None:
            self.process._host.up = True
            self.process._host = self._simulation.network._host(host)
        self.process.start()

    def restart(self, *, keep: bool = True) -> None:
        """Crash the broker if it runs, and start it again.

        Args:
            keep: whether messages survive.
        """
        keep = _checks.boolean("keep", keep)
        self.crash()
        if not keep:
            self._broker.forget()
        self.start()

    def failover(self) -> None:
        """Crash the broker, and start it on its next host with its stored messages.

        Raises:
            UsageError: the broker has only one host.
        """
        if len(self.hosts) < 2:
            raise UsageError("a broker needs a second host for a failover: sim.broker('node1', 'node2')")
        following = self.hosts[(self.hosts.index(self.host) + 1) % len(self.hosts)]
        self.crash(machine=True)
        self.start(following)

    def stop(self) -> None:
        """Request a clean end of the broker: it tells its clients, which return after the next start."""
        self.process.stop()


class Simulation:
    """A simulated world under virtual time: the same seed makes the same run, byte for byte.

    ::

        def test_orders_survive_a_crash():
            sim = bmq.testing.Simulation(seed=1)
            broker = sim.broker()

            async def shop():
                async with bmq.connect(broker.uri) as session:
                    queue = await session.open_queue(ORDERS, write=True)
                    await queue.post(b"order")

            async def main():
                process = sim.process("shop", shop)
                await asyncio.sleep(0.01)
                broker.restart()
                await process.wait()

            sim.run(main)

    Virtual time passes without waiting: an idle hour takes no time. The program's own ``time.time()``,
    ``time.monotonic()``, ``random``, ``secrets`` and ``uuid.uuid4()`` follow the simulation while it runs.

    Args:
        seed: decides the schedule, the network, and the program's numbers from ``random``.
        limit: virtual seconds after which the run is given up.

    Attributes:
        seed: the seed.
        network: the network.
        random: random numbers for the program's plan, independent of schedule and network.
        drawn: the results of :meth:`draw`, by name.
        fault_numbers: the numbers of the faults from :meth:`faults` so far.
        history: the operations of processes with a :attr:`recorder`, for :func:`bmq.testing.check`. Its clock
            is the simulation's.
        digest: a hash of all bytes on the network with their times.

    Raises:
        UsageError: the seed is no integer, or the limit is no duration.
    """

    #: Whether the program froze its heap before its first simulation; None before.
    _heap_frozen: ClassVar[bool | None] = None
    _runs: ClassVar[int] = 0

    def __init__(self, seed: int = 0, *, limit: float = 30 * 86400.0) -> None:
        self.seed = seed = _checks.integer("seed", seed, -_checks.INT64_MAX)
        self._limit = _checks.seconds("limit", limit, positive=True)
        schedule = Random(f"{seed}/schedule")
        self._engine = Engine(schedule, _START)
        self._engine.cost = schedule.choice((1e-7, 1e-6, 1e-6, 2e-5))
        self.network = SimulatedNetwork(self._engine, Random(f"{seed}/network"))
        self.random = Random(f"{seed}/program")
        self.drawn: dict[str, Any] = {}
        self._options = Random(f"{seed}/options")
        self._loops: list[SimLoop] = []
        self._processes: list[SimulatedProcess] = []
        self._pids = count(100)
        self._brokers: list[SimulatedBroker] = []
        self._faults_drawn = 0
        # The ends of the present faults, the oldest first.
        self._fault_ends: dict[object, Callable[[], object]] = {}
        self.fault_numbers: list[int] = []
        self.history = History(clock=self._true_time)
        self._past_faults: deque[str] = deque(maxlen=_LAST_FAULTS)
        self._over = False

    def _true_time(self) -> float:
        return _EPOCH - _START + self._engine.time()

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self._engine.now + self._engine.elapsed - _START

    @property
    def digest(self) -> str:
        """A hash of all bytes on the network with their times."""
        return self.network._hash.hexdigest()

    def draw(self, name: str, usual: T, *others: T) -> T:
        """Draw a value: the usual value in half of all seeds, otherwise another value, however absurd.

        Args:
            name: name of the value, for the report of a failure.
            usual: the usual value of programs.
            others: other values.
        """
        name = _checks.text("name", name)
        drawn = usual if not others or self._options.random() < 0.5 else self._options.choice(others)
        self.drawn[name] = drawn
        return drawn

    def note(self, what: str, *, number: int | None = None) -> None:
        """Note a fault caused by the program, for the history and the report of a failure.

        Args:
            what: the fault.
            number: the number of the fault; None for a fault outside of :meth:`faults`.
        """
        what = _checks.text("what", what)
        number = _checks.optional(_checks.integer, "number", number)
        numbered = what if number is None else f"{number}: {what}"
        self._past_faults.append(f"{self.now:12.6f} s  {numbered}")
        if number is not None:
            self.fault_numbers.append(number)
        self.history.fault(what)

    @property
    def recorder(self) -> Recorder:
        """The recorder of the running process in :attr:`history`, for ``interceptors`` and ``on_event``.

        Raises:
            StateError: no process of the simulation is running.
        """
        running = self._engine.running
        for each in self._processes:
            if each._loop is running and running is not None:
                return each.recorder
        raise StateError("sim.recorder is available only in the code of a process")

    async def faults(
        self,
        seconds: float,
        *,
        kinds: Sequence[SimulatedFault] | None = None,
        victims: Sequence[SimulatedProcess] = (),
        pause: tuple[float, float] = (0.02, 0.6),
        duration: tuple[float, float] = (0.01, 1.5),
    ) -> None:
        """Inject faults drawn from the seed, and end all faults at the end.

        Args:
            seconds: virtual seconds from the first fault to the end.
            kinds: the kinds to draw from; None for all.
            victims: processes that may be killed and restarted, paused, or have their clocks set.
            pause: minimum and maximum time between two faults, in seconds.
            duration: minimum and maximum duration of a fault, in seconds.

        Cancelling the call ends the faults too.
        """
        seconds = _checks.seconds("seconds", seconds)
        chosen = SIMULATED_FAULTS if kinds is None else _checks.items("kinds", kinds, "kinds of faults")
        for kind in chosen:
            _checks.one_of("kinds", kind, SIMULATED_FAULTS)
        victims = _checks.items("victims", victims, "processes")
        for victim in victims:
            _checks.choice("victims", victim, SimulatedProcess)
        low, high = sorted(_checks.seconds("pause", each) for each in pair("pause", pause))
        least, most = sorted(_checks.seconds("duration", each) for each in pair("duration", duration))
        faults = Faults(self, chosen, victims)
        try:
            until = self._engine.now + seconds
            await faults.run(until, (max(low, 1e-3), max(high, 1e-3)), (least, most))
        finally:
            self.heal()

    def heal(self) -> None:
        """End all faults: paths are open, brokers run, and processes stopped by :meth:`faults` run again.

        Connections with lost bytes stay broken, until an end notices.
        """
        self.network.heal()
        for token, end in list(self._fault_ends.items()):
            if self._fault_ends.pop(token, None) is not None:
                end()
        self.history.healed()

    def process(
        self, name: str, main: Callable[..., Awaitable[Any]], *arguments: object, host: str | None = None
    ) -> SimulatedProcess:
        """Start a process that runs a coroutine function, like ``asyncio.run``.

        Args:
            name: the process's name.
            main: the coroutine function.
            arguments: arguments of the function.
            host: the process's host; by default a separate host of the same name.

        Raises:
            UsageError: another process has the name.
        """
        name = _checks.text("name", name, empty=False)
        _checks.function("main", main, len(arguments))
        host = _checks.optional(_checks.text, "host", host)
        if any(each.name == name for each in self._processes):
            raise UsageError(f"the simulation already has a process {name!r}")
        if self._over:
            raise StateError("the simulation is over: create another simulation")
        process = SimulatedProcess(self, name, main, arguments, self.network._host(host or name))
        self._processes.append(process)
        process.start()
        return process

    def broker(self, *hosts: str, **options: Any) -> SimulatedBroker:
        """Start a broker.

        Args:
            hosts: the broker's host, and further hosts for moves; by default "broker".
            options: as for :class:`bmq.broker.Broker`, except ``host``.
        """
        names = [_checks.text("host", each, empty=False) for each in hosts or ("broker",)]
        broker = SimulatedBroker(self, names, options)
        self._brokers.append(broker)
        return broker

    async def until(self, condition: Callable[[], Any], timeout: float = 3600.0, every: float = 0.01) -> Any:
        """Wait until a condition is true; return the result.

        Args:
            condition: called repeatedly.
            timeout: virtual seconds to wait.
            every: virtual seconds between two calls.

        Raises:
            TimeoutError: the condition was not true in time.
        """
        _checks.function("condition", condition, 0, plain=True)
        timeout = _checks.seconds("timeout", timeout)
        every = _checks.seconds("every", every, positive=True)
        deadline = self._engine.now + timeout
        while not (value := condition()):
            if self._engine.now >= deadline:
                raise TimeoutError(f"not true after {timeout:g} virtual seconds")
            await asyncio.sleep(every)
        return value

    # running

    def run(self, main: Callable[..., Coroutine[Any, Any, T]], *arguments: object) -> T:
        """Run a coroutine function as the process ``main`` to its end; then end all other processes.

        Args:
            main: the coroutine function.
            arguments: arguments of the function.

        Returns:
            The function's result.

        Raises:
            StateError: the simulation has run already.
            UsageError: an event loop is running.
            SimulationError: no event can ever happen again; the limit has passed; a process failed, left an
                unretrieved exception, or does not end.
            Exception: raised by the coroutine.
        """
        slices = self._slices(main, arguments, self._limit)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: T = end.value
                return result

    def play(
        self, main: Callable[..., Coroutine[Any, Any, Any]], *arguments: object, every: float = 0.05
    ) -> Generator[float]:
        """Run a coroutine function as :meth:`run` does, in slices of virtual time.

        The caller decides how fast time passes. Between two slices the caller may draw the state, inject
        faults and start processes::

            for now in sim.play(main, every=0.1):
                draw(sim, now)

        Closing the generator kills all processes.

        Args:
            main: the coroutine function.
            arguments: arguments of the function.
            every: virtual seconds of a slice.

        Yields:
            The virtual seconds since the beginning, after each slice.

        Raises:
            StateError: the simulation has run already.
            UsageError: an event loop is running.
            SimulationError: as for :meth:`run`.
            Exception: raised by the coroutine.
        """
        every = _checks.seconds("every", every, positive=True)
        _checks.function("main", main, len(arguments))
        return self._slices(main, arguments, every)

    def _slices(
        self, main: Callable[..., Coroutine[Any, Any, T]], arguments: tuple[object, ...], every: float
    ) -> Generator[float, None, T]:
        """Run in slices of virtual time; return the function's result."""
        if self._over:
            raise StateError("the simulation is over: create another simulation")
        if asyncio.events._get_running_loop() is not None:
            raise UsageError("a simulation runs its own event loops: call run() outside coroutines")
        with replayed(self):
            with self._frozen(), _patched(self.seed):
                try:
                    process = self.process("main", main, *arguments)
                    limit = _START + self._limit
                    end = _START
                    while not self._ends(process, end := min(end + every, limit)):
                        if end >= limit or self._engine.idle:
                            raise SimulationError(self._stuck(process, limit))
                        self._engine.now = end
                        yield self.now
                    self._end()
                    problems = self._problems(process)
                finally:
                    self._over = True
                    for each in self._processes:
                        each.kill()
                    with _silence():
                        self._bury()
            if process._error is not None:
                for problem in problems:
                    process._error.add_note(f"and: {problem}")
                raise process._error
            if problems:
                raise SimulationError("\n".join(problems))
        result: T = process._result
        return result

    def _bury(self) -> None:
        """Release all objects of the processes."""
        self._engine.clear()
        self.network._clear()
        for each in self._processes:
            each._task = None
            each._waiting.clear()
        for loop in self._loops:
            loop.bury()
        # A traceback, or the program's own objects, may keep sessions for longer than the simulation lasts.
        disown(self._loops)

    def _ends(self, process: SimulatedProcess, until: float) -> bool:
        """Run until a process has ended, or until a time; return whether the process has ended."""
        # A process that ends may be started again at once.
        while process._loop is not None and not process._loop.dead:
            if not self._engine.run(process._loop, until):
                return False
        return True

    def _stuck(self, process: SimulatedProcess, until: float) -> str:
        why = (
            "no further event is possible"
            if self._engine.idle
            else f"{process.name} has not ended after {until - _START:g} virtual seconds"
        )
        return f"{why}; waiting tasks:\n{self.waiting()}"

    def waiting(self) -> str:
        """Return the waiting tasks with their positions, a line each."""
        lines: list[str] = []
        for each in self._processes:
            loop = each._loop
            if loop is None or loop.dead:
                continue
            tasks = sorted(asyncio.all_tasks(loop), key=hash)
            lines += [f"  {each.name}, {task.get_name()}: {place_of(task)}" for task in tasks]
        if len(lines) > _MOST_TASKS:
            lines[_MOST_TASKS:] = [f"  and {len(lines) - _MOST_TASKS} more"]
        return "\n".join(lines) or "  none"

    def _end(self) -> None:
        """End all processes cleanly: clients first, then brokers."""
        self.heal()
        brokers = [each.process for each in self._brokers]
        clients = [each for each in self._processes if each not in brokers]
        for group in (clients, brokers):
            for each in group:
                each.stop()
            until = self._engine.now + _GRACE
            while left := next((each for each in group if each.running), None):
                if not self._ends(left, until):
                    raise SimulationError(self._stuck(left, until))

    def _problems(self, main: SimulatedProcess) -> list[str]:
        """The unretrieved exceptions of processes."""
        # Exceptions of tasks and futures are reported at their collection.
        gc.collect()
        found: list[str] = []
        for process in self._processes:
            error = process._error
            if process is not main and error is not None and not process._retrieved:
                found.append(f"the process {process.name} failed:\n{_told(error)}")
        for loop in self._loops:
            for context in loop.problems:
                error = context.get("exception")
                told = _told(error) if isinstance(error, BaseException) else ""
                found.append(f"in the process {loop.name}: {context['message']}\n{told}".rstrip())
        return found

    @contextlib.contextmanager
    def _frozen(self) -> Generator[None]:
        """Collect garbage at points that depend on the run alone."""
        enabled = gc.isenabled()
        gc.disable()
        if Simulation._heap_frozen is None:
            # Counting visits each frozen object: done once in a program, not in each run.
            Simulation._heap_frozen = gc.get_freeze_count() > 0
        frozen = Simulation._heap_frozen
        Simulation._runs += 1
        # Garbage of earlier runs: no collection inside a run finds frozen objects.
        if frozen or Simulation._runs % _COLLECT_AFTER == 0:
            gc.collect()
        if not frozen:
            # Older garbage stays until the end, and living objects are not examined again and again.
            gc.freeze()
        try:
            yield
        finally:
            if not frozen:
                gc.unfreeze()
            if enabled:
                gc.enable()

    def report(self) -> str:
        """Return the description of a seed's run: the seed, drawn values, and the last faults."""
        drawn = ", ".join(f"{name}={value!r}" for name, value in self.drawn.items()) or "nothing"
        faults = "\n".join(f"  {each}" for each in self._past_faults) or "  none"
        history = "\n".join(f"  {line}" for line in self.history.tail(_LAST_EVENTS)) or "  nothing"
        return (
            f"seed {self.seed} after {self.now:.6f} virtual seconds\ndrawn: {drawn}\n"
            f"last faults:\n{faults}\nlast of the history:\n{history}"
        )


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


@contextlib.contextmanager
def _silence() -> Generator[None]:
    """Report nothing about the closed coroutines of killed processes."""
    before, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
            gc.collect()
    finally:
        sys.unraisablehook = before
        logging.disable(disabled)


@contextlib.contextmanager
def _patched(seed: int) -> Generator[None]:
    """Let the program's own clocks and random numbers follow the simulation.

    Other threads keep the real clocks: the world is a context variable.
    """
    current = _world.current
    real_sleep, real_urandom = time_module.sleep, os.urandom

    def sleep(seconds: float) -> None:
        if current().simulated:
            raise UsageError(
                "time.sleep() blocks the event loop: await asyncio.sleep() in a simulated process"
            )
        real_sleep(seconds)

    def urandom(size: int) -> bytes:
        return current().random.randbytes(size) if current().simulated else real_urandom(size)

    replaced: list[tuple[Any, str, Any]] = [
        (time_module, "time", _world.time),
        (time_module, "time_ns", _world.time_ns),
        (time_module, "monotonic", _world.monotonic),
        (time_module, "monotonic_ns", _world.monotonic_ns),
        (time_module, "perf_counter", _world.monotonic),
        (time_module, "perf_counter_ns", _world.monotonic_ns),
        (time_module, "sleep", sleep),
        (os, "urandom", urandom),
        (random_module, "_urandom", urandom),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    state = random_module.getstate()
    random_module.seed(f"{seed}/random")
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        random_module.setstate(state)


def simulated(
    *, seeds: int = 20, first: int = 1, limit: float = 30 * 86400.0
) -> Callable[[Callable[..., Coroutine[Any, Any, object]]], Callable[..., None]]:
    """Make a test of a coroutine function, run as the process ``main`` of a simulation for each seed.

    ::

        @bmq.testing.simulated(seeds=100)
        async def test_no_order_is_lost(sim):
            broker = sim.broker()
            ...

    A failure ends the test, and reports the seed, the drawn options, the last faults and the end of the
    history. With the seed in the environment variable ``BMQ_SIM_SEED`` the test runs only this seed, with the
    wire trace in the log.

    Args:
        seeds: the number of seeds.
        first: the first seed.
        limit: the virtual seconds after which a run is given up.

    Raises:
        UsageError: an argument is out of its range.
    """
    seeds = _checks.integer("seeds", seeds, 1)
    first = _checks.integer("first", first, -_checks.INT64_MAX)
    limit = _checks.seconds("limit", limit, positive=True)

    def decorate(test: Callable[..., Coroutine[Any, Any, object]]) -> Callable[..., None]:
        _checks.function("the test", test)
        if not inspect.iscoroutinefunction(test):
            raise UsageError("a simulated test must be a coroutine function: async def test(sim)")
        parameters = list(inspect.signature(test).parameters.values())
        if not parameters:
            raise UsageError("a simulated test must accept the simulation: async def test(sim)")

        @functools.wraps(test)
        def run(*fixtures: Any, **named: Any) -> None:
            for seed in seeds_to_run(first, seeds):
                simulation = Simulation(seed, limit=limit)
                simulation.run(functools.partial(test, simulation, *fixtures, **named))

        # The remaining parameters are pytest's fixtures.
        run.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
        del run.__wrapped__
        return run

    return decorate


def seeds_to_run(first: int, count: int) -> list[int]:
    """Return the seeds: from the arguments, or the seed in the environment.

    Raises:
        UsageError: the environment variable is no number.
    """
    given = os.environ.get(REPLAY)
    if not given:
        return list(range(first, first + count))
    try:
        return [int(given)]
    except ValueError:
        raise UsageError(f"{REPLAY}={given!r} is not a seed") from None


@contextlib.contextmanager
def replayed(simulation: Simulation) -> Generator[None]:
    """Add the way of repetition to a failure; trace a repeated run."""
    handler: logging.Handler | None = None
    before = os.environ.get("BMQ_TRACE")
    if os.environ.get(REPLAY):
        os.environ.setdefault("BMQ_TRACE", "on")
        handler = logging.StreamHandler()
        handler.setFormatter(_Virtual(simulation))
        logging.getLogger("bmq").addHandler(handler)
    try:
        yield
    except Exception as error:
        skipped = f" {SKIP}={os.environ[SKIP]}" if os.environ.get(SKIP) else ""
        error.add_note(f"{simulation.report()}\nrepeat the run with {REPLAY}={simulation.seed}{skipped}")
        raise
    finally:
        if handler is not None:
            logging.getLogger("bmq").removeHandler(handler)
            if before is None:
                os.environ.pop("BMQ_TRACE", None)


class _Virtual(logging.Formatter):
    """Log lines with virtual times."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._simulation.now:12.6f} {record.name}: {super().format(record)}"
