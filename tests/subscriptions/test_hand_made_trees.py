# SPDX-License-Identifier: Apache-2.0
"""Trees that no parser creates: only elements of the language become code."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.errors import InvalidExpression
from bmq.subscriptions._evaluator import compile_tree
from bmq.subscriptions._syntax import Binary, Integer, Not, Property
from tests.sweeps import sweep


class Disguised(str):
    """Equal to an operator, and something else when written."""

    def __eq__(self, other: object) -> bool:
        return other in ("==", "+")

    def __hash__(self) -> int:
        return hash("+")

    def __format__(self, spec: str) -> str:
        return "; raise SystemExit #"


@sweep("operator", ["**", "is", "and", "", "== 1 or", "+\n    raise SystemExit\n", Disguised("+"), None, 5])
def test_operators_the_language_does_not_have_are_refused(operator: Any) -> None:
    tree = Binary(operator, Property("x"), Integer(1))
    for node in (tree, Not(tree), Binary("==", tree, Integer(1)), Binary("&&", Not(tree), tree)):
        with pytest.raises(InvalidExpression, match="has no operator"):
            compile_tree(node)
