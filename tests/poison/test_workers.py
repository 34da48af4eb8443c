# SPDX-License-Identifier: Apache-2.0
"""Workers, lanes, batches, sweepers and durable retries: unusable messages do not stop later messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import bmq
from tests.poison.poisons import POISONS, Poisonous, a_message, beside, flood

NewUri = Callable[..., str]


@pytest.mark.parametrize(
    ("poison", "made"),
    [
        (POISONS["numbers out of range"], 3),
        (POISONS["numbers that are texts"], 3),
        (a_message(bmq_attempts=2), 3),
        (a_message(bmq_attempts=2, bmq_error="E: x", bmq_origin="no GUID"), 3),
        (a_message(bmq_attempts=2_000_000_000, bmq_error="E: x", bmq_origin="A" * 32), 1),
        (a_message(bmq_origin="\udcff"), 3),
    ],
)
async def test_attempts_set_by_a_producer_are_ignored_or_limited(
    bmq_session: bmq.Session, queue: bmq.Queue, letters: bmq.Queue, poison: Poisonous, made: int
) -> None:
    waiting = await bmq_session.open_queue(f"{queue.uri}.delayed", read=True, default_subscription=False)
    attempts = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError("an outage")

    await flood(queue, [poison])
    policy = bmq.Backoff(0, retries=2, durable=True, then=bmq.DeadLetter(letters))
    async with beside(bmq.delays.Mover(waiting).run()), beside(bmq.consume(queue, handle, retry=policy)):
        letter = await letters.receive(timeout=10)
    assert attempts == made
    assert letter.properties["bmq_dead_attempts"] == 3
