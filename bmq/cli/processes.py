# SPDX-License-Identifier: Apache-2.0
"""Several processes of one app: ``bmq run --processes`` and ``--reload``.

An event loop uses one core, so a service on eight cores runs as eight processes. The supervisor starts them,
restarts those that fail, passes signals on, and answers one health address for all of them.

- The supervisor imports no app and starts each process by exec: an error while the app is imported ends that
  process only.
- The event loop of the supervisor never waits for a process without a deadline.
- Each process has its own session of the operating system: Ctrl-C in a terminal reaches only the supervisor,
  which passes each signal on once.
- A number has at most one process at a time, so a name derived from the number is unique.

A process inherits a socket. It writes two lines: the first line has the addresses of the app's probes, the
process's own address for their pages, and the app's grace; the second line says that the app has started.
The supervisor writes nothing. The socket closes with the supervisor, however the supervisor ends: then the
process ends, too. A thread waits for that, because an event loop may be blocked.

The supervisor asks a process about a page by HTTP: probe 0 of the app at ``/0/readyz``, and so on.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

import bmq
from bmq import _world
from bmq._logging import Log
from bmq._signals import on_signals
from bmq.cli.output import ExitStatus
from bmq.protocol.deadlines import backoff
from bmq.workers.probe import AGES, METRICS_TYPE, TEXT_TYPE, HealthAddressError, Page, PageServer

logger = Log("bmq.run")

#: Environment variable with the number of a process, from 1; for the app.
NUMBER: Final = "BMQ_PROCESS"
_DESCRIPTOR: Final = "_BMQ_SUPERVISOR"
#: Seconds beyond the app's grace after which a stopping process is killed.
FORCED_AFTER: Final = 10.0
# Seconds of grace of a process without an app so far.
_GRACE: Final = 30.0
#: Seconds for the answer of a process: less than a prober waits, so that it sees which process hangs.
LONGEST_ANSWER: Final = 4.0
# Signals passed on to the processes; the next signal kills the processes.
_REQUESTS: Final = 2
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# 0 on Windows, where the command ends with an error.
_HANG_UP: Final[int] = getattr(signal, "SIGHUP", 0)
_ORDERLY: Final = frozenset(
    {ExitStatus.OK, ExitStatus.INTERRUPTED, ExitStatus.TERMINATED, *(-each for each in _SIGNALS)}
)
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{?)")
_ABOUT: Final = re.compile(r"#\s+(?:HELP|TYPE)\s+(\S+)")

# Status and body of a page; None from a process that does not answer.
_Answer = tuple[int, bytes] | None
# Takes the place of an answer if a process cannot be asked, because it is starting or has been replaced.
_UNASKED: Final = 0, b""


class _Hello(Struct):
    """The first line of a process.

    Attributes:
        addresses: addresses of the app's probes.
        uri: the process's own address, for the pages of the probes.
        grace: the app's grace in seconds.
    """

    addresses: list[tuple[str, int]] = []
    uri: str | None = None
    grace: float = _GRACE


# ---- in a supervised process


@dataclass(slots=True)
class Child:
    """The inside of a supervised process.

    Attributes:
        channel: socket to the supervisor.
        grace: seconds that the app takes to stop, without its closing.
    """

    channel: socket.socket
    grace: float = _GRACE

    @classmethod
    def adopt(cls) -> Child | None:
        """Return this process as a supervised process, and watch the supervisor; None without supervisor."""
        given = os.environ.pop(_DESCRIPTOR, None)
        if given is None:
            return None
        os.set_inheritable(int(given), False)
        child = cls(socket.socket(fileno=int(given)))
        threading.Thread(target=child._watch, name="supervisor", daemon=True).start()
        return child

    def _watch(self) -> None:
        """Stop this process after the end of the supervisor."""
        with suppress(OSError):
            self.channel.recv(1)
        logger.warning("the supervisor has ended; this process stops")
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)
        time.sleep(self.grace + FORCED_AFTER)
        os.kill(os.getpid(), signal.SIGKILL)

    async def run(self, app: bmq.App[Any]) -> ExitStatus:
        """Run an app, and answer the supervisor meanwhile.

        Returns:
            TERMINATED after a signal; OK if the app has stopped itself.
        """
        signalled = False

        def stop() -> None:
            nonlocal signalled
            signalled = True
            app.stop()

        probes = [app._probe, *(each._probe for each in app._all() if each is not app)]
        probes = [each for each in probes if each.address is not None]

        async def page(path: str) -> Page:
            number, _, rest = path.removeprefix("/").partition("/")
            return await probes[int(number)].page(f"/{rest}")

        server = PageServer("127.0.0.1", 0, page)
        async with server.serving() if probes else nullcontext():
            self.grace = max(each._grace for each in app._all())
            addresses = [each.address for each in probes if each.address is not None]
            self._write(msgspec.json.encode(_Hello(addresses, server.uri, self.grace)))
            for each in probes:
                each.address = None  # the supervisor serves the address for all processes
            app._begun().add_done_callback(lambda _: self._write(b"started"))
            with on_signals(stop):
                await app.run(signals=False)
        return ExitStatus.TERMINATED if signalled else ExitStatus.OK

    def _write(self, line: bytes) -> None:
        with suppress(OSError):  # the supervisor has ended
            self.channel.sendall(line + b"\n")


# ---- in the supervisor


async def _get(uri: str, path: str) -> _Answer:
    """Return a page of a process; None from a process that does not answer in time."""
    address = urlsplit(uri)
    try:
        async with asyncio.timeout(LONGEST_ANSWER):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].split()[0])
                return int(head.split()[1]), await reader.readexactly(length)
            finally:
                writer.close()
    except (OSError, EOFError):
        return None


class _State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    FINISHED = "finished"


_AWAKE: Final = (_State.STARTING, _State.RUNNING)


class _Process:
    """A numbered process of the app, over all restarts.

    Attributes:
        number: number from 1.
        state: present state.
        since: start of the state, in UTC.
        child: present process, or the last one.
        hello: first line of the present process; None before the line.
        settled: set while no process is starting or stopping.
        failures: failures in a row.
        why: reason of the latest failure.
        restarts: number of restarts.
        recycled: set to replace the process, or to start the next one at once.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = _State.STARTING
        self.since = _world.now()
        self.child: asyncio.subprocess.Process | None = None
        self.hello: _Hello | None = None
        self.failures = self.restarts = 0
        self.why = ""
        self.recycled = asyncio.Event()
        self.settled = asyncio.Event()

    @property
    def name(self) -> str:
        """The name in log lines."""
        return f"process {self.number}" + (f" (pid {self.child.pid})" if self.child is not None else "")

    def enter(self, state: _State) -> None:
        """Change the state."""
        self.state, self.since = state, _world.now()
        if state in (_State.STARTING, _State.STOPPING):
            self.settled.clear()
        else:
            self.settled.set()

    def signal(self, number: int) -> None:
        """Send a signal; no effect after the end."""
        if self.child is not None and self.child.returncode is None:
            with suppress(ProcessLookupError):
                # The method of the child would first take an exit status, which its watcher then misses.
                os.kill(self.child.pid, number)

    async def ask(self, path: str) -> _Answer:
        """Ask the process about a page."""
        hello = self.hello
        if hello is None or hello.uri is None:
            return _UNASKED
        answer = await _get(hello.uri, path)
        return answer if self.hello is hello else _UNASKED

    def condition(self, answer: _Answer) -> dict[str, Any]:
        """Return the part of this process in /readyz."""
        since = self.since.isoformat(timespec="milliseconds")
        condition: dict[str, Any] = {
            "process": self.number,
            "pid": self.child.pid if self.child is not None else None,
            "state": self.state,
            "restarts": self.restarts,
            "ready": self.state is _State.FINISHED,
            "degraded": False,
            "since": since,
            **dict.fromkeys(AGES),
            "troubles": [],
        }
        if answer not in (None, _UNASKED) and self.state in _AWAKE:
            condition |= json.loads(answer[1])
        elif self.state is not _State.FINISHED:
            what = f"the process is {self.state}"
            if self.state is _State.RUNNING:
                what = "the process does not answer"
            elif self.state is _State.WAITING:
                what = f"{self.why}; waiting before a restart"
            condition["troubles"] = [{"what": what, "since": since}]
        return condition


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
        health: host and port of the server for health and metrics; None for the address of the app.
        changes: changed files; None for no restart after a change. With this argument a process that has
            failed starts again after a change only.
        pauses: times.
    """

    def __init__(
        self,
        command: list[str],
        processes: int,
        *,
        health: tuple[str, int] | None = None,
        changes: AsyncIterator[Path] | None = None,
        pauses: Pauses = Pauses(),
    ) -> None:
        flags: Callable[[], list[str]] = getattr(subprocess, "_args_from_interpreter_flags")  # noqa: B009
        self._command = [sys.executable, *flags(), *command]
        self._changes = changes
        self._pauses = pauses
        self._processes = [_Process(number) for number in range(1, processes + 1)]
        self._served: dict[int, tuple[str, int]] = {} if health is None else {0: health}
        self._serving = AsyncExitStack()
        # Restarts of all processes, one after another.
        self._rolling: asyncio.Task[None] | None = None
        # Signals so far: with the first one the processes stop.
        self._signals: list[int] = []
        # Whether a process has started its app, in the supervisor's life.
        self._proven = False
        self._status: int = ExitStatus.OK

    async def run(self) -> int:
        """Run the processes until a signal, or until all have finished.

        Returns:
            The exit status: OK after an orderly end; otherwise the status of the processes.

        Cancelling the call kills the processes.

        Raises:
            HealthAddressError: the health address cannot be used.
        """
        async with self._serving:
            self._listen_to_signals()
            self._serving.callback(self._kill)
            for probe, address in self._served.items():
                await self._serve(probe, address)
            reloading = asyncio.create_task(self._reload())
            try:
                await asyncio.gather(*map(self._keep, self._processes))
            finally:
                beside = [task for task in (reloading, self._rolling) if task is not None]
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)
            return self._status

    def _listen_to_signals(self) -> None:
        """Pass signals on to the processes, until the end of the run."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[int], None]] = dict.fromkeys(_SIGNALS, self._stop)
        if signal.getsignal(_HANG_UP) is not signal.SIG_IGN:  # ignored under nohup
            handlers[_HANG_UP] = self._stop if _has_terminal() else self._hang_up
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler, number)
            self._serving.callback(loop.remove_signal_handler, number)

    def _kill(self) -> None:
        for process in self._processes:
            process.signal(signal.SIGKILL)

    def _fail(self, status: int) -> None:
        """Stop the processes because of a failure."""
        self._status = status
        self._stop(signal.SIGTERM)

    # ---- processes

    async def _keep(self, process: _Process) -> None:
        """Run a process, again and again."""
        while not self._signals:
            process.recycled.clear()
            began = _world.monotonic()
            status = await self._run_one(process)
            if self._signals:
                self._note_end(process, status)
                return
            if _world.monotonic() - began >= self._pauses.stable:
                process.failures = 0
            if process.recycled.is_set():
                pass
            elif status == ExitStatus.OK:
                logger.info("%s has finished", process.name)
                process.enter(_State.FINISHED)
                return
            elif status in _ORDERLY and process.state is _State.RUNNING:
                logger.info("%s; restarting now", process.why)  # an operator has stopped the process
            else:
                await self._pause(process, status)
            process.restarts += 1

    async def _run_one(self, process: _Process) -> int:
        """Run a process, and return its exit status; FAILED if it cannot be started."""
        process.enter(_State.STARTING)
        process.child = process.hello = None
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        with closing(writer):  # after a cancellation, this stops the process, and always the listening
            try:
                with theirs:
                    child = await asyncio.create_subprocess_exec(
                        *self._command,
                        stdin=subprocess.DEVNULL,
                        env={**os.environ, NUMBER: str(process.number), _DESCRIPTOR: str(theirs.fileno())},
                        pass_fds=(theirs.fileno(),),
                        start_new_session=True,
                    )
            except OSError as error:
                process.why = f"process {process.number} cannot be started: {error}"
                return ExitStatus.FAILED
            process.child = child
            if self._signals:  # while the process was being started
                self._end_process(process, signal.SIGTERM)
            listening = asyncio.create_task(self._listen(process, reader), name=f"listen to {child.pid}")
            status = await child.wait()
            # The last lines are in the socket. A program that the process has started may keep it open.
            await asyncio.wait([listening], timeout=1.0)
        process.why = f"{process.name} {_ended(status)}"
        return status

    async def _listen(self, process: _Process, reader: asyncio.StreamReader) -> None:
        """Read the lines of a process."""
        if hello := await reader.readline():
            process.hello = msgspec.json.decode(hello, type=_Hello)
            await self._serve_app(process, process.hello.addresses)
        if await reader.readline():
            self._proven = True
            if process.state is _State.STARTING:
                process.enter(_State.RUNNING)
                logger.info("%s is ready and receives messages", process.name)

    async def _pause(self, process: _Process, status: int) -> None:
        """Wait before the restart of a process that has failed; give up if no process can start."""
        pauses = self._pauses
        process.failures += 1
        if self._changes is not None:
            pause = None
            logger.warning("%s; waiting for a change", process.why)
        elif not self._proven and all(each.failures for each in self._processes):
            logger.error("%s; no process could start, giving up", process.why)
            self._fail(status if status > 0 else ExitStatus.FAILED)
            return
        else:
            again = process.failures - 1
            pause = backoff(again, pauses.first, pauses.longest) if again else 0.0
            logger.warning("%s; restarting %s", process.why, f"in {pause:g} s" if pause else "now")
        process.enter(_State.WAITING)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await process.recycled.wait()

    def _note_end(self, process: _Process, status: int) -> None:
        """Take the exit status of a process after a request to stop."""
        if status in _ORDERLY or len(self._signals) > _REQUESTS:
            return
        logger.warning("%s, in the shutdown: %s", process.name, _ended(status))
        status = status if status > 0 else ExitStatus.FAILED
        self._status = ExitStatus.FAILED if self._status not in (ExitStatus.OK, status) else status

    def _end_process(self, process: _Process, number: int) -> None:
        """Ask a process to stop, or end the pause before its start."""
        process.recycled.set()
        child = process.child
        if child is not None and child.returncode is None:
            process.enter(_State.STOPPING)
            process.signal(number)
            delay = self._pauses.forced + (_GRACE if process.hello is None else process.hello.grace)
            asyncio.get_running_loop().call_later(delay, _force, process, child, delay)
        elif process.state is _State.WAITING:
            process.enter(_State.STARTING)

    # ---- signals and changes

    def _stop(self, number: int) -> None:
        """Pass a signal on; the third signal kills the processes.

        An app handles SIGTERM and SIGINT alike. The second signal has the other number: a process that has
        not yet handled the first signal would receive two equal signals as one.
        """
        self._signals.append(number)
        if len(self._signals) > _REQUESTS:
            self._status = 128 + number
            self._kill()
            return
        interrupted = self._signals[0] == signal.SIGINT
        passed = signal.SIGINT if interrupted is (len(self._signals) == 1) else signal.SIGTERM
        for process in self._processes:
            self._end_process(process, passed)

    def _hang_up(self, number: int) -> None:
        """Restart the processes, each after the start of the previous process."""
        if not self._signals and (self._rolling is None or self._rolling.done()):
            self._rolling = asyncio.create_task(self._roll())

    async def _roll(self) -> None:
        logger.info("SIGHUP: restarting the processes one after another")
        for process in self._processes:
            if process.state is not _State.FINISHED:
                self._end_process(process, signal.SIGTERM)
                await process.settled.wait()
                if process.state is not _State.RUNNING:
                    logger.error("process %d does not start again; the other processes stay", process.number)
                    return
        logger.info("all processes have restarted")

    async def _reload(self) -> None:
        if self._changes is None:
            return
        async for path in self._changes:
            logger.info("%s has changed, restarting", path)
            for process in self._processes:
                process.failures = 0
                self._end_process(process, signal.SIGTERM)

    # ---- health and metrics

    async def _serve_app(self, process: _Process, addresses: list[tuple[str, int]]) -> None:
        """Serve the addresses of the app."""
        for probe, address in enumerate(addresses):
            if probe not in self._served:
                self._served[probe] = address
                try:
                    await self._serve(probe, address)
                except HealthAddressError as error:
                    logger.error("%s", error)  # noqa: TRY400 - no traceback
                    if not self._signals:
                        self._fail(ExitStatus.FAILED)
            elif self._served[probe] != address:
                logger.warning(
                    "process %d names %s:%d for health, and another process %s:%d: the first counts",
                    *(process.number, *address, *self._served[probe]),
                )

    async def _serve(self, probe: int, address: tuple[str, int]) -> None:
        server = PageServer(*address, partial(self._page, probe), patience=LONGEST_ANSWER + 5.0)
        await self._serving.enter_async_context(server.serving())
        logger.info("health and metrics of all processes: %s", server.uri)

    async def _page(self, probe: int, path: str) -> Page:
        """Return a page of a probe: number 0 is the probe of the app, other numbers of included apps."""
        pages = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics}
        if path not in pages:
            return HTTPStatus.NOT_FOUND, "the paths are /livez, /readyz and /metrics\n", TEXT_TYPE
        answers = await asyncio.gather(*(process.ask(f"/{probe}{path}") for process in self._processes))
        return pages[path](list(zip(self._processes, answers, strict=True)))

    def _livez(self, answers: list[tuple[_Process, _Answer]]) -> Page:
        silent = [each.number for each, answer in answers if answer is None and each.state in _AWAKE]
        if not silent:
            return HTTPStatus.OK, "alive\n", TEXT_TYPE
        lines = "".join(f"process {number} does not answer\n" for number in silent)
        return HTTPStatus.SERVICE_UNAVAILABLE, lines, TEXT_TYPE

    def _readyz(self, answers: list[tuple[_Process, _Answer]]) -> Page:
        found = [process.condition(answer) for process, answer in answers]
        ready = all(each["ready"] for each in found)
        degraded = ready and any(each["degraded"] for each in found)
        alike = [each["since"] for each in found if (each["ready"], each["degraded"]) == (ready, degraded)]
        ages = {name: [each[name] for each in found if each[name] is not None] for name in AGES}
        troubles = [
            {"process": each["process"], **trouble} for each in found for trouble in each.pop("troubles")
        ]
        answer: dict[str, Any] = {
            "ready": ready,
            "degraded": degraded,
            "since": (max if ready and not degraded else min)(alike),
            **{name: max(values, default=None) for name, values in ages.items()},
            "troubles": sorted(troubles, key=lambda trouble: str(trouble.get("since", ""))),
            "processes": found,
        }
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return status, json.dumps(answer, indent=1) + "\n", "application/json"

    def _metrics(self, answers: list[tuple[_Process, _Answer]]) -> Page:
        """Join the metrics of all processes; each sample has the label ``process``."""
        states = [process.state for process in self._processes]
        restarts = "bmq_process_restarts_total"
        lines = [
            "# HELP bmq_processes Processes by state",
            "# TYPE bmq_processes gauge",
            *(f'bmq_processes{{state="{state}"}} {states.count(state)}' for state in _State),
            f"# HELP {restarts} Restarts of a process",
            f"# TYPE {restarts} counter",
            *(f'{restarts}{{process="{each.number}"}} {each.restarts}' for each in self._processes),
        ]
        # The lines of a metric, with its help and type once: Prometheus wants them together.
        families: dict[str, dict[str, None]] = {}
        for process, answer in answers:
            body = answer[1] if answer is not None and answer[0] == HTTPStatus.OK else b""
            family = ""
            for line in body.decode("utf-8", "replace").splitlines():
                if about := _ABOUT.match(line):
                    family = about[1]
                elif sample := _SAMPLE.match(line):
                    name, more = sample.groups()
                    family = family if family and name.startswith(family) else name
                    label = f'process="{process.number}"{"," if more else "}"}'
                    line = f"{name}{{{label}{line[sample.end() :]}"
                else:
                    continue  # a comment, or no line of the format
                families.setdefault(family, {})[line] = None
        lines += [line for lines_of_family in families.values() for line in lines_of_family]
        return HTTPStatus.OK, "\n".join(lines) + "\n", METRICS_TYPE


def _force(process: _Process, child: asyncio.subprocess.Process, delay: float) -> None:
    """Kill a process that has not stopped in time."""
    if child.returncode is None:
        logger.warning("%s has not ended within %g s, and is killed", process.name, delay)
        process.signal(signal.SIGKILL)


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was ended by {names.get(-status, f'signal {-status}')}"


def _has_terminal() -> bool:
    """Whether the process belongs to a terminal, whose end is a SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True
