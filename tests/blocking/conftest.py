# SPDX-License-Identifier: Apache-2.0
"""Each test runs on asyncio or on uvloop in the thread, with a broker in another thread.

With ``BMQ_BROKER_URI``, tests use that broker, except for tests that need their own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bmq
from bmq import _loop
from bmq.blocking import _portal
from bmq.testing import BackgroundBroker
from tests.garbage import collect
from tests.loops import loops_of


@pytest.fixture(autouse=True)
def loop_of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new thread for each test, which must end, without errors in its loop's exception handler."""
    complaints: list[dict[str, Any]] = []
    (make,) = loops_of(request.node, ()).values()

    def new_event_loop() -> asyncio.AbstractEventLoop:
        loop = make()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        return loop

    monkeypatch.setattr(_loop, "new_event_loop", new_event_loop)
    yield
    collect()
    portal = _portal.forget_portal()
    if portal is not None:
        portal.end(2)
    assert not complaints, complaints
    assert "bmq" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> str:
    """The address of a broker: embedded, or from the environment."""
    named = os.environ.get("BMQ_BROKER_URI")
    if named:
        return named
    background: BackgroundBroker = request.getfixturevalue("bmq_background_broker")
    return background.uri


@pytest.fixture
def session(broker: str) -> Iterator[bmq.blocking.Session]:
    with bmq.blocking.connect(broker) as session:
        yield session


@pytest.fixture
def queue(session: bmq.blocking.Session, bmq_queue_uri: str) -> bmq.blocking.Queue:
    return session.open_queue(bmq_queue_uri, read=True, write=True)


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    """Run functions in threads; each must have ended after the test, and raised nothing."""
    threads: list[threading.Thread] = []
    failed: list[BaseException] = []

    def start(function: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                function()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        threads.append(thread)
        return thread

    yield start
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not failed, failed
