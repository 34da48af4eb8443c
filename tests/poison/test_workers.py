# SPDX-License-Identifier: Apache-2.0
"""Workers, lanes, batches, sweepers and durable retries: unusable messages do not stop later messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import bmq
from tests.poison.poisons import POISONS, Poisonous, a_message, flood
from tests.waiting import eventually

NewUri = Callable[..., str]


class Bad(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def test_exception_without_a_text_stops_no_worker(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    done = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        if message.data == b"bad":
            raise Bad
        done.set()

    await queue.post_many([b"bad", b"good"])
    task = asyncio.create_task(bmq.consume(queue, handle, retry=bmq.Backoff(0, retries=1)))
    await asyncio.wait_for(done.wait(), 10)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ("poison", "made"),
    [
        (POISONS["numbers out of range"], 3),
        (POISONS["numbers that are texts"], 3),
        (a_message(bmq_attempts=2), 3),
        (a_message(bmq_attempts=2, bmq_error="E: x", bmq_origin="no GUID"), 3),
        (a_message(bmq_attempts=2_000_000_000, bmq_error="E: x", bmq_origin="A" * 32), 1),
    ],
)
async def test_attempts_set_by_a_producer_are_ignored_or_limited(
    bmq_session: bmq.Session, bmq_queue_uri: str, bmq_new_queue_uri: NewUri, poison: Poisonous, made: int
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    letters = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
    mover = asyncio.create_task(
        bmq.delays.Mover(
            await bmq_session.open_queue(f"{bmq_queue_uri}.delayed", read=True, default_subscription=False)
        ).run()
    )
    attempts = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError("an outage")

    await flood(queue, [poison])
    policy = bmq.Backoff(0, retries=2, durable=True, then=bmq.DeadLetter(letters))
    task = asyncio.create_task(bmq.consume(queue, handle, retry=policy))
    letter = await letters.receive(timeout=10)
    task.cancel()
    mover.cancel()
    await asyncio.wait([task, mover])
    assert attempts == made
    assert letter.properties["bmq_dead_attempts"] == 3


async def test_an_invalid_origin_does_not_prevent_a_dead_letter(
    bmq_session: bmq.Session, bmq_queue_uri: str, bmq_new_queue_uri: NewUri
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    letters = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)

    async def handle(message: bmq.Message) -> None:
        raise bmq.Reject("no")

    ack = await queue.post(b"x", properties={"bmq_origin": "\udcff"})
    policy = bmq.NoRetry(bmq.DeadLetter(letters))
    task = asyncio.create_task(bmq.consume(queue, handle, retry=policy))
    letter = await letters.receive(timeout=10)
    assert letter.properties["bmq_dead_guid"] == ack.guid
    task.cancel()
    await asyncio.wait([task])


async def test_full_queue_for_dead_letters_blocks_and_is_named_by_the_status(
    bmq_session: bmq.Session, bmq_queue_uri: str, bmq_new_queue_uri: NewUri
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)
    letters = await bmq_session.open_queue(
        bmq_new_queue_uri("bmq.test.small.priority"), read=True, write=True
    )
    full = (await letters.post_many([b"full"] * 20)).acknowledged

    async def handle(message: bmq.Message) -> None:
        raise bmq.Reject("no")

    await queue.post_many([b"x"] * 4)
    consumer = queue.subscribe()
    policy = bmq.NoRetry(bmq.DeadLetter(letters))
    task = asyncio.create_task(bmq.consume(consumer, handle, retry=policy, concurrency=2))

    def state() -> bmq.workers.SubscriberState:
        return bmq.workers.status(consumer)[0].state

    await eventually(lambda: state() is bmq.workers.SubscriberState.BLOCKED)
    for _ in range(full):
        (await letters.receive(timeout=10)).confirm()
    for _ in range(4):
        (await letters.receive(timeout=10)).confirm()
    await eventually(lambda: state() is not bmq.workers.SubscriberState.BLOCKED)
    task.cancel()
    await asyncio.wait([task])
