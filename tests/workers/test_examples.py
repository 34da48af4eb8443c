"""The examples of routing, tags and workers are programs that run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", EXAMPLES / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_topic_routing() -> None:
    lines = run("topic_routing.py").splitlines()
    assert any("The message goes to important." in line for line in lines)
    assert lines[-1] == "important: 2, express: 2, rest: 2"


def test_tags() -> None:
    assert run("tags.py").splitlines() == [
        "foo asked for TagFilter(any_of=['compressed', 'urgent'], all_of=[]):",
        "    invoice ['eu', 'urgent']",
        "    backup ['compressed']",
        "    alarm ['urgent']",
        "bar asked for TagFilter(any_of=['urgent'], all_of=['eu']):",
        "    invoice ['eu', 'urgent']",
        "baz asked for CmqTags():",
        "    invoice ['eu', 'urgent']",
        "    backup ['compressed']",
        "    newsletter ['eu', 'high-priority']",
        "    note []",
        "    alarm ['urgent']",
    ]


def test_worker() -> None:
    # Of 24 orders 8 have no address (two retries each); of the others 4 need a second attempt.
    assert run("worker.py") == "16 shipped, 8 put aside, 20 retries\n"


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
