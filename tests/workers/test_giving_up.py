# SPDX-License-Identifier: Apache-2.0
"""A handler that keeps failing: the default policy, and the results of each way of giving up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.testing import FaultProxy
from bmq.workers import Failure
from tests.waiting import eventually
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming, numbered

Fresh = Callable[..., str]


class Bad(Exception):
    """The error of a handler."""


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == "bmq.workers" and text in each.getMessage()]


# ---- without a policy


@pytest.mark.parametrize(
    "error",
    [
        Bad("no"),
        OSError("away"),
        TimeoutError("late"),
        bmq.RequestTimeout("late"),
        bmq.StateError("suspended"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_default_policy_retries_with_growing_pauses_and_then_skips(
    stage: Stage, clock: FakeClock, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    await stage.post(b"bad", b"good")
    async with consuming(stage.queue, stage.failing(error=error), clock=clock):
        assert await stage.next(6) == [b"bad"] * 5 + [b"good"]
    assert clock.slept == [1, 2, 4, 8]
    (last,) = told(caplog, "attempt 5; skipped")
    assert last.levelname == "ERROR"
    assert last.exc_info
    assert await stage.left() == [b"bad"]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no JSON"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        TypeError("not a number"),
        KeyError("CustomerId"),
        AttributeError("no such thing"),
        bmq.ProtocolError("cut short"),
        bmq.InvalidPayload("empty"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_default_policy_does_not_retry_repeating_errors(
    stage: Stage, clock: FakeClock, error: Exception
) -> None:
    await stage.post(b"bad", b"good")
    async with consuming(stage.queue, stage.failing(error=error), clock=clock):
        assert await stage.next(2) == [b"bad", b"good"]
    assert clock.slept == []
    assert await stage.left() == [b"bad"]


@pytest.mark.parametrize("limits", [{"max_unconfirmed_messages": 5}, {"max_unconfirmed_bytes": 50}], ids=str)
async def test_bad_messages_do_not_block_a_good_message_by_default(
    stage: Stage, clock: FakeClock, caplog: pytest.LogCaptureFixture, limits: dict[str, int]
) -> None:
    bad = [b"bad %06d" % n for n in range(60)]
    await stage.post(*bad, b"good")
    async with consuming(stage.queue, stage.failing(), clock=clock, **limits):
        while await stage.next(1) != [b"good"]:
            pass
        await stage.post(b"good")
        assert await stage.next(1) == [b"good"]
    assert told(caplog, "is blocked") == []
    assert await stage.left() == bad


async def test_on_receipt_has_no_retry(stage: Stage, clock: FakeClock) -> None:
    await stage.post(b"bad", b"good")
    async with consuming(stage.queue, stage.failing(), ack=bmq.AckPolicy.ON_RECEIPT, clock=clock):
        assert await stage.next(2) == [b"bad", b"good"]
    assert clock.slept == []


async def test_skipped_messages_are_retried_after_a_reconnect(broker_uri: str, uri: str) -> None:
    async with FaultProxy(broker_uri) as proxy, bmq.connect(proxy.uri) as own:
        queue = await own.open_queue(uri, read=True, write=True, default_subscription=False)
        stage, retry = Stage(queue, broker_uri), bmq.NoRetry("skip")
        await stage.post(*numbered(3), b"good")
        async with consuming(queue, stage.failing(), retry=retry, max_unconfirmed_messages=2):
            assert await stage.next(4) == [*numbered(3), b"good"]
            proxy.cut()
            assert sorted(await stage.next(3)) == numbered(3)
            await stage.post(b"good")
            assert await stage.next(1) == [b"good"]


# ---- standing still


@pytest.mark.parametrize(
    "limits", [{"max_unconfirmed_messages": 3}, {"max_unconfirmed_bytes": 3}], ids=["messages", "bytes"]
)
async def test_blocked_worker_is_logged_once_with_the_reason(
    stage: Stage, caplog: pytest.LogCaptureFixture, limits: dict[str, int]
) -> None:
    before: list[int] = []

    def count(failure: Failure) -> None:
        before.append(len(told(caplog, "is blocked")))

    await stage.post(*numbered(9))
    async with stage.consuming(stage.failing(), retry=bmq.NoRetry("leave"), on_error=count, **limits):
        assert await stage.next(3) == numbered(3)
        await stage.post(b"more")  # the answer follows all earlier deliveries
    assert before == [0, 0, 0]
    (record,) = told(caplog, "is blocked")
    assert record.levelname == "WARNING"
    for text in ("handle", stage.uri, "unconfirmed messages", "are confirmed, or until the queue is closed"):
        assert text in record.getMessage()
    assert stage.seen.empty()


async def test_worker_continues_after_its_left_messages_are_confirmed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.post(*numbered(6))
    failed: list[bmq.Message] = []
    before: list[int] = []

    def confirm_the_last(failure: Failure) -> None:
        before.append(len(told(caplog, "is blocked")))
        if len(failed) in (1, 3):
            failed[-1].confirm()
        failed.append(failure.message)

    options: dict[str, Any] = {"on_error": confirm_the_last, "max_unconfirmed_messages": 3, "concurrency": 1}
    async with stage.consuming(stage.failing(), retry=bmq.NoRetry("leave"), **options):
        assert await stage.next(5) == numbered(5)
        await eventually(lambda: len(told(caplog, "is blocked")) == 1)
    assert before == [0] * 5, "three of five are left unconfirmed, and there is room for no more"


async def test_worker_with_unconfirmed_messages_is_logged_after_a_while(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    held: list[bmq.Message] = []
    waiting, go = asyncio.Semaphore(0), asyncio.Semaphore(0)

    class Stepped(FakeClock):
        async def sleep(self, seconds: float) -> None:
            waiting.release()
            await go.acquire()

    async def handle(message: bmq.Message) -> None:
        held.append(message)
        await stage.handle(message)

    manual: Any = {"ack": bmq.AckPolicy.MANUAL, "max_unconfirmed_messages": 100, "clock": Stepped()}
    async with consuming(stage.queue, handle, **manual):
        await stage.post(*numbered(200))
        await stage.next(100)
        await waiting.acquire()  # full for a moment, as usual
        for message in held[:100]:
            message.confirm()
        await stage.next(100)
        go.release()
        await waiting.acquire()  # full again, of different messages
        for message in held[100:]:
            message.confirm()
        go.release()
        await stage.post(b"more")
        assert told(caplog, "is blocked") == []
        await stage.post(*numbered(99))
        await stage.next(100)
        await waiting.acquire()
        go.release()
        await stage.post(b"more")
    assert len(told(caplog, "is blocked")) == 1


async def test_a_message_without_its_dead_letter_stays_in_the_queue(
    session: bmq.Session, stage: Stage, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    dead = await session.open_queue(fresh(), write=True)
    retry = bmq.NoRetry(bmq.DeadLetter(dead))
    async with consuming(stage.queue, stage.failing(), retry=retry, max_unconfirmed_messages=2):
        await dead.close()
        await stage.post(*numbered(5), b"good")
        assert (await stage.next(6))[-1] == b"good"
    assert len(told(caplog, "stays in the queue, unconfirmed: it could not be put aside")) == 1
    assert len(told(caplog, "1 so far")) == len(told(caplog, "5 so far")) == 1
    assert told(caplog, "is blocked") == []
    assert await stage.left() == numbered(5)


# ---- permanent errors


@pytest.mark.parametrize(
    "no_retry",
    [Bad, (KeyError, Bad), lambda error: "carrier" in str(error)],
    ids=["type", "types", "function"],
)
async def test_hopeless_errors_are_not_retried(stage: Stage, clock: FakeClock, no_retry: Any) -> None:
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        if message.data == b"0":
            raise Bad("the carrier is no more")
        if message.data == b"1":
            raise OSError("try again")

    await stage.post(*numbered(3))
    retry = bmq.Backoff(5, retries=2, no_retry=no_retry)
    async with consuming(stage.queue, handle, retry=retry, clock=clock):
        assert await stage.next(5) == [b"0", b"1", b"1", b"1", b"2"]
    assert clock.slept == [5, 5]


async def test_a_custom_policy_receives_the_exception(stage: Stage, clock: FakeClock) -> None:
    class Polite:
        then = "discard"

        def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
            return float(str(error)) * attempt if attempt < 3 else None

    await stage.post(b"bad", b"good")
    retry: Any = Polite()
    async with consuming(stage.queue, stage.failing(error=Bad("7")), retry=retry, clock=clock):
        assert await stage.next(4) == [b"bad", b"bad", b"bad", b"good"]
    assert clock.slept == [7, 14]


# ---- on purpose


@pytest.mark.parametrize(
    ("then", "outcome", "left"),
    [("discard", "discarded", []), ("skip", "skipped", [b"bad"]), ("leave", "left unconfirmed", [b"bad"])],
    ids=["discard", "skip", "leave"],
)
async def test_a_rejected_message_is_given_up_at_once(
    stage: Stage,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    then: Any,
    outcome: str,
    left: list[bytes],
) -> None:
    await stage.post(b"bad", b"good")
    reject = stage.failing(error=bmq.Reject("no address"))
    async with consuming(stage.queue, reject, retry=bmq.Backoff(9, then=then), clock=clock):
        assert await stage.next(2) == [b"bad", b"good"]
    assert clock.slept == []
    (record,) = told(caplog, "rejected message")
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    assert f"attempt 1; {outcome}" in record.getMessage()
    assert record.getMessage().endswith(": no address")
    assert await stage.left() == left


@pytest.mark.parametrize("retry", [None, bmq.NoRetry("discard"), bmq.Backoff(9, retries=1)], ids=str)
async def test_a_postponed_attempt_is_repeated_and_not_counted(
    stage: Stage, clock: FakeClock, retry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal tries
        tries += 1
        if tries <= 10:
            raise bmq.RetryAfter(30 + tries, "the carrier is busy")
        await stage.handle(message)

    await stage.post(b"x")
    with caplog.at_level(logging.INFO, "bmq.workers"):
        async with stage.consuming(handle, retry=retry, clock=clock):
            assert await stage.next(1) == [b"x"]
    assert clock.slept == [31, 32, 33, 34, 35, 36, 37, 38, 39, 40]
    assert [stage.failures.get_nowait().attempt for _ in range(10)] == [1] * 10
    assert {each.levelname for each in told(caplog, "")} == {"INFO"}
    assert len(told(caplog, "next attempt in 31 s: the carrier is busy")) == 1
    assert await stage.left() == []


async def test_postponed_attempts_use_no_retry_of_the_policy(stage: Stage, clock: FakeClock) -> None:
    tries = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal tries
        tries += 1
        await stage.handle(message)
        if message.data != b"good":
            raise bmq.RetryAfter(100) if tries in (1, 3) else Bad("no")

    await stage.post(b"x", b"good")
    async with consuming(stage.queue, handle, retry=bmq.Backoff(5, retries=2), clock=clock):
        assert await stage.next(6) == [b"x"] * 5 + [b"good"]
    assert clock.slept == [100, 5, 100, 5]


def test_a_negative_pause_is_refused() -> None:
    with pytest.raises(bmq.UsageError, match="seconds must be a number of seconds, at least 0"):
        bmq.RetryAfter(-1)
