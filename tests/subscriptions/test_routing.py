# SPDX-License-Identifier: Apache-2.0
"""The subscription of a message, computed offline, as in the seeds and on a real broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.errors import InvalidExpression
from bmq.subscriptions import Equalities, Expression, Route, RoutingTable
from conformance.cases.routing import SPILLING, Spilling, Sub
from tests.sweeps import sweep
from tests.transcripts import probes


def names(table: RoutingTable, properties: dict[str, Any] | None) -> tuple[str, ...]:
    return table.route(properties).names


ORDERS = RoutingTable([("CustomerId >= 0", 5, "all customers"), ("CustomerId == 0", 10, "customer zero")])


@pytest.mark.statement("1.12")
def test_overlapping_subscriptions_are_tried_by_priority() -> None:
    assert names(ORDERS, {"CustomerId": 0}) == ("customer zero",)
    assert names(ORDERS, {"CustomerId": 1}) == ("all customers",)
    # The probe: subscription 5 was `CustomerId >= 0` at priority 5, 10 was `CustomerId == 0` at 10.
    probe = probes()["overlapping_priority"]
    number = {"all customers": 5, "customer zero": 10}
    routed = [[number[name] for name in names(ORDERS, {"CustomerId": int(text)})] for text in probe["pushed"]]
    assert routed == probe["sids"]


@pytest.mark.statement("1.15")
def test_of_equal_texts_only_the_highest_priority_is_active() -> None:
    table = RoutingTable([("x == 1", 1, "low"), ("x == 1", 2, "high"), ("x == 1", 2, "high too")])
    assert names(table, {"x": 1}) == ("high", "high too")
    (step,) = table.route({"x": 1}).steps
    assert [route.name for route in step.dormant] == ["low"]


# A real broker, after A received 0 and was full (limit of one message): the receivers of 2 and the rest.
FULL = Route(Expression("x >= 0"), 10, "A", full=True)
BELOW = Route(Expression("x > -1"), 5, "B")
THIRD, BELOW_THIRD = (Route(Expression("x == 100"), priority, "C") for priority in (10, 7))


@sweep(
    "routes, stops, spills",
    [
        pytest.param([FULL, BELOW], True, (), id="two priorities: everything stops"),
        pytest.param([FULL, BELOW, THIRD], False, ("B",), id="a third beside the full one"),
        pytest.param([FULL, BELOW, BELOW_THIRD], True, (), id="a third between"),
        pytest.param([FULL, THIRD, Route(None, -100, "rest")], False, ("rest",), id="everything below two"),
    ],
)
@pytest.mark.statement("1.17")
def test_a_full_subscription_stops_all_or_spills_over(
    routes: list[Route], stops: bool, spills: tuple[str, ...]
) -> None:
    decision = RoutingTable(routes).route({"x": 1})
    assert decision.waits
    assert decision.names == ()
    assert decision.stops is stops
    assert tuple(route.name for route in decision.spills) == spills
    told = str(decision).splitlines()[-1]
    assert ("delivery to this application stops" in told) is stops
    assert ("spill over to " + ", ".join(spills) in told) is bool(spills)


def test_a_match_of_the_same_priority_receives_at_once() -> None:
    assert names(RoutingTable([FULL, Route(Expression("x > -1"), 10, "B")]), {"x": 1}) == ("B",)


def test_broadcast_gives_each_consumer_one_copy() -> None:
    table = RoutingTable(
        [
            Route(Expression("x > 0"), 1, "a.positive", "a"),
            Route(Expression("x > 10"), 2, "a.large", "a"),
            Route(Expression("x > 0"), 1, "b.positive", "b"),
            Route(Expression("x > 0"), 0, "c.positive", "c"),
            Route(None, 0, "d", full=True),
        ],
        broadcast=True,
    )
    assert names(table, {"x": 20}) == ("a.large", "b.positive", "d")
    assert names(table, {"x": 5}) == ("a.positive", "b.positive", "d")
    assert names(table, {"x": 0}) == ("d",)
    assert (
        RoutingTable([("x == 1", 0, "one")], broadcast=True).explain({}).endswith("the message is dropped.")
    )
    assert "A copy goes to each of: a.large, b.positive, d." in table.explain({"x": 20})


def test_the_explanation_is_a_table_to_read() -> None:
    table = RoutingTable(
        [
            ("CustomerId >= 0", 5, "all"),
            ("CustomerId == 0", 10, "zero"),
            ("CustomerId == 0", 10, "nil"),
            ("CustomerId == 0", 1, "spare"),
            ("Zone == 1", 10, "zone"),
        ]
    )
    assert table.explain({"CustomerId": 0}) == (
        "priority  expression       subscriptions  verdict\n"
        "--------  ---------------  -------------  -------\n"
        "      10  CustomerId == 0  zero, nil      matches\n"
        "       1  CustomerId == 0  spare          never: 10 is higher\n"
        "      10  Zone == 1        zone           no match: NAME error, the message has no property `Zone`\n"
        "       5  CustomerId >= 0  all            not evaluated\n"
        "\n"
        "The message goes to one of zero, nil, in turn."
    )


def test_expression_the_broker_cannot_compile_takes_all_messages() -> None:
    with pytest.raises(InvalidExpression):
        RoutingTable([("x = 1", 1, "typo")])
    table = RoutingTable([(Expression("x = 1", strict=False), 1, "typo"), ("x == 2", 0, "two")])
    assert names(table, {"x": 2}) == ("typo",)
    assert "the broker cannot compile this expression" in table.route({"x": 2}).steps[0].verdict


def foretold(subs: Sequence[Sub], posted: Sequence[int]) -> dict[str, list[int]]:
    """Return a routing table's predictions, message by message, without confirmations.

    The conformance cases 8.1 check the same table of situations against brokers.
    """
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


# ---- many equalities in one lookup

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
