# SPDX-License-Identifier: Apache-2.0
"""The checks of callers' values, and the limit on repeated log lines."""

import logging
import math
from decimal import Decimal

import numpy as np
import pytest

from bmq import _checks
from bmq._log_limit import LogLimit
from bmq.errors import UsageError
from tests.sweeps import sweep


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


@sweep("value", [5, 5.0, np.int64(5), np.uint8(5), np.float32(5)])
def test_integral_values_become_int(value: object) -> None:
    result = _checks.integer("count", value)
    assert (result, type(result)) == (5, int)


@sweep(
    "value",
    [None, True, np.True_, "5", b"5", 5.5, math.nan, math.inf, Decimal(5), 2**63, -1, [5], Unprintable()],
)
def test_other_values_are_refused_as_integers_with_their_name(value: object) -> None:
    with pytest.raises(UsageError, match=r"^count must be an integer from 0 to "):
        _checks.integer("count", value)


def test_repeated_lines_are_counted_and_logged_once_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limit = LogLimit(logging.getLogger("bmq.test"), every=60, clock=lambda: now)
    assert limit.warning("a", "bad %s", 1)
    assert not limit.warning("a", "bad %s", 2)
    assert limit.error("b", "worse")
    now = 61
    assert limit.warning("a", "bad %s", 3)
    assert [each.getMessage() for each in caplog.records] == [
        "bad 1",
        "worse",
        "bad 3 (and 1 more like this since)",
    ]


def test_a_peer_that_invents_kinds_cannot_fill_the_log_or_the_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = LogLimit(logging.getLogger("bmq.test"), clock=lambda: 0.0)
    for kind in range(100_000):
        limit.warning(kind, "kind %d", kind)
    assert len(caplog.records) < 300
