# SPDX-License-Identifier: Apache-2.0
"""The console: a message that cannot be read shows why, and hides no other one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.console.source import RemoteBroker
from tests.poison.poisons import POISONS, post_raw

UNREADABLE = {"no zlib", "zlib cut off", "properties that cannot be decoded", "a property twice"}


@pytest.mark.parametrize("where", ["in this process", "elsewhere"])
async def test_each_message_is_shown_beside_each_poison(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str, where: str
) -> None:
    sources: dict[str, Callable[[], RemoteBroker]] = {
        "in this process": lambda: bmq.console.Embedded(bmq_broker),
        "elsewhere": lambda: RemoteBroker(bmq_broker.uri),
    }
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    names: dict[str, str] = {}
    for name, poison in POISONS.items():
        names[(await post_raw(queue, poison)).guid] = name
        names[(await queue.post(b"good")).guid] = "good"
    shown = {
        names[each.guid]: each async for each in sources[where]().contents(bmq_queue_uri, "", list(names))
    }
    assert set(shown) == set(names.values())
    assert {name for name, each in shown.items() if each.error} == UNREADABLE
    assert shown["good"].payload == b"good"
