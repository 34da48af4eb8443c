# SPDX-License-Identifier: Apache-2.0
"""The choice of the consumer for each message, the time of delivery, and redelivery."""

from __future__ import annotations

import pytest

from bmq.wire.constants import EventType, PropertyType
from bmq.wire.properties import PropertyInput, PropertyValue
from tests.conformance.raw import Connect, NewUri, Raw, subscription
from tests.transcripts import probes

FANOUT = "bmq.test.mem.fanout"
BROADCAST = "bmq.test.mem.broadcast"


@pytest.fixture
async def raw(client: Connect, bmq_queue_uri: str) -> Raw:
    """A client that has a priority queue open for reading and writing, as qId 0."""
    raw = await client()
    await raw.open(bmq_queue_uri)
    return raw


class TestSubscriptions:
    @pytest.mark.statement("4.6")
    async def test_messages_have_the_ids_of_their_subscriptions(self, raw: Raw) -> None:
        """PUSH: the sId of the matching subscription; after a reconfigure the new one."""
        await raw.configure(0, subscription(11, "CustomerId == 0"), subscription(12, "CustomerId == 1"))
        raw.post(b"a", properties={"CustomerId": 0})
        raw.post(b"b", properties={"CustomerId": 1})
        raw.post(b"d")
        first = [await raw.push(), await raw.push()]
        assert [(got.payload, got.push.sub_ids) for got in first] == [(b"a", (11,)), (b"b", (12,))]
        await raw.configure(0, subscription(13, "exists(CustomerId)"))
        raw.post(b"c", properties={"CustomerId": 7})
        assert (await raw.push()).push.sub_ids == (13,)
        await raw.configure(0, subscription(14))
        last = await raw.push()
        assert (last.payload, last.push.sub_ids, last.out_of_order) == (b"d", (14,), True)

    async def test_overlapping_subscriptions_are_tried_by_priority(self, raw: Raw) -> None:
        """`CustomerId >= 0` at 5 and `CustomerId == 0` at 10: 0 goes to the second, 1 to the first."""
        await raw.configure(
            0,
            subscription(5, "CustomerId >= 0", priority=5),
            subscription(10, "CustomerId == 0", priority=10),
        )
        for number in (0, 1, 0):
            raw.post(b"%d" % number, properties={"CustomerId": number})
        got = [await raw.push() for _ in range(3)]
        assert {(g.payload, g.push.sub_ids) for g in got} == {(b"0", (10,)), (b"1", (5,))}

    @pytest.mark.statement("2.12")
    async def test_expression_that_does_not_compile_matches_all_messages(self, raw: Raw) -> None:
        """configureStream with `x >`: success; everything is delivered."""
        await raw.configure(0, subscription(7, "x >"))
        raw.post(b"no props")
        raw.post(b"props", properties={"x": 1})
        assert await raw.payloads(2) == [b"no props", b"props"]

    @pytest.mark.parametrize("low", ["x >= 0", "x < 100"], ids=["the same expression", "another expression"])
    async def test_a_full_subscription_does_not_spill_over(
        self, client: Connect, raw: Raw, bmq_queue_uri: str, low: str
    ) -> None:
        """High-priority consumer full (limit 1): nothing spills over, ten messages long."""
        other = await client()
        await other.open(bmq_queue_uri, write=False)
        await other.configure(0, subscription(2, low, priority=1))
        await raw.configure(0, subscription(1, "x >= 0", priority=2, messages=1))
        for number in range(10):
            raw.post(b"%d" % number, properties={"x": number})
        assert await raw.payloads(1) == [b"0"]
        assert await other.no_push()

    async def test_a_full_subscription_spills_over_beside_a_free_one(
        self, client: Connect, raw: Raw, bmq_queue_uri: str
    ) -> None:
        """One message waits for the full consumer; with a third consumer, later ones go to lower
        priorities.
        """
        low, idle = await client(), await client()
        for other, text, priority in ((low, "x > -1", 5), (idle, "x == 100", 10)):
            await other.open(bmq_queue_uri, write=False)
            await other.configure(0, subscription(2, text, priority=priority))
        await raw.configure(0, subscription(1, "x >= 0", priority=10, messages=1))
        for number in range(6):
            raw.put(b"%d" % number, properties={"x": number})
        assert await raw.payloads(1) == [b"0"]
        assert await low.payloads(4) == [b"2", b"3", b"4", b"5"]
        assert await idle.no_push()

    async def test_equal_subscriptions_take_turns(
        self, client: Connect, raw: Raw, bmq_queue_uri: str
    ) -> None:
        """Consumers of one priority share evenly, in turn."""
        other = await client()
        await other.open(bmq_queue_uri, write=False)
        await other.configure(0, subscription(1))
        await raw.configure(0, subscription(1))
        for number in range(12):
            raw.post(b"%d" % number)
        mine, theirs = await raw.payloads(6), await other.payloads(6)
        assert sorted([*map(int, mine), *map(int, theirs)]) == list(range(12))
        assert {int(p) % 2 for p in mine} | {int(p) % 2 for p in theirs} == {0, 1}
        assert len({int(p) % 2 for p in mine}) == 1

    async def test_consumer_priority_count(self, client: Connect, raw: Raw, bmq_queue_uri: str) -> None:
        """A subscription stays at the front until it has received consumerPriorityCount messages."""
        other = await client()
        await other.open(bmq_queue_uri, write=False)
        await other.configure(0, subscription(1, count=1))
        await raw.configure(0, subscription(1, count=3))
        for number in range(12):
            raw.post(b"%d" % number)
        assert len(await raw.payloads(9)) == 9
        assert len(await other.payloads(3)) == 3

    async def test_tags_select_messages(self, raw: Raw) -> None:
        """Tags as `exists` terms with the negation as a second subscription: disjoint and complete."""
        wanted = "exists(t.urgent) || exists(t.eu)"
        await raw.configure(0, subscription(1, wanted), subscription(2, f"!({wanted})"))
        posts: list[tuple[bytes, dict[str, PropertyInput]]] = [
            (b"urgent", {"t.urgent": True}),
            (b"low", {"t.low": True}),
            (b"none", {}),
            (b"both", {"t.urgent": True, "t.eu": True}),
        ]
        for payload, properties in posts:
            raw.post(payload, properties=properties)
        got = {g.payload: g.push.sub_ids for g in [await raw.push() for _ in posts]}
        assert got == {b"urgent": (1,), b"low": (2,), b"none": (2,), b"both": (1,)}

    async def test_no_subscriptions_no_messages(self, raw: Raw) -> None:
        """An empty list of subscriptions deconfigures the stream, which stays open and receives nothing."""
        await raw.configure(0, subscription(1))
        await raw.configure(0)
        raw.post(b"x")
        assert await raw.statuses(1) == [0]
        assert await raw.no_push()
        await raw.configure(0, subscription(2))
        assert await raw.payloads(1) == [b"x"]


EXPRESSIONS = probes()["expressions"]


def posted(properties: dict[str, tuple[int, str]]) -> dict[str, PropertyInput]:
    """The properties of a probe: by name [type, bytes in hexadecimal]."""
    values: dict[str, PropertyInput] = {}
    for name, (number, hexadecimal) in properties.items():
        raw, kind = bytes.fromhex(hexadecimal), PropertyType(number)
        match kind:
            case PropertyType.BOOL:
                values[name] = PropertyValue(kind, bool(raw[0]))
            case PropertyType.SHORT | PropertyType.INT32 | PropertyType.INT64:
                values[name] = PropertyValue(kind, int.from_bytes(raw, "big", signed=True))
            case PropertyType.STRING:
                values[name] = PropertyValue(kind, raw.decode())
            case _:
                values[name] = PropertyValue(kind, raw)
    return values


@pytest.mark.parametrize(
    ("text", "properties", "matched"), EXPRESSIONS, ids=[f"{n}" for n in range(len(EXPRESSIONS))]
)
async def test_expressions_evaluate_as_measured(
    raw: Raw, text: str, properties: dict[str, tuple[int, str]], matched: bool
) -> None:
    """Expressions evaluated by a real broker, with their results."""
    await raw.configure(0, subscription(1, text, priority=2), subscription(2, priority=1))
    raw.post(b"x", properties=posted(properties))
    assert (await raw.push()).push.sub_ids == ((1,) if matched else (2,))


class TestFlowControl:
    @pytest.mark.statement("4.7")
    async def test_resumes_at_80_percent(self, raw: Raw) -> None:
        """maxUnconfirmed 10: 10 delivered; after 1 confirm none; after 2 confirms 2 more."""
        await raw.configure(0, subscription(1, messages=10))
        for number in range(20):
            raw.post(b"%d" % number)
        got = [await raw.push() for _ in range(10)]
        assert await raw.no_push()
        raw.confirm(got[0].push.guid)
        assert await raw.no_push()
        raw.confirm(got[1].push.guid)
        assert await raw.payloads(2) == [b"10", b"11"]
        assert await raw.no_push()

    async def test_one_at_a_time(self, raw: Raw) -> None:
        """Maximum 1 resumes at 0."""
        await raw.configure(0, subscription(1, messages=1))
        for number in range(3):
            raw.post(b"%d" % number)
        for number in range(3):
            got = await raw.push()
            assert got.payload == b"%d" % number
            assert await raw.no_push()
            raw.confirm(got.push.guid)

    @pytest.mark.statement("4.7")
    async def test_the_limit_of_bytes_stops_delivery(self, raw: Raw) -> None:
        """One message is always allowed below the limit, even if it exceeds the bytes."""
        await raw.configure(0, subscription(1, size=100))
        raw.post(bytes(60))
        raw.post(bytes(60))
        raw.post(b"x")
        assert [len(payload) for payload in await raw.payloads(2)] == [60, 60]
        assert await raw.no_push()

    async def test_a_limit_of_zero_never_delivers(self, raw: Raw) -> None:
        """Maximum 0: never deliver."""
        await raw.configure(0, subscription(1, messages=0))
        raw.post(b"x")
        assert await raw.no_push()

    async def test_limits_are_each_subscriptions_own(self, raw: Raw) -> None:
        """Limits are per subscription."""
        await raw.configure(0, subscription(1, "x == 1", messages=1), subscription(2, "x == 2", messages=1))
        for x in (1, 1, 2, 2):
            raw.post(b"%d" % x, properties={"x": x})
        assert sorted(await raw.payloads(2)) == [b"1", b"2"]
        assert await raw.no_push()


class TestRedelivery:
    @pytest.mark.statement("1.14")
    async def test_after_close_in_order_and_marked(
        self, client: Connect, raw: Raw, bmq_queue_uri: str
    ) -> None:
        """Unconfirmed messages of a consumer that goes: in order, with the out-of-order bit."""
        await raw.configure(0, subscription(1))
        for number in range(5):
            raw.post(b"%d" % number)
        await raw.payloads(5)
        await raw.close_queue(bmq_queue_uri)
        other = await client()
        await other.open(bmq_queue_uri)
        await other.configure(0, subscription(1))
        got = [await other.push() for _ in range(5)]
        assert [(g.payload, g.out_of_order) for g in got] == [(b"%d" % n, True) for n in range(5)]

    async def test_after_the_connection_is_lost(self, client: Connect, raw: Raw, bmq_queue_uri: str) -> None:
        """Connection loss: offered to the remaining consumers at once."""
        other = await client()
        await other.open(bmq_queue_uri, write=False)
        await other.configure(0, subscription(1, priority=1))
        await raw.configure(0, subscription(1, priority=2))
        raw.post(b"x")
        await raw.push()
        raw.drop()
        got = await other.push()
        assert (got.payload, got.out_of_order) == (b"x", True)

    @pytest.mark.statement("1.14")
    async def test_unmatched_redelivery_blocks_new_messages(
        self, client: Connect, raw: Raw, bmq_queue_uri: str
    ) -> None:
        """Consumer of `x == 1` leaves unconfirmed: for `x == 2` new messages wait until it is taken."""
        two = await client()
        await two.open(bmq_queue_uri)
        await two.configure(0, subscription(1, "x == 2"))
        await raw.configure(0, subscription(1, "x == 1"))
        raw.post(b"one", properties={"x": 1})
        await raw.push()
        await raw.close_queue(bmq_queue_uri)
        two.post(b"two", properties={"x": 2})
        assert await two.no_push()
        again = await client()
        await again.open(bmq_queue_uri, write=False)
        await again.configure(0, subscription(1, "x == 1"))
        assert await again.payloads(1) == [b"one"]
        assert await two.payloads(1) == [b"two"]

    async def test_three_lost_connections_are_enough(
        self, client: Connect, bmq_new_queue_uri: NewUri
    ) -> None:
        """maxDeliveryAttempts 3, connection dropped: delivered three times in all, then gone."""
        uri = bmq_new_queue_uri("bmq.test.rda.priority")
        producer = await client()
        await producer.open(uri, read=False)
        producer.post(b"poison")
        await producer.ack()
        seen: list[tuple[bytes, bool]] = []
        for _ in range(3):
            raw = await client()
            await raw.open(uri, write=False)
            await raw.configure(0, subscription(1))
            got = await raw.push()
            seen.append((got.payload, got.out_of_order))
            raw.drop()
            await raw.ended()
        assert seen == [(b"poison", False), (b"poison", True), (b"poison", True)]
        last = await client()
        await last.open(uri)
        await last.configure(0, subscription(1))
        last.post(b"next")
        assert await last.payloads(1) == [b"next"]

    async def test_closing_gracefully_does_not_count(
        self, client: Connect, bmq_new_queue_uri: NewUri
    ) -> None:
        """maxDeliveryAttempts: graceful closes do not count."""
        uri = bmq_new_queue_uri("bmq.test.rda.priority")
        raw = await client()
        await raw.open(uri)
        raw.post(b"x")
        for _ in range(5):
            await raw.configure(0, subscription(1))
            assert await raw.payloads(1) == [b"x"]
            await raw.close_queue(uri)
            await raw.open(uri)


class TestFanout:
    @pytest.mark.statement("4.5", "3.21")
    async def test_two_apps_in_one_session_get_one_push(
        self, client: Connect, bmq_new_queue_uri: NewUri
    ) -> None:
        """Two appIds of one fanout queue in one session receive one PUSH with both sIds."""
        uri = bmq_new_queue_uri(FANOUT)
        raw = await client()
        await raw.open(uri, read=False)
        for sub_id, app in ((1, "foo"), (2, "bar")):
            await raw.open(f"{uri}?id={app}", 0, write=False, sub_id=sub_id)
            await raw.configure(0, subscription(sub_id * 10), app_id=app)
        raw.post(b"m")
        got = await raw.push()
        assert sorted(got.push.sub_ids) == [10, 20]
        assert await raw.no_push()

    @pytest.mark.statement("1.23", "6.5")
    async def test_each_app_confirms_for_itself(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """Fanout: confirmed per appId; the message waits for the others."""
        uri = bmq_new_queue_uri(FANOUT)
        raw = await client()
        await raw.open(uri, read=False)
        raw.post(b"m")
        await raw.ack()
        for app in ("foo", "bar", "baz"):
            reader = await client()
            await reader.open(f"{uri}?id={app}", 0, write=False, sub_id=1)
            await reader.configure(0, subscription(1), app_id=app)
            got = await reader.push()
            assert got.payload == b"m"
            reader.confirm(got.push.guid, sub_id=1)
            await reader.barrier()

    @pytest.mark.statement("1.21")
    async def test_application_subscriptions_drop_unmatched_messages(
        self, client: Connect, bmq_new_queue_uri: NewUri
    ) -> None:
        """foo `x == 1`, bar `x == 2`: ACK 0 for all, what does not match is never delivered."""
        uri = bmq_new_queue_uri("bmq.test.appsub.fanout")
        raw = await client()
        await raw.open(uri, read=False)
        for sub_id, app in ((1, "foo"), (2, "bar")):
            await raw.open(f"{uri}?id={app}", 0, write=False, sub_id=sub_id)
            await raw.configure(0, subscription(sub_id), app_id=app)
        for x in (1, 2, 3):
            raw.post(b"%d" % x, properties={"x": x})
        raw.post(b"none")
        assert await raw.statuses(4) == [0] * 4
        got = [await raw.push(), await raw.push()]
        assert sorted((g.payload, g.push.sub_ids) for g in got) == [(b"1", (1,)), (b"2", (2,))]
        assert await raw.no_push()

    @pytest.mark.statement("1.24")
    async def test_application_subscription_of_a_priority_domain(
        self, client: Connect, bmq_new_queue_uri: NewUri
    ) -> None:
        """`x > 0` on a priority domain: x = -1 and a message without properties: ACK 0, never delivered."""
        raw = await client()
        await raw.open(bmq_new_queue_uri("bmq.test.appsub.priority"))
        await raw.configure(0, subscription(1))
        raw.post(b"neg", properties={"x": -1})
        raw.post(b"none")
        raw.post(b"pos", properties={"x": 1})
        assert await raw.statuses(3) == [0] * 3
        assert await raw.payloads(1) == [b"pos"]


class TestBroadcast:
    async def test_broadcast_reaches_connected_consumers_without_replay(
        self, client: Connect, bmq_new_queue_uri: NewUri
    ) -> None:
        """Broadcast: each consumer once, no replay, limits and confirms ignored."""
        uri = bmq_new_queue_uri(BROADCAST)
        producer = await client()
        await producer.open(uri, read=False)
        producer.post(b"nobody")
        assert await producer.statuses(1) == [0]
        readers = [await client() for _ in range(2)]
        for reader in readers:
            await reader.open(uri, write=False)
            await reader.configure(0, subscription(1, messages=1))
        for number in range(3):
            producer.post(b"%d" % number)
        assert await producer.statuses(3) == [0] * 3
        for reader in readers:
            assert await reader.payloads(3) == [b"0", b"1", b"2"]

    async def test_only_the_highest_priority(self, client: Connect, bmq_new_queue_uri: NewUri) -> None:
        """Broadcast without expressions: all consumers of the top priority."""
        uri = bmq_new_queue_uri(BROADCAST)
        producer = await client()
        await producer.open(uri, read=False)
        readers = [await client() for _ in range(3)]
        for priority, reader in zip((2, 2, 1), readers, strict=True):
            await reader.open(uri, write=False)
            await reader.configure(0, subscription(1, priority=priority))
        producer.post(b"x")
        assert [await reader.payloads(1) for reader in readers[:2]] == [[b"x"], [b"x"]]
        assert await readers[2].no_push()


async def test_configure_response_comes_before_its_messages(raw: Raw, bmq_queue_uri: str) -> None:
    """Success of a configure is sent before the first PUSH for it."""
    raw.post(b"x")
    await raw.ack()
    before = len(raw.kinds)
    await raw.configure(0, subscription(1))
    await raw.push()
    assert raw.kinds[before:] == [EventType.CONTROL, EventType.PUSH]
