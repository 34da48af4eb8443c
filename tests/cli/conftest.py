# SPDX-License-Identifier: Apache-2.0
"""Runs the command in this process, with an embedded broker or the broker of BMQ_BROKER_URI."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

import bmq
from bmq.cli import main
from bmq.testing import BackgroundBroker

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Isolate the tests from the user: no configuration, no credentials, a terminal of 80 columns."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("BROKER_URI", "CONTEXT", "USER", "PASSWORD"):
        monkeypatch.delenv(f"BMQ_{name}", raising=False)
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    # bmq.run asks for this number. Python visits each of the tests' frozen objects: 50 ms for each command.
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)


REAL = os.environ.get("BMQ_BROKER_URI")


@pytest.fixture
def uri() -> Iterator[str]:
    """A broker that runs while the command does."""
    if REAL:
        yield REAL
        return
    with BackgroundBroker() as broker:
        yield broker.uri


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


class Terminal(io.StringIO):
    """A terminal that types a text, or shows one."""

    def isatty(self) -> bool:
        return True


Bmq = Callable[..., Ran]


@pytest.fixture
def offline(capsys: pytest.CaptureFixture[str]) -> Bmq:
    """Run the command: ``offline("check", "x > 1")``."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        status = main(arguments)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


@pytest.fixture
def run(offline: Bmq, uri: str) -> Bmq:
    """Run the command with the broker: ``run("post", queue, "hello")``."""
    return lambda *arguments: offline(*arguments, "--broker", uri)


class Aside:
    """A session in a thread of its own, for what goes on while the command runs."""

    def __init__(self, uri: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.session = self.do(self._connect(uri))

    async def _connect(self, uri: str) -> bmq.Session:
        return await bmq.connect(uri)

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    async def _end(self) -> None:
        """Close the session, and end what goes on in the loop, as ``asyncio.run`` does."""
        await self.session.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def close(self) -> None:
        self.do(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def aside(uri: str) -> Iterator[Aside]:
    aside = Aside(uri)
    yield aside
    aside.close()
