# SPDX-License-Identifier: Apache-2.0
"""First come, first served, at the same cost for each task whatever the length of the line."""

from __future__ import annotations

import asyncio

from bmq._turn import WaitingLine, ended


async def test_tasks_are_woken_in_the_order_of_their_arrival() -> None:
    line = WaitingLine()
    waiters = [line.join() for _ in range(5)]
    assert line.wake(2) == 2
    assert [waiter.done() for waiter in waiters] == [True, True, False, False, False]
    assert line.wake(10) == 3
    assert line.wake() == 0


async def test_a_cancelled_task_is_passed_over_before_it_has_left() -> None:
    line = WaitingLine()
    first, second = line.join(), line.join()
    first.cancel()
    assert line.wake() == 1
    assert second.done()
    assert not line.leave(first), "its turn had not come"
    assert line.leave(second), "its turn had come: the caller passes it on"


class SearchedFuture(asyncio.Future[None]):
    """A future that counts the searches through its list of callbacks."""

    searches = 0

    def remove_done_callback(self, fn: object, /) -> int:
        self.searches += 1
        return super().remove_done_callback(fn)  # type: ignore[arg-type]


async def test_tasks_that_wait_for_one_future_leave_without_a_search() -> None:
    future = SearchedFuture()
    tasks = [asyncio.ensure_future(ended(future)) for _ in range(1000)]
    await asyncio.sleep(0)
    for task in tasks[:999]:
        task.cancel()
    await asyncio.wait(tasks[:999])
    assert all(task.cancelled() for task in tasks[:999])
    assert not tasks[999].done()
    assert future.searches == 0
    future.set_result(None)
    await tasks[999]
    await ended(future)


async def test_waiting_for_a_failed_or_cancelled_future_raises_no_error() -> None:
    for end in (lambda each: each.set_exception(LookupError()), lambda each: each.cancel()):
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(ended(future))
        await asyncio.sleep(0)
        end(future)
        await task
        assert future.done()
        assert future.cancelled() or future.exception() is not None


async def test_a_task_may_leave_from_the_middle() -> None:
    line = WaitingLine()
    first, second, third = (line.join() for _ in range(3))
    assert not line.leave(second)
    assert not line.leave(second)
    assert len(line) == 2
    assert line.wake(2) == 2
    assert first.done()
    assert third.done()
    assert not second.done()
