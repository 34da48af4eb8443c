# SPDX-License-Identifier: Apache-2.0
"""Follow one action through the files of the library.

``python -m tests.performance.moves`` prints the calls, functions, files and moves of each action. A *move* is
a call of a function in another file than the call before. ``python -m tests.performance.moves ACTION`` prints
the path of an action: a line for each move, with the functions called in the file.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import bmq
from bmq._caches import clear_caches
from bmq._turn import turn_of
from bmq.events import SessionEvent, StateRestored
from tests.performance.server import Server

__all__ = ["ACTIONS", "Trace", "measure"]

PACKAGE = str(Path(bmq.__file__).parent)
#: The replacement of orjson, where orjson has no wheel. orjson makes no calls.
PLAIN_JSON = str(Path(PACKAGE) / "_plain_json.py")
URI = "bmq://bmq.test.mem.priority/q"
_ROUNDS = 12
_WARM = 4


@dataclass(slots=True)
class Trace:
    """The calls of the library's functions, in order.

    Attributes:
        path: file and function of each call.
    """

    path: list[tuple[str, str]] = field(default_factory=list)
    _hidden: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self._hidden is not None:
            if self._hidden is frame and event == "return":
                self._hidden = None
        elif event == "call" and code.co_filename == PLAIN_JSON:
            self._hidden = frame
        # A comprehension is part of its function.
        elif event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name[0] != "<":
            self.path.append((code.co_filename[len(PACKAGE) + 1 :], code.co_qualname))

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record inside the block, without the finalizers of garbage.

        The clock of the shares stands: on a busy machine, a share would end in the middle of the action.
        """
        turn = turn_of(asyncio.get_running_loop())
        clock, now = turn.clock, turn.clock()
        turn.clock = lambda: now
        gc.disable()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            gc.enable()
            turn.clock = clock

    @property
    def calls(self) -> int:
        return len(self.path)

    @property
    def functions(self) -> int:
        return len(set(self.path))

    @property
    def files(self) -> int:
        return len({file for file, _ in self.path})

    @property
    def moves(self) -> int:
        return sum(one[0] != other[0] for one, other in itertools.pairwise(self.path)) + bool(self.path)

    def lines(self) -> Iterator[str]:
        """Return the path, one line for each file."""
        for file, calls in itertools.groupby(self.path, lambda call: call[0]):
            yield f"{file}: {' '.join(function for _, function in calls)}"


@dataclass(slots=True)
class Scene:
    """A session with one queue, and the broker."""

    server: Server
    session: bmq.Session
    queue: bmq.Queue
    turn: int = 0

    async def post(self, trace: Trace) -> None:
        """Post one message while no other is pending, and await the outcome."""
        before = self.server.post_count
        with trace.on():
            task = asyncio.ensure_future(self.queue.post(b"payload"))
            await self.server.until(lambda: self.server.post_count > before)
        self.server.acknowledge()
        with trace.on():
            await task

    async def push(self, trace: Trace) -> None:
        """Receive one message, look at a property, and confirm the message."""
        with trace.on():
            waiting = asyncio.ensure_future(self.queue.receive())
            await asyncio.sleep(0)
        before = self.server.confirm_count
        self.server.deliver(1, b"payload", {"CustomerId": 1234})
        with trace.on():
            message = await waiting
            assert message.properties["CustomerId"] == 1234
            message.confirm()
            await self.server.until(lambda: self.server.confirm_count > before)

    async def configure(self, trace: Trace) -> None:
        """Change the priority of a subscription."""
        self.turn += 1
        with trace.on():
            await self.queue.configure(priority=self.turn)

    async def open(self, trace: Trace) -> None:
        """Open a queue for writing and reading."""
        self.turn += 1
        with trace.on():
            await self.session.open_queue(
                f"{URI}{self.turn}", read=True, write=True, default_subscription=True
            )

    async def reconnect(self, trace: Trace) -> None:
        """Lose the connection, and restore the session with its queue."""
        events = self.session.events()
        waiting = asyncio.ensure_future(_restored(events))
        await asyncio.sleep(0)
        self.server.cut()
        with trace.on():
            await waiting


async def _restored(events: AsyncIterator[SessionEvent]) -> None:
    async for event in events:
        if isinstance(event, StateRestored):
            return


#: What is followed, by its name in ``docs/design.md``.
ACTIONS: dict[str, Callable[[Scene, Trace], Awaitable[None]]] = {
    "post": Scene.post,
    "push": Scene.push,
    "configure": Scene.configure,
    "open": Scene.open,
    "reconnect": Scene.reconnect,
}


async def measure(name: str) -> Trace:
    """Perform an action several times; return the shortest trace of those after the first ones."""
    traces: list[Trace] = []
    clear_caches()  # What other tests have left there may take another way.
    logging.disable()  # Handlers of a program ask for texts, which takes calls of their own.
    async with Server() as server, bmq.connect(server.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True, default_subscription=True)
        scene = Scene(server, session, queue)
        for _ in range(_ROUNDS):
            trace = Trace()
            await ACTIONS[name](scene, trace)
            traces.append(trace)
    logging.disable(logging.NOTSET)
    return min(traces[_WARM:], key=lambda trace: (trace.moves, trace.calls))


def main() -> None:
    if len(sys.argv) > 1:
        for line in asyncio.run(measure(sys.argv[1])).lines():
            print(line)
        return
    print("| action | calls | functions | files | moves |")
    print("| --- | --- | --- | --- | --- |")
    for name in ACTIONS:
        trace = asyncio.run(measure(name))
        print(f"| {name} | {trace.calls} | {trace.functions} | {trace.files} | {trace.moves} |")


if __name__ == "__main__":
    main()
