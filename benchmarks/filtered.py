# SPDX-License-Identifier: Apache-2.0
"""Delivery to subscriptions with an expression, beside the same load without expressions: the floor.

A producer posts all messages at once; consumers with a session each, and a window of 1,000 messages, confirm
every message. The time runs from the first post to the last confirmation. A busy broker limits the evaluation
of expressions: while the producer posts, thousands of events wait in the dispatcher, and the broker lowers
its limit at each look, whatever a consumer does. With 100 consumers the broker evaluates up to 100
expressions for a message. The official client for Python has no subscriptions.
"""

from __future__ import annotations

from harness import Bench, Row, Step

MESSAGES = 10_000
WINDOW = 1_000
#: Number of consumers, and what each selects.
CASES = [(1, "all"), (10, "own"), (100, "own"), (1, "tenth")]
SELECTIONS = {"all": "all messages", "own": "a share each", "tenth": "a tenth"}


def _consumers(number: int) -> str:
    return "1 consumer" if number == 1 else f"{number} consumers"


ROWS = [
    Row(f"{_consumers(number)}, {SELECTIONS[kind]}", f"{number} {kind}", floor=f"{number} any")
    for number, kind in CASES
]


def _shared(number: int, kind: str) -> Step:
    """Return a step with so many consumers."""

    def step(bench: Bench) -> dict[str, dict[str, float]]:
        options = {"consumers": number, "kind": kind, "window": WINDOW}
        return {f"{number} {kind}": bench.job("ours", "share", bench.count(MESSAGES), **options)}

    return step


OURS = [_shared(number, kind) for number, kind in CASES]
OTHERS = [_shared(number, "any") for number in (1, 10, 100)]
