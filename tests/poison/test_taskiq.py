# SPDX-License-Identifier: Apache-2.0
"""taskiq's workers: messages that are not tasks stop no task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from taskiq.api import run_receiver_task

import bmq
from bmq.taskiq import BmqBroker
from tests.poison.poisons import POISONS, beside, flood
from tests.waiting import eventually


@asynccontextmanager
async def working(uri: str, queue: str, done: asyncio.Event, **options: Any) -> AsyncIterator[BmqBroker]:
    broker = BmqBroker(uri, queue, max_unconfirmed_messages=10, **options)
    broker.is_worker_process = True

    @broker.task(task_name="good")
    async def good() -> None:
        done.set()

    await broker.startup()
    await good.kiq()
    async with beside(run_receiver_task(broker)):
        yield broker
    await broker.shutdown()


async def test_messages_other_than_tasks_become_dead_letters(
    bmq_broker: Any, queue: bmq.Queue, letters: bmq.Queue
) -> None:
    await flood(queue, POISONS.values())
    done = asyncio.Event()
    async with working(bmq_broker.uri, queue.uri, done, dead_letters=letters.uri):
        await asyncio.wait_for(done.wait(), 10)
        found = [await letters.receive(timeout=10) for _ in POISONS]
    kinds = {str(letter.properties["bmq_dead_error"]).split(": ")[1] for letter in found}
    assert kinds == {"unreadable", "undecodable"}


async def test_a_circular_dead_letter_queue_is_refused(bmq_queue_uri: str) -> None:
    for back in (bmq_queue_uri, f"{bmq_queue_uri}.delayed"):
        with pytest.raises(bmq.UsageError, match="would return"):
            BmqBroker("tcp://localhost:30114", bmq_queue_uri, dead_letters=back)


async def test_a_delayed_task_with_a_bad_destination_becomes_a_dead_letter(
    bmq_broker: Any, bmq_session: bmq.Session, bmq_queue_uri: str, letters: bmq.Queue
) -> None:
    waiting = await bmq_session.open_queue(f"{bmq_queue_uri}.delayed", write=True)
    await flood(waiting, [POISONS["a destination elsewhere"]])
    done = asyncio.Event()
    async with working(bmq_broker.uri, bmq_queue_uri, done, dead_letters=letters.uri):
        letter = await letters.receive(timeout=10)
    assert "allow= does not list" in str(letter.properties["bmq_dead_error"])
    await eventually(done.is_set)
