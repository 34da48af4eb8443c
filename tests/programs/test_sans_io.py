# SPDX-License-Identifier: Apache-2.0
"""The example of a blocking client: the protocol core is enough for one."""

from __future__ import annotations

import sys

import pytest

from bmq.testing import BackgroundBroker
from tests.commands import ROOT, completed

EXAMPLE = (sys.executable, ROOT / "examples" / "sans_io_client.py")


@pytest.mark.statement("7.5")
def test_the_blocking_client_posts_receives_and_confirms() -> None:
    with BackgroundBroker() as broker:
        done = completed(*EXAMPLE, "--broker", broker.uri, "--count", "3")
        received = [f"received: message {number}" for number in range(3)]
        assert done.stdout.splitlines() == ["posted: SUCCESS"] * 3 + received
        again = completed(*EXAMPLE, "--broker", broker.uri, "--count", "1")
        # The first one confirmed what it had received.
        assert again.stdout.splitlines() == ["posted: SUCCESS", "received: message 0"]


def test_refused_queue_is_an_error_with_the_reason() -> None:
    with BackgroundBroker() as broker:
        done = completed(*EXAMPLE, "--broker", broker.uri, "--queue", "bmq://no.such.domain/q", status=1)
    assert "OpenQueueError" in done.stderr
