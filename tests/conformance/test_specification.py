# SPDX-License-Identifier: Apache-2.0
"""The statements of the protocol page, and the cases that check them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bmq.protocol.client.core import ClientCore
from bmq.protocol.client.handshake import Handshake
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.subscription import SubscriptionSet
from conformance import Case, Level, all_cases, client_cases

DOCS = Path(__file__).parent.parent.parent / "docs"
CASES: tuple[Case, ...] = (*all_cases(), *client_cases())


@pytest.fixture(scope="module")
def specification() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("specification")


def test_each_case_names_a_statement_of_its_weight(specification: ModuleType) -> None:
    statements = specification.statements()
    unknown = [(case.number, case.statement) for case in CASES if case.statement not in statements]
    assert unknown == [], "the page has no such statement"
    # A case may be weaker than its statement: an odd form of what the statement requires.
    too_strong = [
        (case.number, case.statement, statements[case.statement].level)
        for case in CASES
        if case.level is Level.MUST and statements[case.statement].level not in ("must", "definition")
    ]
    assert too_strong == []


def test_each_must_has_a_case_or_a_reason(specification: ModuleType) -> None:
    checked = {case.statement for case in CASES}
    without = [n for n, s in specification.statements().items() if s.level == "must" and n not in checked]
    assert without == list(specification.WITHOUT_CASE), "write a case, or a reason"


#: The tables behind a machine, and their states behind each of its states.
BEHIND: dict[str, tuple[tuple[Any, ...], dict[str, set[str]]]] = {
    "Connection": (
        (Handshake.TRANSITIONS, ClientCore.TRANSITIONS),
        {
            "DISCONNECTED": {"IDLE", "RECONNECTING", "CLOSED"},
            "AUTHENTICATING": {"AUTHENTICATING"},
            "NEGOTIATING": {"NEGOTIATING"},
            "SESSION": {"DONE", "STARTED"},
            "DISCONNECTING": {"CLOSING"},
        },
    ),
    "Queue": (
        (QueueCore.TRANSITIONS,),
        {
            "CLOSED": {"CLOSED"},
            "OPENING": {"OPENING", "REOPENING"},
            "CONFIGURING": {"CONFIGURING", "RESTORING"},
            "OPEN": {"OPEN", "REOPENED"},
            "LOST": {"LOST", "WAITING"},
            "DECONFIGURING": {"DECONFIGURING"},
            "CLOSING": {"CLOSING"},
        },
    ),
    "Subscriptions": (
        (SubscriptionSet.TRANSITIONS,),
        {"AGREED": {"AGREED"}, "ASKED": {"ASKED"}, "OVERTAKEN": {"OVERTAKEN"}},
    ),
}


@pytest.mark.parametrize("name", BEHIND)
def test_the_client_takes_each_step_of_a_machine(specification: ModuleType, name: str) -> None:
    tables, states = BEHIND[name]
    steps: dict[str, set[str]] = {}
    for table in tables:
        for (state, _), step in table.items():
            steps.setdefault(state.name, set()).add(step.next_state.name)
    known: set[str] = set[str]().union(*states.values())

    def follows(state: str) -> set[str]:
        """The named states after a state; states without a name in the machine are passed."""
        found, waiting = set[str](), set(steps.get(state, ()))
        passed = set[str]()
        while waiting:
            next_one = waiting.pop()
            if next_one in known:
                found.add(next_one)
            elif next_one not in passed:
                passed.add(next_one)
                waiting |= steps.get(next_one, set())
        return found

    machine = next(m for m in specification.declared_machines() if m["name"] == name)
    for source, event, _, target, _ in machine["transitions"]:
        reached = set[str]().union(*(follows(state) for state in states[source]))
        assert reached & states[target], (source, event, target)
