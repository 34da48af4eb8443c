"""``bmq.run``: the event loop, the result, and what the garbage collector leaves alone meanwhile."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
import uvloop

import bmq


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_it_returns_what_the_coroutine_returns_and_runs_it_on_uvloop() -> None:
    async def main() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert bmq.run(main()) is uvloop.Loop


def test_what_was_there_before_is_no_work_for_the_garbage_collector_while_it_runs() -> None:
    async def main() -> int:
        gc.collect()
        return len(gc.get_objects())

    before = len(gc.get_objects())
    assert bmq.run(main()) < before / 10
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects()) > before / 2


def test_the_garbage_collector_is_as_before_after_a_failure() -> None:
    async def main() -> None:
        raise LookupError("of the application's")

    with pytest.raises(LookupError, match="of the application's"):
        bmq.run(main())
    assert gc.get_freeze_count() == 0


def test_what_an_application_froze_itself_stays_frozen() -> None:
    async def main() -> None:
        pass

    gc.freeze()
    frozen = gc.get_freeze_count()
    bmq.run(main())
    assert gc.get_freeze_count() > frozen / 2 > 0
