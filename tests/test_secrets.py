# SPDX-License-Identifier: Apache-2.0
"""Passwords are never shown, and a peer's text never controls a log or a terminal."""

from __future__ import annotations

import dataclasses
import logging
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest

import bmq
from bmq.broker._settings import Authentication, BrokerSettings
from bmq.broker.main import run as run_broker
from bmq.wire.control import AuthenticationRequest, Codec
from bmq.wire.control_event import encode_event
from tests.broker.core import Core
from tests.fakes.broker import Peer
from tests.sweeps import sweep
from tests.waiting import eventually

SECRET = "correct-horse-battery-staple"
URI = "bmq://bmq.test.mem.priority/q"
CREDENTIALS = bmq.Credentials.basic("ann", SECRET)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with Peer() as started:
        yield started


def shown(value: Any) -> str:
    """Return all text that printing or logging a value could show."""
    texts = [repr(value), str(value), f"{value}", repr([value])]
    if isinstance(value, BaseException):
        texts += traceback.format_exception(value)
    return "\n".join(texts)


def holders() -> list[Any]:
    from bmq.spark.connection import ConnectionOptions, Secret
    from bmq.spark.options import WriteOptions, parse

    authentication = Authentication(users={"ann": SECRET})
    app = bmq.App("tcp://localhost:1", credentials=CREDENTIALS)
    return [
        CREDENTIALS,
        authentication,
        BrokerSettings(authentication=authentication),
        bmq.broker.Broker(auth={"ann": SECRET}),
        bmq.broker.Broker(auth=authentication),
        AuthenticationRequest(mechanism="BASIC", data=f"ann:{SECRET}".encode()),
        app,
        ConnectionOptions(user="ann", password=Secret(SECRET)),
        parse(WriteOptions, {"user": "ann", "password": SECRET}),
    ]


@sweep("position", range(len(holders())))
def test_no_representation_shows_a_password(position: int) -> None:
    holder = holders()[position]
    assert SECRET not in shown(holder)
    if dataclasses.is_dataclass(holder):
        with pytest.raises(TypeError) as caught:
            dataclasses.replace(holder, nonsense=1)  # type: ignore[type-var]
        assert SECRET not in shown(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        f"tcp://ann:{SECRET}@localhost:1",
        f"tcps://ann:{SECRET}@localhost",
        f"ann:{SECRET}@localhost:1",
        f"tcp://localhost:1,tcp://ann:{SECRET}@localhost:1",
        f"tcp://{SECRET}@",
        f"tcp://ann:{SECRET}@local host:x",
    ],
)
@pytest.mark.parametrize("place", ["argument", "environment", "app"])
async def test_no_error_or_log_shows_a_password_in_an_address(
    uri: str, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    if place == "environment":
        monkeypatch.setenv("BMQ_BROKER_URI", uri)
    named = None if place == "environment" else uri
    with pytest.raises(bmq.Error) as caught:
        await (bmq.App(named).run() if place == "app" else bmq.connect(named))
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert SECRET not in caplog.text


def test_the_command_line_repeats_no_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("BMQ_BROKER_AUTH", SECRET)
    with pytest.raises(SystemExit):
        run_broker(["--port", "0"])
    monkeypatch.delenv("BMQ_BROKER_AUTH")
    (tmp_path / "users").write_text(SECRET)
    with pytest.raises(SystemExit):
        run_broker(["--port", "0", "--auth-file", str(tmp_path / "users")])
    assert SECRET not in "".join(capsys.readouterr())


async def test_session_never_shows_a_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    events: list[bmq.SessionEvent] = []
    users = Authentication(users={"ann": SECRET}, lifetime_ms=200)
    async with bmq.broker.Broker(auth=users) as broker:
        async with bmq.connect(broker.uri, credentials=CREDENTIALS, on_event=events.append) as session:
            queue = await session.open_queue(URI, read=True, write=True)
            await queue.post(b"m")
            broker.faults.disconnect()
            (await queue.receive()).confirm()
            assert SECRET not in shown(session) + shown(queue) + shown(session.options)
        wrong = bmq.Credentials.basic("bob", SECRET)
        with pytest.raises(bmq.AuthenticationError) as caught:
            await bmq.connect(broker.uri, credentials=wrong)
        assert SECRET not in shown(caught.value)
    assert caplog.records
    assert SECRET not in caplog.text
    assert SECRET not in repr(events)


# ---- what peers say

NASTY = "x\x1b[2J\r\n\u202e\u2028\x9b\x00"


def quiet(caplog: pytest.LogCaptureFixture) -> None:
    assert caplog.messages
    for line in caplog.messages:
        assert line.isprintable(), line


async def test_a_client_cannot_forge_the_log_of_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    users = Authentication(users={"ann": SECRET}, anonymous=True)
    core = Core(settings=BrokerSettings(authentication=users))
    for mechanism, data in (("BASIC", f"{NASTY}:{NASTY}"), (NASTY, NASTY), ("BASIC", f"ann:{SECRET}")):
        peer = core.connect()
        request = AuthenticationRequest(mechanism=mechanism, data=data.encode())
        peer.send(encode_event(request, Codec.JSON))
        if data.startswith("ann"):
            assert peer.others
            peer.negotiate(process_name=NASTY, host_name=NASTY)
            peer.send(encode_event(AuthenticationRequest(mechanism=NASTY, data=b"x"), Codec.JSON))
    peer = core.client(process_name=NASTY, host_name=NASTY)
    for uri in (f"bmq://bmq.test.mem.priority/{NASTY}", f"bmq://{NASTY}/q", NASTY):
        peer.open(uri, read=True)
    peer.open(f"bmq://bmq.test.mem.fanout/q?id={NASTY}", 1, read=True)
    peer.close(NASTY, 3, read=True)
    for command in (NASTY, f"DOMAINS DOMAIN {NASTY} INFOS", f"DOMAINS RECONFIGURE {NASTY}"):
        core.node.admin(command, core.now)
    quiet(caplog)


async def test_a_broker_cannot_forge_the_log_of_a_client(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    peer.welcome = {"features": NASTY}
    peer.refusal = NASTY
    peer.refuse.update({"openQueue", "OpenQueue"})
    async with bmq.connect(peer.uri) as session:
        with pytest.raises(bmq.Error) as caught:
            await session.open_queue(URI, read=True)
        assert str(caught.value).isprintable()
        logging.getLogger("bmq.test").warning("%s; %r", session, session)
        peer.refuse.clear()
        await session.open_queue(URI, read=True)
        peer.refuse.update({"openQueue", "OpenQueue"})
        peer.cut()
        await eventually(lambda: any("could not be reopened" in line for line in caplog.messages))
    quiet(caplog)
