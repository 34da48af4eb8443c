# SPDX-License-Identifier: Apache-2.0
"""The client under test: a program of any language that does what the suite asks for.

The suite starts the program once for each case, with the address of the scripted broker in the environment
variable ``BMQ_BROKER_URI``. The program reads commands from standard input, one JSON object a line, and
writes an answer for each to standard output, one JSON object a line. A program that somebody else starts
connects, and reads and writes the same lines on this connection. ``conformance/clients.md`` has the table of
the commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from bmq._json import orjson
from conformance.case import Mismatch

__all__ = ["AttachedProgram", "Program", "StartedProgram", "Unsupported"]

#: The longest line of a program, in bytes.
_LONGEST_LINE = 8 * 1024 * 1024
#: Lines of standard error that are kept for a report.
_KEPT = 20
#: Seconds for a program to end after its standard input was closed.
_GRACE = 2.0
_LEFT = "the end of the program's connection"


class Unsupported(Exception):
    """The program cannot do what a case needs; the case is not tested."""


class Program(Protocol):
    """A running client under test."""

    def do(self, verb: str, **arguments: Any) -> asyncio.Future[dict[str, Any]]:
        """Ask for something, and return the future answer."""
        ...

    async def end(self) -> None:
        """End the program."""
        ...


class Answers:
    """The answers that have not arrived yet, by the number of their command."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0

    def next(self) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Return the number and the future answer of a new command."""
        self._number += 1
        future = asyncio.get_running_loop().create_future()
        # A case may end before it asks for an answer.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting[self._number] = future
        return self._number, future

    def arrived(self, number: Any, answer: dict[str, Any]) -> None:
        """Take the answer to a command; one that no command waits for is ignored."""
        future = self._waiting.pop(number, None) if isinstance(number, int) else None
        if future is not None and not future.done():
            future.set_result(answer)

    def line(self, line: bytes) -> bool:
        """Take a line of the program; return whether it is an answer."""
        try:
            answer: Any = orjson.loads(line)
            number = answer["id"]
        except (ValueError, KeyError, TypeError):
            return False
        self.arrived(number, answer)
        return True

    def end(self, reason: str) -> None:
        """Let the waiting commands fail."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Mismatch("an answer of the program", reason))
        self._waiting.clear()


class StartedProgram:
    """A program in a process of its own.

    Args:
        command: the program and its arguments.
        uri: address of the scripted broker.
    """

    def __init__(self, command: Sequence[str], uri: str) -> None:
        self._command = command
        self._uri = uri
        self._answers = Answers()
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._last: deque[str] = deque(maxlen=_KEPT)

    async def start(self) -> None:
        """Start the program.

        Raises:
            OSError: the program cannot be started.
        """
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            limit=_LONGEST_LINE,
            env={**os.environ, "BMQ_BROKER_URI": self._uri},
        )
        self._tasks = [
            asyncio.create_task(self._read(self._process)),
            asyncio.create_task(self._keep(self._process)),
        ]

    def do(self, verb: str, **arguments: Any) -> asyncio.Future[dict[str, Any]]:
        """Send a command; the answer is an exception if the program ends first."""
        assert self._process is not None
        assert self._process.stdin is not None
        number, future = self._answers.next()
        line = orjson.dumps({"id": number, "do": verb, **arguments}) + b"\n"
        if self._process.stdin.is_closing():
            self._answers.end(self._how_it_ended())
        else:
            self._process.stdin.write(line)
        return future

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                if not self._answers.line(line):
                    self._last.append(line.decode(errors="replace").rstrip())
        except ValueError:
            self._last.append(f"a line of more than {_LONGEST_LINE} bytes")
        await process.wait()
        self._answers.end(self._how_it_ended())

    async def _keep(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with contextlib.suppress(ValueError):
            async for line in process.stderr:
                self._last.append(line.decode(errors="replace").rstrip())

    def _how_it_ended(self) -> str:
        status = None if self._process is None else self._process.returncode
        said = f": {self._last[-1]}" if self._last else ""
        return f"the end of the program (status {status}){said}"

    async def end(self) -> None:
        """Close the program's standard input, and end the program if it goes on."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class AttachedProgram:
    """A program that somebody else starts: its connection stands for its standard input and output."""

    def __init__(self) -> None:
        self._answers = Answers()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def attach(self, port: int) -> None:
        """Wait for the program on a port of loopback.

        Raises:
            OSError: the port is not free.
        """
        connected = asyncio.Event()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._writer is not None:
                writer.close()  # one program for a case
                return
            self._writer = writer
            self._task = asyncio.create_task(self._read(reader))
            connected.set()

        server = await asyncio.start_server(accept, "127.0.0.1", port, limit=_LONGEST_LINE)
        try:
            await connected.wait()
        except asyncio.CancelledError:
            await self.end()
            raise
        finally:
            server.close()

    def do(self, verb: str, **arguments: Any) -> asyncio.Future[dict[str, Any]]:
        """Send a command; the answer is an exception if the program ends the connection first."""
        assert self._writer is not None
        number, future = self._answers.next()
        self._writer.write(orjson.dumps({"id": number, "do": verb, **arguments}) + b"\n")
        if self._task is None or self._task.done():
            self._answers.end(_LEFT)
        return future

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            async for line in reader:
                self._answers.line(line)
        self._answers.end(_LEFT)

    async def end(self) -> None:
        """Close the connection: the end of the program's input."""
        if self._writer is None or self._task is None:
            return
        self._writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
