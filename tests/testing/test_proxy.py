# SPDX-License-Identifier: Apache-2.0
"""The proxy between plain sockets, and plans of faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from bmq.errors import InvalidURI, StateError
from bmq.testing import FAULTS, Direction, Fault, FaultProxy, Side, plan_faults, random_faults, replay_faults
from tests.sweeps import sweep

UP, DOWN = Direction.TO_BROKER, Direction.TO_CLIENT


@dataclass
class End:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self, n: int) -> bytes:
        return await self.reader.readexactly(n)

    async def rest(self) -> bytes:
        return await self.reader.read()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def close(self) -> None:
        self.writer.close()


class Upstream:
    """A passive server: the test plays the broker."""

    def __init__(self) -> None:
        self.uri = ""
        self.accepted: asyncio.Queue[End] = asyncio.Queue()

    async def connection(self) -> End:
        """Return the other end of the next connection."""
        return await self.accepted.get()


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    up = Upstream()
    peers: list[End] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(End(reader, writer))
        up.accepted.put_nowait(peers[-1])

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    up.uri = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield up
    finally:
        server.close()
        for peer in peers:
            peer.close()


@asynccontextmanager
async def client(proxy: FaultProxy) -> AsyncIterator[End]:
    end = End(*await asyncio.open_connection("127.0.0.1", proxy.port))
    try:
        yield end
    finally:
        end.close()


def event(body: bytes) -> bytes:
    """Return an event as the proxy sees it: a length of four bytes, and that many bytes in total."""
    return (8 + len(body)).to_bytes(4, "big") + b"\x41\x02\x00\x00" + body


@pytest.fixture
async def broker() -> AsyncIterator[Upstream]:
    async with upstream() as up:
        yield up


@pytest.fixture
async def proxy(broker: Upstream) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(broker.uri, seed=1) as proxy:
        yield proxy


@pytest.fixture
async def ends(broker: Upstream, proxy: FaultProxy) -> AsyncIterator[tuple[End, End]]:
    """The client's end and the broker's end of one connection through the proxy."""
    async with client(proxy) as near:
        yield near, await broker.connection()


async def nothing_comes(peer: End, seconds: float = 0.05) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(peer.reader.read(1), seconds)


async def ended(peer: End) -> bytes:
    """Return the data before the end of the connection, of any kind."""
    try:
        return await peer.rest()
    except ConnectionResetError:
        return b""


async def works(proxy: FaultProxy, broker: Upstream) -> None:
    """Check that a new connection passes bytes."""
    async with client(proxy) as near:
        near.send(b"x")
        assert await (await broker.connection()).read(1) == b"x"


# ---- without a fault


async def test_bytes_pass_both_ways_and_are_counted(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    near.send(event(b"ping"))
    assert await far.read(12) == event(b"ping")
    far.send(event(b"pong") + event(b""))
    assert await near.read(20) == event(b"pong") + event(b"")
    (connection,) = proxy.connections
    assert (connection.to_broker.forwarded, connection.to_client.forwarded) == (12, 20)
    assert (connection.to_broker.events, connection.to_client.events) == (1, 2)
    assert (proxy.bytes_to_broker, proxy.bytes_to_client, proxy.accepted) == (12, 20, 1)


async def test_a_connection_is_over_when_both_directions_are(
    proxy: FaultProxy, ends: tuple[End, End]
) -> None:
    near, far = ends
    (connection,) = proxy.connections
    near.send(b"last")
    near.writer.write_eof()
    assert await far.rest() == b"last"
    far.send(b"answer")
    far.close()
    assert await near.rest() == b"answer"
    await connection.wait()
    assert proxy.connections == []
    assert proxy.bytes_to_broker == 4


async def test_a_proxy_has_one_life(broker: Upstream) -> None:
    proxy = FaultProxy(broker.uri)
    with pytest.raises(StateError, match="no port before"):
        _ = proxy.uri
    await proxy.start()
    with pytest.raises(StateError, match="once"):
        await proxy.start()
    async with client(proxy) as near:
        far = await broker.connection()
        await proxy.close()
        await proxy.close()
        assert await ended(near) == b""
        assert await ended(far) == b""
        assert proxy.connections == []


async def test_new_connections_go_to_the_chosen_target(proxy: FaultProxy) -> None:
    async with upstream() as other:
        proxy.retarget(other.uri)
        await works(proxy, other)


async def test_the_proxy_waits_for_connections(proxy: FaultProxy) -> None:
    waiting = asyncio.ensure_future(proxy.wait_accepted(2))
    async with client(proxy), client(proxy):
        await asyncio.wait_for(waiting, 20)
    assert proxy.accepted == 2


# ---- cut


async def test_cut_ends_the_connection_for_both_sides(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    proxy.cut()
    assert await ended(near) == b""
    assert await ended(far) == b""
    assert proxy.connections == []


async def test_cut_may_send_a_reset(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    proxy.cut(reset=True)
    with pytest.raises(ConnectionResetError):
        await ends[0].rest()


async def test_cut_may_be_noticed_by_the_client_only(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    (connection,) = proxy.connections
    proxy.cut(Side.CLIENT)
    assert await ended(near) == b""
    far.send(bytes(1_000_000))
    await far.writer.drain()
    await nothing_comes(far)
    proxy.heal()
    far.send(b"more")
    await nothing_comes(far)
    far.close()
    await connection.wait()


async def test_cut_may_be_noticed_by_the_broker_only(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    proxy.cut(Side.BROKER)
    assert await ended(far) == b""
    near.send(b"into the void")
    await nothing_comes(near)
    proxy.cut()
    assert await ended(near) == b""


async def test_cut_may_end_one_of_several_connections(
    broker: Upstream, proxy: FaultProxy, ends: tuple[End, End]
) -> None:
    async with client(proxy) as second:
        far = await broker.connection()
        proxy.connections[0].cut()
        assert await ended(ends[0]) == b""
        second.send(b"x")
        assert await far.read(1) == b"x"


async def test_cut_after_counts_bytes_from_the_call_on(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    near.send(b"first")
    await far.read(5)
    proxy.cut_after(UP, nbytes=10)
    near.send(bytes(range(100)))
    assert await far.rest() == bytes(range(10))


@pytest.mark.parametrize("split", [None, 1, 7])
async def test_cut_after_events_cuts_at_the_end_of_the_last_event(
    proxy: FaultProxy, ends: tuple[End, End], split: int | None
) -> None:
    near, far = ends
    proxy.split(split)
    proxy.cut_after(DOWN, events=2)
    far.send(event(b"one") + event(b"second") + event(b"third"))
    assert await near.rest() == event(b"one") + event(b"second")


async def test_proxy_armed_without_a_connection_acts_on_the_next(broker: Upstream, proxy: FaultProxy) -> None:
    proxy.cut_after(UP, nbytes=3)
    for expected in (b"abc", b"abcdef"):
        async with client(proxy) as near:
            far = await broker.connection()
            near.send(b"abcdef")
            near.writer.write_eof()
            assert await far.rest() == expected


async def test_a_one_sided_cut_after_bytes_passes_no_further_byte(
    proxy: FaultProxy, ends: tuple[End, End]
) -> None:
    near, far = ends
    proxy.cut_after(UP, nbytes=3, side=Side.CLIENT)
    near.send(b"abcdef")
    assert await ended(near) == b""
    assert await far.read(3) == b"abc"
    await nothing_comes(far)


# ---- refuse, stall, swallow, delay, split, throttle


async def test_new_connections_are_refused_and_taken_again_on_the_same_port(
    broker: Upstream, proxy: FaultProxy, ends: tuple[End, End]
) -> None:
    near, far = ends
    port = proxy.port
    proxy.refuse()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    near.send(b"x")
    assert await far.read(1) == b"x"
    await proxy.accept()
    await proxy.accept()
    assert proxy.port == port
    await works(proxy, broker)


@pytest.mark.parametrize("direction", [None, UP])
async def test_a_stall_loses_no_data_and_delays_the_end(
    proxy: FaultProxy, ends: tuple[End, End], direction: Direction | None
) -> None:
    near, far = ends
    proxy.stall(direction)
    near.send(b"held")
    near.writer.write_eof()
    await nothing_comes(far)
    proxy.resume(direction)
    assert await far.rest() == b"held"


async def test_a_stall_applies_to_new_connections_until_healed(broker: Upstream, proxy: FaultProxy) -> None:
    proxy.stall()
    async with client(proxy) as near:
        far = await broker.connection()
        near.send(b"x")
        await nothing_comes(far)
        proxy.heal()
        assert await far.read(1) == b"x"


async def test_a_stall_may_begin_inside_an_event(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    proxy.when(UP, lambda connection: connection.stall(UP), nbytes=6)
    near.send(event(b"payload"))
    assert await far.read(6) == event(b"payload")[:6]
    await nothing_comes(far)
    proxy.heal()
    assert await far.read(9) == event(b"payload")[6:]


async def test_memory_is_bounded_while_stalled(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, _ = ends
    proxy.stall()
    near.send(bytes(32 * 1024 * 1024))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(near.writer.drain(), 0.2)
    assert near.writer.transport.get_write_buffer_size() > 16 * 1024 * 1024


async def test_swallowed_bytes_are_counted_and_lost(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    proxy.swallow(UP)
    near.send(b"lost")
    await nothing_comes(far)
    assert proxy.bytes_to_broker == 4
    proxy.heal()
    near.send(b"kept")
    assert await far.read(4) == b"kept"


async def test_delayed_bytes_arrive_in_order(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    delay, data = 0.1, bytes(range(200))
    proxy.delay(delay, jitter=delay / 2)
    loop = asyncio.get_running_loop()
    sent = loop.time()
    for byte in data:
        near.send(bytes([byte]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the proxy has read it by itself
    assert await far.read(len(data)) == data
    # All wait at the same time: a line, not a queue.
    assert delay <= loop.time() - sent < len(data) * delay


async def test_healing_ends_a_delay(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    proxy.delay(3600)
    near.send(b"a")
    await nothing_comes(far)
    proxy.heal()
    assert await far.read(1) == b"a"


async def test_split_pieces_are_no_larger_than_the_limit(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    proxy.split((2, 5))
    data = Random(3).randbytes(2000)
    near.send(data)
    got = [await far.reader.read(65536)]
    while sum(map(len, got)) < len(data):
        got.append(await far.reader.read(65536))
    assert b"".join(got) == data
    assert len(got) > 1


async def test_a_rate_is_kept(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    proxy.throttle(100_000, UP)
    loop = asyncio.get_running_loop()
    started = loop.time()
    near.send(bytes(20_000))
    await far.read(20_000)
    assert loop.time() - started > 0.15


async def test_a_lower_rate_is_not_applied_to_bytes_already_sent(
    proxy: FaultProxy, ends: tuple[End, End]
) -> None:
    near, far = ends
    proxy.throttle(10_000_000, UP)
    near.send(bytes(1000))
    await far.read(1000)
    proxy.throttle(1, UP)
    near.send(b"x")
    async with asyncio.timeout(60):  # a thousand bytes would wait for a thousand seconds
        assert await far.read(1) == b"x"


async def test_removing_the_throttle_ends_a_wait(proxy: FaultProxy, ends: tuple[End, End]) -> None:
    near, far = ends
    proxy.throttle(1)
    near.send(b"abc")
    assert await far.read(1) == b"a"
    proxy.throttle(None)
    assert await far.read(2) == b"bc"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, b"\x9ebcdef"),
        ({"offset": 2}, b"ab\x9cdef"),
        ({"offset": 1, "xor": 0x01}, b"accdef"),
        ({"xor": b"\x00\x03\x01"}, b"aabdef"),
        ({"offset": 3, "replace": b"XY"}, b"abcXYf"),
    ],
)
@pytest.mark.parametrize("split", [None, 1])
async def test_bytes_are_changed_once(
    proxy: FaultProxy, ends: tuple[End, End], how: dict[str, Any], expected: bytes, split: int | None
) -> None:
    near, far = ends
    near.send(b"whole")
    assert await far.read(5) == b"whole"
    proxy.split(split)
    proxy.corrupt(UP, **how)
    near.send(b"abcdef" * 2)
    assert await far.read(12) == expected + b"abcdef"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda proxy: FaultProxy("localhost"), "localhost"),
        (lambda proxy: proxy.cut_after(UP), "number of bytes"),
        (lambda proxy: proxy.cut_after(UP, nbytes=1, events=1), "number of bytes"),
        (lambda proxy: proxy.cut_after(UP, nbytes=0), "number of bytes"),
        (lambda proxy: proxy.split(0), "from 1 to"),
        (lambda proxy: proxy.split((3, 2)), "3 is above 2"),
        (lambda proxy: proxy.split((0, 2)), "a bound of size .* from 1 to"),
        (lambda proxy: proxy.throttle(0), r"stall\(\)"),
        (lambda proxy: proxy.corrupt(UP, xor=1, replace=b"x"), "either"),
    ],
)
async def test_wrong_arguments_are_refused(
    proxy: FaultProxy, ends: tuple[End, End], call: Callable[[FaultProxy], object], says: str
) -> None:
    with pytest.raises((ValueError, InvalidURI), match=says):
        call(proxy)


# ---- plans

QUICK: dict[str, Any] = {"pause": (0.0, 0.001), "duration": (0.001, 0.005)}


def test_a_seed_plans_every_kind_of_fault_again() -> None:
    plan = plan_faults(1, 500)
    assert plan == plan_faults(1, 500) != plan_faults(2, 500)
    assert {fault.kind for fault in plan} == set(FAULTS)
    assert {fault.kind for fault in plan_faults(1, 5, kinds=["corrupt"])} == {"corrupt"}
    assert eval(repr(plan), {"Fault": Fault}) == plan, "a printed plan is code"


@sweep("kind", [*FAULTS, "corrupt"])
async def test_every_kind_is_injected_and_healed(kind: Any) -> None:
    async with upstream() as up, FaultProxy(up.uri) as proxy:
        async with client(proxy):
            await up.connection()
            plan = plan_faults(1, 3, kinds=[kind], **QUICK)
            assert [fault async for fault in replay_faults(proxy, plan)] == plan
        # What was armed and not triggered is for connections there were.
        async with client(proxy), client(proxy) as near:
            await up.connection()
            near.send(b"x" * 3000)
            far = await up.connection()
            if kind not in {"cut inside", "corrupt"}:
                assert await far.read(3000) == b"x" * 3000


async def test_yielded_faults_equal_the_plan(proxy: FaultProxy) -> None:
    done = [fault async for fault in random_faults(proxy, 9, 20, **QUICK)]
    assert done == plan_faults(9, 20, **QUICK)


async def test_leaving_early_and_a_cancellation_heal_the_proxy(broker: Upstream, proxy: FaultProxy) -> None:
    plan = [Fault(0, "split", 0.001, amount=1), Fault(9, "cut")]
    async with aclosing(replay_faults(proxy, plan)) as faults:
        async for _ in faults:
            break
    await works(proxy, broker)
    task = asyncio.ensure_future(Fault(0, "refuse", 3600).apply(proxy))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await works(proxy, broker)
