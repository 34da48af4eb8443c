# SPDX-License-Identifier: Apache-2.0
"""These tests count the log lines about unusable messages."""

from __future__ import annotations

import pytest

from bmq.workers._invoker import BlockingCalls


@pytest.fixture(autouse=True)
def _no_lines_about_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no line about a blocked event loop: on a busy machine, every handler blocks it now and then."""
    monkeypatch.setattr(BlockingCalls, "found", lambda *_: None)
