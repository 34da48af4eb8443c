# SPDX-License-Identifier: Apache-2.0
"""Tests over many seeds, faults that seeds draw, and repeating a failure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import bmq
from bmq.testing import SIMULATED_FAULTS, SimulatedFault, Simulation, simulated
from tests.sweeps import sweep

pytest_plugins = ["pytester"]

QUEUE = "bmq://bmq.test.mem.priority/q"


def test_a_test_runs_once_for_each_seed_and_a_failure_says_how_to_repeat_it() -> None:
    seen: list[int] = []

    @simulated(seeds=20, first=5)
    async def test(sim: Simulation) -> None:
        seen.append(sim.seed)
        sim.draw("size", 10)
        sim.note("the lights went out")
        if sim.seed == 7:
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong") as caught:
        test()
    assert seen == [5, 6, 7]
    told = "".join(caught.value.__notes__)
    for text in ("seed 7 after 0.0", "drawn: size=10", "the lights went out", '"op":"fault"', "SIM_SEED=7"):
        assert text in told


def test_environment_selects_a_seed_with_its_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BMQ_SIM_SEED", "9")
    monkeypatch.delenv("BMQ_TRACE", raising=False)
    seen: list[tuple[int, str]] = []

    @simulated(seeds=3)
    async def test(sim: Simulation) -> None:
        broker = sim.broker()
        async with bmq.connect(broker.uri) as session:
            await (await session.open_queue(QUEUE, write=True)).post(b"1")
        seen.append((sim.seed, sim.digest))

    test()
    traced = capsys.readouterr().err
    assert "0.00" in traced
    assert "bmq.trace: PUT sent to tcp://broker:30114" in traced
    monkeypatch.setenv("BMQ_SIM_SEED", "")
    monkeypatch.setattr("bmq.testing._simulation.seeds_to_run", lambda first, count: [9])
    test()
    # What is logged changes nothing.
    assert seen[0] == seen[1]
    monkeypatch.undo()
    monkeypatch.setenv("BMQ_SIM_SEED", "nine")
    with pytest.raises(bmq.UsageError, match="BMQ_SIM_SEED='nine' is not a seed"):
        test()


def test_only_coroutine_functions_with_a_simulation_can_be_simulated() -> None:
    async def nothing() -> None: ...

    for test, says in ((lambda sim: None, "coroutine function"), (nothing, "must accept the simulation")):
        with pytest.raises(bmq.UsageError, match=says):
            simulated()(test)  # type: ignore[arg-type]


def test_the_decorator_and_the_fixture_work_in_a_test_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(bmq.__file__).parents[1]))
    pytester.makeini("[pytest]")  # so that no configuration above the folder of the test counts
    pytester.makepyfile(
        """
        import asyncio
        import pytest
        from bmq.testing import simulated

        @simulated(seeds=2)
        async def test_decorated(sim, tmp_path):
            assert tmp_path.exists()
            await asyncio.sleep(1)

        @pytest.mark.bmq_seeds(3)
        def test_fixture(bmq_simulation):
            async def main():
                await asyncio.sleep(1)
                assert bmq_simulation.seed != 2

            bmq_simulation.run(main)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:asyncio")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*test_fixture[[]seed2[]]*", "*Simulation*", "seed 2 after 1.0*"])


# faults


def numbers(*kinds: SimulatedFault) -> list[int]:
    """Run a program under faults, which it must survive; return the numbers of the faults."""
    sim = Simulation(1)
    broker = sim.broker("one", "two")

    async def work() -> None:
        async with bmq.connect(broker.uri, retry_first_connect=True) as session:
            queue = await session.open_queue(QUEUE, write=True, read=True)
            while True:
                await queue.post(b"1")
                (await queue.receive()).confirm()
                await asyncio.sleep(0.05)

    async def main() -> None:
        worker = sim.process("worker", work)
        await asyncio.sleep(0.5)
        await sim.faults(5.0, victims=[worker], kinds=kinds or None, pause=(0.01, 0.2))
        await asyncio.sleep(1)
        assert broker.running
        assert worker.state == "running"

    sim.run(main)
    return sim.fault_numbers


@sweep("kind", SIMULATED_FAULTS)
def test_a_program_survives_every_kind_of_fault(kind: SimulatedFault) -> None:
    assert len(numbers(kind)) > 3


def test_a_fault_can_be_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = numbers()
    assert len(drawn) > 20
    assert drawn == numbers()
    monkeypatch.setenv("BMQ_SIM_SKIP", " ".join(map(str, drawn[1:])))
    left = numbers()
    assert left[0] == drawn[0]
    assert not set(left) & set(drawn[1:])
