# SPDX-License-Identifier: Apache-2.0
"""Several threads that run one app: the supervisor of ``bmq run --threads``.

Each thread has an event loop, and a copy of the app: sessions, state and life, see :mod:`bmq._copies`. The
module of the app is imported once, in the main thread. The main thread only supervises: signals, restarts,
health and metrics work while the event loops of the threads are blocked.

Invariants:

- A thread touches the futures of the supervisor only through ``call_soon_threadsafe``, and the supervisor
  touches the app of a thread only in the thread's event loop.
- A thread cannot be killed. The supervisor stops waiting for a thread that does not end in time, and the end
  of the process ends the thread.

Rejected: a copy of the module for each thread. Classes and functions would exist several times under one
name, so ``isinstance``, ``pickle`` and the modules that the app imports would see different objects.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import sysconfig
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

import bmq
from bmq import _copies
from bmq._logging import Log
from bmq._loop import new_event_loop
from bmq._signals import on_signals
from bmq.cli.combined import CombinedHealth
from bmq.cli.output import note
from bmq.cli.process import Slot, Worker
from bmq.cli.status import ExitStatus
from bmq.cli.supervisor import Pauses, Supervisor
from bmq.cli.verb import status_of
from bmq.workers.internals import begin_copy_of, begun_of, grace_of, probes_of

__all__ = ["AppThread", "ThreadSupervisor", "sharing"]

logger = Log("bmq.run")


def sharing() -> str | None:
    """Return why threads share one core; None if they do not."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            "the GIL is enabled, by PYTHON_GIL=1, -X gil=1 or an extension module; PYTHON_GIL=0 disables it"
        )
    return "this Python has a GIL; a free-threaded Python or --processes uses more cores"


class AppThread(Worker):
    """A thread that runs a copy of an app.

    Args:
        app: the app; its probes have no addresses.
        addresses: the addresses of the probes.
        number: number of the copy.
    """

    forced = "; the run ends without it"

    def __init__(self, app: bmq.App[Any], addresses: list[tuple[str, int] | None], number: int) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the operating system has no further thread.
        """
        super().__init__()
        self._app = app
        self._number = number
        self._probes = probes_of(app)
        self._context = Context()
        self._context.run(_copies.enter, number)
        # Set by the thread when its event loop exists.
        self._inside: asyncio.AbstractEventLoop | None = None
        # The supervisor sets the flag before it looks for the event loop, and the thread looks after setting
        # the event loop: no request is lost.
        self._asked_to_stop = threading.Event()
        hello = {"addresses": addresses, "grace": grace_of(app)}
        self._loop.call_soon(self.hello.set_result, hello)
        threading.Thread(target=self._serve, name=f"thread-{number}", daemon=True).start()

    # ---- in the thread

    def _serve(self) -> None:
        status: int = ExitStatus.FAILED
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                self._inside = runner.get_loop()
                status = runner.run(self._run(), context=self._context)
        except SystemExit as end:  # ends the thread, as it ends a process
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            logger.exception("the event loop of a thread has failed")
        finally:
            self._inside = None
            self._threadsafe(self._end)(status)

    async def _run(self) -> ExitStatus:
        app = self._app
        try:
            begin_copy_of(app)
            if self._asked_to_stop.is_set():
                return ExitStatus.OK
            begun_of(app).add_done_callback(self._threadsafe(self._begin))
            await app.run(signals=False)
        except (bmq.Error, OSError) as error:
            note(f"bmq run: thread {self._number}: {error}")
            return status_of(error) if isinstance(error, bmq.Error) else ExitStatus.FAILED
        except Exception:
            Log("bmq").exception("the app has failed")
            return ExitStatus.FAILED
        return ExitStatus.TERMINATED if self._asked_to_stop.is_set() else ExitStatus.OK

    def _page(self, path: str) -> None:
        """Answer a question of the supervisor."""
        number, _, page = path.removeprefix("/").partition("/")
        answer: tuple[int, bytes] | None = None
        try:
            status, body, _ = self._probes[int(number)].page(f"/{page}")
            answer = status, body.encode() if isinstance(body, str) else body
        finally:
            self._threadsafe(self._answered)(path, answer)

    # ---- in the event loop of the supervisor

    def _begin(self, _: object) -> None:
        if not self.started.done():
            self.started.set_result(True)

    def _end(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)

    def _put(self, path: str) -> bool:
        return self._call(self._page, path)

    def _call(self, function: Any, *arguments: object) -> bool:
        """Call a function in the thread's event loop and context; return whether the loop exists."""
        inside = self._inside
        if inside is None:
            return False
        try:
            inside.call_soon_threadsafe(function, *arguments, context=self._context)
        except RuntimeError:  # the loop has just been closed
            return False
        return True

    def signal(self, number: int) -> None:
        """Stop the app of the thread; the second call cancels the handlers."""
        self._asked_to_stop.set()
        self._call(self._app.stop)

    def kill(self) -> None:
        """Ask the thread to stop, and wait no longer."""
        if not self.ended.done():
            self.signal(signal.SIGTERM)
            self.ended.set_result(ExitStatus.FAILED)


class ThreadSupervisor(Supervisor):
    """Runs several threads of one app.

    Args:
        app: the app.
        threads: number of threads.
        health: host and port of the server for health and metrics; None for the address of the app.
        level: lowest level of the supervisor's log lines.
        pauses: times.
    """

    def __init__(
        self,
        app: bmq.App[Any],
        threads: int,
        *,
        health: tuple[str, int] | None = None,
        level: int = logging.INFO,
        pauses: Pauses | None = None,
    ) -> None:
        super().__init__([], threads, kind="thread", health=health, level=level, pauses=pauses)
        self._app = app
        probes = probes_of(app)
        self._addresses = [each.address for each in probes]
        for each in probes:
            each.address = None  # the supervisor serves the address for all threads
        self._answers = CombinedHealth(self._slots, probes)

    def _begin(self, slot: Slot) -> Worker:
        return AppThread(self._app, self._addresses, slot.number)

    @contextmanager
    def _on_signals(self) -> Generator[None]:
        """Pass signals on to the threads; the third signal ends the process."""
        with on_signals(lambda: self._stop(signal.SIGTERM)):
            yield
