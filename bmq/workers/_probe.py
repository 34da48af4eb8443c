# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of an app: liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from bmq import _checks
from bmq.engine.health import Health
from bmq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["Metrics", "Probe", "address_of", "worst"]

logger = logging.getLogger("bmq.workers")

#: Function returning metrics in Prometheus' text format.
Metrics: TypeAlias = Callable[[], str | bytes]

# The fields of :class:`bmq.health.Health` that are ages.
_AGES = ("silent_seconds", "oldest_unacked_seconds", "oldest_unconfirmed_seconds")
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
# Limits of a connection: seconds for the request, bytes of the request, and seconds in all.
_SILENCE = 1.0
_PATIENCE = 5.0
_LONGEST = 8192
# Maximum number of connections. A further connection closes the oldest connection without a request.
# Orchestrators send requests at once, so idle connections cannot keep an orchestrator out.
_AT_ONCE = 64


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Raises:
        UsageError: the text is not an address.
    """
    text = _checks.text("health", text)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not _is_port(port):
        raise UsageError(f"health must be HOST:PORT, such as 127.0.0.1:8080, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65535


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
        *(_largest(getattr(each, name) for each in found) for name in _AGES),
    )


def _largest(ages: Iterable[float | None]) -> float | None:
    return max((age for age in ages if age is not None), default=None)


class Probe:
    """Answers /livez, /readyz and /metrics.

    The server runs in the app's event loop: a blocked loop does not answer, and the orchestrator notices.

    Args:
        host: host name or address of the listening socket.
        port: port of the listening socket; 0 for any free port.
        health: returns the health of the session; None if no session exists.
        metrics: returns the body of /metrics.

    Attributes:
        uri: address of the server, while the server runs.
    """

    def __init__(
        self, host: str, port: int, health: Callable[[], Health | None], metrics: Metrics | None
    ) -> None:
        self._host = host
        self._port = port
        self._health = health
        self._metrics = metrics
        self._asking: dict[asyncio.Task[Any], None] = {}
        # Connections without a request so far, the oldest first.
        self._silent: dict[asyncio.Task[Any], None] = {}
        self.uri: str | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Run the server inside the block.

        Raises:
            OSError: the address cannot be used.
        """
        server = await asyncio.start_server(self._asked, self._host, self._port, limit=_LONGEST)
        port = server.sockets[0].getsockname()[1]
        self.uri = f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{port}"
        try:
            yield
        finally:
            self.uri = None
            server.close()
            for task in self._asking:
                task.cancel()

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._asking[task] = self._silent[task] = None
        if len(self._asking) > _AT_ONCE:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.cancel()
        try:
            async with asyncio.timeout(_PATIENCE):
                async with asyncio.timeout(_SILENCE):
                    request = await reader.readuntil(b"\r\n\r\n")
                self._silent.pop(task, None)
                writer.write(self._answer(request))
                await writer.drain()
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
            pass  # the peer has gone, or the request is unknown
        finally:
            self._asking.pop(task, None)
            self._silent.pop(task, None)
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, "only HTTP/1.1 is supported\n")
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is supported\n", allow="GET, HEAD")
        status, text, kind = self._page(path)
        return _response(status, text, kind, head=method == "HEAD")

    def _page(self, path: str) -> tuple[HTTPStatus, str | bytes, str]:
        match path:
            case "/livez":
                return HTTPStatus.OK, "alive\n", _TEXT
            case "/readyz":
                return self._ready()
            case "/metrics":
                return self._measured()
            case _:
                return HTTPStatus.NOT_FOUND, "the paths are /livez, /readyz and /metrics\n", _TEXT

    def _ready(self) -> tuple[HTTPStatus, str, str]:
        health = self._health()
        ready = health is not None and health.ready
        answer: dict[str, Any] = {"ready": ready, "degraded": health is not None and health.degraded}
        if health is not None:
            answer["since"] = health.since.isoformat(timespec="milliseconds")
            for name in _AGES:
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

    def _measured(self) -> tuple[HTTPStatus, str | bytes, str]:
        if self._metrics is None:
            text = "no metrics are configured: App(..., metrics=...) takes a function that returns them\n"
            return HTTPStatus.NOT_FOUND, text, _TEXT
        try:
            return HTTPStatus.OK, self._metrics(), _METRICS
        except Exception:
            logger.exception("the function that returns metrics failed")
            return HTTPStatus.INTERNAL_SERVER_ERROR, "the function that returns metrics failed\n", _TEXT


def _response(
    status: HTTPStatus, text: str | bytes, kind: str = _TEXT, *, allow: str = "", head: bool = False
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
