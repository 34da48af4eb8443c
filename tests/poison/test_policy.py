# SPDX-License-Identifier: Apache-2.0
"""The common policy of all consumers: detection and handling of poison messages."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import bmq
from bmq.client.dead_letters import described, error_text
from bmq.client.poison import (
    Allowed,
    Poison,
    PoisonKind,
    PutAside,
    guid_of,
    integer_of,
    queue_of,
    unreadable,
)
from bmq.wire.uri import QueueUri
from tests.poison.poisons import POISONS, flood, post_raw
from tests.waiting import eventually

OWN = QueueUri.parse("bmq://bmq.test.mem.priority/orders")
UNREADABLE = {"no zlib", "zlib cut off", "properties that cannot be decoded", "a property twice"}
logger = logging.getLogger("bmq.test")


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


async def with_properties(queue: bmq.Queue, **properties: Any) -> bmq.Message:
    await queue.post(b"x", properties=properties)
    return await queue.receive(timeout=10)


@pytest.mark.parametrize("value", ["7", b"7", True, -1, 11])
async def test_a_steering_number_of_another_type_or_range_is_forged(queue: bmq.Queue, value: object) -> None:
    message = await with_properties(queue, bmq_attempts=value)
    with pytest.raises(Poison) as caught:
        integer_of(message, "bmq_attempts", 0, 10)
    assert caught.value.kind is PoisonKind.FORGED
    assert integer_of(message, "bmq_due", 0, 10) is None


@pytest.mark.parametrize("value", [7, "", "7" * 31, "f" * 32, "F" * 33, "x" * 10_000])
async def test_invalid_guid_in_a_steering_property_is_forged(queue: bmq.Queue, value: object) -> None:
    message = await with_properties(queue, bmq_cancel=value)
    with pytest.raises(Poison) as caught:
        guid_of(message, "bmq_cancel")
    assert caught.value.kind is PoisonKind.FORGED
    assert len(str(caught.value)) < 200


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
async def test_a_forbidden_queue_is_misdirected(queue: bmq.Queue, value: object, kind: PoisonKind) -> None:
    message = await with_properties(queue, bmq_reply_to=value)
    with pytest.raises(Poison) as caught:
        queue_of(message, "bmq_reply_to", Allowed(None, OWN))
    assert caught.value.kind is kind
    assert len(described(caught.value)) < 400


@pytest.mark.parametrize(
    ("allow", "uri", "allowed"),
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
    assert Allowed(allow, OWN)(QueueUri.parse(uri)) is allowed


@pytest.mark.parametrize("discard", [False, True])
async def test_without_dead_letters_poison_is_confirmed_only_if_told(
    queue: bmq.Queue, caplog: pytest.LogCaptureFixture, discard: bool
) -> None:
    consumer = await queue.subscribe(max_unconfirmed_messages=10)
    aside = PutAside("a test", None, logger, discard=discard)
    await flood(queue, [POISONS["no zlib"]] * 300)
    for _ in range(300):
        message = await consumer.receive(timeout=10)
        poison = unreadable(message)
        assert poison is not None
        aside.take(message, poison)
        assert message.confirmed is discard
    await aside.close()
    assert (aside.taken, aside.pending) == (300, 0)
    outcome = "discarded" if discard else "left in the queue, unconfirmed"
    assert f"is {outcome}: unreadable" in caplog.messages[0]
    assert [text for text in ("1 so far", "300 so far") if text in caplog.text] == (
        [] if discard else ["1 so far", "300 so far"]
    )
    assert len(caplog.records) == (1 if discard else 3)


async def test_with_dead_letters_poison_is_confirmed_once_its_letter_is_acknowledged(
    bmq_session: bmq.Session, bmq_new_queue_uri: Any, queue: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    letters = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
    aside = PutAside("a test", letters, logger)
    await flood(queue, POISONS.values())
    messages = [await queue.receive(timeout=10) for _ in POISONS]
    for message in messages:
        aside.take(message, unreadable(message) or Poison(PoisonKind.FORGED, "for a test"))
        aside.take(message, Poison(PoisonKind.FORGED, "delivered again"))
        assert not message.confirmed
    await aside.close()
    assert all(message.confirmed for message in messages)
    assert aside.taken == len(POISONS)
    found = [await letters.receive(timeout=10) for _ in POISONS]
    assert [letter.properties["bmq_dead_guid"] for letter in found] == [each.guid for each in messages]
    assert sum("bmq_dead_raw" in letter.properties for letter in found) == len(UNREADABLE) + 1
    assert len(caplog.records) == 2


async def test_poison_waits_while_the_queue_for_dead_letters_is_full(
    bmq_session: bmq.Session,
    bmq_new_queue_uri: Any,
    queue: bmq.Queue,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bmq.client.poison._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("bmq.client.poison._LONGEST_PAUSE", 0.001)
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


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_the_text_of_an_error_is_bounded_and_never_empty() -> None:
    assert len(error_text(ValueError("x" * 10_000))) == 1000
    assert len(described(ValueError("x" * 10_000))) < 350
    assert described(ValueError("a\nb\x1b[2J")) == "ValueError: a b\\x1b[2J"
    assert described(ValueError()) == "ValueError"
    assert "str() of the error failed" in error_text(_Mute())
    assert "str() of the error failed" in described(_Mute())
