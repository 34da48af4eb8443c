# SPDX-License-Identifier: Apache-2.0
"""The café of the playground, without a browser."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import load


@pytest.fixture
def cafe() -> Iterator[Any]:
    logger = logging.getLogger("bmq")
    before = logger.handlers[:]
    cafe = load("cafe").Cafe()
    yield cafe
    cafe.close()
    assert logger.handlers == before


def after(cafe: Any, seconds: float) -> Any:
    return json.loads(cafe.advance(int(seconds * 20)))


def settled(cafe: Any) -> None:
    """Stop the posts: all orders are handled, and none is lost."""
    cafe.command("post", "", False)
    books = after(cafe, 60)["books"]
    assert books["balanced"], books
    assert books["lost"] == books["stored"] == 0


def test_each_consumer_gets_what_it_subscribed_to(cafe: Any) -> None:
    state = after(cafe, 10)
    assert state["now"] == pytest.approx(10)
    assert [each["session"] for each in state["programs"].values()] == ["STARTED"] * 3
    assert state["books"]["posted"] == pytest.approx(60, abs=2)
    settled(cafe)
    state = after(cafe, 0.05)
    assert state["books"]["twice"] == 0
    assert all(each["handled"] > 10 for each in state["consumers"].values())


def test_orders_wait_behind_a_link_that_is_cut(cafe: Any) -> None:
    after(cafe, 5)
    cafe.command("cut", "bar", True)
    state = after(cafe, 20)
    assert state["cut"] == ["bar"]
    assert state["programs"]["bar"]["session"] == "RECONNECTING"
    assert state["books"]["stored"] > 20
    assert any("bar" in line and "lost" in line for line in state["lines"])
    cafe.command("cut", "bar", False)
    settled(cafe)


def test_posts_wait_for_a_killed_broker(cafe: Any) -> None:
    after(cafe, 5)
    cafe.command("kill", "broker", True)
    state = after(cafe, 5)
    assert state["broker"] is False
    assert state["books"]["posted"] - state["books"]["acknowledged"] > 20
    for _ in range(2):
        cafe.command("kill", "broker", False)
    settled(cafe)


def test_a_killed_consumer_gets_its_orders_again(cafe: Any) -> None:
    cafe.command("slow", "kitchen", True)
    assert after(cafe, 15)["consumers"]["kitchen"]["held"] == 20
    cafe.command("kill", "kitchen", True)
    cafe.command("slow", "kitchen", False)
    assert after(cafe, 2)["programs"]["kitchen"] == {"up": False, "session": "NONE"}
    cafe.command("kill", "kitchen", False)
    settled(cafe)


def test_another_expression(cafe: Any) -> None:
    cafe.command("expression", "bar", "kind = 3")
    assert "Equality is written" in after(cafe, 1)["consumers"]["bar"]["error"]
    cafe.command("expression", "bar", 'kind == "drink" || kind == "food"')
    cafe.command("kill", "kitchen", True)
    assert after(cafe, 5)["consumers"]["bar"]["error"] == ""
    settled(cafe)


@pytest.mark.parametrize("number", range(5))
def test_any_clicks_leave_the_books_balanced(cafe: Any, number: int) -> None:
    random, programs = cafe.sim.random, ["broker", "shop", "bar", "kitchen"]
    for _ in range(30 + number):
        after(cafe, random.uniform(0.05, 2))
        name = random.choice(programs)
        cut = name != "broker" and random.random() < 0.5
        cafe.command("cut" if cut else "kill", name, random.random() < 0.5)
        cafe.command("slow", random.choice(["bar", "kitchen"]), random.random() < 0.5)
    for name in programs:
        cafe.command("kill", name, False)
        if name != "broker":
            cafe.command("cut", name, False)
    for name in ("bar", "kitchen"):
        cafe.command("slow", name, False)
    settled(cafe)
    books = after(cafe, 0.05)["books"]
    assert books["handled"] >= books["acknowledged"]


def test_wrong_clicks(cafe: Any) -> None:
    with pytest.raises(ValueError, match="no such command: fly"):
        cafe.command("fly", "bar", True)
    cafe.command("rate", "", 1e9)
    assert after(cafe, 1)["rate"] == 50
