# SPDX-License-Identifier: Apache-2.0
"""A session with counted calls, writes, wake-ups and objects, and a broker without counts.

No count depends on time, on the system or on other programs. The clock of the event loop stands still while
callbacks are ready, and jumps to the next timer afterwards. Bytes move in memory: the other side reads the
bytes in the next turn of the event loop, at most 256 KiB at a time, as asyncio reads a socket.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

import bmq
from bmq import _world
from bmq._caches import clear_caches
from bmq.testing._memory import MemoryBroker
from bmq.wire.ack import encode_acks
from bmq.wire.put import DecodedPut
from tests.fakes.broker import Connection
from tests.performance.server import Server as Acknowledging
from tests.performance.server import Tally

__all__ = ["URI", "Bench", "Server", "run"]

URI = "bmq://bmq.test.mem.priority/q"
#: The greatest number of bytes that asyncio reads from a socket at a time.
_READ = 256 * 1024
_BEGIN = 1000.0
_FOREVER = _BEGIN + 3600.0
_HERE = str(Path(__file__).parents[1])
_BMQ = Path(bmq.__file__).parent
#: Folders of the broker's side. Their functions, and all functions called from there, are not counted.
_BROKER = (
    *(str(_BMQ / each) for each in ("broker", "testing", "protocol/broker")),
    str(Path(_HERE) / "fakes"),
)
#: The replacement of orjson, where orjson has no wheel. orjson makes no calls.
_PLAIN_JSON = str(_BMQ / "_plain_json.py")
#: Tests and event loops differ between machines and versions of Python, and are not counted. The client's
#: functions called from there are counted.
_OTHERS = (_HERE, str(Path(asyncio.__file__).parent), selectors.__file__, "<frozen")


class Loop(asyncio.SelectorEventLoop):
    """asyncio's event loop, with a clock that jumps to the next timer when no callback is ready.

    Attributes:
        now: time of the clock in seconds.
        made: how many callbacks and timers were scheduled, by name.
    """

    def __init__(self) -> None:
        self.now = _BEGIN
        self.made: Counter[str] = Counter()
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self.made["callbacks"] += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self.made["timers"] += 1
        return super().call_at(when, callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def deliver(self, callback: Callable[[], object], context: Any) -> None:
        """Call a function in the next turn. The call replaces the operating system, and is not counted."""
        super().call_soon(callback, context=context)

    @property
    def live_timers(self) -> int:
        return sum(not timer.cancelled() for timer in self._scheduled)  # type: ignore[attr-defined]


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "every task waits, and no timer is set"
        if timeout > 0:
            self._loop.now += max(timeout, 1e-6)
            assert self._loop.now < _FOREVER, "what the test waits for does not happen"
        return super().select(0)


class Profiler:
    """Counts calls of Python and C functions, and new blocks of memory, in the current thread.

    The functions of the broker, and all functions called by the broker, are not counted. The functions of
    the tests and of the event loop are not counted either, nor are the C functions called from there. The
    client's functions called from there are counted.

    Between two calls or returns, the number of blocks in use by Python's allocator grows by the objects made
    in between and still alive: each is an allocation. Objects made and freed before the next call are not
    seen, nor are objects from a free list. The number does not depend on the machine, and needs only
    ``sys.getallocatedblocks()``, a function of every version. tracemalloc and the counters of the garbage
    collector only know the objects left in the end.

    Attributes:
        calls: number of calls.
        blocks: number of new blocks.
        by_name: calls by function; empty unless asked for.
    """

    def __init__(self, *, names: bool = False) -> None:
        self.calls = self.blocks = 0
        self.by_name: Counter[str] = Counter()
        self._names = names
        self._kinds: dict[CodeType, int] = {each.__code__: 1 for each in (Loop.time, Loop.time_ns)}
        self._hidden: FrameType | None = None
        self._before = sys.getallocatedblocks()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        hidden = self._hidden
        if hidden is None:
            grown = sys.getallocatedblocks() - self._before
            code = frame.f_code
            kind = self._kinds.get(code)
            if kind is None:
                kind = self._kinds[code] = _kind(code.co_filename)
            name = ""
            if event == "call":
                grown -= 1  # the frame object: only a profiler makes an object of a frame
                if kind == _HIDDEN:
                    self._hidden = frame
                elif kind:
                    self.calls += 1
                    name = code.co_qualname
            elif event == "c_call" and kind == _COUNTED:
                self.calls += 1
                name = argument.__qualname__
            if name and self._names:
                self.by_name[name] += 1
            if grown > 0:
                self.blocks += grown
        elif frame is hidden and event == "return":
            self._hidden = None
        else:
            return
        self._before = sys.getallocatedblocks()


_SKIPPED, _COUNTED, _HIDDEN = range(3)


def _kind(file: str) -> int:
    """Return how functions of a file are treated: counted, skipped, or hidden with all their callees."""
    if file.startswith(_BROKER) or file == _PLAIN_JSON:
        return _HIDDEN
    return _SKIPPED if file.startswith(_OTHERS) else _COUNTED


@dataclass
class Counts:
    """Counts of a block.

    Attributes:
        calls: function calls.
        allocations: new blocks of memory, see :class:`Profiler`.
        left: blocks of memory still in use at the end.
        writes: calls of the transport for writing: a system call each.
        reads: pieces of data from the transport: a system call each.
        callbacks: callbacks scheduled in the event loop, including the steps of tasks.
        timers: timers scheduled.
        live_timers: timers not yet due at the end.
        by_name: calls by function.
    """

    calls: int = 0
    allocations: int = 0
    left: int = 0
    writes: int = 0
    reads: int = 0
    callbacks: int = 0
    timers: int = 0
    live_timers: int = 0
    by_name: Counter[str] = field(default_factory=Counter[str])


def _soon(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], object], Any], object]:
    return lambda callback, context: loop.call_soon(callback, context=context)


class Side(asyncio.Transport):
    """A side of a connection in memory."""

    peer: Side

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, *, silent: bool) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        # Only Loop can exclude deliveries from the counts. A thread has an ordinary event loop.
        self._deliver_soon = loop.deliver if isinstance(loop, Loop) else _soon(loop)
        self._protocol = protocol
        self._silent = silent
        self._context = copy_context()
        self._inbox = bytearray()
        self._scheduled = self._paused = self._closing = False
        self.writes = self.reads = 0

    def begin(self) -> None:
        self._protocol.connection_made(self)

    def _look(self) -> None:
        if self._inbox and not (self._scheduled or self._paused or self._closing):
            self._scheduled = True
            self._deliver_soon(self._deliver, self._context)

    def _deliver(self) -> None:
        self._scheduled = False
        if self._closing or self._paused:
            return
        data = bytes(self._inbox[:_READ])
        del self._inbox[:_READ]
        self.reads += 1
        if self._silent:
            profiler = sys.getprofile()
            sys.setprofile(None)
            self._protocol.data_received(data)
            sys.setprofile(profiler)
        else:
            self._protocol.data_received(data)
        self._look()

    def write(self, data: Any) -> None:
        if not self._closing:
            self.writes += 1
            self.peer._inbox += data
            self.peer._look()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._look()

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._deliver_soon(lambda: self._protocol.connection_lost(None), self._context)
            self._deliver_soon(self.peer.close, self.peer._context)

    abort = close


class _Tally(Tally):
    """Keeps the acknowledgements ready, so that the counts of a path contain no work for them."""

    def posted(self, puts: list[DecodedPut]) -> None:
        server = cast("Server", self.server)
        server.post_count += len(puts)
        server.unacked += [(0, 0, put.guid, put.queue_id) for put in puts]


class _Connection(Connection):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        server = cast("Server", self.peer)
        if server.acknowledges:
            server.acknowledge()
        server.look()


class Server(Acknowledging):
    """A broker that acknowledges the posts of each read in one event, and delivers when told.

    Attributes:
        acknowledges: whether posts are acknowledged at once.
        unacked: the posts to be acknowledged.
    """

    running = True

    def __init__(self) -> None:
        super().__init__()
        self.acknowledges = True
        self.unacked: list[tuple[int, int, bytes, int]] = []

    def accept(self) -> Connection:
        return _Connection(self, _Tally(self))

    def acknowledge(self) -> None:
        """Acknowledge the posts received so far, a thousand posts in an event."""
        acks, self.unacked = self.unacked, []
        for start in range(0, len(acks), 1000):
            self.connection.send(encode_acks(acks[start : start + 1000]))


class Bench:
    """A session's surroundings: loop, connections, broker, and counts.

    Attributes:
        loop: the event loop.
        server: the scripted broker, used by every connection if ``broker`` is None.
        broker: a whole broker to use instead; None for the scripted broker.
        sides: the client's sides of the connections.
        counts: the counts of all measured blocks together.
    """

    uri = "tcp://127.0.0.1:1"

    def __init__(self, loop: Loop, *, names: bool = False) -> None:
        self.loop = loop
        self.server = Server()
        self.broker: MemoryBroker | None = None
        self.sides: list[Side] = []
        self.counts = Counts()
        self._names = names
        self._running: asyncio.AbstractEventLoop = loop

    async def connect_in_memory(
        self, factory: Callable[[], asyncio.Protocol], *_: Any, **__: Any
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        protocol = factory()
        accept = self.server.accept if self.broker is None else self.broker.accept
        loop = self._running = asyncio.get_running_loop()
        client = Side(loop, protocol, silent=False)
        server = Side(loop, cast("asyncio.Protocol", accept()), silent=self.broker is None)
        client.peer, server.peer = server, client
        self.sides.append(client)
        client.begin()
        server.begin()
        return client, protocol

    def in_loop(self, function: Callable[[], object]) -> None:
        """Call a function in another thread's event loop, and wait until the written bytes have arrived."""

        async def call() -> None:
            function()
            for _ in range(3):
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(call(), self._running).result()

    @contextmanager
    def counted(self) -> Generator[Counts]:
        """Count the calls, objects and writes of the block. The counts of several blocks add up."""
        counts, loop = self.counts, self.loop
        gc.collect()
        gc.disable()
        before = self._totals()
        profiler = Profiler(names=self._names)
        blocks = sys.getallocatedblocks()
        sys.setprofile(profiler)
        try:
            yield counts
        finally:
            sys.setprofile(None)
            gc.collect()  # free lists are no leftovers
            counts.left += sys.getallocatedblocks() - blocks
            gc.enable()
            counts.calls += profiler.calls
            counts.allocations += profiler.blocks
            counts.by_name += profiler.by_name
            for name, value in self._totals().items():
                setattr(counts, name, getattr(counts, name) + value - before[name])
            counts.live_timers = loop.live_timers

    @contextmanager
    def warming(self) -> Generator[None]:
        """Run the block without counting."""
        yield

    def _totals(self) -> dict[str, int]:
        return {
            "writes": sum(side.writes for side in self.sides),
            "reads": sum(side.reads for side in self.sides),
            "callbacks": self.loop.made["callbacks"],
            "timers": self.loop.made["timers"],
        }


def run(path: Callable[[Bench], Awaitable[object] | None], *, names: bool = False) -> Counts:
    """Run a path on a new event loop; return the counts of the measured blocks."""
    clear_caches()  # Entries left by other tests may change the path.
    loop = Loop()
    bench = Bench(loop, names=names)
    world = replace(
        _world.REAL,
        monotonic=loop.time,
        monotonic_ns=loop.time_ns,
        create_connection=bench.connect_in_memory,
    )
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    token = _world.world.set(world)
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            work = path(bench)
            if work is not None:
                runner.run(cast("Any", work))
    finally:
        _world.world.reset(token)
    assert not complaints, complaints
    return bench.counts
