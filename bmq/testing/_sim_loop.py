# SPDX-License-Identifier: Apache-2.0
# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false
"""Virtual time, and one event loop for each simulated process.

A simulation is a list of events, ordered by virtual time. Taking the next event moves the clock to the event,
without waiting. The seed decides the order of events at the same time.

Every process has a separate event loop, like a real process: tasks, locks and futures of two processes do not
mix, and a process can be stopped or killed alone. One event of the simulation is one turn of one loop: all
ready callbacks run, in the order of scheduling, as asyncio promises. The seed decides the process of the next
turn, the duration of the turn, and the times of timers and network events. The seed never breaks a promise of
asyncio, so each failure could really happen.

Callbacks take time, and so does reading a clock: a microsecond or several, drawn from the seed. A loop that
polls a clock therefore ends, and shares of a turn are used up as on a real machine. The loop's own ``time()``
is free, because the number of calls by asyncio depends on the version of Python.
"""

from __future__ import annotations

import asyncio
import gc
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

__all__ = ["Engine", "SimEvent", "SimLoop", "place_of"]

#: Cancelled events are swept out above this number, if they outnumber the rest.
_SWEEP: Final = 200
#: Events between two garbage collections: points that depend on the run alone.
_COLLECT: Final = 200_000
#: Awaits that the cleanup of a killed coroutine may make: a cleanup that never ends is given up.
_MOST_AWAITS: Final = 100


class SimEvent:
    """An event at a virtual time.

    Attributes:
        when: the virtual time.
        action: called at the time; None once cancelled or called.
    """

    __slots__ = ("_engine", "action", "arguments", "when")

    def __init__(self, engine: Engine, when: float, action: Callable[..., object], arguments: Any) -> None:
        self._engine = engine
        self.when = when
        self.action: Callable[..., object] | None = action
        self.arguments: Any = arguments

    def cancel(self) -> None:
        """Cancel the event; idempotent."""
        if self.action is not None:
            self.action = self.arguments = None
            self._engine.cancelled += 1


class Engine:
    """The clock of a simulation, and its events.

    Args:
        random: decides the order of events at the same time, and the duration of turns.
        start: the first virtual time, in seconds.

    Attributes:
        now: the virtual time.
        elapsed: part of the present turn so far, in seconds.
        cost: duration of a callback or of a reading of a clock, in seconds.
        turns: number of past events.
        cancelled: number of cancelled events in the list.
        running: the event loop with the present turn; None between turns.
    """

    def __init__(self, random: Random, start: float) -> None:
        self.now = start
        self.elapsed = 0.0
        self.cost = 1e-6
        self.turns = 0
        self.cancelled = 0
        self.running: SimLoop | None = None
        self._draw = random.random
        self._heap: list[tuple[float, float, int, SimEvent]] = []
        self._numbers = count()

    def time(self) -> float:
        """Return the time."""
        return self.now + self.elapsed

    def read(self) -> float:
        """Read a clock, which takes time."""
        if self.running is not None:
            self.elapsed += self.cost
        return self.now + self.elapsed

    def at(self, when: float, action: Callable[..., object], *arguments: object) -> SimEvent:
        """Schedule an event at a time, or now if the time has passed."""
        when = max(when, self.now)
        event = SimEvent(self, when, action, arguments)
        heapq.heappush(self._heap, (when, self._draw(), next(self._numbers), event))
        if self.cancelled > _SWEEP and self.cancelled * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each[3].action is not None]
            heapq.heapify(self._heap)
            self.cancelled = 0
        return event

    def run(self, loop: SimLoop, until: float) -> bool:
        """Run events as long as a loop lives; return False without an event before a time."""
        while not loop.dead:
            if not self._heap:
                return False
            when, _, _, event = self._heap[0]
            action = event.action
            if action is None:
                heapq.heappop(self._heap)
                self.cancelled -= 1
                continue
            if when > until:
                return False
            heapq.heappop(self._heap)
            self.now = when
            self.turns += 1
            event.action = None
            action(*event.arguments)
            if self.turns % _COLLECT == 0:
                gc.collect()
        return True

    def clear(self) -> None:
        """Forget all future events."""
        self._heap.clear()
        self.cancelled = 0

    @property
    def idle(self) -> bool:
        """Whether no event is left."""
        return all(each[3].action is None for each in self._heap)


class _Future(asyncio.Future[Any]):
    """A future whose place in a set follows from the run, not from its address."""

    __slots__ = ("_number",)

    def __init__(self, *, loop: SimLoop) -> None:
        self._number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """A task whose place in a set follows from the run, not from its address."""

    def __init__(self, coro: Any, *, loop: SimLoop, **options: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class _Timer(asyncio.TimerHandle):
    """A timer that cancels its event."""

    __slots__ = ("event",)

    event: SimEvent

    def cancel(self) -> None:
        super().cancel()
        self.event.cancel()


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process.

    Args:
        engine: the clock and the events.
        host: the machine of the process.
        name: the process's name, for people.
        random: decides the duration of calls in threads.

    Attributes:
        engine: the clock and the events.
        host: the machine.
        name: the process's name.
        dead: whether the process was killed, or has ended.
        numbers: the numbers of futures and tasks.
        problems: reports to the exception handler.
    """

    def __init__(self, engine: Engine, host: Host, name: str, random: Random) -> None:
        super().__init__()
        self._thread_id: int | None = -1  # as if running, for the life of the process
        self.engine = engine
        self.host = host
        self.name = name
        self.dead = False
        self.numbers = count(1)
        self.problems: list[dict[str, Any]] = []
        self._random = random
        self._paused = False
        self._turn_event: SimEvent | None = None
        self._busy_until = 0.0
        self._names = count(1)
        #: Kept until the end of the simulation: closing a coroutine would run its cleanup.
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
            if not self.is_closed():  # after the burial nothing is kept
                self.remains.append(handle)
            return
        self._ready.append(handle)  # type: ignore[attr-defined]
        engine = self.engine
        # The end of a turn schedules the next turn anyway.
        if self._turn_event is None and not self._paused and engine.running is not self:
            self._turn_event = engine.at(max(engine.now + engine.elapsed, self._busy_until), self._turn)

    def _turn(self) -> None:
        self._turn_event = None
        engine, loop = (
            self.engine,
            cast("Any", self),
        )  # asyncio does not declare the common part of its loops
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
        """Whether the loop has no turns."""
        return self._paused

    def busy(self, seconds: float) -> None:
        """Delay the next turn by some seconds at least: the machine is busy."""
        self._busy_until = max(self._busy_until, self.engine.now) + seconds
        if self._turn_event is not None:
            self._turn_event.cancel()
            self._turn_event = self.engine.at(self._busy_until, self._turn)

    def kill(self) -> None:
        """End the loop without running more code of the process."""
        if not self.dead:
            self.dead = True
            self.pause()
            self.remains += asyncio.all_tasks(self)
            self.remains += self._ready  # type: ignore[attr-defined]
            self._ready.clear()  # type: ignore[attr-defined]

    def __del__(self) -> None:
        """Close nothing: the loop has no file descriptor."""

    def bury(self) -> None:
        """Release all objects of a killed process; its coroutines are closed.

        The program may keep tasks for longer, in a module's variable for instance. Python would run their
        cleanup at a later collection, perhaps inside another simulation, and report its errors there.
        """
        self.dead = True
        self._thread_id = None
        self.close()  # first: cleanup schedules nothing
        for task in sorted(asyncio.all_tasks(self), key=hash):
            _close(task.get_coro())
        self.remains.clear()

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
        """Call a function like a thread, after a time drawn from the seed, without a thread."""
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
        """Do nothing: the loop has no executor."""

    # the network

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """Look a host of the simulation up."""
        await asyncio.sleep(0)
        address = self.host.resolve(host.decode() if isinstance(host, bytes) else host)
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


def _close(coroutine: Any) -> None:
    """Close a coroutine whose cleanup may fail, or await."""
    for _ in range(_MOST_AWAITS):
        try:
            coroutine.close()
        except KeyboardInterrupt:
            raise
        except BaseException:  # of the cleanup; or RuntimeError: the cleanup awaits
            pass
        if getattr(coroutine, "cr_frame", None) is None:
            return


#: Arguments of create_connection and create_server beside host and port, without an effect here.
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
            f"loop.{name}() does not exist in a simulation, which has no sockets, pipes or signals"
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
    """Return a task's position: the innermost places of its coroutines, the outermost first."""
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
