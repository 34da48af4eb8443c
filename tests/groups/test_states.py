# SPDX-License-Identifier: Apache-2.0
"""Each message and each bucket of one member, in every order of events, by a virtual clock."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import bmq
from bmq.groups import Gained, GroupEvent, Lost, Reason
from tests.groups.virtual import FakeQueue, Store, run_virtual

IDLE = 60.0


class Application:
    """A program that receives from a group, with a check of the guarantees after every step."""

    def __init__(self, buckets: int = 4, **options: Any) -> None:
        self.store = Store(buckets)
        self.buckets, self.options = buckets, options
        self.loaded: dict[int, int] = {}
        self.loads = 0
        self.said: list[str] = []
        self.events: list[GroupEvent] = []
        self.handled: list[tuple[int, int]] = []
        self.in_hand: list[Any] = []
        self.pause = lambda: 0.0
        self.posted = 0

    def join(self) -> bmq.groups.Group:
        self.queue = FakeQueue(self.store)
        self.group = self.queue.group(
            buckets=self.buckets,
            on_assigned=self.load,
            on_revoked=self.drop,
            on_event=self.note,
            idle_after=IDLE,
            keyless=False,
            strays="leave",
            **self.options,
            coordination="none",
        )
        return self.group

    async def load(self, bucket: int) -> None:
        assert bucket not in self.loaded, "loaded twice without a drop"
        self.loaded[bucket] = 0
        self.said.append(f"load {bucket}")
        await asyncio.sleep(self.pause())

    async def drop(self, bucket: int) -> None:
        await asyncio.sleep(self.pause())
        del self.loaded[bucket]
        self.said.append(f"drop {bucket}")

    def note(self, event: GroupEvent) -> None:
        self.events.append(event)
        if isinstance(event, Gained):
            assert self.queue.state is bmq.QueueState.OPEN, "gained while disconnected"
            assert event.bucket in self.loaded

    def post(self, *buckets: int) -> None:
        for bucket in buckets:
            self.store.post(bucket, self.posted)
            self.posted += 1

    def take(self) -> Any:
        message: Any = self.group.receive_nowait()
        if message is not None:
            assert message.bucket in self.loaded, "handed out before load or after drop"
            assert message.bucket in self.group.owned
            self.in_hand.append(message)
            self.handled.append((message.bucket, message.number))
        self.check()
        return message

    def check(self) -> None:
        """What is true at all times."""
        assert self.group._check() == ""
        if self.queue.state is not bmq.QueueState.OPEN:
            assert not self.group.owned
        assert self.group.owned <= set(self.loaded)
        stats = self.group.stats()
        assert stats.handed_out == stats.done + stats.in_hand + stats.given_back


def in_order(handled: list[tuple[int, int]]) -> bool:
    latest: dict[int, int] = {}
    for bucket, number in handled:
        if latest.get(bucket, -1) >= number:
            return False
        latest[bucket] = number
    return True


@pytest.mark.parametrize("handler", [6.0, 70.0, 1000.0])
def test_a_busy_application_loses_no_message_that_waits(handler: float) -> None:
    """Sixteen keys and a handler that takes 6 s: some buckets wait longer than idle_after."""
    app = Application(16)

    async def work() -> None:
        async with app.join() as group:
            app.post(*range(16), *range(16))
            for _ in range(32):
                message: Any = await group.receive(timeout=20)
                app.handled.append((message.bucket, message.number))
                await asyncio.sleep(handler)
                message.confirm()
                app.check()
            assert group.owned == set(range(16)) - {
                event.bucket for event in app.events if isinstance(event, Lost)
            }

    run_virtual(work())
    assert sorted(number for _, number in app.handled) == list(range(32))
    assert in_order(app.handled)


def test_a_slow_message_keeps_the_order_of_another_bucket() -> None:
    app = Application()

    async def work() -> None:
        async with app.join() as group:
            app.post(1)
            (await group.receive(timeout=20)).confirm()
            app.post(2)
            slow = await group.receive(timeout=20)
            app.post(1)
            await asyncio.sleep(100)
            app.post(1)
            slow.confirm()
            app.take()
            app.take()

    run_virtual(work())
    assert app.handled == [(1, 2), (1, 3)]


def test_a_bucket_goes_after_idle_after_of_silence_and_not_earlier() -> None:
    app = Application()

    async def work() -> None:
        now = asyncio.get_running_loop().time
        async with app.join() as group:
            app.post(1)
            message = await group.receive(timeout=20)
            await asyncio.sleep(500)
            assert group.owned == {1}
            message.confirm()
            quiet = now()
            while group.owned:  # noqa: ASYNC110
                await asyncio.sleep(1)
            assert IDLE <= now() - quiet <= 1.5 * IDLE + 1
            assert app.events[-1] == Lost(1, Reason.IDLE, 0)

    run_virtual(work())


# Where a lane waits between the first message of a bucket and the moment it is handed out.
WAITS = {
    "settle": ({"settle": 2.0}, 0.0, 1.0),
    "load": ({}, 2.0, 1.0),
    "settle, then load": ({"settle": 2.0}, 2.0, 3.0),
}


@pytest.mark.parametrize("back", [0.0, 0.5, 1.5, 5.0])
@pytest.mark.parametrize("wait", WAITS)
def test_a_loss_during_a_wait_loads_again_before_the_first_message(wait: str, back: float) -> None:
    options, pause, when = WAITS[wait]
    app = Application(**options)
    app.pause = lambda: pause

    async def work() -> None:
        async with app.join() as group:
            app.post(1)
            await asyncio.sleep(when + 0.02)
            app.queue.cut()
            app.check()
            before = len(app.said)
            app.store.elsewhere.add(1)  # another member goes on with the bucket
            app.store.deliver()
            await asyncio.sleep(back)
            app.check()
            assert not group.owned
            app.queue.restore()
            app.store.elsewhere.clear()
            app.post(1)
            message: Any = await group.receive(timeout=20)
            assert message.number == 1
            assert group.owned == {1}
            assert app.said[-1] == "load 1"
            assert app.said.count("load 1") == app.said.count("drop 1") + 1
            assert before == app.said.index("load 1") or "drop 1" in app.said
            message.confirm()

    run_virtual(work())
    assert [type(event) for event in app.events] == [Gained, Lost]


@pytest.mark.parametrize("offset", [-1e-10, 0.0, 1e-10])
@pytest.mark.parametrize("wait", ["settle", "load"])
def test_a_loss_in_the_last_turn_of_a_wait_is_noticed(wait: str, offset: float) -> None:
    """The lane goes on before the group has read of the loss; the bucket is not gained all the same."""
    options, pause, _ = WAITS[wait]
    app = Application(**options)
    app.pause = lambda: pause

    async def work() -> None:
        async with app.join() as group:
            loop = asyncio.get_running_loop()
            loop.call_at(loop.time() + 2.0 + offset, app.queue.cut)
            app.post(1)
            await asyncio.sleep(10)
            app.check()
            assert not app.events
            assert app.said == ([] if wait == "settle" else ["load 1", "drop 1"])
            app.queue.restore()
            (await group.receive(timeout=10)).confirm()

    run_virtual(work())
    assert [type(event) for event in app.events] == [Gained, Lost]


def test_loss_during_drop_loads_again_only_after_drop() -> None:
    app = Application()
    app.pause = lambda: 5.0

    async def work() -> None:
        async with app.join() as group:
            app.post(1)
            (await group.receive(timeout=10)).confirm()
            app.queue.cut()
            await asyncio.sleep(1)
            app.queue.restore()
            app.post(1)
            await asyncio.sleep(1)
            app.queue.cut()  # while the lane waits for drop
            await asyncio.sleep(1)
            app.queue.restore()
            message: Any = await group.receive(timeout=30)
            assert message.number == 1
            assert app.said == ["load 1", "drop 1", "load 1"]
            message.confirm()

    run_virtual(work())


def test_a_load_that_runs_when_the_member_leaves_is_followed_by_drop() -> None:
    app = Application()
    app.pause = lambda: 5.0

    async def work() -> None:
        async with app.join():
            app.post(1)
            await asyncio.sleep(1)

    run_virtual(work())
    assert app.said == ["load 1", "drop 1"]


@pytest.mark.parametrize("end", ["session", "group"])
def test_drop_does_not_wait_once_messages_cannot_be_confirmed(end: str) -> None:
    app = Application()

    async def work() -> None:
        group = await app.join().open()
        app.post(1)
        await group.receive(timeout=20)
        now = asyncio.get_running_loop().time()
        if end == "session":
            app.queue.end()
            with pytest.raises(bmq.QueueClosed):
                await group.receive()
        await group.close()
        assert asyncio.get_running_loop().time() - now < 1
        assert app.said == ["load 1", "drop 1"]
        assert group.stats().given_back == 1

    run_virtual(work())


def test_unconfirmed_messages_do_not_accumulate() -> None:
    """One message stays in hand for ever, followed by a thousand others."""
    app = Application(1)

    async def work() -> None:
        async with app.join() as group:
            app.post(*[0] * 2000)
            held = await group.receive(timeout=20)
            last = held
            for _ in range(1999):
                message = await group.receive(timeout=20)
                if last is not held:
                    last.confirm()
                last = message
            lane = group._lanes[0]
            assert lane.ledger.most_in_hand < 200
            assert group.unconfirmed == {0: 2}

    run_virtual(work())


DEEDS = ["post"] * 3 + ["take"] * 3 + ["confirm"] * 2
DEEDS += ["all", "cut", "back", "away", "home", "cancel", "end"]


@pytest.mark.parametrize("seed", range(60))
def test_no_random_walk_loses_a_message(seed: int) -> None:
    """Joins, leaves, losses, quiet times, slow hooks, and members that take over, at random."""
    rng = random.Random(seed)
    app = Application(3, settle=rng.choice([0.0, 0.0, 3.0]), grace=rng.choice([0.0, 10.0]))
    app.pause = lambda: rng.choice([0.0, 0.0, 0.5, 20.0])

    async def settle() -> None:
        app.check()
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.001, 1.0, 4.0, 30.0, 200.0]))
        app.check()

    async def work() -> None:
        await app.join().open()
        for _ in range(150):
            deed = rng.choice(DEEDS)
            if deed == "post":
                app.post(*[rng.randrange(3) for _ in range(rng.randrange(1, 5))])
            elif deed == "take":
                app.take()
            elif deed == "confirm" and app.in_hand:
                app.in_hand.pop(rng.randrange(len(app.in_hand))).confirm()
            elif deed == "all":
                while app.in_hand:
                    app.in_hand.pop(0).confirm()
            elif deed == "cut":
                app.queue.cut()
                app.handled.clear()
            elif deed == "back":
                app.queue.restore()
            elif deed == "away":
                # The broker tells nobody. What was delivered before stays with this member.
                app.store.elsewhere.add(rng.randrange(3))
                app.store.deliver()
            elif deed == "home":
                app.store.elsewhere.clear()
                app.store.deliver()
            elif deed == "cancel":
                receiving = asyncio.create_task(app.group.receive())
                await asyncio.sleep(rng.choice([0.0, 0.5]))
                receiving.cancel()
                if (await asyncio.wait((receiving,)))[0] and not receiving.cancelled():
                    message: Any = receiving.result()
                    app.in_hand.append(message)
                    app.handled.append((message.bucket, message.number))
            elif deed == "end" and rng.random() < 0.3:
                await app.group.close()
                app.check()
                assert not app.loaded
                app.in_hand.clear()
                app.handled.clear()
                await app.join().open()
            await settle()
            assert in_order(app.handled), (seed, app.handled)
        # All that is left is handled once the member is connected and the application does its work.
        app.queue.restore()
        app.store.elsewhere.clear()
        app.pause = lambda: 0.0
        while app.in_hand:
            app.in_hand.pop(0).confirm()
        app.store.deliver()
        await asyncio.sleep(300)
        while app.take():
            app.in_hand.pop(0).confirm()
            await asyncio.sleep(0)
        await asyncio.sleep(300)
        while app.take():
            app.in_hand.pop(0).confirm()
        await app.group.close()
        assert app.group._check() == ""
        assert not app.loaded
        app.store.elsewhere.update(range(3))
        app.store.deliver()
        assert sorted(app.store.done) == list(range(app.posted))

    run_virtual(work())
