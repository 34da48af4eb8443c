# SPDX-License-Identifier: Apache-2.0
"""``Broker(authorize=...)``: who may do what, and what clients do with a refusal."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

import bmq
import bmq.admin
from bmq.broker import Action, ActionKind, Broker
from bmq.errors import StatusCategory
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
FANOUT = "bmq://bmq.test.mem.fanout/q"
USERS = {"me": "secret"}
ME = bmq.Credentials.basic("me", "secret")


def without(*kinds: ActionKind) -> Broker:
    return Broker(authorize=lambda action: action.kind not in kinds)


async def test_function_is_asked_before_each_action() -> None:
    asked: list[Action] = []

    def decide(action: Action) -> bool:
        asked.append(action)
        return True

    async with Broker(auth=USERS, authorize=decide) as broker:
        async with bmq.connect(broker.uri, credentials=ME) as session:
            await session.open_queue(URI, read=True, write=True)
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


async def test_unauthorized_clients_are_refused_with_the_text_of_a_real_broker() -> None:
    delays = iter([0.0])  # after a second attempt: no more attempts
    text = r"Connection not authorized .*REFUSED, code -1"
    async with without(ActionKind.CONNECT_CLIENT) as broker, bmq.admin.connect(broker.uri) as admin:
        with pytest.raises(bmq.NegotiationError, match=text) as caught:
            await bmq.connect(broker.uri, retry_first_connect=True, reconnect_delays=lambda: delays)
        assert not caught.value.retryable
        assert "DOMAINS" in await admin.command("HELP")
    async with without(ActionKind.CONNECT_ADMIN) as broker, bmq.connect(broker.uri) as session:
        with pytest.raises(bmq.NegotiationError, match=text):
            await bmq.admin.connect(broker.uri)
        await session.open_queue(URI, write=True)


@pytest.mark.parametrize(
    ("refused", "flags"),
    [(ActionKind.QUEUE_READ, {"read": True}), (ActionKind.QUEUE_WRITE, {"read": True, "write": True})],
)
async def test_unauthorized_queue_is_refused_and_the_session_goes_on(refused: ActionKind, flags: Any) -> None:
    async with without(refused) as broker, bmq.connect(broker.uri) as session:
        with pytest.raises(bmq.OpenQueueError, match="Queue not authorized") as caught:
            await session.open_queue(URI, **flags)
        assert caught.value.category is StatusCategory.E_REFUSED
        assert not caught.value.retryable
        assert not broker.queues
        other: Any = {"write": True} if refused is ActionKind.QUEUE_READ else {"read": True}
        await session.open_queue(URI, **other)


async def test_unauthorized_command_is_an_admin_error_and_has_no_effect() -> None:
    async with (
        Broker(authorize=lambda action: "FORCE" not in action.command) as broker,
        bmq.admin.connect(broker.uri) as admin,
    ):
        async with bmq.connect(broker.uri) as session:
            await session.open_queue(URI, write=True)
        with pytest.raises(bmq.errors.AdminError, match="Command not authorized"):
            await admin.query("CLUSTERS CLUSTER local FORCE_GC_QUEUES")
        await admin.command("HELP")
        assert URI in broker.queues


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


@pytest.mark.parametrize("answer", [None, 1, "yes", [True], LookupError("no such user")])
async def test_without_a_clear_yes_the_answer_is_no_and_the_log_says_why(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    def decide(action: Action) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with Broker(authorize=decide) as broker:
        with pytest.raises(bmq.NegotiationError):
            await bmq.connect(broker.uri)
    (record,) = [each for each in caplog.records if "authorize" in each.getMessage()]
    assert record.levelno == logging.ERROR
    failed = "authorize failed with LookupError: no such user; refused: "
    odd = "authorize must return True or False, and returned "
    assert record.getMessage().startswith(failed if isinstance(answer, Exception) else odd)
