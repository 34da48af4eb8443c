# SPDX-License-Identifier: Apache-2.0
"""Odd values for what starts an event loop."""

from __future__ import annotations

import pytest

import bmq
from tests.gate.odd import ODD, close
from tests.sweeps import sweep


@sweep("kind", sorted(set(ODD) - {"coroutine"}))
def test_run_takes_a_coroutine_only(kind: str) -> None:
    value = ODD[kind]()
    with pytest.raises(bmq.UsageError, match="run needs a coroutine"):
        bmq.run(value)
    close(value)
