# SPDX-License-Identifier: Apache-2.0
"""Each consumer of bmq, with each poison: later messages are delivered, and few lines are logged.

``BMQ_POISONS=10000`` floods each consumer with ten thousand of each poison.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from tests.poison.consumers import CONSUMERS, LIMIT, Scene, swallow
from tests.poison.poisons import POISONS
from tests.waiting import until_depth

COUNT = int(os.environ.get("BMQ_POISONS", 3 * LIMIT))
# Seconds for all poisons of a consumer: a guard against a hang.
PATIENCE = 60 + COUNT / 10


@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize("name", CONSUMERS)
async def test_good_message_is_delivered_after_each_poison(
    bmq_broker: Any,
    bmq_session: bmq.Session,
    bmq_new_queue_uri: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    scene = Scene(bmq_broker.uri, bmq_session, bmq_new_queue_uri(), bmq_new_queue_uri())
    poison = ""
    try:
        async with asyncio.timeout(PATIENCE), CONSUMERS[name](scene) as flooded:
            for poison in POISONS:
                await swallow(scene, flooded, POISONS[poison], COUNT)
    except TimeoutError:
        pytest.fail(f"{name} stands still behind: {poison}")
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    first = [line for line in lines if "more like this since" not in line]  # repeated once a minute
    assert len(first) <= 8, "at most one of each kind, and of the number of those left, of each handler"


@pytest.mark.parametrize("name", [name for name in ("a mover", "taskiq", "tables") if name in CONSUMERS])
async def test_services_leave_in_the_queue_what_they_cannot_use(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_new_queue_uri: Callable[..., str], name: str
) -> None:
    scene = Scene(bmq_broker.uri, bmq_session, bmq_new_queue_uri(), bmq_new_queue_uri())
    async with asyncio.timeout(PATIENCE), CONSUMERS[name](scene) as flooded:
        await swallow(scene, flooded, POISONS["no zlib"], 2 * LIMIT)
    await until_depth(bmq_broker.uri, flooded.queue.uri, 2 * LIMIT)
