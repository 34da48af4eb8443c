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
from tests.workers.stage import Stage, consuming, numbered, post, seen_by

Fresh = Callable[..., str]


class Bad(Exception):
    """The error of a handler."""


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == "bmq.workers" and text in each.getMessage()]


def failing(stage: Stage, *payloads: bytes, error: BaseException | None = None) -> Any:
    """A handler that fails on these messages, or on all but b"good"."""

    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        if message.data in payloads or (not payloads and message.data != b"good"):
            raise error or Bad("the carrier does not answer")

    return handle


# ---- without a policy


async def test_the_default_policy_retries_with_growing_pauses_and_then_skips(
    stage: Stage, clock: FakeClock, other_session: bmq.Session, caplog: pytest.LogCaptureFixture
) -> None:
    await post(stage.queue, b"bad", b"good")
    async with consuming(stage.queue, failing(stage), clock=clock):
        assert await stage.next(6) == [b"bad"] * 5 + [b"good"]
    assert clock.slept == [1, 2, 4, 8]
    (last,) = told(caplog, "attempt 5; skipped")
    assert last.levelname == "ERROR"
    assert last.exc_info
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"bad"]


@pytest.mark.parametrize("limits", [{"max_unconfirmed_messages": 5}, {"max_unconfirmed_bytes": 50}], ids=str)
async def test_bad_messages_do_not_block_a_good_message_by_default(
    stage: Stage,
    clock: FakeClock,
    other_session: bmq.Session,
    caplog: pytest.LogCaptureFixture,
    limits: dict[str, int],
) -> None:
    bad = [b"bad %06d" % n for n in range(60)]
    await post(stage.queue, *bad, b"good")
    async with consuming(stage.queue, failing(stage), clock=clock, **limits):
        while await stage.next(1) != [b"good"]:
            pass
        await stage.queue.post(b"good")
        assert await stage.next(1) == [b"good"]
    assert told(caplog, "is blocked") == []
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == bad


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
    stage: Stage, clock: FakeClock, other_session: bmq.Session, error: Exception
) -> None:
    await post(stage.queue, b"bad", b"good")
    async with consuming(stage.queue, failing(stage, error=error), clock=clock):
        assert await stage.next(2) == [b"bad", b"good"]
    assert clock.slept == []
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == [b"bad"]


@pytest.mark.parametrize(
    "error",
    [OSError("away"), TimeoutError("late"), bmq.RequestTimeout("late"), bmq.StateError("suspended")],
    ids=lambda error: type(error).__name__,
)
async def test_default_policy_retries_passing_errors(
    stage: Stage, clock: FakeClock, error: Exception
) -> None:
    await post(stage.queue, b"bad", b"good")
    async with consuming(stage.queue, failing(stage, error=error), clock=clock):
        assert await stage.next(6) == [b"bad"] * 5 + [b"good"]


async def test_on_receipt_has_no_retry(stage: Stage, clock: FakeClock) -> None:
    await post(stage.queue, b"bad", b"good")
    async with consuming(stage.queue, failing(stage), ack=bmq.AckPolicy.ON_RECEIPT, clock=clock):
        assert await stage.next(2) == [b"bad", b"good"]
    assert clock.slept == []


async def test_skipped_messages_are_retried_after_a_reconnect(
    broker_uri: str, uri: str, clock: FakeClock
) -> None:
    async with FaultProxy(broker_uri) as proxy, bmq.connect(proxy.uri) as own:
        stage = Stage(await own.open_queue(uri, read=True, write=True, default_subscription=False))
        await post(stage.queue, *numbered(3), b"good")
        async with consuming(
            stage.queue,
            failing(stage),
            retry=bmq.NoRetry("skip"),
            clock=clock,
            max_unconfirmed_messages=2,
        ):
            assert await stage.next(4) == [*numbered(3), b"good"]
            proxy.cut()
            assert sorted(await stage.next(3)) == numbered(3)
            await stage.queue.post(b"good")
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

    await post(stage.queue, *numbered(9))
    leave = bmq.NoRetry("leave")
    async with consuming(stage.queue, failing(stage), retry=leave, on_error=count, **limits):
        assert await stage.next(3) == numbered(3)
        await stage.queue.post(b"more")  # the answer follows all earlier deliveries
    assert before == [0, 0, 0]
    (record,) = told(caplog, "is blocked")
    assert record.levelname == "WARNING"
    for text in (
        "handle",
        stage.queue.uri,
        "unconfirmed messages",
        "are confirmed, or until the queue is closed",
    ):
        assert text in record.getMessage()
    assert stage.seen.empty()


async def test_worker_continues_after_its_left_messages_are_confirmed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await post(stage.queue, *numbered(6))
    failed: list[bmq.Message] = []
    before: list[int] = []

    def confirm_the_last(failure: Failure) -> None:
        before.append(len(told(caplog, "is blocked")))
        if len(failed) in (1, 3):
            failed[-1].confirm()
        failed.append(failure.message)

    leave = bmq.NoRetry("leave")
    limits = {"max_unconfirmed_messages": 3, "concurrency": 1}
    async with consuming(stage.queue, failing(stage), retry=leave, on_error=confirm_the_last, **limits):
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
        await post(stage.queue, *numbered(200))
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
        await stage.queue.post(b"more")
        assert told(caplog, "is blocked") == []
        await post(stage.queue, *numbered(99))
        await stage.next(100)
        await waiting.acquire()
        go.release()
        await stage.queue.post(b"more")
    assert len(told(caplog, "is blocked")) == 1


async def test_a_message_without_its_dead_letter_stays_in_the_queue(
    session: bmq.Session,
    stage: Stage,
    fresh: Fresh,
    other_session: bmq.Session,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = await session.open_queue(fresh(), write=True)
    retry = bmq.NoRetry(bmq.DeadLetter(dead))
    async with consuming(stage.queue, failing(stage), retry=retry, max_unconfirmed_messages=2):
        await dead.close()
        await post(stage.queue, *numbered(5), b"good")
        assert (await stage.next(6))[-1] == b"good"
    assert len(told(caplog, "stays in the queue, unconfirmed: it could not be put aside")) == 1
    assert len(told(caplog, "1 so far")) == len(told(caplog, "5 so far")) == 1
    assert told(caplog, "is blocked") == []
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == numbered(5)


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

    await post(stage.queue, *numbered(3))
    retry = bmq.Backoff(5, retries=2, no_retry=no_retry)
    async with consuming(stage.queue, handle, retry=retry, clock=clock):
        assert await stage.next(5) == [b"0", b"1", b"1", b"1", b"2"]
    assert clock.slept == [5, 5]


async def test_a_custom_policy_receives_the_exception(stage: Stage, clock: FakeClock) -> None:
    class Polite:
        then = "discard"

        def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
            return float(str(error)) * attempt if attempt < 3 else None

    await post(stage.queue, b"bad", b"good")
    retry: Any = Polite()
    async with consuming(stage.queue, failing(stage, error=Bad("7")), retry=retry, clock=clock):
        assert await stage.next(4) == [b"bad", b"bad", b"bad", b"good"]
    assert clock.slept == [7, 14]


# ---- on purpose


@pytest.mark.parametrize("then", ["discard", "skip", "leave"])
async def test_a_rejected_message_is_given_up_at_once(
    stage: Stage, clock: FakeClock, other_session: bmq.Session, caplog: pytest.LogCaptureFixture, then: Any
) -> None:
    await post(stage.queue, b"bad", b"good")
    reject = failing(stage, error=bmq.Reject("no address"))
    async with consuming(stage.queue, reject, retry=bmq.Backoff(9, then=then), clock=clock):
        assert await stage.next(2) == [b"bad", b"good"]
    assert clock.slept == []
    (record,) = told(caplog, "rejected message")
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    outcome = {"discard": "discarded", "skip": "skipped", "leave": "left unconfirmed"}[then]
    assert f"attempt 1; {outcome}" in record.getMessage()
    assert record.getMessage().endswith(": no address")
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == ([] if then == "discard" else [b"bad"])


@pytest.mark.parametrize("retry", [None, bmq.NoRetry("discard"), bmq.Backoff(9, retries=1)], ids=str)
async def test_a_postponed_attempt_is_repeated_and_not_counted(
    stage: Stage, clock: FakeClock, other_session: bmq.Session, retry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Failure] = []
    tries = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal tries
        tries += 1
        if tries <= 10:
            raise bmq.RetryAfter(30 + tries, "the carrier is busy")
        await stage.handle(message)

    await post(stage.queue, b"x")
    with caplog.at_level(logging.INFO, "bmq.workers"):
        async with consuming(stage.queue, handle, retry=retry, clock=clock, on_error=failures.append):
            assert await stage.next(1) == [b"x"]
    assert clock.slept == [31, 32, 33, 34, 35, 36, 37, 38, 39, 40]
    assert {failure.attempt for failure in failures} == {1}
    assert {each.levelname for each in told(caplog, "")} == {"INFO"}
    assert len(told(caplog, "next attempt in 31 s: the carrier is busy")) == 1
    await stage.queue.close()
    assert await seen_by(other_session, stage.queue.uri) == []


async def test_postponed_attempts_use_no_retry_of_the_policy(stage: Stage, clock: FakeClock) -> None:
    tries = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal tries
        tries += 1
        await stage.handle(message)
        if message.data != b"good":
            raise bmq.RetryAfter(100) if tries in (1, 3) else Bad("no")

    await post(stage.queue, b"x", b"good")
    async with consuming(stage.queue, handle, retry=bmq.Backoff(5, retries=2), clock=clock):
        assert await stage.next(6) == [b"x"] * 5 + [b"good"]
    assert clock.slept == [100, 5, 100, 5]


def test_a_negative_pause_is_refused() -> None:
    with pytest.raises(bmq.UsageError, match="seconds must be a number of seconds, at least 0"):
        bmq.RetryAfter(-1)
