# SPDX-License-Identifier: Apache-2.0
"""The HTTP answers of an app."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import pytest

import bmq
from bmq.workers.probe import TEXT_TYPE, Page, PageServer
from tests.fakes.broker import Peer
from tests.sweeps import sweep
from tests.waiting import eventually
from tests.workers.stage import Stage

URI = "bmq://bmq.test.mem.priority/q"


async def ask(uri: str, request: str) -> tuple[int, dict[str, str], str]:
    """Send a request; return status, headers and body of the answer."""
    host, port = uri.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(request.encode())
        async with asyncio.timeout(10):
            answer = (await reader.read()).decode()
    finally:
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    assert first.startswith("HTTP/1.1 ")
    return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines), body


async def get(app: bmq.App, path: str) -> tuple[int, dict[str, str], str]:
    assert app.health_uri is not None
    return await ask(app.health_uri, f"GET {path} HTTP/1.1\r\nHost: me\r\n\r\n")


@asynccontextmanager
async def running(
    broker: str, uri: str, health: str = "127.0.0.1:0", **options: Any
) -> AsyncIterator[bmq.App]:
    app = bmq.App(broker, health=health, **options)
    app.consumer(uri)(handle)
    task = asyncio.create_task(app.run(signals=False))
    try:
        await eventually(lambda: app.health_uri is not None or task.done())
        yield app
    finally:
        app.stop()
        await asyncio.wait([task])
    await task
    assert app.health_uri is None


async def handle(message: bmq.Message) -> None:
    pass


async def ready(app: bmq.App) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while (answer := await get(app, "/readyz"))[0] != 200:
            pass
    answered: dict[str, Any] = json.loads(answer[2])
    return answered


async def test_app_reports_alive_and_ready(broker_uri: str, uri: str) -> None:
    async with running(broker_uri, uri) as app:
        status, headers, body = await get(app, "/livez?verbose")
        assert (status, body) == (200, "alive\n")
        assert headers["Content-Length"] == "6"
        assert headers["Connection"] == "close"
        said = await ready(app)
        assert (said["ready"], said["degraded"], said["troubles"]) == (True, False, [])
        assert said["since"].endswith("+00:00")


async def test_an_app_without_a_connection_is_alive_and_not_ready() -> None:
    async with Peer() as peer, running(peer.uri, URI) as app:
        await ready(app)
        peer.hold.add("clientIdentity")
        peer.cut()
        await eventually(lambda: not app.session.health().ready)
        status, headers, body = await get(app, "/readyz")
        said = json.loads(body)
        assert (status, said["ready"], headers["Content-Type"]) == (503, False, "application/json")
        assert said["troubles"][0]["what"].startswith("the connection was lost: ")
        assert said["troubles"][0]["since"] == said["since"]
        assert (await get(app, "/livez"))[0] == 200
        peer.answer("clientIdentity")
        await ready(app)


async def test_a_stopping_app_is_not_ready(stage: Stage) -> None:
    app = bmq.App(stage.broker_uri, health="127.0.0.1:0")
    app.consumer(stage.uri)(stage.hold)
    await stage.post(b"1")
    async with app:
        await stage.begun.wait()
        await ready(app)
        app.stop()
        status, _, body = await get(app, "/readyz")
        assert (status, json.loads(body)["troubles"]) == (503, [{"what": "the app is starting or stopping"}])
        assert (await get(app, "/livez"))[0] == 200
        stage.go.set()


async def test_a_loop_that_hangs_does_not_answer(broker_uri: str, uri: str) -> None:
    async with running(broker_uri, uri) as app:
        assert app.health_uri is not None
        port = app.health_uri.rsplit(":", 1)[1]
        # The loop is held up by a program that asks and waits.
        code = f"import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}/livez', timeout=1)\n"
        hanging = subprocess.run(  # noqa: ASYNC221 - that is the point
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        assert "TimeoutError" in hanging.stderr
        assert (await get(app, "/livez"))[0] == 200


async def test_metrics_are_the_result_of_the_function(
    broker_uri: str, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = ["posted 1\n", b"posted 2\n"]

    def metrics() -> str | bytes:
        answer: str | bytes = answers.pop(0)
        return answer

    async with running(broker_uri, uri, metrics=metrics) as app:
        status, headers, body = await get(app, "/metrics")
        assert (status, body) == (200, "posted 1\n")
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert (await get(app, "/metrics"))[2] == "posted 2\n"
        assert (await get(app, "/metrics"))[0] == 500  # it has failed, and the app goes on
        assert (await get(app, "/livez"))[0] == 200
    (failure,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "IndexError" in failure.getMessage()
    assert "test_probe.py" in failure.getMessage()


async def test_an_address_in_use_is_named(broker_uri: str) -> None:
    address = broker_uri.removeprefix("tcp://")
    app = bmq.App(broker_uri, health=address)
    app.consumer("bmq://bmq.test.mem.priority/in-use")(handle)
    why = f"^the address for health, {address}, cannot be used: address already in use. Give another address"
    with pytest.raises(OSError, match=why) as caught:
        await app.run()
    assert caught.value.errno == errno.EADDRINUSE


async def test_invalid_requests_are_answered(broker_uri: str, uri: str) -> None:
    async with running(broker_uri, uri) as app:
        assert app.health_uri is not None
        status, _, body = await get(app, "/")
        assert (status, body) == (404, "the paths are /livez, /readyz and /metrics\n")
        status, _, body = await get(app, "/metrics")
        why = "no metrics are configured: App(..., metrics=...) takes a function that returns them\n"
        assert (status, body) == (404, why)
        head = await ask(app.health_uri, "HEAD /livez HTTP/1.0\r\n\r\n")
        assert (head[0], head[1]["Content-Length"], head[2]) == (200, "6", "")
        refused = await ask(app.health_uri, "POST /livez HTTP/1.1\r\n\r\n")
        assert (refused[0], refused[1]["Allow"]) == (405, "GET, HEAD")
        assert (await ask(app.health_uri, "hello\r\n\r\n"))[0] == 400


async def test_endless_request_delays_no_other_request(broker_uri: str, uri: str) -> None:
    async with running(broker_uri, uri) as app:
        assert app.health_uri is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", int(app.health_uri.rsplit(":", 1)[1]))
        writer.write(b"GET /livez HTTP/1.1\r\n" + b"x: y\r\n" * 10_000)
        async with asyncio.timeout(10):
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
        writer.close()
        idle = await asyncio.open_connection("127.0.0.1", int(app.health_uri.rsplit(":", 1)[1]))
        assert (await get(app, "/livez"))[0] == 200
    async with asyncio.timeout(10):
        assert await idle[0].read() == b""  # it does not outlive the app
    idle[1].close()


@sweep(
    "address",
    [
        *("8080", "localhost", ":8080", "localhost:x", "localhost:70000", "[::1:80", "::1]:80", "[]:80"),
        *("http://localhost:80", "local host:80", "me@localhost:80"),
    ],
)
def test_invalid_addresses_are_refused(address: str) -> None:
    with pytest.raises(bmq.UsageError, match=r"health must be HOST:PORT, such as 127\.0\.0\.1:8080"):
        bmq.App(health=address)


def test_metrics_need_an_address() -> None:
    with pytest.raises(bmq.UsageError, match="needs health="):
        bmq.App(metrics=lambda: "")


async def test_an_ipv6_address_serves_probes(broker_uri: str, uri: str) -> None:
    async with running(broker_uri, uri, "[::1]:0") as app:
        assert app.health_uri is not None
        assert app.health_uri.startswith("http://[::1]:")
        assert (await get(app, "/livez"))[0] == 200


async def test_silent_connections_do_not_block_probes(
    broker_uri: str, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest connection without a request makes way for one with a request; the log stays empty."""
    async with running(broker_uri, uri) as app:
        assert app.health_uri is not None
        host, port = app.health_uri.removeprefix("http://").rsplit(":", 1)
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(70)]
        try:
            for _ in range(3):
                assert (await get(app, "/livez"))[0] == 200
            assert await silent[0][0].read() == b"", "the oldest is cut off"
            silent[-1][1].write(b"GET /livez HTTP/1.1\r\n\r\n")
            assert b"200 OK" in await silent[-1][0].read(), "the latest is not"
        finally:
            for _, writer in silent:
                writer.close()
    assert caplog.records == []


async def test_peers_that_read_no_answer_are_cut_off() -> None:
    size = 16 << 20  # more than the kernel's buffers

    async def page(path: str) -> Page:
        return HTTPStatus.OK, bytes(size), TEXT_TYPE

    server = PageServer("127.0.0.1", 0, page, patience=0.05)
    async with server.serving():
        assert server.uri is not None
        host, port = server.uri.removeprefix("http://").rsplit(":", 1)
        peers = [await asyncio.open_connection(host, int(port), limit=1024) for _ in range(3)]
        for _, writer in peers:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await eventually(lambda: not server._tasks)
        for reader, writer in peers:
            received = 0
            with suppress(ConnectionError):
                while part := await reader.read(1 << 20):
                    received += len(part)
            assert received < size
            writer.close()
