# SPDX-License-Identifier: Apache-2.0
"""A supervised process or thread as seen from outside, and the slot of such workers."""

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
from bmq._logging import Log
from bmq.cli.child import GRACE, inherited
from bmq.cli.lines import copy_lines, locks

__all__ = ["Process", "Slot", "SlotState", "Worker"]

logger = Log("bmq.run")

# Bytes of an answer.
_LONGEST: Final = 16 * 1024 * 1024


class SlotState(Enum):
    """The states of a slot."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    FINISHED = "finished"


class Worker(ABC):
    """A process or a thread that runs an app, as seen by the supervisor.

    Attributes:
        pid: number of the process in the operating system; None for a thread.
        ended: result is the exit status; negative for a signal.
        started: result is whether the app has started; False if the worker has ended before.
        hello: the first message of the worker; None so far.
        on_hello: called with the first message.
    """

    pid: int | None = None

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self.started: asyncio.Future[bool] = self._loop.create_future()
        self.hello: dict[str, Any] | None = None
        self.on_hello: Callable[[Worker], None] = lambda _: None
        self._questions: dict[str, asyncio.Future[tuple[int, bytes] | None]] = {}
        self._kill: asyncio.TimerHandle | None = None

    def _threadsafe(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return a function for other threads, which calls this function in the supervisor's event loop."""

        def call(*arguments: object) -> None:
            try:
                self._loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                pass  # the loop is closed

        return call

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
        if future is not None and not future.done():
            future.set_result(answer)

    @abstractmethod
    async def finished(self, timeout: float) -> int:
        """Wait for the end, and then at most this number of seconds for the last lines and messages.

        Returns:
            The exit status; negative for a signal.
        """

    @property
    def grace(self) -> float:
        """Seconds for the stop of the app."""
        grace = self.hello.get("grace") if self.hello is not None else None
        return float(grace) if isinstance(grace, int | float) and 0 <= grace < 1e6 else GRACE

    @abstractmethod
    def signal(self, number: int) -> None:
        """Ask the worker to stop; no effect after the end."""

    @abstractmethod
    def kill(self) -> None:
        """End the worker at once; no effect after the end."""

    def kill_after(self, delay: float, name: str) -> None:
        """Kill the worker after this number of seconds; no effect after the end and on a second call."""
        if self._kill is None and not self.ended.done():
            self._kill = self._loop.call_later(delay, self._force, delay, name)

    def _force(self, delay: float, name: str) -> None:
        logger.warning("%s has not ended within %g s, and is killed", name, delay)
        self.kill()


class Process(Worker):
    """A process of the operating system, with its channel."""

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
        if label is not None:
            self._copy(label)
        else:
            self._copied.set()
        self._listening = asyncio.create_task(self._listen(), name=f"listen to {self.pid}")
        threading.Thread(target=self._wait, name=f"wait for {self.pid}", daemon=True).start()

    def _copy(self, label: str) -> None:
        for stream, output, lock in zip(
            (self._popen.stdout, self._popen.stderr), (1, 2), locks(1, 2), strict=True
        ):
            assert stream is not None
            self._copying += 1
            copy_lines(os.dup(stream.fileno()), output, label, lock, self._threadsafe(self._one_copied))
            stream.close()

    def _one_copied(self) -> None:
        self._copying -= 1
        if not self._copying:
            self._copied.set()

    def _wait(self) -> None:
        self._threadsafe(self._end)(self._popen.wait())

    def _end(self, status: int) -> None:
        if self._kill is not None:
            self._kill.cancel()
        os.close(self._lifeline)
        self.ended.set_result(status)

    async def finished(self, timeout: float) -> int:
        """Wait for the end, and then at most this number of seconds for the last lines and messages.

        A program that the process has started may keep both open.

        Returns:
            The exit status; negative for a signal.
        """
        status = await self.ended
        try:
            async with asyncio.timeout(timeout):
                await self._copied.wait()
                await asyncio.wait([self._listening])
        except TimeoutError:
            pass
        self._listening.cancel()
        if not self.started.done():
            self.started.set_result(False)
        return status

    async def _listen(self) -> None:
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=self._channel)
            while line := await reader.readline():
                path, status, length = line.decode().split()
                if not 0 <= int(length) <= _LONGEST:
                    raise ValueError(length)
                self._take(path, int(status), await reader.readexactly(int(length)))
        except (OSError, EOFError, TypeError, ValueError, RecursionError) as error:
            logger.warning("the process %d sends malformed data, and is no longer asked: %s", self.pid, error)
        finally:
            (self._writer or self._channel).close()
            self._writer = None
            for future in self._questions.values():
                if not future.done():
                    future.set_result(None)

    def _take(self, path: str, status: int, body: bytes) -> None:
        if path == "/hello" and self.hello is None:
            self.hello = dict(json.loads(body))
            self.on_hello(self)
        elif path == "/started" and not self.started.done():
            self.started.set_result(True)
        else:
            self._answered(path, (status, body))

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
            and process.hello is not None
        )

    def enter(self, state: SlotState) -> None:
        """Change the state."""
        if state is not self.state:
            self.state, self.since = state, _world.now()
