# SPDX-License-Identifier: Apache-2.0
"""The logs of workers: their fields, and the limit of their number."""

from __future__ import annotations

import logging

import pytest

import bmq
from bmq.testing import TestApp
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming, numbered, post


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "bmq.workers"]


async def test_failure_names_its_message(
    stage: Stage, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        raise OSError("no")

    await post(stage.queue, b"1")
    retry = bmq.Backoff(every=1, retries=1, then="discard")
    async with consuming(stage.queue, handle, retry=retry, clock=clock) as task:
        first = await stage.seen.get()
        await stage.seen.get()
        await stage.queue.close()
        await task
    again, last = failures(caplog)
    assert [again.levelname, last.levelname] == ["WARNING", "ERROR"]
    for record, attempt in ((again, 1), (last, 2)):
        assert record.guid == first.guid  # type: ignore[attr-defined]
        assert record.queue == stage.queue.uri  # type: ignore[attr-defined]
        assert record.attempt == attempt  # type: ignore[attr-defined]


async def test_a_flood_of_failures_is_not_logged(
    stage: Stage, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        if message.data == b"last":
            clock.now += 10
        raise ValueError("never")

    await post(stage.queue, *numbered(100), b"last")
    async with consuming(stage.queue, handle, retry=bmq.NoRetry(then="discard"), clock=clock) as task:
        await stage.next(101)
        await stage.queue.close()
        await task
    records = failures(caplog)
    assert len(records) == 21
    assert records[19].getMessage().endswith(" (more like this are left out for 10 s)")
    assert records[20].getMessage().endswith(" (and 80 more like this since)")
    assert "left out" not in "".join(record.getMessage() for record in records[:19])


class NoSuchArticle(bmq.RequestFailed, type="test-logging-no-such-article"):
    """The deliberate failure of a responder."""


@pytest.mark.parametrize("batch", [False, True])
async def test_deliberate_failures_are_logged_in_a_line_each(
    caplog: pytest.LogCaptureFixture, batch: bool
) -> None:
    caplog.set_level(logging.INFO, "bmq.workers")
    app, domain = bmq.App(), "bmq://bmq.test.mem.priority/"
    failed: list[bmq.workers.Failure] = []

    @app.responder(domain + "articles")
    async def article(message: bmq.Message) -> bytes:
        raise NoSuchArticle("no article 7")

    async def ask() -> None:
        await (await app.queue(domain + "articles")).request(b"7", timeout=30)

    if batch:

        @app.batch_consumer(
            domain + "orders",
            retry=bmq.NoRetry("discard"),
            on_error=failed.append,
            max_messages=2,
            max_wait=60,
        )
        async def order_all(messages: list[bmq.Message]) -> None:
            await ask()

    else:

        @app.consumer(domain + "orders", retry=bmq.NoRetry("discard"), on_error=failed.append)
        async def order(message: bmq.Message) -> None:
            await ask()

    @app.consumer(domain + "rejected", retry=bmq.NoRetry("discard"))
    async def reject(message: bmq.Message) -> None:
        raise bmq.Reject("no order")

    async with TestApp(app) as test:
        await test.post(domain + "orders", b"1")
        await test.post(domain + "orders", b"2")
        await test.post(domain + "rejected", b"1")
        await test.drained(domain + "orders", domain + "rejected", domain + "articles")
    assert [type(each.error) for each in failed] == [NoSuchArticle] * 2
    records = failures(caplog)
    assert sorted({(each.levelname, each.getMessage().split()[0]) for each in records}) == [
        ("ERROR", "order_all" if batch else "order"),
        ("INFO", "article"),
        ("WARNING", "reject"),
    ]
    assert not any(each.exc_info for each in records)
    assert not any("\n" in each.getMessage() for each in records)
    (text, *_) = [each.getMessage() for each in records if each.levelname == "ERROR"]
    assert "NoSuchArticle: " in text
    assert "no article 7 (test_logging.py:" in text


async def test_the_traceback_of_a_failed_request_is_a_detail(
    stage: Stage, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bmq.workers")

    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        raise NoSuchArticle("no article 7")

    await post(stage.queue, b"1")
    async with consuming(stage.queue, handle, retry=bmq.NoRetry("discard"), clock=clock) as task:
        await stage.next(1)
        await stage.queue.close()
        await task
    (record,) = [each for each in failures(caplog) if each.levelname == "ERROR"]
    assert record.exc_info
