# SPDX-License-Identifier: Apache-2.0
"""Handlers with the inbox's middleware and dependencies."""

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

import bmq
import bmq.inbox
from bmq.workers import Failure
from tests.waiting import eventually

Inbox = bmq.inbox.SqlAlchemyInbox[AsyncConnection]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE effects (name TEXT)"))
    yield engine
    await engine.dispose()


async def effect(connection: AsyncConnection, name: object) -> None:
    await connection.execute(sa.text("INSERT INTO effects VALUES (:name)"), {"name": str(name)})


async def effects(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        rows = await connection.execute(sa.text("SELECT name FROM effects ORDER BY name"))
        return list(rows.scalars())


@asynccontextmanager
async def running(app: bmq.App, inbox: Inbox) -> AsyncIterator[None]:
    app.on_startup(inbox.start)
    app.on_shutdown(inbox.close)
    task = asyncio.create_task(app.run(signals=False))
    yield
    app.stop()
    await task


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


@pytest.fixture
async def output(bmq_session: bmq.Session, bmq_new_queue_uri: Callable[..., str]) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)


async def test_a_handler_runs_in_the_transaction_of_its_message(
    engine: AsyncEngine, bmq_broker: bmq.broker.Broker, queue: bmq.Queue, output: bmq.Queue
) -> None:
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)
    app = bmq.App(bmq_broker.uri)
    calls: list[int] = []

    @app.consumer(queue.uri, retry=bmq.Backoff(every=0.001, retries=5), middlewares=[inbox.middleware])
    async def charge(
        number: int,
        message: bmq.Message,
        connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)],
        transaction: Annotated[bmq.inbox.Transaction[AsyncConnection], bmq.Depends(inbox.transaction)],
    ) -> None:
        calls.append(number)
        assert transaction.connection is connection
        assert transaction.messages == [message]
        await effect(connection, number)
        transaction.post(output.uri, b"%d" % number)
        if calls.count(number) < 3:
            raise OSError("not now")

    async with running(app, inbox):
        await queue.post(b"7", guid="A" * 32)
        out = await output.receive(timeout=20)
        copy = bmq.PutMessage(b"7", {"bmq_origin": "A" * 32})
        (await queue.post_many([copy, bmq.PutMessage(b"8")])).raise_for_failures()
        assert [out.data, (await output.receive(timeout=20)).data] == [b"7", b"8"]
    assert calls == [7, 7, 7, 8, 8, 8]
    assert await effects(engine) == ["7", "8"]


async def test_a_handler_of_batches_receives_unhandled_messages(
    engine: AsyncEngine, bmq_broker: bmq.broker.Broker, queue: bmq.Queue, output: bmq.Queue
) -> None:
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)
    app = bmq.App(bmq_broker.uri)
    calls: list[list[int]] = []

    @app.batch_consumer(
        queue.uri,
        max_messages=4,
        max_wait=60,
        retry=bmq.Backoff(every=0.001, retries=5),
        middlewares=[inbox.middleware],
    )
    async def load(
        numbers: list[int],
        messages: list[bmq.Message],
        transaction: Annotated[bmq.inbox.Transaction[AsyncConnection], bmq.Depends(inbox.transaction)],
    ) -> None:
        calls.append(numbers)
        assert [int(message.data) for message in messages] == numbers
        failing = len(calls) in (2, 3)
        for number in numbers[failing:]:
            await effect(transaction.connection, number)
        if failing:
            raise bmq.PartlyFailed({0: OSError("not now")})
        for number in numbers:
            transaction.post(output.uri, b"%d" % number)

    copies = [bmq.PutMessage(b"%d" % number, {"bmq_origin": f"{number:032X}"}) for number in (1, 2)]
    async with running(app, inbox):
        for number in range(1, 5):
            await queue.post(b"%d" % number, guid=f"{number:032X}")
        assert [(await output.receive(timeout=20)).data for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        await queue.post_many([*copies, bmq.PutMessage(b"5"), bmq.PutMessage(b"6")])
        assert (await output.receive(timeout=20)).data == b"5"
    assert calls == [[1, 2, 3, 4], [5, 6], [5], [5]]
    assert await effects(engine) == ["1", "2", "3", "4", "5", "6"]


async def test_a_dependency_needs_the_middleware_when_the_app_starts(engine: AsyncEngine) -> None:
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)
    other = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)

    def rows(connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]) -> list[str]:
        return []

    async def charge(
        number: int, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]
    ) -> None: ...
    async def post(
        number: int, outputs: Annotated[bmq.inbox.Transaction[Any], bmq.Depends(inbox.transaction)]
    ) -> None: ...
    async def count(number: int, rows: Annotated[list[str], bmq.Depends(rows)]) -> None: ...
    async def once(
        number: int, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection, scope="app")]
    ) -> None: ...

    needs = "needs inbox.middleware, and {} runs without it: add middlewares="
    problems: list[tuple[Any, list[Any], str]] = [
        (charge, [], "charge: parameter connection " + needs.format("charge")),
        (charge, [other.middleware], "charge: parameter connection " + needs.format("charge")),
        (post, [], "post: parameter outputs " + needs.format("post")),
        (count, [], "count: dependency rows: parameter connection " + needs.format("count")),
        (once, [inbox.middleware], "once: parameter connection has the scope 'app', and Inbox.connection"),
    ]
    for handler, middlewares, problem in problems:
        app = bmq.App("tcp://127.0.0.1:1", middlewares=middlewares)
        app.consumer("bmq://bmq.test.mem.priority/orders")(handler)
        with pytest.raises(bmq.UsageError, match=re.escape(problem)):
            await app.run(signals=False)
    with pytest.raises(bmq.UsageError, match="the attempt has no transaction: register the handler with"):
        await inbox.transaction()


async def test_a_middleware_of_an_app_a_router_or_a_wrapper_serves_a_dependency(
    engine: AsyncEngine, bmq_session: bmq.Session, queue: bmq.Queue
) -> None:
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)

    async def charge(
        number: int, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]
    ) -> None: ...

    @functools.wraps(inbox.middleware)
    async def measured(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> object:
        return await inbox.middleware(attempt, call_next)

    async def none() -> None: ...

    def in_the_app(app: bmq.App) -> None:
        app.consumer(queue.uri)(charge)
        app.middleware(functools.partial(inbox.middleware))

    def in_a_router(app: bmq.App) -> None:
        router = bmq.Router(middlewares=[measured])
        router.consumer(queue.uri)(charge)
        app.include(router)

    def in_a_test(app: bmq.App) -> None:
        app.consumer(queue.uri)(charge)
        app.overrides[inbox.connection] = none

    for register in (in_the_app, in_a_router, in_a_test):
        app = bmq.App("tcp://127.0.0.1:1", connect_timeout=0.1)
        register(app)
        with pytest.raises(bmq.ConnectionFailed):
            await app.run(signals=False)
    with pytest.raises(bmq.UsageError, match=r"charge: parameter connection needs inbox\.middleware"):
        await bmq.consume(queue, charge)


def test_a_handler_in_a_thread_has_no_connection() -> None:
    inbox = bmq.inbox.SqlAlchemyInbox(create_async_engine("sqlite+aiosqlite://"), keep=1000)
    app = bmq.App(middlewares=[inbox.middleware])

    def charge(number: int, connection: Annotated[Any, bmq.Depends(inbox.connection)]) -> None: ...
    async def balance(connection: Annotated[Any, bmq.Depends(inbox.connection)]) -> int:
        return 7

    def report(
        number: int,
        balance: Annotated[int, bmq.Depends(balance)],
        transaction: Annotated[Any, bmq.Depends(inbox.transaction)],
    ) -> None: ...

    with pytest.raises(
        bmq.UsageError,
        match="charge: parameter connection belongs to the event loop, and charge runs in a thread: make",
    ):
        app.consumer("bmq://bmq.test.mem.priority/orders")(charge)
    app.consumer("bmq://bmq.test.mem.priority/orders")(report)


async def test_a_published_result_is_not_lost_behind_a_commit(
    engine: AsyncEngine, bmq_broker: bmq.broker.Broker, queue: bmq.Queue, output: bmq.Queue
) -> None:
    """A refused post after the commit would be repeated with nothing to post."""
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)
    app = bmq.App(bmq_broker.uri)
    seen: list[str] = []

    @app.consumer(queue.uri, retry=bmq.Backoff(every=0.001, retries=1, then="discard"))
    @app.publish_to(output.uri)
    async def book(number: int, message: bmq.Message) -> int | None:
        try:
            async with inbox.once(message) as transaction:
                if transaction is None:
                    return None
                await effect(transaction.connection, number)
        except bmq.UsageError as error:
            seen.append(str(error))
            raise
        return number

    async with running(app, inbox):
        await queue.post(b"7")
        await eventually(lambda: len(seen) == 2)
    assert "book has publish_to" in seen[0]
    assert "transaction.post" in seen[0]
    assert await effects(engine) == []


async def test_a_published_result_in_the_transaction_is_repeated(
    engine: AsyncEngine, bmq_broker: bmq.broker.Broker, queue: bmq.Queue, output: bmq.Queue
) -> None:
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)
    app = bmq.App(bmq_broker.uri)
    calls: list[int] = []

    @app.consumer(queue.uri, retry=bmq.Backoff(every=0.001, retries=5), middlewares=[inbox.middleware])
    @app.publish_to(output.uri)
    async def book(number: int, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]) -> int:
        calls.append(number)
        await effect(connection, number)
        if len(calls) == 1:
            bmq_broker.faults.nack(count=1)
        return number

    async with running(app, inbox):
        await queue.post(b"7")
        assert (await output.receive(timeout=20)).data == b"7"
    assert calls == [7, 7]
    assert await effects(engine) == ["7"]


@pytest.mark.parametrize("way", ["raises", "returns"])
async def test_work_cut_off_in_a_transaction_is_done_once(
    engine: AsyncEngine, bmq_broker: bmq.broker.Broker, queue: bmq.Queue, output: bmq.Queue, way: str
) -> None:
    """A handler that is cut off has not failed: the next delivery repeats, or recognises, its effect."""
    begun, failures, cut = asyncio.Queue[int](), list[Failure](), list[int]()
    for grace in (0, 30):
        inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=1000)
        app = bmq.App(bmq_broker.uri, grace=grace, on_error=failures.append)
        retry = bmq.NoRetry(bmq.DeadLetter(output.uri))

        @app.consumer(queue.uri, retry=retry, middlewares=[inbox.middleware])
        async def charge(
            number: int, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]
        ) -> None:
            await effect(connection, number)
            begun.put_nowait(number)
            if not cut:
                cut.append(number)
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if way == "raises":
                        raise ConnectionError from None

        await queue.post(b"8" if grace else b"7")
        async with running(app, inbox):
            while await begun.get() != (8 if grace else 7):
                pass
    assert not failures
    assert await effects(engine) == ["7", "8"]
    assert output.receive_nowait() is None
