# SPDX-License-Identifier: Apache-2.0
# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false
"""Virtual time, and one event loop for each simulated process.

A simulation is a list of events, ordered by virtual time. Taking the next event moves the clock to that
event: nothing ever waits. Events at the same time are taken in an order that the seed draws.

Every process has an event loop of its own, as a real process has: tasks, locks and futures of two processes
do not mix, and a process can be stopped or killed alone. One event of the simulation is one turn of one loop:
all callbacks that are ready run, in the order in which they were scheduled, as asyncio promises. The seed
decides which process has the next turn, how long its turn takes, and when its timers and its network events
come; it never breaks a promise of asyncio, so each failure is one that could happen.

Callbacks take time, and so does reading a clock: a microsecond or several, drawn from the seed. A loop that
polls a clock ends, and shares of a turn are used up as on a real machine. The loop's own ``time()`` is free:
how often asyncio calls it depends on the version of Python.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
import sys
from asyncio import events as asyncio_events
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from random import Random
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, Final, cast

from bmq.errors import UsageError

if TYPE_CHECKING:
    from bmq.testing._sim_network import Host

__all__ = ["Engine", "Event", "SimLoop", "place_of"]

#: Cancelled events are swept out when there are so many, and more of them than others.
_SWEEP: Final = 200
#: Each so many events garbage is collected: at points that depend on the run alone.
_COLLECT: Final = 200_000


class Event:
    """Something that happens at a time.

    Attributes:
        when: the virtual time.
        action: called then; None once it is cancelled or has happened.
    """

    __slots__ = ("_engine", "action", "arguments", "when")

    def __init__(self, engine: Engine, when: float, action: Callable[..., object], arguments: Any) -> None:
        self._engine = engine
        self.when = when
        self.action: Callable[..., object] | None = action
        self.arguments: Any = arguments

    def cancel(self) -> None:
        """Have it not happen; idempotent."""
        if self.action is not None:
            self.action = self.arguments = None
            self._engine.cancelled += 1


class Engine:
    """The clock of a simulation, and its events.

    Args:
        random: decides the order of events at the same time, and how long turns take.
        start: the first virtual time, in seconds.

    Attributes:
        now: the virtual time.
        elapsed: how much of the present turn has passed, in seconds.
        cost: how long a callback or a reading of a clock takes, in seconds.
        turns: the number of events that have happened.
        cancelled: the number of cancelled events that are still in the list.
        running: the event loop that has its turn; None between turns.
    """

    def __init__(self, random: Random, start: float) -> None:
        self.random = random
        self.now = start
        self.elapsed = 0.0
        self.cost = 1e-6
        self.turns = 0
        self.cancelled = 0
        self.running: SimLoop | None = None
        self._heap: list[tuple[float, float, int, Event]] = []
        self._numbers = count()

    def time(self) -> float:
        """Return the time."""
        return self.now + self.elapsed

    def read(self) -> float:
        """Read a clock, which takes time."""
        if self.running is not None:
            self.elapsed += self.cost
        return self.now + self.elapsed

    def at(self, when: float, action: Callable[..., object], *arguments: object) -> Event:
        """Have something happen at a time, or now if that time has passed."""
        event = Event(self, max(when, self.now), action, arguments)
        heapq.heappush(self._heap, (event.when, self.random.random(), next(self._numbers), event))
        if self.cancelled > _SWEEP and self.cancelled * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each[3].action is not None]
            heapq.heapify(self._heap)
            self.cancelled = 0
        return event

    def step(self, until: float) -> bool:
        """Have the next event happen; return False if there is none before a time."""
        heap = self._heap
        while heap:
            when, _, _, event = heap[0]
            if event.action is None:
                heapq.heappop(heap)
                self.cancelled -= 1
                continue
            if when > until:
                return False
            heapq.heappop(heap)
            self.now = when
            self.turns += 1
            action, event.action = event.action, None
            action(*event.arguments)
            return True
        return False

    def clear(self) -> None:
        """Forget everything that would happen."""
        self._heap.clear()
        self.cancelled = 0

    @property
    def idle(self) -> bool:
        """Whether nothing will ever happen again."""
        return all(each[3].action is None for each in self._heap)

    @property
    def collect_now(self) -> bool:
        """Whether it is time to collect garbage."""
        return self.turns % _COLLECT == 0


class _Future(asyncio.Future[Any]):
    """A future whose place in a set follows from the run, and not from its address."""

    __slots__ = ("_number",)

    def __init__(self, *, loop: SimLoop) -> None:
        self._number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """A task whose place in a set follows from the run, and not from its address."""

    def __init__(self, coro: Any, *, loop: SimLoop, **options: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class _Timer(asyncio.TimerHandle):
    """A timer that takes its event along when it is cancelled."""

    __slots__ = ("event",)

    event: Event

    def cancel(self) -> None:
        super().cancel()
        self.event.cancel()


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process.

    Args:
        engine: the clock and the events.
        host: the machine on which the process runs.
        name: the process's name, for people.
        random: how long calls in threads take.

    Attributes:
        engine: the clock and the events.
        host: the machine.
        name: the process's name.
        dead: whether the process was killed, or has ended.
        numbers: the numbers of futures and tasks.
        problems: what was reported to the exception handler.
    """

    def __init__(self, engine: Engine, host: Host, name: str, random: Random) -> None:
        super().__init__()
        self._thread_id: int | None = -1  # it runs as long as its process does
        self.engine = engine
        self.host = host
        self.name = name
        self.dead = False
        self.numbers = count(1)
        self.problems: list[dict[str, Any]] = []
        self._random = random
        self._paused = False
        self._turn_event: Event | None = None
        self._busy_until = 0.0
        self._names = count(1)
        #: Kept until the simulation is over: closing a coroutine would run its cleanup.
        self.remains: list[object] = []
        self.set_exception_handler(lambda _, context: self.problems.append(context))
        self._hooks = (self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)  # type: ignore[attr-defined]

    # turns

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self.engine.time()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call in the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._schedule(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call after some seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at a virtual time."""
        timer = _Timer(when, callback, args, self, context)
        timer.event = self.engine.at(when, self._schedule, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _schedule(self, handle: asyncio.Handle) -> None:
        if self.dead:
            self.remains.append(handle)
            return
        self._ready.append(handle)  # type: ignore[attr-defined]
        engine = self.engine
        # At the end of a turn the next one is scheduled anyway.
        if self._turn_event is None and not self._paused and engine.running is not self:
            self._turn_event = engine.at(max(engine.now + engine.elapsed, self._busy_until), self._turn)

    def _turn(self) -> None:
        self._turn_event = None
        engine, loop = (
            self.engine,
            cast("Any", self),
        )  # asyncio does not declare what its loops have in common
        ready = loop._ready
        engine.running = self
        engine.elapsed = 0.0
        before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*loop._hooks)
        asyncio_events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle: Any = ready.popleft()
                if not handle._cancelled:
                    engine.elapsed += engine.cost
                    handle._run()
                if self.dead or self._paused:
                    break
        finally:
            asyncio_events._set_running_loop(None)
            sys.set_asyncgen_hooks(*before)
            engine.running = None
            self._busy_until = engine.now + engine.elapsed
            engine.elapsed = 0.0
        if ready and not self.dead and not self._paused:
            self._turn_event = engine.at(self._busy_until, self._turn)

    # the life of the process

    def pause(self) -> None:
        """Stop having turns."""
        self._paused = True
        if self._turn_event is not None:
            self._turn_event.cancel()
            self._turn_event = None

    def resume(self) -> None:
        """Have turns again."""
        if self._paused:
            self._paused = False
            if self._ready and not self.dead:  # type: ignore[attr-defined]
                self._turn_event = self.engine.at(self.engine.now, self._turn)

    @property
    def paused(self) -> bool:
        """Whether it has no turns."""
        return self._paused

    def busy(self, seconds: float) -> None:
        """Have the next turn after some seconds at the earliest: the machine does something else."""
        self._busy_until = max(self._busy_until, self.engine.now) + seconds
        if self._turn_event is not None:
            self._turn_event.cancel()
            self._turn_event = self.engine.at(self._busy_until, self._turn)

    def kill(self) -> None:
        """End it without running any more of its code."""
        if not self.dead:
            self.dead = True
            self.pause()
            self.remains += asyncio.all_tasks(self)
            self.remains += self._ready  # type: ignore[attr-defined]
            self._ready.clear()  # type: ignore[attr-defined]

    def __del__(self) -> None:
        """Nothing has to be closed: there is no file descriptor."""

    def bury(self) -> None:
        """Let go of everything a killed process has left; its coroutines are closed."""
        self.dead = True
        self._thread_id = None
        self.remains.clear()
        self.close()

    # tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future."""
        return _Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        """Make a task."""
        if self.get_task_factory() is not None:
            return super().create_task(coro, name=name, **options)
        return _Task(coro, loop=self, name=name or f"Task-{next(self._names)}", **options)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call a function as a thread would, after a while that the seed draws; no thread is involved."""
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._random.choice((1e-5, 1e-3, 0.05)) * self._random.random(), call)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    # the network

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """Look a host of the simulation up."""
        await asyncio.sleep(0)
        address = self.host.resolve(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """Connect to a host of the simulation."""
        _refuse_options("create_connection", options)
        return await self.host.connect(self, protocol_factory, host, port)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """Listen on this process's host."""
        _refuse_options("create_server", options)
        await asyncio.sleep(0)
        return self.host.listen(self, protocol_factory, host, port)


#: What create_connection and create_server take besides host and port, and what does not matter here.
_HARMLESS: Final = {
    "family", "proto", "flags", "local_addr", "happy_eyeballs_delay", "interleave", "all_errors",
    "ssl_handshake_timeout", "ssl_shutdown_timeout", "server_hostname", "backlog", "reuse_address",
    "reuse_port", "keep_alive", "start_serving",
}  # fmt: skip


def _refuse_options(name: str, options: dict[str, Any]) -> None:
    if options.get("ssl"):
        raise UsageError("the simulated network has no TLS: use tcp:// addresses in a simulation")
    for each, value in options.items():
        if each not in _HARMLESS and value is not None and each != "ssl":
            raise UsageError(f"the simulated network does not know {name}({each}=...)")


def _without(name: str) -> Callable[..., Any]:
    def refuse(self: SimLoop, *args: object, **options: object) -> Any:
        raise UsageError(
            f"loop.{name}() does not exist in a simulation, which has no sockets, pipes and signals"
        )

    refuse.__name__ = name
    return refuse


for _name in (
    "add_reader", "remove_reader", "add_writer", "remove_writer", "sock_recv", "sock_recv_into",
    "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect",
    "sock_accept", "sock_sendfile", "create_datagram_endpoint", "create_unix_connection",
    "create_unix_server", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe",
    "subprocess_shell", "subprocess_exec", "add_signal_handler", "remove_signal_handler",
    "start_tls", "sendfile", "run_forever", "run_until_complete",
):  # fmt: skip
    setattr(SimLoop, _name, _without(_name))


def place_of(task: asyncio.Task[Any]) -> str:
    """Return where a task waits: the innermost places of its coroutines, the outermost first."""
    places: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None and len(places) < 12:
        frame: FrameType | None = None
        if isinstance(waiting, CoroutineType):
            frame, following = waiting.cr_frame, waiting.cr_await
        elif hasattr(waiting, "ag_frame"):
            frame, following = waiting.ag_frame, waiting.ag_await
        else:
            frame, following = getattr(waiting, "gi_frame", None), getattr(waiting, "gi_yieldfrom", None)
        if frame is not None:
            code = frame.f_code
            file = "/".join(code.co_filename.split("/")[-2:])
            places.append(f"{code.co_qualname} ({file}:{frame.f_lineno})")
        waiting = following
    return " > ".join(places) or repr(task)
