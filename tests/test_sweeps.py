# SPDX-License-Identifier: Apache-2.0
"""A swept test runs every case, and a failure names its case."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from tests.sweeps import sweep


def test_a_failure_names_its_case() -> None:
    @sweep("one, other", [(1, 1), (1, 2), (1, 3)])
    def equal(one: int, other: int) -> None:
        assert one == other

    assert not inspect.signature(equal).parameters
    with pytest.raises(AssertionError) as caught:
        equal()
    assert caught.value.__notes__ == ["the case: one = 1, other = 2"]


async def test_a_task_left_behind_is_a_failure_of_its_case() -> None:
    tasks: list[asyncio.Task[bool]] = []

    @sweep("number", range(3))
    async def leaving(number: int) -> None:
        if number == 1:
            tasks.append(asyncio.ensure_future(asyncio.Event().wait()))

    with pytest.raises(AssertionError, match="tasks left behind") as caught:
        await leaving()
    assert caught.value.__notes__ == ["the case: number = 1"]
    (task,) = tasks
    task.cancel()
    await asyncio.wait(tasks)
