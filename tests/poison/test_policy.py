# SPDX-License-Identifier: Apache-2.0
"""The common policy of all consumers: detection and handling of poison messages."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import bmq
from bmq._dead_letters import Allowed, Poison, PoisonKind, PutAside, queue_of
from bmq.wire.uri import QueueUri
from tests.poison.poisons import POISONS, post_raw
from tests.sweeps import sweep
from tests.waiting import eventually

OWN = QueueUri.parse("bmq://bmq.test.mem.priority/orders")
logger = logging.getLogger("bmq.test")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (7, PoisonKind.FORGED),
        (b"bmq://bmq.test.mem.priority/a", PoisonKind.FORGED),
        ("nonsense", PoisonKind.MISDIRECTED),
        ("bmq://d/" + "x" * 100_000, PoisonKind.MISDIRECTED),
        ("bmq://bmq.test.mem.priority/a?id=b", PoisonKind.MISDIRECTED),
        ("bmq://bmq.other.domain/a", PoisonKind.MISDIRECTED),
        ("bmq://bmq.test.mem.priority.~tier/a", PoisonKind.MISDIRECTED),
    ],
)
async def test_a_forbidden_queue_is_misdirected(queue: bmq.Queue, value: Any, kind: PoisonKind) -> None:
    await queue.post(b"x", properties={"bmq_reply_to": value})
    message = await queue.receive(timeout=10)
    with pytest.raises(Poison) as caught:
        queue_of(message, "bmq_reply_to", Allowed(None))
    assert caught.value.kind is kind
    assert len(str(caught.value)) < 400


@sweep(
    "allow, uri, allowed",
    [
        (None, "bmq://bmq.test.mem.priority/anything", True),
        (None, "bmq://bmq.other/replies.4711", True),
        (None, "bmq://bmq.other/payments", False),
        ("*", "bmq://bmq.other/payments", True),
        ("bmq://bmq.other/*", "bmq://bmq.test.mem.priority/a", False),
        (["bmq://a/*", "bmq://bmq.other/pay*"], "bmq://bmq.other/payments", True),
        ([], "bmq://bmq.test.mem.priority/a", False),
        (lambda uri: uri.endswith("/payments"), "bmq://bmq.other/payments", True),
        (lambda uri: uri.endswith("/payments"), "bmq://bmq.test.mem.priority/a", False),
    ],
)
def test_which_queues_are_allowed(allow: Any, uri: str, allowed: bool) -> None:
    assert Allowed(allow)(QueueUri.parse(uri), OWN) is allowed


async def test_poison_waits_while_the_queue_for_dead_letters_is_full(
    bmq_session: bmq.Session,
    bmq_new_queue_uri: Any,
    queue: bmq.Queue,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bmq._dead_letters._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("bmq._dead_letters._LONGEST_PAUSE", 0.001)
    letters = await bmq_session.open_queue(
        bmq_new_queue_uri("bmq.test.small.priority"), read=True, write=True
    )
    full = (await letters.post_many([b"full"] * 20)).acknowledged
    aside = PutAside("a test", letters, logger)
    await post_raw(queue, POISONS["no zlib"])
    message = await queue.receive(timeout=10)
    aside.take(message, Poison(PoisonKind.UNREADABLE, "for a test"))
    await eventually(lambda: "and will be tried again" in caplog.text)
    assert (aside.pending, message.confirmed) == (1, False)
    for _ in range(full):
        (await letters.receive(timeout=10)).confirm()
    await eventually(lambda: message.confirmed)
    assert aside.pending == 0
    assert len(caplog.records) == 2
