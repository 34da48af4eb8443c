# SPDX-License-Identifier: Apache-2.0
"""A process of ``bmq run --processes``, seen from inside: answers to the supervisor, and its end.

The supervisor passes two file descriptors. The channel is a socket with requests and replies::

    /0/readyz LF            ->          <- /0/readyz 503 LENGTH LF BODY

Two replies come without a request: ``/hello`` with the addresses of the app's probes, and ``/started``. The
lifeline is a pipe without data, which closes with the supervisor, however the supervisor ends. A thread
watches the lifeline, because an event loop may be blocked.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bmq._logging import Log
from bmq._signals import on_signals
from bmq.cli.status import ExitStatus
from bmq.workers.internals import begun_of, grace_of, probes_of

if TYPE_CHECKING:
    import bmq
    from bmq.workers.probe import Probe

__all__ = ["FORCED_AFTER", "GRACE", "NUMBER", "Child", "inherited"]

logger = Log("bmq.run")

#: Environment variable with the number of a process, from 1; for the app.
NUMBER: Final = "BMQ_PROCESS"
_DESCRIPTORS: Final = "_BMQ_SUPERVISOR"
#: Seconds beyond the app's grace after which a stopping process is killed.
FORCED_AFTER: Final = 10.0
#: Seconds of grace of a process without an app so far.
GRACE: Final = 30.0


def inherited(channel: int, lifeline: int) -> dict[str, str]:
    """Return the environment variables for a process that inherits these file descriptors.

    Args:
        channel: socket to the supervisor.
        lifeline: pipe that the supervisor holds open.
    """
    return {_DESCRIPTORS: f"{channel},{lifeline}"}


@dataclass(slots=True)
class Child:
    """The inside of a supervised process.

    Attributes:
        channel: socket to the supervisor.
        lifeline: pipe that the supervisor holds open.
        grace: seconds that the app takes to stop, without its closing.
    """

    channel: socket.socket
    lifeline: int
    grace: float = GRACE

    @classmethod
    def adopt(cls) -> Child | None:
        """Return this process as a supervised process, and watch the supervisor; None without supervisor."""
        given = os.environ.pop(_DESCRIPTORS, None)
        if given is None:
            return None
        channel, lifeline = (int(each) for each in given.split(","))
        for each in (channel, lifeline):
            os.set_inheritable(each, False)
        child = cls(socket.socket(fileno=channel), lifeline)
        threading.Thread(target=child._watch, name="supervisor", daemon=True).start()
        return child

    def _watch(self) -> None:
        """Stop this process after the end of the supervisor."""
        while os.read(self.lifeline, 1):
            pass
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

        self.grace = grace_of(app)
        async with self._answering(app):
            with on_signals(stop):
                await app.run(signals=False)
        return ExitStatus.TERMINATED if signalled else ExitStatus.OK

    @asynccontextmanager
    async def _answering(self, app: bmq.App[Any]) -> AsyncGenerator[None]:
        probes = probes_of(app)
        addresses = [each.address for each in probes]
        for each in probes:
            each.address = None  # the supervisor serves the address for all processes
        reader, writer = await asyncio.open_unix_connection(sock=self.channel)
        hello = {"addresses": addresses, "grace": self.grace}
        writer.write(_reply("/hello", 200, json.dumps(hello).encode()))
        begun_of(app).add_done_callback(lambda _: writer.write(_reply("/started", 200, b"")))
        answering = asyncio.create_task(_answer(reader, writer, probes), name="answer the supervisor")
        try:
            yield
        finally:
            answering.cancel()
            await asyncio.wait([answering])
            writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, probes: list[Probe]) -> None:
    try:
        while line := await reader.readline():
            path = line.decode().strip()
            number, _, page = path.removeprefix("/").partition("/")
            status, body, _ = probes[int(number)].page(f"/{page}")
            writer.write(_reply(path, status, body.encode() if isinstance(body, str) else body))
            await writer.drain()
    except OSError:
        pass  # the supervisor has ended; the lifeline stops the process


def _reply(path: str, status: int, body: bytes) -> bytes:
    return b"%s %d %d\n" % (path.encode(), status, len(body)) + body
