# SPDX-License-Identifier: Apache-2.0
"""TestApp, and the embedded broker's records of posts: readable tests of handlers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import anyio
import pytest
import uvloop

import bmq
from bmq.broker import Broker, DomainConfig, Mode
from bmq.testing import TestApp
from tests.waiting import eventually

ORDERS = "bmq://bmq.test.mem.priority/orders"
SHIPPED = "bmq://bmq.test.mem.priority/shipped"
DEAD = "bmq://bmq.test.mem.priority/dead"


@dataclass
class Order:
    number: Annotated[int, bmq.Property]


@pytest.fixture
def app() -> bmq.App:
    app = bmq.App("tcp://broker.example:30114", credentials=bmq.Credentials.basic("user", "secret"))
    app.state.prefix = "shipped "

    @app.consumer(ORDERS, retry=bmq.Backoff(every=60, retries=2, then=bmq.DeadLetter(DEAD)))
    async def ship(order: Order) -> None:
        if order.number < 0:
            raise ConnectionError("the carrier does not answer")
        app.state.last = order.number
        shipped = await app.queue(SHIPPED)
        await shipped.post(f"{app.state.prefix}{order.number}".encode(), properties={"number": order.number})

    return app


async def test_app_records_handled_retried_and_given_up_messages(app: bmq.App) -> None:
    async with TestApp(app) as test:
        await test.post(ORDERS, Order(1))
        await test.post(ORDERS, Order(-2), properties={"Region": "eu"})
        await test.post(ORDERS, b"no JSON")
        await test.drained(ORDERS)
        test.broker.assert_posted(SHIPPED, count=1, properties={"number": 1}, payload=b"shipped 1")
        test.broker.assert_posted(DEAD, count=2)
        (letter,) = test.broker.assert_posted(DEAD, count=1, properties={"Region": "eu", "number": -2})
        assert letter.properties["bmq_dead_attempts"] == 3
        assert [str(each.error) for each in test.retried] == ["the carrier does not answer"] * 2
        assert [type(each.error) for each in test.given_up] == [ConnectionError, bmq.Undecodable]
        assert app.state.last == 1
    assert vars(app.state) == {"prefix": "shipped "}, "the app is as it was"
    assert app._broker == "tcp://broker.example:30114"


async def test_remaining_and_failed_work_is_reported() -> None:
    app = bmq.App()

    @app.consumer(ORDERS, retry=bmq.NoRetry("skip"))
    async def ship(order: Order) -> None:
        raise ConnectionError("away")

    async with TestApp(app) as test:
        await test.post(ORDERS, Order(1))
        await eventually(lambda: test.given_up)
        with pytest.raises(AssertionError) as caught:
            await test.drained(ORDERS, timeout=0.01)
    text = str(caught.value)
    assert f"{ORDERS} has 1 messages left after 0.01 s, 1 of them delivered and unconfirmed" in text or (
        f"{ORDERS} has 1 messages left after 0.0" in text
    )
    assert "ship, attempt 1: ConnectionError: away" in text


async def test_missing_queue_is_not_drained() -> None:
    async with Broker() as broker:
        with pytest.raises(
            AssertionError, match=r"the broker has no queue bmq://d.e/q after 0.01 s; its queues: none"
        ):
            await broker.drained("bmq://d.e/q", timeout=0.01)
        with pytest.raises(bmq.StateError, match="keeps no posts"):
            broker.assert_posted("bmq://d.e/q")


async def test_an_app_that_cannot_start_raises_and_leaves_no_task(app: bmq.App) -> None:
    @app.on_startup
    def fail() -> None:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        async with TestApp(app):
            raise AssertionError("not begun")
    assert app._broker == "tcp://broker.example:30114"


async def test_compressed_and_refused_posts_are_recorded(
    bmq_broker: Broker, bmq_session: bmq.Session
) -> None:
    queue = await bmq_session.open_queue(ORDERS, write=True)
    await queue.post(b"x" * 5000, compression=bmq.Compression.ZLIB, properties={"a": 1})
    bmq_broker.faults.nack(count=1)
    with pytest.raises(bmq.PostError):
        await queue.post(b"refused")
    bmq_broker.faults.clear()
    await queue.post(b"again")
    assert [len(each.payload) for each in bmq_broker.assert_posted(ORDERS, count=2)] == [5000, 5]


# ---- in memory


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record attempts to connect or to listen."""
    attempts: list[object] = []
    for name in ("connect", "connect_ex", "bind", "listen"):

        def refuse(self: socket.socket, *args: object) -> None:
            attempts.append(args)
            raise OSError("this test opens no socket")

        monkeypatch.setattr(socket.socket, name, refuse)
    return attempts


async def _ship_one(app: bmq.App) -> None:
    async with TestApp(app) as test:
        await test.post(ORDERS, Order(1))
        await test.drained()
        test.assert_posted(SHIPPED, b"shipped 1", count=1, properties={"number": 1})
        await test.broker.restart()
        await test.post(ORDERS, Order(2))
        await test.drained()
        test.assert_posted(SHIPPED, count=2)
        assert test.app.session.stats().reconnects == 1


def _shipping() -> bmq.App:
    app = bmq.App()

    @app.consumer(ORDERS, retry=bmq.Backoff(every=60, retries=2, then="discard"))
    async def ship(order: Order) -> None:
        if order.number < 0:
            raise ConnectionError("the carrier does not answer")
        await (await app.queue(SHIPPED)).post(b"shipped 1", properties={"number": 1})

    return app


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run, anyio.run])
def test_app_runs_on_any_loop_without_a_socket(run: Callable[..., None], no_sockets: list[object]) -> None:
    if run is anyio.run:
        run(_ship_one, _shipping())
    else:
        run(_ship_one(_shipping()))
    assert not no_sockets


async def test_first_use_of_the_address_opens_a_socket() -> None:
    async with TestApp(_shipping()) as test:
        async with bmq.connect(test.broker.uri) as session:
            await (await session.open_queue(ORDERS, write=True)).typed(Order).post(Order(4))
        async with bmq.admin.connect(test.broker.uri) as admin:
            assert "bmq.test.mem.priority" in await admin.command(
                "DOMAINS DOMAIN bmq.test.mem.priority INFOS"
            )
        await test.broker.drained(ORDERS)
        test.assert_posted(SHIPPED, count=1)
        uri = test.broker.uri
        await test.broker.restart()
        assert test.broker.uri == uri
        await test.post(ORDERS, Order(5))
        await test.drained()
        test.assert_posted(SHIPPED, count=2)
    with pytest.raises(bmq.ConnectionFailed):
        await bmq.connect(uri)


async def test_large_messages_pass_in_memory() -> None:
    app = bmq.App()
    sizes: list[int] = []

    @app.consumer(ORDERS)
    async def note(message: bmq.Message) -> None:
        sizes.append(len(message.data))

    async with TestApp(app) as test:
        for _ in range(3):
            await test.post(ORDERS, bytes(20_000_000))
        await test.drained()
    assert sizes == [20_000_000] * 3


# ---- time


@pytest.mark.parametrize(("where", "delay"), [("in memory", 7200), ("on a socket", 200)])
async def test_delays_take_no_time_and_are_not_early(bmq_broker: Broker, where: str, delay: int) -> None:
    app = _shipping()
    app.mover(f"{ORDERS}.delayed")
    async with TestApp(app, bmq_broker if where == "on a socket" else None) as test:
        await test.post(ORDERS, Order(3), delay=delay)
        await test.post(ORDERS, Order(2), delay=delay / 2)
        await test.post(ORDERS, Order(1))
        began = test.now
        await test.drained()
        assert delay - 1 < test.now - began < delay + 100
        assert [order.number for order in test.posted(ORDERS, Order)] == [1, 2, 3]


async def test_advance_moves_a_clock_that_skips_no_pauses() -> None:
    app = _shipping()
    app.mover(f"{ORDERS}.delayed")
    async with TestApp(app, skip_pauses=False) as test:
        await test.post(ORDERS, Order(1), delay=200)
        await test.post(ORDERS, Order(-1))
        await test.advance(59)
        assert [failure.attempt for failure in test.failures] == [1]
        await test.advance(1)
        assert [failure.attempt for failure in test.failures] == [1, 2]
        await test.advance(139)
        assert len(test.given_up) == 1
        test.assert_posted(SHIPPED, count=0)
        await test.advance(1)
        test.assert_posted(SHIPPED, count=1)


@pytest.mark.parametrize("durable", [False, True])
async def test_retries_take_no_time_and_are_not_early(durable: bool) -> None:
    app = bmq.App()
    seen: list[float] = []

    @app.consumer(ORDERS, retry=bmq.Backoff(every=50, retries=3, durable=durable, then="discard"))
    async def ship(order: Order) -> None:
        seen.append(test.now)
        raise ConnectionError("away")

    async with TestApp(app) as test:
        await test.post(ORDERS, Order(1))
        await test.drained()
        assert len(seen) == 4
        assert all(later - earlier >= 49.9 for earlier, later in pairwise(seen))


async def test_batch_is_handled_once_the_app_is_idle() -> None:
    app = bmq.App()
    batches: list[list[Order]] = []

    @app.batch_consumer(ORDERS, max_messages=10, max_wait=600)
    async def load(orders: list[Order]) -> None:
        batches.append(orders)

    async with TestApp(app) as test:
        began = test.now
        await test.post(ORDERS, Order(1))
        await test.drained()
        assert batches == [[Order(1)]]
        assert test.now - began >= 600


async def test_sleeping_handler_keeps_real_time_while_pauses_wait() -> None:
    app = bmq.App()
    began: list[float] = []
    slept = asyncio.Event()

    @app.consumer(ORDERS, concurrency=2, retry=bmq.Backoff(every=3600, retries=1, then="discard"))
    async def ship(message: bmq.Message) -> None:
        if message.data == b"fails":
            began.append(test.now)
            raise ConnectionError("away")
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.sleep(0.05)
        assert loop.time() - start > 0.049  # uvloop's clock has whole milliseconds
        slept.set()

    async with TestApp(app) as test:
        await test.post(ORDERS, b"fails")
        await test.post(ORDERS, b"sleeps")
        await test.drained()
        assert slept.is_set()
        assert began[1] - began[0] >= 3600


async def test_clock_does_not_jump_without_waiting_messages() -> None:
    app = _shipping()
    app.mover(f"{ORDERS}.delayed")
    async with TestApp(app) as test:
        began = test.now
        for _ in range(3):
            await test.post(ORDERS, Order(1))
            await test.drained()
            await test.advance(0)
        assert test.now - began < 3600


async def test_message_ttl_counts_in_the_time_of_the_test() -> None:
    async with TestApp(_shipping()) as test:
        await test.post("bmq://bmq.test.ttl.priority/offers", b"for two seconds")
        assert len(test.broker.queues["bmq://bmq.test.ttl.priority/offers"]) == 1
        await test.advance(3)
        assert len(test.broker.queues["bmq://bmq.test.ttl.priority/offers"]) == 0


async def test_included_apps_share_the_clock_and_have_separate_brokers() -> None:
    here, there = _shipping(), bmq.App()
    here.include(there)
    seen: list[float] = []

    @there.consumer(ORDERS, retry=bmq.Backoff(every=30, retries=1, then="discard"))
    async def count(order: Order) -> None:
        seen.append(test.of(there).now)
        raise ConnectionError("away")

    async with TestApp(here) as test:
        await test.of(there).post(ORDERS, Order(1))
        await test.of(there).drained()
        assert seen[1] - seen[0] >= 30
        assert test.failures == []
        assert [each.attempt for each in test.of(there).failures] == [1, 2]
        assert test.of(here) is test
        with pytest.raises(bmq.UsageError, match="not part"):
            test.of(bmq.App())
        assert not test.posted(ORDERS)
        assert len(test.of(there).posted(ORDERS)) == 1


# ---- results


async def test_typed_posts_are_compared_by_value() -> None:
    async with TestApp(_shipping()) as test:
        await test.post(ORDERS, Order(1), properties={"Region": "eu"})
        await test.post(ORDERS, Order(2))
        await test.drained()
        (first,) = test.assert_posted(ORDERS, Order(1), count=1, properties={"Region": "eu"})
        assert first.properties["number"] == 1
        assert test.posted(ORDERS, Order) == [Order(1), Order(2)]
        await test.post(ORDERS, b"no JSON")
        with pytest.raises(bmq.Undecodable):
            test.posted(ORDERS, Order)
        with pytest.raises(AssertionError) as caught:
            test.assert_posted(ORDERS, Order(3), properties={"Region": "eu"})
        await test.drained()
    text = str(caught.value)
    assert f"expected a message Order(number=3) with {{'Region': 'eu'}} in {ORDERS}, found 0 of 3" in text
    assert "    Order(number=2) {" in text
    assert "b'no JSON'" in text
    assert f"(queues with posts: {ORDERS}, {SHIPPED})" in text


async def test_requests_return_values_messages_and_errors() -> None:
    app = bmq.App()

    @app.responder(ORDERS)
    async def price(message: bmq.Message) -> bytes:
        if message.data == b"x":
            raise LookupError("no such article")
        return b"%d" % (2 * int(message.data))

    async with TestApp(app) as test:
        assert await test.request(ORDERS, 4, reply=int) == 8
        assert await test.request(ORDERS, b"5", reply=bytes) == b"10"
        assert (await test.request(ORDERS, b"6", reply=bmq.Message)).data == b"12"
        with pytest.raises(bmq.RequestFailed, match="no such article"):
            await test.request(ORDERS, b"x", reply=int)


# ---- errors


async def _not_drained(test: TestApp, *uris: str) -> str:
    with pytest.raises(AssertionError) as caught:
        await test.drained(*uris, timeout=0.05)
    return str(caught.value)


async def test_a_missing_handler_or_mover_is_explained() -> None:
    async with TestApp(_shipping()) as test:
        await test.post(f"{ORDERS}s", Order(1))
        assert f"the app has no handler for {ORDERS}s; its queues: {ORDERS}" in await _not_drained(test)
    async with TestApp(_shipping()) as test:
        await test.post(ORDERS, Order(1), delay=60)
        text = await _not_drained(test)
    assert f"the app has no mover for {ORDERS}.delayed" in text
    assert f"app.mover('{ORDERS}.delayed')" in text


async def test_unconfirmed_and_running_messages_are_explained() -> None:
    app = bmq.App()
    go_on = asyncio.Event()

    @app.consumer(ORDERS, ack=bmq.AckPolicy.MANUAL)
    async def forget(message: bmq.Message) -> None:
        """Forgets message.confirm()."""

    @app.consumer(SHIPPED)
    async def wait(message: bmq.Message) -> None:
        await go_on.wait()

    @app.consumer(DEAD, expression='Region == "eu"')
    async def choose(message: bmq.Message) -> None:
        """Does nothing."""

    async with TestApp(app) as test:
        for uri in (ORDERS, SHIPPED, DEAD):
            await test.post(uri, b"1")
        assert "forget has left 1 messages unconfirmed" in await _not_drained(test, ORDERS)
        assert "wait is handling 1 messages" in await _not_drained(test, SHIPPED)
        with pytest.raises(
            AssertionError, match=r"the app was not idle within 0\.05 s\n(.*\n)*wait is handling"
        ):
            await test.advance(0, timeout=0.05)
        assert f'choose has none of the messages of {DEAD} with Region == "eu"' in await _not_drained(
            test, DEAD
        )
        go_on.set()
        await test.drained(SHIPPED)


async def test_leaving_before_a_retry_is_a_warning() -> None:
    async def leave() -> None:
        async with TestApp(_shipping(), skip_pauses=False) as test:
            await test.post(ORDERS, Order(-1))
            await test.advance(0)

    with pytest.warns(RuntimeWarning, match=r"before the next attempt of ship \(1 messages\)"):
        await leave()


async def test_the_test_ends_with_the_block(app: bmq.App) -> None:
    test = TestApp(app)
    with pytest.raises(bmq.StateError, match="only within: async with TestApp"):
        await test.post(ORDERS, b"1")
    with pytest.raises(bmq.StateError, match="only within: async with TestApp"):
        await test.advance(1)


async def test_app_with_domains_of_its_own(bmq_broker: Broker) -> None:
    app = bmq.App()
    seen: list[bytes] = []

    @app.consumer("bmq://shop.orders/orders?id=billing")
    async def bill(message: bmq.Message) -> None:
        seen.append(message.data)

    domain = DomainConfig("shop.orders", Mode.FANOUT, app_ids=("billing",))
    async with TestApp(app, domains=[domain]) as test:
        await test.post("bmq://shop.orders/orders", b"1")
        await test.drained()
    assert seen == [b"1"]
    with pytest.raises(bmq.UsageError, match="give them to the Broker"):
        TestApp(app, bmq_broker, domains=[domain])


def carrier() -> str:
    return "slow carrier"


async def test_dependencies_are_overridden_for_the_test_only() -> None:
    app, part = bmq.App(), bmq.App()
    app.include(part)
    seen: list[str] = []

    @part.consumer(ORDERS)
    async def ship(order: Order, by: Annotated[str, bmq.Depends(carrier)]) -> None:
        seen.append(by)

    for overrides in ({carrier: lambda: "fake carrier"}, None):
        async with TestApp(app, overrides=overrides) as test:
            await test.of(part).post(ORDERS, Order(1))
            await test.of(part).drained()
    assert seen == ["fake carrier", "slow carrier"]


def service(by: Annotated[str, bmq.Depends(carrier)]) -> str:
    return by


async def test_an_override_that_replaces_nothing_is_refused() -> None:
    app = bmq.App()

    @app.consumer(ORDERS)
    async def ship(order: Order, by: Annotated[str, bmq.Depends(service)]) -> None:
        """Ships nothing."""

    with pytest.raises(bmq.UsageError, match=r"overrides replaces _shipping, .*bmq.Depends"):
        async with TestApp(app, overrides={_shipping: carrier}):
            pass

    def make() -> Callable[[], str]:
        def carrier() -> str:
            return ""

        carrier.__qualname__ = "carrier"
        return carrier

    with pytest.raises(bmq.UsageError, match=r"function of this name in tests\.testing\.test_app"):
        async with TestApp(app, overrides={make(): carrier}):
            pass
    # A dependency of a replaced dependency is not used, and may be replaced all the same.
    async with TestApp(app, overrides={service: lambda: "", carrier: lambda: ""}) as test:
        await test.post(ORDERS, Order(1))
        await test.drained()


async def test_posts_of_a_test_have_tags_a_key_and_a_guid() -> None:
    seen: list[tuple[str, int, bool]] = []
    app = bmq.App()

    @app.consumer(ORDERS, expression=bmq.TagFilter(any_of=["express"]))
    async def ship(order: Order, message: bmq.Message) -> None:
        seen.append((message.guid, order.number, "bmq_bucket" in message.properties))

    guid = "40000100000001E9B778F6C073D04488"
    async with TestApp(app) as test:
        for _ in range(2):
            await test.post(ORDERS, Order(1), tags=["express"], key=7, guid=guid)
        await test.drained()
        test.assert_posted(ORDERS, count=1)
    assert seen == [(guid, 1, True)]


async def test_a_test_opens_no_health_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:  # the service itself runs on the machine
        address = f"127.0.0.1:{service.getsockname()[1]}"
        app, part = bmq.App(health=address), bmq.App(health=address)
        app.include(part)

        @app.consumer(ORDERS)
        @part.consumer(ORDERS)
        async def ship(order: Order) -> None: ...

        async with TestApp(app) as test:
            await test.post(ORDERS, Order(1))
            await test.drained()
            assert app.health_uri is None
        async with Broker(posts_kept=10) as broker, TestApp(app, broker):
            assert app.health_uri not in (None, f"http://{address}")
            assert part.health_uri is None
        with pytest.raises(OSError, match="in use"):  # the app itself is unchanged
            await app.run(signals=False)


async def test_posts_beyond_the_deduplication_window_are_posts_of_their_own() -> None:
    """A test of an outbox must see that a message was stored twice."""
    guid = "4" + "0" * 30 + "1"
    async with TestApp(_shipping()) as test:
        queue = await test.session.open_queue(SHIPPED, write=True, read=True)
        for number in range(3):
            await queue.post(b"x", guid=guid)
            await queue.post(b"x", guid=guid)
            if not number:  # this session knows the GUID from then on
                (await queue.receive(timeout=5)).confirm()
            else:
                test.broker.queues[SHIPPED].purge()
            await test.advance(302)
        assert [each.guid for each in test.posted(SHIPPED)] == [guid] * 3
        with pytest.raises(AssertionError):
            test.assert_posted(SHIPPED, b"x", count=1)
