# SPDX-License-Identifier: Apache-2.0
"""The examples of routing, tags and workers are programs that run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", EXAMPLES / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_the_example_of_topic_routing_runs() -> None:
    lines = run("topic_routing.py").stdout.splitlines()
    assert any("The message goes to important." in line for line in lines)
    assert lines[-1] == "important: 2, express: 2, rest: 2"


def test_the_example_of_tags_runs() -> None:
    assert run("tags.py").stdout.splitlines() == [
        "foo subscribes to TagFilter(any_of=['compressed', 'urgent'], all_of=[]):",
        "    invoice ['eu', 'urgent']",
        "    backup ['compressed']",
        "    alarm ['urgent']",
        "bar subscribes to TagFilter(any_of=['urgent'], all_of=['eu']):",
        "    invoice ['eu', 'urgent']",
        "baz subscribes to CmqTags():",
        "    invoice ['eu', 'urgent']",
        "    backup ['compressed']",
        "    newsletter ['eu', 'high-priority']",
        "    note []",
        "    alarm ['urgent']",
    ]


def test_the_example_of_a_worker_runs() -> None:
    # Of 24 orders 8 have no address (two retries each); of the others 4 need a second attempt.
    assert run("worker.py").stdout == "16 shipped, 8 put aside, 20 retries\n"


def test_worker_without_a_broker_names_its_address(closed_port: int) -> None:
    done = run("worker.py", "--broker", f"tcp://127.0.0.1:{closed_port}", code=1)
    assert f"127.0.0.1:{closed_port}" in done.stderr


CONSUMING = """
import asyncio, bmq, signal, sys

async def handle(message):
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("finished", flush=True)

async def main():
    install, loop = signal.signal, asyncio.get_running_loop()

    def tell(turns):
        # The signal takes effect within a few turns. A handler that ends at the same time is too early.
        if turns:
            loop.call_soon(tell, turns - 1)
        else:
            print("told", flush=True)

    def installing(number, handler):
        def say(*arguments):
            handler(*arguments)
            loop.call_soon_threadsafe(tell, 5)

        return install(number, say if callable(handler) else handler)

    signal.signal = installing
    async with bmq.broker.Broker(port=0) as broker, bmq.connect(broker.uri) as session:
        uri = "bmq://bmq.test.mem.priority/orders"
        queue = await session.open_queue(uri, read=True, write=True, default_subscription=False)
        await queue.post_many([b"1", b"2"])
        await bmq.consume(queue, handle, signals=True)
    print("closed")

bmq.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_consumes_finishes_and_closes_on_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-W", "error", "-c", CONSUMING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.stdout.readline() == "told\n"
        output, errors = process.communicate("go on\n", timeout=30)
    assert (process.returncode, output, errors) == (0, "finished\nclosed\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_serves_ends_on_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-W", "error", EXAMPLES / "worker.py", "--serve", "--orders", "3"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stderr:
            if "order 0 was tried 3 times: ValueError: no address" in line:
                break
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert output == "2 shipped, 1 put aside, 3 retries\n"
