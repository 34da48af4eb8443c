# SPDX-License-Identifier: Apache-2.0
"""The first stage of posting: interceptors see messages before the encoding, and learn the outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bmq.client._outcomes import PostBatch, PostFuture, Several, fail
from bmq.client._payload import NO_TAGS, as_bytes, checked_properties, completed
from bmq.client.posts import Ack, FailedPost, OutgoingMessage, PutMessage
from bmq.errors import PostError
from bmq.wire.constants import Compression
from bmq.wire.guid import GuidGenerator, guid_from_text, guid_to_text
from bmq.wire.properties import PropertyInput

__all__ = ["Interception", "ObservedPost", "ObservedPosts", "PostObserver", "Seen"]


class PostObserver(Protocol):
    """The interceptors, as known to the posts of one queue."""

    def posts(self, posts: Sequence[OutgoingMessage], /) -> list[Any]:
        """Show messages; return the context for :meth:`outcome`."""
        ...

    def outcome(
        self,
        contexts: list[Any],
        posted: int,
        failures: tuple[FailedPost, ...] = (),
        error: BaseException | None = None,
        /,
    ) -> None:
        """Report the number of posted messages, the failures among these, and the error of the caller."""
        ...


@dataclass(slots=True)
class Seen:
    """Items of a ``post_many``, ready for the interceptors.

    Attributes:
        posts: messages, as shown to interceptors.
        complete: whether no items are left.
        late: a delayed message, at the end of the group.
        failure: error of an illegal item; earlier items are posted.
    """

    posts: list[OutgoingMessage] = field(default_factory=list["OutgoingMessage"])
    complete: bool = True
    late: PutMessage | None = None
    failure: BaseException | None = None
    _compressions: list[Compression | None] = field(default_factory=list["Compression | None"])

    def add(self, post: OutgoingMessage, compression: Compression | None) -> None:
        """Add a message, and the compression requested by the item."""
        self.posts.append(post)
        self._compressions.append(compression)

    def messages(self) -> Iterator[PutMessage]:
        """Return the messages to post, with the interceptors' changes."""
        for post, compression in zip(self.posts, self._compressions, strict=True):
            yield PutMessage(post.data, post.properties, post.guid, NO_TAGS, compression)


class Interception:
    """Shows the interceptors of a session the messages posted to a queue.

    Args:
        observer: interceptors.
        guids: generates the GUIDs, as seen by interceptors.
    """

    __slots__ = ("_guids", "_observer")

    def __init__(self, observer: PostObserver, guids: GuidGenerator) -> None:
        self._observer = observer
        self._guids = guids

    def one(
        self, data: bytes, properties: Mapping[str, PropertyInput] | None, guid: str | None, tick: int
    ) -> tuple[OutgoingMessage, ObservedPost]:
        """Show a message; return the message, and the receiver of the outcome."""
        post = self._post(data, properties, guid, tick)
        return post, ObservedPost(self._observer, post)

    def several(self, items: Iterable[Any], budget: int, tick: int) -> Seen:
        """Take items of a ``post_many``, up to a budget of bytes, without showing them.

        Never raises.
        """
        seen = Seen()
        try:
            for item in items:
                data, properties, guid, compression = item, None, None, None
                if item.__class__ is PutMessage:
                    if item.delay is not None:
                        seen.late = item
                        seen.complete = False
                        break
                    data, guid, compression = item.data, item.guid, item.compression
                    properties = item.properties
                    if item.tags is not NO_TAGS or item.key is not None:
                        properties = completed(properties, item.tags, item.key)
                data = data if data.__class__ is bytes else as_bytes(data)
                seen.add(self._post(data, properties, guid, tick), compression)
                budget -= len(data)
                if budget <= 0:
                    seen.complete = False
                    break
        except BaseException as error:
            seen.failure = error
        return seen

    def observe(self, posts: list[OutgoingMessage], batch: PostBatch) -> ObservedPosts:
        """Show messages; return the receiver of their outcomes."""
        return ObservedPosts(self._observer, posts, batch)

    def _post(
        self, data: bytes, properties: Mapping[str, PropertyInput] | None, guid: str | None, tick: int
    ) -> OutgoingMessage:
        text = guid_to_text(self._guids.next(tick) if guid is None else guid_from_text(guid))
        return OutgoingMessage(data, dict(checked_properties(properties)), text)


class ObservedPosts(Several):
    """Several posts of a ``post_many``, shown to interceptors together.

    Args:
        observer: interceptors.
        posts: messages, as shown to the interceptors.
        batch: the caller's batch, which counts the same outcomes.
    """

    __slots__ = ("_batch", "_contexts", "_failures", "_first", "_left", "_observer", "_outcome")

    def __init__(self, observer: PostObserver, posts: list[OutgoingMessage], batch: PostBatch) -> None:
        self._observer = observer
        self._batch = batch
        self._first = batch.report.posted
        self._failures: list[FailedPost] = []
        self._outcome: tuple[int, BaseException | None] = 0, None
        self._left = 0
        self._contexts = observer.posts(posts)

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
            self._observer.outcome(self._contexts, posted, tuple(self._failures), error)


class ObservedPost:
    """A single post: receives the outcome for a future, even if the caller has stopped waiting.

    Args:
        observer: interceptors.
        post: message, as shown to the interceptors.
    """

    __slots__ = ("_contexts", "_future", "_observer")

    _future: PostFuture

    def __init__(self, observer: PostObserver, post: OutgoingMessage) -> None:
        self._observer = observer
        self._contexts = observer.posts([post])

    def attach(self, future: PostFuture) -> ObservedPost:
        """Also pass the outcome to a future; return the object itself."""
        self._future = future
        return self

    def refused(self, error: BaseException) -> None:
        """Report a failure to post the message."""
        self._observer.outcome(self._contexts, 0, (), error)

    def done(self) -> bool:
        """Always False: the outcome is always wanted."""
        return False

    def set_result(self, ack: Ack, /) -> None:
        """Report the broker's acceptance of the post."""
        if not self._future.done():
            self._future.set_result(ack)
        self._observer.outcome(self._contexts, 1)

    def set_exception(self, error: PostError, /) -> None:
        """Report a post without an acceptance."""
        if not self._future.done():
            fail(self._future, error)
        self._observer.outcome(self._contexts, 1, (FailedPost(0, error),))
