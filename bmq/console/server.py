# SPDX-License-Identifier: Apache-2.0
"""The console's HTTP server: the page, its data, and its actions."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import re
import secrets
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from importlib import resources
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import asdict

import bmq
from bmq import _checks
from bmq._json import orjson
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.admin import AppDepth
from bmq.admin.explanation import Explanation, explain
from bmq.console.door import Door
from bmq.console.findings import DEAD, DeadLetters, QueueFinding, inside
from bmq.console.guard import Guard, is_loopback
from bmq.console.source import MOST_HELD, Contents, Embedded, NotNow, RemoteBroker
from bmq.console.taking import cancel, post_again
from bmq.console.watch import Watch
from bmq.groups.buckets import group_of
from bmq.wire.printable import printable
from bmq.wire.properties import typed_value

__all__ = ["Console", "beside"]

logger = Log("bmq.console")

_PAGE = {
    "/": ("index.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
    "/severity.js": ("severity.js", "text/javascript"),
    "/clusters.js": ("clusters.js", "text/javascript"),
    "/letters.js": ("letters.js", "text/javascript"),
    "/keys.js": ("keys.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS = {
    # The page loads nothing from other hosts, runs only its own script, and appears in no frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Requests outside the common turns: fast requests, and requests with separate limits.
_UNLIMITED = {*_PAGE, "/api/live", "/api/contents"}
_EXPLAINED = {
    404: "the console has no page at this path",
    405: "the console does not support this method at this path",
    408: "the request did not arrive in time",
    413: "the request is too large",
}
# Limits of the bodies of requests: bytes of one, bytes of all together, and seconds until one has arrived.
_MOST_SENT = 16 * 1024 * 1024
_MOST_RECEIVED = 64 * 1024 * 1024
_ARRIVAL = 60.0
_MOST_LISTED = 500
# Limits of one answer with contents: messages, and bytes.
_MOST_INSIDE = 100
_MOST_ANSWERED = 8 * 1024 * 1024
# Requests at once: all kinds, and requests that look into messages; and the number of waiting requests.
_AT_WORK = 4
_LOOKING_INSIDE = 1
_WAITING = 32
# Pages that may follow at once.
_MOST_FOLLOWING = 32
# Seconds until a reader that takes nothing is cut off, bytes under way to a reader, and the fewest bytes a
# second that a reader must take.
_PATIENCE = 30.0
_PIECE = 64 * 1024
_SLOWEST = 64 * 1024


class _Busy(Exception):
    """Too much is asked at once."""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Action = Callable[[web.Request, "_Body"], Awaitable[web.StreamResponse]]


class Console:
    """The web page, served until the console is closed.

    Args:
        source: the broker.
        host: the listening address.
        port: the port; 0 selects a free port, see :attr:`url`.
        names: further host names for browsers.
        token: the token required of the page. If None, a new token, unless ``host`` is loopback and the
            source has no credentials: then no token is required. An empty text stands for no token, and is
            allowed on loopback only.
        read_only: whether to refuse every change.
        interval: seconds between two polls of the broker; longer if a poll takes long.
        dead_letters: patterns of the URIs of queues with dead letters. Other queues keep their messages for
            their readers, and the page reports a queue without readers.

    Raises:
        UsageError: the token is empty, and ``host`` is not loopback.
    """

    def __init__(
        self,
        source: RemoteBroker,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        names: Collection[str] = (),
        token: str | None = None,
        read_only: bool = False,
        interval: float = 1.0,
        dead_letters: Collection[str] = DEAD,
    ) -> None:
        _checks.instance("source", source, RemoteBroker, "a RemoteBroker or an Embedded")
        host = _checks.text("host", host, empty=False)
        names = _checks.texts("names", names)
        token = _checks.optional(_checks.text, "token", token)
        read_only = _checks.boolean("read_only", read_only)
        interval = _checks.seconds("interval", interval, positive=True)
        self._source = source
        self._host = host
        self._port = _checks.integer("port", port, 0, 65535)
        if token is None:
            free = is_loopback(host) and not source.authenticates
            token = "" if free else secrets.token_urlsafe(24)
        if not token and not is_loopback(host):
            raise bmq.UsageError(f"without a token every machine that reaches {host} may use the page")
        self._token = token
        self._guard = Guard(host, names=names, token=self._token, read_only=read_only)
        self._dead = DeadLetters(dead_letters)
        self._watch = Watch(source, interval, self._dead)
        self._watching: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._door: Door | None = None
        self._log = LogLimit(logger)
        self._working = _Turns(_AT_WORK, _WAITING)
        self._inside = _Turns(_LOOKING_INSIDE, _WAITING)
        self._received = 0  # bytes of bodies of unanswered requests
        # By path. A GET only reads; POSTs in ``_changing`` make changes.
        self._gets: dict[str, Handler] = {
            "/api/live": self._live,
            "/api/queue": self._queue,
            "/api/messages": self._messages,
            "/api/clusters": self._clusters,
        }
        self._posts: dict[str, Action] = {
            "/api/route": self._route,
            "/api/contents": self._contents,
            "/api/post": self._post,
            "/api/purge": self._purge,
            "/api/again": self._again,
            "/api/cancel": self._cancel,
        }
        self._changing = {"/api/post", "/api/purge", "/api/again", "/api/cancel"}
        self._routes = {*_PAGE, *self._gets, *self._posts}
        if not source.looks_inside:
            self._changing.add("/api/contents")  # the messages are delivered, and given back

    # life

    @property
    def url(self) -> str:
        """The page's address, with the token if required."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        token = f"#token={self._token}" if self._token else ""
        return f"http://{host}:{self._port}/{token}"

    async def start(self) -> None:
        """Begin to listen and to poll the broker, reachable or not.

        Raises:
            OSError: the address cannot be used.
        """
        app = web.Application(middlewares=[self._answer])
        folder = resources.files("bmq.console") / "page"
        for path, (name, kind) in _PAGE.items():
            app.router.add_get(path, _asset((folder / name).read_bytes(), kind))
        for path, handler in self._gets.items():
            app.router.add_get(path, handler, allow_head=False)
        for path, action in self._posts.items():
            app.router.add_post(path, partial(self._act, action))
        app.on_response_prepare.append(_dress)
        # aiohttp logs a traceback for each request that is no HTTP: strangers could fill the log.
        silent = logging.Logger("bmq.console.http", logging.CRITICAL + 1)
        runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=2.0,
            logger=silent,
            auto_decompress=False,  # a small body of a stranger could be a large one
            lingering_time=2.0,
        )
        await runner.setup()
        assert runner.server is not None
        self._door = Door(runner.server)
        try:
            self._port = await self._door.open(self._host, self._port)
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self._watching = asyncio.create_task(self._watch.run(), name="bmq console")

    async def close(self) -> None:
        """Stop the console; idempotent."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        runner, self._runner = self._runner, None
        if runner is not None and self._door is not None:
            self._door.close()
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # every request

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request; every failure becomes a JSON object with an error text."""
        assert self._door is not None
        with self._door.asking(request):
            return await self._checked(request, handler)

    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refused = self._guard.refuse(
                request.method,
                request.headers,
                api=request.path.startswith("/api/"),
                changes=request.path in self._changing,
            )
            if refused is not None:
                return _error(*refused)
            if request.method == "POST" or request.path in _UNLIMITED:
                return await handler(request)  # a POST takes its turn in _act
            async with self._working:
                return await handler(request)
        except web.HTTPException as error:
            return _error(error.status, _EXPLAINED.get(error.status, error.reason))
        except (bmq.ConnectionFailed, bmq.RequestTimeout, bmq.SessionClosed, bmq.QueueClosed, _Busy) as error:
            return _error(503, str(error))
        except (bmq.errors.AdminError, bmq.RequestError, bmq.PostError, bmq.StateError, NotNow) as error:
            return _error(409, str(error))
        except ValueError as error:  # a UsageError too
            return _error(400, str(error))
        except bmq.Error as error:
            return _error(502, str(error))
        except ConnectionError:
            raise  # the page was closed
        except Exception as error:
            name = type(error).__name__
            self._log.error(
                (request.path if request.path in self._routes else "", name),
                "the console could not answer %s: %s",
                printable(f"{request.method} {request.path}"),
                printable("; ".join(map(str.strip, traceback.format_exception(error)[-2:]))),
            )
            return _error(500, f"the request has failed because of a defect of the console: {name}")

    async def _act(self, action: Action, request: web.Request) -> web.StreamResponse:
        """Read a request's body, then act; a slow sender occupies no turn."""
        async with self._receiving(request) as received:
            body = _body(received)
            async with nullcontext() if request.path in _UNLIMITED else self._working:
                return await action(request, body)

    @asynccontextmanager
    async def _receiving(self, request: web.Request) -> AsyncGenerator[bytearray]:
        """Read a request's body, and count the bytes as received until the request is answered."""
        received = bytearray()
        try:
            try:
                async with asyncio.timeout(_ARRIVAL):
                    async for piece in request.content.iter_any():
                        received += piece
                        self._received += len(piece)
                        if len(received) > _MOST_SENT:
                            raise web.HTTPRequestEntityTooLarge(_MOST_SENT, len(received))
                        if self._received > _MOST_RECEIVED:
                            raise _Busy("the console is busy with other large requests; try again")
            except TimeoutError:
                raise web.HTTPRequestTimeout from None
            yield received
        finally:
            self._received -= len(received)

    # data

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """The full state, then all changes: one JSON object a line, until the page is closed."""
        if self._watch.followers >= _MOST_FOLLOWING:
            raise _Busy(f"{_MOST_FOLLOWING} pages follow this console: close a page")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        about = {
            "version": bmq.__version__,
            "read_only": self._guard.read_only,
            "looks_inside": self._source.looks_inside,
        }
        async with aclosing(self._watch.follow(about)) as pieces:
            await response.prepare(request)
            async for piece in pieces:
                if not await _send(request, response, piece):
                    break
        return response

    async def _queue(self, request: web.Request) -> web.Response:
        """One queue: clients, and for each application depth, reason for waiting, and the next consumer."""
        admin = await self._watch.admin()
        asked = admin.queue(_parameter(request, "uri"))
        gap = (await asked.standing()).gap
        explanation = await explain(asked, await admin.domain(asked.domain))
        internals, domain = explanation.internals, explanation.domain
        states = {app.app_id: app for app in internals.apps}
        return _json(
            {
                "uri": internals.uri,
                "domain": domain.name,
                "mode": domain.mode,
                "messages": internals.depth.messages,
                "bytes": internals.depth.bytes,
                "usage": internals.usage,
                "ttl": domain.configuration.get("messageTtl"),
                "attempts": domain.configuration.get("maxDeliveryAttempts"),
                "words": [*([gap] if gap else []), *explanation.head()],
                "findings": [] if gap else list(inside(explanation, self._dead)),
                "clients": [
                    {
                        "description": client.description,
                        "readers": client.readers,
                        "writers": client.writers,
                        "unconfirmed": sum(stream.unconfirmed or 0 for stream in client.streams),
                        "subscriptions": sum(len(stream.subscriptions) for stream in client.streams),
                    }
                    for client in internals.clients
                ],
                "apps": [
                    {
                        "app": app.app_id,
                        "messages": app.messages,
                        "consumers": states[app.app_id].consumers if app.app_id in states else 0,
                        "redelivery": states[app.app_id].redelivery if app.app_id in states else 0,
                        "words": list(explanation.words(app)),
                        "group": group_of(explanation.readers(app)),
                        "readers": [
                            {name: getattr(reader, name) for name in ("expression", "use", "full", "name")}
                            | {"priority": reader.subscription.priority}
                            for reader in explanation.readers(app)
                        ],
                    }
                    for app in internals.depth.apps
                ],
            }
        )

    async def _messages(self, request: web.Request) -> web.Response:
        """A page of messages from the broker's list; no message is taken."""
        admin = await self._watch.admin()
        page = await admin.queue(_parameter(request, "uri")).messages(
            int(request.query.get("offset", "0")),
            max(1, min(_MOST_LISTED, int(request.query.get("count", "50")))),
            app_id=request.query.get("app") or None,
        )
        return _json(page)

    async def _clusters(self, _: web.Request) -> web.Response:
        """The clusters as the answering broker sees them: nodes, partitions, primaries, and storage."""
        admin = await self._watch.admin()
        found: list[dict[str, Any]] = []
        for cluster in await admin.clusters():
            entry: dict[str, Any] = {"name": cluster.name, "locality": cluster.locality}
            entry |= {"status": None, "storage": [], "error": ""}
            try:
                entry["status"] = await admin.cluster_status(cluster.name)
                if cluster.locality != "remote":
                    entry["storage"] = await admin.cluster_storage(cluster.name)
            except (bmq.errors.AdminError, bmq.ProtocolError) as error:
                entry["error"] = str(error)
            found.append(entry)
        return _json({"broker": admin.broker, "gap": await admin.gap(), "clusters": found})

    async def _route(self, _: web.Request, body: _Body) -> web.Response:
        """The consumer for a message with the given properties."""
        properties = _properties(body)
        admin = await self._watch.admin()
        asked = admin.queue(body.uri)
        gap = (await asked.standing()).gap
        if gap:
            raise NotNow(f"{gap}, and the list of subscriptions is incomplete")
        explanation = Explanation(
            await asked.internals(),
            await admin.domain(asked.domain),
            message={name: each.value for name, each in properties.items()},
        )
        apps = {app.app_id: app for app in explanation.internals.depth.apps}
        app = apps.get(body.app, AppDepth(body.app, 0, None))
        decision = explanation.decide(app)
        assert decision is not None
        return _json(
            {
                "summary": str(decision).splitlines()[-1],
                "steps": [
                    {
                        "priority": step.priority,
                        "expression": step.expression.text if step.expression is not None else "(everything)",
                        "names": [route.name + (" (full)" if route.full else "") for route in step.active],
                        "verdict": step.verdict,
                        "matches": bool(step.evaluation),
                    }
                    for step in decision.steps
                ],
            }
        )

    # actions

    async def _contents(self, request: web.Request, body: _Body) -> web.StreamResponse:
        """The contents of some messages, up to the limits of one answer."""
        uri = bmq.QueueUri.parse(body.uri).canonical
        wanted = list(dict.fromkeys(body.guids))
        chosen = wanted[:_MOST_INSIDE]
        found: dict[str, bytes] = {}
        used = 0
        async with self._inside:
            async with aclosing(self._source.contents(uri, body.app, chosen)) as contents:
                async for each in contents:
                    entry = _dumped(_inside(each))
                    used += len(entry)
                    if used > _MOST_ANSWERED and found:
                        break
                    found[each.guid] = entry
            left = wanted[_MOST_INSIDE:]
            if used > _MOST_ANSWERED:
                left = [guid for guid in chosen if guid not in found] + left
            head = {"most_held": None if self._source.looks_inside else MOST_HELD, "left_out": left}
            messages = b",".join([found[guid] for guid in chosen if guid in found])
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await _send(request, response, _dumped(head)[:-1] + b',"messages":[' + messages + b"]}")
        return response

    async def _post(self, _: web.Request, body: _Body) -> web.Response:
        """Post a message, and return the outcome."""
        payload = _payload(body)
        properties = _properties(body)
        async with self._source.connect() as session:
            queue = await session.open_queue(body.uri, write=True)
            ack = await queue.post(payload, properties=properties or None)
        return _json({"guid": ack.guid})

    async def _again(self, _: web.Request, body: _Body) -> web.Response:
        """Post a dead letter again; the letter is confirmed after the acknowledgement."""
        uri = bmq.QueueUri.parse(body.uri).canonical
        kept = body.text is None and body.base64 is None
        edited = None if kept else (_payload(body), _properties(body))
        async with self._inside:
            where, posted = await post_again(
                self._source, uri, body.guid, body.first, to=body.to, edited=edited
            )
        return _json({"uri": where, "guid": posted})

    async def _cancel(self, _: web.Request, body: _Body) -> web.Response:
        """Delete a delayed message."""
        uri = bmq.QueueUri.parse(body.uri).canonical
        if not re.fullmatch(r"[0-9]{1,15}", body.due):
            raise bmq.UsageError(f"due must be milliseconds since 1970 as digits, not {body.due!r}")
        async with self._inside:
            await cancel(self._source, uri, body.guid, int(body.due))
        return _json({"guid": body.guid})

    async def _purge(self, _: web.Request, body: _Body) -> web.Response:
        """Delete the messages of a queue, or of one application of the queue."""
        admin = await self._watch.admin()
        purged = await admin.queue(body.uri).purge(body.app or None)
        return _json(
            {"messages": sum(each.messages for each in purged), "bytes": sum(each.bytes for each in purged)}
        )


def beside(
    broker: bmq.broker.Broker,
    address: str,
    *,
    users: Mapping[str, str] | None = None,
    token: str | None = None,
) -> Console:
    """Return the console of an embedded broker in this process.

    Args:
        broker: the broker, started.
        address: the listening address: a port, or HOST:PORT.
        users: passwords of the broker's users; None if the broker has no authentication.
        token: as for :class:`Console`; with users a token is required on loopback too.

    Raises:
        UsageError: the address is not legal, or the token is empty although required.
    """
    host, _, port = _checks.text("address", address).rpartition(":")
    if not port.isascii() or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise bmq.UsageError(f"{address!r} is not an address to listen on; the form is a port, or HOST:PORT")
    credentials = None
    if users is not None and _checks.mapping("users", users, "user names to passwords"):
        credentials = bmq.Credentials.basic(*next(iter(users.items())))
    source = Embedded(broker, credentials=credentials)
    return Console(source, host=host.strip("[]") or "127.0.0.1", port=int(port), token=token)


class _Turns:
    """Lets a few requests run at once, and refuses requests with too many waiting in front."""

    def __init__(self, at_work: int, waiting: int) -> None:
        self._turn = asyncio.Semaphore(at_work)
        self._left = at_work + waiting

    async def __aenter__(self) -> None:
        if not self._left:
            raise _Busy("the console is busy with other requests; try again")
        self._left -= 1
        try:
            await self._turn.acquire()
        except BaseException:
            self._left += 1
            raise

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._left += 1
        self._turn.release()


async def _send(request: web.Request, response: web.StreamResponse, data: bytes) -> bool:
    """Send bytes at the page's speed; return False if the page has gone, takes nothing, or is too slow."""
    try:
        async with asyncio.timeout(_PATIENCE + len(data) / _SLOWEST):
            for start in range(0, len(data), _PIECE):
                async with asyncio.timeout(_PATIENCE):
                    await response.write(data[start : start + _PIECE])
    except (TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()
        return False
    return True


async def _dress(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    response.headers["Server"] = "bmq"


def _asset(content: bytes, kind: str) -> Handler:
    async def send(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return send


def _dumped(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:  # a lone surrogate in a text: json escapes the character, orjson refuses the text
        return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Return an answer of a broker as an object with the names of bmq, and any other value as text."""
    if isinstance(value, QueueFinding):
        return dataclasses.asdict(value)
    return asdict(value) if isinstance(value, Struct) else str(value)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=_dumped(value), status=status, content_type="application/json")


def _error(status: int, text: str) -> web.Response:
    return _json({"error": text}, status)


def _parameter(request: web.Request, name: str) -> str:
    if name not in request.query:
        raise bmq.UsageError(f"{name} is missing")
    return request.query[name]


class _Property(Struct):
    name: str
    type: str
    value: str


class _Body(Struct):
    """The object of a POST; each action takes some of the members."""

    uri: str
    app: str = ""
    text: str | None = None
    base64: bytes | None = None
    properties: tuple[_Property, ...] = ()
    guids: tuple[str, ...] = ()
    guid: str = ""
    first: str = ""
    to: str = ""
    due: str = ""


def _body(received: bytearray) -> _Body:
    try:
        return msgspec.json.decode(received, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bmq.UsageError(f"the request cannot be read: {error}") from None


def _payload(body: _Body) -> bytes:
    if body.base64 is not None:
        return body.base64
    if body.text is None:
        raise bmq.UsageError("text is missing")
    return body.text.encode()


def _properties(body: _Body) -> dict[str, bmq.PropertyValue]:
    found: dict[str, bmq.PropertyValue] = {}
    for each in body.properties:
        if each.name in found:
            raise bmq.UsageError(f"property {each.name!r} is given twice")
        try:
            found[each.name] = typed_value(each.type, each.value)
        except ValueError as error:
            raise bmq.UsageError(f"property {each.name!r}: {error}") from None
    return found


def _inside(content: Contents) -> dict[str, Any]:
    types = content.properties.types
    return {
        "guid": content.guid,
        "size": content.size,
        "payload": base64.b64encode(content.payload).decode(),
        "properties": [
            {"name": _escaped(name), "type": types[name].name.lower(), "value": _shown(value)}
            for name, value in content.properties.items()
        ],
        "error": content.error,
    }


def _shown(value: object) -> str:
    """Return a property's value as text: a number in JavaScript cannot hold every int64."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.hex() if isinstance(value, bytes) else _escaped(str(value))


def _escaped(text: str) -> str:
    """Return text, with escapes for bytes outside of UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
