# SPDX-License-Identifier: Apache-2.0
"""Interceptors: what sees the messages of a session go out and come in."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from bmq import _checks
from bmq.errors import UsageError

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.message import FailedPost, Message
    from bmq.client.queue import Queue
    from bmq.wire.properties import PropertyInput

__all__ = ["Around", "Handling", "Hooks", "Interceptor", "Post", "PostOutcome", "check_interceptors"]

logger = logging.getLogger("bmq.interceptors")


class Post:
    """A message on its way out, as interceptors see it before it is encoded.

    Attributes:
        data: the payload.
        properties: values by name, tags included. An interceptor may add some, or change or remove them: the
            message travels with what is here in the end.
        guid: the GUID it will have: 32 upper-case hexadecimal digits.
    """

    __slots__ = ("data", "guid", "properties")

    def __init__(self, data: bytes, properties: dict[str, PropertyInput], guid: str) -> None:
        self.data = data
        self.properties = properties
        self.guid = guid

    def __repr__(self) -> str:
        return f"<bmq.Post {self.guid}, {len(self.data)} bytes>"


@dataclass(frozen=True, slots=True)
class PostOutcome:
    """What became of the posts of one :meth:`bmq.Interceptor.on_post`.

    Attributes:
        queue: the queue they were posted to.
        posted: how many of them were posted: all, unless there is an ``error``.
        acknowledged: how many of these the broker accepted.
        failures: the others, in the order their outcomes came; ``index`` is the place in the list that
            ``on_post`` had.
        error: what the caller got when they could not, or not all, be posted: one was not legal, or the queue
            was closed.
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
        messages: what it handles: one message, or those of a batch.
        handler: the handler's name.
        attempt: 1 for the first.
    """

    messages: Sequence[Message]
    handler: str
    attempt: int


class Interceptor:
    """Sees the messages of a session go out and come in. Subclass it, and override what is of interest.

    Given to ``bmq.connect(..., interceptors=[...])`` or ``bmq.App(interceptors=[...])``. All methods are
    plain functions, called in the event loop: they must be quick, and cannot wait. Where the client works in
    batches they get batches. One that raises is logged, the first time as an error, later at DEBUG, and
    changes nothing else: messages flow, and the other interceptors are called.

    Interceptors are called in the order they were given; ``on_ack``, ``on_confirm`` and the end of
    ``around_handle`` in the opposite one. A method that is not overridden is not called, and costs nothing.
    """

    def on_post(self, queue: Queue, posts: Sequence[Post]) -> Any:
        """Messages are about to be posted; called in the task that posts, with its context variables.

        ``post`` and ``post_nowait`` have one, ``post_many`` up to 500 at a time. Properties may be added.

        Args:
            queue: the queue.
            posts: the messages.

        Returns:
            Anything: :meth:`on_ack` gets it.
        """

    def on_ack(self, context: Any, outcome: PostOutcome) -> None:
        """Every message of one :meth:`on_post` has its outcome; called exactly once for each.

        Called where acknowledgements are read: not in the task that posted, and without its context
        variables.

        Args:
            context: what ``on_post`` returned; None if that is not overridden.
            outcome: what became of them.
        """

    def on_receive(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """The application takes messages; called in the task that receives, just before it gets them.

        An iteration and ``receive`` take one, ``receive_many`` and ``batches`` several at a time.
        :attr:`bmq.Message.age` says how long ago they arrived; :attr:`bmq.Message.state` keeps what
        later methods need.
        """

    def on_confirm(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Messages were confirmed; called in the code that confirms, once for each message at most.

        What is never confirmed, or by nothing but its GUID, or unseen, does not come here.
        """

    def around_handle(self, handling: Handling) -> AbstractContextManager[Any]:
        """Return a context manager in which :class:`bmq.App` or :func:`bmq.consume` calls a handler.

        It is entered and left in the task of the handler, which sees the context variables that it sets, also
        a handler that runs in a thread. It is told of the exception the handler ended with, and cannot
        suppress it. One for every attempt.
        """
        return nullcontext()

    _installed: ClassVar[list[Interceptor]] = []

    def install(self) -> None:
        """Give it to every session that is made in this process from now on, before those it is given.

        For instrumentation that a program does not know of; a program itself gives its interceptors to
        :func:`bmq.connect`. Calling it again changes nothing.
        """
        if self not in Interceptor._installed:
            Interceptor._installed.append(self)

    def uninstall(self) -> None:
        """Take back :meth:`install`; sessions that have it keep it."""
        if self in Interceptor._installed:
            Interceptor._installed.remove(self)


_METHODS = ("on_post", "on_ack", "on_receive", "on_confirm", "around_handle")
#: What interceptors returned, in their order; :data:`_FAILED` of one that raised.
_Contexts = list[Any]
_FAILED = object()


class Hooks:
    """The interceptors of one session, and calling them.

    Args:
        given: the interceptors.

    Attributes:
        interceptors: all of them, the installed ones first.
        posting: some want ``on_post`` or ``on_ack``.
        receiving: some want ``on_receive``.
        confirming: some want ``on_confirm``.
        handling: some want ``around_handle``.

    Raises:
        UsageError: one is not a :class:`bmq.Interceptor`, or has an async method.
    """

    def __init__(self, given: Iterable[Interceptor]) -> None:
        self.interceptors = (*Interceptor._installed, *check_interceptors(given))
        # Their methods, looked up once.
        observing = [each for each in self.interceptors if _has(each, "on_post") or _has(each, "on_ack")]
        self._on_post = [(each, each.on_post) for each in observing]
        self._on_ack = [(each, each.on_ack) for each in reversed(observing)]
        self._on_receive = [(e, e.on_receive) for e in self.interceptors if _has(e, "on_receive")]
        self._on_confirm = [(e, e.on_confirm) for e in reversed(self.interceptors) if _has(e, "on_confirm")]
        self._handling = [each for each in self.interceptors if _has(each, "around_handle")]
        self.posting, self.receiving = bool(self._on_post), bool(self._on_receive)
        self.confirming, self.handling = bool(self._on_confirm), bool(self._handling)
        self._said: set[tuple[Interceptor, str]] = set()

    def posts(self, queue: Queue, posts: Sequence[Post]) -> _Contexts:
        """Call ``on_post``; return what :meth:`outcome` is to be called with."""
        contexts: _Contexts = []
        for each, on_post in self._on_post:
            try:
                contexts.append(on_post(queue, posts))
            except BaseException as error:
                self.failed(each, "on_post", error)
                contexts.append(_FAILED)
        return contexts

    def outcome(self, contexts: _Contexts, outcome: PostOutcome) -> None:
        """Call ``on_ack``."""
        for (each, on_ack), context in zip(self._on_ack, reversed(contexts), strict=True):
            if context is not _FAILED:
                try:
                    on_ack(context, outcome)
                except BaseException as error:
                    self.failed(each, "on_ack", error)

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
        """One has raised, CancelledError too: it asked something that was cancelled for its result()."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            # They end the event loop, as from any callback of it, but not in the middle of our work.
            asyncio.get_running_loop().call_soon(_raise, error)
            return
        first = (interceptor, method) not in self._said
        self._said.add((interceptor, method))
        logger.log(
            logging.ERROR if first else logging.DEBUG,
            "the interceptor %r failed in %s; this is logged as an error once",
            interceptor,
            method,
            exc_info=error,
        )


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
                if error is not exc:  # a context manager may let pass what it was told of by raising it again
                    self._hooks.failed(each, "around_handle", error)


def _has(interceptor: Interceptor, method: str) -> bool:
    return getattr(type(interceptor), method) is not getattr(Interceptor, method)


def check_interceptors(given: Iterable[Interceptor]) -> tuple[Interceptor, ...]:
    """Return interceptors.

    Raises:
        UsageError: one of them is not a :class:`bmq.Interceptor`, or has an async method.
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
