# SPDX-License-Identifier: Apache-2.0
"""Exclusive groups at an embedded broker."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

import bmq
from bmq.groups import Gained, GroupEvent, Lost, Reason
from bmq.groups._coordinator import Coordinator
from bmq.groups._protocol import Crown, Leader, Order, Phase, Report
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.subscription import SubscriptionCore
from bmq.subscriptions import Expression
from bmq.testing import FaultProxy, Simulation
from tests.waiting import eventually

Connect = Callable[..., Awaitable[bmq.Session]]
OPTIONS: dict[str, Any] = {"buckets": 6, "lease": 0.5}


class Ledger:
    """The messages handled by the members, in order, and violations of the order of a bucket."""

    def __init__(self) -> None:
        self.handled: list[tuple[str, int, int]] = []
        self.done: set[int] = set()
        self.latest: dict[int, int] = {}
        self.fences: dict[int, int] = {}
        self.wrong: list[str] = []

    def begin(self, name: str, bucket: int, number: int, fence: int) -> None:
        if fence < self.fences.get(bucket, 0):
            self.wrong.append(f"{name}: bucket {bucket} under fence {fence} after {self.fences[bucket]}")
        self.fences[bucket] = max(fence, self.fences.get(bucket, 0))
        earlier = range(bucket, number, OPTIONS["buckets"])
        if any(each not in self.done for each in earlier):
            self.wrong.append(f"{name}: {number} of bucket {bucket} before earlier ones are done")
        self.handled.append((name, bucket, number))


async def handle(group: bmq.groups.Group, name: str, ledger: Ledger, pause: float = 0.0) -> None:
    async for message in group:
        async with message:
            number, bucket = int(message.data), group.bucket_of(message)
            assert bucket is not None
            ledger.begin(name, bucket, number, group.fence(bucket))
            if pause:
                await asyncio.sleep(pause)
            ledger.done.add(number)


async def post(queue: bmq.Queue, first: int, count: int) -> None:
    report = await queue.post_many(bmq.PutMessage(b"%d" % n, {"k": n}) for n in range(first, first + count))
    report.raise_for_failures()


@pytest.fixture
async def writer(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


async def test_the_first_member_owns_every_bucket_before_any_message(
    bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    loaded: list[int] = []
    async with queue.group("k", on_assigned=loaded.append, **OPTIONS) as group:
        await eventually(lambda: group.owned == frozenset(range(6)))
        assert sorted(loaded) == list(range(6))
        with pytest.raises(bmq.UsageError, match="bucket"):
            group.fence(6)


async def test_a_busy_member_finishes_its_messages_before_a_new_member_begins(
    bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    ledger, seen = Ledger(), list[GroupEvent]()
    old = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    new = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with old.group("k", on_event=seen.append, **OPTIONS) as first:
        await eventually(lambda: len(first.owned) == 6)
        fences = {bucket: first.fence(bucket) for bucket in range(6)}
        await post(writer, 0, 120)
        tasks = [asyncio.create_task(handle(first, "old", ledger, 0.002))]
        await eventually(lambda: ledger.done)
        async with new.group("k", **OPTIONS) as second:
            tasks.append(asyncio.create_task(handle(second, "new", ledger)))
            await post(writer, 120, 60)
            await eventually(lambda: len(second.owned) == 3 and len(first.owned) == 3)
            await post(writer, 180, 60)
            await eventually(lambda: len(ledger.done) == 240)
            assert first.owned | second.owned == frozenset(range(6))
            assert all(second.fence(bucket) > fences[bucket] for bucket in second.owned)
            moved = sorted(second.owned)
        await eventually(lambda: len(first.owned) == 6)
        await post(writer, 240, 60)
        await eventually(lambda: len(ledger.done) == 300)
    await asyncio.gather(*tasks)
    assert not ledger.wrong
    assert len(ledger.handled) == 300
    assert {
        event.bucket for event in seen if isinstance(event, Lost) and event.reason is Reason.MOVED
    } == set(moved)
    assert sum(isinstance(event, Gained) for event in seen) == 9


async def test_a_member_whose_connection_is_lost_begins_anew(
    bmq_connect: Connect, bmq_broker: bmq.broker.Broker, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    ledger = Ledger()
    new = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        old = await session.open_queue(bmq_queue_uri, read=True)
        async with old.group("k", **OPTIONS) as first, new.group("k", **OPTIONS) as second:
            await eventually(lambda: len(first.owned) == 3 and len(second.owned) == 3)
            tasks = [asyncio.create_task(handle(first, "old", ledger))]
            tasks.append(asyncio.create_task(handle(second, "new", ledger)))
            await post(writer, 0, 60)
            proxy.cut()
            await post(writer, 60, 60)
            await eventually(lambda: len(first.owned) == 3 and len(second.owned) == 3)
            await eventually(lambda: len(ledger.done) == 120)
        await asyncio.gather(*tasks)
    assert not ledger.wrong


class Listening:
    """A relay to a broker, with a copy of the bytes sent by the clients on each connection."""

    def __init__(self, broker: bmq.broker.Broker) -> None:
        self.sent: list[bytearray] = []
        self._broker = broker
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Listening:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.uri = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._broker.uri.removeprefix("tcp://").split(":")
        from_broker, to_broker = await asyncio.open_connection(host, int(port))
        sent = bytearray()
        self.sent.append(sent)
        self._writers += [writer, to_broker]
        for source, target, kept in ((reader, to_broker, sent), (from_broker, writer, None)):
            self._tasks.append(asyncio.create_task(self._pass_on(source, target, kept)))

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, kept: bytearray | None
    ) -> None:
        while chunk := await source.read(65536):
            if kept is not None:
                kept += chunk
            target.write(chunk)
        target.close()

    def windows(self, connection: int) -> dict[str, list[int]]:
        """Return the windows requested on a connection, by expression, in order."""
        found: dict[str, list[int]] = {}
        text = self.sent[connection].decode("latin-1")
        for start in re.finditer(r'(?<="streamParameters":)\{', text):
            parameters, _ = json.JSONDecoder().raw_decode(text, start.start())
            for each in parameters.get("subscriptions", ()):
                window = each["consumers"][0].get("maxUnconfirmedMessages", 0)
                found.setdefault(each["expression"].get("text", ""), []).append(window)
        return found


async def test_no_bucket_is_restored_with_a_window_after_a_lost_connection(
    bmq_connect: Connect, bmq_broker: bmq.broker.Broker, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    """Another member may own the bucket by now: the first window is 0, as for any new owner."""
    async with Listening(bmq_broker) as relay, bmq.connect(relay.uri) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True)
        async with queue.group("k", **OPTIONS) as group:
            await eventually(lambda: len(group.owned) == 6)
            fences = [group.fence(bucket) for bucket in range(6)]
            await post(writer, 0, 6)
            await eventually(lambda: group.stats().waiting == 6)
            relay.cut()
            await post(writer, 6, 30)
            await eventually(lambda: len(group.owned) == 6 and group.fence(0) not in fences)
            await eventually(lambda: group.stats().waiting == 36)
        windows = [relay.windows(connection) for connection in range(len(relay.sent))]
        of_buckets = [
            {text: each for text, each in texts.items() if "% 6" in text and "k" in text} for texts in windows
        ]
        assert [len(each) for each in of_buckets if each] == [6, 6], windows
        for found in of_buckets:
            assert all(each[0] == 0 and max(each) > 0 for each in found.values()), found


async def test_the_buckets_of_a_killed_leader_go_to_others_after_the_lease(
    bmq_connect: Connect, bmq_broker: bmq.broker.Broker, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    ledger = Ledger()
    new = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri, reconnect=False) as session:
        old = await session.open_queue(bmq_queue_uri, read=True)
        first = await old.group("k", **OPTIONS)
        await eventually(lambda: len(first.owned) == 6)
        async with new.group("k", **OPTIONS) as second:
            await eventually(lambda: len(first.owned) == 3 and len(second.owned) == 3)
            tasks = [asyncio.create_task(handle(second, "new", ledger))]
            proxy.cut()
            await post(writer, 0, 60)
            await eventually(lambda: len(ledger.done) == 60)
            assert len(second.owned) == 6
        await asyncio.gather(*tasks)
    assert not ledger.wrong


async def test_a_member_without_an_answer_hands_out_nothing_after_its_lease(
    bmq_connect: Connect, bmq_broker: bmq.broker.Broker, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True)
        async with queue.group("k", **OPTIONS) as group:
            await eventually(lambda: len(group.owned) == 6)
            await post(writer, 0, 12)
            (await group.receive(timeout=10)).confirm()
            await eventually(lambda: group.stats().waiting == 11)
            proxy.swallow()
            await eventually(lambda: not group.owned)
            assert group.receive_nowait() is None
            assert group.stats().waiting == 11
            proxy.cut()
            proxy.heal()
            await eventually(lambda: len(group.owned) == 6)
            for _ in range(11):
                (await group.receive(timeout=10)).confirm()


async def test_no_window_of_a_bucket_is_ever_full(
    bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    """A real broker loses the order of the messages behind a full window."""
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with queue.group("k", max_unconfirmed_messages=2, **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 6)
        await post(writer, 0, 60)
        await eventually(lambda: group.stats().waiting == 60)
        taken = [int((await group.receive(timeout=10)).data) for _ in range(60)]
        assert [n for n in taken if n % 6 == 1] == list(range(1, 60, 6))


async def test_a_subscription_to_nothing_stands_above_all_buckets(
    bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    """A real broker stops the whole queue if the first evaluated expression has a window of 0."""
    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with queue.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 6)
        first, second, *_ = sorted(queue.consumers, key=lambda each: -each.options.priority)
        assert first.options.priority > second.options.priority
        assert first.options.max_unconfirmed_messages > 0
        (text,) = first.expressions
        assert not any(
            Expression(text, strict=False).matches({"k": 0, "bmq_none": each}) for each in (0, 1, -1, "")
        )
    assert not queue.consumers


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lease": 0}, "lease"),
        ({"control_queue": ""}, "control_queue"),
        ({"control_queue": "bmq://d/q?id=a"}, "control_queue"),
    ],
)
async def test_wrong_options_are_refused_at_once(
    bmq_session: bmq.Session, bmq_queue_uri: str, options: Any, text: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True)
    with pytest.raises(bmq.UsageError, match=text):
        queue.group("k", **options)


@pytest.mark.parametrize("other", [{"buckets": 8}, {"expression": "x == 1"}, {"key": "j"}])
async def test_a_member_that_differs_from_the_group_ends_with_an_error(
    bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str, other: dict[str, Any]
) -> None:
    """Otherwise, buckets known to a single member would have no owner."""
    old = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    new = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with old.group("k", **OPTIONS) as first:
        await eventually(lambda: len(first.owned) == 6)
        group = new.group(**{"key": "k", **OPTIONS, **other})
        with pytest.raises(bmq.UsageError, match="same key, buckets and expression"):
            await group.receive(timeout=10)
        await group.close()
        await eventually(lambda: len(first.owned) == 6)
        await post(writer, 0, 12)
        for _ in range(12):
            (await first.receive(timeout=10)).confirm()


def all_settled(groups: Sequence[bmq.groups.Group]) -> bool:
    return all(each.stats().settled for each in groups)


@pytest.mark.parametrize(
    "other", [{}, {"buckets": 8}, {"buckets": 4}, {"expression": "x == 1"}, {"key": "j"}]
)
def test_members_that_left_together_are_not_awaited_after_a_change(other: dict[str, Any]) -> None:
    """A deployment that changes the buckets stops all members, and starts them again."""

    async def main(sim: Simulation) -> None:
        broker = sim.broker()
        for options in ({"key": "k", "buckets": 6}, {"key": "k", "buckets": 6, **other}):
            async with AsyncExitStack() as stack:
                groups: list[bmq.groups.Group] = []
                for _ in range(3):
                    session = await stack.enter_async_context(bmq.connect(broker.uri))
                    queue = await session.open_queue("bmq://bmq.test.mem.priority/q", read=True)
                    groups.append(queue.group(**options, lease=60.0))
                await asyncio.gather(*(each.open() for each in groups))
                await sim.until(functools.partial(all_settled, groups), timeout=15.0)
                await asyncio.gather(*(each.close() for each in groups))

    for seed in range(5):
        sim = Simulation(seed)
        sim.run(main, sim)


@pytest.mark.parametrize("members", [2, 3, 5, 20])
async def test_neighbouring_keys_go_to_different_members(members: int) -> None:
    """The keys of a young shop are small numbers."""
    leader = Leader(128)
    names = [f"m{number}" for number in range(members)]
    held: dict[str, Mapping[int, tuple[int, str]]] = {name: {} for name in names}
    leader.crown("m0", Crown("m0", 1, leader.crown("m0", Crown("", 0, 1, ()), 0.0).fence), 0.0)  # type: ignore[union-attr]
    seen = (0, 0)
    for seq in range(1, 12):
        for index, name in enumerate(names):
            if seq <= index // 2:
                continue  # members join one after another
            for order in leader.report(Report(name, "", seq, seen, 1.0, False, held[name]), float(seq)):
                seen = order.term, order.number
                held[order.who] = {
                    bucket: (fence, "OPEN" if granted else "READY")
                    for bucket, (fence, granted) in order.buckets.items()
                }
    owners = {bucket: name for name, buckets in held.items() for bucket in buckets}
    assert set(owners) == set(range(128))
    fair = 128 / members
    assert all(int(fair) <= len(buckets) <= fair + 1 for buckets in held.values())
    for first in range(128):
        keys = [owners[(first + step) % 128] for step in range(4 * members)]
        assert len(set(keys)) > members / 2, (first, keys)


def test_a_second_crown_in_the_queue_ends_the_claims() -> None:
    leader = Leader(4)
    first = leader.crown("me", Crown("", 0, 1, ()), 0.0)
    second = leader.crown("me", Crown("other", 5, 9000), 0.0)
    assert first is not None
    assert second is not None
    assert leader.crown("me", first, 0.0) is None
    assert leader.phase is Phase.CLAIMING
    assert leader.crown("me", second, 0.0) is None
    assert leader.phase is Phase.COLLECTING


@pytest.mark.parametrize("behind", [0, 1], ids=["of a higher term", "of the same term"])
async def test_a_second_leader_ends_the_first(behind: int, bmq_connect: Connect, bmq_queue_uri: str) -> None:
    """A claimant that dies may leave two crowns, and the crowns may reach different candidates."""
    options = {**OPTIONS, "lease": 0.2}
    queues = [await (await bmq_connect()).open_queue(bmq_queue_uri, read=True) for _ in range(2)]
    async with queues[0].group("k", **options) as old, queues[1].group("k", **options) as new:
        await eventually(lambda: len(old.owned) == len(new.owned) == 3)
        members = [group._coordinator for group in (old, new)]
        first, second = sorted(members, key=lambda each: each._leader.phase is Phase.NONE)
        term, fence = first._leader.term, first._leader.limit
        # The mailbox of the second member takes the crown in place of the catch-all subscription.
        first._post(Crown("dead", term - behind, fence), second._member.who)
        await eventually(lambda: second._leader.phase is not Phase.NONE)

        def one_receives() -> bool:
            low, high = sorted(members, key=lambda each: each._candidate.options.priority)
            return (
                low._candidate.options.priority < high._candidate.options.priority
                and low._leader.term < high._leader.term
                and high._leader.phase is Phase.LEADING
                and len(high._leader.known) == 2
                and not low._leader.known
            )

        await eventually(one_receives, 10.0)
        await eventually(lambda: len(old.owned) == len(new.owned) == 3)


async def test_the_priority_of_a_leader_grows_with_its_term(bmq_connect: Connect, bmq_queue_uri: str) -> None:
    priorities: list[int] = []
    for _ in range(3):
        queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
        async with queue.group("k", **OPTIONS) as group:
            await eventually(lambda: len(group.owned) == OPTIONS["buckets"])
            priorities.append(group._coordinator._candidate.options.priority)
    assert priorities == sorted(set(priorities))


async def test_many_members_that_join_at_once_send_few_requests(
    bmq_connect: Connect, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[str] = []
    requests: list[int] = []
    send, ask = Coordinator._send, QueueCore._request_configure

    def sent(self: Coordinator, each: list[Order]) -> None:
        orders.extend(order.who for order in each)
        send(self, each)

    def asked(self: QueueCore, subscriptions: Sequence[SubscriptionCore] | None, deadline: float) -> None:
        requests.append(len(subscriptions or ()))
        ask(self, subscriptions, deadline)

    monkeypatch.setattr(Coordinator, "_send", sent)
    monkeypatch.setattr(QueueCore, "_request_configure", asked)
    sessions = [await bmq_connect(repeat_subscriptions_after=0) for _ in range(10)]  # requests of groups only
    queues = [await session.open_queue(bmq_queue_uri, read=True) for session in sessions]
    groups = await asyncio.gather(*(queue.group("k", buckets=60) for queue in queues))
    await eventually(lambda: [len(group.owned) for group in groups] == [6] * 10)
    # With an order for each report, and moves of buckets to each new member, the leader would send many more.
    assert len(orders) < 80
    assert len(requests) < 13 * len(groups)
    await asyncio.gather(*(group.close() for group in groups))


async def test_the_claim_of_a_leader_waits_for_room(
    bmq_connect: Connect, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of one unacknowledged message is full while a report is in flight."""
    session = await bmq_connect(max_unacked_messages=1)
    queue = await session.open_queue(bmq_queue_uri, read=True)
    post = Coordinator._post

    def after_a_report(self: Coordinator, what: Any, to: str, guid: str | None = None) -> None:
        if isinstance(what, Crown):
            self._report()
        post(self, what, to, guid)

    monkeypatch.setattr(Coordinator, "_post", after_a_report)
    async with asyncio.timeout(10), queue.group("k", **{**OPTIONS, "lease": 20.0}) as group:
        await eventually(lambda: len(group.owned) == OPTIONS["buckets"])


async def test_each_member_gets_its_order_in_a_window_of_one_message(
    bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    """A leader answers several members in one turn of the event loop."""
    sessions = [await bmq_connect(max_unacked_messages=1) for _ in range(6)]
    queues = [await session.open_queue(bmq_queue_uri, read=True) for session in sessions]
    options = {**OPTIONS, "lease": 30.0}
    async with asyncio.timeout(10):
        groups = await asyncio.gather(*(queue.group("k", **options) for queue in queues))
        await eventually(lambda: [len(group.owned) for group in groups] == [1] * 6)
    await asyncio.gather(*(group.close() for group in groups))
