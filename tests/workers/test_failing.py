# SPDX-License-Identifier: Apache-2.0
"""A handler that fails: deadlines, retries and their policies, the ways of giving up, and the log."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bmq
from bmq.conventions import POSTED, post_time, with_post_time
from bmq.testing import FaultProxy
from bmq.workers import Failure
from tests.sweeps import sweep
from tests.waiting import eventually
from tests.workers.conftest import FakeClock, Standstill
from tests.workers.kinds import register
from tests.workers.stage import Stage, consuming, numbered

Fresh = Callable[..., str]


async def waits() -> None:
    await asyncio.Event().wait()


async def ignores() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass


async def raises_another() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise KeyError("cleaning up")


async def raises_its_own() -> None:
    raise TimeoutError("its own")


@pytest.mark.parametrize(
    ("work", "kind", "text"),
    [
        (waits, TimeoutError, "not done within its deadline of 0.02 s"),
        (ignores, TimeoutError, "not done within its deadline of 0.02 s"),
        (raises_another, KeyError, "cleaning up"),
        (raises_its_own, TimeoutError, "its own"),
    ],
    ids=["waits", "ignores", "raises another", "raises its own"],
)
@pytest.mark.parametrize("kind_of_handler", ["single", "lanes", "middleware", "batches"])
async def test_a_handler_beyond_its_deadline_has_failed(
    stage: Stage, kind_of_handler: str, work: Any, kind: type[Exception], text: str
) -> None:
    async def handle(*messages: bmq.Message) -> None:
        if messages[0].data == b"bad":
            await work()
        await stage.handle(messages[0])

    app = bmq.App(stage.broker_uri, on_error=stage.failures.put_nowait, grace=1)
    options: dict[str, Any] = {"max_messages": 1} if kind_of_handler == "batches" else {}
    register(app, stage.uri, kind_of_handler, handle, timeout=0.02, retry=bmq.NoRetry(), **options)
    await stage.post(b"bad", b"good")
    async with app:
        while await stage.next(1) != [b"good"]:
            pass
        failure = stage.failures.get_nowait()
    assert isinstance(failure.error, kind)
    assert text in str(failure.error)
    assert await stage.left() == [b"bad"]


async def test_worker_cancelled_after_its_deadline_ends(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await stage.hold(message)

    await stage.post(b"x")
    async with consuming(stage.queue, handle, timeout=0.02, grace=0) as task:
        await stage.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# ---- retries


@pytest.mark.statement("6.7", "6.14")
@pytest.mark.parametrize("kind", ["single", "batches"])
async def test_failed_messages_are_retried_side_by_side_while_newer_ones_wait(
    stage: Stage, kind: str
) -> None:
    """Of ten messages four fail, and all at once; ten newer ones wait until the last one succeeds."""
    failing = {b"2", b"4", b"6", b"8"}
    seen: list[bytes] = []
    done: set[bytes] = set()
    together = asyncio.Barrier(10)

    async def attempt(message: bmq.Message) -> None:
        data = message.data
        seen.append(data)
        if seen.count(data) == 1 and int(data) < 10:
            await together.wait()
        if data in failing:
            raise OSError("away")
        done.add(data)

    app = bmq.App(stage.broker_uri, grace=1)
    options: dict[str, Any] = {"max_messages": 1} if kind == "batches" else {}
    retry = bmq.Backoff(0.001, factor=2, cap=0.01, retries=None, blocks=True)
    register(app, stage.uri, kind, attempt, concurrency=10, retry=retry, **options)
    async with app:
        await stage.post(*numbered(10))
        await eventually(lambda: all(seen.count(data) >= 2 for data in failing))
        assert app.status()[0].state is bmq.workers.SubscriberState.BLOCKED
        await stage.post(*numbered(20)[10:])
        before = len(seen)
        await eventually(lambda: len(seen) >= before + 20)
        assert set(seen) == set(numbered(10)), "newer messages wait"
        failing.remove(b"2")
        await eventually(lambda: b"2" in done)
        assert set(seen) == set(numbered(10)), "as long as any message fails"
        failing.clear()
        await eventually(lambda: done == set(numbered(20)))


@pytest.mark.parametrize("how", [{"key": "x"}, {"group": lambda queue: queue.group("x")}])
def test_with_a_key_only_its_messages_wait(how: dict[str, Any]) -> None:
    retry = bmq.Backoff(1, retries=None, blocks=True)
    with pytest.raises(bmq.UsageError, match=r"omit (key or )?blocks"):
        bmq.App().consumer("bmq://bmq.test.mem.priority/orders", retry=retry, **how)(print)


async def test_a_worker_waiting_for_a_retry_does_not_block_other_workers(
    stage: Stage, standstill: Standstill
) -> None:
    await stage.post(*numbered(5))
    handler, retry = stage.failing(b"0"), bmq.Backoff(1)
    async with consuming(stage.queue, handler, retry=retry, concurrency=2, clock=standstill):
        assert await stage.next(5) == numbered(5)


# ---- policies


class Bad(Exception):
    """The error of a handler."""


class Polite:
    """A policy of the application."""

    then = "discard"

    def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
        return float(str(error)) * attempt if attempt < 3 else None


def later(seconds: float) -> bmq.RetryAfter:
    return bmq.RetryAfter(seconds, "the carrier is busy")


AWAY, GONE = OSError("away"), Bad("the carrier is no more")
TWICE = bmq.Backoff(5, retries=2, no_retry=Bad)
#: The policy, the errors of the attempts (the last one again and again), the pauses, and whether the message
#: stays in the queue.
ENDS: dict[str, tuple[Any, list[BaseException | None], list[float], bool]] = {
    "three retries": (bmq.Backoff(10, retries=3, then="discard"), [AWAY], [10, 10, 10], False),
    "growing pauses": (
        bmq.Backoff(1, retries=None, factor=2, cap=4, give_up_after=10),
        [AWAY],
        [1, 2, 4, pytest.approx(2.9)],  # the last attempt begins before the limit
        True,
    ),
    "a success in the end": (TWICE, [AWAY, AWAY, None], [5, 5], False),
    "a hopeless type": (TWICE, [AWAY, GONE], [5], True),
    "hopeless types": (bmq.Backoff(5, no_retry=(KeyError, Bad)), [GONE], [], True),
    "a hopeless text": (bmq.Backoff(5, no_retry=lambda error: "no more" in str(error)), [GONE], [], True),
    "the application's own policy": (Polite(), [Bad("7")], [7, 14], False),
    "postponed": (None, [*map(later, range(31, 41)), None], [*range(31, 41)], False),
    "postponed, and one attempt": (bmq.NoRetry("discard"), [later(3), later(4), None], [3, 4], False),
    "postponed between failures": (TWICE, [later(100), AWAY, later(100), AWAY], [100, 5, 100, 5], True),
    **{
        f"by default, {type(error).__name__}": (None, [error], [1, 2, 4, 8], True)
        for error in (
            Bad("no"),
            TimeoutError("late"),
            bmq.RequestTimeout("late"),
            bmq.StateError("suspended"),
        )
    },
    **{
        f"by default, {type(error).__name__}": (None, [error], [], True)
        for error in (
            ValueError("no JSON"),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            TypeError("not a number"),
            KeyError("CustomerId"),
            AttributeError("no such thing"),
            bmq.ProtocolError("cut short"),
            bmq.InvalidPayload("empty"),
        )
    },
}


@pytest.mark.statement("6.6", "6.7")
@pytest.mark.parametrize("name", ENDS)
async def test_a_policy_decides_about_attempts_pauses_and_the_end(
    stage: Stage, clock: FakeClock, name: str
) -> None:
    retry, errors, pauses, stays = ENDS[name]
    tries = 0

    async def handle(message: bmq.Message) -> None:
        nonlocal tries
        await stage.handle(message)
        if message.data == b"bad":
            tries += 1
            if (error := errors[min(tries, len(errors)) - 1]) is not None:
                raise error

    await stage.post(b"bad", b"good")
    async with stage.consuming(handle, retry=retry, clock=clock):
        assert await stage.next(len(pauses) + 2) == [b"bad"] * (len(pauses) + 1) + [b"good"]
    assert clock.slept == pauses
    assert await stage.left() == ([b"bad"] if stays else [])
    number, expected = 1, list[tuple[int, float | None]]()
    for index, pause in enumerate([*pauses, *([] if errors[-1] is None else [None])]):
        expected.append((number, pause))
        number += not isinstance(errors[min(index, len(errors) - 1)], bmq.RetryAfter)
    found = [stage.failures.get_nowait() for _ in range(stage.failures.qsize())]
    assert [(each.attempt, each.retry_in) for each in found] == expected


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == "bmq.workers" and text in each.getMessage()]


@given(st.floats(0.5, 60), st.floats(1, 10), st.floats(0.5, 600), st.floats(0, 1000), st.integers(1, 10**6))
def test_backoff_never_exceeds_the_age_limit(
    first: float, factor: float, cap: float, give_up_after: float, attempt: int
) -> None:
    policy = bmq.Backoff(first, retries=None, factor=factor, cap=cap, give_up_after=give_up_after)
    for elapsed in (0.0, give_up_after / 2, give_up_after, give_up_after + 1):
        delay = policy.delay(attempt, elapsed, RuntimeError())
        if elapsed >= give_up_after:
            assert delay is None
        else:
            assert delay is not None
            assert 0 < delay <= give_up_after - elapsed
            assert factor == 1 or delay <= cap


def test_backoff_with_a_number_makes_no_attempt_beyond_the_age_limit() -> None:
    policy = bmq.Backoff(every=1, retries=9, give_up_after=2)
    assert [policy.delay(1, elapsed, OSError()) for elapsed in (0, 1, 1.1, 5)] == [1, 1, None, None]


@sweep(
    "make, why",
    [
        (lambda: bmq.Backoff(-1), "every"),
        (lambda: bmq.Backoff(1, retries=-1), "retries"),
        (lambda: bmq.Backoff(1, factor=0.5), "factor"),
        (lambda: bmq.Backoff(1, cap=0), "cap"),
        (lambda: bmq.Backoff(1, then="drop"), "then"),  # type: ignore[arg-type]
        (lambda: bmq.NoRetry(then=None), "then"),  # type: ignore[arg-type]
        (lambda: bmq.Backoff(1, give_up_after=-1), "give_up_after"),
        (lambda: bmq.Backoff(1, durable=True, blocks=True), "omit blocks"),
        (lambda: bmq.Backoff(1, no_retry="ValueError"), "no_retry must be an exception type"),  # type: ignore[arg-type]
        (lambda: bmq.Backoff(1, no_retry=(ValueError, "x")), "no_retry must be an exception type"),  # type: ignore[arg-type]
        (lambda: bmq.Backoff(1, no_retry=int), "no_retry must be an exception type"),  # type: ignore[arg-type]
        (lambda: bmq.RetryAfter(-1), "seconds must be a number of seconds, at least 0"),
        (lambda: bmq.PartlyFailed({}), "needs a failed message"),
    ],
)
def test_invalid_policies_are_refused(make: Callable[[], object], why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        make()


# ---- the life of a message


def aged(payload: bytes, seconds: float) -> bmq.PutMessage:
    """A message posted some seconds ago."""
    return bmq.PutMessage(payload, with_post_time(at=time.time() - seconds))


@sweep("properties", [{}, {POSTED: "yesterday"}, {POSTED: True}])
def test_a_post_time_is_kept_when_posted_again(properties: dict[str, object]) -> None:
    assert post_time(properties) is None, "invalid ones are ignored"
    posted = with_post_time({"x": 1}, at=1_700_000_000.25)
    assert posted == {"x": 1, "bmq_posted": 1_700_000_000_250}
    assert with_post_time(posted) == posted
    assert post_time(posted) == 1_700_000_000.25
    before = time.time()
    assert before - 0.001 <= (post_time(with_post_time()) or 0) <= time.time() + 0.001


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


# ---- giving up


async def test_dead_letter_has_origin_and_error(
    session: bmq.Session, stage: Stage, fresh: Fresh, clock: FakeClock
) -> None:
    dead = await session.open_queue(fresh(), read=True, write=True)
    ack = await stage.queue.post(
        b"payload",
        properties={"CustomerId": bmq.PropertyValue(bmq.PropertyType.SHORT, 7), "raw": b"\0"},
        tags={"eu"},
    )
    handler = stage.failing(error=ValueError("no such customer ☹"))
    retry = bmq.Backoff(every=1, retries=2, then=bmq.DeadLetter(dead))
    async with consuming(stage.queue, handler, retry=retry, clock=clock):
        letter = await dead.receive(timeout=10)
    assert letter.data == b"payload"
    assert dict(letter.properties) == {
        "CustomerId": 7,
        "raw": b"\0",
        "t.eu": True,
        "bmq_dead_attempts": 3,
        "bmq_dead_error": "ValueError: no such customer ☹",
        "bmq_dead_guid": ack.guid,
        "bmq_dead_queue": stage.uri,
    }
    assert letter.property_types["CustomerId"] is bmq.PropertyType.SHORT
    assert letter.tags == {"eu"}
    letter.confirm()
    assert await stage.left() == []


@pytest.mark.parametrize("status", [bmq.AckStatus.UNKNOWN, bmq.AckStatus.LIMIT_MESSAGES])
async def test_a_dead_letter_refused_without_a_reason_or_for_lack_of_room_is_posted_again(
    bmq_broker: bmq.broker.Broker,
    bmq_session: bmq.Session,
    stage: Stage,
    fresh: Fresh,
    clock: FakeClock,
    status: bmq.AckStatus,
) -> None:
    """Behind a proxy, a broker may have stored the message: the GUID is the same."""
    dead = await bmq_session.open_queue(fresh(), read=True, write=True)
    await stage.post(b"x")
    bmq_broker.faults.nack(status, 2)
    retry = bmq.NoRetry(then=bmq.DeadLetter(dead))
    async with consuming(stage.queue, stage.failing(), retry=retry, clock=clock):
        assert (await dead.receive(timeout=10)).data == b"x"
    assert clock.slept == [1, 2]


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


@pytest.mark.parametrize(
    ("error", "then", "level", "text", "left"),
    [
        (
            bmq.Reject("no address"),
            "discard",
            "WARNING",
            "rejected .* attempt 1; discarded: no address",
            False,
        ),
        (bmq.Reject("no address"), "skip", "WARNING", "rejected .* attempt 1; skipped.*: no address", True),
        (bmq.Reject("no address"), "leave", "WARNING", "rejected .* attempt 1; left unconfirmed: no", True),
        (
            bmq.RetryAfter(31, "busy"),
            "skip",
            "INFO",
            "puts off .* attempt 1; next attempt in 31 s: busy",
            True,
        ),
        (Bad("no"), "skip", "ERROR", "failed on .* attempt 1; skipped", True),
    ],
    ids=["rejected and discarded", "rejected", "rejected and left", "postponed", "failed"],
)
async def test_the_log_tells_what_becomes_of_a_message(
    stage: Stage,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    then: Any,
    level: str,
    text: str,
    left: bool,
) -> None:
    caplog.set_level(logging.INFO, "bmq.workers")
    await stage.post(b"bad")
    async with stage.consuming(stage.failing(error=error), retry=bmq.NoRetry(then), clock=clock):
        await stage.failures.get()
    record = next(each for each in caplog.records if each.name == "bmq.workers")
    assert re.search(text, record.getMessage())
    assert record.levelname == level
    assert bool(record.exc_info) is (level == "ERROR")
    assert await stage.left() == ([b"bad"] if left else [])


@pytest.mark.parametrize("kind", ["single", "suspends", "middleware", "batches"])
async def test_a_returned_awaitable_is_no_success(stage: Stage, kind: str) -> None:
    """``return save(...)`` without ``await`` has saved nothing."""

    async def save() -> None:
        raise AssertionError("nothing awaits this")

    async def handle(message: bmq.Message) -> Any:
        if kind == "suspends":
            await asyncio.sleep(0)
        return save()

    async def handle_batch(messages: list[bmq.Message]) -> Any:
        return save()

    async def around(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        return await call_next()

    app = bmq.App(stage.broker_uri, middlewares=[around] if kind == "middleware" else [])
    options: dict[str, Any] = {"retry": bmq.NoRetry(), "on_error": stage.failures.put_nowait}
    if kind == "batches":
        app.batch_consumer(stage.uri, max_messages=1, max_wait=0, **options)(handle_batch)
    else:
        app.consumer(stage.uri, **options)(handle)
    await stage.post(b"0")
    async with app:
        failure = await stage.failures.get()
    assert "returned an awaitable" in str(failure.error)
    assert await stage.left() == [b"0"]


# ---- messages left in the queue


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
    """Full limits are usual with manual confirmations, as long as other messages fill them."""
    waiting, go = asyncio.Semaphore(0), asyncio.Semaphore(0)

    class Stepped(FakeClock):
        async def sleep(self, seconds: float) -> None:
            waiting.release()
            await go.acquire()

    manual: Any = {"ack": bmq.AckPolicy.MANUAL, "max_unconfirmed_messages": 100, "clock": Stepped()}
    async with consuming(stage.queue, stage.handle, **manual):
        for _ in range(2):
            await stage.post(*numbered(100))
            held = [await stage.seen.get() for _ in range(100)]
            await waiting.acquire()
            for message in held:
                message.confirm()
            await stage.post(b"more")  # all earlier confirmations have arrived
            (await stage.seen.get()).confirm()
            go.release()
        assert told(caplog, "is blocked") == []
        await stage.post(*numbered(100))
        await stage.next(100)
        await waiting.acquire()
        go.release()
        await eventually(lambda: len(told(caplog, "is blocked")) == 1)


# ---- the log


async def logged(
    stage: Stage, caplog: pytest.LogCaptureFixture, handler: Any, count: int, **options: Any
) -> list[Any]:
    """Let a handler see a number of messages; return what workers have logged."""
    async with consuming(stage.queue, handler, **options) as task:
        await stage.next(count)
        await stage.queue.close()
        await task
    return [record for record in caplog.records if record.name == "bmq.workers"]


async def test_failure_names_its_message(
    stage: Stage, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ack = await stage.queue.post(b"1")
    retry = bmq.Backoff(every=1, retries=1, then="discard")
    again, last = await logged(stage, caplog, stage.failing(), 2, retry=retry, clock=clock)
    assert [again.levelname, last.levelname] == ["WARNING", "ERROR"]
    for record, attempt in ((again, 1), (last, 2)):
        assert (record.guid, record.queue, record.attempt) == (ack.guid, stage.uri, attempt)


async def test_a_flood_of_failures_is_not_logged(
    stage: Stage, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        if message.data == b"last":
            clock.now += 10
        raise ValueError("never")

    await stage.post(*numbered(100), b"last")
    retry = bmq.NoRetry(then="discard")
    records = await logged(stage, caplog, handle, 101, retry=retry, clock=clock)
    assert len(records) == 21
    assert records[19].getMessage().endswith(" (more like this are left out for 10 s)")
    assert records[20].getMessage().endswith(" (and 80 more like this since)")
    assert "left out" not in "".join(record.getMessage() for record in records[:19])


class NoSuchArticle(bmq.RequestFailed, type="test-logging-no-such-article"):
    """The answer of another service."""


@pytest.mark.parametrize("error", [NoSuchArticle("no article 7"), bmq.Reject("no order"), OSError("away")])
async def test_only_the_first_of_unexpected_errors_has_a_traceback(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    await stage.post(*numbered(3))
    records = await logged(stage, caplog, stage.failing(error=error), 3, retry=bmq.NoRetry("discard"))
    assert [bool(record.exc_info) for record in records] == [isinstance(error, OSError), False, False]
    assert str(error) in records[0].getMessage()
