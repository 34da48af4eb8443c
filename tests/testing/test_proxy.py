# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random

import pytest

from bmq.errors import InvalidURI, StateError
from bmq.testing import Direction, FaultProxy, Side
from tests.testing.upstream import End, Upstream, client, event, upstream

UP, DOWN = Direction.TO_BROKER, Direction.TO_CLIENT


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


async def pieces(peer: End, total: int) -> list[bytes]:
    """Return the result of each read, until ``total`` bytes have arrived."""
    got: list[bytes] = []
    while sum(map(len, got)) < total:
        got.append(await peer.reader.read(65536))
    return got


async def ended(peer: End) -> bytes:
    """Return the data before the end of the connection, of any kind."""
    try:
        return await peer.rest()
    except ConnectionResetError:
        return b""


class TestPlain:
    async def test_bytes_pass_both_ways_and_are_counted(
        self, proxy: FaultProxy, ends: tuple[End, End]
    ) -> None:
        near, far = ends
        near.send(event(b"ping"))
        assert await far.read(12) == event(b"ping")
        far.send(event(b"pong") + event(b""))
        assert await near.read(20) == event(b"pong") + event(b"")
        (connection,) = proxy.connections
        assert (connection.to_broker.forwarded, connection.to_client.forwarded) == (12, 20)
        assert (connection.to_broker.events, connection.to_client.events) == (1, 2)
        assert (proxy.bytes_to_broker, proxy.bytes_to_client, proxy.accepted) == (12, 20, 1)

    async def test_the_end_of_one_direction_leaves_the_other_open(self, ends: tuple[End, End]) -> None:
        near, far = ends
        near.send(b"last")
        near.writer.write_eof()
        assert await far.rest() == b"last"
        far.send(b"answer")
        far.close()
        assert await near.rest() == b"answer"

    async def test_a_connection_is_over_when_both_sides_are(
        self, proxy: FaultProxy, ends: tuple[End, End]
    ) -> None:
        near, far = ends
        (connection,) = proxy.connections
        near.send(b"some")
        near.close()
        await far.rest()
        far.close()
        await connection.wait()
        assert proxy.connections == []
        assert proxy.bytes_to_broker == 4


class TestLife:
    async def test_close_ends_connections_and_is_idempotent(self, broker: Upstream) -> None:
        proxy = FaultProxy(broker.uri)
        await proxy.start()
        async with client(proxy) as near:
            far = await broker.connection()
            await proxy.close()
            await proxy.close()
            assert await ended(near) == b""
            assert await ended(far) == b""
            assert proxy.connections == []

    async def test_proxy_starts_once_and_has_no_port_before(self, broker: Upstream) -> None:
        proxy = FaultProxy(broker.uri)
        with pytest.raises(StateError, match="no port before"):
            _ = proxy.uri
        async with proxy:
            with pytest.raises(StateError, match="once"):
                await proxy.start()

    async def test_new_connections_go_to_the_chosen_target(self, broker: Upstream, proxy: FaultProxy) -> None:
        async with upstream() as other:
            proxy.retarget(other.uri)
            async with client(proxy) as near:
                near.send(b"x")
                assert await (await other.connection()).read(1) == b"x"


class TestCut:
    async def test_cut_ends_the_connection_for_both_sides(
        self, proxy: FaultProxy, ends: tuple[End, End]
    ) -> None:
        near, far = ends
        proxy.cut()
        assert await ended(near) == b""
        assert await ended(far) == b""
        assert proxy.connections == []

    async def test_cut_may_send_a_reset(self, proxy: FaultProxy, ends: tuple[End, End]) -> None:
        near, _ = ends
        proxy.cut(reset=True)
        with pytest.raises(ConnectionResetError):
            await near.rest()

    async def test_cut_may_be_noticed_by_the_client_only(
        self, proxy: FaultProxy, ends: tuple[End, End]
    ) -> None:
        near, far = ends
        proxy.cut(Side.CLIENT)
        assert await ended(near) == b""
        far.send(bytes(1_000_000))
        await far.writer.drain()
        await nothing_comes(far)
        (connection,) = proxy.connections
        assert not connection._whole
        proxy.heal()
        far.send(b"more")
        await nothing_comes(far)
        far.close()
        await connection.wait()

    async def test_cut_may_be_noticed_by_the_broker_only(
        self, proxy: FaultProxy, ends: tuple[End, End]
    ) -> None:
        near, far = ends
        proxy.cut(Side.BROKER)
        assert await ended(far) == b""
        near.send(b"into the void")
        await nothing_comes(near)
        proxy.cut()
        assert await ended(near) == b""

    async def test_cut_may_end_one_of_several_connections(
        self, broker: Upstream, proxy: FaultProxy, ends: tuple[End, End]
    ) -> None:
        near, _ = ends
        async with client(proxy) as second:
            far = await broker.connection()
            proxy.connections[0].cut()
            assert await ended(near) == b""
            second.send(b"x")
            assert await far.read(1) == b"x"

    async def test_cut_after_counts_bytes(self, proxy: FaultProxy, ends: tuple[End, End]) -> None:
        near, far = ends
        near.send(b"first")
        await far.read(5)
        proxy.cut_after(UP, nbytes=10)
        near.send(bytes(range(100)))
        assert await far.rest() == bytes(range(10))

    @pytest.mark.parametrize("split", [None, 1, 7])
    async def test_cut_after_events_cuts_at_the_end_of_the_last_event(
        self, proxy: FaultProxy, ends: tuple[End, End], split: int | None
    ) -> None:
        near, far = ends
        proxy.split(split)
        proxy.cut_after(DOWN, events=2)
        far.send(event(b"one") + event(b"second") + event(b"third"))
        assert await near.rest() == event(b"one") + event(b"second")

    async def test_proxy_armed_without_a_connection_acts_on_the_next(
        self, broker: Upstream, proxy: FaultProxy
    ) -> None:
        proxy.cut_after(UP, nbytes=3)
        for expected in (b"abc", b"abcdef"):
            async with client(proxy) as near:
                far = await broker.connection()
                near.send(b"abcdef")
                near.writer.write_eof()
                assert await far.rest() == expected

    async def test_a_one_sided_cut_after_bytes_passes_no_further_byte(
        self, proxy: FaultProxy, ends: tuple[End, End]
    ) -> None:
        near, far = ends
        proxy.cut_after(UP, nbytes=3, side=Side.CLIENT)
        near.send(b"abcdef")
        assert await ended(near) == b""
        assert await far.read(3) == b"abc"
        await nothing_comes(far)


class TestRefuse:
    async def test_new_connections_are_refused_and_taken_again_on_the_same_port(
        self, broker: Upstream, proxy: FaultProxy, ends: tuple[End, End]
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
        async with client(proxy) as second:
            assert proxy.port == port
            second.send(b"y")
            assert await (await broker.connection()).read(1) == b"y"


class TestStall:
    @pytest.mark.parametrize("direction", [None, UP])
    async def test_stalled_proxy_loses_no_data(
        self, proxy: FaultProxy, ends: tuple[End, End], direction: Direction | None
    ) -> None:
        near, far = ends
        proxy.stall(direction)
        near.send(b"held")
        await nothing_comes(far)
        proxy.resume(direction)
        assert await far.read(4) == b"held"

    async def test_stall_applies_to_new_connections(self, broker: Upstream, proxy: FaultProxy) -> None:
        proxy.stall()
        async with client(proxy) as near:
            far = await broker.connection()
            near.send(b"x")
            await nothing_comes(far)
            proxy.heal()
            assert await far.read(1) == b"x"

    async def test_a_stall_delays_the_end_of_the_stream(
        self, proxy: FaultProxy, ends: tuple[End, End]
    ) -> None:
        near, far = ends
        proxy.stall()
        near.writer.write_eof()
        await nothing_comes(far)
        proxy.resume()
        assert await far.rest() == b""

    async def test_a_stall_may_begin_inside_an_event(self, proxy: FaultProxy, ends: tuple[End, End]) -> None:
        near, far = ends
        proxy.when(UP, lambda connection: connection.stall(UP), nbytes=6)
        near.send(event(b"payload"))
        assert await far.read(6) == event(b"payload")[:6]
        await nothing_comes(far)
        proxy.heal()
        assert await far.read(9) == event(b"payload")[6:]

    async def test_memory_is_bounded_while_stalled(self, proxy: FaultProxy, ends: tuple[End, End]) -> None:
        near, _ = ends
        proxy.stall()
        near.send(bytes(32 * 1024 * 1024))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(near.writer.drain(), 0.2)
        assert near.writer.transport.get_write_buffer_size() > 16 * 1024 * 1024


class TestSwallow:
    async def test_bytes_are_read_and_lost(self, proxy: FaultProxy, ends: tuple[End, End]) -> None:
        near, far = ends
        proxy.swallow(UP)
        near.send(b"lost")
        await nothing_comes(far)
        assert proxy.bytes_to_broker == 4
        proxy.heal()
        near.send(b"kept")
        assert await far.read(4) == b"kept"


class TestDelay:
    async def test_delayed_bytes_arrive_in_order(self, proxy: FaultProxy, ends: tuple[End, End]) -> None:
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

    async def test_healing_ends_a_wait(self, proxy: FaultProxy, ends: tuple[End, End]) -> None:
        near, far = ends
        proxy.delay(3600)
        near.send(b"a")
        await nothing_comes(far)
        proxy.heal()
        assert await far.read(1) == b"a"


class TestSplit:
    async def test_pieces_are_no_larger_than_the_limit(
        self, proxy: FaultProxy, ends: tuple[End, End]
    ) -> None:
        near, far = ends
        proxy.split((2, 5))
        data = Random(3).randbytes(2000)
        near.send(data)
        got = await pieces(far, len(data))
        assert b"".join(got) == data
        assert len(got) > 1


class TestThrottle:
    async def test_a_rate_is_kept(self, proxy: FaultProxy, ends: tuple[End, End]) -> None:
        near, far = ends
        proxy.throttle(100_000, UP)
        loop = asyncio.get_running_loop()
        started = loop.time()
        near.send(bytes(20_000))
        await far.read(20_000)
        assert loop.time() - started > 0.15

    async def test_removing_the_throttle_ends_a_wait(self, proxy: FaultProxy, ends: tuple[End, End]) -> None:
        near, far = ends
        proxy.throttle(1)
        near.send(b"abc")
        assert await far.read(1) == b"a"
        proxy.throttle(None)
        assert await far.read(2) == b"bc"


class TestCorrupt:
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
        self,
        proxy: FaultProxy,
        ends: tuple[End, End],
        how: dict[str, int | bytes],
        expected: bytes,
        split: int | None,
    ) -> None:
        near, far = ends
        near.send(b"whole")
        assert await far.read(5) == b"whole"
        proxy.split(split)
        proxy.corrupt(UP, **how)  # type: ignore[arg-type]
        near.send(b"abcdef")
        assert await far.read(6) == expected
        near.send(b"abcdef")
        assert await far.read(6) == b"abcdef"


async def test_the_proxy_waits_for_connections(proxy: FaultProxy) -> None:
    waiting = asyncio.ensure_future(proxy.wait_accepted(2))
    async with client(proxy), client(proxy):
        await asyncio.wait_for(waiting, 20)
    assert proxy.accepted == 2


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
