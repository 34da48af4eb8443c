# SPDX-License-Identifier: Apache-2.0
"""The specification in TLA+ has the transitions of the product."""

from __future__ import annotations

import re
from pathlib import Path

from bmq.groups._protocol import Do, Seat, SeatInput, SeatState

SPECIFICATION = Path(__file__).parent / "model" / "Exclusive.tla"


def _specified() -> dict[tuple[str, str], tuple[str, str]]:
    text = SPECIFICATION.read_text("utf-8")
    table = text.partition("Transitions == {")[2].partition("}")[0]
    rows = re.findall(r'<<"(\w+)", "(\w+)", "(\w+)", "(\w+)">>', table)
    assert len(rows) == table.count("<<")
    return {(state, what): (do, after) for state, what, do, after in rows}


def test_the_specification_has_every_transition_of_a_bucket_and_no_other() -> None:
    product: dict[tuple[str, str], tuple[str, str]] = {}
    for (state, what), transition in Seat.TRANSITIONS.items():
        seat = Seat(1)
        seat.state = state
        do = seat.fire(what)
        assert seat.state is transition.next_state
        product[state.name, what.name] = ("NOTHING" if do is None else do.name, seat.state.name)
    assert _specified() == product


def test_the_specification_names_every_state_input_and_action() -> None:
    rows = [(*key, *value) for key, value in _specified().items()]
    assert {row[0] for row in rows} | {row[3] for row in rows} == set(SeatState.__members__)
    assert {row[1] for row in rows} == set(SeatInput.__members__)
    assert {row[2] for row in rows} == set(Do.__members__) - {"SUBSCRIBE"} | {"NOTHING"}
