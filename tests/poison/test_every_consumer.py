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
from bmq.cli.verbs import VERBS
from tests.poison.consumers import CONSUMERS, LIMIT, Scene, swallow
from tests.poison.poisons import POISONS
from tests.test_turns import ELSEWHERE, OTHERS, receiving_callables

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


#: The consumers for each public way to receive.
ROWS: dict[str, tuple[str, ...]] = {
    "Queue.__aiter__": ("a loop",),
    "Queue.receive": ("a loop",),
    "Queue.receive_many": ("a loop over batches",),
    "Queue.batches": ("a loop over batches",),
    "Queue.tables": ("tables", "tables in a thread", "a reader of Arrow"),
    "Queue.group": ("a group",),
    "Consumer.__aiter__": ("a loop",),
    "Consumer.receive": ("a loop",),
    "Consumer.receive_many": ("a loop over batches",),
    "Consumer.batches": ("a loop over batches",),
    "TypedQueue.__aiter__": ("a loop over values",),
    "TypedQueue.receive": ("a loop over values",),
    "TypedConsumer.__aiter__": ("a loop over values",),
    "TypedConsumer.receive": ("a loop over values",),
    "TypedQueue.receive_many": ("a loop over batches of values",),
    "TypedQueue.batches": ("a loop over batches of values",),
    "TypedQueue.group": ("a group of values",),
    "TypedConsumer.receive_many": ("a loop over batches of values",),
    "TypedConsumer.batches": ("a loop over batches of values",),
    "TypedGroup.__aiter__": ("a group of values",),
    "TypedGroup.receive": ("a group of values",),
    "Tables.__aiter__": ("tables",),
    "Tables.__anext__": ("tables",),
    "Tables.receive": ("a reader of Arrow",),
    "Group.__aiter__": ("a group",),
    "Group.__anext__": ("a group",),
    "Group.receive": ("a group",),
    "App.consumer": (
        *("a worker", "four workers", "lanes", "a worker with a deadline"),
        *("a worker with durable retries", "a worker in a thread"),
    ),
    "App.batch_consumer": ("a worker of batches",),
    "App.responder": ("a responder",),
    "App.mover": ("a mover",),
    "Router.consumer": ("a worker",),
    "Router.batch_consumer": ("a worker of batches",),
    "Router.responder": ("a responder",),
    "Router.mover": ("a mover",),
    "App.sweeper": ("a sweeper",),
    "App.run": ("a worker",),
    "Sweeper.run": ("a sweeper",),
    "BmqBroker.listen": ("taskiq",),
    "DueMessages.__aiter__": ("a loop over due messages",),
    "DueMessages.__anext__": ("a loop over due messages",),
    "DueMessages.batch": ("a mover",),
    "Mover.run": ("a mover",),
    "consume": ("a responder without an app",),
    "Responder.__call__": ("a responder without an app",),
}
#: Further consumers: in threads, and of queues served by bmq itself.
BESIDE = {"a loop in a thread", "a requester"}
#: The verbs that read messages are tested in test_cli.py, with programs that end.
READING = {"tail", "dead", "peek"}
#: These verbs post, query the broker, or run one of the consumers above.
OTHER_VERBS = {
    *("post", "purge", "queues", "stat", "top", "explain", "check", "doctor", "bench", "admin", "decode"),
    *("broker", "docs", "domains", "exporter", "new"),
    *("mover", "run", "console", "contexts", "move"),
}


def test_each_public_way_to_receive_has_a_row() -> None:
    found = set(receiving_callables()) - OTHERS - ELSEWHERE
    assert found == set(ROWS), "a new way to receive needs a row, and a consumer in consumers.py"
    rows = {row for some in ROWS.values() for row in some}
    without = {row for row in rows if row not in CONSUMERS}
    assert without <= {"tables", "tables in a thread", "a reader of Arrow"}
    assert set(CONSUMERS) <= rows | BESIDE


def test_each_verb_of_the_command_line_is_known() -> None:
    assert set(VERBS) == READING | OTHER_VERBS
