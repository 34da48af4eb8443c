# SPDX-License-Identifier: Apache-2.0
"""A queue and one for dead letters. These tests count the log lines about unusable messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import bmq
from bmq.workers._handlers import BlockingCalls


@pytest.fixture(autouse=True)
def _no_lines_about_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no line about a blocked event loop: on a busy machine, every handler blocks it now and then."""
    monkeypatch.setattr(BlockingCalls, "found", lambda *_: None)


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


@pytest.fixture
async def letters(bmq_session: bmq.Session, bmq_new_queue_uri: Callable[..., str]) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
