# SPDX-License-Identifier: Apache-2.0
"""The command line: an unreadable message hides no other message."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import bmq
from tests.poison.poisons import POISONS, flood


async def run(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bmq", *arguments, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    "verb",
    [
        ("tail", "--idle", "0.3"),
        ("tail", "--json", "--idle", "0.3"),
        ("dead", "--idle", "0.3"),
        ("dead", "--json", "--idle", "0.3"),
        ("peek",),
    ],
)
async def test_each_verb_shows_messages_behind_each_poison(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str, verb: tuple[str, ...]
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    await flood(queue, POISONS.values())
    good = await queue.post(b"good")
    name, *options = verb
    status, out, err = await run(name, queue.uri, *options, "--broker", bmq_broker.uri)
    assert (status, "Traceback" in err) == (0, False)
    assert good.guid in out or "good" in out
