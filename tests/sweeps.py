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
    cases: list[tuple[str, dict[str, Any]]] = []
    for value in values:
        row = value.values if isinstance(value, _WithId) else value if len(split) > 1 else (value,)
        case = dict(zip(split, row, strict=True))
        text = ", ".join(f"{name} = {ids(each):.200}" for name, each in case.items())
        cases.append((str(value.id) if isinstance(value, _WithId) and value.id else text, case))
    assert cases, names

    def decorate(test: Callable[..., Any]) -> Any:
        signature = inspect.signature(test)
        kept = [each for name, each in signature.parameters.items() if name not in split]
        assert len(kept) + len(split) == len(signature.parameters), (names, test)

        @functools.wraps(test)
        def swept(**fixtures: Any) -> None:
            for text, case in cases:
                with _named(text):
                    test(**fixtures, **case)

        @functools.wraps(test)
        async def swept_async(**fixtures: Any) -> None:
            before = asyncio.all_tasks()
            for text, case in cases:
                with _named(text):
                    await test(**fixtures, **case)
                    for _ in range(5):
                        await asyncio.sleep(0)
                    left = asyncio.all_tasks() - before
                    assert not left, f"tasks left behind: {left}"

        found: Any = swept_async if inspect.iscoroutinefunction(test) else swept
        found.__signature__ = signature.replace(parameters=kept)
        return found

    return decorate


@contextmanager
def _named(case: str) -> Generator[None]:
    """Add the case to the traceback of a failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"the case: {case}")
        raise
