# SPDX-License-Identifier: Apache-2.0
"""Several addresses: a silent address costs a head start, and never the whole timeout."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

import bmq
from bmq.client import dialer as _dialer
from bmq.client.address import Address
from bmq.client.dialer import Dialer
from bmq.events import ConnectionLost, Reconnecting, SessionEvent, StateRestored
from tests.fakes.broker import Peer
from tests.sweeps import sweep
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
AT_ONCE: dict[str, Any] = {"reconnect_delays": lambda: itertools.repeat(0.0)}


@pytest.fixture(autouse=True)
def _short_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dialer, "_HEAD_START", 0.05)


@contextlib.asynccontextmanager
async def peers(count: int, *hung: int) -> AsyncIterator[list[Peer]]:
    """Brokers, some of which accept connections and stay silent."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(Peer()) for _ in range(count)]
        for index in hung:
            found[index].hold |= {"clientIdentity", "authenticationRequest", "HEARTBEAT_REQ"}
        yield found


def addresses(some: list[Peer]) -> str:
    return ",".join(peer.uri for peer in some)


class Listener:
    """A port with a scripted reaction to each connection; silent by default."""

    def __init__(self, then: Callable[[asyncio.Transport], None] = lambda _: None) -> None:
        self._then = then
        self.transports: list[asyncio.Transport] = []
        self.lost = 0

    async def __aenter__(self) -> Listener:
        outer = self

        class Silent(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                known = cast("asyncio.Transport", transport)
                outer.transports.append(known)
                outer._then(known)

            def connection_lost(self, exc: Exception | None) -> None:
                outer.lost += 1

        self._server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for transport in self.transports:
            transport.abort()
        await eventually(lambda: not self.open)

    @property
    def open(self) -> int:
        return len(self.transports) - self.lost


def reset(transport: asyncio.Transport) -> None:
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    transport.abort()


@pytest.fixture
def refused() -> Iterator[int]:
    """A port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield int(probe.getsockname()[1])


# the first connection


@sweep("hung", [(0,), (0, 1), (1,), (0, 2)])
async def test_silent_brokers_do_not_delay_an_answering_broker(
    hung: tuple[int, ...],
) -> None:
    async with peers(3, *hung) as some:
        async with bmq.connect(addresses(some), connect_timeout=30) as session:
            first = next(peer for index, peer in enumerate(some) if index not in hung)
            assert session.address == first.uri
            assert session.health().ready
            assert first.log == ["clientIdentity"]
        await eventually(lambda: all(each.transport is None for peer in some for each in peer.connections))


async def test_of_two_simultaneous_answers_one_connection_is_used() -> None:
    async with peers(2, 0, 1) as some:
        connecting = asyncio.ensure_future(bmq.connect(addresses(some)).__aenter__())
        await eventually(lambda: all(peer.connections and peer.log for peer in some))
        for peer in some:
            peer.answer("clientIdentity")
        session = await connecting
        await eventually(lambda: sum(peer.connection.transport is not None for peer in some) == 1)
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"1")
        assert sum(len(peer.posted) for peer in some) == 1
        await session.close()


async def test_a_refusal_ends_the_round_although_another_address_may_still_answer() -> None:
    async with peers(2, 0) as some:
        some[1].refuse.add("clientIdentity")
        with pytest.raises(bmq.NegotiationError, match="go away"):
            await bmq.connect(addresses(some))
        await eventually(lambda: all(each.transport is None for peer in some for each in peer.connections))


@sweep("what", ["silent", "closes", "resets", "garbage"])
@sweep("tls", [False, True])
async def test_next_address_is_used_after_any_failure(what: str, tls: bool) -> None:
    actions: dict[str, Callable[[asyncio.Transport], None]] = {
        "silent": lambda _: None,
        "closes": lambda transport: transport.close(),
        "resets": reset,
        "garbage": lambda transport: transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    }
    async with Listener(actions[what]) as listener, Peer() as peer:
        uri = f"{'tcps' if tls else 'tcp'}://127.0.0.1:{listener.port},{peer.uri}"
        async with bmq.connect(uri, connect_timeout=30) as session:
            assert session.address == peer.uri
        await eventually(lambda: listener.open == 0 or what == "garbage")


async def test_silent_name_server_is_skipped(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Dialer._resolve

    async def resolve(self: Dialer, address: Address) -> list[str]:
        if address.host == "hangs.example":
            await asyncio.get_running_loop().create_future()
        return await real(self, address)

    monkeypatch.setattr(Dialer, "_resolve", resolve)
    async with bmq.connect(f"tcp://hangs.example:1,{peer.uri}") as session:
        assert session.address == peer.uri
    with pytest.raises(bmq.ConnectionFailed, match=r"hangs\.example was not resolved within"):
        await bmq.connect("tcp://hangs.example:1", connect_timeout=0.02)


async def test_the_addresses_of_a_name_are_tried_in_parallel(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Listener() as listener:

        async def resolve(_: Dialer, _address: Address) -> list[str]:
            return ["127.0.0.1", "127.0.0.1", "127.0.0.2"]

        monkeypatch.setattr(Dialer, "_resolve", resolve)
        async with bmq.connect(f"tcp://broker.example:{listener.port},{peer.uri}") as session:
            assert session.address == peer.uri


async def test_events_after_the_brokers_answer_are_kept(peer: Peer) -> None:
    peer.hold.add("clientIdentity")
    connecting = asyncio.ensure_future(bmq.connect(peer.uri).__aenter__())
    await eventually(lambda: peer.connections and peer.log)
    connection = peer.connection
    connection.welcomed = True
    connection.send(connection.script.welcome() + b"\0\0\0\x08\x4b\2\0\0" + b"\0\0\0")
    session = await connecting
    await eventually(lambda: "HEARTBEAT_RSP" in peer.log)
    connection.send(b"\x08\x4b\2\0\0")  # the rest of another one
    await eventually(lambda: peer.log.count("HEARTBEAT_RSP") == 2)
    peer.hold.clear()
    await session.close()


# after a loss


async def test_after_a_loss_the_next_address_is_tried_at_once() -> None:
    async with peers(3) as some:
        happened: list[SessionEvent] = []
        async with bmq.connect(addresses(some), on_event=happened.append, **AT_ONCE) as session:
            visited = [session.address]
            for losses in range(1, 7):
                next(peer for peer in some if peer.uri == session.address).cut()
                await eventually(lambda n=losses: sum(isinstance(e, StateRestored) for e in happened) == n)
                visited.append(session.address)
        assert visited == [some[index % 3].uri for index in range(7)]
        tried = [event.address for event in happened if isinstance(event, Reconnecting)]
        assert tried == visited[1:]


async def test_a_node_that_was_silent_is_tried_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dialer, "_HEAD_START", 0.5)
    async with peers(3) as some:
        happened: list[SessionEvent] = []
        async with bmq.connect(addresses(some), on_event=happened.append, liveness=1.0, **AT_ONCE) as session:
            some[0].hold |= {"HEARTBEAT_REQ", "clientIdentity"}
            await eventually(lambda: session.stats().reconnects == 1 and session.health().ready)
            assert session.address == some[1].uri
            some[1].hold |= {"clientIdentity"}
            some[1].cut()
            await eventually(lambda: session.stats().reconnects == 2 and session.health().ready)
            assert session.address == some[2].uri
            assert len(some[0].connections) == 1, "nobody has asked the silent node again"
            some[1].hold.clear()
            some[2].cut()
            await eventually(lambda: session.stats().reconnects == 3 and session.health().ready)
            assert session.address == some[1].uri
            lost = next(event for event in happened if isinstance(event, ConnectionLost))
            assert "silent" in lost.reason


# cancelling, closing


@contextlib.asynccontextmanager
async def every_kind(refused: int) -> AsyncIterator[tuple[str, Listener, list[Peer]]]:
    """Addresses that refuse, hang at each stage, and answer."""
    async with Listener() as listener, peers(3, 0, 1) as some:
        some[1].hold = {"authenticationRequest"}
        uri = f"tcp://127.0.0.1:{refused},tcps://127.0.0.1:{listener.port},{addresses(some)}"
        yield uri, listener, some


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_cancellation_at_any_turn_leaves_no_state(
    how: str, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dialer, "_HEAD_START", 0.0)
    async with every_kind(refused) as (uri, listener, some):
        before = asyncio.all_tasks()
        sessions: list[bmq.Session] = []
        for turns in range(0, 42, 3):
            connecting = bmq.connect(uri, credentials=bmq.Credentials.anonymous())
            task = asyncio.ensure_future(connecting.__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            if how == "cancel" or connecting._session is None:
                task.cancel()
            else:
                await connecting._session.close()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcome, bmq.Session):
                sessions.append(outcome)
                await outcome.close()
            else:
                assert isinstance(outcome, asyncio.CancelledError | bmq.SessionClosed)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() <= before
        everything = [each for peer in some for each in peer.connections]
        await eventually(lambda: all(each.transport is None for each in everything))
        await eventually(lambda: listener.open == 0)
        async with bmq.connect(uri, credentials=bmq.Credentials.anonymous()) as session:
            assert session.address == some[2].uri
