# SPDX-License-Identifier: Apache-2.0
"""Time, randomness and identity: the single source for the whole library.

A program runs in the real world, with the machine's clocks, the operating system's random numbers, and the
process's own id. A simulated program runs in a separate world, whose clocks and random numbers derive from a
seed. Each simulated process has its own world, so the clocks of two processes may differ.

The world is a context variable. Tasks and callbacks inherit the context, so code finds its world without a
parameter, while other threads stay in the real world. A lookup costs as much as reading a clock. Code that
reads a clock for each message fetches the clock's function from :func:`current` once.

Random numbers of the real world come from :class:`random.SystemRandom`: tokens stay unpredictable, and
processes that seed the shared generator equally do not wait in step.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time as _time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random, SystemRandom
from typing import Any, Final
from uuid import UUID

__all__ = [
    "REAL",
    "World",
    "current",
    "hostname",
    "monotonic",
    "monotonic_ns",
    "now",
    "pid",
    "program",
    "rng",
    "time",
    "time_ns",
    "token_bytes",
    "token_hex",
    "uuid4",
    "world",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Time, randomness and identity of a process.

    Attributes:
        monotonic: returns the seconds of a monotonic clock.
        monotonic_ns: returns the same in nanoseconds.
        time: returns seconds since 1970; may jump.
        time_ns: returns the same in nanoseconds.
        random: random numbers.
        hostname: returns the name of the host.
        pid: returns the number of the process.
        program: returns the name of the program.
        session_ids: numbers of the process's sessions.
        simulated: whether the world has no sockets and no threads. The event loop then creates servers, and
            its executor runs functions.
        create_connection: connects instead of the event loop's method, with the same arguments; None for the
            event loop's. A test connects an app to a broker in memory.
        after: calls a function after a number of seconds by the world's clock, and returns a function that
            cancels the call; None for the event loop's timers. The third argument is whether the call is
            routine: no message waits for it. See :func:`bmq._loop.timeout`.
    """

    monotonic: Callable[[], float]
    monotonic_ns: Callable[[], int]
    time: Callable[[], float]
    time_ns: Callable[[], int]
    random: Random
    hostname: Callable[[], str]
    pid: Callable[[], int]
    program: Callable[[], str]
    session_ids: Iterator[int]
    simulated: bool = False
    create_connection: Callable[..., Awaitable[tuple[Any, Any]]] | None = None
    after: Callable[[float, Callable[[], object], bool], Callable[[], None]] | None = None


class _Numbers:
    """The numbers from 1, each only once.

    Without a GIL, ``itertools.count`` may give two threads the same number, and two sessions with one number
    could give their messages the same GUIDs.
    """

    __slots__ = ("_last", "_lock")

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._lock:
            self._last += 1
            return self._last


def _program() -> str:
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"


REAL: Final = World(
    _time.monotonic,
    _time.monotonic_ns,
    _time.time,
    _time.time_ns,
    SystemRandom(),
    socket.gethostname,
    os.getpid,
    _program,
    _Numbers(),
)

#: The world of the running code.
world: Final[ContextVar[World]] = ContextVar("bmq_world", default=REAL)
#: Returns the world of the running code.
current: Final[Callable[[], World]] = world.get


def monotonic() -> float:
    """Return the seconds of a monotonic clock."""
    return current().monotonic()


def monotonic_ns() -> int:
    """Return the nanoseconds of a monotonic clock."""
    return current().monotonic_ns()


def time() -> float:
    """Return seconds since 1970."""
    return current().time()


def time_ns() -> int:
    """Return nanoseconds since 1970."""
    return current().time_ns()


def now() -> datetime:
    """Return the date and time, in UTC."""
    return _EPOCH + timedelta(microseconds=current().time_ns() // 1000)


def rng() -> Random:
    """Return the source of random numbers."""
    return current().random


def token_bytes(size: int) -> bytes:
    """Return random bytes, unpredictable in the real world."""
    return current().random.randbytes(size)


def token_hex(size: int) -> str:
    """Return this number of random bytes in hexadecimal, unpredictable in the real world."""
    return token_bytes(size).hex()


def uuid4() -> UUID:
    """Return a random UUID."""
    return UUID(bytes=token_bytes(16), version=4)


def hostname() -> str:
    """Return the name of the host."""
    return current().hostname()


def pid() -> int:
    """Return the number of the process."""
    return current().pid()


def program() -> str:
    """Return the name of the program."""
    return current().program()
