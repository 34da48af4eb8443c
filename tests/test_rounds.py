# SPDX-License-Identifier: Apache-2.0
"""Loops that live as long as their program: a defect ends a round with one line, and the next round works."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import aiohttp
import pytest

import bmq
from bmq.admin import watch as admin_watch
from bmq.cli.exporter import Exporter
from bmq.cli.target import BrokerTarget
from bmq.client.address import parse_addresses
from bmq.console import Console, Embedded
from bmq.console import watch as console_watch
from bmq.delays import Mover, _check
from bmq.delays import watch as watch_delays
from bmq.groups._coordinator import Coordinator
from bmq.workers.probe import TEXT_TYPE, Page, PageServer
from tests.waiting import eventually

Connect = Callable[..., Awaitable[bmq.Session]]


class Defect:
    """The first call after :meth:`arm` raises RuntimeError."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.armed = self.raised = False
        self.after = 0
        whole = getattr(owner, name)

        def called() -> None:
            if self.armed and not self.raised:
                self.raised = True
                raise RuntimeError("a defect")
            self.after += self.raised

        async def call_async(*args: Any, **named: Any) -> Any:
            called()
            return await whole(*args, **named)

        def call(*args: Any, **named: Any) -> Any:
            called()
            return whole(*args, **named)

        monkeypatch.setattr(owner, name, call_async if inspect.iscoroutinefunction(whole) else call)

    def arm(self) -> None:
        """From now on."""
        self.armed = True


class Room:
    """What the loops of the tests need."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: bmq.broker.Broker, uri: str) -> None:
        self.monkeypatch, self.broker, self.uri = monkeypatch, broker, uri

    def defect(self, owner: Any, name: str) -> Defect:
        return Defect(self.monkeypatch, owner, name)


async def an_exporter(room: Room) -> None:
    defect = room.defect(admin_watch.BrokerWatch, "look")
    limits: dict[str, Any] = {"max_queues": 9, "max_apps": 9, "max_details": 9, "only": frozenset()}
    target = BrokerTarget(room.broker.uri, "test", 5.0)
    exporter = Exporter(target, parse_addresses(room.broker.uri), interval=0.01, **limits)
    (broker,) = exporter._brokers
    defect.arm()
    await exporter.ask_all()
    assert broker.view is None
    running = asyncio.create_task(exporter.run())
    await eventually(lambda: broker.view is not None)
    running.cancel()
    await exporter.close()


async def a_console(room: Room) -> None:
    defect = room.defect(console_watch.Watch, "_look")
    defect.arm()
    async with Console(Embedded(room.broker), interval=0.01) as page, aiohttp.ClientSession() as http:
        await eventually(lambda: defect.after > 1)
        async with http.get(page.url + "api/live") as answer:
            assert b'"error":""' in await answer.content.readline()


async def _a_group(room: Room, name: str) -> None:
    defect = room.defect(Coordinator, name)
    async with bmq.connect(room.broker.uri) as session:
        queue = await session.open_queue(room.uri, read=True, write=True)
        async with queue.group("k", buckets=2, lease=0.2) as group:
            await eventually(lambda: len(group.owned) == 2)
            defect.arm()
            await eventually(lambda: defect.after > 5)
            await queue.post(b"x", properties={"k": 1})
            async with asyncio.timeout(10):
                (await group.receive()).confirm()


async def the_messages_of_a_group(room: Room) -> None:
    await _a_group(room, "_handle")


async def the_rounds_of_a_group(room: Room) -> None:
    await _a_group(room, "_look")


async def _a_mover(room: Room, name: str) -> bmq.Message:
    defect = room.defect(Mover, name)
    room.monkeypatch.setattr("bmq.delays._mover._FIRST_PAUSE", 0.01)
    async with bmq.connect(room.broker.uri) as session:
        queue = await session.open_queue(room.uri, read=True)
        waiting = await session.open_queue(
            f"{room.uri}.delayed", read=True, write=True, default_subscription=False
        )
        defect.arm()
        mover = asyncio.create_task(Mover(waiting, grace=0.1).run())
        for payload in (b"first", b"second"):
            await waiting.post(payload, properties={"bmq_due": int(time.time() * 1000)})
        message = await queue.receive(timeout=10)
        mover.cancel()
        with suppress(asyncio.CancelledError):
            await mover
        return message


async def the_messages_of_a_mover(room: Room) -> None:
    assert (await _a_mover(room, "_what")).data == b"second"
    left = room.broker.queues[f"{room.uri}.delayed"]
    await eventually(lambda: left.stats().messages == 1)  # the first stays where it is


async def a_destination_of_a_mover(room: Room) -> None:
    assert (await _a_mover(room, "_opened")).data == b"first"


async def the_checks_of_a_mover(room: Room) -> None:
    defect = room.defect(_check, "check")
    defect.arm()
    async with bmq.admin.connect(room.broker.uri) as admin:
        watching = asyncio.create_task(watch_delays(admin, room.uri, every=0.01))
        await eventually(lambda: defect.after > 1)
        watching.cancel()


async def a_health_server(room: Room) -> None:
    async def page(path: str) -> Page:
        answer()
        return HTTPStatus.OK, "fine\n", TEXT_TYPE

    class Owner:
        answer = staticmethod(lambda: None)

    defect = room.defect(Owner, "answer")
    answer = Owner.answer
    defect.arm()
    server = PageServer("127.0.0.1", 0, page)
    async with server.serving(), aiohttp.ClientSession() as http:
        for status in (500, 200, 200):
            async with http.get(f"{server.uri}/readyz") as response:
                assert response.status == status


@pytest.mark.parametrize(
    "loop",
    [
        an_exporter,
        a_console,
        the_messages_of_a_group,
        the_rounds_of_a_group,
        the_messages_of_a_mover,
        a_destination_of_a_mover,
        the_checks_of_a_mover,
        a_health_server,
    ],
    ids=lambda loop: loop.__name__.replace("_", " "),
)
async def test_a_defect_ends_a_round_and_not_the_loop(
    loop: Callable[[Room], Awaitable[None]],
    bmq_broker: bmq.broker.Broker,
    bmq_queue_uri: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO, "bmq")
    await loop(Room(monkeypatch, bmq_broker, bmq_queue_uri))
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    told += capsys.readouterr().err.splitlines()
    assert len([each for each in told if "a defect" in each]) == 1, told
