# SPDX-License-Identifier: Apache-2.0
"""Log lines and errors are bounded, regardless of the peer's input."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.errors import Error
from bmq.events import SessionEvent
from bmq.wire.control import BrokerResponse, ClientIdentity, ClientType, Codec, Status, StatusCategory
from bmq.wire.control_event import encode_event
from tests.fakes.broker import FEATURES, Peer, ScriptedBroker, guid
from tests.sweeps import sweep
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
LONG = "ü\n" * 200_000
#: A line with a few texts of a peer, each as long as it may be, and what is said about them.
LONGEST_LINE = 5000


def lengths(caplog: pytest.LogCaptureFixture) -> int:
    """Return the length of the longest line, with its error."""
    formatter = logging.Formatter("%(message)s")
    return max((len(formatter.format(record)) for record in caplog.records), default=0)


async def test_a_million_subscription_ids_do_not_lengthen_the_line(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        ids = tuple(range(100_000))
        for _ in range(2):
            peer.connection.send(peer.connection.script.push(7, [(guid(1), b"x")], ids))
        await queue.post(b"1")
        lines = [line for line in caplog.messages if "arrived for a queue" in line]
        assert len(lines) == 2
        assert "0, 1, 2, 3, 4 ... (100,000 in all)" in lines[0]
        assert lengths(caplog) < LONGEST_LINE


def _named(name: str, message: str = "", category: StatusCategory = StatusCategory.E_SUCCESS) -> bytes:
    identity = ClientIdentity(
        client_type=ClientType.E_TCPBROKER, features=FEATURES, process_name=name, host_name=name
    )
    return encode_event(
        BrokerResponse(
            result=Status(category=category, code=0, message=message),
            protocol_version=1,
            broker_version=999999,
            broker_identity=identity,
        ),
        Codec.JSON,
    )


async def test_long_names_and_reasons_of_a_broker_are_truncated(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(ScriptedBroker, "welcome", staticmethod(lambda **_: _named(LONG)))
    peer.refusal = LONG
    happened: list[SessionEvent] = []
    errors: list[BaseException] = []
    async with bmq.connect(peer.uri, on_event=happened.append) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        peer.refuse |= {"OpenQueue", "ConfigureStream"}
        for call in (lambda: queue.receive(30), lambda: session.open_queue(URI + "2", write=True)):
            with pytest.raises(bmq.Error) as caught:
                await call()
            errors.append(caught.value)
        peer.cut()
        await eventually(lambda: any("Failed" in type(event).__name__ for event in happened))
    assert all(len(str(error)) < LONGEST_LINE for error in errors)
    assert all(len(repr(event)) < 3 * LONGEST_LINE for event in happened)
    assert lengths(caplog) < LONGEST_LINE


async def test_unreadable_bytes_are_truncated_in_the_log(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    peer.greeting = b"HTTP/1.1 400 " + LONG.encode()
    with pytest.raises(bmq.Error) as caught:
        await asyncio.wait_for(_connected(peer.uri), 60)
    assert len(str(caught.value)) < LONGEST_LINE
    assert lengths(caplog) < LONGEST_LINE


async def _connected(uri: str) -> None:
    async with bmq.connect(uri, connect_timeout=30):
        pass


def _kinds(root: type[Error]) -> list[type[Error]]:
    return [root, *(each for kind in root.__subclasses__() for each in _kinds(kind))]


def _made(kind: type[Error]) -> Any:
    make: Callable[..., Any] = kind
    for arguments in ((LONG,), (LONG, LONG), (LONG, None), (bmq.AckStatus.UNKNOWN, LONG)):
        try:
            return make(*arguments)
        except (TypeError, AttributeError, ValueError):
            continue
    return None


@sweep("kind", _kinds(Error), ids=lambda kind: kind.__name__)
def test_every_error_text_is_truncated(kind: type[Error]) -> None:
    error = _made(kind)
    if error is not None:
        assert len(str(error)) < 2 * LONGEST_LINE
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
