# SPDX-License-Identifier: Apache-2.0
"""The first connection: addresses, deadlines, retries, and servers that are not brokers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bmq
from bmq._version import __version__
from bmq.wire.constants import EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header
from tests.fakes.broker import Peer
from tests.ports import reserved_port
from tests.sweeps import sweep


@pytest.fixture
def closed_port() -> Iterator[Callable[[], int]]:
    """Ports that refuse connections, and stay reserved until the end of the test."""
    with contextlib.ExitStack() as held:
        yield lambda: held.enter_context(reserved_port())


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


# several addresses


# retrying


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
    monkeypatch.setenv("BMQ_BROKER_URI", "tcp://elsewhere.invalid:1")
    async with bmq.connect(peer.uri) as session:
        assert session.address == peer.uri


async def test_failure_names_the_environment_variable_of_the_address(
    monkeypatch: pytest.MonkeyPatch, closed_port: Callable[[], int]
) -> None:
    uri = f"tcp://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("BMQ_BROKER_URI", uri)
    with pytest.raises(bmq.ConnectionFailed, match=f"{uri}.*the address comes from BMQ_BROKER_URI") as caught:
        await bmq.connect()
    assert caught.value.retryable


def test_a_list_with_and_without_tls_is_refused_with_credentials() -> None:
    """Otherwise, who blocks the port with TLS would receive the password from the next address."""
    with pytest.raises(bmq.InvalidURI, match="must all be tcps://, or all tcp://"):
        bmq.connect("tcps://a,tcp://b", credentials=bmq.Credentials.basic("user", "hunter2"))
    bmq.connect("tcps://a,tcp://b")


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


@pytest.mark.parametrize(
    ("prefix", "sent"),
    [
        ("", f"bmq-py:{__version__}"),
        ("orders/1.2", f"orders/1.2 bmq-py:{__version__}"),
        ("a" * 127, "a" * 127 + f" bmq-py:{__version__}"),
    ],
)
async def test_user_agent_stands_before_the_name_of_the_client(peer: Peer, prefix: str, sent: str) -> None:
    async with bmq.connect(peer.uri, user_agent=prefix):
        identity = peer.connection.script.identity
    assert identity is not None
    assert identity.user_agent == sent


@sweep("odd", ["a" * 128, "tab\t", "\u00e9t\u00e9", "line\n", b"orders", None])
def test_user_agents_that_a_broker_cannot_show_are_refused(odd: object) -> None:
    with pytest.raises(bmq.UsageError, match="user_agent must"):
        bmq.connect("tcp://127.0.0.1:1", user_agent=odd)  # type: ignore[arg-type]
