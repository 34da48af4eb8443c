# SPDX-License-Identifier: Apache-2.0
"""The life cycle of an app: a walk over its table, and the effect of stops in each state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from bmq.errors import StateError
from bmq.workers._life import AppInput, AppState, Life

TABLE = Life.TRANSITIONS


def _walks(length: int) -> Iterator[list[AppInput]]:
    """Every sequence of possible inputs, from a new life on."""
    walks: list[tuple[AppState, list[AppInput]]] = [(AppState.STOPPED, [])]
    for _ in range(length):
        walks = [
            (step.next_state, [*inputs, event])
            for state, inputs in walks
            for (before, event), step in TABLE.items()
            if before is state
        ]
        yield from (inputs for _, inputs in walks)


async def _sleeping() -> asyncio.Task[None]:
    async def sleep() -> None:
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(sleep())
    await asyncio.sleep(0)
    return task


async def test_every_walk_over_the_table_keeps_the_invariants() -> None:
    taken: set[tuple[Any, Any]] = set()
    for inputs in _walks(6):
        life, starting, working = Life(), await _sleeping(), await _sleeping()
        for event in inputs:
            before = life.state
            taken.add((before, event))
            cancelled = starting.cancelling(), working.cancelling()
            arguments = {AppInput.RUN: (starting,), AppInput.STARTED: ([working],)}.get(event, ())
            life.fire(event, *arguments)
            change = starting.cancelling() - cancelled[0], working.cancelling() - cancelled[1]
            if event is not AppInput.STOP or before is AppState.STOPPED:
                assert change == (0, 0)
            elif before is AppState.STARTING:
                assert change == (1, 0)
            else:
                assert change in ((0, 1), (0, 0))
                assert change == (0, int(working in life._tasks))
            if life.state is AppState.STOPPED:
                assert (life._starting, life._tasks) == (None, ())
        for task in (starting, working):
            task.cancel()
        await asyncio.gather(starting, working, return_exceptions=True)
    assert taken == set(TABLE)


@pytest.mark.parametrize("state", AppState)
@pytest.mark.parametrize("event", AppInput)
def test_an_input_that_is_not_in_the_table_is_an_error(state: AppState, event: AppInput) -> None:
    if (state, event) in TABLE:
        return
    life = Life()
    life.state = state
    with pytest.raises(StateError, match=f"{event.name} is not possible in state AppState.{state.name}"):
        life.fire(event)
    assert life.state is state


async def test_every_state_leads_to_the_end() -> None:
    """In every state, a stop and the end of all tasks lead to STOPPED."""
    for state in AppState:
        life = Life()
        life.state = state
        life._starting = await _sleeping()
        starting = life._starting
        life.fire(AppInput.STOP)
        if life.state is not AppState.STOPPED:
            life.fire(AppInput.ENDED)
        assert life.state is AppState.STOPPED
        starting.cancel()
