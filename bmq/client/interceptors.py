# SPDX-License-Identifier: Apache-2.0
"""Interceptors: hooks for the messages posted and received by a session."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bmq import _checks
from bmq.errors import UsageError

if TYPE_CHECKING:
    from bmq.client._open_queue import OpenQueue
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message
    from bmq.client.posts import FailedPost, OutgoingMessage
    from bmq.client.queue import Queue

__all__ = [
    "Around",
    "Handling",
    "Hooks",
    "Interceptor",
    "PostHooks",
    "PostOutcome",
    "check_interceptors",
    "hooks_of",
]

logger = logging.getLogger("bmq.interceptors")


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
class Handling:
    """One attempt of a handler; see :meth:`bmq.Interceptor.around_handle`.

    Attributes:
        messages: messages of the attempt: a single message, or a whole batch.
        handler: name of the handler.
        attempt: number of the attempt, from 1.
    """

    messages: Sequence[Message]
    handler: str
    attempt: int


class Interceptor:
    """Observes the messages posted and received by a session. Subclasses override the methods they need.

    Pass interceptors to ``bmq.connect(..., interceptors=[...])`` or ``bmq.App(interceptors=[...])``. All
    methods are plain functions, called in the event loop: they must be fast, and cannot wait. Where the
    client works in batches, the methods receive batches. An exception is logged, the first time as an error
    and later at DEBUG, without further effect: messages flow, and the remaining interceptors are called.

    Interceptors are called in the given order. ``on_ack``, ``on_confirm`` and the end of ``around_handle``
    are called in the reverse order. Methods not overridden are never called, and cost nothing.

    ::

        class Counter(bmq.Interceptor):
            received = 0

            def on_receive(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
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

    def around_handle(self, handling: Handling) -> AbstractContextManager[Any]:
        """Return a context manager in which :class:`bmq.App` or :func:`bmq.consume` calls a handler.

        Called for each attempt. The context is entered and left in the task of the handler. The handler sees
        context variables set by the context manager, even in a thread. The context manager receives the
        handler's exception, but cannot suppress the exception.
        """
        return nullcontext()

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

_METHODS = ("on_post", "on_ack", "on_receive", "on_confirm", "around_handle")
#: Return values of the interceptors, in order; :data:`_FAILED` for a failed interceptor.
_Contexts = list[Any]
_FAILED = object()


class Hooks:
    """The interceptors of one session, and the calls of the methods.

    Args:
        given: the interceptors.

    Attributes:
        interceptors: all interceptors, installed interceptors first.
        posting: whether an interceptor has ``on_post`` or ``on_ack``.
        on_post: interceptors of posts, with their ``on_post``, in order.
        on_ack: the same interceptors with their ``on_ack``, in reverse order.
        receiving: whether an interceptor has ``on_receive``.
        confirming: whether an interceptor has ``on_confirm``.
        handling: whether an interceptor has ``around_handle``.

    Raises:
        UsageError: an object is not a :class:`bmq.Interceptor`, or has an async method.
    """

    def __init__(self, given: Iterable[Interceptor]) -> None:
        self.interceptors = (*_installed, *check_interceptors(given))
        # The overridden methods, looked up once.
        observing = [each for each in self.interceptors if _has(each, "on_post") or _has(each, "on_ack")]
        self.on_post = [(each, each.on_post) for each in observing]
        self.on_ack = [(each, each.on_ack) for each in reversed(observing)]
        self._on_receive = [(e, e.on_receive) for e in self.interceptors if _has(e, "on_receive")]
        self._on_confirm = [(e, e.on_confirm) for e in reversed(self.interceptors) if _has(e, "on_confirm")]
        self._handling = [each for each in self.interceptors if _has(each, "around_handle")]
        self.posting, self.receiving = bool(self.on_post), bool(self._on_receive)
        self.confirming, self.handling = bool(self._on_confirm), bool(self._handling)
        self._said: set[tuple[Interceptor, str]] = set()

    def received(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Call ``on_receive``."""
        for each, on_receive in self._on_receive:
            try:
                on_receive(consumer, messages)
            except BaseException as error:
                self.failed(each, "on_receive", error)

    def confirmed(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Call ``on_confirm``."""
        for each, on_confirm in self._on_confirm:
            try:
                on_confirm(consumer, messages)
            except BaseException as error:
                self.failed(each, "on_confirm", error)

    def around(self, handling: Handling) -> Around:
        """Return a context manager for an attempt of a handler."""
        return Around(self, self._handling, handling)

    def failed(self, interceptor: Interceptor, method: str, error: BaseException) -> None:
        """Log the exception of an interceptor, even a CancelledError, possibly from a cancelled future."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            # These exceptions end the event loop, as from any other callback, but outside the client's own
            # code.
            asyncio.get_running_loop().call_soon(_raise, error)
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


#: Accessor of a queue's interceptors, for the modules of the client.
hooks_of: Callable[[OpenQueue], Hooks] = attrgetter("_hooks")


class PostHooks:
    """The interceptors of posts, for one queue.

    Args:
        hooks: interceptors of the session.
        queue: destination of the posts.
    """

    __slots__ = ("_hooks", "_queue")

    def __init__(self, hooks: Hooks, queue: Queue) -> None:
        self._hooks = hooks
        self._queue = queue

    def posts(self, posts: Sequence[OutgoingMessage]) -> _Contexts:
        """Call ``on_post``; return the argument for :meth:`outcome`."""
        contexts: _Contexts = []
        for each, on_post in self._hooks.on_post:
            try:
                contexts.append(on_post(self._queue, posts))
            except BaseException as error:
                self._hooks.failed(each, "on_post", error)
                contexts.append(_FAILED)
        return contexts

    def outcome(
        self,
        contexts: _Contexts,
        posted: int,
        failures: tuple[FailedPost, ...] = (),
        error: BaseException | None = None,
    ) -> None:
        """Call ``on_ack``; see :class:`PostOutcome`."""
        outcome = PostOutcome(self._queue, posted, posted - len(failures), failures, error)
        for (each, on_ack), context in zip(self._hooks.on_ack, reversed(contexts), strict=True):
            if context is not _FAILED:
                try:
                    on_ack(context, outcome)
                except BaseException as failure:
                    self._hooks.failed(each, "on_ack", failure)


class Around(AbstractContextManager[None]):
    """The context managers of all interceptors around one attempt of a handler."""

    __slots__ = ("_entered", "_handling", "_hooks", "_interceptors")

    def __init__(self, hooks: Hooks, interceptors: list[Interceptor], handling: Handling) -> None:
        self._hooks = hooks
        self._interceptors = interceptors
        self._handling = handling
        self._entered: list[tuple[Interceptor, AbstractContextManager[Any]]] = []

    def __enter__(self) -> None:
        for each in self._interceptors:
            try:
                around = each.around_handle(self._handling)
                around.__enter__()
            except BaseException as error:
                self._hooks.failed(each, "around_handle", error)
            else:
                self._entered.append((each, around))

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for each, around in reversed(self._entered):
            try:
                around.__exit__(exc_type, exc, tb)
            except BaseException as error:
                if error is not exc:  # a context manager may re-raise the received exception
                    self._hooks.failed(each, "around_handle", error)


def _has(interceptor: Interceptor, method: str) -> bool:
    return getattr(type(interceptor), method) is not getattr(Interceptor, method)


def check_interceptors(given: Iterable[Interceptor]) -> tuple[Interceptor, ...]:
    """Return the checked interceptors.

    Raises:
        UsageError: an object is not a :class:`bmq.Interceptor`, or has an async method.
    """
    found: tuple[Interceptor, ...] = tuple(_checks.items("interceptors", given, "bmq.Interceptor"))
    for each in found:
        _check(each)
    return found


def _check(interceptor: object) -> None:
    _checks.instance(
        "an interceptor", interceptor, Interceptor, "an instance of a subclass of bmq.Interceptor"
    )
    for method in _METHODS:
        if inspect.iscoroutinefunction(getattr(interceptor, method)):
            raise UsageError(
                f"{type(interceptor).__name__}.{method} is async; interceptors are plain functions"
            )


def _raise(error: BaseException) -> None:
    raise error
