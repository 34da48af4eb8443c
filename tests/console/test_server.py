# SPDX-License-Identifier: Apache-2.0
"""The requests of the page, and the data forbidden to the page."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

import bmq
from bmq.cli import main
from bmq.console import Console, Embedded, RemoteBroker, beside
from tests.broker.test_server import make_certificate
from tests.console.conftest import Serve

ORDERS = "bmq://bmq.test.mem.priority/orders"
PRICES = "bmq://bmq.test.mem.fanout/prices"


@pytest.fixture
async def console(broker: bmq.broker.Broker) -> AsyncIterator[Console]:
    """The page of an embedded broker in the same process."""
    async with Console(Embedded(broker), interval=0.05) as console:
        yield console


async def _get(http: aiohttp.ClientSession, console: Console, path: str, **query: object) -> Any:
    values = {name: str(value) for name, value in query.items()}
    async with http.get(console.url + path, params=values) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def _post(
    http: aiohttp.ClientSession, console: Console, path: str, status: int = 200, **body: object
) -> Any:
    async with http.post(console.url + path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


@asynccontextmanager
async def _live(
    http: aiohttp.ClientSession, console: Console, **options: Any
) -> AsyncIterator[AsyncIterator[Any]]:
    async with http.get(console.url + "api/live", **options) as response:
        assert response.status == 200
        yield _lines(response)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for line in response.content:
        yield json.loads(line)


async def _until(lines: AsyncIterator[Any], wanted: Any) -> Any:
    async with asyncio.timeout(20):
        async for line in lines:
            if wanted(line):
                return line
    raise AssertionError("it has ended")


# ---- views


async def test_page_loads_no_external_resource(http: aiohttp.ClientSession, console: Console) -> None:
    async with http.get(console.url) as response:
        page = await response.text()
        policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assets = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert assets
    for name in {*assets, "console.js"}:
        assert "//" not in name
        async with http.get(console.url + name) as response:
            assert response.status == 200
            text = await response.text()
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), name


async def test_queues_with_depth_and_rates_over_time(
    http: aiohttp.ClientSession, console: Console, session: bmq.Session
) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    async with _live(http, console) as lines:
        first = await _until(lines, lambda line: line["error"] != "not yet queried")
        assert (first["version"], first["read_only"], first["error"]) == (bmq.__version__, False, "")
        await _until(lines, lambda line: any(each["uri"] == ORDERS for each in line["queues"]))
        await queue.post_many([b"order"] * 5)
        (await queue.receive(20)).confirm()
        line = await _until(lines, lambda line: line["queues"][0]["messages"] == 4)
        (found,) = line["queues"]
        assert (found["domain"], found["mode"]) == ("bmq.test.mem.priority", "priority")
        assert (found["producers"], found["consumers"]) == (1, 1)
        assert found["bytes"] > 0
    async with _live(http, console) as lines:
        (found,) = (await anext(lines))["queues"]
        past = found["history"]
        assert max(past["messages"]) <= 5
        assert past["messages"][-1] == 4
        assert max(past["posted"]) > 0
        assert max(past["confirmed"]) > 0
        assert len({len(values) for values in past.values()}) == 1


async def test_one_queue_with_its_consumers_and_the_routing_table(
    http: aiohttp.ClientSession, console: Console, session: bmq.Session
) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    slow = await queue.subscribe("CustomerId >= 1000", priority=5, max_unconfirmed_messages=1).open()
    await queue.subscribe('OrderType == "EXPRESS"', priority=10).open()
    for _ in range(3):
        await queue.post(b"o", properties={"CustomerId": 1234})
    await slow.receive(20)
    facts = await _get(http, console, "api/queue", uri=ORDERS)
    assert (facts["messages"], facts["mode"]) == (3, "priority")
    (client,) = facts["clients"]
    assert "shop" in client["description"]
    assert (client["writers"], client["readers"], client["unconfirmed"], client["subscriptions"]) == (
        1,
        1,
        1,
        2,
    )
    (app,) = facts["apps"]
    assert [(each["priority"], each["expression"], each["full"]) for each in app["readers"]] == [
        (10, 'OrderType == "EXPRESS"', False),
        (5, "CustomerId >= 1000", True),
    ]
    assert any("delivered and not confirmed" in text for text in app["words"])
    asked = {"uri": ORDERS, "app": "__default"}
    properties = [{"name": "CustomerId", "type": "int64", "value": "2000"}]
    found = await _post(http, console, "api/route", **asked, properties=properties)
    assert "waits" in found["summary"]
    assert [step["matches"] for step in found["steps"]] == [False, True]
    express = [{"name": "OrderType", "type": "string", "value": "EXPRESS"}]
    assert "goes to" in (await _post(http, console, "api/route", **asked, properties=express))["summary"]


async def test_messages_page_by_page(
    http: aiohttp.ClientSession, console: Console, session: bmq.Session
) -> None:
    queue = await session.open_queue(PRICES, write=True)
    guids = [(await queue.post(b"17")).guid for _ in range(5)]
    foo = await session.open_queue(f"{PRICES}?id=foo", read=True)
    (await foo.receive(20)).confirm()
    await foo.close()
    page = await _get(http, console, "api/messages", uri=PRICES, offset=1, count=2)
    assert ([each["guid"] for each in page["messages"]], page["total"]) == (guids[1:3], 5)
    page = await _get(http, console, "api/messages", uri=PRICES, app="foo")
    assert [each["guid"] for each in page["messages"]] == guids[1:]


LETTERS: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"n": 1}', {"big": 2**62 + 1, "sealed": True}),
    (bytes(range(256)), {"key": b"\x01\xff"}),
    (b"plain", {}),
]


def _check_letters(found: Any, guids: list[str]) -> None:
    assert [each["guid"] for each in found["messages"]] == guids
    payloads = [base64.b64decode(each["payload"]) for each in found["messages"]]
    assert payloads == [payload for payload, _ in LETTERS]
    assert [(each["name"], each["type"], each["value"]) for each in found["messages"][0]["properties"]] == [
        ("big", "int64", "4611686018427387905"),  # JavaScript's numbers end at 2**53
        ("sealed", "bool", "true"),
    ]
    assert found["messages"][1]["properties"] == [{"name": "key", "type": "binary", "value": "01ff"}]


async def test_looking_inside_messages_of_the_same_process_has_no_side_effect(
    http: aiohttp.ClientSession, console: Console, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    guids = [(await queue.post(payload, properties=properties)).guid for payload, properties in LETTERS]
    await queue.receive(20)
    pushed = broker.queues[ORDERS].pushed
    _check_letters(await _post(http, console, "api/contents", uri=ORDERS, guids=guids), guids)
    assert (broker.queues[ORDERS].pushed, len(broker.queues[ORDERS])) == (pushed, 3)
    found = await _post(http, console, "api/contents", uri=ORDERS, guids=["0" * 32, "no GUID"])
    assert found["messages"] == []


async def test_looking_inside_messages_of_another_process_returns_them(
    http: aiohttp.ClientSession, serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    console = await serve()
    queue = await session.open_queue(ORDERS, write=True)
    guids = [(await queue.post(payload, properties=properties)).guid for payload, properties in LETTERS]
    _check_letters(await _post(http, console, "api/contents", uri=ORDERS, guids=guids), guids)
    assert len(broker.queues[ORDERS]) == 3
    assert broker.queues[ORDERS].unconfirmed == 0
    reader = await session.open_queue(ORDERS, read=True)
    assert [(await reader.receive(20)).guid for _ in guids] == guids
    # Now a consumer holds the messages: the console does not disturb the consumer.
    said = await _post(http, console, "api/contents", 409, uri=ORDERS, guids=guids)
    assert "this queue has readers" in said["error"]
    assert broker.queues[ORDERS].unconfirmed == 3


# ---- actions


async def test_a_message_is_posted(
    http: aiohttp.ClientSession, console: Console, session: bmq.Session
) -> None:
    properties = [
        {"name": "CustomerId", "type": "int64", "value": "1234"},
        {"name": "flag", "type": "bool", "value": "true"},
        {"name": "key", "type": "binary", "value": "01 ff"},
    ]
    posted = await _post(http, console, "api/post", uri=ORDERS, text="grüße", properties=properties)
    again = await _post(http, console, "api/post", uri=ORDERS, base64="AAH/", properties=[])
    queue = await session.open_queue(ORDERS, read=True)
    first, second = await queue.receive(20), await queue.receive(20)
    assert (first.guid, first.data.decode()) == (posted["guid"], "grüße")
    assert dict(first.properties) == {"CustomerId": 1234, "flag": True, "key": b"\x01\xff"}
    assert (second.guid, second.data) == (again["guid"], b"\x00\x01\xff")


@pytest.mark.parametrize(
    ("status", "words", "body"),
    [
        (
            400,
            "not a value of type int32",
            {"text": "x", "properties": [{"name": "n", "type": "int32", "value": "many"}]},
        ),
        (400, "unknown type", {"text": "x", "properties": [{"name": "n", "type": "float", "value": "1"}]}),
        (
            400,
            "given twice",
            {"text": "x", "properties": [{"name": "n", "type": "string", "value": ""}] * 2},
        ),
        (400, "base64", {"base64": "!"}),
        (400, "text is missing", {}),
        (400, "$.properties", {"text": "x", "properties": {"n": 1}}),
        (409, "no.such.domain", {"uri": "bmq://no.such.domain/q", "text": "x"}),
        (400, "orders", {"uri": "orders", "text": "x"}),
    ],
)
async def test_invalid_posts_are_refused(
    http: aiohttp.ClientSession, console: Console, status: int, words: str, body: dict[str, object]
) -> None:
    said = await _post(http, console, "api/post", status, **{"uri": ORDERS, **body})
    assert words in said["error"]


async def test_a_queue_is_purged(
    http: aiohttp.ClientSession, console: Console, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    queue = await session.open_queue(PRICES, write=True)
    await queue.post_many([b"17"] * 3)
    assert (await _post(http, console, "api/purge", uri=PRICES, app="foo"))["messages"] == 3
    assert len(broker.queues[PRICES]) == 3
    assert (await _post(http, console, "api/purge", uri=PRICES))["messages"] == 3
    assert len(broker.queues[PRICES]) == 0
    await _post(http, console, "api/purge", 409, uri="bmq://bmq.test.mem.priority/never-opened")


# ---- a lost broker


async def test_console_reconnects_to_a_returning_broker(
    http: aiohttp.ClientSession, serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    await (await session.open_queue(ORDERS, write=True)).post(b"x")
    await session.close()
    console = await serve()
    async with _live(http, console) as lines:
        await _until(lines, lambda line: line["queues"])
        await broker.stop()
        line = await _until(lines, lambda line: line["error"])
        assert line["queues"], "what was seen last stays"
        async with http.get(console.url + "api/queue", params={"uri": ORDERS}) as response:
            assert response.status == 503
            assert "connect" in (await response.json())["error"]
        await broker.start()
        line = await _until(lines, lambda line: not line["error"])
        assert line["queues"][0]["messages"] == 1


# ---- access


def _host(console: Console) -> str:
    return urlsplit(console.url).netloc


async def _purge_status(http: aiohttp.ClientSession, console: Console, **headers: str) -> int:
    body = json.dumps({"uri": ORDERS})
    headers = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    async with http.post(f"http://{_host(console)}/api/purge", data=body, headers=headers) as response:
        return response.status


@pytest.fixture
async def held(broker: bmq.broker.Broker, session: bmq.Session) -> bmq.broker.Broker:
    """A broker with a message to lose."""
    await (await session.open_queue(ORDERS, write=True)).post(b"x")
    return broker


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "evil@127.0.0.1"}, 403),
        ({"Host": "192.0.2.1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
    ],
)
async def test_foreign_page_cannot_change_state(
    http: aiohttp.ClientSession, serve: Serve, held: bmq.broker.Broker, headers: dict[str, str], status: int
) -> None:
    assert await _purge_status(http, await serve(), **headers) == status
    assert len(held.queues[ORDERS]) == (0 if status == 200 else 1)


async def test_the_own_page_may_change_state(
    http: aiohttp.ClientSession, serve: Serve, held: bmq.broker.Broker
) -> None:
    console = await serve()
    origin = f"http://{_host(console)}"
    assert await _purge_status(http, console, Origin=origin, Sec_Fetch_Site="same-origin") == 200


async def test_a_token_is_needed_where_others_can_connect(
    http: aiohttp.ClientSession, serve: Serve, held: bmq.broker.Broker
) -> None:
    console = await serve(host="0.0.0.0")
    port = urlsplit(console.url).port
    token = urlsplit(console.url).fragment.removeprefix("token=")
    assert len(token) >= 32
    local = f"http://127.0.0.1:{port}/"
    async with http.get(local) as response:
        assert response.status == 200, "the page itself has no secrets"
    for shown in (None, "", "Bearer", f"Bearer {token}x", f"Basic {token}", "Bearer \u00fc"):
        headers = {} if shown is None else {"Authorization": shown}
        async with http.get(local + "api/live", headers=headers) as response:
            assert response.status == 401
        async with http.post(local + "api/purge", json={"uri": ORDERS}, headers=headers) as response:
            assert response.status == 401
    assert len(held.queues[ORDERS]) == 1
    headers = {"Authorization": f"Bearer {token}", "Host": "console.example"}
    async with http.post(local + "api/purge", json={"uri": ORDERS}, headers=headers) as response:
        assert response.status == 403
    headers["Host"] = f"192.0.2.1:{port}"
    async with http.post(local + "api/purge", json={"uri": ORDERS}, headers=headers) as response:
        assert response.status == 200


async def test_console_accepts_its_configured_host_names(http: aiohttp.ClientSession, serve: Serve) -> None:
    console = await serve(host="0.0.0.0", names=["Console.example"], token="mine")
    headers = {"Authorization": "Bearer mine", "Host": "console.example:80"}
    url = f"http://127.0.0.1:{urlsplit(console.url).port}/api/messages?uri={ORDERS}"
    async with http.get(url, headers=headers) as response:
        assert response.status == 409, "it was asked, and the broker has no such queue"


async def test_a_read_only_console_refuses_changes(
    http: aiohttp.ClientSession, serve: Serve, held: bmq.broker.Broker
) -> None:
    console = await serve(read_only=True)
    for path in ("api/purge", "api/post", "api/contents"):
        said = await _post(http, console, path, 403, uri=ORDERS, text="x", guids=[])
        assert "--read-only" in said["error"]
    assert (await _get(http, console, "api/messages", uri=ORDERS))["total"] == 1
    assert "summary" in await _post(http, console, "api/route", uri=ORDERS, properties=[])


async def test_oversized_requests_are_refused(http: aiohttp.ClientSession, console: Console) -> None:
    headers = {"Content-Type": "application/json"}
    async with http.post(
        console.url + "api/post", data=io.BytesIO(b" " * 17_000_000), headers=headers
    ) as response:
        assert response.status == 413


# ---- life cycle


async def test_closing_ends_followed_streams(http: aiohttp.ClientSession, serve: Serve) -> None:
    console = await serve()
    async with _live(http, console) as lines:
        await anext(lines)
        async with asyncio.timeout(20):
            await console.close()
            async for _ in lines:
                pass  # requests in flight
    await console.close()


async def test_a_broker_with_users_and_tls(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make_certificate(key, certificate)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    users = {"operator": "secret"}
    async with (
        bmq.broker.Broker(ssl=server, auth=users) as broker,
        beside(broker, "127.0.0.1:0", users=users) as console,
    ):
        url, _, fragment = console.url.partition("#token=")
        http.headers["Authorization"] = f"Bearer {fragment}"
        async with http.get(url + "api/live") as response:
            await _until(_lines(response), lambda line: not line["error"])
        async with http.post(url + "api/post", json={"uri": ORDERS, "text": "x"}) as response:
            posted = await response.json()
        assert broker.queues[ORDERS].messages[0].guid == posted["guid"]


async def test_a_broker_with_users_requires_a_token_on_loopback(http: aiohttp.ClientSession) -> None:
    """The page uses a user's password, so each visitor must present a token."""
    users = {"operator": "secret"}
    async with (
        bmq.broker.Broker(auth=users) as broker,
        bmq.connect(broker.uri, credentials=bmq.Credentials.basic("operator", "secret")) as session,
    ):
        await (await session.open_queue(ORDERS, write=True)).post(b"x")
        remote = RemoteBroker(broker.uri, credentials=bmq.Credentials.basic("operator", "secret"))
        for console in (beside(broker, "127.0.0.1:0", users=users), Console(remote)):
            async with console:
                url, _, fragment = console.url.partition("#token=")
                assert len(fragment) >= 32
                for path in ("api/post", "api/purge", "api/contents"):
                    async with http.post(url + path, json={"uri": ORDERS, "text": "x"}) as response:
                        assert response.status == 401
                async with http.get(f"{url}api/queue?uri={ORDERS}") as response:
                    assert response.status == 401
        assert len(broker.queues[ORDERS]) == 1


async def test_a_token_is_required_where_others_can_connect(broker: bmq.broker.Broker) -> None:
    with pytest.raises(bmq.UsageError, match="token"):
        Console(Embedded(broker), host="0.0.0.0", token="")


@pytest.mark.parametrize("address", ["", "port", "127.0.0.1", "127.0.0.1:70000", ":-1"])
async def test_invalid_address_is_refused(broker: bmq.broker.Broker, address: str) -> None:
    with pytest.raises(bmq.UsageError, match="HOST:PORT"):
        beside(broker, address)


# ---- as commands


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bmq", *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_bmq_console_serves_the_page(http: aiohttp.ClientSession, broker: bmq.broker.Broker) -> None:
    async with _process("console", "--broker", broker.uri, "--port", "0") as process:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with http.get(url + "api/live") as response:
            assert json.loads(await response.content.readline())["looks_inside"] is False
    assert process.returncode == 0


async def test_bmq_broker_serves_the_console(http: aiohttp.ClientSession) -> None:
    async with _process("broker", "--port", "0", "--console", "0") as process:
        assert process.stdout is not None
        ready = (await process.stdout.readline()).decode()
        assert ready.startswith("bmq broker ready on tcp://127.0.0.1:")
        url = (await process.stdout.readline()).decode().split()[-1]
        async with http.get(url + "api/live") as response:
            assert json.loads(await response.content.readline())["looks_inside"] is True
    assert process.returncode == 0


@pytest.mark.parametrize("arguments", [["console", "--port", "0"], ["broker", "--port", "0", "--console"]])
def test_a_missing_extra_is_named(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for name in [name for name in sys.modules if name.startswith("bmq.console")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(bmq, "console", raising=False)
    assert main(arguments) != 0
    assert "pip install 'bmq[console]'" in capsys.readouterr().err


async def test_a_broker_that_refuses_is_named_in_every_answer(
    http: aiohttp.ClientSession, serve: Serve
) -> None:
    async with bmq.broker.Broker(auth={"operator": "secret"}) as closed:
        console = await serve(closed.uri)
        async with _live(http, console) as lines:
            state = await _until(lines, lambda line: line["error"] != "not yet queried")
        assert "bmq console --user NAME" in state["error"]
        body = {
            "uri": ORDERS,
            "text": "x",
            "guids": ["0" * 32],
            "guid": "0" * 32,
            "first": "0" * 32,
            "due": "1",
        }
        for path in ("api/post", "api/purge", "api/contents", "api/again", "api/cancel", "api/route"):
            async with http.post(console.url + path, json=body) as response:
                assert response.status in (409, 502, 503), path
                assert "defect" not in (await response.json())["error"]
        for path in ("api/queue", "api/messages", "api/clusters"):
            async with http.get(console.url + path, params={"uri": ORDERS}) as response:
                assert response.status in (409, 502, 503), path
                assert "defect" not in (await response.json())["error"]


async def test_a_missing_permission_is_named(http: aiohttp.ClientSession, serve: Serve) -> None:
    """The broker admits the console, and then refuses posts, and later commands."""
    kinds = {bmq.broker.ActionKind.QUEUE_WRITE}
    async with bmq.broker.Broker(authorize=lambda action: action.kind not in kinds) as guarded:
        console = await serve(guarded.uri)
        async with _live(http, console) as lines:
            await _until(lines, lambda line: not line["error"])
            said = await _post(http, console, "api/post", 409, uri=ORDERS, text="x")
            assert ORDERS in said["error"]
            kinds.add(bmq.broker.ActionKind.EXECUTE_ADMIN_COMMAND)
            state = await _until(lines, lambda line: line["refused"])
            assert state["error"]
        await _post(http, console, "api/purge", 409, uri=ORDERS)
