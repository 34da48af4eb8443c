# SPDX-License-Identifier: Apache-2.0
"""Several processes of an app: starts, restarts, signals, and a common address for health and metrics.

The problem: an event loop uses a single core. A service on a machine with eight cores needs eight processes.
An orchestrator restarts a failed process, ends a process with a signal, and has a probe for each process; the
eight processes need the same from the supervisor.

Invariants:

- The supervisor imports no app, and starts each process by exec, never by fork. No lock, socket or thread of
  the supervisor is copied, and an error during the import of the app ends a process only.
- The supervisor's event loop never waits for a process: every question has a deadline, at most one question
  for each page is under way, and outputs are copied in threads.
- Each process has a session of the operating system: Ctrl-C in a terminal reaches only the supervisor. The
  supervisor passes each signal on once.
- A process ends with the supervisor, also if the supervisor is killed: see :mod:`bmq.cli.child`.
- A slot (number 1, 2, ...) has at most one process at a time: a name derived from the number is unique.

Rejected: a listening socket of the app shared by all processes. The operating system would choose
the process for each probe, and a probe would see a single process by chance.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bmq import _world
from bmq._logging import Log
from bmq.cli.child import FORCED_AFTER, NUMBER
from bmq.cli.combined import LONGEST_ANSWER, CombinedHealth
from bmq.cli.output import LogFormatter, note
from bmq.cli.process import OUTPUT, Process, Slot, SlotState, Worker
from bmq.cli.status import ExitStatus
from bmq.protocol.deadlines import backoff
from bmq.workers.probe import HealthAddressError, PageServer

__all__ = ["Pauses", "Supervisor"]

logger = Log("bmq.run")

# Seconds for the last lines of an ended process.
_LAST_LINES: Final = 1.0
# Signals passed on to the processes; the next signal kills the processes.
_REQUESTS: Final = 2
# Log records of the supervisor that wait for a slow reader. Further records are lost.
_RECORDS: Final = 1000
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# 0 on Windows, where the command ends with an error.
_HANG_UP: Final[int] = getattr(signal, "SIGHUP", 0)
_ORDERLY: Final = frozenset(
    {ExitStatus.OK, ExitStatus.INTERRUPTED, ExitStatus.TERMINATED, *(-each for each in _SIGNALS)}
)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Times of the supervisor, in seconds.

    Attributes:
        first: pause before the second of several restarts; the first restart is immediate.
        longest: longest pause; each pause is twice as long as the pause before.
        stable: a process that has run for this time has no earlier failures.
        forced: time after the app's grace in which a stopping process is killed.
    """

    first: float = 1.0
    longest: float = 30.0
    stable: float = 60.0
    forced: float = FORCED_AFTER


class Supervisor:
    """Runs several processes of one app.

    Args:
        command: arguments of a process, without the interpreter.
        processes: number of processes.
        kind: "process"; "thread" in a class for threads.
        health: host and port of the server for health and metrics; None for the address of the app.
        changes: changed files; None for no restart after a change. With this argument a process that has
            failed starts again after a change only.
        level: lowest level of the supervisor's log lines.
        pauses: times.
    """

    def __init__(
        self,
        command: list[str],
        processes: int,
        *,
        kind: str = "process",
        health: tuple[str, int] | None = None,
        changes: AsyncIterator[Path] | None = None,
        level: int = logging.INFO,
        pauses: Pauses | None = None,
    ) -> None:
        flags = _interpreter_flags()
        if processes > 1 and sys.stdout.isatty():
            flags.append("-u")  # lines appear at once, as without a pipe in between
        self._command = [sys.executable, *flags, *command]
        self._labelled = processes > 1
        self._health = health
        self._changes = changes
        self._level = level
        self._pauses = pauses or Pauses()
        self._slots = [Slot(number, kind) for number in range(1, processes + 1)]
        self._answers = CombinedHealth(self._slots)
        self._servers: dict[int, tuple[str, int]] = {}
        self._serving = AsyncExitStack()
        # Tasks that start servers, by probe.
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._signals = 0
        self._first: signal.Signals | None = None
        # Whether a process has started its app, in the supervisor's life.
        self._proven = False
        self._stopping = False
        self._rolling = False
        self._status: int = ExitStatus.OK

    async def run(self) -> int:
        """Run the processes until a signal, or until all have finished.

        Returns:
            The exit status: OK after an orderly end; otherwise the status of the processes.

        Cancelling the call kills the processes.
        """
        with self._log_lines(), self._on_signals():
            return await self._run()

    async def _run(self) -> int:
        try:
            if self._health is not None:
                await self._serve(0, self._health)
            if self._changes is not None:
                self._spawn(self._reload(self._changes))
            await asyncio.gather(*(self._keep(slot) for slot in self._slots))
            return self._status
        finally:
            for task in self._tasks:
                if task not in self._opening.values():
                    task.cancel()
            if self._opening:  # a cancelled start of a server would leave its socket open
                await asyncio.wait(self._opening.values())
            await self._serving.aclose()
            for slot in self._slots:
                if slot.process is not None and not slot.process.ended.done():
                    slot.process.kill()

    @contextmanager
    def _log_lines(self) -> Generator[None]:
        """Write the log lines of the supervisor to standard error."""
        aside = Aside()
        aside.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.logger.addHandler(aside)
        logger.logger.setLevel(self._level)
        logger.logger.propagate = False
        try:
            yield
        finally:
            aside.end(_LAST_LINES)
            logger.logger.removeHandler(aside)

    @contextmanager
    def _on_signals(self) -> Generator[None]:
        """Pass signals on to the processes."""
        loop = asyncio.get_running_loop()
        try:
            for number in _SIGNALS:
                loop.add_signal_handler(number, self._stop, number)
            if signal.getsignal(_HANG_UP) is not signal.SIG_IGN:  # ignored under nohup
                handler = self._stop if _has_terminal() else self._hang_up
                loop.add_signal_handler(_HANG_UP, handler, _HANG_UP)
            yield
        finally:
            for each in (*_SIGNALS, _HANG_UP):
                loop.remove_signal_handler(each)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._spawned)
        return task

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the supervisor has ended: %r", error)

    # ---- processes

    async def _keep(self, slot: Slot) -> None:
        """Run the processes of a slot, each after the end of the previous process."""
        while True:
            slot.recycled.clear()
            began = _world.monotonic()
            status = await self._run_one(slot)
            self._answers.ended(slot.number)
            if self._stopping:
                self._note_end(slot, status)
                return
            if slot.recycled.is_set():
                slot.restarts += 1
                continue
            if status == ExitStatus.OK:
                logger.info("%s has finished", slot.name)
                slot.enter(SlotState.FINISHED)
                return
            if _world.monotonic() - began >= self._pauses.stable:
                slot.failures = 0
            if status is not None:
                slot.why = f"{slot.name} {_ended(status)}"
            if status in _ORDERLY and slot.process is not None and slot.process.started.result():
                logger.info("%s; restarting now", slot.why)  # an operator has stopped the process
                slot.restarts += 1
                continue
            slot.failures += 1
            if not self._proven and self._changes is None and all(each.failures for each in self._slots):
                self._give_up(slot, status)
                return
            await self._pause(slot)
            slot.restarts += 1

    async def _run_one(self, slot: Slot) -> int | None:
        """Run a process, and return its exit status; None if it cannot be started."""
        slot.process = None
        if self._stopping:
            return ExitStatus.OK
        slot.enter(SlotState.STARTING)
        try:
            process = self._begin(slot)
        except (OSError, RuntimeError) as error:  # RuntimeError: no further thread can be started
            slot.why = f"{slot.kind} {slot.number} cannot be started: {error}"
            return None
        slot.process = process
        process.hello.add_done_callback(partial(self._greet, slot))
        process.started.add_done_callback(partial(self._note_start, slot, process))
        return await process.finished(_LAST_LINES)

    def _begin(self, slot: Slot) -> Worker:
        """Start a process.

        Raises:
            OSError: the process cannot be started.
        """
        label = f"[{slot.number}] " if self._labelled else None
        return Process(self._command, {**os.environ, NUMBER: str(slot.number)}, label)

    def _note_start(self, slot: Slot, process: Worker, started: asyncio.Future[bool]) -> None:
        if started.result():
            self._proven = True
            if slot.state is SlotState.STARTING and slot.process is process:
                slot.enter(SlotState.RUNNING)
                logger.info("%s is ready and receives messages", slot.name)

    async def _pause(self, slot: Slot) -> None:
        """Wait before a restart."""
        if self._changes is not None:
            logger.warning("%s; waiting for a change", slot.why)
            pause = None
        else:
            pauses = self._pauses
            pause = backoff(slot.failures - 1, pauses.first, pauses.longest) if slot.failures > 1 else 0.0
            logger.warning("%s; restarting %s", slot.why, f"in {pause:g} s" if pause else "now")
        slot.enter(SlotState.WAITING)
        try:
            async with asyncio.timeout(pause):
                await slot.recycled.wait()
        except TimeoutError:
            pass

    def _give_up(self, slot: Slot, status: int | None) -> None:
        """End, because no process can start."""
        logger.error("%s; no %s could start, giving up", slot.why, slot.kind)
        self._status = status if status is not None and status > 0 else ExitStatus.FAILED
        self._stop(signal.SIGTERM)

    def _note_end(self, slot: Slot, status: int | None) -> None:
        """Take the exit status of a process after a request to stop."""
        if status is None or status in _ORDERLY or self._signals > _REQUESTS:
            return
        logger.warning("%s, in the shutdown: %s", slot.name, _ended(status))
        status = status if status > 0 else ExitStatus.FAILED
        if self._status not in (ExitStatus.OK, status):
            status = ExitStatus.FAILED
        self._status = status

    def _end_process(self, slot: Slot, number: int) -> None:
        """Ask the process of a slot to stop, or end the pause of the slot."""
        slot.recycled.set()
        process = slot.process
        if process is not None and not process.ended.done():
            slot.enter(SlotState.STOPPING)
            process.signal(number)
            delay = process.grace + self._pauses.forced
            asyncio.get_running_loop().call_later(delay, self._force, process, delay, slot.name)
        elif slot.state is SlotState.WAITING:
            slot.enter(SlotState.STARTING)

    def _force(self, process: Worker, delay: float, name: str) -> None:
        """Kill a process that does not stop in time."""
        if not process.ended.done():
            logger.warning("%s has not ended within %g s%s", name, delay, process.forced)
            process.kill()

    # ---- signals and changes

    def _stop(self, number: int) -> None:
        """Pass a signal on; the third signal kills the processes.

        An app handles SIGTERM and SIGINT alike. The second signal has the other number: a process that has
        not yet handled the first signal would receive two equal signals as one.
        """
        self._stopping = True
        self._signals += 1
        if self._first is None:
            self._first = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        other = signal.SIGTERM if self._first == signal.SIGINT else signal.SIGINT
        for slot in self._slots:
            if self._signals > _REQUESTS:
                self._status = 128 + number
                if slot.process is not None:
                    slot.process.kill()
            else:
                self._end_process(slot, self._first if self._signals == 1 else other)

    def _hang_up(self, number: int) -> None:
        """Restart the processes, each after the start of the previous process."""
        if not self._stopping and not self._rolling:
            self._rolling = True
            self._spawn(self._roll())

    async def _roll(self) -> None:
        logger.info("SIGHUP: restarting the processes one after another")
        try:
            for slot in self._slots:
                before = slot.process
                if slot.state is SlotState.FINISHED or self._stopping:
                    continue
                self._end_process(slot, signal.SIGTERM)
                if not await self._replaced(slot, before):
                    if not self._stopping:
                        logger.error("process %d does not start again; the other processes stay", slot.number)
                    return
            logger.info("all processes have restarted")
        finally:
            self._rolling = False

    async def _replaced(self, slot: Slot, before: Worker | None) -> bool:
        """Wait until the next process of a slot has started, or has ended."""
        if before is not None:
            await asyncio.wait([before.ended])
        while slot.process is before or slot.process is None:
            if self._stopping or slot.state in (SlotState.WAITING, SlotState.FINISHED):
                return False
            await asyncio.sleep(0.01)
        await asyncio.wait([slot.process.started])
        return slot.process.started.result()

    async def _reload(self, changes: AsyncIterator[Path]) -> None:
        async for path in changes:
            logger.info("%s has changed, restarting", path)
            for slot in self._slots:
                slot.failures = 0
                self._end_process(slot, signal.SIGTERM)

    # ---- health and metrics

    def _greet(self, slot: Slot, hello: asyncio.Future[dict[str, Any]]) -> None:
        """Serve the addresses of the app."""
        for probe, address in enumerate(hello.result()["addresses"]):
            if address is None or (probe == 0 and self._health is not None):
                continue
            host, port = address
            first = self._servers.setdefault(probe, (host, port))
            if probe not in self._opening:
                self._opening[probe] = self._spawn(self._serve_app(probe, first))
            elif first != (host, port):
                logger.warning(
                    "process %d names %s:%d for health, and another process %s:%d: the first counts",
                    *(slot.number, host, port, *first),
                )

    async def _serve_app(self, probe: int, address: tuple[str, int]) -> None:
        try:
            await self._serve(probe, address)
        except HealthAddressError as error:
            logger.error("%s", error)  # noqa: TRY400 - no traceback
            if not self._stopping:
                self._status = ExitStatus.FAILED
                self._stop(signal.SIGTERM)

    async def _serve(self, probe: int, address: tuple[str, int]) -> None:
        page = partial(self._answers.page, probe)
        server = PageServer(*address, page, patience=LONGEST_ANSWER + 5.0)
        await self._serving.enter_async_context(server.serving())
        logger.info("health and metrics of all %s: %s", self._answers.kinds, server.uri)


class Aside(logging.Handler):
    """Writes log records to standard error in a thread, so that a slow reader does not block the caller."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str | None] = queue.Queue(_RECORDS)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; a full queue loses the record."""
        with suppress(queue.Full):
            self._lines.put_nowait(self.format(record))

    def end(self, timeout: float) -> None:
        """Wait until all records are written, at most this number of seconds, and once more as long."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=timeout)
            self._thread.join(timeout)

    def _write(self) -> None:
        with suppress(OSError):
            while (line := self._lines.get()) is not None:
                with OUTPUT:
                    note(line)


def _ended(status: int | None) -> str:
    if status is None:
        return "could not be started"
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _interpreter_flags() -> list[str]:
    """Return the options of this interpreter, such as -W and -X."""
    flags: Callable[[], list[str]] = getattr(subprocess, "_args_from_interpreter_flags")  # noqa: B009
    return flags()


def _has_terminal() -> bool:
    """Whether the process belongs to a terminal, whose end is a SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True
