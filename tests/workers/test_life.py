# SPDX-License-Identifier: Apache-2.0
"""The life cycle of an app: a walk over its table, and the effect of stops in each state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from bmq.errors import StateError
from bmq.workers._life import Life, LifeInput, LifeState

TABLE = Life.TRANSITIONS


def _walks(length: int) -> Iterator[list[LifeInput]]:
    """Every sequence of possible inputs, from a new life on."""
    walks: list[tuple[LifeState, list[LifeInput]]] = [(LifeState.STOPPED, [])]
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
            arguments = {LifeInput.RUN: (starting,), LifeInput.STARTED: ([working],)}.get(event, ())
            life.fire(event, *arguments)
            change = starting.cancelling() - cancelled[0], working.cancelling() - cancelled[1]
            if event is not LifeInput.STOP or before is LifeState.STOPPED:
                assert change == (0, 0)
            elif before is LifeState.STARTING:
                assert change == (1, 0)
            else:
                assert change in ((0, 1), (0, 0))
                assert change == (0, int(working in life._tasks))
            if life.state is LifeState.STOPPED:
                assert (life._starting, life._tasks) == (None, ())
        for task in (starting, working):
            task.cancel()
        await asyncio.gather(starting, working, return_exceptions=True)
    assert taken == set(TABLE)


@pytest.mark.parametrize("state", LifeState)
@pytest.mark.parametrize("event", LifeInput)
def test_an_input_that_is_not_in_the_table_is_an_error(state: LifeState, event: LifeInput) -> None:
    if (state, event) in TABLE:
        return
    life = Life()
    life.state = state
    with pytest.raises(StateError, match=f"{event.name} is not possible in state LifeState.{state.name}"):
        life.fire(event)
    assert life.state is state


async def test_every_state_leads_to_the_end() -> None:
    """In every state, a stop and the end of all tasks lead to STOPPED."""
    for state in LifeState:
        life = Life()
        life.state = state
        life._starting = await _sleeping()
        starting = life._starting
        life.fire(LifeInput.STOP)
        if life.state is not LifeState.STOPPED:
            life.fire(LifeInput.ENDED)
        assert life.state is LifeState.STOPPED
        starting.cancel()
