# SPDX-License-Identifier: Apache-2.0
"""Retries do not prolong a message's life: its post time is kept, and retries end with it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import bmq
from bmq.conventions import POSTED, post_time, with_post_time
from tests.sweeps import sweep
from tests.workers.conftest import FakeClock
from tests.workers.kinds import register
from tests.workers.stage import Stage, consuming

Fresh = Callable[..., str]


def aged(payload: bytes, seconds: float) -> bmq.PutMessage:
    """A message posted some seconds ago."""
    return bmq.PutMessage(payload, with_post_time(at=time.time() - seconds))


def test_a_post_time_is_kept_when_posted_again() -> None:
    properties = with_post_time({"x": 1}, at=1_700_000_000.25)
    assert properties == {"x": 1, "bmq_posted": 1_700_000_000_250}
    assert post_time(properties) == 1_700_000_000.25
    assert with_post_time(properties) == properties
    before = time.time()
    assert before - 0.001 <= (post_time(with_post_time()) or 0) <= time.time() + 0.001


@sweep("properties", [{}, {POSTED: "yesterday"}, {POSTED: True}])
def test_invalid_post_time_is_ignored(properties: dict[str, object]) -> None:
    assert post_time(properties) is None


@pytest.mark.statement("6.8")
async def test_give_up_after_counts_from_the_post(stage: Stage, clock: FakeClock) -> None:
    await stage.post(aged(b"old", 995), aged(b"older", 2000), b"of unknown age")
    retry = bmq.Backoff(1, retries=None, factor=2, cap=60, give_up_after=1000)
    pauses: dict[bytes, float] = dict.fromkeys([b"old", b"older", b"of unknown age"], 0.0)
    async with stage.consuming(stage.failing(), retry=retry, clock=clock):
        given_up = 0
        while given_up < len(pauses):
            failure = await stage.failures.get()
            given_up += failure.retry_in is None
            pauses[failure.message.data] += failure.retry_in or 0
    assert pauses[b"old"] == pytest.approx(4, abs=1)
    assert pauses[b"older"] == 0
    assert pauses[b"of unknown age"] == pytest.approx(999)


async def test_delay_does_not_change_the_age_of_a_message(stage: Stage, clock: FakeClock) -> None:
    tries = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal tries
        tries += 1
        raise bmq.RetryAfter(1) if tries <= 5 else OSError

    await stage.post(aged(b"a", 100))
    async with stage.consuming(handle, retry=bmq.Backoff(1, retries=1, give_up_after=150), clock=clock):
        found = [await stage.failures.get() for _ in range(7)]
    assert [failure.retry_in for failure in found] == [1] * 6 + [None]


@pytest.mark.statement("6.8")
@pytest.mark.parametrize("kind", ["single", "lanes", "durable", "batches"])
async def test_no_handler_is_called_after_the_life_of_a_message(
    session: bmq.Session, stage: Stage, fresh: Fresh, kind: str
) -> None:
    """A message may outlive its time here, behind a slow one, or in a queue of which nobody reads."""
    letters = await session.open_queue(fresh(), read=True, write=True)
    app = bmq.App(stage.broker_uri, grace=1)

    async def work(*messages: bmq.Message) -> None:
        for message in messages:
            await stage.handle(message)

    retry = bmq.Backoff(1, give_up_after=50, then=bmq.DeadLetter(letters.uri), durable=kind == "durable")
    together = {"max_messages": 2, "max_wait": 5} if kind == "batches" else {}
    register(app, stage.uri, kind, work, retry=retry, **together)
    await stage.post(aged(b"old", 60), aged(b"young", 10))
    async with app:
        letter = await letters.receive(timeout=20)
        assert await stage.next(1) == [b"young"]
    assert letter.data == b"old"
    assert str(letter.properties["bmq_dead_error"]).startswith("TimedOut: the message is 6")
    assert letter.properties["bmq_dead_attempts"] == 0
    assert stage.seen.empty()


@pytest.mark.statement("6.8")
async def test_a_message_that_grows_too_old_in_a_pause_has_no_further_attempt(stage: Stage) -> None:
    """The pause takes longer than the policy has asked for, as on a suspended machine."""

    class Suspended(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds + 100)

    await stage.post(b"bad", b"good")
    async with stage.consuming(stage.failing(), retry=bmq.Backoff(1, give_up_after=50), clock=Suspended()):
        assert await stage.next(2) == [b"bad", b"good"]
    assert stage.seen.empty()
    assert await stage.left() == [b"bad"]


@pytest.mark.statement("6.8")
async def test_the_post_time_travels_with_dead_letters(
    session: bmq.Session, stage: Stage, fresh: Fresh, clock: FakeClock
) -> None:
    dead = await session.open_queue(fresh(), read=True, write=True, default_subscription=False)
    posted = time.time() - 500
    await stage.queue.post(b"a", properties=with_post_time(at=posted))
    first = bmq.Backoff(every=1, retries=100, give_up_after=300, then=bmq.DeadLetter(dead))
    second = bmq.Backoff(1, retries=None, factor=2, cap=60, give_up_after=400)
    reporting = {"on_error": stage.failures.put_nowait}
    async with (
        consuming(stage.queue, stage.failing(), retry=first, clock=clock),
        consuming(dead, stage.failing(), retry=second, clock=clock, **reporting),
    ):
        failure = await stage.failures.get()
    assert post_time(failure.message.properties) == pytest.approx(posted, abs=0.001)
    assert failure.message.properties["bmq_dead_attempts"] == 0  # its time was over before the first attempt
    assert failure.retry_in is None
    assert isinstance(failure.error, bmq.TimedOut)
