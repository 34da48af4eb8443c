# SPDX-License-Identifier: Apache-2.0
"""The ways of ``docs/design.md`` through the files: no action takes more moves than the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.performance.moves import ACTIONS, measure

PAGE = Path(__file__).parents[2] / "docs" / "design.md"


def documented() -> dict[str, tuple[int, int]]:
    """Calls and moves of each action, as ``docs/design.md`` says."""
    rows = re.findall(
        r"^\| (\w+) \| (\d+) \| \d+ \| \d+ \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {name: (int(calls), int(moves)) for name, calls, moves in rows}


def test_every_action_is_documented() -> None:
    assert list(documented()) == list(ACTIONS)


# The order of two callbacks of one turn may differ, which makes a move more or less.
VARIES = 2


@pytest.mark.parametrize("name", ACTIONS)
async def test_an_action_takes_no_more_moves_than_documented(name: str) -> None:
    trace = await measure(name)
    calls, moves = documented()[name]
    assert (trace.calls <= calls, trace.moves <= moves + VARIES) == (True, True), (
        f"{name} takes {trace.calls} calls and {trace.moves} moves, documented are {calls} and {moves}:\n"
        + "\n".join(trace.lines())
    )
