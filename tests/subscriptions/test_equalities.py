# SPDX-License-Identifier: Apache-2.0
"""Many equalities in one lookup: all matches are found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.subscriptions import Equalities, Expression
from bmq.subscriptions._routing import Equality, equality
from tests.sweeps import sweep


@sweep(
    "text, found",
    [
        ("x == 3", Equality("x", 0, 3)),
        ("x == -3", Equality("x", 0, -3)),
        ("x % 16 == 3", Equality("x", 16, 3)),
        ("x % 16 == -13", Equality("x", 16, 3)),
        ("(x - 3) % 16 == 0", Equality("x", 16, 3)),
        ("(x - 3) % 16 == 0 && (y || z)", Equality("x", 16, 3)),
        ("y > 2 && x == 3", Equality("x", 0, 3)),
        ("x == 3 || y", None),
        ("!(x == 3)", None),
        ("x % y == 3", None),
        ("x % 0 == 3", None),
        ("x >", None),
        ("", None),
    ],
)
def test_equality_of_an_expression_is_found(text: str, found: Equality | None) -> None:
    assert equality(text) == found


TERMS = st.one_of(
    st.builds("x % {} == {}".format, st.sampled_from([3, 16]), st.integers(-20, 20)),
    st.builds("(x - {}) % {} == 0".format, st.integers(0, 20), st.sampled_from([3, 16])),
    st.builds("x == {}".format, st.integers(-20, 20)),
    st.sampled_from(["y", "exists(x)", "x >= 2", "y == 2", ""]),
)
TEXTS = st.one_of(TERMS, st.builds("{} && y".format, TERMS.filter(bool)))
EDGES = [-(2**63), -(2**63) + 3, -(2**62), 2**62, 2**63 - 1]
VALUES = st.one_of(st.integers(-40, 40), st.sampled_from(EDGES), st.booleans(), st.text(max_size=1))
PROPERTIES = st.dictionaries(st.sampled_from(["x", "y"]), VALUES)


@pytest.mark.filterwarnings("ignore::bmq.ExpressionWarning")  # `y == 2 && y` never matches
@settings(max_examples=50)
@given(st.lists(TEXTS, max_size=12), PROPERTIES)
def test_no_matching_subscription_is_left_out(texts: list[str], properties: dict[str, Any]) -> None:
    places = Equalities(range(len(texts)), lambda index: texts[index]).candidates(properties.get)
    assert [index for index, _ in places] == sorted(index for index, _ in places)
    matching = {index for index, text in enumerate(texts) if not text or Expression(text).matches(properties)}
    assert matching <= {index for index, _ in places}


def test_sixteen_remainders_are_one_to_try() -> None:
    texts = [f"(x - {bucket}) % 16 == 0" for bucket in range(16)]
    equalities = Equalities(texts, str)
    assert equalities.most == 1
    assert [text for _, text in equalities.candidates({"x": -5}.get)] == [texts[11]]
    assert list(equalities.candidates({}.get)) == []
