# SPDX-License-Identifier: Apache-2.0
"""Simulated processes, brokers and clocks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import secrets
import time
import uuid
from typing import Any

import pytest

import bmq
from bmq.testing import Simulation, SimulationError
from tests.sweeps import sweep

QUEUE = "bmq://bmq.test.mem.priority/q"
DAY = 86400.0


def test_a_day_passes_on_every_clock_without_waiting() -> None:
    sim = Simulation(1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        clocks = loop.time, time.time, time.monotonic
        before = [clock() for clock in clocks]
        await asyncio.sleep(DAY)
        passed = [clock() - first for clock, first in zip(clocks, before, strict=True)]
        assert passed == pytest.approx([DAY] * 3, abs=0.01)

    began = time.monotonic()
    sim.run(main)
    assert time.monotonic() - began < DAY <= sim.now


def orders(seed: int) -> tuple[str, list[bytes]]:
    """Post to a broker that crashes and is cut off; return the digest and what arrived."""
    sim = Simulation(seed)
    sim.network.set(latency=(0.0, 0.01), segment=(1, 50))
    broker = sim.broker()
    arrived: list[bytes] = []

    async def shop() -> None:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue(QUEUE, write=True)
            for number in range(20):
                await queue.post(b"%d" % number)

    async def stock() -> None:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue(QUEUE, read=True)
            async for message in queue:
                arrived.append(message.data)
                message.confirm()

    async def main() -> None:
        process = sim.process("shop", shop)
        sim.process("stock", stock)
        for _ in range(5):
            await asyncio.sleep(sim.random.uniform(0, 0.2))
            broker.restart()
        sim.network.connections[0].reset()
        await process.wait()
        await sim.until(lambda: len(set(arrived)) == 20)

    sim.run(main)
    return sim.digest, arrived


def test_one_seed_makes_one_run_byte_for_byte() -> None:
    first, arrived = orders(7)
    assert (first, arrived) == orders(7)
    assert set(arrived) == {b"%d" % number for number in range(20)}
    assert orders(8)[0] != first


def test_random_numbers_of_a_program_follow_from_the_seed() -> None:
    async def draw() -> list[Any]:
        return [random.random(), secrets.token_hex(8), uuid.uuid4(), os.urandom(3), time.time()]

    outside = random.getstate()
    assert Simulation(1).run(draw) == Simulation(1).run(draw)
    assert Simulation(1).run(draw)[:4] != Simulation(2).run(draw)[:4]
    assert random.getstate() == outside
    assert uuid.uuid4() != uuid.uuid4()
    assert abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) < 5


def test_a_deadlock_names_the_tasks_and_where_they_wait() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        asyncio.create_task(stuck(), name="the stuck one")  # noqa: RUF006
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationError, match="no further event is possible") as caught:
        Simulation(1).run(main)
    assert "main, the stuck one: " in str(caught.value)
    assert "stuck (simulation/test_simulation.py:" in str(caught.value)
    assert "Event.wait" in str(caught.value)


# processes


def test_a_process_is_paused_resumed_killed_without_cleanup_and_started_again() -> None:
    sim = Simulation(1)
    said: list[str] = []
    drawn: list[str] = []

    async def life() -> None:
        drawn.append(secrets.token_hex(4))
        try:
            while True:
                await asyncio.sleep(1)
                said.append(f"{process.incarnation} alive")
        finally:
            said.append("cleaned up")

    async def main() -> None:
        nonlocal process
        process = sim.process("life", life)
        await asyncio.sleep(2.5)
        process.pause()
        await asyncio.sleep(100)
        assert (said, process.state) == (["1 alive"] * 2, "paused")
        process.resume()
        await asyncio.sleep(0.1)
        assert said == ["1 alive"] * 3
        process.kill()
        process.kill()
        assert await process.wait() is None
        await asyncio.sleep(10)
        assert (said, process.state) == (["1 alive"] * 3, "killed")
        process.start()
        with pytest.raises(bmq.StateError, match="is running"):
            process.start()
        await asyncio.sleep(1.5)
        assert said[3:] == ["2 alive"]
        process.restart()
        await asyncio.sleep(1.5)
        assert said[4:] == ["3 alive"]
        assert len({*drawn}) == 3

    process: bmq.testing.SimulatedProcess
    sim.run(main)


def test_a_process_has_its_own_clock_which_may_jump() -> None:
    sim = Simulation(1)

    async def read() -> tuple[float, float]:
        return time.time(), asyncio.get_running_loop().time()

    async def main() -> None:
        ahead = sim.process("ahead", read)
        ahead.jump(100)
        now, loop_now = time.time(), asyncio.get_running_loop().time()
        there, loop_there = await ahead.wait()
        assert there - now == pytest.approx(100, abs=1)
        assert loop_there - loop_now < 1
        ahead.jump(-200)
        ahead.start()
        assert (await ahead.wait())[0] - now == pytest.approx(-100, abs=1)
        assert ahead.clock == -100

    sim.run(main)


def test_an_exception_that_nobody_retrieves_is_an_error() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def awaited(sim: Simulation) -> None:
        process = sim.process("failing", fail)
        with pytest.raises(ValueError, match="broken"):
            await process.wait()
        await asyncio.sleep(1)

    async def unawaited(sim: Simulation) -> None:
        sim.process("failing", fail)
        await asyncio.sleep(1)

    async def of_a_task(sim: Simulation) -> None:
        asyncio.create_task(fail())  # noqa: RUF006
        await asyncio.sleep(1)

    async def of_a_callback(sim: Simulation) -> None:
        asyncio.get_running_loop().call_soon([].pop)
        await asyncio.sleep(1)

    sim = Simulation(1)
    sim.run(awaited, sim)
    for main, says in (
        (unawaited, r"the process failing failed.*ValueError: broken"),
        (of_a_task, r"never retrieved.*ValueError: broken"),
        (of_a_callback, r"Exception in callback.*IndexError"),
    ):
        sim = Simulation(1)
        with pytest.raises(SimulationError, match=rf"(?s){says}"):
            sim.run(main, sim)


def test_remaining_processes_are_ended_cleanly_and_must_end() -> None:
    ended: list[str] = []

    async def clean() -> None:
        try:
            await asyncio.sleep(DAY)
        finally:
            await asyncio.sleep(5)
            ended.append("clean")

    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(DAY)

    async def main(sim: Simulation, program: Any) -> None:
        sim.process(program.__name__, program)
        await asyncio.sleep(1)

    sim = Simulation(1)
    sim.run(main, sim, clean)
    assert ended == ["clean"]
    sim = Simulation(1)
    with pytest.raises(SimulationError, match="stubborn has not ended"):
        sim.run(main, sim, stubborn)


def test_simulation_leaves_no_state() -> None:
    class Trace:
        pass

    async def life(uri: str) -> None:
        kept = Trace()
        async with bmq.connect(uri) as session:
            await session.open_queue(QUEUE, read=True)
            await asyncio.sleep(DAY)
        del kept

    async def main(sim: Simulation) -> None:
        process = sim.process("life", life, sim.broker().uri)
        await asyncio.sleep(1)
        process.kill()

    clocks = time.time, time.monotonic, time.sleep, os.urandom
    sim = Simulation(1)
    sim.run(main, sim)
    del sim
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Trace)]
    assert (time.time, time.monotonic, time.sleep, os.urandom) == clocks
    assert gc.isenabled()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


# threads


def test_calls_in_threads_run_after_a_while_and_in_the_process() -> None:
    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        before = loop.time()
        found = [await asyncio.to_thread(sum, [1, 2, 3]), await loop.run_in_executor(None, max, 4, 5)]
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        assert loop.time() > before
        return found

    assert Simulation(1).run(main) == [6, 5]


def test_time_sleep_is_refused_in_a_process() -> None:
    async def main() -> None:
        time.sleep(1)  # noqa: ASYNC251

    with pytest.raises(bmq.UsageError, match=r"await asyncio\.sleep"):
        Simulation(1).run(main)


@sweep(
    "name, arguments",
    [
        ("add_reader", (0, print)),
        ("sock_recv", (None, 1)),
        ("subprocess_exec", (None, "ls")),
        ("create_datagram_endpoint", (None,)),
        ("add_signal_handler", (2, print)),
        ("start_tls", (None, None, None)),
    ],
)
def test_unsupported_calls_are_refused_by_name(name: str, arguments: tuple[Any, ...]) -> None:
    async def main() -> None:
        getattr(asyncio.get_running_loop(), name)(*arguments)

    with pytest.raises(bmq.UsageError, match=rf"loop\.{name}\(\) does not exist in a simulation"):
        Simulation(1).run(main)


# brokers


def post_and_crash(seed: int, **crash: Any) -> tuple[list[bytes], list[bytes]]:
    """Post one message after the other, crash in between; return the acknowledged and the stored messages."""
    sim = Simulation(seed)
    broker = sim.broker()
    acknowledged: list[bytes] = []

    async def shop() -> None:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue(QUEUE, write=True)
            for number in range(50):
                await queue.post(b"%d" % number)
                acknowledged.append(b"%d" % number)

    async def main() -> list[bytes]:
        process = sim.process("shop", shop)
        await sim.until(lambda: len(acknowledged) > 20, every=0.0001)
        broker.crash(**crash)
        process.kill()
        await asyncio.sleep(1)
        broker.start()
        return [each.payload for each in broker.broker.queues[QUEUE].messages]

    return acknowledged, sim.run(main)


@sweep("seed", range(5))
@sweep("crash", [{}, {"machine": True, "lose": 40e-6}])
def test_crashed_broker_keeps_acknowledged_messages(seed: int, crash: dict[str, Any]) -> None:
    acknowledged, stored = post_and_crash(seed, **crash)
    assert stored[: len(acknowledged)] == acknowledged


@sweep("after", [0.0101, 0.0105, 0.0115, 0.015, 0.0195])
def test_message_lost_in_a_crash_is_not_acknowledged(after: float) -> None:
    """An acknowledgement under way at the crash would belong to a message that was not stored."""
    sim = Simulation(1)
    sim.network.set(latency=(0.01, 0.01))
    broker = sim.broker()

    async def main() -> None:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue(QUEUE, write=True)
            posting = asyncio.create_task(queue.post(b"1"))
            await asyncio.sleep(after)
            broker.crash(lose=0.0099)
            await asyncio.sleep(1)
            broker.start()
            await posting
            assert [each.payload for each in broker.broker.queues[QUEUE].messages] == [b"1"]

    sim.run(main)


def test_broker_may_lose_its_last_messages() -> None:
    acknowledged, stored = post_and_crash(1, lose=0.005)
    assert 0 < len(stored) < len(acknowledged)
    assert stored == acknowledged[: len(stored)]


def test_clients_follow_a_failover_to_another_host() -> None:
    sim = Simulation(1)
    broker = sim.broker("node1", "node2")
    assert broker.uri == "tcp://node1:30114,tcp://node2:30114"

    async def main() -> list[str | None]:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue(QUEUE, write=True)
            hosts = [session.address]
            for number in range(2):
                await queue.post(b"%d" % number)
                broker.failover()
                await queue.post(b"%d after" % number)
                hosts.append(session.address)
            return hosts

    assert sim.run(main) == ["tcp://node1:30114", "tcp://node2:30114", "tcp://node1:30114"]
    assert len(broker.broker.queues[QUEUE]) == 4


def test_a_simulation_is_played_in_slices_until_its_end_or_until_it_is_closed() -> None:
    times = list(Simulation(1).play(asyncio.sleep, 1, every=0.1))
    assert len(times) >= 9
    assert times == pytest.approx([0.1 * number for number in range(1, len(times) + 1)])
    sim = Simulation(1)
    before = time.time, os.urandom
    playing = sim.play(asyncio.sleep, DAY, every=0.1)
    next(playing)
    playing.close()
    assert (time.time, os.urandom) == before
    with pytest.raises(bmq.StateError, match="the simulation is over"):
        next(sim.play(asyncio.sleep, 1))


def test_a_play_reports_a_failure_and_wrong_arguments() -> None:
    sim = Simulation(1)

    async def main() -> None:
        await asyncio.sleep(1)
        raise ValueError("no coffee")

    with pytest.raises(ValueError, match="no coffee") as caught:
        list(sim.play(main))
    assert any("BMQ_SIM_SEED=1" in note for note in caught.value.__notes__)
    with pytest.raises(bmq.UsageError, match="every"):
        Simulation(1).play(main, every=0)
    with pytest.raises(SimulationError, match="has not ended after 5 virtual seconds"):
        list(Simulation(1, limit=5).play(asyncio.sleep, 60))
