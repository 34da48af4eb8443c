# SPDX-License-Identifier: Apache-2.0
"""The admin client with connections that fail, hang, or reach another server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

import bmq
from bmq.admin import Admin, Statistics
from bmq.testing import Direction, FaultProxy
from tests.fakes.broker import Peer
from tests.sweeps import sweep
from tests.waiting import eventually

OPERATOR = bmq.Credentials.basic("operator", "secret")


@pytest.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    async with bmq.broker.Broker(auth={"operator": "secret"}) as broker:
        yield broker


@pytest.fixture
async def admin(broker: bmq.broker.Broker) -> AsyncIterator[Admin]:
    async with bmq.admin.connect(broker.uri, credentials=OPERATOR) as admin:
        yield admin


OPERATOR = bmq.Credentials.basic("operator", "secret")


async def test_the_first_answering_address_is_used(broker: bmq.broker.Broker, closed_port: int) -> None:
    uri = f"tcp://127.0.0.1:{closed_port},{broker.uri}"
    async with bmq.admin.connect(uri, credentials=OPERATOR) as admin:
        assert admin.broker == broker.uri
        assert await admin.clusters()


async def test_credentials(broker: bmq.broker.Broker) -> None:
    with pytest.raises(bmq.AuthenticationError):
        await bmq.admin.connect(broker.uri, credentials=bmq.Credentials.basic("operator", "wrong"))

    async def ask_for_them() -> bmq.Credentials:
        return OPERATOR

    async with bmq.admin.connect(broker.uri, credentials=ask_for_them) as admin:
        assert await admin.clusters()


async def test_a_lost_connection_fails_its_commands_and_the_next_command_reconnects(
    broker: bmq.broker.Broker,
) -> None:
    async with FaultProxy(broker.uri) as proxy, bmq.admin.connect(proxy.uri, credentials=OPERATOR) as admin:
        proxy.stall(Direction.TO_CLIENT)
        waiting = asyncio.ensure_future(admin.clusters())
        proxy.when(Direction.TO_BROKER, lambda connection: connection.cut(), events=1)
        with pytest.raises(bmq.ConnectionFailed):
            await waiting
        proxy.heal()
        assert await admin.clusters()
        assert proxy.accepted == 2


async def test_a_missing_answer_times_out(broker: bmq.broker.Broker) -> None:
    async with FaultProxy(broker.uri) as proxy, bmq.admin.connect(proxy.uri, credentials=OPERATOR) as admin:
        proxy.stall(Direction.TO_CLIENT)
        with pytest.raises(bmq.RequestTimeout, match="HELP"):
            await admin.command("HELP", timeout=0.05)
        proxy.heal()
        # What comes late is the answer to nothing any more.
        assert "domainInfo" in await admin.query("DOMAINS DOMAIN bmq.test.mem.priority INFOS")


async def test_cancelled_command_disturbs_no_other_call(admin: Admin) -> None:
    first = asyncio.ensure_future(admin.domain("bmq.test.mem.fanout"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await admin.domain("bmq.test.mem.priority")).name == "bmq.test.mem.priority"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_closed_client_refuses_commands(admin: Admin) -> None:
    await admin.close()
    await admin.close()
    with pytest.raises(bmq.StateError, match="closed"):
        await admin.clusters()


async def test_a_peer_other_than_a_broker_is_reported() -> None:
    async with Peer() as peer:
        peer.greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        with pytest.raises(bmq.ConnectionFailed, match="does not behave like a BlazingMQ broker"):
            await bmq.admin.connect(peer.uri, timeout=20)


async def test_silent_address_does_not_delay_the_next(
    broker: bmq.broker.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.admin.connection._HEAD_START", 0.0)
    async with Peer() as hung:
        hung.hold = {"clientIdentity"}
        uri = ",".join([hung.uri, hung.uri, broker.uri])
        async with bmq.admin.connect(uri, credentials=OPERATOR, timeout=10_000) as admin:
            assert admin.broker == broker.uri
            assert await admin.clusters()
        await eventually(lambda: all(each.transport is None for each in hung.connections))


async def test_heartbeats_are_answered() -> None:
    async with (
        bmq.broker.Broker(heartbeat_interval_ms=100, max_missed_heartbeats=5) as broker,
        FaultProxy(broker.uri) as proxy,
        bmq.admin.connect(proxy.uri) as admin,
    ):
        heard = asyncio.Event()
        proxy.when(Direction.TO_BROKER, lambda _: heard.set(), events=6)
        await asyncio.wait_for(heard.wait(), 20)
        assert await admin.clusters()
        assert proxy.accepted == 1


@sweep("text", ["", "  ", "HELP\nSTAT SHOW", "HELP\r"])
async def test_a_command_is_one_line(admin: Admin, text: str) -> None:
    with pytest.raises(bmq.UsageError):
        await admin.command(text)


async def test_names_cannot_add_words_to_a_command(admin: Admin) -> None:
    with pytest.raises(bmq.InvalidURI):
        await admin.domain("bmq.test.mem.priority PURGE")
    with pytest.raises(bmq.InvalidURI):
        await admin.queue("bmq://bmq.test.mem.fanout/q").purge("foo bar")
    with pytest.raises(bmq.UsageError):
        await admin.queue("bmq://bmq.test.mem.fanout/q").messages(count=0)


@sweep("current, held", [({}, (90, 270)), ({"msgs": 5, "bytes": 10}, (5, 10))])
def test_queue_figures_are_current_and_not_the_maximum(
    current: dict[str, int], held: tuple[int, int]
) -> None:
    values = {"queue_content_msgs": 90, "queue_content_bytes": 270}
    values |= {f"queue_{unit}_current": count for unit, count in current.items()}
    queues = {"bmq://domain/queue": {"values": values, "appIds": {"foo": {"values": values}}}}
    answer = {"_timestamp": "24Nov2026_02:05:00.000000", "domainQueues": {"domains": {"domain": queues}}}
    (found,) = Statistics._read(json.dumps(answer)).queues
    assert (found.messages, found.bytes) == held
    assert [(app.messages, app.bytes) for app in found.apps] == [held]
