# SPDX-License-Identifier: Apache-2.0
"""Time, randomness and identity come from one module, which a simulation replaces."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random

import bmq
from bmq import _world
from bmq.broker import Broker
from tests.waiting import eventually

PACKAGE = Path(bmq.__file__).parent

_FORBIDDEN = {
    "time": {
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
        "process_time_ns", "thread_time", "clock_gettime", "localtime", "gmtime", "strftime", "sleep",
    },
    "random": None,
    "secrets": None,
    "uuid": {"uuid1", "uuid4"},
    "os": {"urandom", "getrandom", "getpid"},
    "socket": {"gethostname", "getfqdn"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}  # fmt: skip
#: A generator with a seed of its own is no source of randomness.
_ALLOWED = {"random": {"Random"}}
#: What reads clocks and random numbers of its own, and why.
_EXCEPTIONS = {
    "_world.py": "the one source",
    "cli/": "programs for people, which no simulation runs",
    "console/server.py": "a token that protects a page",
    "testing/_simulation.py": "replaces the clocks of simulated programs",
    "spark/": "runs in Spark's own processes and threads",
}


def _found(source: str) -> Iterator[tuple[str, int]]:
    """The clocks and random numbers that a module asks for."""
    tree = ast.parse(source)
    modules = {"datetime", "date"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(each.name for each in node.names)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for each in names:
                    if each.name in _FORBIDDEN and each.asname is not None:
                        yield f"{each.name} under another name", node.lineno
            case ast.ImportFrom(module="datetime"):
                pass
            case ast.ImportFrom(module=str(module), names=names) if module in _FORBIDDEN:
                for each in names:
                    if _is_forbidden(module, each.name):
                        yield f"{module}.{each.name}", node.lineno
            case ast.Attribute(value=ast.Name(id=module) | ast.Attribute(attr=module), attr=name):
                if module in modules & _FORBIDDEN.keys() and _is_forbidden(module, name):
                    yield f"{module}.{name}", node.lineno
            case ast.Call(func=ast.Name(id="Random") | ast.Attribute(attr="Random"), args=[], keywords=[]):
                yield "random.Random()", node.lineno
            case _:
                pass


def _is_forbidden(module: str, name: str) -> bool:
    names = _FORBIDDEN[module]
    return (names is None or name in names) and name not in _ALLOWED.get(module, ())


def test_no_module_but_one_reads_a_clock_or_draws_a_random_number() -> None:
    excused: set[str] = set()
    found: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for what, line in _found(path.read_text(encoding="utf-8")):
            excuse = next((each for each in _EXCEPTIONS if name.startswith(each)), None)
            if excuse is None:
                found.append(f"{name}:{line}: {what}")
            else:
                excused.add(excuse)
    assert not found, "bmq._world has the same"
    assert excused == _EXCEPTIONS.keys(), "an exception that is not needed any more"


def _made(seed: int) -> _world.World:
    """A world that stands still at the beginning of 2030."""
    wall = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp())
    return _world.World(
        monotonic=lambda: 5.0,
        monotonic_ns=lambda: 5_000_000_000,
        time=lambda: float(wall),
        time_ns=lambda: wall * 10**9,
        random=Random(seed),
        hostname=lambda: "made",
        pid=lambda: 7,
        program=lambda: "test",
        session_ids=count(1),
    )


def test_tasks_live_in_the_world_they_were_created_in() -> None:
    async def look() -> tuple[float, datetime, str, int]:
        await asyncio.sleep(0)
        return _world.monotonic(), _world.now(), _world.hostname(), _world.pid()

    async def main() -> None:
        token = _world.world.set(_made(1))
        made = asyncio.create_task(look())
        _world.world.reset(token)
        assert await made == (5.0, datetime(2030, 1, 1, tzinfo=UTC), "made", 7)
        real = await look()
        assert real[2] != "made"
        assert abs(real[1] - datetime.now(UTC)) < timedelta(minutes=1)

    asyncio.run(main())


async def test_two_runs_in_equal_worlds_send_equal_guids_names_and_delays() -> None:
    async def run() -> list[str]:
        token = _world.world.set(_made(3))
        try:
            async with Broker(posts_kept=10) as broker, bmq.connect(broker.uri) as session:
                queue = await session.open_queue("bmq://bmq.test.mem.priority/q", read=True, write=True)
                await queue.post(b"one", delay=0.0)
                request = asyncio.create_task(queue.request(b"?", timeout=60))
                await eventually(lambda: broker.posted(queue.uri))
                request.cancel()
                await asyncio.wait([request])
                pauses = bmq.reconnect_delays()
                posts = [broker.posted(f"{queue.uri}.delayed")[0], broker.posted(queue.uri)[0]]
                told = [f"{each.guid} {each.properties}" for each in posts]
                told += [f"{next(pauses)}" for _ in range(3)]
                async with queue.group("k", buckets=2) as group:
                    told.append(group.member)
                return told
        finally:
            _world.world.reset(token)

    first, second = await run(), await run()
    assert first == second
    assert "made-7-" in first[-1]
    assert "'bmq_due': 1893456000000" in first[0]
