# SPDX-License-Identifier: Apache-2.0
"""Interceptors: hooks for the messages posted and received by a session."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bmq import _checks
from bmq._logging import Log
from bmq._loop import raise_soon
from bmq.client.posts import (
    NO_TAGS,
    Ack,
    FailedPost,
    OutgoingMessage,
    PostFuture,
    PostGroup,
    PutMessage,
    as_bytes,
    checked_properties,
    completed,
    fail,
)
from bmq.errors import PostError, UsageError
from bmq.wire.constants import Compression
from bmq.wire.guid import guid_from_text, guid_to_text
from bmq.wire.properties import PropertyInput

if TYPE_CHECKING:
    from bmq.client.attempt import Attempt, CallNext
    from bmq.client.batches import PostBatch
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.client.queue import Queue
    from bmq.client.session import Session

__all__ = [
    "Hooks",
    "InterceptedPost",
    "InterceptedPosts",
    "Interceptor",
    "Operation",
    "PostOutcome",
    "check_interceptors",
    "outgoing",
]

logger = Log("bmq.interceptors", later=True)


@dataclass(frozen=True, slots=True)
class PostOutcome:
    """Outcomes of the messages of one :meth:`bmq.Interceptor.on_post`.

    Attributes:
        queue: queue of the messages.
        posted: number of posted messages: all, unless ``error`` is set.
        acknowledged: number of accepted messages.
        failures: messages without an acceptance, in the order of the outcomes; ``index`` is the position in
            the list of ``on_post``.
        error: exception raised to the caller if some messages could not be posted: a message was not legal,
            or the queue was closed.
    """

    queue: Queue
    posted: int
    acknowledged: int
    failures: tuple[FailedPost, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on a session or a queue, for :meth:`bmq.Interceptor.on_operation`.

    Attributes:
        name: ``session.start``, ``session.stop``, ``queue.open``, ``queue.configure`` or ``queue.close``.
        session: the session.
        queue_uri: URI of the queue; empty for an operation on the session.
    """

    name: str
    session: Session
    queue_uri: str = ""


class Interceptor:
    """Observes the messages posted and received by a session. Subclasses override the methods they need.

    Pass interceptors to ``bmq.connect(..., interceptors=[...])`` or ``bmq.App(interceptors=[...])``. All
    methods except ``handle`` are plain functions, called in the event loop: they must be fast, and cannot
    wait. Where the client works in batches, the methods receive batches. An exception is logged, the first
    time as an error and later at DEBUG, without further effect: messages flow, and the remaining
    interceptors are called.

    Interceptors are called in the given order. ``on_ack``, ``on_confirm`` and the end of ``handle`` are
    called in the reverse order. Methods not overridden are never called, and cost nothing.

    ::

        class Counter(bmq.Interceptor):
            received = 0

            def on_receive(
                self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]
            ) -> None:
                self.received += len(messages)
    """

    def on_post(self, queue: Queue, posts: Sequence[OutgoingMessage]) -> Any:
        """Called before messages are posted, in the posting task, with the task's context variables.

        ``post`` and ``post_nowait`` pass one message, ``post_many`` up to 500. Properties may be added.

        Args:
            queue: the queue.
            posts: the messages.

        Returns:
            Any object; :meth:`on_ack` receives the object.
        """

    def on_ack(self, context: Any, outcome: PostOutcome) -> None:
        """Called once all messages of one :meth:`on_post` have an outcome, exactly once.

        Called by the reader of acknowledgements: not in the posting task, and without the task's context
        variables.

        Args:
            context: return value of ``on_post``; None if ``on_post`` is not overridden.
            outcome: outcomes of the messages.
        """

    def on_receive(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Called when the application takes messages, in the receiving task, just before the task continues.

        Iterations and ``receive`` pass one message, ``receive_many`` and ``batches`` several.
        :attr:`bmq.Message.age` is the time since the arrival. :attr:`bmq.Message.context` can keep data for
        later methods.
        """

    def on_confirm(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Called when messages are confirmed, in the code that confirms, at most once for each message.

        Not called for messages never confirmed, confirmed by a GUID alone, or confirmed by
        ``discard_unmatched``.
        """

    def on_operation(self, operation: Operation) -> Any:
        """Called at the beginning of an operation on a session or a queue, in the calling task.

        The operations: connecting for the first time, closing the session, opening a queue, changing the
        subscriptions of an open queue, and closing a queue. Restoring a connection is no operation of the
        application.

        Args:
            operation: the operation.

        Returns:
            Any object; :meth:`on_operation_end` receives the object.
        """

    def on_operation_end(self, context: Any, error: BaseException | None) -> None:
        """Called once at the end of an operation.

        Args:
            context: return value of ``on_operation``; None if ``on_operation`` is not overridden.
            error: exception of the operation, ``asyncio.CancelledError`` for a cancelled one; None after
                success.
        """

    async def handle(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Called around each attempt of a handler of :class:`bmq.App` or :func:`bmq.consume`.

        The only method that may wait. An interceptor is the outermost middleware of each handler of the
        session, in the task of the handler, which sees context variables set here, even in a thread.
        ``await call_next()`` continues the attempt, and returns the handler's result or raises the handler's
        exception. Unlike a middleware of the application, an interceptor observes only: a result, an
        exception, or a missing call of ``call_next`` has no effect on the attempt.

        Args:
            attempt: the attempt.
            call_next: continues the attempt.
        """
        return await call_next()

    def install(self) -> None:
        """Add the interceptor to all sessions created in this process from now on, before their own.

        For instrumentation without the program's knowledge. A program itself passes interceptors to
        :func:`bmq.connect`. A repeated call has no effect.
        """
        if self not in _installed:
            _installed.append(self)

    def uninstall(self) -> None:
        """Undo :meth:`install`. Existing sessions keep the interceptor."""
        if self in _installed:
            _installed.remove(self)


#: The interceptors of every session of the process.
_installed: list[Interceptor] = []

_METHODS = ("on_post", "on_ack", "on_receive", "on_confirm", "on_operation", "on_operation_end")
#: Return values of the interceptors, in order; :data:`_FAILED` for a failed interceptor.
_Contexts = list[Any]
_FAILED = object()


class Hooks:
    """The interceptors of one session, and the calls of the methods.

    Args:
        given: the interceptors; None for no interceptors at all, not even installed ones.

    Attributes:
        interceptors: all interceptors, installed interceptors first.
        posting: interceptors with ``on_post`` or ``on_ack``.
        receiving: interceptors with ``on_receive``.
        confirming: interceptors with ``on_confirm``.
        handling: interceptors with ``handle``, as middlewares.

    Raises:
        UsageError: an object is not a :class:`bmq.Interceptor`, or has an async method.
    """

    def __init__(self, given: Iterable[Interceptor] | None) -> None:
        self.interceptors = () if given is None else (*_installed, *check_interceptors(given))
        self.posting = self._with("on_post", "on_ack")
        self.receiving = self._with("on_receive")
        self.confirming = self._with("on_confirm")
        self.handling = tuple(map(self._observing, self._with("handle")))
        self._operating = self._with("on_operation", "on_operation_end")
        self._said: set[tuple[Interceptor, str]] = set()

    def _with(self, *methods: str) -> list[Interceptor]:
        """Return the interceptors that override one of the methods."""
        return [
            each
            for each in self.interceptors
            if any(getattr(type(each), name) is not getattr(Interceptor, name) for name in methods)
        ]

    def call(self, interceptor: Interceptor, method: str, *arguments: Any) -> Any:
        """Call a method of an interceptor; return :data:`_FAILED` after an exception, which is logged."""
        try:
            return getattr(interceptor, method)(*arguments)
        except BaseException as error:
            self._failed(interceptor, method, error)
            return _FAILED

    def end(self, interceptors: list[Interceptor], contexts: _Contexts, method: str, outcome: object) -> None:
        """Call the second method of a pair, in reverse order, where the first method has not failed."""
        for each, context in zip(reversed(interceptors), reversed(contexts), strict=True):
            if context is not _FAILED:
                self.call(each, method, context, outcome)

    def show(self, queue: Queue, posts: Sequence[OutgoingMessage]) -> _Contexts:
        """Call ``on_post``; return the argument for :meth:`report`."""
        return [self.call(each, "on_post", queue, posts) for each in self.posting]

    def report(
        self,
        queue: Queue,
        contexts: _Contexts,
        posted: int,
        failures: tuple[FailedPost, ...] = (),
        error: BaseException | None = None,
    ) -> None:
        """Call ``on_ack``; see :class:`PostOutcome`."""
        outcome = PostOutcome(queue, posted, posted - len(failures), failures, error)
        self.end(self.posting, contexts, "on_ack", outcome)

    def received(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Call ``on_receive``."""
        for each in self.receiving:
            self.call(each, "on_receive", consumer, messages)

    def confirmed(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Call ``on_confirm``."""
        for each in reversed(self.confirming):
            self.call(each, "on_confirm", consumer, messages)

    @contextmanager
    def operation(self, name: str, session: Session, queue_uri: str = "") -> Generator[None]:
        """Call ``on_operation`` and ``on_operation_end`` around an operation."""
        contexts = self._begin(name, session, queue_uri)
        try:
            yield
        except BaseException as error:
            self._end(contexts, error)
            raise
        self._end(contexts, None)

    def watch(self, name: str, session: Session, queue_uri: str, done: asyncio.Future[Any]) -> None:
        """Call ``on_operation`` now, and ``on_operation_end`` with the result of a future."""
        if self._operating:
            contexts = self._begin(name, session, queue_uri)
            done.add_done_callback(lambda done: self._end(contexts, _error_of(done)))

    def _begin(self, name: str, session: Session, queue_uri: str) -> _Contexts:
        operation = Operation(name, session, queue_uri)
        return [self.call(each, "on_operation", operation) for each in self._operating]

    def _end(self, contexts: _Contexts, error: BaseException | None) -> None:
        self.end(self._operating, contexts, "on_operation_end", error)

    def _observing(self, interceptor: Interceptor) -> Callable[[Attempt, CallNext], Awaitable[Any]]:
        """Return a middleware that calls ``handle``, and protects the attempt from the interceptor."""

        async def observe(attempt: Attempt, call_next: CallNext) -> Any:
            outcome = _Outcome(call_next)
            try:
                await interceptor.handle(attempt, outcome.get)
            except BaseException as error:
                if error is not outcome.error:
                    if _cancelled(error):
                        raise
                    self._failed(interceptor, "handle", error)
            return await outcome.get()

        return observe

    def _failed(self, interceptor: Interceptor, method: str, error: BaseException) -> None:
        """Log the exception of an interceptor, even a CancelledError, possibly from a cancelled future."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise_soon(error)
            return
        first = (interceptor, method) not in self._said
        self._said.add((interceptor, method))
        logger.log(
            logging.ERROR if first else logging.DEBUG,
            "the interceptor %r failed in %s; further failures are logged at level DEBUG",
            interceptor,
            method,
            exc_info=error,
        )


def outgoing(
    queue: Queue, data: bytes, properties: Mapping[str, PropertyInput] | None, guid: str | None, tick: int
) -> OutgoingMessage:
    """Return a message in the form for interceptors, who see its GUID."""
    text = guid_to_text(queue._connection.guids.next(tick) if guid is None else guid_from_text(guid))
    return OutgoingMessage(data, dict(checked_properties(properties)), text)


class InterceptedPost:
    """A single post: receives the outcome for a future, even if the caller has stopped waiting.

    Args:
        queue: destination of the post.
        post: message, as shown to the interceptors.
        future: the caller's future.
    """

    __slots__ = ("_contexts", "_future", "_queue")

    def __init__(self, queue: Queue, post: OutgoingMessage, future: PostFuture) -> None:
        self._queue = queue
        self._future = future
        self._contexts = queue._hooks.show(queue, [post])

    def refused(self, error: BaseException) -> None:
        """Report a failure to post the message."""
        self._queue._hooks.report(self._queue, self._contexts, 0, (), error)

    def done(self) -> bool:
        """Always False: the outcome is always wanted."""
        return False

    def set_result(self, ack: Ack, /) -> None:
        """Report the broker's acceptance of the post."""
        if not self._future.done():
            self._future.set_result(ack)
        self._queue._hooks.report(self._queue, self._contexts, 1)

    def set_exception(self, error: PostError, /) -> None:
        """Report a post without an acceptance."""
        if not self._future.done():
            fail(self._future, error)
        self._queue._hooks.report(self._queue, self._contexts, 1, (FailedPost(0, error),))


class InterceptedPosts(PostGroup):
    """Several posts of a ``post_many``, shown to interceptors together.

    Args:
        queue: destination of the posts.
        batch: the caller's batch, which counts the same outcomes.

    Attributes:
        posts: messages, as shown to the interceptors.
        failure: error of an illegal item; earlier items are posted.
    """

    __slots__ = (
        "_batch",
        "_compressions",
        "_contexts",
        "_failures",
        "_first",
        "_left",
        "_outcome",
        "_queue",
        "failure",
        "posts",
    )

    def __init__(self, queue: Queue, batch: PostBatch) -> None:
        self.posts: list[OutgoingMessage] = []
        self.failure: BaseException | None = None
        self._compressions: list[Compression | None] = []
        self._queue = queue
        self._contexts: _Contexts = []
        self._batch = batch
        self._first = batch.report.posted
        self._failures: list[FailedPost] = []
        self._outcome: tuple[int, BaseException | None] = 0, None
        self._left = 0

    def take(self, items: Iterable[Any], budget: int, tick: int) -> bool:
        """Take items, up to a budget of bytes, without showing them; return whether no items are left.

        Never raises.
        """
        try:
            for item in items:
                data, properties, guid, compression = item, None, None, None
                if item.__class__ is PutMessage:
                    if item.delay is not None:
                        self._batch.late = item
                        return False
                    data, guid, compression = item.data, item.guid, item.compression
                    properties = item.properties
                    if item.tags is not NO_TAGS or item.key is not None:
                        properties = completed(properties, item.tags, item.key)
                data = data if data.__class__ is bytes else as_bytes(data)
                self.posts.append(outgoing(self._queue, data, properties, guid, tick))
                self._compressions.append(compression)
                budget -= len(data)
                if budget <= 0:
                    return False
        except BaseException as error:
            self.failure = error
        return True

    def show(self) -> Iterator[PutMessage]:
        """Show the messages to the interceptors; return the messages to post, with their changes."""
        self._contexts = self._queue._hooks.show(self._queue, self.posts)
        return (
            PutMessage(post.data, post.properties, post.guid, NO_TAGS, compression)
            for post, compression in zip(self.posts, self._compressions, strict=True)
        )

    def made(self, count: int, error: BaseException | None) -> None:
        """Record the number of posted messages; ``error`` is the reason if some were not posted."""
        self._outcome = count, error
        self._left = count
        self._settled(0)

    def accepted(self, count: int) -> None:
        """Count acknowledged posts."""
        self._batch.accepted(count)
        self._settled(count)

    def failed(self, index: int, error: PostError) -> None:
        """Record a post without an acceptance."""
        self._batch.failed(index, error)
        self._failures.append(FailedPost(index - self._first, error))
        self._settled(1)

    def _settled(self, count: int) -> None:
        self._left -= count
        if not self._left:
            posted, error = self._outcome
            failures = tuple(self._failures)
            self._queue._hooks.report(self._queue, self._contexts, posted, failures, error)


class _Outcome:
    """The only call of the rest of an attempt: each further call has the same outcome.

    Attributes:
        error: exception of the call, or None.
    """

    __slots__ = ("_call", "_result", "error")

    def __init__(self, call: CallNext) -> None:
        self._call: CallNext | None = call
        self._result: Any = None
        self.error: BaseException | None = None

    async def get(self) -> Any:
        """Return the result, or raise the exception."""
        call, self._call = self._call, None
        if call is not None:
            try:
                self._result = await call()
            except BaseException as error:
                self.error = error
                raise
        if self.error is not None:
            raise self.error
        return self._result


def _error_of(done: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError() if done.cancelled() else done.exception()


def _cancelled(error: BaseException) -> bool:
    """Whether an exception ends the current task, rather than comes from an interceptor."""
    if isinstance(error, GeneratorExit):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def check_interceptors(given: Iterable[Interceptor]) -> tuple[Interceptor, ...]:
    """Return the checked interceptors.

    Raises:
        UsageError: an object is not a :class:`bmq.Interceptor`, or has an async method.
    """
    found: tuple[Interceptor, ...] = tuple(_checks.items("interceptors", given, "bmq.Interceptor"))
    for each in found:
        _checks.instance("an interceptor", each, Interceptor, "an instance of a subclass of bmq.Interceptor")
        for method in _METHODS:
            if inspect.iscoroutinefunction(getattr(each, method)):
                raise UsageError(
                    f"{type(each).__name__}.{method} is async: all methods except handle are plain functions"
                )
        if not inspect.iscoroutinefunction(each.handle):
            raise UsageError(
                f"{type(each).__name__}.handle must be async: async def handle(self, attempt, call_next)"
            )
    return found
