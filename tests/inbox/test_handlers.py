# SPDX-License-Identifier: Apache-2.0
"""Handlers with the inbox's middleware and dependencies."""

import asyncio
import functools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

import bmq
import bmq.inbox
from bmq.workers import Failure
from tests.inbox.conftest import Database
from tests.waiting import eventually

Inbox = bmq.inbox.Inbox[Any]
Transaction = bmq.inbox.Transaction[Any]
ORDERS = "bmq://bmq.test.mem.priority/orders"
pytestmark = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


@pytest.fixture
def inbox(database: Database) -> Inbox:
    """An inbox that the app starts."""
    return database.inbox()


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


async def effect(database: Database, connection: Any, number: int) -> None:
    await database.execute(connection, f"INSERT INTO effects (name) VALUES ('{number}')")


@asynccontextmanager
async def running(app: bmq.App, inbox: Inbox) -> AsyncIterator[None]:
    app.on_startup(inbox.start)
    app.on_shutdown(inbox.close)
    task = asyncio.create_task(app.run(signals=False))
    yield
    app.stop()
    await task


async def test_a_handler_runs_in_the_transaction_of_its_message(
    database: Database, inbox: Inbox, bmq_broker: bmq.broker.Broker, queue: bmq.Queue, output: bmq.Queue
) -> None:
    app = bmq.App(bmq_broker.uri)
    calls: list[int] = []

    @app.consumer(queue.uri, retry=bmq.Backoff(every=0.001, retries=5), middlewares=[inbox.middleware])
    async def charge(
        number: int,
        message: bmq.Message,
        connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)],
        transaction: Annotated[Transaction, bmq.Depends(inbox.transaction)],
    ) -> None:
        calls.append(number)
        assert transaction.connection is connection
        assert transaction.messages == [message]
        await effect(database, connection, number)
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
    assert await database.effects() == ["7", "8"]


async def test_a_handler_of_batches_receives_unhandled_messages(
    database: Database, inbox: Inbox, bmq_broker: bmq.broker.Broker, queue: bmq.Queue, output: bmq.Queue
) -> None:
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
        transaction: Annotated[Transaction, bmq.Depends(inbox.transaction)],
    ) -> None:
        calls.append(numbers)
        assert [int(message.data) for message in messages] == numbers
        failing = len(calls) in (2, 3)
        for number in numbers[failing:]:
            await effect(database, transaction.connection, number)
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
    assert await database.effects() == ["1", "2", "3", "4", "5", "6"]


async def test_a_dependency_needs_the_middleware_when_the_app_starts(
    database: Database, inbox: Inbox
) -> None:
    other = database.inbox()

    Connection = Annotated[AsyncConnection, bmq.Depends(inbox.connection)]
    Outputs = Annotated[Transaction, bmq.Depends(inbox.transaction)]
    OfTheApp = Annotated[AsyncConnection, bmq.Depends(inbox.connection, scope="app")]

    def rows(connection: Connection) -> list[str]:
        return []

    async def charge(number: int, connection: Connection) -> None: ...
    async def post(number: int, outputs: Outputs) -> None: ...
    async def count(number: int, rows: Annotated[list[str], bmq.Depends(rows)]) -> None: ...
    async def once(number: int, connection: OfTheApp) -> None: ...

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
        app.consumer(ORDERS)(handler)
        with pytest.raises(bmq.UsageError, match=re.escape(problem)):
            await app.run(signals=False)
    with pytest.raises(bmq.UsageError, match="the attempt has no transaction: register the handler with"):
        await inbox.transaction()


async def test_a_middleware_of_an_app_a_router_or_a_wrapper_serves_a_dependency(
    inbox: Inbox, queue: bmq.Queue
) -> None:
    async def charge(
        number: int, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]
    ) -> None: ...

    @functools.wraps(inbox.middleware)
    async def measured(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> object:
        return await inbox.middleware(attempt, call_next)

    apps = [bmq.App("tcp://127.0.0.1:1", connect_timeout=0.1) for _ in range(3)]
    router = bmq.Router(middlewares=[measured])
    for register in (apps[0], router, apps[2]):
        register.consumer(queue.uri)(charge)
    apps[0].middleware(functools.partial(inbox.middleware))
    apps[1].include(router)
    apps[2].overrides[inbox.connection] = lambda: None  # as in a test
    for app in apps:
        with pytest.raises(bmq.ConnectionFailed):
            await app.run(signals=False)
    with pytest.raises(bmq.UsageError, match=r"charge: parameter connection needs inbox\.middleware"):
        await bmq.consume(queue, charge)


async def test_a_handler_in_a_thread_has_no_connection(inbox: Inbox) -> None:
    app = bmq.App(middlewares=[inbox.middleware])
    Connection = Annotated[Any, bmq.Depends(inbox.connection)]

    def charge(number: int, connection: Connection) -> None: ...
    async def balance(connection: Connection) -> int:
        return 7

    def report(
        number: int,
        balance: Annotated[int, bmq.Depends(balance)],
        transaction: Annotated[Any, bmq.Depends(inbox.transaction)],
    ) -> None: ...

    problem = "charge: parameter connection belongs to the event loop, and charge runs in a thread: make"
    with pytest.raises(bmq.UsageError, match=problem):
        app.consumer(ORDERS)(charge)
    app.consumer(ORDERS)(report)


async def test_a_published_result_is_not_lost_behind_a_commit(
    database: Database, inbox: Inbox, bmq_broker: bmq.broker.Broker, queue: bmq.Queue, output: bmq.Queue
) -> None:
    """A refused post after the commit would be repeated with nothing to post."""
    app = bmq.App(bmq_broker.uri)
    seen: list[str] = []

    @app.consumer(queue.uri, retry=bmq.Backoff(every=0.001, retries=1, then="discard"))
    @app.publish_to(output.uri)
    async def book(number: int, message: bmq.Message) -> int | None:
        try:
            async with inbox.once(message):
                await effect(database, None, number)
        except bmq.UsageError as error:
            seen.append(str(error))
            raise
        return number

    async with running(app, inbox):
        await queue.post(b"7")
        await eventually(lambda: len(seen) == 2)
    assert "book has publish_to" in seen[0]
    assert "transaction.post" in seen[0]
    assert await database.effects() == []


async def test_a_published_result_in_the_transaction_is_repeated(
    database: Database, inbox: Inbox, bmq_broker: bmq.broker.Broker, queue: bmq.Queue, output: bmq.Queue
) -> None:
    app = bmq.App(bmq_broker.uri)
    calls: list[int] = []

    @app.consumer(queue.uri, retry=bmq.Backoff(every=0.001, retries=5), middlewares=[inbox.middleware])
    @app.publish_to(output.uri)
    async def book(number: int, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]) -> int:
        calls.append(number)
        await effect(database, connection, number)
        if len(calls) == 1:
            bmq_broker.faults.nack(count=1)
        return number

    async with running(app, inbox):
        await queue.post(b"7")
        assert (await output.receive(timeout=20)).data == b"7"
    assert calls == [7, 7]
    assert await database.effects() == ["7"]


@pytest.mark.parametrize("way", ["raises", "returns"])
async def test_work_cut_off_in_a_transaction_is_done_once(
    database: Database,
    inbox: Inbox,
    bmq_broker: bmq.broker.Broker,
    queue: bmq.Queue,
    output: bmq.Queue,
    way: str,
) -> None:
    """A handler that is cut off has not failed: the next delivery repeats, or recognises, its effect."""
    begun, failures, cut = asyncio.Queue[int](), list[Failure](), list[int]()
    for grace in (0, 30):
        app = bmq.App(bmq_broker.uri, grace=grace, on_error=failures.append)
        retry = bmq.NoRetry(bmq.DeadLetter(output.uri))

        @app.consumer(queue.uri, retry=retry, middlewares=[inbox.middleware])
        async def charge(
            number: int, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]
        ) -> None:
            await effect(database, connection, number)
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
    assert await database.effects() == ["7", "8"]
    assert output.receive_nowait() is None
