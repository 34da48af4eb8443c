# SPDX-License-Identifier: Apache-2.0
"""The specifications in TLA+ have the transitions of the product."""

from __future__ import annotations

import re
from pathlib import Path

from bmq.groups._protocol import (
    Action,
    Assignment,
    AssignmentInput,
    Candidate,
    CandidateInput,
    CandidateState,
    Member,
    Order,
    Request,
)

SPECIFICATION = Path(__file__).parent / "model" / "Exclusive.tla"
ELECTION = SPECIFICATION.with_name("Crowns.tla")


def _specified(path: Path = SPECIFICATION) -> dict[tuple[str, str], tuple[str, str]]:
    text = path.read_text("utf-8")
    table = text.partition("Transitions == {")[2].partition("}")[0]
    rows = re.findall(r'<<"(\w+)", "(\w+)", "(\w+)", "(\w+)">>', table)
    assert len(rows) == table.count("<<")
    return {(state, what): (do, after) for state, what, do, after in rows}


def test_the_specification_has_every_transition_of_a_bucket_and_no_other() -> None:
    product: dict[tuple[str, str], tuple[str, str]] = {}
    for (state, what), transition in Assignment.TRANSITIONS.items():
        assignment = Assignment(1)
        assignment.state = state
        do = assignment.fire(what)
        assert assignment.state is transition.next_state
        product[state.name, what.name] = ("NOTHING" if do is None else do.name, assignment.state.name)
    assert _specified() == product


def test_the_specification_has_every_transition_of_a_candidate_and_no_other() -> None:
    product: dict[tuple[str, str], tuple[str, str]] = {}
    for (state, what), transition in Candidate.TRANSITIONS.items():
        candidate = Candidate("a")
        candidate.state = state
        ask = candidate.fire(what, 1)
        assert candidate.state is transition.next_state
        if what is CandidateInput.CROWN:
            assert (ask, candidate.state) == (None, CandidateState.HOLDING)
        elif candidate.state is not state:
            product[state.name, what.name] = ("NOTHING" if ask is None else ask.name, candidate.state.name)
    assert len(Candidate.TRANSITIONS) == len(CandidateState) * len(CandidateInput)
    assert _specified(ELECTION) == product
    assert {action for action, _ in product.values()} == {*Request.__members__, "NOTHING"}


def test_a_grant_that_answers_an_earlier_report_opens_no_bucket() -> None:
    """It comes from a former leader, or is late: another member may have the bucket by now."""
    member = Member("a")
    early = member.report(0.0)
    member.order(Order("a", 1, 1, early.seq, {0: (7, False)}))
    member.done(0, 7, AssignmentInput.ANSWERED)
    assert member.order(Order("a", 1, 2, early.seq, {0: (7, True)})) == []
    later = member.report(0.0)
    (effect,) = member.order(Order("a", 1, 3, later.seq, {0: (7, True)}))
    assert effect.do is Action.OPEN
