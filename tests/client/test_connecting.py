# SPDX-License-Identifier: Apache-2.0
"""Connecting: addresses, options, retries, other servers, and several addresses of which some are silent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

import bmq
from bmq._version import __version__
from bmq.client import dialer as _dialer
from bmq.client.address import Address
from bmq.client.dialer import Dialer
from bmq.events import ConnectionLost, Reconnecting, SessionEvent, StateRestored
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from tests.fakes.broker import Peer
from tests.ports import reserved_port
from tests.sweeps import sweep
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
PASSWORD = bmq.Credentials.basic("user", "hunter2")
AT_ONCE: dict[str, Any] = {"reconnect_delays": lambda: itertools.repeat(0.0)}


@pytest.fixture
def closed() -> Iterator[str]:
    with reserved_port() as port:
        yield f"tcp://127.0.0.1:{port}"


@sweep("host", ["no.such.host.invalid", "a..b", "x" * 64 + ".invalid", "ü" * 64 + ".invalid"])
async def test_a_name_that_does_not_resolve_fails(host: str) -> None:
    with pytest.raises(bmq.ConnectionFailed, match=f"could not resolve {host}"):
        await bmq.connect(f"tcp://{host}:1234")


async def test_ip_address_needs_no_name_lookup(peer: Peer) -> None:
    # asyncio looks names up in threads, and all of them may be at work.
    busy, threads = threading.Event(), concurrent.futures.ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    threads.submit(busy.wait)
    try:
        session = await bmq.connect(peer.uri, connect_timeout=30)
    finally:
        busy.set()
    await session.close()


async def test_a_session_starts_once(peer: Peer) -> None:
    connecting = bmq.connect(peer.uri)
    async with connecting:
        with pytest.raises(bmq.StateError, match="started before"):
            await connecting


async def test_connect_is_bound_to_a_loop_by_the_first_await(peer: Peer) -> None:
    connecting = await asyncio.to_thread(bmq.connect, peer.uri)
    async with connecting as session:
        assert session.state is bmq.SessionState.STARTED


@sweep(
    "greeting, error",
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not behave like a BlazingMQ broker"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not behave like a BlazingMQ broker"),
        (bytes(100), "does not behave like a BlazingMQ broker"),
        (pack_event_header(0x7FFFFFFF, EventType.CONTROL), "does not behave like a BlazingMQ broker"),
        (pack_event_header(HEADER_SIZE, EventType.ACK), r"EventHeader\.type: the handshake expects CONTROL"),
    ],
)
@pytest.mark.statement("4.32")
async def test_other_servers_are_recognised(peer: Peer, greeting: bytes, error: str) -> None:
    peer.greeting = greeting
    with pytest.raises(bmq.ConnectionFailed, match=error):
        await bmq.connect(peer.uri)


async def test_attempts_end_with_their_delays(closed: str) -> None:
    with pytest.raises(bmq.ConnectionFailed, match="no more attempts"):
        await bmq.connect(closed, retry_first_connect=True, reconnect_delays=lambda: iter([0.0, 0.0]))


async def test_predicate_decides_which_errors_are_retried(closed: str) -> None:
    seen: list[BaseException] = []

    def is_retryable(error: BaseException) -> bool:
        seen.append(error)
        return len(seen) < 3

    with pytest.raises(bmq.ConnectionFailed):
        await bmq.connect(closed, retry_first_connect=True, is_retryable=is_retryable, **AT_ONCE)
    assert len(seen) == 3


async def test_a_program_without_an_address_uses_the_environment_variable(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BMQ_BROKER_URI", f" {peer.uri}/")
    async with bmq.connect() as session:
        assert session.address == peer.uri
    monkeypatch.setenv("BMQ_BROKER_URI", "tcp://elsewhere.invalid:1")
    async with bmq.connect(peer.uri) as session:
        assert session.address == peer.uri


async def test_failure_names_the_environment_variable_of_the_address(
    monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    monkeypatch.setenv("BMQ_BROKER_URI", closed)
    with pytest.raises(bmq.ConnectionFailed, match=f"{closed}.*address comes from BMQ_BROKER_URI") as caught:
        await bmq.connect()
    assert caught.value.retryable


def test_a_list_with_and_without_tls_is_refused_with_credentials() -> None:
    """Otherwise, who blocks the port with TLS would receive the password from the next address."""
    with pytest.raises(bmq.InvalidURI, match="must all be tcps://, or all tcp://"):
        bmq.connect("tcps://a,tcp://b", credentials=PASSWORD)
    bmq.connect("tcps://a,tcp://b")


@pytest.mark.parametrize(
    ("uri", "credentials", "warned"),
    [
        ("tcp://far.example:1", PASSWORD, True),
        ("tcp://near.example,tcp://far.example:1", bmq.Credentials.anonymous, True),
        ("tcps://far.example:1", PASSWORD, False),
        ("tcp://far.example:1", bmq.Credentials.anonymous(), False),
        ("tcp://far.example:1", None, False),
        ("tcp://127.0.0.1:1", PASSWORD, False),
        ("tcp://[::1]:1,tcp://localhost", PASSWORD, False),
    ],
)
def test_credentials_without_tls_cause_a_warning(
    caplog: pytest.LogCaptureFixture, uri: str, credentials: Any, warned: bool
) -> None:
    bmq.connect(uri, credentials=credentials)
    assert ("credentials are sent to tcp://far.example:1 unencrypted" in caplog.text) is warned
    assert bool(caplog.text) is warned
    assert "hunter2" not in caplog.text


@sweep(
    "option, value",
    [
        *(("connect_timeout", each) for each in (0, "x", None)),
        ("open_timeout", -1),
        *(("max_unacked_messages", each) for each in (0, "1000")),
        ("max_unacked_bytes", 0),
        ("max_buffered_messages", -1),
        *(("max_event_size", each) for each in (4, None)),
        ("disconnect_timeout", float("nan")),
        *(("busy_poll", each) for each in (-0.001, float("nan"), True)),
        ("compression", "zlib"),
    ],
)
def test_invalid_options_are_refused_at_once(option: str, value: object) -> None:
    with pytest.raises(bmq.UsageError, match=option):
        bmq.connect("tcp://localhost", **{option: value})  # type: ignore[misc]


@sweep("prefix", ["", "orders/1.2", "a" * 127])
async def test_user_agent_stands_before_the_name_of_the_client(peer: Peer, prefix: str) -> None:
    async with bmq.connect(peer.uri, user_agent=prefix):
        identity = peer.connection.script.identity
    assert identity is not None
    assert identity.user_agent == f"{prefix} bmq-py:{__version__}".strip()


@sweep("odd", ["a" * 128, "tab\t", "\u00e9t\u00e9", "line\n", b"orders", None])
def test_user_agents_that_a_broker_cannot_show_are_refused(odd: object) -> None:
    with pytest.raises(bmq.UsageError, match="user_agent must"):
        bmq.connect("tcp://127.0.0.1:1", user_agent=odd)  # type: ignore[arg-type]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent address costs a short head start."""
    monkeypatch.setattr(_dialer, "_HEAD_START", 0.05)


@contextlib.asynccontextmanager
async def peers(count: int, *hung: int) -> AsyncIterator[tuple[str, list[Peer]]]:
    """The addresses of brokers, and the brokers; some accept connections and stay silent."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(Peer()) for _ in range(count)]
        for index in hung:
            found[index].hold |= {"clientIdentity", "authenticationRequest", "HEARTBEAT_REQ"}
        yield ",".join(peer.uri for peer in found), found


def all_closed(some: list[Peer]) -> bool:
    return all(each.transport is None for peer in some for each in peer.connections)


class Listener:
    """A port with a scripted reaction to each connection; silent by default."""

    def __init__(self, then: Callable[[asyncio.Transport], None] = lambda _: None) -> None:
        self._then = then
        self.transports: list[asyncio.Transport] = []
        self.open = 0

    async def __aenter__(self) -> Listener:
        outer = self

        class Scripted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                known = cast("asyncio.Transport", transport)
                outer.transports.append(known)
                outer.open += 1
                outer._then(known)

            def connection_lost(self, exc: Exception | None) -> None:
                outer.open -= 1

        self._server = await asyncio.get_running_loop().create_server(Scripted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for transport in self.transports:
            transport.abort()
        await eventually(lambda: not self.open)


def reset(transport: asyncio.Transport) -> None:
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    transport.abort()


@pytest.mark.usefixtures("quick")
async def test_of_two_simultaneous_answers_one_connection_is_used() -> None:
    async with peers(2, 0, 1) as (uri, some):
        connecting = asyncio.ensure_future(bmq.connect(uri).__aenter__())
        await eventually(lambda: all(peer.connections and peer.log for peer in some))
        for peer in some:
            peer.answer("clientIdentity")
        session = await connecting
        await eventually(lambda: sum(peer.connection.transport is not None for peer in some) == 1)
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"1")
        assert sum(len(peer.posted) for peer in some) == 1
        await session.close()


@pytest.mark.usefixtures("quick")
async def test_a_refusal_ends_the_round_although_another_address_may_still_answer() -> None:
    async with peers(2, 0) as (uri, some):
        some[1].refuse.add("clientIdentity")
        with pytest.raises(bmq.NegotiationError, match="go away"):
            await bmq.connect(uri)
        await eventually(lambda: all_closed(some))


FAILURES: dict[str, Callable[[asyncio.Transport], None]] = {
    "silent": lambda _: None,
    "closes": lambda transport: transport.close(),
    "resets": reset,
    "garbage": lambda transport: transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
}


@pytest.mark.usefixtures("quick")
@sweep("what", FAILURES)
@sweep("scheme", ["tcp", "tcps"])
async def test_next_address_is_used_after_any_failure(what: str, scheme: str) -> None:
    async with Listener(FAILURES[what]) as listener, Peer() as peer:
        uri = f"{scheme}://127.0.0.1:{listener.port},{peer.uri}"
        async with bmq.connect(uri, connect_timeout=30) as session:
            assert session.address == peer.uri
        await eventually(lambda: listener.open == 0 or what == "garbage")


@pytest.mark.usefixtures("quick")
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


@pytest.mark.usefixtures("quick")
async def test_the_addresses_of_a_name_are_raced(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("quick")
async def test_after_a_loss_the_next_address_is_tried_at_once() -> None:
    async with peers(3) as (uri, some):
        happened: list[SessionEvent] = []
        async with bmq.connect(uri, on_event=happened.append, **AT_ONCE) as session:
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
    async with peers(3) as (uri, some):
        happened: list[SessionEvent] = []
        async with bmq.connect(uri, on_event=happened.append, liveness=1.0, **AT_ONCE) as session:
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


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_cancellation_at_any_turn_leaves_no_state(
    how: str, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The addresses refuse, hang at each stage, and answer."""
    monkeypatch.setattr(_dialer, "_HEAD_START", 0.0)
    async with Listener() as listener, peers(3, 0, 1) as (last, some):
        some[1].hold = {"authenticationRequest"}
        uri = f"{closed},tcps://127.0.0.1:{listener.port},{last}"
        before = asyncio.all_tasks()
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
                await outcome.close()
            else:
                assert isinstance(outcome, asyncio.CancelledError | bmq.SessionClosed)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() <= before
        await eventually(lambda: all_closed(some) and listener.open == 0)
        async with bmq.connect(uri, credentials=bmq.Credentials.anonymous()) as session:
            assert session.address == some[2].uri
