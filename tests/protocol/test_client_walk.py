# SPDX-License-Identifier: Apache-2.0
"""Random walks over all events of a client core.

A walk that breaks a promise is shrunk, and printed as a program that reproduces the failure. The walks take
random transitions: ``test_client_exploration`` takes all of them.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol.walk import STEPS, Walk

#: BMQ_WALKS takes another number of walks, and other walks each time: thousands by night.
WALKS = os.environ.get("BMQ_WALKS", "")


@pytest.mark.timeout(900)  # making a failure small takes a while
def test_no_random_walk_breaks_a_promise() -> None:
    chosen = settings(
        max_examples=int(WALKS or 40),
        stateful_step_count=STEPS,
        derandomize=not WALKS,
        print_blob=bool(WALKS),
    )
    run_state_machine_as_test(Walk, settings=chosen)
