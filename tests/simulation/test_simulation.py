# SPDX-License-Identifier: Apache-2.0
"""Simulated processes, brokers and clocks."""

from __future__ import annotations

import asyncio
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


def test_a_day_passes_without_waiting() -> None:
    sim = Simulation(1)
    began = time.monotonic()

    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        first, wall = loop.time(), time.time()
        await asyncio.sleep(DAY)
        assert time.time() - wall == pytest.approx(DAY, abs=0.01)
        return loop.time() - first, time.monotonic() - first

    passed, read = sim.run(main)
    assert passed == pytest.approx(DAY, abs=1e-6)
    assert read == pytest.approx(DAY, abs=1e-2)
    assert time.monotonic() - began < DAY
    assert sim.now >= DAY


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


def test_timers_ring_in_the_order_of_their_times_and_never_early() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        rung: list[float] = []
        whens = [loop.time() + random.random() for _ in range(200)]
        for when in whens:
            loop.call_at(when, lambda when=when: rung.append(when) or early(when))  # type: ignore[misc]
        cancelled = [loop.call_later(0.5, rung.append, -1.0) for _ in range(500)]
        for each in cancelled:
            each.cancel()

        def early(when: float) -> None:
            assert loop.time() >= when

        await asyncio.sleep(1.1)
        assert rung == sorted(whens)

    Simulation(1).run(main)


def test_the_order_between_processes_is_drawn_from_the_seed() -> None:
    def order(seed: int) -> str:
        sim, seen = Simulation(seed), []

        async def one(name: str) -> None:
            seen.append(name)
            await asyncio.sleep(0)

        async def main() -> str:
            for each in [sim.process(name, one, name) for name in "abcdef"]:
                await each.wait()
            return "".join(seen)

        return sim.run(main)

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(10)}) > 5


# processes


def test_a_killed_process_runs_no_more_code_and_no_cleanup() -> None:
    sim = Simulation(1)
    said: list[str] = []

    async def life() -> None:
        try:
            while True:
                await asyncio.sleep(0.1)
                said.append("alive")
        finally:
            said.append("cleaned up")

    async def main() -> str:
        process = sim.process("life", life)
        await asyncio.sleep(0.35)
        process.kill()
        process.kill()
        await asyncio.sleep(10)
        assert said == ["alive"] * 3
        assert await process.wait() is None
        return process.state

    assert sim.run(main) == "killed"


def test_a_killed_process_can_be_started_again_with_another_number() -> None:
    sim = Simulation(1)
    seen: list[tuple[int, str]] = []

    async def life() -> None:
        seen.append((process.incarnation, secrets.token_hex(4)))
        await asyncio.sleep(DAY)

    async def main() -> None:
        nonlocal process
        process = sim.process("life", life)
        for _ in range(2):
            await asyncio.sleep(1)
            process.restart()
        with pytest.raises(bmq.StateError, match="is running"):
            process.start()
        await asyncio.sleep(1)

    process: bmq.testing.SimulatedProcess
    sim.run(main)
    assert [number for number, _ in seen] == [1, 2, 3]
    assert len({drawn for _, drawn in seen}) == 3


def test_paused_process_resumes() -> None:
    sim = Simulation(1)
    ticks: list[float] = []

    async def life() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(sim.now)

    async def main() -> None:
        process = sim.process("life", life)
        await asyncio.sleep(3.5)
        process.pause()
        await asyncio.sleep(100)
        assert len(ticks) == 3
        assert process.state == "paused"
        process.resume()
        await asyncio.sleep(2)
        assert len(ticks) in (5, 6)
        assert ticks[3] > 103

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


def test_exception_of_an_unawaited_process_is_an_error() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def main(sim: Simulation, wait: bool) -> None:
        process = sim.process("failing", fail)
        if wait:
            with pytest.raises(ValueError, match="broken"):
                await process.wait()
        await asyncio.sleep(1)

    sim = Simulation(1)
    sim.run(main, sim, True)
    sim = Simulation(1)
    with pytest.raises(SimulationError, match=r"(?s)the process failing failed.*ValueError: broken"):
        sim.run(main, sim, False)


def test_unretrieved_exception_is_an_error() -> None:
    async def fail() -> None:
        raise ValueError("unseen")

    async def main() -> None:
        asyncio.create_task(fail())  # noqa: RUF006
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match=r"(?s)never retrieved.*ValueError: unseen"):
        Simulation(1).run(main)

    async def callback() -> None:
        asyncio.get_running_loop().call_soon([].pop)
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match=r"(?s)Exception in callback.*IndexError"):
        Simulation(1).run(callback)


def test_remaining_processes_are_ended_cleanly() -> None:
    sim = Simulation(1)
    ended: list[str] = []

    async def serve() -> None:
        async with bmq.connect(broker.uri) as session:
            await session.open_queue(QUEUE, read=True)
            try:
                await asyncio.sleep(DAY)
            finally:
                await asyncio.sleep(5)
                ended.append("serve")

    broker = sim.broker()

    async def main() -> None:
        sim.process("serve", serve)
        await asyncio.sleep(1)

    sim.run(main)
    assert ended == ["serve"]


def test_a_process_that_does_not_end_is_an_error() -> None:
    sim = Simulation(1)

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(DAY)
            except asyncio.CancelledError:
                pass

    async def main() -> None:
        sim.process("stubborn", stubborn)
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="stubborn has not ended"):
        sim.run(main)


def test_simulation_leaves_no_state() -> None:
    class Trace:
        pass

    def run() -> None:
        sim = Simulation(1)
        broker = sim.broker()

        async def life() -> None:
            kept = Trace()
            async with bmq.connect(broker.uri) as session:
                await session.open_queue(QUEUE, read=True)
                await asyncio.sleep(DAY)
            del kept

        async def main() -> None:
            process = sim.process("life", life)
            await asyncio.sleep(1)
            process.kill()

        sim.run(main)

    clocks = time.time, time.monotonic, time.sleep, os.urandom
    run()
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


def test_crashed_broker_keeps_acknowledged_messages() -> None:
    for seed in range(5):
        acknowledged, stored = post_and_crash(seed)
        assert stored[: len(acknowledged)] == acknowledged
        acknowledged, stored = post_and_crash(seed, machine=True, lose=40e-6)
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


def test_a_simulation_is_played_in_slices() -> None:
    sim = Simulation(1)
    ticks: list[float] = []

    async def main() -> None:
        for _ in range(4):
            await asyncio.sleep(0.25)
            ticks.append(sim.now)

    times: list[float] = []
    for now in sim.play(main, every=0.1):
        times.append(now)
        assert all(tick <= now for tick in ticks)
    assert times == pytest.approx([0.1 * number for number in range(1, len(times) + 1)])
    assert len(ticks) == 4


def test_a_closed_play_ends_the_simulation() -> None:
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
    with pytest.raises(bmq.UsageError, match="main"):
        Simulation(1).play(main, 1)
    with pytest.raises(SimulationError, match="has not ended after 5 virtual seconds"):
        list(Simulation(1, limit=5).play(asyncio.sleep, 60))
