# SPDX-License-Identifier: Apache-2.0
"""Groups, delayed messages, requests and durable retries while nodes of a cluster are killed.

``BMQ_CLUSTER_PROGRAM`` names the program of a real broker, for three nodes and a proxy on loopback. Without
    the variable, an embedded broker is killed and restarted with its stored messages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
PROGRAM = os.environ.get("BMQ_CLUSTER_PROGRAM")
KILLS = "3" if PROGRAM else "1"


def run(program: str, *arguments: str) -> str:
    """Run a program of ``benchmarks``; return its output."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments, *(("--broker", PROGRAM) if PROGRAM else ())],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def numbers(text: str, printed: str) -> list[int]:
    """The printed values in place of each ``#`` of a text."""
    found = re.search(re.escape(text).replace(r"\#", r"([\d,]+)"), printed)
    assert found, printed
    return [int(each.replace(",", "")) for each in found.groups()]


@pytest.mark.timeout(600 if PROGRAM else 100)
def test_delayed_messages_survive_and_are_never_early() -> None:
    """Only messages confirmed at the moment of a kill arrive twice."""
    printed = run("delays.py", "cluster", "--laps", KILLS, "--down", "5" if PROGRAM else "1")
    (posted, lost, twice) = numbers("; # posted, # lost, # twice", printed)
    assert (posted > 500, lost) == (True, 0)
    assert numbers("# early; late", printed.rpartition("movers passed on")[2]) == [0]
    assert twice <= 0.01 * posted
    assert "not recognised" not in printed
    (asked,) = numbers("# requests: {'right': #}", printed)[:1]
    assert numbers("# requests: {'right': #}", printed) == [asked, asked]
    assert numbers("that failed and came back: # lost", printed) == [0]


@pytest.mark.timeout(600 if PROGRAM else 100)
def test_group_loses_no_message_and_keeps_each_bucket_in_order() -> None:
    printed = run("groups.py", "cluster", "--rounds", KILLS, "--rate", "300")
    cells = printed.splitlines()[-1].replace(",", "").split("killed")[1].split()
    posted, lost, _twice, out_of_order = map(int, cells[:4])
    assert (posted > 500, lost, out_of_order) == (True, 0, 0)
