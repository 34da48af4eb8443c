# SPDX-License-Identifier: Apache-2.0
"""The console: an unreadable message is shown with the reason, and hides no other message."""

from __future__ import annotations

from typing import Any

import bmq
from bmq.console.source import RemoteBroker
from tests.poison.poisons import POISONS, UNREADABLE, post_raw


async def check(source: RemoteBroker, session: bmq.Session, uri: str) -> None:
    queue = await session.open_queue(uri, write=True)
    names: dict[str, str] = {}
    for name, poison in POISONS.items():
        names[(await post_raw(queue, poison)).guid] = name
        names[(await queue.post(b"good")).guid] = "good"
    shown = {names[each.guid]: each async for each in source.contents(uri, "", list(names))}
    assert set(shown) == set(names.values())
    assert {name for name, each in shown.items() if each.error} == {*UNREADABLE}
    assert shown["good"].payload == b"good"


async def test_each_message_is_shown_beside_each_poison(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    await check(RemoteBroker(bmq_broker.uri), bmq_session, bmq_queue_uri)


async def test_each_message_in_this_process_is_shown_beside_each_poison(bmq_queue_uri: str) -> None:
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri) as session:
        await check(bmq.console.Embedded(broker), session, bmq_queue_uri)
