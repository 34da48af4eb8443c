# SPDX-License-Identifier: Apache-2.0
"""``bmq.run``: the event loop, the result, and the garbage collector's settings."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import bmq
from bmq._signals import on_interrupts
from tests.garbage import collect
from tests.loops import LOOPS
from tests.sweeps import sweep


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()
    collect()


@pytest.mark.statement("8.6")
def test_run_returns_the_result_and_uses_uvloop() -> None:
    async def main() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    loop = [*LOOPS.values()][-1]()
    loop.close()
    assert bmq.run(main()) is type(loop)


def test_run_freezes_existing_objects_for_the_garbage_collector() -> None:
    async def main() -> int:
        gc.collect()
        return len(gc.get_objects())

    before = len(gc.get_objects())
    assert bmq.run(main()) < before / 10
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects()) > before / 2


def test_a_failure_restores_the_garbage_collector() -> None:
    async def main() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        bmq.run(main())
    assert gc.get_freeze_count() == 0


# What a shell runs in the background ignores SIGINT, and so does all it starts.
CONSUMER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
import bmq

async def main():
    async with bmq.broker.Broker() as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue("bmq://bmq.test.mem.priority/q", read=True)
        print("waiting", flush=True)
        try:
            async for message in queue:
                pass
        finally:
            print("leaving", session.state.value, flush=True)

try:
    bmq.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


@sweep("before", ["", "sys.modules['uvloop'] = None"])
@sweep(
    "number, times, status, last",
    [
        (signal.SIGTERM, 1, 143, []),
        (signal.SIGINT, 1, 0, ["interrupted"]),
        # Two at once count as one: nothing is raised in the middle of a transport's work.
        (signal.SIGINT, 3, 0, ["interrupted"]),
    ],
)
def test_a_signal_closes_the_session_without_a_traceback(
    before: str, number: signal.Signals, times: int, status: int, last: list[str]
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", CONSUMER.format(before=before)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "waiting\n"
    for _ in range(times):
        program.send_signal(number)
    out, err = program.communicate(timeout=30)
    assert (err, program.returncode) == ("", status)
    assert out.splitlines() == [f"leaving {bmq.SessionState.STARTED.value}", *last]


def test_a_later_interrupt_ends_a_hung_loop() -> None:
    now = 0.0
    stops: list[float] = []

    async def main() -> None:
        nonlocal now
        with on_interrupts(lambda: stops.append(now), lambda: now):
            signal.raise_signal(signal.SIGINT)
            now = 0.4
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert stops == [0.4], "two together are one"
            now = 1.0
            signal.raise_signal(signal.SIGINT)
            now = 1.4
            signal.raise_signal(signal.SIGINT)  # the loop has not turned, and the time is short
            now = 2.0
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    asyncio.run(main())


def test_signal_handlers_of_the_application_stay() -> None:
    async def main() -> object:
        return signal.getsignal(signal.SIGTERM)

    def own(*_: object) -> None:
        pass

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    before = signal.signal(signal.SIGTERM, own)
    try:
        assert bmq.run(main()) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert bmq.run(main()) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
