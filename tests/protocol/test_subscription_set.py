# SPDX-License-Identifier: Apache-2.0
"""The table of a queue's subscriptions: walks of every length up to six, beside a model of the two sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bmq.protocol.client.ports import NULL_OWNER
from bmq.protocol.client.subscription import (
    Routes,
    SetInput,
    SetState,
    SubscriptionCore,
    SubscriptionOptions,
    SubscriptionSet,
)
from tests.protocol.bench import READ, connected

TABLE = SubscriptionSet.TRANSITIONS
OUTSTANDING = {SetState.ASKED, SetState.OVERTAKEN}


def subscriptions(number: int) -> Sequence[SubscriptionCore]:
    return [SubscriptionCore(f"x == {number}", SubscriptionOptions(1, 1, 0), NULL_OWNER)]


def walks(length: int) -> Iterator[list[SetInput]]:
    """Every sequence of possible inputs of this length."""
    found: list[tuple[SetState, list[SetInput]]] = [(SetState.AGREED, [])]
    for _ in range(length):
        found = [
            (step.next_state, [*inputs, event])
            for state, inputs in found
            for (before, event), step in TABLE.items()
            if before is state
        ]
    return (inputs for _, inputs in found)


def test_every_walk_over_the_table_keeps_the_invariants() -> None:
    taken: set[tuple[SetState, SetInput]] = set()
    queue = connected().open("bmq://d/q", READ)
    for inputs in walks(6):
        each = SubscriptionSet(queue, Routes())
        wanted = agreed = committed = asked = each.wanted
        for number, event in enumerate(inputs):
            taken.add((each.state, event))
            if event is SetInput.WANT:
                wanted = subscriptions(number)
                each.fire(event, wanted)
            elif event is SetInput.AGREE:
                agreed = committed = asked
                each.fire(event, list(enumerate(asked)))
            else:
                asked = wanted if event is SetInput.ASK else asked
                wanted = agreed if event is SetInput.REFUSE else wanted
                failed = event in (SetInput.REFUSE, SetInput.DELAY)
                each.fire(event, *([(number, sub) for sub in asked], False) if failed else ())
            assert each.wanted is wanted
            assert each.agreed is agreed
            assert list(each.committed) == list(committed)
            assert each.state is not SetState.AGREED or wanted is agreed
            assert each.state is not SetState.ASKED or asked is wanted
            assert each.removes_only == (wanted is agreed or not wanted)
            assert ((each.state, SetInput.ASK) in TABLE) == (each.state not in OUTSTANDING)
    assert taken == set(TABLE)
