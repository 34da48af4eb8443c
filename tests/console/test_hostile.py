# SPDX-License-Identifier: Apache-2.0
"""Messages and requests that would harm a console: bombs, unreadable messages, odd requests, slow readers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import zlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

import bmq
from bmq.console import Console, Embedded
from bmq.wire import compression
from tests.console.conftest import Serve

ORDERS = "bmq://bmq.test.mem.priority/orders"
DOMAIN = "bmq://bmq.test.mem.priority"
SHOWN = 256 * 1024
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(params=["embedded", "remote"])
async def console(
    request: pytest.FixtureRequest, broker: bmq.broker.Broker, serve: Serve
) -> AsyncIterator[Console]:
    """The page of an embedded broker in the same process, and of one over the wire."""
    if request.param == "remote":
        yield await serve()
        return
    async with Console(Embedded(broker), interval=0.05) as console:
        yield console


async def _ask(http: aiohttp.ClientSession, console: Console, status: int = 200, **body: object) -> Any:
    async with http.post(console.url + "api/contents", json={"uri": ORDERS} | body) as response:
        assert response.status == status, await response.text()
        return await response.json()


class _Inflated:
    """How many bytes were decompressed, and how many at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = 0
        make = zlib.decompressobj

        class Counting:
            def __init__(counting) -> None:
                counting.stream = make()

            def decompress(counting, data: bytes, size: int) -> bytes:
                plain = counting.stream.decompress(data, size)
                self.total += len(plain)
                return plain

            def __getattr__(counting, name: str) -> Any:
                return getattr(counting.stream, name)

        monkeypatch.setattr(compression.zlib, "decompressobj", Counting)


@pytest.fixture
async def zipped(broker: bmq.broker.Broker) -> AsyncIterator[bmq.Session]:
    async with bmq.connect(broker.uri, compression=bmq.Compression.ZLIB) as session:
        yield session


async def test_payload_is_decompressed_only_as_far_as_shown(
    http: aiohttp.ClientSession, console: Console, zipped: bmq.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await zipped.open_queue(ORDERS, write=True)
    guids = [(await queue.post(bytes(8 * 2**20), properties={"n": n})).guid for n in range(3)]
    inflated = _Inflated(monkeypatch)
    found = await _ask(http, console, guids=guids * 60)
    assert [each["guid"] for each in found["messages"]] == guids, "each once"
    for each in found["messages"]:
        assert base64.b64decode(each["payload"]) == bytes(SHOWN)
        assert (each["size"], each["error"]) == (None, "")
    assert inflated.total < 3 * (SHOWN + 1000)
    assert found["left_out"] == []


async def test_answer_has_a_budget_and_reports_omissions(
    http: aiohttp.ClientSession, console: Console, session: bmq.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.console.server._MOST_INSIDE", 4)
    monkeypatch.setattr("bmq.console.server._MOST_ANSWERED", 5000)
    queue = await session.open_queue(ORDERS, write=True)
    guids = [(await queue.post(b"x" * 1000)).guid for _ in range(6)]
    found = await _ask(http, console, guids=guids)
    assert ([each["guid"] for each in found["messages"]], found["left_out"]) == (guids[:3], guids[3:])
    large = (await queue.post(b"x" * 9000)).guid
    found = await _ask(http, console, guids=[large])
    assert len(found["messages"]) == 1, "the first message always has room"


# ---- messages that cannot be read


async def test_one_unreadable_message_hides_no_other(
    http: aiohttp.ClientSession,
    console: Console,
    broker: bmq.broker.Broker,
    session: bmq.Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = await session.open_queue(ORDERS, write=True)
    odd = bmq.PropertyValue(bmq.PropertyType.STRING, "caf\udce9")
    guids = [(await queue.post(text, properties={"s": odd})).guid for text in (b"one", b"two", b"three")]
    raw = broker.queues[ORDERS]._queue.store.messages.get(bytes.fromhex(guids[1]))
    assert raw is not None
    raw.data = b"garbage that is no zlib" + b"\x01"
    raw.compression = 1
    found = await _ask(http, console, guids=guids)
    one, two, three = found["messages"]
    assert one["properties"] == [{"name": "s", "type": "string", "value": "caf\\udce9"}]
    assert [each["error"] for each in (one, three)] == ["", ""]
    assert two["error"]
    assert base64.b64decode(three["payload"]) == b"three"


# ---- requests

_URIS: list[Any] = [
    *(ORDERS, f"{ORDERS}?id=", f"{ORDERS}?id=nobody", f"{DOMAIN}/none", "bmq://no.such.domain/q"),
    *("", "x", "bmq://", "bmq://a", "bmq://a/b/c", "tcp://x:1", "bmq://\u202e/\x1b", "\ud800"),
    *(7, None, [], {}),
]
_MORE: list[dict[str, Any]] = [
    {},
    {"guids": ["", "0" * 32, "\ud800", "x" * 100_000]},
    {"guids": [7]},
    {"guids": {}},
    {"text": "x", "properties": [{"name": "n", "type": "int64", "value": "9" * 5000}]},
    {"text": "x", "properties": [{"name": "n", "type": "char", "value": ""}]},
    {"text": "x", "properties": [{"name": "", "type": "string", "value": ""}]},
    {"text": "x", "properties": [{"name": str(n), "type": "bool", "value": "true"} for n in range(300)]},
    {"text": "", "app": " "},
    {"base64": "====", "app": "\x00"},
    {"app": []},
    {"properties": [7]},
]
_BODIES = [
    *(b"", b"{}", b"[]", b"null", b"7", b"{", b"\xff", b'"', b"[" * 100_000, b'{"uri":' * 50_000),
    *(json.dumps({"uri": uri} | more).encode() for uri in _URIS for more in _MORE),
]
_ODD = ("offset=x", "offset=99999999999999999999", "count=-1", "count=1e3", f"offset={'9' * 5000}", "count=0")
_QUERIES = [
    *("", "?", "?uri", "?uri=", "?uri=x", "?uri=%ff", "?uri=%00", "?uri=bmq://no.such.domain/q"),
    *(f"?uri={ORDERS}&{more}" for more in (*_ODD, "app=%20", "app=none", "app=%0a")),
    f"?uri={DOMAIN}/none",
]
_HEADERS: list[dict[str, str]] = [
    {"Origin": "http://["},
    {"Origin": "http://[::1]x"},
    {"Host": "["},
    {"Host": "[::1"},
    {"Host": ""},
    {"Host": "x:99999999"},
    {"Authorization": "Bearer \xff"},
    {"Content-Type": "application/json; charset=nothing"},
    {"Content-Type": ";;;"},
    {"Sec-Fetch-Site": "\xff"},
    {"Accept-Encoding": "gzip;q=x"},
]


async def test_every_route_answers_every_request_in_json(
    http: aiohttp.ClientSession,
    broker: bmq.broker.Broker,
    session: bmq.Session,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every route, with odd bodies, queries and headers: the answer is an object, never a defect."""
    await (await session.open_queue(ORDERS, write=True)).post(b"x")

    async def check(method: str, path: str, **options: Any) -> None:
        async with http.request(method, console.url + path.lstrip("/"), **options) as response:
            text = await response.read()
            what = (method, path, options, text[:200])
            assert response.status < 500, what
            if response.status >= 400:
                assert json.loads(text)["error"], what
            page = (method, response.status) == ("GET", 200)
            assert page or response.content_type == "application/json", what

    async with Console(Embedded(broker), interval=0.05) as console:
        kind = {"Content-Type": "application/json"}
        for path in console._posts:
            for body in _BODIES:
                await check("POST", path, data=body, headers=kind)
            for headers in _HEADERS:
                await check("POST", path, data=b"{}", headers=kind | headers)
        for path in (each for each in console._gets if each != "/api/live"):
            for query in _QUERIES:
                await check("GET", path + query)
        for path in console._routes:
            for headers in _HEADERS if path != "/api/live" else _HEADERS[:3]:
                await check("GET", path, headers=headers)
            for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
                await check(method, path, headers=kind)
        for path in ("/api/nothing", "/api/", "/%2e%2e/", "/api/live/"):
            await check("GET", path)
            await check("POST", path, data=b"{}", headers=kind)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_defect_is_a_json_answer_and_one_log_line(
    http: aiohttp.ClientSession,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a defect\x1b[2J")

    console = await serve()
    monkeypatch.setattr(console._watch, "admin", broken)
    for _ in range(20):
        async with http.get(f"{console.url}api/queue?uri={ORDERS}") as response:
            assert response.status == 500
            assert "RuntimeError" in (await response.json())["error"]
    (line,) = [each.getMessage() for each in caplog.records if "could not answer" in each.getMessage()]
    assert "a defect\\x1b[2J" in line


# ---- readers that follow


async def test_the_number_of_open_pages_is_limited(
    http: aiohttp.ClientSession, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.console.server._MOST_FOLLOWING", 2)
    console = await serve()
    async with http.get(console.url + "api/live") as one, http.get(console.url + "api/live") as two:
        await one.content.readline()
        await two.content.readline()
        async with http.get(console.url + "api/live") as response:
            assert response.status == 503
            assert "2 pages" in (await response.json())["error"]
    async with asyncio.timeout(20):  # those that have gone count no more
        while True:
            async with http.get(console.url + "api/live") as response:
                if response.status == 200:
                    break


async def test_page_that_does_not_read_is_disconnected(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.console.server._PATIENCE", 0.05)
    console = await serve()
    monkeypatch.setattr(console._watch, "broker", "x" * 20_000_000)
    host, port = "127.0.0.1", console._port
    reader, writer = await asyncio.open_connection(host, port, limit=1024)
    writer.write(f"GET /api/live HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    async with asyncio.timeout(20):
        while not console._watch.followers:  # noqa: ASYNC110
            await asyncio.sleep(0)
        while console._watch.followers:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    writer.transport.abort()
    del reader


async def test_a_page_that_takes_a_byte_now_and_then_is_disconnected(
    http: aiohttp.ClientSession, console: Console, session: bmq.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is taken in time, but not the answer: it would keep others from looking inside."""
    monkeypatch.setattr("bmq.console.server._PATIENCE", 0.5)
    monkeypatch.setattr("bmq.console.server._SLOWEST", float("inf"))
    monkeypatch.setattr("bmq.console.server._PIECE", 100)
    guid = (await (await session.open_queue(ORDERS, write=True)).post(bytes(SHOWN))).guid
    write, pieces = web.StreamResponse.write, 0

    async def slowly(response: web.StreamResponse, data: Any) -> None:
        nonlocal pieces
        pieces += 1
        await asyncio.sleep(0.02)
        await write(response, data)

    monkeypatch.setattr("aiohttp.web.StreamResponse.write", slowly)
    with pytest.raises(aiohttp.ClientError):
        await _ask(http, console, guids=[guid])
    assert 0 < pieces < 100


async def test_pages_share_the_result_of_a_poll(broker: bmq.broker.Broker, session: bmq.Session) -> None:
    await session.open_queue(ORDERS, write=True)
    async with Console(Embedded(broker), interval=0.01) as console:
        watch = console._watch
        pages = [watch.follow({}) for _ in range(3)]

        async def line(page: Any) -> list[bytes]:
            pieces = [await anext(page)]
            while not pieces[-1].endswith(b"]}\n"):
                pieces.append(await anext(page))
            return pieces

        while not watch.number:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for page in pages:
            assert b"history" in b"".join(await line(page))
        later = await asyncio.gather(*map(line, pages))
        while any(b"history" in b"".join(each) for each in later):
            later = await asyncio.gather(*map(line, pages))
        assert all(a is b for a, b in zip(later[0], later[1], strict=True))
        for page in pages:
            await page.aclose()
        assert watch.followers == 0


async def test_slow_polls_are_less_frequent_and_rarest_without_viewers(
    broker: bmq.broker.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    console = Console(Embedded(broker), interval=1.0)
    watch = console._watch

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("bmq.console.watch.asyncio.sleep", sleep)
    watch.followers = 1
    await watch._pause(2.0, 10.0)
    assert slept == [2.0]
    watch.followers = 0
    waiting = asyncio.create_task(watch._pause(2.0, 1000.0))
    async with asyncio.timeout(20):
        while len(slept) < 2:
            await asyncio.tasks.__sleep0()  # type: ignore[attr-defined]
        watch._came.set()  # a page is opened
        await waiting


async def test_invalid_http_leaves_no_log_line(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    console = await serve()
    for request in (b"BREW / HTTP/1.1", b"\x00" * 100, b"GET / HTTP/1.1" + b"\r\nX: y" * 5000, b"GET"):
        reader, writer = await asyncio.open_connection("127.0.0.1", console._port)
        writer.write(request + b"\r\n\r\n")
        await reader.read()
        writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_stopped_broker_of_this_process_is_an_error_of_the_page(broker: bmq.broker.Broker) -> None:
    async with Console(Embedded(broker), interval=0.01) as console:
        watch = console._watch
        async with asyncio.timeout(20):
            for running in (True, False, True):
                await (broker.start() if running and not broker.running else asyncio.sleep(0))
                if not running:
                    await broker.stop()
                page = watch.follow({})
                text = b""
                while (b'"error":""' in text) is not running or not text.endswith(b"]}\n"):
                    piece = await anext(page)
                    text = piece if text.endswith(b"]}\n") else text + piece
                await page.aclose()


@pytest.mark.parametrize(("host", "status"), [("evil.com", 403), ("", 415)])
@pytest.mark.parametrize("path", ["api/post", "", "nowhere"])
async def test_nothing_is_inflated(
    http: aiohttp.ClientSession,
    console: Console,
    host: str,
    status: int,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = zlib.compress(bytes(64 << 20))

    def inflate(*_: object) -> None:
        raise AssertionError("inflated")

    monkeypatch.setattr(zlib, "decompressobj", inflate)
    headers = {"Content-Encoding": "deflate", "Content-Type": "application/json"}
    headers |= {"Host": host} if host else {}
    async with http.post(console.url + path, data=body, headers=headers, compress=False) as response:
        assert response.status == status


async def test_idle_connections_keep_nobody_out(
    http: aiohttp.ClientSession, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.console.door._AT_ONCE", 8)
    console = await serve()
    address = urlsplit(console.url)
    idle = [await asyncio.open_connection(address.hostname, address.port) for _ in range(30)]
    for _, writer in idle[::2]:
        writer.write(b"POST /api/post HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")  # a request that never ends
    async with http.get(console.url) as response:
        assert response.status == 200
    for reader, _ in idle[:20]:
        with contextlib.suppress(ConnectionError):
            await reader.read()  # the oldest were cut off
    for _, writer in idle:
        writer.close()


async def test_a_connection_without_a_request_ends(
    http: aiohttp.ClientSession, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.console.door._SILENCE", 0.2)
    monkeypatch.setattr("bmq.console.door._IDLE", 0.2)
    console = await serve()
    address = urlsplit(console.url)
    for begun in (
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(begun)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        writer.close()
    async with http.get(console.url + "api/live") as response:  # longer than both limits
        assert await response.content.readline()
        await asyncio.wait_for(response.content.readline(), 20)
        for _ in range(10):
            assert await response.content.readline()


async def _begin(console: Console, path: str, sent: bytes = b"{") -> Streams:
    """Begin a POST, up to the first bytes of the body; return when the console has begun to read the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", console._port)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 100000\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
    writer.write(sent)
    return reader, writer


async def test_unfinished_requests_occupy_no_turn(http: aiohttp.ClientSession, serve: Serve) -> None:
    console = await serve()
    begun = [await _begin(console, path) for path in console._posts for _ in range(5)]
    async with asyncio.timeout(20):
        async with http.get(console.url + "api/clusters") as response:
            assert response.status == 200
        async with http.post(console.url + "api/contents", json={"uri": ORDERS}) as response:
            assert response.status == 409, "there is no such queue"
    for _, writer in begun:
        writer.close()


async def test_a_request_arrives_in_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.console.server._ARRIVAL", 0.05)
    console = await serve()
    for path in console._posts:
        reader, writer = await _begin(console, path)
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_the_bytes_of_requests_together_are_limited(
    http: aiohttp.ClientSession,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("bmq.console.server._MOST_RECEIVED", 10_000)
    console = await serve()

    async def status() -> int:
        async with http.post(
            console.url + "api/contents", json={"uri": ORDERS, "to": "x" * 6000}
        ) as response:
            return response.status

    _, writer = await _begin(console, "/api/route", b" " * 6000)
    async with asyncio.timeout(20):
        while console._received < 6000:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await status() == 503
        writer.close()
        while console._received:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert await status() == 409, "there is no such queue"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    "request_",
    [
        "",
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
async def test_connections_that_have_gone_are_forgotten(
    http: aiohttp.ClientSession, serve: Serve, request_: str
) -> None:
    console = await serve()
    assert console._door is not None
    assert console._runner is not None
    assert console._runner.server is not None
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", console._port)
        writer.write(request_.encode())
        if request_:
            await reader.readline()
        writer.close()
    async with http.get(console.url, headers={"Connection": "close"}) as response:
        assert response.status == 200, "all connections before have been accepted"
    async with asyncio.timeout(20):
        while console._runner.server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not console._door._waiting


async def test_a_burst_above_the_limit_is_closed(
    http: aiohttp.ClientSession, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections accepted together, while all others have a request."""
    monkeypatch.setattr("bmq.console.door._AT_ONCE", 1)
    console = await serve()
    async with http.get(console.url + "api/live") as page:
        await page.content.readline()
        burst = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", console._port) for _ in range(10))
        )
        async with asyncio.timeout(20):
            for reader, writer in burst:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
