# SPDX-License-Identifier: Apache-2.0
"""The statements of BlazingMQ's description of subscriptions that concern the client, with a broker.

Others are cases of the conformance suite, or tests of expressions: see docs/statements.toml.
"""

from __future__ import annotations

import pytest

import bmq
from tests.subscriptions.through_broker.scene import Scene, names, nothing


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


@pytest.mark.statement("1.3", "1.8")
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


@pytest.mark.statement("1.10")
async def test_flow_control_is_an_option_of_a_subscription(scene: Scene) -> None:
    queue = await scene.reader(max_unconfirmed_messages=100)
    async with (
        queue.subscribe("x == 1", max_unconfirmed_bytes=1) as narrow,
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


@pytest.mark.statement("1.9", "1.11", "1.12")
async def test_subscriptions_are_evaluated_from_the_highest_priority_to_the_lowest(scene: Scene) -> None:
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


@pytest.mark.statement("1.6", "1.13")
async def test_messages_are_delivered_in_the_order_of_their_arrival(scene: Scene) -> None:
    first, second = await scene.reader(), await scene.reader()
    async with (
        first.subscribe("x == 0") as zero,
        first.subscribe("x == 1") as one,
        second.subscribe("x == 2") as two,
    ):
        await scene.post(**{f"m{n:03}": {"x": n % 3} for n in range(300)})
        for x, consumer in enumerate((zero, one, two)):
            assert await names(consumer, 100) == [f"m{n:03}" for n in range(x, 300, 3)]


@pytest.mark.statement("1.18")
async def test_equal_subscriptions_are_merged_and_their_capacities_add_up(scene: Scene) -> None:
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
async def test_equal_means_equal_as_text(scene: Scene) -> None:
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
    "broken",
    ["x >", "x = 1", "1 == 1", 'x == "' + "v" * 200 + '"', "shares 1000", "order == limit and limit == 0"],
)
@pytest.mark.statement("2.12", "2.14")
async def test_broken_expression_is_refused_because_brokers_deliver_all_messages_for_it(
    scene: Scene, broken: str
) -> None:
    queue = await scene.reader()
    with pytest.raises(bmq.InvalidExpression):
        queue.subscribe(broken)
    async with queue.subscribe(broken, strict=False) as consumer:
        await scene.post(a={"x": 1}, b={"y": 2}, c={})
        assert await names(consumer, 3) == ["a", "b", "c"]
