# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of an app: liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from bmq import _checks
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.client.health import Health
from bmq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = [
    "AGES",
    "METRICS_TYPE",
    "TEXT_TYPE",
    "HealthAddressError",
    "Metrics",
    "Page",
    "PageServer",
    "Probe",
    "address_of",
    "worst",
]

logger = Log("bmq.workers")

#: Function returning metrics in Prometheus' text format.
Metrics: TypeAlias = Callable[[], str | bytes]

# No URI, no space, and brackets around the whole host only.
_ADDRESS = re.compile(r"(?P<host>\[[^][/@\s]+\]|[^][/@\s]+):(?P<port>[0-9]{1,5})")

# The fields of :class:`bmq.health.Health` that are ages.
AGES = ("silent_seconds", "oldest_unacked_seconds", "oldest_unconfirmed_seconds")
TEXT_TYPE = "text/plain; charset=utf-8"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Limits of a connection: seconds, and bytes of the request.
_PATIENCE = 5.0
_LONGEST = 8192
# Maximum number of connections. A further connection closes the oldest one: orchestrators send requests at
# once, so idle connections cannot keep an orchestrator out.
_AT_ONCE = 64


class HealthAddressError(OSError):
    """The address for health cannot be used.

    Attributes:
        why: the reason of the operating system.
    """

    why = ""

    def __str__(self) -> str:
        return str(self.strerror)


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Raises:
        UsageError: the text is not an address.
    """
    text = _checks.text("health", text)
    parts = _ADDRESS.fullmatch(text)
    if parts is None or int(parts["port"]) > 65535:
        raise UsageError(f"health must be HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, not {text!r}")
    return parts["host"].strip("[]"), int(parts["port"])


def worst(found: list[Health]) -> Health:
    """Return the combined health of several sessions: the worst state, with the troubles of all."""
    ready, degraded = all(each.ready for each in found), any(each.degraded for each in found)
    alike = [each for each in found if (each.ready, each.degraded) == (ready, ready and degraded)]
    return Health(
        ready,
        ready and degraded,
        tuple(sorted((trouble for each in found for trouble in each.troubles), key=lambda each: each.since)),
        # All sessions are ready once the last session is ready. Trouble begins with the first session in
        # trouble.
        (max if ready and not degraded else min)(each.since for each in alike),
        *(
            max((age for each in found if (age := getattr(each, name)) is not None), default=None)
            for name in AGES
        ),
    )


#: Status, body and content type of a page.
Page: TypeAlias = tuple[HTTPStatus, str | bytes, str]


class PageServer:
    """A small HTTP server.

    Args:
        host: host name or address of the listening socket.
        port: port of the listening socket; 0 for any free port.
        page: returns the page of a path.
        patience: seconds for a request with its answer.

    Attributes:
        uri: address of the server, while the server runs.
    """

    def __init__(
        self, host: str, port: int, page: Callable[[str], Awaitable[Page]], patience: float = _PATIENCE
    ) -> None:
        self._host = host
        self._port = port
        self._page = page
        self._patience = patience
        # The tasks of all connections, the oldest first.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._log = LogLimit(logger)
        self.uri: str | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Run the server inside the block.

        Raises:
            HealthAddressError: the address cannot be used.
        """
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            server = await asyncio.start_server(self._connected, self._host, self._port, limit=_LONGEST)
        except (OSError, UnicodeError) as error:
            number: int = getattr(error, "errno", None) or 0
            why = str(getattr(error, "strerror", None) or "not the name of a host")
            if number in errno.errorcode:
                why = os.strerror(number).lower()  # without asyncio's repetition of the address
            stop = ", or stop the program that has the address" if number == errno.EADDRINUSE else ""
            refused = HealthAddressError(
                number,
                f"the address for health, {host}:{self._port}, cannot be used: {why}. Give another address "
                f"to bmq.App(health=...) or bmq run --health{stop}",
            )
            refused.why = why
            raise refused from None
        port = server.sockets[0].getsockname()[1]
        self.uri = f"http://{host}:{port}"
        try:
            yield
        finally:
            self.uri = None
            server.close()
            for task in self._tasks:
                task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        if len(self._tasks) > _AT_ONCE:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]  # at once: the next connection ends another one
            oldest.cancel()
        writer.transport.set_write_buffer_limits(0)  # drain() waits until the peer has taken everything
        try:
            async with asyncio.timeout(self._patience):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(request))
                await writer.drain()
            writer.close()
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            pass  # the peer has gone, or reads nothing, or the request is unknown
        except asyncio.CancelledError:
            pass  # by the server: asyncio's streams of Python 3.11 log the cancellation of this task
        finally:
            self._tasks.pop(task, None)
            if not writer.is_closing():
                writer.transport.abort()

    async def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, "only HTTP/1.1 is supported\n")
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is supported\n", allow="GET, HEAD")
        page: Page = HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed; see the log\n", TEXT_TYPE
        with self._log.surviving("a page of the server for health"):
            page = await self._page(path)
        return _response(*page, head=method == "HEAD")


class Probe:
    """The pages /livez, /readyz and /metrics of an app.

    The server runs in the app's event loop: a blocked loop does not answer, and the orchestrator notices.

    Args:
        address: host and port of the server; None for no server. Port 0 selects a free port.
        health: returns the health of the session; None if no session exists.
        metrics: returns the body of /metrics.

    Attributes:
        address: see above. Under ``bmq run --processes`` the supervisor serves the address, and each
            process has None.
    """

    def __init__(
        self,
        address: tuple[str, int] | None,
        health: Callable[[], Health | None],
        metrics: Metrics | None,
    ) -> None:
        self.address = address
        self._health = health
        self._metrics = metrics
        self._server: PageServer | None = None

    @property
    def uri(self) -> str | None:
        """Address of the server, while the server runs."""
        return self._server.uri if self._server is not None else None

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Run the server inside the block, if the probe has an address.

        Raises:
            HealthAddressError: the address cannot be used.
        """
        if self.address is None:
            yield
            return

        self._server = PageServer(*self.address, self.page)
        async with self._server.serving():
            yield

    async def page(self, path: str) -> Page:
        """Return the page of a path."""
        match path:
            case "/livez":
                return HTTPStatus.OK, "alive\n", TEXT_TYPE
            case "/readyz":
                return self._ready()
            case "/metrics":
                return self._measured()
            case _:
                return HTTPStatus.NOT_FOUND, "the paths are /livez, /readyz and /metrics\n", TEXT_TYPE

    def _ready(self) -> Page:
        health = self._health()
        ready = health is not None and health.ready
        answer: dict[str, Any] = {"ready": ready, "degraded": health is not None and health.degraded}
        if health is not None:
            answer["since"] = health.since.isoformat(timespec="milliseconds")
            for name in AGES:
                age = getattr(health, name)
                answer[name] = None if age is None else round(age, 3)
            answer["troubles"] = [
                {"what": each.what, "since": each.since.isoformat(timespec="milliseconds")}
                for each in health.troubles
            ]
        else:
            answer["troubles"] = [{"what": "the app is starting or stopping"}]
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return status, json.dumps(answer, indent=1) + "\n", "application/json"

    def _measured(self) -> Page:
        if self._metrics is None:
            text = "no metrics are configured: App(..., metrics=...) takes a function that returns them\n"
            return HTTPStatus.NOT_FOUND, text, TEXT_TYPE
        return HTTPStatus.OK, self._metrics(), METRICS_TYPE


def _response(
    status: HTTPStatus, text: str | bytes, kind: str = TEXT_TYPE, *, allow: str = "", head: bool = False
) -> bytes:
    body = text.encode() if isinstance(text, str) else text
    headers = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *([f"Allow: {allow}"] if allow else []),
    ]
    return "\r\n".join([*headers, "", ""]).encode("latin-1") + (b"" if head else body)
