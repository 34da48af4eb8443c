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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bmq._json import orjson
from conformance.case import Mismatch

__all__ = ["Program", "Start", "Unsupported", "attached", "started"]

#: The longest line of a program, in bytes.
_LONGEST_LINE = 8 * 1024 * 1024
#: Lines of standard error that are kept for a report.
_KEPT = 20
#: Seconds for a program to end after its standard input was closed.
_GRACE = 2.0


#: Starts the client under test with the address of the scripted broker.
Start = Callable[[str], Awaitable["Program"]]


class Unsupported(Exception):
    """The program cannot do what a case needs; the case is not tested."""


class Program:
    """A running client under test.

    Args:
        reader: the lines of the program.
        writer: the input of the program.
        process: its process; None if somebody else has started the program.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: asyncio.subprocess.Process | None = None,
    ) -> None:
        self._writer = writer
        self._process = process
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._commands = 0
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._reading = asyncio.create_task(self._read(reader))
        errors = process.stderr if process is not None else None
        self._errors = asyncio.create_task(self._keep(errors)) if errors is not None else None

    def do(self, verb: str, **arguments: Any) -> asyncio.Future[dict[str, Any]]:
        """Send a command; the future answer is an exception if the program ends first."""
        self._commands += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        # A case may end before it asks for an answer.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting[self._commands] = answer
        if self._reading.done() or self._writer.is_closing():
            self._fail()
        else:
            self._writer.write(orjson.dumps({"id": self._commands, "do": verb, **arguments}) + b"\n")
        return answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            async for line in reader:
                self._take(line)
        except (ConnectionError, ValueError) as error:
            self._last.append(str(error))
        if self._process is not None:
            await self._process.wait()
            if self._errors is not None:
                await self._errors
        self._fail()

    def _take(self, line: bytes) -> None:
        """Take an answer; other lines are kept, and an answer that no command waits for is ignored."""
        try:
            answer: Any = orjson.loads(line)
            future = self._waiting.pop(answer["id"], None)
        except (ValueError, KeyError, TypeError):
            self._last.append(line.decode(errors="replace").rstrip())
        else:
            if future is not None and not future.done():
                future.set_result(answer)

    async def _keep(self, errors: asyncio.StreamReader) -> None:
        with contextlib.suppress(ValueError):
            async for line in errors:
                self._last.append(line.decode(errors="replace").rstrip())

    def _fail(self) -> None:
        """Let the waiting commands fail."""
        reason = "the end of the program's connection"
        if self._process is not None:
            last = f": {self._last[-1]}" if self._last else ""
            reason = f"the end of the program (status {self._process.returncode}){last}"
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Mismatch("an answer of the program", reason))
        self._waiting.clear()

    async def end(self) -> None:
        """Close the program's input, and end a process that goes on."""
        self._writer.close()
        if self._process is not None:
            try:
                async with asyncio.timeout(_GRACE):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        tasks = [task for task in (self._reading, self._errors) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def started(command: Sequence[str]) -> Start:
    """Return a function that starts a program in a process of its own.

    The function raises :exc:`OSError` if the program cannot be started.
    """

    async def start(uri: str) -> Program:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            env={**os.environ, "BMQ_BROKER_URI": uri},
        )
        assert process.stdout is not None
        assert process.stdin is not None
        return Program(process.stdout, process.stdin, process)

    return start


def attached(port: int) -> Start:
    """Return a function that waits, without a limit, for a program that connects to a port of loopback.

    The function raises :exc:`OSError` if the port is not free.
    """

    async def start(uri: str) -> Program:
        connected: asyncio.Future[Program] = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if connected.done():
                writer.close()  # one program for a case
            else:
                connected.set_result(Program(reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", port, limit=_LONGEST_LINE)
        try:
            return await connected
        finally:
            server.close()

    return start
