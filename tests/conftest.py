# SPDX-License-Identifier: Apache-2.0
"""Common parts of all tests: hypothesis's search, compiled modules, programs that can be interrupted."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.garbage import collect

# Windows has no signals for processes: there, a process that is asked to end is killed.
collect_ignore = (
    [
        "broker/test_main.py",
        "client/test_leaks.py",
        "client/test_running.py",
        "integration/test_lost_nodes.py",
    ]
    if sys.platform == "win32"
    else []
)

_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}

# The default: the same examples every time, a few seconds in all.
settings.register_profile("ci", max_examples=50, derandomize=True, **_COMMON)
# HYPOTHESIS_PROFILE=thorough: different examples every time, and many more.
settings.register_profile("thorough", max_examples=5000, **_COMMON)
# For tests/mutants.py: a failure is enough, without its smallest example.
settings.register_profile("mutants", derandomize=True, phases=[Phase.explicit, Phase.generate], **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Compiling the library takes every program that the tests start a third of a second. Not so for planted bugs:
# Python compiles a file again when its size or the second of its last change differs.
if os.environ.get("HYPOTHESIS_PROFILE") != "mutants":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False

# Most objects of a test are gone at its end: look for cycles a tenth as often as Python does by default.
gc.set_threshold(7_000, 10, 10)

# Background processes of a shell ignore SIGINT, and so would every program started by the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So do processes under nohup SIGHUP.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)  # tests run without pytest-xdist, too
def pytest_xdist_auto_num_workers() -> int:
    """Return two processes for each core: tests wait for half of their time."""
    return min(2 * (os.cpu_count() or 1), 8)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected: nearly all objects stay. ``_small_heap`` looks later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Exclude existing objects from garbage collection: 10,000 tests, and leftovers of the modules before."""
    collect()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a port that refuses connections; no other process can take the port during the test."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
