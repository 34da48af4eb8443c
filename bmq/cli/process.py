# SPDX-License-Identifier: Apache-2.0
"""A supervised process or thread as seen from outside, and the output of processes.

Each output of a process has a thread, which copies whole lines with a label. A slow reader of the output
therefore slows the processes down, and never the event loop of the supervisor. A thread holds at most the
bytes of one read and of one unfinished line.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from bmq import _world
from bmq.cli.child import GRACE, inherited

__all__ = ["OUTPUT", "Process", "Slot", "SlotState", "Worker"]

#: Held while lines are written to standard output or error, which may be the same pipe.
OUTPUT: Final = threading.Lock()
_READ: Final = 64 * 1024
# Bytes of a line. The rest of a longer line begins another line.
_LONGEST: Final = 64 * 1024


class Worker(ABC):
    """A process or a thread that runs an app, as seen by the supervisor.

    Attributes:
        pid: number of the process in the operating system; None for a thread.
        hello: result is the first message: the addresses of the app's probes, and the grace of the app.
        started: result is whether the app has started; False if the worker has ended before.
        ended: result is the exit status; negative for a signal.
        forced: the end of a log line about a worker that does not stop in time.
    """

    pid: int | None = None
    forced: str

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.hello: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.started: asyncio.Future[bool] = self._loop.create_future()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._questions: dict[str, asyncio.Future[tuple[int, bytes] | None]] = {}

    def _threadsafe(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return a function for other threads, which calls this function in the supervisor's event loop."""

        def call(*arguments: object) -> None:
            try:
                self._loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                pass  # the loop is closed

        return call

    @property
    def grace(self) -> float:
        """Seconds for the stop of the app."""
        return float(self.hello.result()["grace"]) if self.hello.done() else GRACE

    @abstractmethod
    def _put(self, path: str) -> bool:
        """Send a question; return whether the worker can be asked."""

    async def ask(self, path: str, timeout: float) -> tuple[int, bytes] | None:
        """Return status and body of a page; None without an answer in time.

        A further question about the same page waits for the same answer.
        """
        future = self._questions.get(path)
        if future is None:
            if not self._put(path):
                return None
            future = self._questions[path] = self._loop.create_future()
        await asyncio.wait([future], timeout=timeout)
        return future.result() if future.done() else None

    def _answered(self, path: str, answer: tuple[int, bytes] | None) -> None:
        future = self._questions.pop(path, None)
        if future is not None:
            future.set_result(answer)

    async def finished(self, timeout: float) -> int:
        """Wait for the end, and then at most this number of seconds for the last lines and messages.

        Returns:
            The exit status; negative for a signal.
        """
        status = await self.ended
        for path in list(self._questions):
            self._answered(path, None)
        if not self.started.done():
            self.started.set_result(False)
        return status

    @abstractmethod
    def signal(self, number: int) -> None:
        """Ask the worker to stop; no effect after the end."""

    @abstractmethod
    def kill(self) -> None:
        """End the worker at once; no effect after the end."""


class Process(Worker):
    """A process of the operating system, with its channel; see :mod:`bmq.cli.child`."""

    forced = ", and is killed"

    def __init__(self, command: list[str], environment: dict[str, str], label: str | None) -> None:
        """Start the process.

        Raises:
            OSError: the process cannot be started.
        """
        super().__init__()
        self._writer: asyncio.StreamWriter | None = None
        # Number of outputs that are still copied.
        self._copying = 0
        self._copied = asyncio.Event()
        self._channel, channel = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        pipe = subprocess.PIPE if label is not None else None
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if label is not None else None,
                stdout=pipe,
                stderr=pipe,
                env={**environment, **inherited(channel.fileno(), lifeline, piped=label is not None)},
                pass_fds=(channel.fileno(), lifeline),
                start_new_session=True,
            )
        except OSError:
            self._channel.close()
            os.close(self._lifeline)
            raise
        finally:
            channel.close()
            os.close(lifeline)
        self.pid = self._popen.pid
        for output, stream in ((1, self._popen.stdout), (2, self._popen.stderr)):
            if stream is not None and label is not None:
                self._copying += 1
                source = os.dup(stream.fileno())
                stream.close()
                threading.Thread(
                    target=_copy_lines,
                    args=(source, output, label.encode(), self._threadsafe(self._one_copied)),
                    name=f"copy {label}",
                    daemon=True,
                ).start()
        self._listening = asyncio.create_task(self._listen(), name=f"listen to {self.pid}")
        threading.Thread(target=self._wait, name=f"wait for {self.pid}", daemon=True).start()

    def _one_copied(self) -> None:
        self._copying -= 1
        if not self._copying:
            self._copied.set()

    def _wait(self) -> None:
        self._threadsafe(self._end)(self._popen.wait())

    def _end(self, status: int) -> None:
        os.close(self._lifeline)
        self.ended.set_result(status)

    async def finished(self, timeout: float) -> int:
        """Wait for the end, and then at most this number of seconds for the last lines and messages.

        A program that the process has started may keep the outputs and the channel open.

        Returns:
            The exit status; negative for a signal.
        """
        await self.ended
        try:
            async with asyncio.timeout(timeout):
                if self._copying:
                    await self._copied.wait()
                await asyncio.wait([self._listening])
        except TimeoutError:
            pass
        self._listening.cancel()
        return await super().finished(timeout)

    async def _listen(self) -> None:
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=self._channel)
            while line := await reader.readline():
                path, status, length = line.decode().split()
                body = await reader.readexactly(int(length))
                if path == "/hello":
                    self.hello.set_result(json.loads(body))
                elif path == "/started":
                    self.started.set_result(True)
                else:
                    self._answered(path, (int(status), body))
        except (OSError, EOFError):
            pass  # the process has been killed
        finally:
            (self._writer or self._channel).close()
            self._writer = None

    def _put(self, path: str) -> bool:
        if self._writer is None:
            return False
        self._writer.write(path.encode() + b"\n")
        return True

    def signal(self, number: int) -> None:
        """Send a signal; no effect after the end."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill the process; no effect after the end."""
        self._popen.kill()


def _copy_lines(source: int, output: int, label: bytes, done: Callable[[], None]) -> None:
    """Copy lines with a label in front, until the end of the source; then close the source."""
    kept = b""
    try:
        while data := os.read(source, _READ):
            *lines, kept = (kept + data).split(b"\n")
            if len(kept) >= _LONGEST:
                lines.append(kept)
                kept = b""
            _write_lines(output, label, lines)
        if kept:
            _write_lines(output, label, [kept])
    except OSError:
        pass  # the reader of the output has gone: the process notices, as without a supervisor
    finally:
        os.close(source)
        done()


def _write_lines(output: int, label: bytes, lines: list[bytes]) -> None:
    rest = memoryview(b"".join(label + line + b"\n" for line in lines))
    with OUTPUT:
        while rest:
            rest = rest[os.write(output, rest) :]


class SlotState(Enum):
    """The states of a slot."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    FINISHED = "finished"


@dataclass(slots=True)
class Slot:
    """A numbered place for a process or a thread, over all restarts.

    Attributes:
        number: number from 1.
        kind: "process" or "thread".
        state: see :class:`SlotState`.
        since: start of the state, in UTC.
        process: present process, or the last one.
        failures: failures in a row.
        why: reason of the latest failure.
        restarts: number of restarts.
        recycled: set to replace the process, or to start the next one at once.
    """

    number: int
    kind: str = "process"
    state: SlotState = SlotState.STARTING
    since: datetime = field(default_factory=_world.now)
    process: Worker | None = None
    failures: int = 0
    why: str = ""
    restarts: int = 0
    recycled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """The name in log lines."""
        pid = self.process.pid if self.process is not None else None
        return f"{self.kind} {self.number}" + (f" (pid {pid})" if pid is not None else "")

    @property
    def asked(self) -> bool:
        """Whether the process can answer questions about the app."""
        process = self.process
        return (
            self.state in (SlotState.STARTING, SlotState.RUNNING)
            and process is not None
            and process.hello.done()
        )

    def enter(self, state: SlotState) -> None:
        """Change the state."""
        if state is not self.state:
            self.state, self.since = state, _world.now()
