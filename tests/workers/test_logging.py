# SPDX-License-Identifier: Apache-2.0
"""The logs of workers: their fields, and the limit of their number."""

from __future__ import annotations

from typing import Any

import pytest

import bmq
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming, numbered


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
async def test_only_unexpected_errors_have_a_traceback(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    await stage.post(b"1")
    (record,) = await logged(stage, caplog, stage.failing(error=error), 1, retry=bmq.NoRetry("discard"))
    assert bool(record.exc_info) is isinstance(error, OSError)
    assert str(error) in record.getMessage()


async def test_only_the_first_of_equal_errors_has_a_traceback(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.post(*numbered(3))
    handler = stage.failing(error=OSError("away"))
    records = await logged(stage, caplog, handler, 3, retry=bmq.NoRetry("discard"))
    assert [bool(record.exc_info) for record in records] == [True, False, False]
