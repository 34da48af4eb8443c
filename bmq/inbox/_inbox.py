# SPDX-License-Identifier: Apache-2.0
"""The inbox of a database, independent of the library that talks to the database.

The problem: a worker dies between the commit of its transaction and the confirmation of its message, and the
broker delivers the message again. The remedy: the transaction that has the effect also has the message's
GUID, under a unique key. The database then decides, in one place, which delivery has the effect.

Invariants:

- The GUID is the first statement of a transaction. Two transactions with one GUID cannot both pass the
  statement: the second waits for the end of the first, and then finds the GUID, or takes it after a rollback.
  SQLite takes its only write lock at the same statement, and never has to upgrade a lock.
- The key is (consumer, GUID). Each application of a fanout queue has its own effects, and the GUIDs of two
  queues may be equal. Copies of a message (durable retries, restored dead letters) have new GUIDs, and name
  the first GUID in a property; the key has the first GUID.
- Messages of a transaction are posted after the commit, from the row of the GUID. The message of the row is
  confirmed after the broker has accepted the posts. A worker that dies in between leaves the message
  unconfirmed; the next delivery finds the row, and posts the same messages under the same GUIDs.
- A row outlives every delivery of its message: the purge takes rows older than ``keep``, by the later of two
  clocks at the writing and by the earlier of two clocks at the purge. One clock that jumps keeps a row
  longer, never shorter.

Rejected: a SELECT before the handler and an INSERT after it (two workers both find nothing); a savepoint
around the INSERT (``ON CONFLICT DO NOTHING`` leaves the transaction usable on both databases); a relay that
polls for the posts (the unconfirmed message already says which posts are missing).
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

import msgspec

from bmq import _checks, _world
from bmq._dead_letters import origin_of
from bmq._live import live
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.admin.client import Admin
from bmq.client.attempt import Attempt, CallNext
from bmq.client.message import Message
from bmq.client.posts import PutMessage, wrong_size
from bmq.codecs import Codec, Shape
from bmq.conventions import ATTEMPTS, BUCKET, DEATHS, DUE, ERROR, ORIGIN, derived_guid
from bmq.errors import UsageError
from bmq.subscriptions import tag_properties
from bmq.wire.constants import Compression
from bmq.wire.guid import guid_from_text
from bmq.wire.keys import Key, key_bucket
from bmq.wire.message import join_application_data, split_application_data
from bmq.wire.printable import described
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.uri import QueueUri
from bmq.workers import PartlyFailed

# The key of a message's context that a handler with publish_to has while it runs: see bmq/workers.
_PUBLISHES = "bmq.publish_to"

logger = Log("bmq.inbox")

C = TypeVar("C")

#: Rows that one transaction of a purge deletes: a short lock.
PURGED_AT_ONCE: Final = 5_000
_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")
# The key of a row that is written and rolled back at the start.
_PROBE: Final = ("", "PROBE")
# Seconds between two purges.
_LONGEST_PAUSE: Final = 3600.0
# Conversions of posted values that are kept: a program may create types without end.
_KEPT: Final = 100
# Properties that belong to the input's retries; a message made of the input's properties is a new message.
_OF_RETRIES: Final = (ATTEMPTS, DEATHS, DUE, ERROR, ORIGIN)

F = TypeVar("F", bound=Callable[..., Any])


def _dependency(**marks: object) -> Callable[[F], F]:
    """Mark a dependency for the checks at an app's start and at the registration of handlers."""

    def mark(function: F) -> F:
        vars(function).update(marks)
        return function

    return mark


#: A row's key: (consumer, GUID).
RowKey = tuple[str, str]


class Transaction(Generic[C]):
    """The transaction of one message, or of a batch; made by :meth:`Inbox.once` and :meth:`Inbox.batch`.

    The inbox commits at the end of the block, and rolls back after an error. The block must not end the
    transaction.

    Attributes:
        connection: the connection or session for the handler's statements.
        messages: messages without an effect so far, each GUID once, in the order of the batch.
        ended: whether the block has ended.
        outputs: messages to post after the commit.
    """

    def __init__(self, connection: C, messages: Mapping[RowKey, Message]) -> None:
        self.connection = connection
        self.messages = list(messages.values())
        self._keys = list(messages)
        self.outputs: list[_Output] = []
        self.ended = False

    def post(
        self,
        uri: str,
        value: object,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: str | None = None,
        compression: Compression | None = None,
        key: Key | None = None,
        delay: float | None = None,
        codec: str | Codec[Any] = "application/json",
    ) -> str:
        """Post a message after the commit; a rollback drops the message.

        ::

            transaction.post(REMINDERS, Reminder(order.number), delay=3600)

        The message is stored with the transaction, and posted between the commit and the end of the block.
        If the worker dies in between, the next delivery of the input posts the message, under the same GUID.
        The GUID is derived from the GUIDs of the transaction and the number of the message, unless
        ``guid`` is given; two transactions that both commit have no GUID in common. Properties of the
        input's retries (``bmq_origin``, ``bmq_attempts``, ...) are left out.

        Args:
            uri: the queue.
            value: bytes unchanged, or a value of a type for :meth:`bmq.Queue.typed`; or a whole
                :class:`bmq.PutMessage`, without further arguments.
            properties: further properties; override properties derived from fields of the value.
            tags: as for :meth:`bmq.Queue.post`, like the next four arguments.
            guid: GUID instead of a derived one.
            compression: compression of the payload.
            key: ordering key.
            delay: seconds until the message is due, from now on.
            codec: encodes the value: a registered content type, or a codec.

        Returns:
            The GUID of the message.

        Raises:
            InvalidURI: the URI is not legal.
            InvalidPayload: the payload is empty or too large, or the codec cannot encode the value.
            InvalidProperty: a property is not legal.
            UsageError: the transaction has ended, no codec supports the value's type, or another argument is
                not legal.
        """
        if self.ended:
            raise UsageError(
                "post() belongs to an open transaction: call it inside 'async with inbox.once(...)'"
            )
        canonical = QueueUri.parse(uri).canonical
        given: Mapping[str, PropertyInput] = _checks.optional(_checks.mapping, "properties", properties) or {}
        if isinstance(value, PutMessage):
            if given or tags or any(each is not None for each in (guid, compression, key, delay)):
                raise UsageError(
                    "a bmq.PutMessage is posted unchanged: set its own properties, tags, guid, compression, "
                    "key and delay, or post its payload"
                )
            message = value
        elif isinstance(value, (bytes, bytearray, memoryview)):
            message = PutMessage(cast("bytes", value), given, guid, tags, compression, key, delay)
        elif value is None:
            raise UsageError("value must be bytes, a bmq.PutMessage or a value of a type, not None")
        else:
            of: Any = value.__class__
            shape = _shape_of(of, codec) if isinstance(codec, str) else Shape(of, codec)
            data, own = shape.encode(value)
            message = PutMessage(data, {**own, **given}, guid, tags, compression, key, delay)
        if message.guid is not None:
            guid_from_text(message.guid)
        compression = message.compression
        if compression is not None:
            _checks.instance("compression", compression, Compression, "one of bmq.Compression")
        data = _checks.octets("data", message.data)
        if not data:
            raise wrong_size(0)
        given = _checks.mapping("properties", message.properties or {})
        sent: dict[str, PropertyInput] = {k: v for k, v in given.items() if k not in _OF_RETRIES}
        sent |= tag_properties(message.tags)
        if message.key is not None:
            sent[BUCKET] = key_bucket(message.key)
        area = encode_properties(sent, new=True)
        wait = _checks.timeout(message.delay, "delay")
        consumer, guids = self._keys[0][0], [guid for _, guid in self._keys]
        output = _Output(
            canonical,
            message.guid or derived_guid(*guids, consumer, "output", str(len(self.outputs))),
            bool(area),
            join_application_data(data, area)[0],
            None if compression is None else int(compression),
            None if wait is None else _world.time() + wait,
        )
        self.outputs.append(output)
        return output.guid


@lru_cache(_KEPT)
def _shape_of(kind: type[Any], codec: str) -> Shape[Any]:
    """Return the conversion of a type's values, kept: it takes longer to make than to use."""
    return Shape(kind, codec)


class _Output(msgspec.Struct, frozen=True):
    """A message to post after the commit.

    Attributes:
        uri: the queue.
        guid: the message's GUID.
        has_properties: whether ``data`` begins with properties, in the new encoding.
        data: properties and payload.
        compression: number of the compression; None for the queue's default.
        due: due time in seconds since 1970; None for no delay.
    """

    uri: str
    guid: str
    has_properties: bool
    data: bytes
    compression: int | None
    due: float | None

    def message(self) -> PutMessage:
        """Return the message to post."""
        properties, data = split_application_data(
            self.data, has_properties=self.has_properties, schema_id=1, compression=0
        )
        return PutMessage(
            data,
            properties.typed(),
            self.guid,
            compression=None if self.compression is None else Compression(self.compression),
            delay=None if self.due is None else max(0.0, self.due - _world.time()),
        )


@live
class Inbox(ABC, Generic[C]):
    """Handled messages, by consumer and GUID; see :class:`SqlAlchemyInbox` and :class:`AsyncpgInbox`.

    ::

        async with inbox:  # or app.on_startup(inbox.start) and app.on_shutdown(inbox.close)
            async for message in queue:
                async with message, inbox.once(message) as transaction:
                    if transaction is not None:
                        await transaction.connection.execute(...)

    An inbox serves any number of tasks, queues and sessions of one event loop, from :meth:`start` to
    :meth:`close`. The next start may be in another event loop, once the database's pool has no connection of
    the first loop: ``await engine.dispose()``.

    Args:
        keep: seconds for which GUIDs are kept. A message that arrives later than this after its first
            handling has a second effect: keep GUIDs for longer than messages live, see :meth:`check`.
        table: name of the table.
        consumer: first part of the key, instead of the URI of the message's queue (with ``?id=``). Give
            each consumer of a broadcast queue a name. With a name, all queues of the inbox share their GUIDs.

    Raises:
        UsageError: an argument is not legal.
    """

    def __init__(self, *, keep: float, table: str, consumer: str | None) -> None:
        self._keep = _checks.seconds("keep", keep, positive=True)
        self._name = _checks.text("table", table)
        if not _TABLE.fullmatch(self._name):
            raise UsageError(
                f"table must be a name of at most 50 letters, digits and underscores, not {table!r:.100}"
            )
        self._consumer = None if consumer is None else _checks.text("consumer", consumer, empty=False)
        self._log = LogLimit(logger)
        self._purging: asyncio.Task[None] | None = None
        # The transaction of the running task.
        self._current: ContextVar[Transaction[C] | None] = ContextVar("bmq_inbox", default=None)

    # life

    async def start(self) -> None:
        """Create the table if missing, check the database, and purge old GUIDs from now on.

        A second call does nothing.

        Raises:
            UsageError: the inbox is started in another event loop; or the database commits each statement
                (``AUTOCOMMIT``): effect and GUID would not be one transaction.
            Exception: the database failed; the inbox is not started.

        After a cancellation the inbox is not started; the table may exist.
        """
        if self._purging_here() is not None:
            return
        await self._create()
        with suppress(_Undo):
            async with self._begin() as connection:
                await self._insert(connection, [_PROBE], _now())
                raise _Undo
        async with self._begin() as connection:
            kept = await self._delete(connection, _PROBE)
        if kept:
            raise UsageError(
                "the database kept a row after a rollback: the connection commits each statement. Remove "
                "isolation_level='AUTOCOMMIT', so that a handler's effect and the message's GUID are one "
                "transaction"
            )
        self._purging = asyncio.get_running_loop().create_task(self._purge_repeatedly())

    async def close(self) -> None:
        """Stop purging. The inbox refuses messages until the next :meth:`start`. Idempotent.

        Raises:
            UsageError: the inbox is started in another event loop.

        Cancelling the call leaves the inbox closed.
        """
        purging, self._purging = self._purging_here(), None
        if purging is not None:
            purging.cancel()
            await asyncio.wait([purging])

    def _purging_here(self) -> asyncio.Task[None] | None:
        """Return the purge of the running event loop; None if not started, or if the loop has ended."""
        purging = self._purging
        if purging is None or purging.done() or purging.get_loop().is_closed():
            return None
        if purging.get_loop() is not asyncio.get_running_loop():
            raise UsageError("the inbox is started in another event loop: close the inbox there first")
        return purging

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # transactions

    def once(self, message: Message) -> AbstractAsyncContextManager[Transaction[C] | None]:
        """Return a transaction for the first delivery of a message, and None for all later deliveries.

        The end of the block commits the statements of the block together with the message's GUID, and then
        posts the messages of :meth:`Transaction.post`. An error in the block rolls back. Confirm the message
        after the block, in both cases.

        While another worker has a transaction for the same message, the call waits: for a commit (None), or
        a rollback (a transaction). SQLite has one writer: all transactions wait for each other there.

        Args:
            message: the message, unconfirmed.

        Raises:
            UsageError: the inbox is not started; or the task has a transaction of the inbox already; or the
                block ended the transaction; or the handler has ``publish_to``, whose post could be lost.
            PostError: the broker refused a message of :meth:`Transaction.post`. The effect is committed; the
                next delivery posts the message again.
            Exception: the database failed. After an error of the commit, the effect may exist or not; the
                next delivery decides.

        After a cancellation, effect and GUID are both committed or both not.
        """
        return self._transaction([_not_published("message", message)])

    def batch(self, messages: Iterable[Message]) -> AbstractAsyncContextManager[Transaction[C] | None]:
        """Return one transaction for the unhandled messages of a batch, or None if all were handled.

        :attr:`Transaction.messages` are the unhandled messages. A :class:`bmq.PartlyFailed` of the block, by
        index in ``messages``, commits the block without the GUIDs of the failed messages: the block must have
        undone the effects of these messages, for instance by a savepoint for each message. The exception
        continues after the commit. All else is as for :meth:`once`.
        """
        given: list[object] = _checks.items("messages", messages)
        return self._transaction([_not_published("a message", each) for each in given])

    @asynccontextmanager
    async def _transaction(self, messages: list[Message]) -> AsyncGenerator[Transaction[C] | None, None]:
        if self._purging_here() is None:
            raise UsageError(
                "the inbox is not started: 'async with inbox', or app.on_startup(inbox.start) and "
                "app.on_shutdown(inbox.close)"
            )
        outer = self._current.get()
        if outer is not None and not outer.ended:
            raise UsageError(
                "the handler is inside a transaction of this inbox already, and a second transaction would "
                "not belong to it: use the first transaction, or batch() for several messages"
            )
        first: dict[RowKey, Message] = {}
        for message in messages:
            first.setdefault(self._key_of(message), message)
        partly: PartlyFailed | None = None
        transaction: Transaction[C] | None = None
        async with self._begin() as connection:
            # Sorted: two batches that share messages wait for each other in one order.
            new = await self._insert(connection, sorted(first), _now())
            stored = [(key, await self._stored(connection, key)) for key in first if key not in new]
            outputs = [(key, text) for key, text in stored if text is not None]
            if new:
                fresh = {key: message for key, message in first.items() if key in new}
                transaction = Transaction(connection, fresh)
                self._current.set(transaction)
                try:
                    yield transaction
                except PartlyFailed as error:
                    partly = error
                finally:
                    transaction.ended = True
                    self._current.set(outer)
                if not self._is_open(connection):
                    raise UsageError(
                        "the handler ended the inbox's transaction: leave commit() and rollback() to the "
                        "inbox, and raise an error to roll back"
                    )
                if partly is not None:
                    known = [messages[index] for index in partly.failed if index < len(messages)]
                    failed = set(map(self._key_of, known)) & fresh.keys()
                    if failed == fresh.keys() or len(known) < len(partly.failed):
                        raise partly  # no message is left, or an unknown one has failed: roll all back
                    for key in sorted(failed):
                        await self._delete(connection, key)
                    fresh = {key: message for key, message in fresh.items() if key not in failed}
                if transaction.outputs:
                    text = msgspec.json.encode(transaction.outputs)
                    await self._store(connection, next(iter(fresh)), text)
                    outputs.append((next(iter(fresh)), text))
        if outputs:
            await self._post(first, outputs)
        if partly is not None:
            raise partly
        if transaction is None:
            yield None

    async def _post(
        self, messages: Mapping[RowKey, Message], outputs: Sequence[tuple[RowKey, bytes]]
    ) -> None:
        """Post the messages of committed transactions, and mark the transactions."""
        for key, text in outputs:
            session = messages[key].consumer.queue.session
            for output in msgspec.json.decode(text, type=list[_Output]):
                queue = await session.open_output(output.uri)
                (await queue.post_many([output.message()])).raise_for_failures()
        async with self._begin() as connection:
            for key, _ in outputs:
                await self._store(connection, key, None)

    # in handlers

    async def middleware(self, attempt: Attempt, call_next: CallNext) -> object:
        """Run each attempt in a transaction; end the attempt without the handler if the message was handled.

        ::

            @app.consumer(ORDERS, middlewares=[inbox.middleware])
            async def ship(
                order: Order, connection: Annotated[AsyncConnection, bmq.Depends(inbox.connection)]
            ) -> None:
                await connection.execute(...)

        The transaction commits after the handler, and rolls back after its error. A handler of batches
        receives the unhandled messages of the batch. Middlewares after this one run in the transaction.

        Args:
            attempt: the attempt.
            call_next: continues the attempt.

        Raises:
            Exception: as for :meth:`once` and :meth:`batch`.
        """
        given = attempt.messages
        async with self._transaction(list(given)) as transaction:
            if transaction is None:
                return None
            fresh = transaction.messages
            if len(fresh) == len(given):
                return await call_next()
            where = {id(message): position for position, message in enumerate(given)}
            positions = [where[id(message)] for message in fresh]
            values = attempt.value
            attempt.messages, attempt.value = fresh, [values[position] for position in positions]
            try:
                return await call_next()
            except PartlyFailed as error:
                # An index behind the handler's list stays behind the whole list, and is an error.
                places = dict(enumerate(positions))
                raise PartlyFailed(
                    {places.get(index, index + len(given)): each for index, each in error.failed.items()}
                ) from error
            finally:
                attempt.messages, attempt.value = given, values

    @_dependency(bmq_needs="inbox.middleware")
    async def transaction(self) -> Transaction[C]:
        """Return the transaction of the running attempt: a dependency, for :class:`bmq.Depends`.

        Raises:
            UsageError: the handler has no :meth:`middleware` of this inbox.
        """
        current = self._current.get()
        if current is None or current.ended:
            raise UsageError(
                "the attempt has no transaction: register the handler with middlewares=[inbox.middleware]"
            )
        return current

    @_dependency(bmq_needs="inbox.middleware", bmq_in_loop=True)  # not for handlers in threads
    async def connection(self) -> C:
        """Return the connection of :meth:`transaction`: a dependency, for :class:`bmq.Depends`.

        Raises:
            UsageError: the handler has no :meth:`middleware` of this inbox.
        """
        return (await self.transaction()).connection

    def _key_of(self, message: Message) -> RowKey:
        return self._consumer or message.queue_uri, origin_of(message)

    # maintenance

    async def forget(self, guid: str, consumer: str) -> bool:
        """Delete a GUID, so that the next delivery of the message has an effect again.

        Args:
            guid: GUID of the message; of a copy (durable retry, restored dead letter), the first GUID.
            consumer: the URI of the queue, or the inbox's ``consumer``.

        Returns:
            Whether the GUID was known.

        Raises:
            UsageError: an argument is not legal.
            Exception: the database failed.

        After a cancellation the GUID is deleted or not.
        """
        guid_from_text(guid)
        key = _checks.text("consumer", consumer), guid
        async with self._begin() as connection:
            return await self._delete(connection, key)

    async def purge(self) -> int:
        """Delete the GUIDs older than ``keep``; a started inbox does so by itself, at least hourly.

        GUIDs with messages that are not posted yet stay. Several purges may run at once.

        Returns:
            The number of deleted GUIDs.

        Raises:
            Exception: the database failed.

        A cancelled purge has deleted some of the GUIDs.
        """
        total = 0
        while True:
            async with self._begin() as connection:
                gone = await self._purge(connection, _now(), round(self._keep * 1000), PURGED_AT_ONCE)
            total += gone
            if gone < PURGED_AT_ONCE:
                return total

    async def _purge_repeatedly(self) -> None:
        while True:
            try:
                await self.purge()
            except Exception as error:  # of any database library
                self._log.warning(
                    type(error).__name__,
                    "the table %s cannot be purged, and grows: %s",
                    self._name,
                    described(error),
                )
            await asyncio.sleep(max(1.0, min(_LONGEST_PAUSE, self._keep / 10)))

    async def check(self, admin: Admin, uri: str) -> list[str]:
        """Ask the broker whether GUIDs are kept for longer than the messages of a queue live.

        Args:
            admin: asks the broker.
            uri: the queue.

        Returns:
            The problems, for people; empty without problems.

        Raises:
            AdminError: the broker refused.
            ConnectionFailed, RequestTimeout: the broker did not answer.
            InvalidURI: the URI is not legal.

        Cancelling the call changes nothing.
        """
        name = _checks.choice("admin", admin, Admin).queue(uri).domain
        domain = await admin.domain(name)
        problems: list[str] = []
        ttl = domain.configuration.get("messageTtl")
        if not isinstance(ttl, int) or ttl <= 0:
            problems.append(
                f"{name} has no messageTtl: a message may arrive again after its GUID was purged, "
                f"{self._keep:g} s after the first time. Set a messageTtl below keep"
            )
        elif self._keep <= ttl:
            problems.append(
                f"messages of {name} live for {ttl} s (messageTtl), and GUIDs are purged after "
                f"{self._keep:g} s: a message that arrives again after this has a second effect. Raise keep "
                f"above {ttl}, or lower messageTtl"
            )
        if domain.mode == "broadcast" and self._consumer is None:
            problems.append(
                f"every consumer of {uri} receives every message, and only one of them would handle it: give "
                "the inbox of each consumer a name, consumer=..."
            )
        return problems

    # of each database library

    @abstractmethod
    def _begin(self) -> AbstractAsyncContextManager[C]:
        """Return a transaction, committed by a clean exit, rolled back by an error."""

    @abstractmethod
    def _is_open(self, connection: C) -> bool:
        """Whether the transaction has not ended yet."""

    @abstractmethod
    async def _create(self) -> None:
        """Create the table if missing."""

    @abstractmethod
    async def _insert(self, connection: C, keys: Sequence[RowKey], now: int) -> set[RowKey]:
        """Insert keys, in their order; return the keys that were missing. Wait for other transactions."""

    @abstractmethod
    async def _stored(self, connection: C, key: RowKey) -> bytes | None:
        """Return the unposted messages of a key; None without any."""

    @abstractmethod
    async def _store(self, connection: C, key: RowKey, outputs: bytes | None) -> None:
        """Set the unposted messages of a key."""

    @abstractmethod
    async def _delete(self, connection: C, key: RowKey) -> bool:
        """Delete a key; return whether it was there."""

    @abstractmethod
    async def _purge(self, connection: C, now: int, keep: int, limit: int) -> int:
        """Delete some keys older than ``keep`` milliseconds; return their number."""


def _not_published(name: str, given: object) -> Message:
    """Return a message, unless its running handler posts the result after the transaction.

    A refused post would fail the attempt after the commit. The next attempt would get None instead of a
    transaction, and the handler would return nothing to be posted.
    """
    message = _checks.choice(name, given, Message)
    handler = message.context.get(_PUBLISHES)
    if handler is not None:
        raise UsageError(
            f"{handler} has publish_to, and its result would be lost if the broker refused it after the "
            "commit: post it by transaction.post, or use middlewares=[inbox.middleware] instead of once and "
            "batch"
        )
    return message


class _Undo(Exception):
    """Rolls back a transaction."""


def _now() -> int:
    """Return this process's time, in milliseconds since 1970."""
    return round(_world.time() * 1000)
