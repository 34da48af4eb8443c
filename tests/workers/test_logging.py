# SPDX-License-Identifier: Apache-2.0
"""The logs of workers: their fields, and the limit of their number."""

from __future__ import annotations

import logging

import pytest

import bmq
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
    """The answer of another service."""


@pytest.mark.parametrize("error", [NoSuchArticle("no article 7"), bmq.Reject("no order"), OSError("away")])
async def test_only_unexpected_errors_have_a_traceback(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def handle(message: bmq.Message) -> None:
        await stage.handle(message)
        raise error

    await post(stage.queue, b"1")
    async with consuming(stage.queue, handle, retry=bmq.NoRetry("discard")) as task:
        await stage.next(1)
        await stage.queue.close()
        await task
    (record,) = failures(caplog)
    assert bool(record.exc_info) is isinstance(error, OSError)
    assert str(error) in record.getMessage()
