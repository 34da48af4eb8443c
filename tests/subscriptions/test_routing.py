# SPDX-License-Identifier: Apache-2.0
"""The subscription of a message, computed offline, as in the seeds and on a real broker."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.errors import InvalidExpression
from bmq.subscriptions import Expression, Route, RoutingTable
from tests.sweeps import sweep
from tests.transcripts import probes


def names(table: RoutingTable, properties: dict[str, Any] | None) -> tuple[str, ...]:
    return table.route(properties).names


ORDERS = RoutingTable(
    [
        ("CustomerId >= 0", 5, "all customers"),
        ("CustomerId == 0", 10, "customer zero"),
    ]
)


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


@sweep(
    "routes, stops, spills",
    [
        pytest.param([FULL, BELOW], True, (), id="two priorities: everything stops"),
        pytest.param(
            [Route(Expression("x == 100"), 10, "C"), FULL, BELOW],
            False,
            ("B",),
            id="a third beside the full one",
        ),
        pytest.param(
            [FULL, BELOW, Route(Expression("x == 100"), 20, "C")],
            False,
            ("B",),
            id="a third above the full one",
        ),
        pytest.param([FULL, BELOW, Route(Expression("x == 100"), 7, "C")], True, (), id="a third between"),
        pytest.param([FULL, BELOW, Route(Expression("x == 100"), 1, "C")], True, (), id="a third below"),
        pytest.param(
            [FULL, Route(Expression("x >= 0"), 5, "B"), Route(Expression("x == 100"), 10, "C")],
            False,
            (),
            id="the same expression below never gets anything",
        ),
        pytest.param([FULL, Route(None, -100, "rest")], True, (), id="everything below one full filter"),
        pytest.param(
            [FULL, Route(Expression("x == 100"), 10, "C"), Route(None, -100, "rest")],
            False,
            ("rest",),
            id="everything below two filters gets what one is too full for",
        ),
        pytest.param(
            [FULL, BELOW, Route(Expression("x == 100"), 20, "C", full=True)],
            True,
            (),
            id="a full third is none",
        ),
    ],
)
@pytest.mark.statement("1.17")
def test_a_full_subscription_stops_all_or_spills_over(
    routes: list[Route], stops: bool, spills: tuple[str, ...]
) -> None:
    decision = RoutingTable(routes).route({"x": 1})
    assert decision.waits
    assert decision.stops is stops
    assert tuple(route.name for route in decision.spills) == spills
    told = str(decision).splitlines()[-1]
    assert ("delivery to this application stops" in told) is stops
    assert ("spill over to " + ", ".join(spills) in told) is bool(spills)


@pytest.mark.statement("1.17")
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


@pytest.mark.parametrize(
    ("low", "probe"), [("x >= 0", "different expression"), ("x >= 1", "same expression")]
)
def test_no_message_spills_over_between_two_priorities(low: str, probe: str) -> None:
    table = RoutingTable([Route(Expression("x >= 1"), 2, "high", full=True), (low, 1, "low")])
    decision = table.route({"x": 1})
    assert decision.waits
    assert decision.stops
    assert decision.names == ()
    assert decision.spills == ()
    assert probes()["spillover"][probe]["low"] == []


def test_unmatched_broadcast_message_is_dropped() -> None:
    table = RoutingTable([("x == 1", 0, "one")], broadcast=True)
    assert table.explain({}).endswith("No subscription matches: the message is dropped.")
