# SPDX-License-Identifier: Apache-2.0
"""Authentication and TLS; and that secrets stay secret."""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import bmq
from tests.certificates import Certificates, make_certificates
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.waiting import eventually

SECRET = "correct-horse-battery-staple"


@pytest.fixture(autouse=True)
def _no_secret_in_any_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG):
        yield
    assert SECRET not in caplog.text


async def test_basic_credentials_are_sent() -> None:
    async with bmq.broker.Broker(auth={"ann": SECRET}) as broker:
        async with opened(broker, write=True, credentials=bmq.Credentials.basic("ann", SECRET)) as (
            _session,
            queue,
        ):
            await queue.post(b"1")
        with pytest.raises(bmq.AuthenticationError) as caught:
            await bmq.connect(broker.uri, credentials=bmq.Credentials.basic("ann", SECRET + "!"))
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(caught.value)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_callable_is_asked_at_every_authentication(peer: Peer, asynchronous: bool) -> None:
    numbers = itertools.count(1)

    def credentials() -> bmq.Credentials:
        return bmq.Credentials("BASIC", b"ann:%d" % next(numbers))

    async def later() -> bmq.Credentials:
        await asyncio.sleep(0)
        return credentials()

    async with bmq.connect(peer.uri, credentials=later if asynchronous else credentials) as session:
        peer.cut()
        await eventually(lambda: session.stats().reconnects == 1)
        sent = [connection.script.credentials[0].data for connection in peer.connections]
        assert sent == [b"ann:1", b"ann:2"]


async def test_a_refused_renewal_reconnects_with_new_credentials(peer: Peer) -> None:
    asked: list[str] = []
    peer.lifetime_ms = 1000  # the renewal is due after half of it, and refused long before the end

    def credentials() -> bmq.Credentials:
        asked.append(SECRET)
        if len(asked) == 2:  # the renewal
            peer.refuse.add("authenticationRequest")
        elif len(asked) == 3:  # the new connection
            peer.refuse.clear()
            peer.lifetime_ms = None
        return bmq.Credentials.basic("ann", SECRET)

    async with bmq.connect(peer.uri, credentials=credentials) as session:
        await eventually(lambda: session.stats().reconnects == 1)
        assert len(asked) == 3


async def test_a_callable_that_fails_is_a_failed_attempt_and_is_asked_again(peer: Peer) -> None:
    calls = itertools.count(1)

    async def credentials() -> bmq.Credentials:
        if next(calls) in (1, 3, 4):
            raise TimeoutError("the vault is closed")
        return bmq.Credentials.basic("ann", SECRET)

    with pytest.raises(bmq.ConnectionFailed, match="credentials callable failed with TimeoutError") as caught:
        await bmq.connect(peer.uri, credentials=credentials)
    assert caught.value.retryable
    delays = itertools.repeat(0.001)
    async with bmq.connect(peer.uri, credentials=credentials, reconnect_delays=lambda: delays) as session:
        peer.cut()
        await eventually(lambda: session.stats().reconnects == 1)
        assert next(calls) == 6


async def test_a_callable_that_never_answers_is_given_up(peer: Peer) -> None:
    async def credentials() -> bmq.Credentials:
        return await asyncio.Future()

    with pytest.raises(bmq.ConnectionFailed, match="did not answer"):
        await bmq.connect(peer.uri, credentials=credentials, connect_timeout=0.05)


async def test_invalid_credentials_are_refused_without_repeating_them(peer: Peer) -> None:
    with pytest.raises(bmq.UsageError, match=r"returned tuple, not bmq\.Credentials") as caught:
        await bmq.connect(peer.uri, credentials=lambda: ("BASIC", SECRET))  # type: ignore[arg-type,return-value]
    assert SECRET not in str(caught.value)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest_asyncio.fixture
async def secure(certificates: Certificates) -> AsyncIterator[Peer]:
    async with Peer(certificates.context(ssl.Purpose.CLIENT_AUTH, "broker")) as peer:
        yield peer


@pytest.fixture(scope="module")
def trusting(certificates: Certificates) -> ssl.SSLContext:
    return certificates.context(ssl.Purpose.SERVER_AUTH)


async def test_tls_end_to_end(secure: Peer, trusting: ssl.SSLContext) -> None:
    assert secure.uri.startswith("tcps://")
    async with bmq.connect(secure.uri, ssl=trusting) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        report = await queue.post_many(bytes(10_000) for _ in range(500))
        assert report.acknowledged == 500
        secure.connection.push(*range(100), size=10_000)
        assert len([await queue.receive(timeout=20) for _ in range(100)]) == 100
        secure.cut()
        await eventually(lambda: session.stats().reconnects == 1)
        await queue.post(b"1")
    await eventually(lambda: all(connection.transport is None for connection in secure.connections))


async def test_a_mismatch_of_tls_is_an_error_with_advice(certificates: Certificates) -> None:
    async with bmq.broker.Broker() as plain:
        with pytest.raises(bmq.ConnectionFailed, match=r"is this the broker's port for TLS\?"):
            await bmq.connect(f"tcps://127.0.0.1:{plain.port}")
    async with bmq.broker.Broker(ssl=certificates.context(ssl.Purpose.CLIENT_AUTH, "broker")) as broker:
        with pytest.raises(bmq.ConnectionFailed, match="if the broker expects TLS, use a tcps:// address"):
            await bmq.connect(f"tcp://127.0.0.1:{broker.port}")


async def test_authority_and_server_name_are_verified(secure: Peer, trusting: ssl.SSLContext) -> None:
    with pytest.raises(bmq.ConnectionFailed, match=r"(?i)certificate"):
        await bmq.connect(secure.uri)
    async with bmq.connect(secure.uri, ssl=trusting, server_hostname="broker.example"):
        pass
    with pytest.raises(bmq.ConnectionFailed, match=r"(?i)hostname|certificate"):
        await bmq.connect(secure.uri, ssl=trusting, server_hostname="somebody.else")


async def test_a_client_certificate_is_sent(certificates: Certificates, trusting: ssl.SSLContext) -> None:
    server = certificates.context(ssl.Purpose.CLIENT_AUTH, "broker")
    server.verify_mode = ssl.CERT_REQUIRED
    own = certificates.context(ssl.Purpose.SERVER_AUTH, "client")
    async with Peer(server) as peer:
        async with bmq.connect(peer.uri, ssl=own) as session:
            await session.open_queue(URI, write=True)
            assert peer.connection.transport is not None
            seen = peer.connection.transport.get_extra_info("peercert")
            assert ("commonName", "client.example") in [pair for part in seen["subject"] for pair in part]
        with pytest.raises(bmq.ConnectionFailed):
            await bmq.connect(peer.uri, ssl=trusting)
