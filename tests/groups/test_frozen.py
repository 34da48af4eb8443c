# SPDX-License-Identifier: Apache-2.0
"""Members that stand still while the broker keeps their connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bmq
from bmq.testing import Direction
from tests.groups.conftest import OPTIONS, Ledger, Proxied, handle, post
from tests.waiting import eventually

TAKE_OVER: dict[str, Any] = {**OPTIONS, "take_over_after": 1.5}


@pytest.mark.parametrize("leads", [False, True], ids=["member", "leader"])
async def test_the_order_of_a_key_waits_for_a_frozen_member(
    leads: bool, proxied: Proxied, reader: bmq.Queue, writer: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own buckets wait until it is back; all others go on, also without their leader."""
    ledger, (proxy, frozen) = Ledger(), proxied
    first, second = (frozen, reader) if leads else (reader, frozen)
    async with first.group("k", **OPTIONS) as leader:
        await eventually(lambda: len(leader.owned) == 6)
        async with second.group("k", **OPTIONS) as other:
            await eventually(lambda: len(leader.owned) == 3 and len(other.owned) == 3)
            old, new = (leader, other) if leads else (other, leader)
            tasks = [asyncio.create_task(handle(old, "old", ledger))]
            tasks.append(asyncio.create_task(handle(new, "new", ledger)))
            waits = old.owned
            proxy.stall()
            await post(writer, *range(60))
            await eventually(lambda: len(new.owned) == 6)
            await eventually(lambda: len(ledger.done) == 30)
            stats = new.stats()
            assert (stats.behind, stats.silent) == (3, 1)
            assert stats.granted is not None
            assert stats.granted < OPTIONS["lease"]
            assert "holds 3 buckets" in caplog.text
            assert ("has not answered for" in caplog.text) is leads
            assert not {bucket for name, bucket, _ in ledger.handled if name == "new"} & waits
            proxy.resume()
            await eventually(lambda: len(ledger.done) == 60)
            await eventually(lambda: new.stats().silent == 0)
    await asyncio.gather(*tasks)
    assert not ledger.wrong
    assert len(ledger.handled) == 60


@pytest.mark.parametrize(
    ("what", "direction", "leads"),
    [
        pytest.param("stall", None, False, id="a frozen process"),
        pytest.param("stall", None, True, id="a frozen process that leads"),
        pytest.param("swallow", None, True, id="a silent host that leads"),
        pytest.param("stall", Direction.TO_BROKER, False, id="nothing reaches the broker"),
        pytest.param("swallow", Direction.TO_BROKER, True, id="the host of the leader is gone"),
    ],
)
async def test_with_take_over_after_the_group_goes_on_without_a_frozen_member(
    what: str, direction: Any, leads: bool, proxied: Proxied, reader: bmq.Queue, writer: bmq.Queue
) -> None:
    """Messages that it has come late, and all others in order, under growing fences."""
    ledger, (proxy, frozen) = Ledger(), proxied
    first, second = (frozen, reader) if leads else (reader, frozen)
    async with first.group("k", **TAKE_OVER) as leader:
        await eventually(lambda: len(leader.owned) == 6)
        async with second.group("k", **TAKE_OVER) as other:
            await eventually(lambda: len(leader.owned) == 3 and len(other.owned) == 3)
            old, new = (leader, other) if leads else (other, leader)
            tasks = [asyncio.create_task(handle(new, "new", ledger))]
            getattr(proxy, what)(direction)
            posted = await _post_until_all_buckets_continue(writer, ledger)
            tasks.append(asyncio.create_task(handle(old, "old", ledger)))
            proxy.heal()
            for connection in proxy.connections if what == "swallow" else ():
                connection.cut()
            await eventually(lambda: len(ledger.done) == posted)
            await post(writer, *range(posted, posted + 60))
            await eventually(lambda: len(ledger.done) == posted + 60)
    await asyncio.gather(*tasks)
    handled = [number for _, _, number in ledger.handled]
    assert len(handled) == posted + 60
    for bucket in range(6):
        of_bucket = [number for number in handled if number % 6 == bucket]
        # The frozen member had the messages before the first one.
        in_order = [number for number in of_bucket if number >= of_bucket[0]]
        assert in_order == sorted(in_order)
    assert [each for each in ledger.wrong if "under fence" in each] == []


async def _post_until_all_buckets_continue(writer: bmq.Queue, ledger: Ledger) -> int:
    """Return the number of messages."""
    posted = 0
    async with asyncio.timeout(30):
        while len(ledger.fences) < 6:
            await post(writer, *range(posted, posted + 6))
            posted += 6
            await asyncio.sleep(0.02)  # the producer's pace
    return posted


async def test_a_member_joins_a_group_whose_only_member_is_frozen(
    proxied: Proxied, reader: bmq.Queue, writer: bmq.Queue
) -> None:
    proxy, old = proxied
    async with old.group("k", **TAKE_OVER) as frozen:
        await eventually(lambda: len(frozen.owned) == 6)
        proxy.stall()
        async with reader.group("k", **TAKE_OVER) as group:
            ledger = Ledger()
            task = asyncio.create_task(handle(group, "new", ledger))
            await _post_until_all_buckets_continue(writer, ledger)
            proxy.resume()
            await eventually(lambda: len(group.owned) == 3 and len(frozen.owned) == 3)
        await task


async def test_a_killed_member_is_not_taken_for_a_frozen_one(
    proxied: Proxied, reader: bmq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Its buckets have no messages that would show it: the broker returns the mail for it."""
    caplog.set_level("INFO", "bmq.groups")
    proxy, killed = proxied
    async with reader.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 6)
        async with killed.group("k", **OPTIONS) as other:
            await eventually(lambda: len(group.owned) == 3 and len(other.owned) == 3)
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: len(group.owned) == 6)
            await eventually(lambda: "is gone" in caplog.text)
            await eventually(lambda: group.stats().silent == 0 and group.stats().behind == 0)
            await proxy.accept()
