# SPDX-License-Identifier: Apache-2.0
"""The statements of BlazingMQ's description of subscriptions, one by one, with a broker.

The numbers refer to the list of details; statements without a number come from the overview and from the
    definition of the language.
"""

from __future__ import annotations

from typing import Any

import pytest

import bmq
from tests.subscriptions.through_broker.scene import Scene, names, nothing

# ---- the overview


@pytest.mark.statement("1.2")
async def test_a_property_that_is_not_in_the_expression_is_a_wildcard(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe('CustomerId == 1234 && OrderType == "EXPRESS"') as consumer:
        await scene.post(
            abc={"CustomerId": 1234, "DestinationId": "ABC", "OrderType": "EXPRESS"},
            plain={"CustomerId": 1234, "DestinationId": "ABC", "OrderType": "PLAIN"},
            untyped={"CustomerId": 1234, "DestinationId": "ABC"},
            xyz={"CustomerId": 1234, "DestinationId": "XYZ", "OrderType": "EXPRESS", "more": True},
            bare={"CustomerId": 1234, "OrderType": "EXPRESS"},
        )
        assert await names(consumer, 3) == ["abc", "xyz", "bare"]
        assert nothing(consumer)


@pytest.mark.statement("1.3")
async def test_unmatched_message_stays_until_a_subscription_matches(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1") as consumer:
        await scene.post(waits={"x": 2}, goes={"x": 1})
        assert await names(consumer, 1) == ["goes"]
        assert nothing(consumer)
        async with queue.subscribe("x == 2") as late:
            assert await names(late, 1) == ["waits"]


@pytest.mark.parametrize("uri", ["bmq.test.small.priority"], indirect=True)
@pytest.mark.statement("1.4")
async def test_unmatched_message_counts_against_the_quota(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1"):
        report = await scene.producer.post_many(
            [bmq.PutMessage(b"unmatched", properties={"x": 2}) for _ in range(20)]
        )
        assert report.acknowledged < 20
        assert {each.error.status for each in report.failures} == {bmq.AckStatus.LIMIT_MESSAGES}
        async with queue.subscribe("x == 2") as late:
            await names(late, report.acknowledged)
    assert await scene.left() == []


@pytest.mark.statement("1.6")
async def test_each_consumer_can_have_a_different_subscription(scene: Scene) -> None:
    first, second = await scene.reader(), await scene.reader()
    async with first.subscribe("CustomerId == 1000") as one, second.subscribe("CustomerId == 2000") as two:
        await scene.post(a={"CustomerId": 1000}, b={"CustomerId": 2000}, c={"CustomerId": 1000})
        assert await names(one, 2) == ["a", "c"]
        assert await names(two, 1) == ["b"]
        assert nothing(one, two)


@pytest.mark.statement("1.7")
async def test_several_expressions_are_joined_by_an_implicit_or(scene: Scene) -> None:
    queue = await scene.reader()
    wanted = bmq.P.CustomerId.one_of(*range(1000, 1008)) | (bmq.P.DestinationId == "ABC")
    async with queue.subscribe(wanted) as consumer:
        assert len(consumer.expressions) > 1
        await scene.post(
            first={"CustomerId": 1000},
            last={"CustomerId": 1007},
            neither={"CustomerId": 1008, "DestinationId": "XYZ"},
            both={"CustomerId": 1001, "DestinationId": "ABC"},
            end={"CustomerId": 0, "DestinationId": "ABC"},
        )
        # Messages of different subscriptions of a consumer arrive in posting order.
        assert await names(consumer, 4) == ["first", "last", "both", "end"]
        assert nothing(consumer)  # the message with two matches arrived once


@pytest.mark.statement("1.8")
async def test_subscriptions_are_dynamic_they_can_be_changed_added_and_removed(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("x == 1") as changing:
        await scene.post(a={"x": 1}, b={"x": 2}, c={"x": 3})
        assert await names(changing, 1) == ["a"]
        await changing.configure("x == 2")
        assert await names(changing, 1) == ["b"]
        async with queue.subscribe("x == 3") as added:
            assert await names(added, 1) == ["c"]
            await scene.post(d={"x": 3}, e={"x": 2}, f={"x": 1})
            assert await names(added, 1) == ["d"]
            assert await names(changing, 1) == ["e"]
        await scene.post(g={"x": 3}, h={"x": 2})
        assert await names(changing, 1) == ["h"]
        assert nothing(changing)
    await queue.close()
    assert await scene.left() == ["f", "g"]


@pytest.mark.statement("1.9")
async def test_priority_is_an_option_of_a_subscription(scene: Scene) -> None:
    first, second = await scene.reader(), await scene.reader()
    async with (
        first.subscribe("x == 1", priority=10) as first_1,
        first.subscribe("x == 2", priority=5) as first_2,
        second.subscribe("x == 1", priority=5) as second_1,
        second.subscribe("x == 2", priority=10) as second_2,
    ):
        await scene.post(a={"x": 1}, b={"x": 2}, c={"x": 1}, d={"x": 2})
        assert await names(first_1, 2) == ["a", "c"]
        assert await names(second_2, 2) == ["b", "d"]
        assert nothing(first_2, second_1)


@pytest.mark.statement("1.10")
async def test_flow_control_is_an_option_of_a_subscription(scene: Scene) -> None:
    queue = await scene.reader(max_unconfirmed_messages=100)
    async with (
        queue.subscribe("x == 1", max_unconfirmed_messages=1) as narrow,
        queue.subscribe("x == 2", max_unconfirmed_messages=3) as wide,
        queue.subscribe("x == 3") as other,
    ):
        held = {f"{x}{letter}": {"x": x} for letter in "abcd" for x in (1, 2)}
        await scene.post(**held, end={"x": 3})
        assert await names(other, 1) == ["end"]
        assert (narrow.buffered, wide.buffered) == (1, 3)
        assert await names(narrow, 1) == ["1a"]
        assert await names(wide, 3) == ["2a", "2b", "2c"]
    await queue.close()
    assert sorted(await scene.left()) == ["1b", "1c", "1d", "2d"]


@pytest.mark.statement("1.10")
async def test_bytes_are_limited_for_each_subscription_too(scene: Scene) -> None:
    queue = await scene.reader()
    async with (
        queue.subscribe("x == 1", max_unconfirmed_bytes=1) as narrow,
        queue.subscribe("x == 2") as wide,
    ):
        await scene.post(a={"x": 1}, b={"x": 1}, c={"x": 2})
        assert await names(wide, 1) == ["c"]
        assert narrow.buffered == 1
        assert await names(narrow, 2) == ["a", "b"]


# ---- details, by number


@pytest.mark.statement("1.11")
async def test_1_overlapping_subscriptions_are_treated_independently(scene: Scene) -> None:
    queue = await scene.reader()
    async with queue.subscribe("CustomerId >= 0", priority=5) as wide:
        async with queue.subscribe("CustomerId == 0", priority=10, max_unconfirmed_messages=2) as narrow:
            assert queue.consumers == [wide, narrow]
            await scene.post(a={"CustomerId": 0}, b={"CustomerId": 1})
            assert await names(narrow, 1) == ["a"]
            assert await names(wide, 1) == ["b"]
        await scene.post(c={"CustomerId": 0})
        assert await names(wide, 1) == ["c"]


@pytest.mark.statement("1.12")
async def test_2_subscriptions_are_evaluated_from_the_highest_priority_to_the_lowest(scene: Scene) -> None:
    first, second = await scene.reader(), await scene.reader()
    async with (
        first.subscribe("CustomerId >= 0", priority=5) as wide,
        second.subscribe("CustomerId == 0", priority=10) as narrow,
        second.subscribe(priority=1) as rest,
    ):
        await scene.post(a={"CustomerId": 0}, b={"CustomerId": 7}, c={"CustomerId": 0}, d={"CustomerId": -1})
        assert await names(narrow, 2) == ["a", "c"]
        assert await names(wide, 1) == ["b"]
        assert await names(rest, 1) == ["d"]
        assert nothing(wide, narrow, rest)


@pytest.mark.statement("1.13")
async def test_3_messages_are_delivered_in_the_order_of_their_arrival(scene: Scene) -> None:
    first, second = await scene.reader(), await scene.reader()
    async with (
        first.subscribe("x == 0") as zero,
        first.subscribe("x == 1") as one,
        second.subscribe("x == 2") as two,
    ):
        await scene.post(**{f"m{n:03}": {"x": n % 3} for n in range(300)})
        for x, consumer in enumerate((zero, one, two)):
            assert await names(consumer, 100) == [f"m{n:03}" for n in range(x, 300, 3)]


@pytest.mark.statement("1.16")
async def test_4_consumers_of_the_highest_priority_take_turns(scene: Scene) -> None:
    readers = [await scene.reader() for _ in range(3)]
    async with (
        readers[0].subscribe("x == 1", priority=10) as one,
        readers[1].subscribe("x == 1", priority=10) as two,
        readers[2].subscribe("x == 1", priority=5) as low,
        readers[2].subscribe("end") as last,
    ):
        await scene.post(**{f"m{n}": {"x": 1} for n in range(10)}, end={"end": True})
        found = [*await names(one, 5), *await names(two, 5)]
        assert sorted(found) == [f"m{n}" for n in range(10)]
        assert await names(last, 1) == ["end"]
        assert nothing(one, two, low)


@pytest.mark.statement("1.18")
async def test_5_equal_subscriptions_are_merged_and_their_capacities_add_up(scene: Scene) -> None:
    first, second, third = [await scene.reader() for _ in range(3)]
    async with (
        first.subscribe("CustomerId == 1000", priority=10, max_unconfirmed_messages=3) as one,
        second.subscribe("CustomerId == 1000", priority=10, max_unconfirmed_messages=2) as two,
        third.subscribe("CustomerId == 1000", priority=9) as low,
    ):
        await scene.post(**{f"m{n}": {"CustomerId": 1000} for n in range(10)})
        held = [await one.receive(20) for _ in range(3)] + [await two.receive(20) for _ in range(2)]
        assert {message.data.decode() for message in held} == {f"m{n}" for n in range(5)}
        await scene.round_trip(first, second, third)
        assert nothing(one, two, low)
        for message in held:
            message.confirm()
        found: list[str] = []
        while len(found) < 5:
            for consumer in (one, two):
                found += await names(consumer, consumer.buffered)
            await scene.round_trip(first, second)
        assert sorted(found) == [f"m{n}" for n in range(5, 10)]
        assert nothing(low)


@pytest.mark.statement("1.19")
async def test_5_equal_means_equal_as_text(scene: Scene) -> None:
    first, second = await scene.reader(), await scene.reader()
    async with (
        first.subscribe("x == 1", priority=10) as one,
        second.subscribe("x==1", priority=5) as other_text,
        second.subscribe("end") as last,
    ):
        await scene.post(**{f"m{n}": {"x": 1} for n in range(4)}, end={"end": True})
        assert await names(last, 1) == ["end"]
        assert await names(one, 4) == ["m0", "m1", "m2", "m3"]
        # A different text forms a separate group, evaluated after the first.
        assert nothing(other_text)
        await one.close()
        await scene.post(m4={"x": 1})
        assert await names(other_text, 1) == ["m4"]


@pytest.mark.parametrize(
    ("expression", "value", "match"),
    [
        ("v == 1000", 1000, True),
        ("v == 1000", bmq.PropertyValue(bmq.PropertyType.SHORT, 1000), True),
        ("v == 1000", bmq.PropertyValue(bmq.PropertyType.INT32, 1000), True),
        ("v == 9223372036854775807", 2**63 - 1, True),
        ("v == 1000", "1000", False),
        ('v == "ABC"', "ABC", True),
        ('v == "ABC"', "abc", False),
        ('v < "B"', "A", True),
        ("v", True, True),
        ("v == true", False, False),
        ("v", 1, False),
    ],
)
@pytest.mark.statement("1.20")
async def test_6_a_property_is_read_and_its_value_compared(
    scene: Scene, expression: str, value: Any, match: bool
) -> None:
    queue = await scene.reader()
    async with queue.subscribe(expression) as consumer, queue.subscribe("end") as last:
        await scene.post(m={"v": value, "V": "names are case-sensitive"}, end={"end": True})
        assert await names(last, 1) == ["end"]
        assert await names(consumer, consumer.buffered) == (["m"] if match else [])


# ---- the language


async def verdicts(scene: Scene, expression: str, messages: dict[str, dict[str, Any]]) -> list[str]:
    """The matching messages."""
    queue = await scene.reader()
    async with queue.subscribe(expression) as consumer, queue.subscribe("end", priority=-1) as last:
        await scene.post(**messages, end={"end": True})
        assert await names(last, 1) == ["end"]
        return await names(consumer, consumer.buffered)


@pytest.mark.statement("2.10")
async def test_junctions_are_short_circuiting(scene: Scene) -> None:
    found = await verdicts(
        scene,
        'type == "i" && shares > 1000 || shares == "all"',
        {
            "many": {"type": "i", "shares": 2000},
            "few": {"type": "i", "shares": 10},
            "all": {"type": "s", "shares": "all"},
            "mistyped": {"type": "i", "shares": "all"},
            "number": {"type": "s", "shares": 2000},
            "no shares": {"type": "i"},
        },
    )
    assert found == ["many", "all"]


@pytest.mark.parametrize(
    ("expression", "properties", "match"),
    [
        ("a*x+b>0", {"a": 2, "x": 3, "b": -5}, True),
        ("a*x+b>0", {"a": 2, "x": 3, "b": -6}, False),
        ("a+b*x == 7", {"a": 1, "b": 2, "x": 3}, True),
        ("(a+b)*x == 9", {"a": 1, "b": 2, "x": 3}, True),
        ("a-b-c == 5", {"a": 10, "b": 3, "c": 2}, True),
        ("a-(b-c) == 9", {"a": 10, "b": 3, "c": 2}, True),
        ("a/b*c == 6", {"a": 7, "b": 2, "c": 2}, True),
        ("a%b == 1", {"a": 7, "b": 2}, True),
        ("!!ok", {"ok": True}, True),
        ("!ok && ok || !ok", {"ok": False}, True),
        ("a || b && c", {"a": True, "b": False, "c": False}, True),
        ("(a || b) && c", {"a": True, "b": False, "c": False}, False),
        ("x + 1 < y == true", {"x": 1, "y": 4}, True),
        ("x == 1 && y == 2 || z == 3", {"x": 0, "y": 2, "z": 3}, True),
    ],
)
@pytest.mark.filterwarnings("ignore::bmq.errors.ExpressionWarning")
@pytest.mark.statement("2.11")
async def test_precedence_and_associativity_are_those_of_c(
    scene: Scene, expression: str, properties: dict[str, Any], match: bool
) -> None:
    assert await verdicts(scene, expression, {"m": properties}) == (["m"] if match else [])


@pytest.mark.statement("2.3")
async def test_spaces_tabs_and_line_feeds_are_ignored(scene: Scene) -> None:
    assert await verdicts(scene, "x\t==\n 1 &&y==2", {"m": {"x": 1, "y": 2}, "n": {"x": 1, "y": 3}}) == ["m"]


@pytest.mark.statement("2.2")
async def test_an_expression_may_have_128_characters_and_ten_operators(scene: Scene) -> None:
    longest = f'x == "{"v" * 121}"'
    assert len(longest) == 128
    assert await verdicts(scene, longest, {"m": {"x": "v" * 121}, "n": {"x": "v" * 120}}) == ["m"]
    most = "x+x+x+x+x == 5"
    with pytest.raises(bmq.InvalidExpression):
        (await scene.reader()).subscribe(f'x == "{"v" * 125}"')
    assert await verdicts(scene, most, {"m": {"x": 1}, "n": {"x": 2}}) == ["m"]
    with pytest.raises(bmq.InvalidExpression):
        (await scene.reader()).subscribe("x+x+x+x+x+x == 6")


@pytest.mark.parametrize("broken", ["x >", "x = 1", "1 == 1", 'x == "' + "v" * 200 + '"'])
@pytest.mark.statement("2.12")
async def test_broken_expression_is_refused_because_brokers_deliver_all_messages_for_it(
    scene: Scene, broken: str
) -> None:
    queue = await scene.reader()
    with pytest.raises(bmq.InvalidExpression):
        queue.subscribe(broken)
    async with queue.subscribe(broken, strict=False) as consumer:
        await scene.post(a={"x": 1}, b={"y": 2}, c={})
        assert await names(consumer, 3) == ["a", "b", "c"]


@pytest.mark.statement("2.13")
async def test_printed_example_without_quotes_matches_no_message_and_causes_a_warning(scene: Scene) -> None:
    """`EXPRESS` without quotes is the name of a property."""
    queue = await scene.reader()
    with pytest.warns(bmq.ExpressionWarning, match=r'write `"EXPRESS"`'):
        consumer = await queue.subscribe("CustomerId == 1234 && OrderType == EXPRESS")
    await scene.post(as_meant={"CustomerId": 1234, "OrderType": "EXPRESS"})
    await scene.round_trip(queue)
    assert nothing(consumer)
    async with queue.subscribe('CustomerId == 1234 && OrderType == "EXPRESS"') as meant:
        assert await names(meant, 1) == ["as_meant"]


@pytest.mark.parametrize(
    "text", ["shares 1000", "order == limit and limit == 0", 'customer == "x" and shares 1000']
)
@pytest.mark.statement("2.14")
async def test_other_printed_examples_are_invalid_expressions(scene: Scene, text: str) -> None:
    queue = await scene.reader()
    with pytest.raises(bmq.InvalidExpression):
        await queue.subscribe(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a && b", ["both"]),
        ("a || b", ["both", "first"]),
        ("!a", ["neither"]),
        ("!a || a && b", ["both", "neither"]),
    ],
)
@pytest.mark.statement("2.15")
async def test_booleans_are_joined_and_negated(scene: Scene, text: str, wanted: list[str]) -> None:
    queue = await scene.reader()
    async with queue.subscribe(text) as consumer:
        await scene.post(
            both={"a": True, "b": True}, first={"a": True, "b": False}, neither={"a": False, "b": False}
        )
        assert await names(consumer, len(wanted)) == wanted
        await scene.round_trip(queue)
        assert nothing(consumer)
