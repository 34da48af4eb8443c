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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import bmq
from bmq.broker import DomainConfig, Limits, Mode
from bmq.cli import main
from bmq.console import Console, Embedded, RemoteBroker, beside, taking
from bmq.conventions import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_GUID, DEAD_QUEUE, DESTINATION, DUE, ORIGIN
from tests.certificates import make_certificate
from tests.console.conftest import ORDERS, PRICES, Serve, Web
from tests.fakes import cluster as recorded
from tests.fakes.cluster import RecordedCluster
from tests.sweeps import sweep

# ---- views


async def test_page_loads_no_external_resource(web: Web) -> None:
    async with web.http.get(web.url) as response:
        page = await response.text()
        policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assets = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert assets
    for name in {*assets, "console.js"}:
        assert "//" not in name
        async with web.http.get(web.url + name) as response:
            assert response.status == 200
            assert not re.search(r"https?://(?!www\.w3\.org/)", await response.text()), name


async def test_queues_with_depth_and_rates_over_time(web: Web, session: bmq.Session) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    async with web.live() as until:
        first = await until(lambda line: line["error"] != "not yet queried")
        assert (first["version"], first["read_only"], first["error"]) == (bmq.__version__, False, "")
        await until(lambda line: any(each["uri"] == ORDERS for each in line["queues"]))
        await queue.post_many([b"order"] * 5)
        (await queue.receive(20)).confirm()
        (found,) = (await until(lambda line: line["queues"][0]["messages"] == 4))["queues"]
        assert (found["domain"], found["mode"]) == ("bmq.test.mem.priority", "priority")
        assert (found["producers"], found["consumers"]) == (1, 1)
        assert found["bytes"] > 0
    async with web.live() as until:
        (found,) = (await until())["queues"]
        past = found["history"]
        assert (max(past["messages"]) <= 5, past["messages"][-1]) == (True, 4)
        assert min(max(past["posted"]), max(past["confirmed"])) > 0
        assert len({len(values) for values in past.values()}) == 1


async def test_one_queue_with_its_consumers_and_the_routing_table(web: Web, session: bmq.Session) -> None:
    queue = await session.open_queue(ORDERS, read=True, write=True)
    slow = await queue.subscribe("CustomerId >= 1000", priority=5, max_unconfirmed_messages=1).open()
    await queue.subscribe('OrderType == "EXPRESS"', priority=10).open()
    for _ in range(3):
        await queue.post(b"o", properties={"CustomerId": 1234})
    await slow.receive(20)
    facts = await web.get("queue", uri=ORDERS)
    assert (facts["messages"], facts["mode"]) == (3, "priority")
    (client,) = facts["clients"]
    assert "shop" in client["description"]
    counts = ("writers", "readers", "unconfirmed", "subscriptions")
    assert [client[name] for name in counts] == [1, 1, 1, 2]
    (app,) = facts["apps"]
    assert [(each["priority"], each["expression"], each["full"]) for each in app["readers"]] == [
        (10, 'OrderType == "EXPRESS"', False),
        (5, "CustomerId >= 1000", True),
    ]
    assert any("delivered and not confirmed" in text for text in app["words"])
    asked = {"uri": ORDERS, "app": "__default"}
    properties = [{"name": "CustomerId", "type": "int64", "value": "2000"}]
    found = await web.post("route", **asked, properties=properties)
    assert "waits" in found["summary"]
    assert [step["matches"] for step in found["steps"]] == [False, True]
    express = [{"name": "OrderType", "type": "string", "value": "EXPRESS"}]
    assert "goes to" in (await web.post("route", **asked, properties=express))["summary"]


async def test_messages_page_by_page(web: Web, session: bmq.Session) -> None:
    queue = await session.open_queue(PRICES, write=True)
    guids = [(await queue.post(b"17")).guid for _ in range(5)]
    foo = await session.open_queue(f"{PRICES}?id=foo", read=True)
    (await foo.receive(20)).confirm()
    page = await web.get("messages", uri=PRICES, offset=1, count=2)
    assert ([each["guid"] for each in page["messages"]], page["total"]) == (guids[1:3], 5)
    page = await web.get("messages", uri=PRICES, app="foo")
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


async def _post_letters(session: bmq.Session) -> list[str]:
    queue = await session.open_queue(ORDERS, write=True)
    return [(await queue.post(payload, properties=properties)).guid for payload, properties in LETTERS]


async def test_looking_inside_messages_of_the_same_process_has_no_side_effect(
    web: Web, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    guids = await _post_letters(session)
    await (await session.open_queue(ORDERS, read=True)).receive(20)
    pushed = broker.queues[ORDERS].pushed
    _check_letters(await web.post("contents", uri=ORDERS, guids=guids), guids)
    assert (broker.queues[ORDERS].pushed, len(broker.queues[ORDERS])) == (pushed, 3)
    assert (await web.post("contents", uri=ORDERS, guids=["0" * 32, "no GUID"]))["messages"] == []


async def test_looking_inside_messages_of_another_process_returns_them(
    serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    web = await serve()
    guids = await _post_letters(session)
    _check_letters(await web.post("contents", uri=ORDERS, guids=guids), guids)
    assert (len(broker.queues[ORDERS]), broker.queues[ORDERS].unconfirmed) == (3, 0)
    reader = await session.open_queue(ORDERS, read=True)
    assert [(await reader.receive(20)).guid for _ in guids] == guids
    # Now a consumer holds the messages: the console does not disturb the consumer.
    assert "this queue has readers" in (await web.post("contents", 409, uri=ORDERS, guids=guids))["error"]
    assert broker.queues[ORDERS].unconfirmed == 3


# ---- actions


async def test_a_message_is_posted(web: Web, session: bmq.Session) -> None:
    properties = [
        {"name": "CustomerId", "type": "int64", "value": "1234"},
        {"name": "flag", "type": "bool", "value": "true"},
        {"name": "key", "type": "binary", "value": "01 ff"},
    ]
    posted = await web.post("post", uri=ORDERS, text="grüße", properties=properties)
    again = await web.post("post", uri=ORDERS, base64="AAH/", properties=[])
    queue = await session.open_queue(ORDERS, read=True)
    first, second = await queue.receive(20), await queue.receive(20)
    assert (first.guid, first.data.decode()) == (posted["guid"], "grüße")
    assert dict(first.properties) == {"CustomerId": 1234, "flag": True, "key": b"\x01\xff"}
    assert (second.guid, second.data) == (again["guid"], b"\x00\x01\xff")


@pytest.mark.parametrize(
    ("status", "words", "body"),
    [
        (400, "not a value of type int32", {"properties": [{"name": "n", "type": "int32", "value": "many"}]}),
        (400, "unknown type", {"properties": [{"name": "n", "type": "float", "value": "1"}]}),
        (400, "given twice", {"properties": [{"name": "n", "type": "string", "value": ""}] * 2}),
        (400, "$.properties", {"properties": {"n": 1}}),
        (400, "base64", {"text": None, "base64": "!"}),
        (400, "text is missing", {"text": None}),
        (409, "no.such.domain", {"uri": "bmq://no.such.domain/q"}),
        (400, "orders", {"uri": "orders"}),
    ],
)
async def test_invalid_posts_are_refused(web: Web, status: int, words: str, body: dict[str, object]) -> None:
    whole = {"uri": ORDERS, "text": "x"} | body
    given = {name: value for name, value in whole.items() if value is not None}
    assert words in (await web.post("post", status, **given))["error"]


async def test_a_queue_is_purged(web: Web, broker: bmq.broker.Broker, session: bmq.Session) -> None:
    queue = await session.open_queue(PRICES, write=True)
    await queue.post_many([b"17"] * 3)
    assert (await web.post("purge", uri=PRICES, app="foo"))["messages"] == 3
    assert len(broker.queues[PRICES]) == 3
    assert (await web.post("purge", uri=PRICES))["messages"] == 3
    assert len(broker.queues[PRICES]) == 0
    await web.post("purge", 409, uri="bmq://bmq.test.mem.priority/never-opened")


# ---- a lost broker


async def test_console_reconnects_to_a_returning_broker(
    serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    await (await session.open_queue(ORDERS, write=True)).post(b"x")
    await session.close()
    web = await serve()
    async with web.live() as until:
        await until(lambda line: line["queues"])
        await broker.stop()
        line = await until(lambda line: line["error"])
        assert (bool(line["queues"]), line["looks_inside"]) == (True, False), "what was seen last stays"
        assert "connect" in (await web.get("queue", 503, uri=ORDERS))["error"]
        await broker.start()
        assert (await until(lambda line: not line["error"]))["queues"][0]["messages"] == 1


# ---- access


@pytest.fixture
async def held(broker: bmq.broker.Broker, session: bmq.Session) -> bmq.broker.Broker:
    """A broker with a message to lose."""
    await (await session.open_queue(ORDERS, write=True)).post(b"x")
    return broker


JSON = {"Content-Type": "application/json"}
CHANGES = ("purge", "post", "contents", "again", "cancel")


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
        ({"Host": "localhost:1"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "OWN"}, 200),
        ({}, 200),
    ],
)
async def test_only_the_own_page_changes_state(
    web: Web, broker: bmq.broker.Broker, headers: dict[str, str], status: int
) -> None:
    await web.post("post", uri=ORDERS, text="x")
    headers = {name: value.replace("OWN", web.url.rstrip("/")) for name, value in headers.items()}
    for path in CHANGES if status != 200 else ("purge",):
        await web.ask("POST", path, status, data=json.dumps({"uri": ORDERS}), headers=JSON | headers)
    assert len(broker.queues[ORDERS]) == (0 if status == 200 else 1)


async def test_a_token_is_needed_where_others_can_connect(serve: Serve, held: bmq.broker.Broker) -> None:
    web = await serve(host="0.0.0.0")
    assert len(web.token) >= 32
    async with web.http.get(web.url) as response:
        assert response.status == 200, "the page itself has no secrets"
    for shown in (None, "", "Bearer", f"Bearer {web.token}x", f"Basic {web.token}", "Bearer \u00fc"):
        headers = {} if shown is None else {"Authorization": shown}
        await web.ask("GET", "live", 401, headers=headers)
        await web.ask("POST", "purge", 401, json={"uri": ORDERS}, headers=headers)
    assert len(held.queues[ORDERS]) == 1
    for host, status in (("console.example", 403), (f"192.0.2.1:{web.port}", 200)):
        headers = {"Authorization": f"Bearer {web.token}", "Host": host}
        await web.ask("POST", "purge", status, json={"uri": ORDERS}, headers=headers)


async def test_console_accepts_its_configured_host_names(serve: Serve) -> None:
    web = await serve(host="0.0.0.0", names=["Console.example"], token="mine")
    headers = {"Authorization": "Bearer mine", "Host": "console.example:80"}
    said = await web.ask("GET", "messages", 409, params={"uri": ORDERS}, headers=headers)
    assert "not found" in said["error"], "it was asked, and the broker has no such queue"


async def test_a_read_only_console_refuses_changes(serve: Serve, held: bmq.broker.Broker) -> None:
    web = await serve(read_only=True)
    for path in CHANGES:
        assert "--read-only" in (await web.post(path, 403, uri=ORDERS, text="x", guids=[]))["error"]
    assert (await web.get("messages", uri=ORDERS))["total"] == 1
    assert "summary" in await web.post("route", uri=ORDERS, properties=[])


async def test_oversized_requests_are_refused(web: Web) -> None:
    await web.ask("POST", "post", 413, data=io.BytesIO(b" " * 17_000_000), headers=JSON)


# ---- life cycle


async def test_closing_ends_followed_streams(serve: Serve) -> None:
    web = await serve()
    async with web.live() as until:
        await until()
        await web.console.close()
        with pytest.raises(AssertionError, match="it has ended"):
            await until(lambda line: False)  # requests in flight
    await web.console.close()


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
        web = Web(http, console)
        http.headers["Authorization"] = f"Bearer {web.token}"
        assert not (await web.figures())["error"]
        posted = await web.post("post", uri=ORDERS, text="x")
        assert broker.queues[ORDERS].messages[0].guid == posted["guid"]


async def test_a_broker_with_users_requires_a_token_on_loopback(http: aiohttp.ClientSession) -> None:
    """The page uses a user's password, so each visitor must present a token."""
    users = {"operator": "secret"}
    async with bmq.broker.Broker(auth=users) as broker:
        remote = RemoteBroker(broker.uri, credentials=bmq.Credentials.basic("operator", "secret"))
        for console in (beside(broker, "127.0.0.1:0", users=users), Console(remote)):
            async with console:
                web = Web(http, console)
                assert len(web.token) >= 32
                for path in CHANGES:
                    await web.post(path, 401, uri=ORDERS, text="x")
                await web.get("queue", 401, uri=ORDERS)
        assert not broker.queues


async def test_no_empty_token_where_others_can_connect(broker: bmq.broker.Broker) -> None:
    with pytest.raises(bmq.UsageError, match="token"):
        Console(Embedded(broker), host="0.0.0.0", token="")


@sweep("address", ["", "port", "127.0.0.1", "127.0.0.1:70000", ":-1"])
async def test_invalid_address_is_refused(broker: bmq.broker.Broker, address: str) -> None:
    with pytest.raises(bmq.UsageError, match="HOST:PORT"):
        beside(broker, address)


# ---- as commands


async def test_bmq_broker_serves_the_page(http: aiohttp.ClientSession) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bmq", "broker", "--port", "0", "--console", "0"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert b"bmq broker ready on tcp://127.0.0.1:" in await process.stdout.readline()
        url = (await process.stdout.readline()).decode().split()[-1]
        async with http.get(url + "api/live") as response:
            assert json.loads(await response.content.readline())["looks_inside"] is True
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


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


async def test_a_broker_that_refuses_is_named_in_every_answer(serve: Serve) -> None:
    async with bmq.broker.Broker(auth={"operator": "secret"}) as closed:
        web = await serve(closed.uri)
        assert "bmq console --user NAME" in (await web.figures())["error"]
        body = {"uri": ORDERS, "text": "x", "guids": ["0" * 32], "guid": "0" * 32, "first": "0" * 32}
        asked = [("POST", path, {"json": body | {"due": "1"}}) for path in (*CHANGES, "route")]
        asked += [("GET", path, {"params": {"uri": ORDERS}}) for path in ("queue", "messages", "clusters")]
        for method, path, options in asked:
            async with web.http.request(method, f"{web.url}api/{path}", **options) as response:
                assert response.status in (409, 502, 503), path
                assert "defect" not in (await response.json())["error"]


async def test_a_missing_permission_is_named(serve: Serve) -> None:
    """The broker admits the console, and then refuses posts, and later commands."""
    kinds = {bmq.broker.ActionKind.QUEUE_WRITE}
    async with bmq.broker.Broker(authorize=lambda action: action.kind not in kinds) as guarded:
        web = await serve(guarded.uri)
        async with web.live() as until:
            await until(lambda line: not line["error"])
            assert ORDERS in (await web.post("post", 409, uri=ORDERS, text="x"))["error"]
            kinds.add(bmq.broker.ActionKind.EXECUTE_ADMIN_COMMAND)
            assert (await until(lambda line: line["refused"]))["error"]
        await web.post("purge", 409, uri=ORDERS)


# ---- dead letters are posted again, and delayed messages cancelled

DEAD = f"{ORDERS}.dead"
LATER = f"{ORDERS}.delayed"
FIRST = "0123456789ABCDEF0123456789ABCDEF"
OTHER = "F123456789ABCDEF0123456789ABCDEF"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "_IDLE", 0.2)


async def _dead(session: bmq.Session, first: str = FIRST, origin: str = ORDERS) -> str:
    queue = await session.open_output(DEAD)
    properties: dict[str, Any] = {DEAD_QUEUE: origin, DEAD_GUID: first, DEAD_ATTEMPTS: 3, DEAD_ERROR: "e: f"}
    return str((await queue.post(b"order", properties=properties | {"CustomerId": 7})).guid)


async def _mover(session: bmq.Session) -> tuple[bmq.Queue, bmq.Consumer]:
    """The queue of delayed messages, and a reader of the messages due at 15."""
    queue = await session.open_queue(LATER, read=True, write=True, default_subscription=False)
    return queue, await queue.subscribe(f"{DUE} <= 15").open()


async def test_a_dead_letter_is_posted_again(
    serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    other, guid = await _dead(session, OTHER), await _dead(session)
    await session.open_queue(ORDERS, write=True)
    done = await (await serve()).post("again", uri=DEAD, guid=guid, first=FIRST)
    assert done["uri"] == ORDERS
    (stored,) = broker.queues[ORDERS].messages
    assert (stored.guid, stored.payload) == (done["guid"], b"order")
    assert dict(stored.properties) == {"CustomerId": 7, ORIGIN: FIRST}
    assert [each.guid for each in broker.queues[DEAD].messages] == [other]
    assert broker.queues[DEAD].pushed == 1, "the other letter was not taken"


async def test_a_dead_letter_is_edited(serve: Serve, broker: bmq.broker.Broker, session: bmq.Session) -> None:
    guid = await _dead(session)
    body = {"text": "repaired", "properties": [{"name": "CustomerId", "type": "int64", "value": "8"}]}
    await (await serve()).post("again", uri=DEAD, guid=guid, first=FIRST, **body)
    (stored,) = broker.queues[ORDERS].messages
    assert (stored.payload, dict(stored.properties)) == (b"repaired", {"CustomerId": 8})
    assert len(broker.queues[DEAD]) == 0


async def test_a_refused_post_keeps_the_dead_letter(
    serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    broker.add_domain(DomainConfig("small", Mode.PRIORITY, queue_limits=Limits(messages=1)))
    await (await session.open_queue("bmq://small/q", write=True)).post_many([b"x"] * 2)
    guid = await _dead(session, origin="bmq://small/q")
    web = await serve()
    assert "LIMIT_MESSAGES" in (await web.post("again", 409, uri=DEAD, guid=guid, first=FIRST))["error"]
    for first, status in ((OTHER, 409), ("x", 400), ('" || true || "', 400)):
        await web.post("again", status, uri=DEAD, guid=guid, first=first)
    assert [each.guid for each in broker.queues[DEAD].messages] == [guid]


async def test_a_delayed_message_is_cancelled_unless_a_mover_may_hold_it(
    serve: Serve, broker: bmq.broker.Broker, session: bmq.Session
) -> None:
    queue, mover = await _mover(session)
    held, kept, guid = [
        (await queue.post(b"x", properties={DUE: due, DESTINATION: ORDERS})).guid for due in (10, 18, 20)
    ]
    await mover.receive(30)
    web = await serve()
    await web.post("cancel", uri=LATER, guid=guid, due="20")
    left = [held, kept]
    assert [each.guid for each in broker.queues[LATER].messages] == left
    said = await web.post("cancel", 409, uri=LATER, guid=guid, due="20")
    assert "Nothing was changed" in said["error"]
    said = await web.post("cancel", 409, uri=LATER, guid=held, due="10")
    assert "a reader may hold the message" in said["error"]
    for due in ("", "-1", "1 || true", "9" * 16):
        await web.post("cancel", 400, uri=LATER, guid=kept, due=due)
    assert [each.guid for each in broker.queues[LATER].messages] == left


@pytest.mark.parametrize(("path", "status"), [("contents", 409), ("again", 409), ("cancel", 200)])
async def test_no_action_stops_a_reader_of_the_queue(
    serve: Serve, broker: bmq.broker.Broker, session: bmq.Session, path: str, status: int
) -> None:
    """A returned message would stop all messages behind it; two messages have the same due time here."""
    queue, reader = await _mover(session)
    properties: dict[str, Any] = {DUE: 20, DEAD_QUEUE: ORDERS, DEAD_GUID: FIRST, DESTINATION: ORDERS}
    _, guid = [str((await queue.post(b"x", properties=properties)).guid) for _ in range(2)]
    held = await queue.post(b"x", properties={DUE: 10})
    assert (await reader.receive(30)).guid == held.guid
    body = {"uri": LATER, "guid": guid, "guids": [guid], "app": "", "first": FIRST, "due": "20"}
    await (await serve()).post(path, status, **body)
    assert len(broker.queues[LATER]) == (2 if path == "cancel" else 3)
    await queue.post(b"y", properties={DUE: 1})
    assert (await reader.receive(30)).data == b"y"
    assert broker.queues[LATER].pushed == 2, "no message was taken"


# ---- the nodes of a cluster


@pytest.fixture
def cluster() -> Iterator[RecordedCluster]:
    with RecordedCluster() as cluster:
        yield cluster


async def test_figures_come_from_the_primary(serve: Serve, cluster: RecordedCluster) -> None:
    web = await serve(cluster.uris("proxy", "node1", "node0"))
    live = await web.figures()
    assert (live["error"], live["gap"]) == ("", "")
    assert {each["uri"]: (each["messages"], each["consumers"]) for each in live["queues"]} == {
        recorded.ORDERS: (6, 1),
        recorded.OTHER: (3, 0),
    }
    words = (await web.get("queue", uri=recorded.ORDERS))["words"]
    assert "1 client has it open" in words[0]
    assert "behind node2" in words[1]


async def test_an_empty_queue_stays_in_the_list(serve: Serve, cluster: RecordedCluster) -> None:
    # A real broker leaves empty queues out of the contents of a domain.
    for name in ("node0", "node1", "node2"):
        answer = cluster[name].answers[f"DOMAINS DOMAIN {recorded.DOMAIN} INFOS"]
        content = answer["domainInfo"]["storageContent"]
        content["storages"] = [each for each in content["storages"] if each["queueUri"] != recorded.OTHER]
    live = await (await serve(cluster.uris("node0", "node1", "node2"))).figures()
    figures = {each["uri"]: each for each in live["queues"]}
    assert (figures[recorded.ORDERS]["messages"], figures[recorded.ORDERS]["mode"]) == (6, "priority")
    assert (figures[recorded.OTHER]["messages"], figures[recorded.OTHER]["mode"]) == (0, "priority")


async def test_the_page_shows_that_figures_cover_one_node_and_takes_nothing_there(
    serve: Serve, cluster: RecordedCluster
) -> None:
    web = await serve(cluster.uris("node1"))
    assert "node0 is the primary of some queues" in (await web.figures())["gap"]
    words = (await web.get("queue", uri=recorded.ORDERS))["words"]
    assert words[0].startswith("node1 is not the primary of this queue (node0 is)")
    assert "node0 is" in (await web.post("route", 409, uri=recorded.ORDERS, properties=[]))["error"]
    said = await web.post(
        "contents", 409, uri=recorded.OTHER, app="", guids=["40000000000001AB61F733AC52BFF885"]
    )
    assert "node1 is not the primary" in said["error"]
