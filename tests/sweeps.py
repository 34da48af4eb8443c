# SPDX-License-Identifier: Apache-2.0
"""Many cases in one test, for cases without fixtures of their own.

pytest collects every parametrised case in each of its processes, and prepares and reports it in one of them,
which takes longer than most cases. ``@sweep("turns", range(12))`` replaces ``@pytest.mark.parametrize`` with
the same arguments. The first case that fails ends the test, and its name is the end of the traceback.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["sweep"]

_WithId = type(pytest.param())


def sweep(
    names: str, values: Iterable[Any], *, ids: Callable[[Any], str] = repr
) -> Callable[[Callable[..., Any]], Any]:
    """Run a test once for each value, in the same fixtures.

    A test with ``async`` must leave no task behind after any case, as after a test.

    Args:
        names: name of the argument; several names, with commas, for values that are tuples.
        values: the cases; ``pytest.param`` gives a case a name.
        ids: returns the text of a value in the name of a case.
    """
    split = [name.strip() for name in names.split(",")]
    cases: list[tuple[str | None, dict[str, Any]]] = []
    for value in values:
        row = value.values if isinstance(value, _WithId) else value if len(split) > 1 else (value,)
        cases.append((value.id if isinstance(value, _WithId) else None, dict(zip(split, row, strict=True))))
    assert cases, names

    def decorate(test: Callable[..., Any]) -> Any:
        signature = inspect.signature(test)
        kept = [each for name, each in signature.parameters.items() if name not in split]
        assert len(kept) + len(split) == len(signature.parameters), (names, test)

        @functools.wraps(test)
        def swept(*instance: Any, **fixtures: Any) -> None:
            for name, case in cases:
                with _named(name, case, ids):
                    test(*instance, **fixtures, **case)

        @functools.wraps(test)
        async def swept_async(*instance: Any, **fixtures: Any) -> None:
            before = asyncio.all_tasks()
            for name, case in cases:
                with _named(name, case, ids):
                    await test(*instance, **fixtures, **case)
                    for _ in range(5):
                        await asyncio.sleep(0)
                    left = asyncio.all_tasks() - before
                    assert not left, f"tasks left behind: {left}"

        found: Any = swept_async if inspect.iscoroutinefunction(test) else swept
        found.__signature__ = signature.replace(parameters=kept)
        return found

    return decorate


@contextmanager
def _named(name: object, case: dict[str, Any], ids: Callable[[Any], str]) -> Generator[None]:
    """Add the case to the traceback of a failure."""
    try:
        yield
    except BaseException as error:
        text = name or ", ".join(f"{argument} = {ids(each):.200}" for argument, each in case.items())
        error.add_note(f"the case: {text}")
        raise
