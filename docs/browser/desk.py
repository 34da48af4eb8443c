# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the documentation beside a broker in the page.

A program is a process of a :class:`bmq.testing.Simulation` on the host of the broker, so
``tcp://localhost:30114`` leads to the broker. Messages outlive the program.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
import shutil
import sys
import tempfile
import traceback
from collections import UserList
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from io import TextIOBase
from pathlib import Path
from typing import Any

import bmq
from bmq.testing import SimulatedProcess, Simulation

SLICE = 0.02
MOST_TEXT = 100_000  # characters of output kept between two looks of the page

_writes: ContextVar[Callable[[str], object] | None] = ContextVar("writes", default=None)
_arguments: ContextVar[list[str]] = ContextVar("arguments")


class Arguments(UserList[str]):
    """``sys.argv``: each program has its own."""

    @property
    def data(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _arguments.get(["page"])

    @data.setter
    def data(self, _: object) -> None:
        pass


class Program:
    """A program of the page.

    Args:
        source: the text.
        file: the file name, for tracebacks.
        arguments: the command line after the name.
    """

    def __init__(self, source: str, file: str, arguments: str) -> None:
        self.file = file
        self.process: SimulatedProcess | None = None
        self._source = source
        self._arguments = [file, *shlex.split(arguments)]
        self._text: list[str] = []
        self._size = 0

    def write(self, text: str) -> None:
        if self._size < MOST_TEXT:
            self._text.append(text)
            self._size += len(text)

    def take(self) -> str:
        """Return the output since the last call."""
        text = "".join(self._text)
        if self._size >= MOST_TEXT:
            text += "\n... more than can be shown\n"
        self._text.clear()
        self._size = 0
        return text

    async def main(self) -> None:
        """Run the program: its module first, then the coroutine given to ``bmq.run`` or ``asyncio.run``."""
        _writes.set(self.write)
        _arguments.set(self._arguments)
        given: list[Awaitable[Any]] = []
        before = bmq.run, asyncio.run
        bmq.run = asyncio.run = lambda main, **_: given.append(main)  # type: ignore[assignment]
        try:
            exec(compile(self._source, self.file, "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            self._exits(end)
        except Exception as error:
            self._failed(error)
            return
        finally:
            bmq.run, asyncio.run = before
        try:
            for each in given:
                await each
        except SystemExit as end:
            self._exits(end)
        except Exception as error:
            self._failed(error)

    def _exits(self, end: SystemExit) -> None:
        if isinstance(end.code, str):
            self.write(end.code + "\n")

    def _failed(self, error: BaseException) -> None:
        """Print the traceback, from the first line of the program on."""
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != self.file:
            frames = frames.tb_next
        self.write("".join(traceback.format_exception(error.with_traceback(frames))))


class Desk:
    """A broker, and the programs beside it."""

    def __init__(self) -> None:
        self.sim = Simulation(1)
        self.programs: dict[str, Program] = {}
        self._starts = 0
        self._folder = tempfile.mkdtemp()
        sys.path.insert(0, self._folder)
        self._slices = self.sim.play(self._main, every=SLICE)
        next(self._slices)

    @contextmanager
    def _at_work(self) -> Generator[None]:
        """Give each program its own arguments and output."""
        before, sys.argv = sys.argv, Arguments()  # type: ignore[assignment]
        try:
            with redirect_stdout(_Output(sys.stdout)), redirect_stderr(_Output(sys.stderr)):
                yield
        finally:
            sys.argv = before

    async def _main(self) -> None:
        self.broker = self.sim.broker("localhost")
        await asyncio.sleep(1e9)  # until the page is closed

    def run(self, key: str, source: str, file: str, arguments: str, files: Mapping[str, str]) -> None:
        """Start a program; stop the previous run of the program.

        Args:
            key: the program's name in :meth:`advance` and :meth:`stop`.
            source: the text.
            file: the file name.
            arguments: the command line.
            files: the texts of imported files, by name.
        """
        self.stop(key)
        for name, text in files.items():
            Path(self._folder, name).write_text(text, encoding="utf-8")
            sys.modules.pop(name.removesuffix(".py"), None)
        importlib.invalidate_caches()
        self._starts += 1
        program = self.programs[key] = Program(source, file, arguments)
        program.process = self.sim.process(f"{file} {self._starts}", program.main, host="localhost")

    def stop(self, key: str) -> None:
        """End a program, as Ctrl-C does."""
        program = self.programs.get(key)
        if program is not None and program.process is not None:
            program.process.stop()

    def advance(self, slices: int = 1) -> str:
        """Let slices of virtual time pass; return the output and the state of each program, as JSON."""
        with self._at_work():
            for _ in range(slices):
                next(self._slices)
        state = {
            key: {"text": each.take(), "running": each.process is not None and each.process.running}
            for key, each in self.programs.items()
        }
        return json.dumps(state)

    def close(self) -> None:
        """End the simulation, and remove the files of the programs."""
        self._slices.close()
        sys.path.remove(self._folder)
        shutil.rmtree(self._folder)


class _Output(TextIOBase):
    """Standard output: of the program at work, or of the page itself."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def write(self, text: str) -> int:
        write = _writes.get() or self._other.write
        write(text)
        return len(text)

    def flush(self) -> None:
        pass
