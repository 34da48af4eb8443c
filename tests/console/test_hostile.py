# SPDX-License-Identifier: Apache-2.0
"""Messages and requests that would harm a console: bombs, unreadable messages, odd requests, slow readers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import zlib
from typing import Any

import aiohttp
import pytest
from aiohttp.web import StreamResponse

import bmq
from bmq.wire import compression
from tests.console.conftest import ORDERS, Serve, Web
from tests.waiting import eventually

DOMAIN = "bmq://bmq.test.mem.priority"
SHOWN = 256 * 1024


@pytest.fixture(params=["embedded", "remote"])
async def either(request: pytest.FixtureRequest, web: Web, serve: Serve) -> Web:
    """The page of an embedded broker in the same process, and of one over the wire."""
    return await serve() if request.param == "remote" else web


async def test_payload_is_decompressed_only_as_far_as_shown(
    either: Web, broker: bmq.broker.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, inflated = zlib.decompressobj, 0

    class Counting:
        def __init__(self) -> None:
            self.stream = make()

        def decompress(self, data: bytes, size: int) -> bytes:
            nonlocal inflated
            plain = self.stream.decompress(data, size)
            inflated += len(plain)
            return plain

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

    async with bmq.connect(broker.uri, compression=bmq.Compression.ZLIB) as zipped:
        queue = await zipped.open_queue(ORDERS, write=True)
        guids = [(await queue.post(bytes(8 * 2**20), properties={"n": n})).guid for n in range(3)]
        monkeypatch.setattr(compression.zlib, "decompressobj", Counting)
        found = await either.post("contents", uri=ORDERS, guids=guids * 60)
    assert [each["guid"] for each in found["messages"]] == guids, "each once"
    for each in found["messages"]:
        assert base64.b64decode(each["payload"]) == bytes(SHOWN)
        assert (each["size"], each["error"]) == (None, "")
    assert inflated < 3 * (SHOWN + 1000)
    assert found["left_out"] == []


async def test_answer_has_a_budget_and_reports_omissions(
    either: Web, session: bmq.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.console.server._MOST_INSIDE", 4)
    monkeypatch.setattr("bmq.console.server._MOST_ANSWERED", 5000)
    queue = await session.open_queue(ORDERS, write=True)
    guids = [(await queue.post(b"x" * 1000)).guid for _ in range(6)]
    found = await either.post("contents", uri=ORDERS, guids=guids)
    assert ([each["guid"] for each in found["messages"]], found["left_out"]) == (guids[:3], guids[3:])
    large = (await queue.post(b"x" * 9000)).guid
    found = await either.post("contents", uri=ORDERS, guids=[large])
    assert len(found["messages"]) == 1, "the first message always has room"


# ---- messages that cannot be read


async def test_a_text_that_is_not_utf8_is_shown_with_escapes(either: Web, session: bmq.Session) -> None:
    queue = await session.open_queue(ORDERS, write=True)
    odd = bmq.PropertyValue(bmq.PropertyType.STRING, "caf\udce9")
    guid = (await queue.post(b"one", properties={"s": odd})).guid
    (found,) = (await either.post("contents", uri=ORDERS, guids=[guid]))["messages"]
    assert found["properties"] == [{"name": "s", "type": "string", "value": "caf\\udce9"}]


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


async def test_every_route_answers_every_request_in_json(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    """Every route, with odd bodies, queries and headers: the answer is an object, never a defect."""
    await web.post("post", uri=ORDERS, text="x")
    console = web.console

    async def check(method: str, path: str, **options: Any) -> None:
        async with web.http.request(method, web.url + path.lstrip("/"), **options) as response:
            text = await response.read()
            what = (method, path, options, text[:200])
            assert response.status < 500, what
            if response.status >= 400:
                assert json.loads(text)["error"], what
            page = (method, response.status) == ("GET", 200)
            assert page or response.content_type == "application/json", what

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
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a defect\x1b[2J")

    web = await serve()
    monkeypatch.setattr(web.console._watch, "admin", broken)
    for _ in range(20):
        assert "RuntimeError" in (await web.get("queue", 500, uri=ORDERS))["error"]
    (line,) = [each.getMessage() for each in caplog.records if "could not answer" in each.getMessage()]
    assert "a defect\\x1b[2J" in line


# ---- readers that follow


async def test_the_number_of_open_pages_is_limited(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.console.server._MOST_FOLLOWING", 2)
    web = await serve()
    async with web.live() as one, web.live() as two:
        await one()
        await two()
        assert "2 pages" in (await web.get("live", 503))["error"]
    async with asyncio.timeout(20):  # those that have gone count no more
        while True:
            async with web.http.get(web.url + "api/live") as response:
                if response.status == 200:
                    break


async def test_page_that_does_not_read_is_disconnected(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.console.server._PATIENCE", 0.05)
    web = await serve()
    watch = web.console._watch
    monkeypatch.setattr(watch, "broker", "x" * 20_000_000)
    _, writer = await asyncio.open_connection("127.0.0.1", web.port, limit=1024)
    writer.write(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await eventually(lambda: watch.followers)
    await eventually(lambda: not watch.followers)
    writer.transport.abort()


async def test_a_page_that_takes_a_byte_now_and_then_is_disconnected(
    either: Web, session: bmq.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece is taken in time, but not the answer: it would keep others from looking inside."""
    for name, value in (("_PATIENCE", 0.5), ("_SLOWEST", float("inf")), ("_PIECE", 100)):
        monkeypatch.setattr(f"bmq.console.server.{name}", value)
    guid = (await (await session.open_queue(ORDERS, write=True)).post(bytes(SHOWN))).guid
    write, pieces = StreamResponse.write, 0

    async def slowly(response: StreamResponse, data: Any) -> None:
        nonlocal pieces
        pieces += 1
        await asyncio.sleep(0.02)
        await write(response, data)

    monkeypatch.setattr("aiohttp.web.StreamResponse.write", slowly)
    with pytest.raises(aiohttp.ClientError):
        await either.post("contents", uri=ORDERS, guids=[guid])
    assert 0 < pieces < 100


async def test_invalid_http_leaves_no_log_line(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    web = await serve()
    for request in (b"BREW / HTTP/1.1", b"\x00" * 100, b"GET / HTTP/1.1" + b"\r\nX: y" * 5000, b"GET"):
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        writer.write(request + b"\r\n\r\n")
        await reader.read()
        writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_stopped_broker_of_this_process_is_an_error_of_the_page(
    web: Web, broker: bmq.broker.Broker
) -> None:
    async with web.live() as until:
        await until(lambda line: not line["error"])
        await broker.stop()
        await until(lambda line: line["error"])
        await broker.start()
        await until(lambda line: not line["error"])


@pytest.mark.parametrize(("host", "status"), [("evil.com", 403), ("", 415)])
@pytest.mark.parametrize("path", ["api/post", "", "nowhere"])
async def test_nothing_is_inflated(
    web: Web, host: str, status: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = zlib.compress(bytes(64 << 20))

    def inflate(*_: object) -> None:
        raise AssertionError("inflated")

    headers = {"Content-Encoding": "deflate", "Content-Type": "application/json"}
    headers |= {"Host": host} if host else {}
    monkeypatch.setattr(zlib, "decompressobj", inflate)
    async with web.http.post(web.url + path, data=body, headers=headers, compress=False) as response:
        assert response.status == status


async def test_idle_connections_keep_nobody_out(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.console.door._AT_ONCE", 8)
    web = await serve()
    idle = [await asyncio.open_connection("127.0.0.1", web.port) for _ in range(30)]
    for _, writer in idle[::2]:
        writer.write(b"POST /api/post HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")  # a request that never ends
    async with web.http.get(web.url) as response:
        assert response.status == 200
    for reader, _ in idle[:20]:
        with contextlib.suppress(ConnectionError):
            await reader.read()  # the oldest were cut off
    for _, writer in idle:
        writer.close()


async def test_a_connection_without_a_request_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.console.door._SILENCE", 0.2)
    monkeypatch.setattr("bmq.console.door._IDLE", 0.2)
    web = await serve()
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    for begun in (b"", request + b"X-", request + b"\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        writer.write(begun)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        writer.close()
    async with web.live() as until:  # longer than both limits
        for _ in range(12):
            assert await until()


async def _begin(
    web: Web, path: str, sent: bytes = b"{"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin a POST, up to the first bytes of the body; return when the console has begun to read the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 100000\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
    writer.write(sent)
    return reader, writer


async def test_unfinished_requests_occupy_no_turn(serve: Serve) -> None:
    web = await serve()
    begun = [await _begin(web, path) for path in web.console._posts for _ in range(5)]
    async with asyncio.timeout(20):
        await web.get("clusters")
        await web.post("contents", 409, uri=ORDERS)  # there is no such queue
    for _, writer in begun:
        writer.close()


async def test_a_request_arrives_in_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.console.server._ARRIVAL", 0.05)
    web = await serve()
    for path in web.console._posts:
        reader, writer = await _begin(web, path)
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_the_bytes_of_requests_together_are_limited(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bmq.console.server._MOST_RECEIVED", 10_000)
    web = await serve()
    body = {"uri": ORDERS, "to": "x" * 6000}
    _, writer = await _begin(web, "/api/route", b" " * 6000)
    await eventually(lambda: web.console._received >= 6000)
    await web.post("contents", 503, **body)
    writer.close()
    await eventually(lambda: not web.console._received)
    await web.post("contents", 409, **body)  # there is no such queue
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_connections_that_have_gone_are_forgotten(serve: Serve) -> None:
    web = await serve()
    door, runner = web.console._door, web.console._runner
    assert door is not None
    assert runner is not None
    assert runner.server is not None
    head = "HTTP/1.1\r\nHost: localhost\r\n"
    for request in ("", f"GET / {head}", f"GET /api/live {head}", f"GET / {head}Connection: close\r\n") * 5:
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        writer.write(f"{request}\r\n".encode() if request else b"")
        if request:
            await reader.readline()
        writer.close()
    async with web.http.get(web.url, headers={"Connection": "close"}) as response:
        assert response.status == 200, "all connections before have been accepted"
    await eventually(lambda: not runner.server.connections)
    assert not door._waiting


async def test_a_burst_above_the_limit_is_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections accepted together, while all others have a request."""
    monkeypatch.setattr("bmq.console.door._AT_ONCE", 1)
    web = await serve()
    async with web.live() as until:
        await until()
        burst = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", web.port) for _ in range(10)))
        async with asyncio.timeout(20):
            for reader, writer in burst:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
