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
