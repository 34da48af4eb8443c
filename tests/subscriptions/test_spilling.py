# SPDX-License-Identifier: Apache-2.0
"""The predictions of :class:`bmq.subscriptions.RoutingTable` for full subscriptions.

The conformance cases 8.1 check the same table of situations against brokers.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bmq.subscriptions import Expression, Route, RoutingTable
from conformance.cases.routing import SPILLING, Spilling, Sub
from tests.sweeps import sweep


def foretold(subs: Sequence[Sub], posted: Sequence[int]) -> dict[str, list[int]]:
    """Return a routing table's predictions, message by message, without confirmations."""
    got: dict[str, list[int]] = {sub.name: [] for sub in subs}
    waited_for: set[str] = set()
    for x in posted:
        decision = RoutingTable(
            Route(
                Expression(s.text) if s.text else None, s.priority, s.name, full=len(got[s.name]) >= s.window
            )
            for s in subs
        ).route({"x": x})
        if decision.stops:
            break
        if decision.waits:
            matching = {
                step.active[0].name for step in decision.steps if step.verdict == "matches, but is full"
            }
            if matching <= waited_for:
                for route in decision.spills[:1]:
                    got[route.name].append(x)
            waited_for |= matching
        elif decision.route is not None:
            got[decision.route.name].append(x)
    return {name: numbers for name, numbers in got.items() if numbers}


@pytest.mark.statement("1.17")
@sweep("found", SPILLING.values())
def test_a_routing_table_foretells_what_a_broker_delivers(found: Spilling) -> None:
    assert foretold(found.subs, found.posted) == found.expected
