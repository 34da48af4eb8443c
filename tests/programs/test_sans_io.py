# SPDX-License-Identifier: Apache-2.0
"""The example of a blocking client: the protocol core is enough for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import bmq.testing

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "sans_io_client.py"


@pytest.mark.statement("7.5")
def test_the_blocking_client_posts_receives_and_confirms() -> None:
    with bmq.testing.BackgroundBroker() as broker:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), "--broker", broker.uri, "--count", "3"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "posted: SUCCESS",
            "posted: SUCCESS",
            "posted: SUCCESS",
            "received: message 0",
            "received: message 1",
            "received: message 2",
        ]
        again = subprocess.run(
            [sys.executable, str(EXAMPLE), "--broker", broker.uri, "--count", "1"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        # The first one confirmed what it had received.
        assert again.stdout.splitlines() == ["posted: SUCCESS", "received: message 0"]


def test_refused_queue_is_an_error_with_the_reason() -> None:
    with bmq.testing.BackgroundBroker() as broker:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), "--broker", broker.uri, "--queue", "bmq://no.such.domain/q"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0
        assert "OpenQueueError" in done.stderr
