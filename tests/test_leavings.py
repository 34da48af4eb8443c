# SPDX-License-Identifier: Apache-2.0
"""No receiving code keeps a session alive after the session is closed and forgotten."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest

import bmq
from tests.garbage import collect
from tests.test_turns import MESSAGES, PATHS, Scene
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/leavings"


async def use(broker_uri: str, path: Callable[[Scene], Awaitable[None]]) -> list[weakref.ref[bmq.Session]]:
    """Receive in one way, and close the session; an app and a task broker have a separate session."""
    scene = Scene(await bmq.connect(broker_uri), URI, broker_uri)
    queue = await scene.session.open_queue(URI, write=True)
    posts = [bmq.PutMessage(b"%d" % n, {"bmq_destination": f"{URI}.output"}) for n in range(MESSAGES)]
    (await queue.post_many(posts)).raise_for_failures()
    await queue.close()
    first = scene.session
    await path(scene)
    for session in (first, scene.session):
        await session.close()
    return [weakref.ref(first), weakref.ref(scene.session)]


def gone(sessions: list[weakref.ref[bmq.Session]]) -> bool:
    """Whether no session is left."""
    collect()
    left = any(session() for session in sessions)
    if left:
        gc.unfreeze()  # with the other live objects, collect() has frozen the sessions
    return not left


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_a_closed_session_is_collected(
    path: Callable[[Scene], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "bmq")  # pytest keeps the tracebacks of lines
    async with bmq.broker.Broker() as broker:
        sessions = await use(broker.uri, path)
        await eventually(lambda: gone(sessions))
