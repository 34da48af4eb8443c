# SPDX-License-Identifier: Apache-2.0
"""Retries do not prolong a message's life: its post time is kept, and retries end with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

import bmq
from bmq.conventions import POSTED, post_time, with_post_time
from bmq.workers import Failure
from tests.sweeps import sweep
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming, seen_by

Fresh = Callable[..., str]


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


def test_backoff_makes_no_attempt_beyond_a_messages_life() -> None:
    policy = bmq.Backoff(every=1, retries=9, give_up_after=2)
    assert [policy.delay(1, elapsed, OSError()) for elapsed in (0, 1, 1.1, 5)] == [1, 1, None, None]
    with pytest.raises(bmq.UsageError, match="give_up_after"):
        bmq.Backoff(1, give_up_after=-1)


@pytest.mark.statement("6.8")
async def test_give_up_after_counts_from_the_post(stage: Stage, clock: FakeClock) -> None:
    failures: asyncio.Queue[Failure] = asyncio.Queue()

    async def handle(message: bmq.Message) -> None:
        raise OSError

    await stage.queue.post(b"old", properties=with_post_time(at=time.time() - 995))
    await stage.queue.post(b"older", properties=with_post_time(at=time.time() - 2000))
    await stage.queue.post(b"of unknown age")
    retry = bmq.Backoff(1, retries=None, factor=2, cap=60, give_up_after=1000)
    async with consuming(stage.queue, handle, retry=retry, clock=clock, on_error=failures.put_nowait):
        pauses: dict[bytes, float] = dict.fromkeys([b"old", b"older", b"of unknown age"], 0.0)
        given_up = 0
        while given_up < len(pauses):
            failure = await failures.get()
            given_up += failure.retry_in is None
            pauses[failure.message.data] += failure.retry_in or 0
    assert pauses[b"old"] == pytest.approx(4, abs=1)
    assert pauses[b"older"] == 0
    assert pauses[b"of unknown age"] == pytest.approx(999)


async def test_delay_does_not_change_the_age_of_a_message(stage: Stage, clock: FakeClock) -> None:
    failures: asyncio.Queue[Failure] = asyncio.Queue()
    tries = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal tries
        tries += 1
        raise bmq.RetryAfter(1) if tries <= 5 else OSError

    await stage.queue.post(b"a", properties=with_post_time(at=time.time() - 100))
    retry = bmq.Backoff(every=1, retries=1, give_up_after=150)
    async with consuming(stage.queue, handle, retry=retry, clock=clock, on_error=failures.put_nowait):
        found = [await failures.get() for _ in range(7)]
    assert [failure.retry_in for failure in found] == [1] * 6 + [None]


@pytest.mark.statement("6.8")
async def test_message_deleted_by_the_broker_is_not_retried(session: bmq.Session, fresh: Fresh) -> None:
    """The domain keeps messages for two seconds."""
    queue = await session.open_queue(
        fresh("bmq.test.ttl.priority"), read=True, write=True, default_subscription=False
    )
    attempts: list[float] = []
    given_up = asyncio.Event()

    async def handle(message: bmq.Message) -> None:
        attempts.append(time.time() - (post_time(message.properties) or 0))
        raise OSError

    def note(failure: Failure) -> None:
        if failure.retry_in is None:
            given_up.set()

    await queue.post(b"a", properties=with_post_time())
    retry = bmq.Backoff(every=0.3, retries=100, give_up_after=2)
    async with consuming(queue, handle, retry=retry, on_error=note):
        await asyncio.wait_for(given_up.wait(), 20)
    assert len(attempts) > 1
    # Each attempt but the last had another one within the two seconds; the machine may start it late.
    assert max(attempts[:-1]) + 0.3 <= 2


@pytest.mark.statement("6.8")
@pytest.mark.parametrize("how", ["one worker", "lanes", "durable", "a batch"])
async def test_no_handler_is_called_after_the_life_of_a_message(
    session: bmq.Session, stage: Stage, fresh: Fresh, broker_uri: str, how: str
) -> None:
    """A message may outlive its time here, behind a slow one, or in a queue of which nobody reads."""
    letters = await session.open_queue(fresh(), read=True, write=True)
    seen: asyncio.Queue[bytes] = asyncio.Queue()
    app = bmq.App(broker_uri, grace=1)
    retry = bmq.Backoff(1, give_up_after=50, then=bmq.DeadLetter(letters.uri), durable=how == "durable")
    if how == "a batch":

        @app.batch_consumer(stage.queue.uri, retry=retry, max_messages=2, max_wait=0.01)
        async def batch(messages: list[bmq.Message]) -> None:
            for message in messages:
                seen.put_nowait(message.data)

    else:

        @app.consumer(stage.queue.uri, retry=retry, key="x" if how == "lanes" else None)
        async def handle(message: bmq.Message) -> None:
            seen.put_nowait(message.data)

    await stage.queue.post(b"old", properties=with_post_time(at=time.time() - 60))
    await stage.queue.post(b"young", properties=with_post_time(at=time.time() - 10))
    async with app:
        letter = await letters.receive(timeout=20)
        assert await asyncio.wait_for(seen.get(), 20) == b"young"
    assert letter.data == b"old"
    assert str(letter.properties["bmq_dead_error"]).startswith("TimedOut: the message is 6")
    assert letter.properties["bmq_dead_attempts"] == 0
    assert seen.empty()


@pytest.mark.statement("6.8")
async def test_a_message_that_grows_too_old_in_a_pause_has_no_further_attempt(
    stage: Stage, other_session: bmq.Session
) -> None:
    """The pause takes longer than the policy has asked for, as on a suspended machine."""
    attempts = 0

    class Suspended(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds + 100)

    async def handle(message: bmq.Message) -> None:
        nonlocal attempts
        attempts += 1
        await stage.handle(message)
        if message.data == b"bad":
            raise OSError("away")

    await stage.queue.post(b"bad")
    await stage.queue.post(b"good")
    retry = bmq.Backoff(1, give_up_after=50)
    async with consuming(stage.queue, handle, retry=retry, clock=Suspended()):
        assert await stage.next(2) == [b"bad", b"good"]
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"bad"]
    assert attempts == 2


@pytest.mark.statement("6.8")
async def test_the_post_time_travels_with_dead_letters(
    session: bmq.Session, stage: Stage, fresh: Fresh, clock: FakeClock
) -> None:
    dead = await session.open_queue(fresh(), read=True, write=True, default_subscription=False)
    posted = time.time() - 500

    async def handle(message: bmq.Message) -> None:
        raise OSError

    await stage.queue.post(b"a", properties=with_post_time(at=posted))
    failures: asyncio.Queue[Failure] = asyncio.Queue()
    retry = bmq.Backoff(every=1, retries=100, give_up_after=300, then=bmq.DeadLetter(dead))
    async with (
        consuming(stage.queue, handle, retry=retry, clock=clock),
        consuming(
            dead,
            handle,
            retry=bmq.Backoff(1, retries=None, factor=2, cap=60, give_up_after=400),
            clock=clock,
            on_error=failures.put_nowait,
        ),
    ):
        failure = await failures.get()
    assert post_time(failure.message.properties) == pytest.approx(posted, abs=0.001)
    assert failure.message.properties["bmq_dead_attempts"] == 0  # its time was over before the first attempt
    assert failure.retry_in is None
    assert isinstance(failure.error, bmq.TimedOut)
