# SPDX-License-Identifier: Apache-2.0
"""Odd values for every parameter of every public callable: each value works, or is a UsageError at the call.

The callables and their parameters come from inspection, so a new callable is included automatically. Each
parameter is tried with every second value, and with HYPOTHESIS_PROFILE=thorough with all of them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from fnmatch import fnmatch
from itertools import count, islice
from typing import Any

import pytest

import bmq
from tests.gate.odd import INNER, ODD, Own, close
from tests.gate.recipes import (
    ARGUMENTS,
    COMMON,
    EXCLUDED,
    EXCLUDED_PARAMETERS,
    MAKERS,
    OWN_MAKERS,
    USES,
    World,
)
from tests.gate.surface import Public, public
from tests.sweeps import sweep

# A call that has not returned after this many seconds has accepted its arguments.
_PATIENCE = 0.002
OTHER = "bmq://bmq.test.mem.priority/other"


WALKED = {
    each.name: each
    for each in public()
    if each.parameters and not any(fnmatch(each.name, pattern) for pattern in EXCLUDED)
}
#: The callables of each module and class.
OWNED: dict[str, list[str]] = defaultdict(list)
for name in sorted(WALKED):
    OWNED[name.rpartition(".")[0]].append(name)
STEP = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 2


@pytest.fixture
async def world(bmq_broker: bmq.broker.Broker) -> AsyncIterator[World]:
    async with bmq.connect(bmq_broker.uri) as session:
        other = await session.open_queue(OTHER, read=True, write=True)
        world = World(bmq_broker, session, other)
        yield world
        await world.close()


def kinds(parameter: inspect.Parameter) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield odd values for a parameter; for a list, also among valid values."""
    yield from ODD.items()
    words = ("Iterable", "Sequence", "Mapping", "list", "dict", "tuple", "Any", "object")
    if any(word in str(parameter.annotation) for word in words):
        for name in INNER:
            make = ODD[name]
            yield f"[{name}]", lambda make=make: [make()]
            yield f"{{'x': {name}}}", lambda make=make: {"x": make()}


async def call(world: World, what: Public, parameter: str, value: object) -> None:
    """Call the function with an odd value, and use its result."""
    positional: list[object] = []
    named: dict[str, object] = {}
    right = ARGUMENTS.get(what.name, {})
    for name, each in what.parameters.items():
        if name == parameter:
            given = value
        elif name in right or (each.default is each.empty and not name.startswith("*")):
            made = (right.get(name) or COMMON[name])(world)
            given = await made if inspect.isawaitable(made) and name != "main" else made
        else:
            continue
        if name.startswith("**"):
            named["x"] = given
        elif name.startswith("*") or each.kind is each.POSITIONAL_ONLY:
            positional.append(given)
        else:
            named[name] = given
    function = what.function
    if what.method and inspect.isfunction(inspect.getattr_static(what.owner, what.method)):
        made = (OWN_MAKERS.get(what.name) or MAKERS[what.owner])(world)  # type: ignore[index]
        function = getattr(await made if inspect.isawaitable(made) else made, what.method)
    result = function(*positional, **named)
    if inspect.iscoroutine(result):
        result = await settled(result)
    elif isinstance(result, asyncio.Future):
        result.cancel()
    if what.name in USES and result is not None:
        used = USES[what.name](world, result)
        if inspect.isawaitable(used):
            await used
    elif isinstance(result, AsyncIterator) and not isinstance(result, bmq.groups.Group):
        await settled(first(result))
    elif inspect.isgenerator(result):
        next(result, None)
    if hasattr(result, "aclose"):
        await result.aclose()


async def first(iterator: AsyncIterator[Any]) -> None:
    async for _ in iterator:
        break


async def settled(coroutine: Any) -> Any:
    """Await a coroutine; cancel a coroutine that waits for an event that never happens."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.wait([task], timeout=_PATIENCE)
    if not task.done():
        await asyncio.wait([task], timeout=0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]
        return None
    return task.result()


def is_fine(error: BaseException) -> bool:
    """Whether the error is acceptable for a caller."""
    if isinstance(error, bmq.StateError):
        return False
    if isinstance(error, bmq.UsageError | bmq.BufferFull | Own):
        return True
    if isinstance(error, bmq.TimedOut):
        return not isinstance(error, bmq.RequestTimeout)
    # Python itself has refused the call, before any code of bmq.
    return isinstance(error, TypeError) and len(traceback.extract_tb(error.__traceback__)) == 2


def is_short(parameter: str, value: object) -> bool:
    """Whether a value is a time too short for any event."""
    return parameter.endswith("timeout") and type(value) in (int, float) and 0 <= value < 1e-3  # type: ignore[operator]


#: Further errors about the caller's value, by callable.
ALLOWED: dict[str, tuple[type[BaseException], ...]] = {
    **dict.fromkeys([name for name in WALKED if name.startswith("bmq.admin.")], (bmq.errors.AdminError,)),
    "bmq.App.pause": (bmq.StateError,),
    "bmq.App.resume": (bmq.StateError,),
    "bmq.broker.Broker": (OSError,),
    "bmq.prometheus.exposition": (
        AttributeError,
    ),  # an error of the caller's function, which returns no session
    "bmq.broker.Broker.assert_posted": (AssertionError,),
    "bmq.broker.Broker.drained": (AssertionError,),
    "bmq.testing.TestApp.advance": (AssertionError,),
    "bmq.testing.TestApp.assert_posted": (AssertionError,),
    "bmq.testing.TestApp.drained": (AssertionError,),
    "bmq.testing.check": (OSError,),
    "bmq.testing.examine": (OSError,),
}


@pytest.mark.filterwarnings("ignore::bmq.ExpressionWarning")
@pytest.mark.parametrize("owner", OWNED)
async def test_an_odd_value_works_or_is_a_usage_error(
    world: World, owner: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[str] = []
    monkeypatch.setenv("BMQ_BROKER_URI", world.broker.uri)
    numbers = count()
    for name in OWNED[owner]:
        for parameter, details in WALKED[name].parameters.items():
            if f"{name}({parameter})" in EXCLUDED_PARAMETERS:
                continue
            for kind, make in islice(kinds(details), next(numbers) % STEP, None, STEP):
                value = make()
                try:
                    async with asyncio.timeout(60):
                        await call(world, WALKED[name], parameter, value)
                except Exception as error:
                    # The time is too short for any answer.
                    if is_short(parameter, value) and isinstance(
                        error, bmq.RequestTimeout | bmq.ConnectionFailed
                    ):
                        continue
                    if not is_fine(error) and not isinstance(error, ALLOWED.get(name, ())):
                        wrong.append(f"{name}({parameter}={kind}): {type(error).__name__}: {error!s:.150}")
                finally:
                    close(value)
            await world.other.post(b"still here")
            async with await world.other.receive(timeout=30) as message:
                assert message.data == b"still here", f"after {name}({parameter})"
            assert world.session.state is bmq.SessionState.STARTED, f"after {name}({parameter})"
            assert world.session.stats().reconnects == 0, f"after {name}({parameter})"
    assert not wrong, "\n" + "\n".join(wrong)
    assert [record.message for record in caplog.records if record.levelno >= logging.CRITICAL] == []


@sweep("kind", sorted(set(ODD) - {"coroutine"}))
def test_run_takes_a_coroutine_only(kind: str) -> None:
    value = ODD[kind]()
    with pytest.raises(bmq.UsageError, match="run needs a coroutine"):
        bmq.run(value)
    close(value)
