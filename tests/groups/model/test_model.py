# SPDX-License-Identifier: Apache-2.0
"""Random walks through the model.

``python -m tests.groups.model`` visits every state instead, which takes hours for three members.
"""

from __future__ import annotations

from random import Random

from tests.groups.model.world import Limits, explore, walk
from tests.sweeps import sweep

FAULTS = {
    "joins": Limits(),
    "a leave and a kill": Limits(leaves=1, kills=1),
    "two lost connections": Limits(cuts=2, joined=3),
    "a lost connection and a killed leader": Limits(joined=3, cuts=1, kills=1),
    "everything": Limits(leaves=1, kills=1, cuts=1, pauses=1),
    "clocks that disagree": Limits(pauses=2, drift=True),
    "a frozen member": Limits(joined=3, freezes=1, deposes=1),
    "frozen members, and one killed": Limits(freezes=2, deposes=2, kills=1),
    "a frozen member and a lost connection": Limits(joined=3, freezes=1, deposes=1, cuts=1),
    "a frozen member whose buckets are taken over": Limits(joined=3, freezes=1, deposes=1, take_over=True),
    "two frozen members and a leave": Limits(freezes=2, deposes=2, leaves=1, take_over=True),
    "a frozen member, a killed one, a lost connection": Limits(
        joined=3, freezes=2, deposes=2, kills=1, cuts=1, take_over=True
    ),
}


@sweep("faults", FAULTS)
def test_every_guarantee_holds_on_random_walks(faults: str) -> None:
    for seed in range(15):
        walk(FAULTS[faults], Random(seed))


def test_every_guarantee_holds_in_every_state_of_one_member() -> None:
    assert explore(Limits(members=1, buckets=1, messages=1)) > 50
