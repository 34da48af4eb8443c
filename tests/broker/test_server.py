# SPDX-License-Identifier: Apache-2.0
"""The broker on a real socket: life cycle, restarts, slow readers, injected faults."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.broker import Authentication, Bounds, Broker, DomainConfig, Limits, ManualClock, Mode
from bmq.broker._connection import BrokerConnection
from bmq.errors import AckStatus, StatusCategory
from bmq.wire.control import AuthenticationResponse, OpenQueueResponse, Status
from tests.broker.core import PRIORITY
from tests.broker.wire import client, close_all, connect
from tests.fakes.client import SocketClient
from tests.garbage import collect
from tests.loops import LOOPS
from tests.waiting import eventually


@pytest.fixture(autouse=True)
async def _closing() -> AsyncIterator[None]:
    yield
    await close_all()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def broker(clock: ManualClock) -> AsyncIterator[Broker]:
    async with Broker(clock=clock) as broker:
        yield broker


async def opened(broker: Broker, uri: str = PRIORITY) -> SocketClient:
    peer = await client(broker.port)
    assert isinstance(await peer.open(uri, write=True), OpenQueueResponse)
    return peer


def test_a_broker_starts_again_in_another_event_loop() -> None:
    broker = Broker()

    async def serve() -> None:
        await broker.start()
        async with bmq.connect(broker.uri, reconnect=False):
            await broker.stop()  # waits for the client

    for _ in range(2):
        asyncio.run(serve())


async def test_restart_keeps_or_loses_stored_messages(broker: Broker) -> None:
    port = broker.port
    for keep, left in ((True, 1), (True, 2), (False, 0)):
        peer = await opened(broker)
        peer.put(b"m")
        await peer.acks(1)
        await broker.restart(keep=keep)
        assert broker.port == port
        assert sum(map(len, broker.queues.values())) == left


@pytest.mark.parametrize("loop_factory", LOOPS.values(), ids=LOOPS)
def test_broker_stops_in_the_turn_of_a_new_connection(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def stop_after(turns: int) -> None:
        broker = Broker(port=0)
        await broker.start()
        clients = [socket.socket() for _ in range(20)]
        for each in clients:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", broker.port))
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await broker.stop()
        for each in clients:
            each.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        for turns in range(40):
            runner.run(stop_after(turns % 8))
            collect()  # a socket that nobody closed is said now


@pytest.mark.parametrize("loop_factory", LOOPS.values(), ids=LOOPS)
def test_a_broker_whose_stop_was_cancelled_starts_again(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def cancel_after(turns: int) -> None:
        async with Broker(port=0) as broker:
            reader = await client(broker.port)
            await reader.consume(PRIORITY)
            stopping = asyncio.create_task(broker.stop())
            for _ in range(turns):
                await asyncio.sleep(0)
            stopping.cancel()
            await asyncio.wait([stopping])
            await reader.ended()
            await broker.start()
            sender = await opened(broker)
            sender.put(b"m")
            assert [ack.status for ack in await sender.acks(1)] == [0]
            await close_all()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        for turns in range(1, 8):
            runner.run(cancel_after(turns))


async def test_a_configuration_directory_is_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="domains"):
        Broker(config_dir=tmp_path)
    (tmp_path / "domains").mkdir()
    for builtin, answer in ((None, Status), (True, OpenQueueResponse)):
        async with Broker(config_dir=tmp_path, builtin=builtin) as broker:
            assert isinstance(await (await client(broker.port)).open(PRIORITY, write=True), answer)


async def test_the_posts_of_a_test_are_those_that_the_queue_accepted() -> None:
    config = DomainConfig(name="small", mode=Mode.PRIORITY, queue_limits=Limits(messages=2))
    async with Broker(domains=[config], posts_kept=100) as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue("bmq://small/queue", write=True)
        report = await queue.post_many([b"%d" % number for number in range(6)])
        posted = broker.posted("bmq://small/queue")
        assert [each.payload for each in posted] == [b"0", b"1", b"2"]
        assert len(posted) + len(report.failures) == 6
        assert [each.guid for each in posted] == [each.guid for each in broker.queues[queue.uri].messages]


async def test_a_reader_that_does_not_read_holds_little_memory() -> None:
    async with Broker(high_water=200_000) as small:
        slow, sender = await client(small.port), await opened(small)
        await slow.consume(PRIORITY, messages=100_000, size=10**9)
        for _ in range(40):
            sender.put(*[b"x" * 50_000] * 10)
            await sender.acks(10)
        (connection,) = [c for c in small._connections if not c.output.accepting]
        assert connection.transport is not None
        held = connection.transport.get_write_buffer_size() + connection.output.size
        assert held < 1_000_000
        assert len(await slow.pushes(400)) == 400


@pytest.mark.parametrize("loop_factory", LOOPS.values(), ids=LOOPS)
def test_a_producer_that_pours_does_not_hold_up_consumers(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker reads a part of the waiting data and delivers it, then the next part."""
    between = [0]
    receive, flush = BrokerConnection.data_received, BrokerConnection.flush

    def receiving(connection: BrokerConnection, data: bytes) -> None:
        between[-1] += len(data)
        receive(connection, data)

    def flushing(connection: BrokerConnection) -> None:
        between.append(0)
        flush(connection)

    async def pour() -> None:
        async with Broker() as broker:
            consumer, producer = await client(broker.port), await opened(broker)
            await consumer.consume(PRIORITY, messages=100_000, size=10**9)
            for _ in range(80):
                producer.put(*[b"x" * 1000] * 50)
            assert len(await consumer.pushes(4000)) == 4000
            await close_all()

    monkeypatch.setattr(BrokerConnection, "data_received", receiving)
    monkeypatch.setattr(BrokerConnection, "flush", flushing)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(pour())
    assert sum(between) > 4_000_000
    assert max(between) < 600_000


async def test_an_idle_broker_never_wakes_up() -> None:
    def planned() -> int:
        loop: Any = asyncio.get_running_loop()
        return sum(not handle.cancelled() for handle in loop._scheduled)

    async with Broker() as broker:
        assert planned() == 0
        stranger = await connect(broker.port)
        await eventually(lambda: bool(broker._connections))
        assert planned() == 1, "who does not say who it is, is not waited for long"
        await stranger.negotiate()
        await stranger.consume(PRIORITY)
        assert planned() == 0


async def test_guessing_a_password_takes_time_and_is_logged_once(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(auth={"user": "secret"}, clock=clock) as broker:
        for guess in (b"open sesame", b"let me in"):
            peer = await connect(broker.port)
            asked = asyncio.ensure_future(peer.authenticate("BASIC", b"user:" + guess))
            while not broker._scheduler._actions:  # noqa: ASYNC110
                await asyncio.sleep(0)
            other = await connect(broker.port)
            right = await other.authenticate("BASIC", b"user:secret")
            assert right.status.category is StatusCategory.E_SUCCESS
            assert not asked.done()
            clock.advance(1.0)
            wrong: AuthenticationResponse = await asked
            assert wrong.status.category is StatusCategory.E_REFUSED
            await peer.ended()
    (line,) = [each.getMessage() for each in caplog.records if "wrong credentials" in each.getMessage()]
    assert line.startswith("127.0.0.1:")
    assert "open sesame" not in caplog.text


@pytest.mark.parametrize("make", [lambda: Broker(auth={}), lambda: Authentication(users={})])
def test_empty_users_are_refused(make: Callable[[], object]) -> None:
    """An empty list could mean all clients or none: the caller must choose."""
    with pytest.raises(bmq.errors.UsageError, match="name a user"):
        make()
    assert not Authentication(users={}, anonymous=False).allows_anonymous
    assert Authentication(users={}, anonymous=True).allows_anonymous


async def test_excess_connections_are_closed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with Broker(bounds=Bounds(connections=3)) as broker:
        peers = [await client(broker.port) for _ in range(3)]
        for _ in range(5):
            await (await connect(broker.port)).ended()
        for peer in peers:
            assert isinstance(await peer.open(PRIORITY, write=True), OpenQueueResponse)
        (line,) = [each for each in caplog.messages if "the limit of this broker" in each]
        assert "3 connections" in line
        await peers.pop().close()
        await eventually(lambda: len(broker._connections) == 2)
        await opened(broker)


async def test_a_silent_client_is_disconnected_soon(broker: Broker, clock: ManualClock) -> None:
    silent = await connect(broker.port)
    await eventually(lambda: broker._connections)
    clock.advance(9)
    assert broker._connections
    clock.advance(1.5)
    await silent.ended()
    with pytest.raises(ValueError, match="seconds must be a number of seconds, at least 0"):
        clock.advance(-1)


@pytest.fixture
async def peer(broker: Broker) -> SocketClient:
    return await opened(broker)


async def test_drop_acks_stores_messages_without_answers(broker: Broker, peer: SocketClient) -> None:
    broker.faults.drop_acks(2)
    guids = peer.put(b"0", b"1", b"2")
    assert [ack.guid for ack in await peer.acks(1)] == guids[2:]
    assert len(broker.queues[PRIORITY]) == 3


async def test_late_acks_follow_the_clock_of_the_broker(
    broker: Broker, peer: SocketClient, clock: ManualClock
) -> None:
    broker.faults.delay_acks(5)
    peer.put(b"late")
    await peer.open(PRIORITY, write=True)
    broker.faults.clear()
    (second,) = peer.put(b"prompt")
    assert [ack.guid for ack in await peer.acks(1)] == [second]
    clock.advance(4)
    assert not any(connection.output.pieces() for connection in broker._connections)
    clock.advance(1)
    assert len(await peer.acks(1)) == 1


async def test_nack_answers_with_the_chosen_status(broker: Broker, peer: SocketClient) -> None:
    for status, wire in (
        (AckStatus.LIMIT_MESSAGES, 1),
        (AckStatus.LIMIT_BYTES, 2),
        (AckStatus.UNKNOWN, 5),
        (AckStatus.REFUSED, 5),
        (AckStatus.STORAGE_FAILURE, 6),
        (AckStatus.NOT_READY, 7),
    ):
        broker.faults.nack(status, count=1)
        peer.put(b"0", b"1")
        assert [ack.status for ack in await peer.acks(2)] == [wire, 0]
    assert {message.payload for message in broker.queues[PRIORITY].messages} == {b"1"}
    assert broker.queues[PRIORITY].refused == 6
    with pytest.raises(ValueError, match="SUCCESS"):
        broker.faults.nack(AckStatus.SUCCESS)


async def test_duplicate_pushes_deliver_messages_twice(broker: Broker, peer: SocketClient) -> None:
    await peer.consume(PRIORITY)
    broker.faults.duplicate_pushes(1)
    peer.put(b"0", b"1")
    assert [got.payload for got in await peer.pushes(3)] == [b"0", b"0", b"1"]


async def test_a_lost_confirmation_delivers_the_message_again_to_the_same_consumer(
    broker: Broker, peer: SocketClient
) -> None:
    await peer.consume(PRIORITY)
    broker.faults.lose_confirms(1)
    peer.put(b"0", b"1")
    first, second = await peer.pushes(2)
    peer.confirm(first.push.guid, second.push.guid)
    (again,) = await peer.pushes(1)
    assert again.push == first.push
    assert broker.queues[PRIORITY].unconfirmed == 1
    peer.confirm(again.push.guid)
    await broker.drained(PRIORITY)


async def test_refused_opens_and_negotiations(broker: Broker) -> None:
    broker.faults.refuse_open(StatusCategory.E_NOT_READY, 7, "Later", uri=PRIORITY, count=1)
    peer = await opened(broker, "bmq://bmq.test.mem.broadcast/q")
    later = Status(category=StatusCategory.E_NOT_READY, code=7, message="Later")
    assert await peer.open(PRIORITY, 1, write=True) == later
    assert isinstance(await peer.open(PRIORITY, 1, write=True), OpenQueueResponse)
    broker.faults.refuse_negotiation(count=1)
    peer = await connect(broker.port)
    assert (await peer.negotiate()).result.message == "Connection not authorized"
    await peer.ended()
    await client(broker.port)


async def test_slow_negotiations_follow_the_clock_of_the_broker(broker: Broker, clock: ManualClock) -> None:
    broker.faults.delay_negotiation(5)
    peer = await connect(broker.port)
    waiting = asyncio.create_task(peer.negotiate())
    await eventually(lambda: any(connection._delayed for connection in broker._connections))
    assert not waiting.done()
    clock.advance(5)
    assert (await waiting).result == Status()


async def test_disconnect_after_cuts_each_connection(broker: Broker, peer: SocketClient) -> None:
    broker.faults.disconnect_after(2)
    for payload in (b"0", b"1", b"2"):
        peer.put(payload)
    await peer.ended()
    assert [message.payload for message in broker.queues[PRIORITY].messages] == [b"0", b"1"]
    broker.faults.clear()
    await opened(broker)


async def test_stop_reading_blocks_the_clients(broker: Broker, peer: SocketClient) -> None:
    broker.faults.stop_reading()
    peer.put(b"0")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(peer.acks(1), 0.2)
    broker.faults.resume_reading()
    assert len(await peer.acks(1)) == 1
