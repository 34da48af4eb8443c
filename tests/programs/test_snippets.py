# SPDX-License-Identifier: Apache-2.0
"""The snippets on typed messages, workers and testing run unchanged: handlers receive messages."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import bmq
from bmq.broker import Broker
from bmq.testing import TestApp
from tests.pages import at_broker
from tests.waiting import eventually

DOCS = Path(__file__).parent.parent.parent / "docs"
CODE_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUEUE = "bmq://bmq.test.mem.priority/shown"
#: Properties for the documented subscriptions.
PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS", "Region": "us"}


def blocks() -> Iterator[Any]:
    for name in ("guides/typed.md", "guides/workers.md", "guides/testing.md"):
        text = (DOCS / name).read_text(encoding="utf-8")
        for match in CODE_BLOCK.finditer(text):
            if "def test_" not in match[1]:  # run by pytest: tests/testing/test_documented.py
                line = text.count("\n", 0, match.start()) + 2
                yield pytest.param(match[1], id=f"{name}:{line}")


def sample(of: Any) -> Any:
    """A value of a handler's type."""
    if dataclasses.is_dataclass(of) and isinstance(of, type):
        hints = get_type_hints(of)
        return of(**{field.name: sample(hints[field.name]) for field in dataclasses.fields(of)})
    if get_origin(of) is list:
        return [sample(get_args(of)[0])]
    if get_origin(of) is dict:
        return {"number": sample(get_args(of)[1])}
    return {int: 1234, str: "1 Main Street", bool: True}[of]


async def give_each_handler_a_message(app: bmq.App) -> None:
    async with TestApp(app) as test:
        for each in test._all():
            for registered in each.app._registry.handlers:
                shape = registered.plan.shape
                value = sample(shape.of) if shape is not None else b"some bytes"
                await each.post(registered.uri.canonical, value, properties=PROPERTIES)
        for each in test._all():
            await each.drained(*(str(registered.uri) for registered in each.app._registry.handlers))
            assert each.failures == []


async def give_it_a_message_and_end_it(program: Coroutine[Any, Any, Any], broker: Broker) -> None:
    """Run an endless consumer of a queue."""
    running = asyncio.create_task(program)
    (uri,) = await eventually(lambda: [*broker.queues], 20)
    async with bmq.connect(broker.uri) as session:
        await (await session.open_queue(uri, write=True)).post(b"some bytes", properties=PROPERTIES)
        await broker.drained(uri, 20)
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("code", list(blocks()))
async def test_snippet_runs_unchanged(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("shown")
    monkeypatch.setitem(sys.modules, "shown", module)
    programs: list[Coroutine[Any, Any, Any]] = []
    monkeypatch.setattr(bmq, "run", programs.append)
    async with Broker(port=0) as broker, bmq.connect(broker.uri) as session:
        # Without the full duration of the soak test, more than a minute.
        program_here = at_broker(code, broker.uri).replace("count=60", "count=6")
        exec(compile(program_here, "shown", "exec"), vars(module))
        for program in programs:
            if program.__qualname__ == "App.run":
                program.close()
            elif "bmq.consume(" in code:
                await give_it_a_message_and_end_it(program, broker)
            else:
                await asyncio.wait_for(program, 60)
        parts = {id(part) for app in vars(module).values() if isinstance(app, bmq.App) for part in app._parts}
        for value in list(vars(module).values()):
            if isinstance(value, bmq.App) and id(value) not in parts:
                await give_each_handler_a_message(value)
        # The rest is functions shown without a program.
        queue = await session.open_queue(QUEUE, read=True, write=True)
        given = {bmq.Queue: queue, bytes: b"some bytes", str: broker.uri}
        for function in [each for each in vars(module).values() if inspect.iscoroutinefunction(each)]:
            if function.__module__ == "shown" and function.__name__ in ("post", "tell", "soak", "main"):
                if programs and function.__name__ == "main":
                    continue
                hints = get_type_hints(function)
                arguments = [given[hints[name]] for name in inspect.signature(function).parameters]
                await asyncio.wait_for(function(*arguments), 100)
