# SPDX-License-Identifier: Apache-2.0
"""The first connection: addresses, deadlines, retries, and servers that are not brokers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bmq
from bmq.client.address import Address, find_broker
from bmq.client.dialer import Dialer
from bmq.testing import BackgroundBroker
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from tests.fakes.broker import Peer
from tests.ports import reserved_port
from tests.waiting import eventually


@pytest.fixture
def closed_port() -> Iterator[Callable[[], int]]:
    """Ports that refuse connections, and stay reserved until the end of the test."""
    with contextlib.ExitStack() as held:
        yield lambda: held.enter_context(reserved_port())


async def test_connect_is_awaitable_and_a_context_manager(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        assert session.state is bmq.SessionState.STARTED
    assert session.state is bmq.SessionState.CLOSED
    session = await bmq.connect(peer.uri)
    assert session.state is bmq.SessionState.STARTED
    await session.close()
    assert peer.log == ["clientIdentity", "Disconnect"]


async def test_refused_connection_fails_at_once_with_the_address(closed_port: Callable[[], int]) -> None:
    uri = f"tcp://127.0.0.1:{closed_port()}"
    with pytest.raises(bmq.ConnectionFailed, match=uri) as caught:
        await bmq.connect(uri)
    assert caught.value.retryable


async def test_a_name_that_does_not_resolve_fails() -> None:
    with pytest.raises(bmq.ConnectionFailed, match=r"no\.such\.host\.invalid"):
        await bmq.connect("tcp://no.such.host.invalid:1234")


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".invalid", "ü" * 64 + ".invalid"])
async def test_a_name_that_cannot_exist_fails(host: str) -> None:
    with pytest.raises(bmq.ConnectionFailed, match=f"could not resolve {host}"):
        await bmq.connect(f"tcp://{host}:1234")


async def test_a_name_that_has_no_address_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object, **__: object) -> list[object]:
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nothing)
    with pytest.raises(bmq.ConnectionFailed, match=r"broker\.example has no address"):
        await bmq.connect("tcp://broker.example:1234", connect_timeout=20)


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


@pytest.mark.parametrize("held", ["clientIdentity", "authenticationRequest"])
async def test_a_broker_that_does_not_answer_is_given_up(peer: Peer, held: str) -> None:
    peer.hold.add(held)
    with pytest.raises(bmq.ConnectionFailed, match="did not answer"):
        await bmq.connect(peer.uri, connect_timeout=0.05, credentials=bmq.Credentials.anonymous())
    await eventually(lambda: peer.connection.transport is None)


async def test_a_broker_with_a_trickling_answer_is_given_up(peer: Peer) -> None:
    peer.hold.add("clientIdentity")
    connecting = asyncio.ensure_future(bmq.connect(peer.uri, connect_timeout=0.1).__aenter__())
    await eventually(lambda: peer.connections and peer.connection.script.identity)
    for byte in peer.connection.script.welcome():
        peer.connection.send(bytes([byte]))
        await asyncio.wait([connecting], timeout=0.002)
        if connecting.done():
            break
    with pytest.raises(bmq.ConnectionFailed):
        await connecting


@pytest.mark.parametrize(
    "greeting",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(100),
        pack_event_header(0x7FFFFFFF, EventType.CONTROL),
    ],
)
async def test_other_servers_are_recognised(peer: Peer, greeting: bytes) -> None:
    peer.greeting = greeting
    with pytest.raises(bmq.ConnectionFailed, match="does not behave like a BlazingMQ broker"):
        await bmq.connect(peer.uri)


@pytest.mark.statement("4.32")
async def test_an_unexpected_answer_is_named(peer: Peer) -> None:
    peer.greeting = pack_event_header(HEADER_SIZE, EventType.ACK)
    with pytest.raises(bmq.ConnectionFailed, match=r"EventHeader\.type: the handshake expects CONTROL"):
        await bmq.connect(peer.uri)


async def test_a_connection_closed_during_the_handshake_fails(peer: Peer) -> None:
    peer.hold.add("clientIdentity")
    connecting = asyncio.ensure_future(bmq.connect(peer.uri).__aenter__())
    await eventually(lambda: peer.connections and peer.connection.script.identity)
    peer.cut()
    with pytest.raises(bmq.ConnectionFailed, match="during the handshake"):
        await connecting


async def test_refused_session_has_the_reason(peer: Peer) -> None:
    peer.refuse.add("clientIdentity")
    with pytest.raises(bmq.NegotiationError, match="go away") as caught:
        await bmq.connect(peer.uri, retry_first_connect=True)  # a refusal is not worth another attempt
    assert not caught.value.retryable


# several addresses


async def test_addresses_are_tried_in_turn(peer: Peer, closed_port: Callable[[], int]) -> None:
    uri = f"tcp://127.0.0.1:{closed_port()},tcp://127.0.0.1:{closed_port()},{peer.uri}"
    async with bmq.connect(uri) as session:
        assert session.state is bmq.SessionState.STARTED


async def test_error_names_all_unreachable_addresses(closed_port: Callable[[], int]) -> None:
    ports = [closed_port(), closed_port()]
    with pytest.raises(bmq.ConnectionFailed) as caught:
        await bmq.connect(",".join(f"tcp://127.0.0.1:{port}" for port in ports))
    assert all(str(port) in str(caught.value) for port in ports)


async def test_addresses_of_a_name_are_tried_in_turn(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def resolve(_: Dialer, address: Address) -> list[str]:
        asked.append(address.host)
        return ["127.0.0.2", "127.0.0.3", "127.0.0.1"]  # the peer listens on the last one only

    monkeypatch.setattr(Dialer, "_resolve", resolve)
    async with bmq.connect(f"tcp://broker.example:{peer.port}") as session:
        assert session.state is bmq.SessionState.STARTED
    assert asked == ["broker.example"]


async def test_a_silent_address_of_a_name_does_not_hide_another_address(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(_: Dialer, _address: Address) -> list[str]:
        return ["127.0.0.1", "127.0.0.1"]

    monkeypatch.setattr(Dialer, "_resolve", resolve)
    peer.hold.add("clientIdentity")
    connecting = asyncio.ensure_future(bmq.connect(peer.uri, connect_timeout=2).__aenter__())
    await eventually(lambda: len(peer.connections) == 2)  # a second is left for it
    peer.answer("clientIdentity")
    session = await connecting
    await session.close()


# retrying


async def test_a_broker_that_comes_up_later_is_found(closed_port: Callable[[], int]) -> None:
    peer = Peer()
    peer.port = closed_port()
    uri = peer.uri
    attempts = 0

    def delays() -> Iterator[float]:
        nonlocal attempts
        while True:
            attempts += 1
            yield 0.001

    connecting = asyncio.ensure_future(
        bmq.connect(uri, retry_first_connect=True, reconnect_delays=delays).__aenter__()
    )
    await eventually(lambda: attempts > 3)
    async with peer:
        session = await connecting
        await session.close()


async def test_attempts_end_with_their_delays(closed_port: Callable[[], int]) -> None:
    uri = f"tcp://127.0.0.1:{closed_port()}"
    with pytest.raises(bmq.ConnectionFailed, match="no more attempts"):
        await bmq.connect(uri, retry_first_connect=True, reconnect_delays=lambda: iter([0.0, 0.0]))


async def test_predicate_decides_which_errors_are_retried(closed_port: Callable[[], int]) -> None:
    seen: list[BaseException] = []

    def is_retryable(error: BaseException) -> bool:
        seen.append(error)
        return len(seen) < 3

    uri = f"tcp://127.0.0.1:{closed_port()}"
    with pytest.raises(bmq.ConnectionFailed):
        await bmq.connect(
            uri,
            retry_first_connect=True,
            reconnect_delays=lambda: iter([0.0] * 100),
            is_retryable=is_retryable,
        )
    assert len(seen) == 3


# the environment, the options


async def test_a_program_without_an_address_uses_the_environment_variable(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BMQ_BROKER_URI", f" {peer.uri}/")
    async with bmq.connect() as session:
        assert session.address == peer.uri


def test_a_program_without_address_and_variable_uses_the_local_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
        else:
            monkeypatch.setenv("BMQ_BROKER_URI", value)
        assert str(find_broker(None)) == "tcp://localhost:30114"


async def test_two_addresses_are_two_brokers_whatever_the_environment(
    broker: bmq.broker.Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with BackgroundBroker() as another:
        monkeypatch.setenv("BMQ_BROKER_URI", broker.uri)
        async with bmq.connect(broker.uri) as here, bmq.connect(another.uri) as there:
            assert (here.address, there.address) == (broker.uri, another.uri)
        async with bmq.admin.connect(another.uri) as admin:
            assert admin.broker == another.uri
    assert caplog.text == ""


async def test_failure_names_the_environment_variable_of_the_address(
    monkeypatch: pytest.MonkeyPatch, closed_port: Callable[[], int]
) -> None:
    uri = f"tcp://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("BMQ_BROKER_URI", uri)
    with pytest.raises(bmq.ConnectionFailed, match=f"{uri}.*the address comes from BMQ_BROKER_URI") as caught:
        await bmq.connect()
    assert caught.value.retryable


@pytest.mark.parametrize("place", ["code", "environment"])
def test_a_password_in_an_address_is_in_no_log_and_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "tcp://user:hunter2@elsewhere:1"
    monkeypatch.setenv("BMQ_BROKER_URI", secret if place == "environment" else "tcp://elsewhere:1")
    with pytest.raises(bmq.InvalidURI, match="credentials=") as caught:
        bmq.connect(secret if place == "code" else None)
    assert ("BMQ_BROKER_URI" in str(caught.value)) is (place == "environment")
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in repr(error)
        error = None if error.__suppress_context__ else error.__cause__ or error.__context__
    assert "hunter2" not in caplog.text


def test_a_list_with_and_without_tls_is_refused_with_credentials() -> None:
    """Otherwise, who blocks the port with TLS would receive the password from the next address."""
    with pytest.raises(bmq.InvalidURI, match="must all be tcps://, or all tcp://"):
        bmq.connect("tcps://a,tcp://b", credentials=bmq.Credentials.basic("user", "hunter2"))
    bmq.connect("tcps://a,tcp://b")


@pytest.mark.parametrize(
    "uri", ["tcp://host?password=hunter2", "tcp://host/#hunter2", "tcp://host/password=hunter2"]
)
def test_a_password_in_an_address_is_not_repeated(uri: str) -> None:
    with pytest.raises(bmq.InvalidURI) as refused:
        bmq.connect(uri)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "options", "warned"),
    [
        ("tcp://far.example:1", {"credentials": bmq.Credentials.basic("user", "hunter2")}, True),
        ("tcp://near.example,tcp://far.example:1", {"credentials": bmq.Credentials.anonymous}, True),
        ("tcps://far.example:1", {"credentials": bmq.Credentials.basic("user", "hunter2")}, False),
        ("tcp://far.example:1", {"credentials": bmq.Credentials.anonymous()}, False),
        ("tcp://far.example:1", {}, False),
        ("tcp://127.0.0.1:1", {"credentials": bmq.Credentials.basic("user", "hunter2")}, False),
        ("tcp://[::1]:1,tcp://localhost", {"credentials": bmq.Credentials.basic("user", "hunter2")}, False),
    ],
)
def test_credentials_without_tls_cause_a_warning(
    caplog: pytest.LogCaptureFixture, uri: str, options: dict[str, Any], warned: bool
) -> None:
    bmq.connect(uri, **options)
    assert ("credentials are sent to tcp://far.example:1 unencrypted" in caplog.text) is warned
    assert bool(caplog.text) is warned
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("uri", ["tcp://user:hunter2@localhost:1", "tcps://user:hunter2@localhost"])
def test_credentials_in_an_address_are_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(bmq.InvalidURI, match="credentials=") as caught:
        bmq.connect(uri)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["localhost:1234", "http://localhost", "tcp://", "tcp://h:99999", "tcp://h/x", ""]
)
def test_invalid_addresses_are_refused(uri: str) -> None:
    with pytest.raises(bmq.InvalidURI):
        bmq.connect(uri)


def test_unknown_option_is_an_error_with_the_known_options() -> None:
    with pytest.raises(bmq.UsageError, match="connect_timeout"):
        bmq.connect("tcp://localhost", conect_timeout=3)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("connect_timeout", 0),
        ("open_timeout", -1),
        ("max_unacked_messages", 0),
        ("max_unacked_bytes", 0),
        ("max_buffered_messages", -1),
        ("max_event_size", 4),
        ("disconnect_timeout", float("nan")),
        ("busy_poll", -0.001),
        ("busy_poll", float("nan")),
        ("connect_timeout", "x"),
        ("connect_timeout", None),
        ("max_unacked_messages", "1000"),
        ("max_event_size", None),
        ("busy_poll", True),
        ("compression", "zlib"),
    ],
)
def test_invalid_options_are_refused_at_once(option: str, value: object) -> None:
    with pytest.raises(bmq.UsageError, match=option):
        bmq.connect("tcp://localhost", **{option: value})  # type: ignore[misc]
