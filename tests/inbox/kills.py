# SPDX-License-Identifier: Apache-2.0
"""Kills workers with an inbox, and counts the effects: none may be missing, none may happen twice.

    python -m tests.inbox.kills --kills 200 --database sqlite
    python -m tests.inbox.kills --kills 200 --database postgresql

Two workers consume one queue. For each message they insert a row, and post a message. One half of the kills
are at a chosen step of a message, before or after each statement, commit, post and confirmation; the other
half are at random times.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

import bmq
import bmq.inbox
from examples.batch_loader import postgresql

__all__ = ["STEPS", "Tally", "run"]

WORK = "bmq://bmq.test.mem.priority/work"
DONE = "bmq://bmq.test.mem.priority/done"
#: Steps of a message, in order; a worker dies directly before a step.
STEPS = (
    "begin",
    "guid",
    "effect",
    "store outputs",
    "commit",
    "post",
    "clear outputs",
    "second commit",
    "confirm",
    "end",
)


class Tally:
    """The result.

    Attributes:
        posted: number of input messages.
        kills: number of kills by step; ``"any"`` for kills at random times.
        missing: inputs without an effect.
        twice: inputs with several effects.
        outputs_missing: inputs without an output message.
        outputs_twice: inputs with several output messages.
    """

    def __init__(self) -> None:
        self.posted = 0
        self.kills = Counter[str]()
        self.missing = self.twice = self.outputs_missing = self.outputs_twice = 0

    def __str__(self) -> str:
        kills = ", ".join(f"{step} {self.kills[step]}" for step in ("any", *STEPS))
        return (
            f"{self.posted} messages, {self.kills.total()} kills ({kills}): effects {self.missing} missing, "
            f"{self.twice} twice; outputs {self.outputs_missing} missing, {self.outputs_twice} twice"
        )


class _Death:
    """Kills this process before a step, at the n-th message that takes the step."""

    def __init__(self, step: str | None, count: int) -> None:
        self._step = step
        self._count = count

    def __call__(self, step: str) -> None:
        if step == self._step:
            self._count -= 1
            if not self._count:
                os.kill(os.getpid(), signal.SIGKILL)


def _mortal(base: type[Any], die: _Death) -> type[Any]:
    """Return a class of inboxes that dies at a step."""

    class Mortal(base):  # type: ignore[misc]
        @asynccontextmanager
        async def _begin(self) -> AsyncGenerator[Any, None]:
            die("begin")
            async with super()._begin() as connection:
                yield connection
                die("second commit" if self.clearing else "commit")

        clearing = False

        async def _insert(self, *arguments: Any) -> Any:
            die("guid")
            return await super()._insert(*arguments)

        async def _store(self, connection: Any, key: Any, outputs: bytes | None) -> None:
            die("store outputs" if outputs is not None else "clear outputs")
            await super()._store(connection, key, outputs)

        async def _post(self, *arguments: Any) -> None:
            die("post")
            self.clearing = True
            try:
                await super()._post(*arguments)
            finally:
                self.clearing = False
            die("confirm")

    return Mortal


def worker(broker: str, url: str, step: str | None, count: int, ready: Any) -> None:
    """Consume until killed, or asked to stop."""
    logging.disable(logging.CRITICAL)
    die = _Death(step, count)

    async def main() -> None:
        if url.startswith("postgresql://"):
            pool = await asyncpg.create_pool(url, min_size=1)
            inbox = _mortal(bmq.inbox.AsyncpgInbox, die)(pool, keep=86400)
        else:
            inbox = _mortal(bmq.inbox.SqlAlchemyInbox, die)(create_async_engine(url), keep=86400)
        app = bmq.App(broker, retry_first_connect=True)
        app.on_startup(inbox.start)

        @app.consumer(WORK, concurrency=3, retry=bmq.Backoff(every=0.05, retries=None))
        async def handle(message: bmq.Message) -> None:
            ready.set()
            async with inbox.once(message) as transaction:
                if transaction is not None:
                    die("effect")
                    name = message.data.decode()
                    if isinstance(transaction.connection, AsyncConnection):
                        effect = sa.text("INSERT INTO effects VALUES (:name)")
                        await transaction.connection.execute(effect, {"name": name})
                    else:
                        await transaction.connection.execute("INSERT INTO effects VALUES ($1)", name)
                    transaction.post(DONE, message.data)
            message.confirm()
            die("end")

        await app.run()

    asyncio.run(main())


async def run(url: str, kills: int, seed: int = 1, note: Callable[[str], None] = lambda _: None) -> Tally:
    """Kill workers, and count.

    Args:
        url: of the database, for SQLAlchemy; ``postgresql://`` without a driver is for asyncpg alone.
        kills: number of kills.
        seed: of the random numbers.
        note: receives lines about the progress.
    """
    tally = Tally()
    chance = random.Random(seed)
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.begin() as connection:
        for table in ("effects", "bmq_inbox"):
            await connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
        await connection.execute(sa.text("CREATE TABLE effects (name VARCHAR(20))"))
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload([__name__, "bmq.workers", "aiosqlite"])
    async with bmq.broker.Broker(port=0) as broker, bmq.connect(broker.uri) as session:
        work = await session.open_queue(WORK, write=True)

        async def feed(number: int) -> None:
            first, tally.posted = tally.posted, tally.posted + number
            posts = [b"%d" % each for each in range(first, first + number)]
            (await work.post_many(posts)).raise_for_failures()

        def spawn(step: str | None) -> tuple[BaseProcess, Any]:
            ready = start.Event()
            arguments = (broker.uri, url, step, chance.randint(1, 4), ready)
            process = start.Process(target=worker, args=arguments, daemon=True)
            process.start()
            return process, ready

        async def life() -> None:
            """Start workers one after another, and kill each."""
            while tally.kills.total() + running.total() < kills:
                step = chance.choice((None, *STEPS)) if chance.random() < 0.55 else None
                running["x"] += 1
                process, ready = spawn(step)
                await feed(12)
                if step is None:
                    while not await asyncio.to_thread(ready.wait, 0.05):
                        assert process.is_alive(), process.exitcode
                    await asyncio.sleep(chance.random() * 0.05)
                    process.kill()
                while process.is_alive():
                    await asyncio.to_thread(process.join, 0.05)
                    if step is not None and broker_is_idle():
                        await feed(12)
                assert process.exitcode == -signal.SIGKILL, process.exitcode
                running["x"] -= 1
                tally.kills[step or "any"] += 1
                if tally.kills.total() % 20 == 0:
                    note(str(tally.kills.total()))

        def broker_is_idle() -> bool:
            return not len(broker.queues[WORK])

        running = Counter[str]()
        await asyncio.gather(life(), life())
        survivor, _ = spawn(None)
        done = await session.open_queue(DONE, read=True, write=True)
        outputs = Counter[str]()
        with suppress(TimeoutError):
            async with asyncio.timeout(120):
                while len(outputs) < tally.posted or len(broker.queues[WORK]):
                    with suppress(bmq.errors.TimedOut):
                        message = await done.receive(timeout=0.2)
                        message.confirm()
                        outputs[message.data.decode()] += 1
        survivor.terminate()
        await asyncio.to_thread(survivor.join)
        await done.post(b"end")
        while (message := await done.receive(timeout=60)).data != b"end":
            outputs[message.data.decode()] += 1
        async with engine.connect() as connection:
            effects = Counter((await connection.execute(sa.text("SELECT name FROM effects"))).scalars())
    await engine.dispose()
    posted = {str(number) for number in range(tally.posted)}
    tally.missing = len(posted - effects.keys())
    tally.twice = sum(count > 1 for count in effects.values())
    tally.outputs_missing = len(posted - outputs.keys())
    tally.outputs_twice = sum(count > 1 for count in outputs.values())
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill workers with an inbox, and count the effects.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgresql", "asyncpg"), default="sqlite")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.database == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = f"sqlite+aiosqlite:///{Path(folder) / 'kills.db'}"
        else:
            url = stack.enter_context(postgresql.running()).replace("+psycopg", "")
            if options.database == "postgresql":
                url = url.replace("postgresql://", "postgresql+asyncpg://")
        tally = asyncio.run(run(url, options.kills, options.seed, lambda line: print(line, file=sys.stderr)))
    print(f"{options.database}: {tally}")


if __name__ == "__main__":
    main()
