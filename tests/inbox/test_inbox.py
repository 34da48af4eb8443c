# SPDX-License-Identifier: Apache-2.0
"""One effect for each message, on every database: repeated, concurrent, failed and copied messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import bmq
import bmq.inbox
from bmq.inbox import _inbox
from tests.inbox.conftest import KINDS, WEEK, Database, Message, url_of
from tests.sweeps import sweep

Inbox = bmq.inbox.Inbox[Any]
Another = Callable[[], Any]
GUID, OTHER = "A" * 32, "B" * 32
ORDERS = "bmq://bmq.test.mem.priority/orders"


@dataclass
class Reminder:
    customer: Annotated[int, bmq.Property("CustomerId")]


async def handle(database: Database, inbox: Inbox, message: bmq.Message, name: str = "x") -> bool:
    """Handle a message; return whether the message had an effect."""
    async with inbox.once(message) as transaction:
        if transaction is None:
            return False
        await database.effect(transaction, name)
        return True


async def attempt(
    database: Database,
    inbox: Inbox,
    messages: list[bmq.Message],
    error: BaseException | None = None,
    outputs: Sequence[tuple[str, bytes]] = (),
    skipping: Collection[bytes] = (),
) -> None:
    """Handle new messages: have an effect for each, post messages, and fail."""
    async with inbox.batch(messages) as transaction:
        assert transaction
        for each in transaction.messages:
            if each.data not in skipping:
                await database.effect(transaction, each.data.decode())
        for uri, data in outputs:
            transaction.post(uri, data)
        if error is not None:
            raise error


async def numbered(delivered: Message, count: int) -> list[bmq.Message]:
    """Post and receive messages with different GUIDs; the payloads count from 0."""
    return [await delivered(f"{number + 1:032X}", b"%d" % number) for number in range(count)]


async def test_a_message_has_one_effect(
    another: Another, database: Database, inbox: Inbox, delivered: Message
) -> None:
    message = await delivered()
    assert await handle(database, inbox, message)
    assert not await handle(database, inbox, message)
    restarted = await another()
    async with restarted.inbox() as other:
        assert not await handle(restarted, other, message)
    assert await database.effects() == ["x"]


async def test_an_error_leaves_neither_effect_nor_guid(
    database: Database, inbox: Inbox, delivered: Message
) -> None:
    message = await delivered()
    for number in range(3):
        with pytest.raises(KeyError, match=str(number)):
            await attempt(database, inbox, [message], KeyError(number))
    assert await database.effects() == []
    assert await handle(database, inbox, message)
    assert await database.effects() == ["x"]


async def test_two_workers_with_the_same_messages_have_one_effect_each(
    another: Another, delivered: Message
) -> None:
    workers = [await another() for _ in range(3)]
    messages = await numbered(delivered, 15)
    inboxes = [each.inbox() for each in workers]
    await asyncio.gather(*(each.start() for each in inboxes))  # all create the table

    async def work(number: int) -> int:
        names = [(each, each.data.decode()) for each in messages]
        return sum([await handle(workers[number], inboxes[number], each, name) for each, name in names])

    counts = await asyncio.gather(*map(work, range(len(workers))))
    assert sum(counts) == len(messages)
    assert sorted(map(int, await workers[0].effects())) == list(range(len(messages)))
    for each in inboxes:
        await each.close()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_second_delivery_waits_for_the_first_transaction(
    another: Another, database: Database, inbox: Inbox, delivered: Message, commits: bool
) -> None:
    message = await delivered()
    other = await another()

    async def second() -> bool:
        async with other.inbox() as its:
            return await handle(other, its, message, "second")

    waiting: asyncio.Task[bool] | None = None
    with nullcontext() if commits else pytest.raises(KeyError):
        async with inbox.once(message) as transaction:
            waiting = asyncio.create_task(second())
            await asyncio.sleep(0)
            assert transaction
            await database.effect(transaction, "first")
            if not commits:
                raise KeyError
    assert waiting is not None
    assert await waiting != commits
    assert await database.effects() == ["first" if commits else "second"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("kind", ["sqlite", "sqlite-session"], indirect=True)
async def test_a_handler_cannot_end_the_transaction(
    database: Database, inbox: Inbox, delivered: Message, end: str
) -> None:
    async def ending(message: bmq.Message) -> None:
        async with inbox.once(message) as transaction:
            assert transaction
            await database.effect(transaction)
            await getattr(transaction.connection, end)()

    with pytest.raises(bmq.UsageError, match=r"ended the inbox's transaction: leave commit\(\)"):
        await ending(await delivered())
    assert await database.effects() == (["x"] if end == "commit" else [])


async def test_a_transaction_inside_another_is_refused(
    database: Database, inbox: Inbox, delivered: Message
) -> None:
    first, second = await delivered(GUID), await delivered(OTHER)
    async with inbox.once(first) as transaction:
        assert transaction
        with pytest.raises(bmq.UsageError, match="inside a transaction of this inbox already"):
            await handle(database, inbox, second)
        await database.effect(transaction)
    assert await handle(database, inbox, second)


async def test_an_inbox_serves_messages_only_while_started(database: Database, delivered: Message) -> None:
    message = await delivered()
    inbox = database.inbox()
    with pytest.raises(bmq.UsageError, match=r"not started: 'async with inbox', or app\.on_startup"):
        await handle(database, inbox, message)
    await inbox.start()
    await inbox.start()
    assert await handle(database, inbox, message)
    await inbox.close()
    await inbox.close()
    with pytest.raises(bmq.UsageError, match="not started"):
        await handle(database, inbox, message)


async def test_the_key_is_the_consumer_and_the_guid(
    database: Database, inbox: Inbox, bmq_session: bmq.Session, bmq_new_queue_uri: Callable[..., str]
) -> None:
    for _ in range(2):
        queue = await bmq_session.open_queue(bmq_new_queue_uri(), read=True, write=True)
        await queue.post(b"x", guid=GUID)
        assert await handle(database, inbox, await queue.receive(timeout=20))
    fanout = bmq_new_queue_uri("bmq.test.mem.fanout")
    apps = [await bmq_session.open_queue(f"{fanout}?id={app_id}", read=True) for app_id in ("foo", "bar")]
    await (await bmq_session.open_queue(fanout, write=True)).post(b"x", guid=GUID)
    messages = [await app.receive(timeout=20) for app in apps]
    for message in messages:
        assert await handle(database, inbox, message)
        assert not await handle(database, inbox, message)
    named = database.inbox(consumer="billing")
    async with named:
        assert [await handle(database, named, message) for message in messages] == [True, False]
    assert len(await database.effects()) == 5


async def test_a_copy_of_a_message_has_no_second_effect(
    database: Database, inbox: Inbox, delivered: Message
) -> None:
    """Copies by durable retries, and restored dead letters, name the first GUID."""
    assert await handle(database, inbox, await delivered(GUID))
    assert not await handle(database, inbox, await delivered(OTHER, bmq_origin=GUID))
    assert await handle(database, inbox, await delivered("C" * 32, bmq_origin="no GUID"))


async def test_a_forgotten_guid_has_an_effect_again(
    database: Database, inbox: Inbox, delivered: Message, queue: bmq.Queue
) -> None:
    message = await delivered(GUID)
    assert not await inbox.forget(GUID, queue.uri)
    assert await handle(database, inbox, message)
    assert await inbox.forget(GUID, queue.uri)
    assert await handle(database, inbox, message)
    assert await database.effects() == ["x", "x"]


# batches


async def test_a_batch_has_only_unhandled_messages(
    another: Another, database: Database, inbox: Inbox, delivered: Message
) -> None:
    messages = await numbered(delivered, 6)
    assert await handle(database, inbox, messages[2])
    async with inbox.batch([*messages[:4], messages[0]]) as transaction:
        assert transaction
        assert [each.data for each in transaction.messages] == [b"0", b"1", b"3"]
        for each in transaction.messages:
            await database.effect(transaction, each.data.decode())
    async with inbox.batch(messages[:4]) as transaction:
        assert transaction is None
    async with inbox.batch([]) as transaction:
        assert transaction is None
    assert await database.effects() == ["0", "1", "3", "x"]


async def test_two_batches_with_shared_messages_do_not_lock_each_other(
    another: Another, delivered: Message
) -> None:
    messages = await numbered(delivered, 20)
    workers = [await another() for _ in range(2)]

    async def work(database: Database, own: list[bmq.Message]) -> None:
        async with database.inbox() as inbox, inbox.batch(own) as transaction:
            for each in transaction.messages if transaction else ():
                await database.effect(transaction, each.data.decode())

    await asyncio.gather(work(workers[0], messages), work(workers[1], messages[::-1]))
    assert sorted(map(int, await workers[0].effects())) == list(range(20))


async def test_a_partly_failed_batch_keeps_the_rest(
    database: Database, inbox: Inbox, delivered: Message, output: bmq.Queue
) -> None:
    messages = await numbered(delivered, 4)
    for failing in ((0, 2), (0,)):
        error = bmq.PartlyFailed({index: KeyError() for index in failing})
        skipped = [messages[index].data for index in failing]
        posts = [(output.uri, b"%d failed" % len(failing))]
        with pytest.raises(bmq.PartlyFailed):
            await attempt(database, inbox, messages, error, posts, skipped)
    assert [(await output.receive(timeout=20)).data for _ in range(2)] == [b"2 failed", b"1 failed"]
    assert await database.effects() == ["1", "2", "3"]
    with pytest.raises(bmq.PartlyFailed):  # nothing is left to commit
        await attempt(database, inbox, messages, bmq.PartlyFailed({0: KeyError()}))
    assert await database.effects() == ["1", "2", "3"]
    assert await handle(database, inbox, messages[0], "0")


# messages posted by a transaction


async def everything(queue: bmq.Queue) -> list[bmq.Message]:
    """Return the messages in a queue, and nothing else."""
    await queue.post(b"end")
    found = [await queue.receive(timeout=20)]
    while found[-1].data != b"end":
        found.append(await queue.receive(timeout=20))
    for each in found:
        each.confirm()
    return found[:-1]


async def test_messages_are_posted_after_the_commit(
    database: Database, inbox: Inbox, delivered: Message, output: bmq.Queue
) -> None:
    message = await delivered(GUID, bmq_attempts=2, customer=7)
    with pytest.raises(KeyError):
        await attempt(database, inbox, [message], KeyError(), [(output.uri, b"never")])
    async with inbox.once(message) as transaction:
        assert transaction
        await database.effect(transaction)
        properties = {**message.properties.typed(), "raw": b"\0\xff"}
        zlib = bmq.Compression.ZLIB
        guids = [
            transaction.post(output.uri, b"one"),
            transaction.post(output.uri, bmq.PutMessage(b"two" * 1000, properties, compression=zlib)),
            transaction.post(output.uri, bmq.PutMessage(b"three", guid=OTHER)),
        ]
    assert not await handle(database, inbox, message)
    one, two, three = await everything(output)
    assert [one.guid, two.guid, three.guid] == guids
    assert guids[2] == OTHER
    assert (one.data, dict(one.properties)) == (b"one", {})
    assert two.data == b"two" * 1000
    assert dict(two.properties) == {"customer": 7, "raw": b"\0\xff"}
    assert await database.run("SELECT count(*) FROM bmq_inbox WHERE outputs IS NOT NULL") == [(0,)]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_value_is_posted_with_its_properties_and_content_type(
    inbox: Inbox, delivered: Message, output: bmq.Queue
) -> None:
    async with inbox.once(await delivered()) as transaction:
        assert transaction
        options: dict[str, Any] = {"properties": {"Region": "eu"}, "tags": ["red"], "key": "k"}
        guids = [
            transaction.post(output.uri, Reminder(7), guid=OTHER, **options),
            transaction.post(output.uri, Reminder(8), codec="application/msgpack"),
            transaction.post(output.uri, bytearray(b"raw"), properties={"Region": "us"}),
        ]
    values = output.typed(Reminder)
    one, two = [await values.receive(timeout=20) for _ in range(2)]
    three = await output.receive(timeout=20)
    assert [one.value, two.value, three.data] == [Reminder(7), Reminder(8), b"raw"]
    assert dict(one.properties) == {
        "bmq_content_type": "application/json",
        "CustomerId": 7,
        "Region": "eu",
        **bmq.subscriptions.tag_properties(["red"]),
        "bmq_bucket": bmq.groups.key_bucket("k"),
    }
    assert dict(two.properties) == {"bmq_content_type": "application/msgpack", "CustomerId": 8}
    assert dict(three.properties) == {"Region": "us"}
    assert [one.guid, two.guid, three.guid] == guids
    assert guids[0] == OTHER


async def test_the_next_delivery_posts_what_a_dead_worker_did_not(
    another: Another,
    database: Database,
    inbox: Inbox,
    delivered: Message,
    output: bmq.Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = await delivered()

    async def die(*arguments: object) -> None:
        raise KeyError("killed")

    monkeypatch.setattr(inbox, "_post", die)
    for _ in range(2):
        with pytest.raises(KeyError):  # the second time before the block
            await attempt(database, inbox, [message], None, [(output.uri, b"out")])
    restarted = await another()
    async with restarted.inbox(keep=1e-3) as other:
        assert await other.purge() == 0  # the row waits for its post
        assert not await handle(restarted, other, message)
    assert [each.data for each in await everything(output)] == [b"out"]
    assert await database.effects() == ["x"]


async def test_a_refused_message_is_posted_by_the_next_delivery(
    database: Database, inbox: Inbox, delivered: Message, output: bmq.Queue, bmq_broker: bmq.broker.Broker
) -> None:
    message = await delivered()
    bmq_broker.faults.nack(bmq.AckStatus.LIMIT_MESSAGES, 2)
    with pytest.raises(bmq.PostError, match="LIMIT_MESSAGES"):
        await attempt(database, inbox, [message], None, [(output.uri, b"out")])
    with pytest.raises(bmq.PostError, match="LIMIT_MESSAGES"):
        await handle(database, inbox, message)
    assert not await handle(database, inbox, message)
    assert [each.data for each in await everything(output)] == [b"out"]
    assert await database.effects() == ["x"]


@sweep(
    "uri, message, error",
    [
        (ORDERS, b"", bmq.InvalidPayload),
        ("no URI", b"x", bmq.InvalidURI),
        (ORDERS, object(), bmq.InvalidPayload),
        (ORDERS, None, bmq.UsageError),
        (ORDERS, bmq.PutMessage(b"x", {"a": 1.5}), bmq.InvalidProperty),  # type: ignore[dict-item]
        (ORDERS, bmq.PutMessage(b"x", guid="a"), bmq.UsageError),
        (ORDERS, bmq.PutMessage(b"x", delay=-1), bmq.UsageError),
    ],
)
def test_a_message_that_can_never_be_posted_is_refused_at_once(
    uri: str, message: Any, error: type[Exception]
) -> None:
    transaction = bmq.inbox.Transaction(None, {("consumer", GUID): message})
    with pytest.raises(error):
        transaction.post(uri, message)
    with pytest.raises(bmq.UsageError, match="posted unchanged"):
        transaction.post(ORDERS, bmq.PutMessage(b"x"), delay=1)
    assert transaction.outputs == []
    transaction.ended = True
    with pytest.raises(bmq.UsageError, match="open transaction"):
        transaction.post(ORDERS, b"x")


# purging


async def test_a_purge_deletes_only_old_guids(
    database: Database, delivered: Message, queue: bmq.Queue
) -> None:
    async with database.inbox(keep=1000) as inbox:
        message = await delivered()
        assert await handle(database, inbox, message)
        await database.run("UPDATE bmq_inbox SET handled_at = handled_at - 900000")
        assert await inbox.purge() == 0
        assert not await handle(database, inbox, message)
        await database.run("UPDATE bmq_inbox SET handled_at = handled_at - 200000")
        assert await inbox.purge() == 1
        assert await handle(database, inbox, message)


async def test_a_purge_beside_messages_keeps_every_recent_guid(
    another: Another, database: Database, delivered: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_inbox, "PURGED_AT_ONCE", 3)
    messages = await numbered(delivered, 15)
    other = await another()
    async with database.inbox(keep=1000) as inbox, other.inbox(keep=1000) as second:
        async with inbox.batch(messages[:10]) as transaction:
            assert transaction
        await database.run("UPDATE bmq_inbox SET handled_at = handled_at - 2000000")
        purging = asyncio.gather(inbox.purge(), second.purge())
        assert all([await handle(database, inbox, message) for message in messages[10:]])
        await purging
        await inbox.purge()
        assert await database.run("SELECT count(*) FROM bmq_inbox") == [(5,)]
        assert not any([await handle(database, inbox, message) for message in messages[10:]])


async def test_one_clock_that_jumps_deletes_no_guid_early(
    database: Database, delivered: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL has a clock besides the worker's."""
    if not database.is_postgresql:
        return
    real = _inbox._now
    message = await delivered()
    async with database.inbox(keep=3600) as inbox:
        with monkeypatch.context() as patched:
            patched.setattr(_inbox, "_now", lambda: real() - 10 * 86_400_000)
            assert await handle(database, inbox, message)
        assert await inbox.purge() == 0
        with monkeypatch.context() as patched:
            patched.setattr(_inbox, "_now", lambda: real() + 10 * 86_400_000)
            assert await inbox.purge() == 0
        assert not await handle(database, inbox, message)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_a_started_inbox_purges_and_survives_the_database(
    database: Database, delivered: Message, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 2

    async def purge(inbox: Inbox) -> int:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError("the database is gone")
        done.set()
        return 0

    done = asyncio.Event()
    monkeypatch.setattr(_inbox.Inbox, "purge", purge)
    with caplog.at_level(logging.WARNING, "bmq.inbox"):
        async with database.inbox(keep=0.001):
            await asyncio.wait_for(done.wait(), 20)
    assert caplog.messages == [
        "the table bmq_inbox cannot be purged, and grows: OSError: the database is gone"
    ]


async def test_the_check_compares_keep_with_the_life_of_messages(
    bmq_broker: bmq.broker.Broker, bmq_domain: Callable[..., str]
) -> None:
    inbox = bmq.inbox.SqlAlchemyInbox(create_async_engine("sqlite+aiosqlite://"), keep=1000)
    async with bmq.admin.connect(bmq_broker.uri) as admin:
        assert await inbox.check(admin, f"bmq://{bmq_domain(message_ttl=999)}/q") == []
        (short,) = await inbox.check(admin, f"bmq://{bmq_domain(message_ttl=1000)}/q")
        assert "GUIDs are purged after 1000 s" in short
        assert "Raise keep above 1000" in short
        (broadcast,) = await inbox.check(admin, f"bmq://{bmq_domain(mode='broadcast', message_ttl=999)}/q")
        assert "consumer=" in broadcast


# event loops


@pytest.mark.parametrize("kind", [each for each in KINDS if each in ("sqlite", "postgresql-asyncpg")])
def test_an_inbox_serves_several_event_loops_one_after_another(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    engine = create_async_engine(url_of(kind, tmp_path, request))
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=WEEK, table="loops")

    async def once(queue: bmq.Queue) -> bool:
        async with inbox.once(await queue.receive(timeout=20)) as transaction:
            await asyncio.sleep(0)
            return transaction is not None

    async def run(close: bool) -> list[bool]:
        await inbox.start()
        async with bmq.broker.Broker() as broker, bmq.connect(broker.uri) as session:
            queue = await session.open_queue(ORDERS, read=True, write=True)
            await queue.post_many([b"x"] * 4)
            done = await asyncio.gather(*(once(queue) for _ in range(4)), inbox.purge(), inbox.purge())
        if close:
            await inbox.close()
        await engine.dispose()
        return [bool(each) for each in done]

    for close in (True, False, False):
        assert asyncio.run(run(close)) == [True, True, True, True, False, False]


def test_an_inbox_is_started_in_one_event_loop_at_a_time(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=WEEK)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(inbox.start())
        for call in (inbox.start, inbox.close):
            with pytest.raises(bmq.UsageError, match="another event loop"):
                second.run(call())
        first.run(inbox.close())
        first.run(engine.dispose())
        second.run(inbox.start())
        second.run(inbox.close())
        second.run(engine.dispose())


# the database's settings


async def test_a_database_that_commits_each_statement_is_refused(
    kind: str, tmp_path: Any, request: pytest.FixtureRequest
) -> None:
    if kind == "asyncpg":
        return
    engine = create_async_engine(url_of(kind, tmp_path, request), isolation_level="AUTOCOMMIT")
    with pytest.raises(bmq.UsageError, match="Remove isolation_level='AUTOCOMMIT'"):
        await bmq.inbox.SqlAlchemyInbox(engine, keep=10).start()
    await engine.dispose()


def test_wrong_arguments_are_refused() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(bmq.UsageError, match="needs an AsyncEngine"):
        bmq.inbox.SqlAlchemyInbox(engine.sync_engine, keep=10)  # type: ignore[call-overload]
    with pytest.raises(bmq.UsageError, match="bound to an AsyncEngine"):
        bmq.inbox.SqlAlchemyInbox(async_sessionmaker(), keep=10)
    with pytest.raises(bmq.UsageError, match="keep"):
        bmq.inbox.SqlAlchemyInbox(engine, keep=0)
    with pytest.raises(bmq.UsageError, match="table"):
        bmq.inbox.SqlAlchemyInbox(engine, keep=1, table="a; b")
    with pytest.raises(bmq.UsageError, match=r"asyncpg\.create_pool"):
        bmq.inbox.AsyncpgInbox(engine, keep=10)
