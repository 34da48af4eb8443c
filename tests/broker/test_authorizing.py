# SPDX-License-Identifier: Apache-2.0
"""``Broker(authorize=...)``: who may do what, and what clients do with a refusal."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

import bmq
import bmq.admin
from bmq.broker import Action, ActionKind, Broker
from bmq.errors import StatusCategory
from bmq.events import QueueReopenFailed, SessionEvent
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
FANOUT = "bmq://bmq.test.mem.fanout/q"
USERS = {"me": "secret"}
ME = bmq.Credentials.basic("me", "secret")


def everything_but(*kinds: ActionKind) -> Callable[[Action], bool]:
    return lambda action: action.kind not in kinds


async def test_function_is_asked_before_each_action() -> None:
    asked: list[Action] = []

    def decide(action: Action) -> bool:
        asked.append(action)
        return True

    async with Broker(auth=USERS, authorize=decide) as broker:
        async with bmq.connect(broker.uri, credentials=ME) as session:
            queue = await session.open_queue(URI, read=True, write=True)
            await queue.post(b"x")
            (await queue.receive(timeout=10)).confirm()
            await session.open_queue(f"{FANOUT}?id=foo", read=True)
        async with bmq.admin.connect(broker.uri, credentials=ME) as admin:
            await admin.command("HELP")
    assert asked == [
        Action(ActionKind.CONNECT_CLIENT, "me"),
        Action(ActionKind.QUEUE_READ, "me", uri=URI),
        Action(ActionKind.QUEUE_WRITE, "me", uri=URI),
        Action(ActionKind.QUEUE_READ, "me", uri=FANOUT, app_id="foo"),
        Action(ActionKind.CONNECT_ADMIN, "me"),
        Action(ActionKind.EXECUTE_ADMIN_COMMAND, "me", command="HELP"),
    ]


async def test_unauthorized_session_fails_at_once_with_the_text_of_a_real_broker() -> None:
    delays = iter([0.0])  # after a second attempt: no more attempts
    async with Broker(authorize=everything_but(ActionKind.CONNECT_CLIENT)) as broker:
        with pytest.raises(bmq.NegotiationError, match=r"Connection not authorized .*REFUSED, code -1") as e:
            await bmq.connect(broker.uri, retry_first_connect=True, reconnect_delays=lambda: delays)
        assert not e.value.retryable
        async with bmq.admin.connect(broker.uri) as admin:
            assert "DOMAINS" in await admin.command("HELP")


async def test_unauthorized_admin_client_is_refused() -> None:
    async with Broker(authorize=everything_but(ActionKind.CONNECT_ADMIN)) as broker:
        with pytest.raises(bmq.NegotiationError, match="Connection not authorized"):
            await bmq.admin.connect(broker.uri)
        async with bmq.connect(broker.uri) as session:
            await session.open_queue(URI, write=True)


@pytest.mark.parametrize(
    ("refused", "flags"),
    [(ActionKind.QUEUE_READ, {"read": True}), (ActionKind.QUEUE_WRITE, {"read": True, "write": True})],
)
async def test_unauthorized_queue_is_refused_and_the_session_goes_on(refused: ActionKind, flags: Any) -> None:
    async with (
        Broker(authorize=everything_but(refused)) as broker,
        bmq.connect(broker.uri) as session,
    ):
        with pytest.raises(bmq.OpenQueueError, match="Queue not authorized") as caught:
            await session.open_queue(URI, **flags)
        assert caught.value.category is StatusCategory.E_REFUSED
        assert not caught.value.retryable
        assert not broker.queues
        other: Any = {"write": True} if refused is ActionKind.QUEUE_READ else {"read": True}
        await session.open_queue(URI, **other)


async def test_unauthorized_command_is_an_admin_error_and_has_no_effect() -> None:
    def decide(action: Action) -> bool:
        return "PURGE" not in action.command

    async with Broker(authorize=decide) as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"kept")
        async with bmq.admin.connect(broker.uri) as admin:
            with pytest.raises(bmq.errors.AdminError, match="Command not authorized"):
                await admin.query("DOMAINS DOMAIN bmq.test.mem.priority PURGE")
            await admin.command("HELP")
        assert len(broker.queues[URI]) == 1


async def test_revoked_session_ends_instead_of_reconnecting_for_ever() -> None:
    allowed = True
    async with Broker(authorize=lambda _: allowed) as broker:
        session = await bmq.connect(broker.uri, reconnect_delays=lambda: itertools.repeat(0.0))
        queue = await session.open_queue(URI, write=True)
        allowed = False
        await broker.restart()
        await eventually(lambda: session.state is bmq.SessionState.CLOSED)
        with pytest.raises(bmq.SessionClosed, match="Connection not authorized"):
            await queue.post(b"x")
        await session.close()


async def test_revoked_queue_is_not_reopened_and_the_session_goes_on() -> None:
    refused: set[str] = set()
    events: list[SessionEvent] = []
    async with (
        Broker(authorize=lambda action: action.uri not in refused) as broker,
        bmq.connect(
            broker.uri, on_event=events.append, reconnect_delays=lambda: itertools.repeat(0.0)
        ) as session,
    ):
        queue = await session.open_queue(URI, write=True)
        kept = await session.open_queue(URI + "2", write=True)
        refused.add(URI)
        await broker.restart()
        await eventually(lambda: any(isinstance(each, QueueReopenFailed) for each in events))
        with pytest.raises(bmq.QueueClosed, match="Queue not authorized"):
            await queue.post(b"x")
        await kept.post(b"x")
        refused.clear()
        await session.open_queue(URI, write=True)


@pytest.mark.parametrize("answer", [None, 1, "yes", [True]])
async def test_answers_other_than_true_and_false_refuse(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(authorize=lambda _: answer) as broker:  # type: ignore[arg-type,return-value]
        with pytest.raises(bmq.NegotiationError):
            await bmq.connect(broker.uri)
    assert "authorize must return True or False, and returned" in caplog.text


async def test_function_that_raises_refuses_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    def decide(action: Action) -> bool:
        raise LookupError("no such user")

    async with Broker(authorize=decide) as broker:
        with pytest.raises(bmq.NegotiationError):
            await bmq.connect(broker.uri)
    (record,) = [each for each in caplog.records if "authorize failed" in each.getMessage()]
    assert record.levelno == logging.ERROR
    assert "LookupError: no such user" in record.getMessage()
