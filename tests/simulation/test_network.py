# SPDX-License-Identifier: Apache-2.0
"""Simulated transports keep asyncio's contract, and their network behaves as TCP does."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import bmq
from bmq.testing import Simulation


class Recorder(asyncio.Protocol):
    """Records the calls of its transport."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Exception | None]] = []
        self.data = bytearray()
        self.transport: Any = None
        self.keep_open = False

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    @property
    def end(self) -> Exception | None:
        """What ended the connection; it must have ended."""
        name, error = self.events[-1]
        assert name == "lost", self.events
        return error

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.events.append(("made", None))

    def data_received(self, data: bytes) -> None:
        assert data
        self.data += data

    def eof_received(self) -> bool:
        self.events.append(("eof", None))
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(("lost", exc))

    def pause_writing(self) -> None:
        self.events.append(("pause", None))

    def resume_writing(self) -> None:
        self.events.append(("resume", None))


class Pair:
    """A connection between two processes."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.accepted: list[Recorder] = []
        self.client = Recorder()
        self.near: Any = None
        self.server = sim.process("server", self._serve)

    async def _serve(self) -> None:
        async with await asyncio.get_running_loop().create_server(self._accept, "server", 1000) as server:
            await server.serve_forever()

    def _accept(self) -> Recorder:
        self.accepted.append(Recorder())
        return self.accepted[-1]

    async def connect(self) -> None:
        await asyncio.sleep(0.1)
        self.near, _ = await asyncio.get_running_loop().create_connection(lambda: self.client, "server", 1000)
        await self.sim.until(lambda: self.accepted and self.accepted[-1].transport)

    @property
    def far(self) -> Any:
        return self.accepted[-1].transport

    @property
    def peer(self) -> Recorder:
        return self.accepted[-1]

    @property
    def connection(self) -> Any:
        return self.sim.network.connections[-1]


def over(seed: int = 1, **network: Any) -> Callable[[Callable[[Pair], Awaitable[None]]], Callable[[], None]]:
    """Make a test of a check over a connection."""

    def decorate(check: Callable[[Pair], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            sim = Simulation(seed)
            sim.network.set(**network)

            async def main() -> None:
                pair = Pair(sim)
                await pair.connect()
                await check(pair)

            sim.run(main)

        return run

    return decorate


async def some_time() -> None:
    await asyncio.sleep(1)


def test_bytes_arrive_in_order_in_segments_of_any_size() -> None:
    data = bytes(range(256)) * 40

    async def check(pair: Pair) -> None:
        for start in range(0, len(data), 1000):
            pair.near.write(data[start : start + 1000])
        pair.far.writelines([b"an", bytearray(b"sw"), memoryview(b"er")])
        await some_time()
        assert pair.peer.data == data
        assert pair.client.data == b"answer"

    for seed in range(5):
        over(seed, segment=(1, 97), latency=(0.0, 0.1))(check)()
    over()(check)()


@over()
async def test_close_sends_buffered_data_and_ends_the_stream(pair: Pair) -> None:
    pair.near.write(bytes(3_000_000))
    assert pair.near.get_write_buffer_size() > 2_000_000
    pair.near.close()
    assert pair.near.is_closing()
    assert not pair.near.is_reading()
    pair.near.close()
    await some_time()
    assert len(pair.peer.data) == 3_000_000
    assert pair.peer.events[-2:] == [("eof", None), ("lost", None)]
    assert pair.client.events == [("made", None), ("pause", None), ("resume", None), ("lost", None)]


@over(window=5000)
async def test_a_slow_reader_pauses_and_resumes_the_writer(pair: Pair) -> None:
    pair.near.set_write_buffer_limits(high=1000, low=100)
    assert pair.near.get_write_buffer_limits() == (100, 1000)
    pair.far.pause_reading()
    pair.far.pause_reading()
    assert not pair.far.is_reading()
    pair.near.write(bytes(5000))
    assert pair.client.names == ["made"]
    pair.near.write(bytes(1100))
    assert pair.client.names == ["made", "pause"]
    assert pair.near.get_write_buffer_size() == 1100
    await some_time()
    assert pair.peer.data == b""
    pair.far.resume_reading()
    assert pair.far.is_reading()
    await some_time()
    assert len(pair.peer.data) == 6100
    assert pair.client.names == ["made", "pause", "resume"]


@over()
async def test_the_end_of_a_stream_leaves_the_other_direction_open(pair: Pair) -> None:
    pair.peer.keep_open = True
    pair.near.write(b"question")
    pair.near.write_eof()
    with pytest.raises(RuntimeError, match="after write_eof"):
        pair.near.write(b"more")
    await some_time()
    assert (pair.peer.data, pair.peer.names) == (b"question", ["made", "eof"])
    pair.far.write(b"answer")
    pair.far.close()
    await some_time()
    assert (pair.client.data, pair.client.end) == (b"answer", None)


# connecting


@pytest.mark.parametrize(
    ("host", "port", "options", "error", "says"),
    [
        ("server", 1001, {}, ConnectionRefusedError, "refused"),
        ("localhost", 1000, {}, ConnectionRefusedError, "refused"),
        ("nowhere", 1000, {}, OSError, "no host of the simulation has the name 'nowhere'"),
        ("server", 1000, {"ssl": True}, bmq.UsageError, "no TLS"),
        ("server", 1000, {"sock": object()}, bmq.UsageError, "sock="),
    ],
)
def test_connections_that_cannot_be_made_fail_as_on_a_real_host(
    host: str, port: int, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    @over()
    async def attempt(pair: Pair) -> None:
        await asyncio.get_running_loop().create_connection(Recorder, host, port, **options)

    with pytest.raises(error, match=says):
        attempt()


@over()
async def test_listening_takes_an_own_address_and_a_free_port(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    first = await loop.create_server(Recorder, "", 0)
    port = first.sockets[0].getsockname()[1]
    with pytest.raises(OSError, match="in use") as caught:
        await loop.create_server(Recorder, "localhost", port)
    assert caught.value.errno == errno.EADDRINUSE
    with pytest.raises(OSError, match="not an address of the host main"):
        await loop.create_server(Recorder, "server", 80)
    first.close()
    await first.wait_closed()
    assert not first.is_serving()
    await loop.create_server(Recorder, "127.0.0.1", port)


def test_cancelled_connection_attempt_leaves_no_state() -> None:
    sim = Simulation(1)
    sim.network.set(latency=(0.1, 0.1))

    async def main() -> None:
        pair = Pair(sim)
        await asyncio.sleep(0.1)
        for after in (0.05, 0.15, 0.2 - 1e-6):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(after):
                    await asyncio.get_running_loop().create_connection(Recorder, "server", 1000)
            await some_time()
            assert not sim.network.connections
        assert [each.names[-1] for each in pair.accepted] == ["lost", "lost"]

    sim.run(main)


# faults


@over()
async def test_a_cut_ends_both_sides(pair: Pair) -> None:
    pair.near.write(b"lost on the way")
    pair.connection.cut()
    await some_time()
    assert pair.client.events[-2:] == pair.peer.events[-2:] == [("eof", None), ("lost", None)]
    assert not pair.sim.network.connections


@over()
async def test_a_reset_is_an_error_of_both_sides(pair: Pair) -> None:
    pair.near.write(b"lost on the way")
    pair.connection.reset()
    await some_time()
    assert isinstance(pair.client.end, ConnectionResetError)
    assert isinstance(pair.peer.end, ConnectionResetError)
    assert not pair.peer.data


@over()
async def test_a_half_closed_link_carries_the_other_direction_until_its_end_closes(pair: Pair) -> None:
    pair.client.keep_open = True
    pair.connection.half_close(towards_client=True)
    pair.near.write(b"still there")
    await some_time()
    assert pair.client.names == ["made", "eof"]
    assert pair.peer.data == b"still there"
    pair.far.write(b"nothing takes it")
    await some_time()
    assert isinstance(pair.peer.end, ConnectionResetError)


@over()
async def test_a_stalled_direction_delivers_later(pair: Pair) -> None:
    pair.connection.stall(5.0, towards_client=False)
    pair.near.write(b"late")
    pair.far.write(b"in time")
    await some_time()
    assert (bytes(pair.peer.data), bytes(pair.client.data)) == (b"", b"in time")
    await asyncio.sleep(5)
    assert pair.peer.data == b"late"


@over()
async def test_partition_holds_bytes_and_attempts_until_healed(pair: Pair) -> None:
    network = pair.sim.network
    network.partition("main", "server")
    pair.near.write(b"held")
    attempt = asyncio.create_task(asyncio.open_connection("server", 1000))
    await asyncio.sleep(60)
    assert not pair.peer.data
    assert not attempt.done()
    network.heal()
    (await attempt)[1].close()
    await some_time()
    assert pair.accepted[0].data == b"held"
    network.partition("main", "server", both=False)
    pair.accepted[0].transport.write(b"one way")
    await some_time()
    assert pair.client.data == b"one way"
    began = pair.sim.now
    with pytest.raises(TimeoutError):
        await asyncio.open_connection("server", 1000)
    assert pair.sim.now - began == pytest.approx(127, abs=1)


@over()
async def test_a_refused_port_refuses_new_connections_only(pair: Pair) -> None:
    pair.sim.network.refuse("server", 1000)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("server", 1000)
    pair.near.write(b"open")
    await some_time()
    assert pair.peer.data == b"open"
    pair.sim.network.refuse("server", 1000, refuse=False)
    (await asyncio.open_connection("server", 1000))[1].close()


@over()
async def test_the_kernel_of_a_killed_process_closes_its_connections(pair: Pair) -> None:
    pair.far.write(b"last words")
    pair.server.kill()
    await some_time()
    assert (pair.client.data, pair.client.end) == (b"last words", None)
    assert pair.peer.names == ["made"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("server", 1000)


@over()
async def test_machine_without_power_is_silent_until_its_restart(pair: Pair) -> None:
    pair.server.kill(machine=True)
    pair.near.write(b"anyone?")
    attempt = asyncio.create_task(asyncio.open_connection("server", 1000))
    await asyncio.sleep(100)
    assert pair.client.names == ["made"]
    assert not attempt.done()
    pair.server.start()
    await some_time()
    assert isinstance(pair.client.end, ConnectionResetError)
    with pytest.raises(ConnectionRefusedError):
        await attempt
    (await asyncio.open_connection("server", 1000))[1].close()


@over()
async def test_the_kernel_of_a_paused_process_accepts_connections(pair: Pair) -> None:
    pair.server.pause()
    _, writer = await asyncio.open_connection("server", 1000)
    pair.near.write(bytes(1_000_000))
    await asyncio.sleep(10)
    assert len(pair.accepted) == 1
    assert 700_000 < pair.near.get_write_buffer_size() < 1_000_000
    pair.server.resume()
    await some_time()
    assert len(pair.accepted) == 2
    assert len(pair.accepted[0].data) == 1_000_000
    writer.close()


@over()
async def test_heal_ends_every_fault(pair: Pair) -> None:
    network = pair.sim.network
    network.set(latency=(5.0, 5.0), rate=1.0, segment=(1, 1), window=1)
    network.refuse("server", 1000)
    network.partition("main", "server")
    pair.connection.stall(float("inf"), towards_client=True)
    pair.sim.heal()
    pair.far.write(bytes(1000))
    (await asyncio.open_connection("server", 1000))[1].close()
    await some_time()
    assert len(pair.client.data) == 1000
