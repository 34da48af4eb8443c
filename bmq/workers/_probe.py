# SPDX-License-Identifier: Apache-2.0
"""What an app tells those who look after it: a few answers over HTTP."""

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

#: Returns metrics as text in Prometheus' format.
Metrics: TypeAlias = Callable[[], str | bytes]

# The fields of :class:`bmq.Health` that are ages.
_AGES = ("silent_seconds", "oldest_unacked_seconds", "oldest_unconfirmed_seconds")
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
# A connection has this many seconds, and this many bytes, for its request, and so many seconds in all.
_SILENCE = 1.0
_PATIENCE = 5.0
_LONGEST = 8192
# So many connections are there at a time. One more cuts off the oldest that has asked nothing: orchestrators
# ask at once, so strangers that only connect cannot keep them out.
_AT_ONCE = 64


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Raises:
        UsageError: it is something else.
    """
    text = _checks.text("health", text)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not _is_port(port):
        raise UsageError(f"health is HOST:PORT, such as 127.0.0.1:8080, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65535


def worst(found: list[Health]) -> Health:
    """Return how several sessions are together: as the worst of them, with the troubles of all."""
    ready, degraded = all(each.ready for each in found), any(each.degraded for each in found)
    alike = [each for each in found if (each.ready, each.degraded) == (ready, ready and degraded)]
    return Health(
        ready,
        ready and degraded,
        tuple(sorted((trouble for each in found for trouble in each.troubles), key=lambda each: each.since)),
        # All are ready since the last is; something is wrong since the first time that it was.
        (max if ready and not degraded else min)(each.since for each in alike),
        *(_largest(getattr(each, name) for each in found) for name in _AGES),
    )


def _largest(ages: Iterable[float | None]) -> float | None:
    return max((age for age in ages if age is not None), default=None)


class Probe:
    """Answers /livez, /readyz and /metrics.

    It runs on the app's own event loop: a loop that hangs answers nothing, and that is how it is noticed.

    Args:
        host: where it listens.
        port: where it listens; 0 for any.
        health: says how the session is; returns None while there is none.
        metrics: makes the answer to /metrics.

    Attributes:
        uri: its address, while it runs.
    """

    def __init__(
        self, host: str, port: int, health: Callable[[], Health | None], metrics: Metrics | None
    ) -> None:
        self._host = host
        self._port = port
        self._health = health
        self._metrics = metrics
        self._asking: dict[asyncio.Task[Any], None] = {}
        # Those that have not asked yet, the oldest first.
        self._silent: dict[asyncio.Task[Any], None] = {}
        self.uri: str | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Answer inside the block.

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
            pass  # the peer has gone, or asks for nothing that is known here
        finally:
            self._asking.pop(task, None)
            self._silent.pop(task, None)
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, "this is HTTP/1.1\n")
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "there is only GET\n", allow="GET, HEAD")
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
                return HTTPStatus.NOT_FOUND, "there are /livez, /readyz and /metrics\n", _TEXT

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
            text = "there are no metrics: App(..., metrics=...) takes a function that returns them\n"
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
