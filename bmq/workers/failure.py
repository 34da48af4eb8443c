"""What is known about a failed message, and the queue where it can be put aside."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.errors import PostError
from bmq.wire.constants import PropertyType
from bmq.wire.properties import PropertyInput, Typed

__all__ = ["DeadLetter", "Failure", "GiveUp"]

_MAX_ERROR_TEXT: Final = 1000
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt to handle a message.

    Attributes:
        message: the message; it is not confirmed, unless the handler did so or it was confirmed on receipt.
        error: what the handler raised; a TimeoutError when it missed its deadline.
        attempt: 1 for the first.
        retry_in: seconds until the next attempt; None when this was the last one.
        handler: the handler's name.
    """

    message: Message
    error: BaseException
    attempt: int
    retry_in: float | None
    handler: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Put a message aside in another queue when it is given up.

    Payload and properties are posted to ``queue``, with these properties besides, and the message is
    confirmed once the broker has acknowledged that: ``deadletter.attempts`` (INT32) is how often it was
    tried, ``deadletter.error`` (STRING) the type and text of the last error, ``deadletter.guid`` (STRING)
    the message's GUID, ``deadletter.queue`` (STRING) its queue's URI, with ``?id=`` if it had one.

    The GUID of what is posted follows from the last two, so that doing it again within the broker's
    deduplication window stores nothing twice.

    Attributes:
        queue: a queue open for writing, or the URI of one, which a :class:`bmq.App` opens itself.
    """

    queue: Queue | str

    @property
    def uri(self) -> str:
        """The queue's URI."""
        return self.queue if isinstance(self.queue, str) else self.queue.uri

    async def post(self, failure: Failure, queue: Queue, pause: Callable[[float], Awaitable[None]]) -> None:
        """Post the message to ``queue``, and wait for the acknowledgement.

        Tries again, after pauses of 1 to 60 seconds, for as long as the broker's refusal says that it may
        help (the queue is full, say).

        Args:
            failure: the message, and why.
            queue: where to.
            pause: sleeps for some seconds.

        Raises:
            PostError: refused for good.
            ProtocolError: the message itself is malformed.
            UsageError: it does not fit together with the properties that are added, or the queue is closed.

        Cancelling it leaves open whether the message is there.
        """
        message = failure.message
        properties: dict[str, PropertyInput] = {**message.properties.typed(), **provenance(failure)}
        origin = f"{message.guid} {message.queue_uri} dead letter"
        guid = hashlib.blake2b(origin.encode(), digest_size=16).digest()
        seconds = _FIRST_PAUSE
        while True:
            try:
                await queue.post(message.data, properties=properties, guid=guid)
                return
            except PostError as error:
                if not error.retryable:
                    raise
            await pause(seconds)
            seconds = min(seconds * 2, _LONGEST_PAUSE)


#: What becomes of a message that is not tried again: confirmed and gone; left unconfirmed; put aside.
GiveUp: TypeAlias = Literal["discard", "leave"] | DeadLetter


def provenance(failure: Failure) -> dict[str, PropertyInput]:
    """Where a dead letter comes from and why, as properties."""
    text = f"{type(failure.error).__name__}: {failure.error}"[:_MAX_ERROR_TEXT]
    return {
        "deadletter.attempts": Typed(PropertyType.INT32, failure.attempt),
        "deadletter.error": text.encode("utf-8", "replace").decode(),
        "deadletter.guid": failure.message.guid,
        "deadletter.queue": failure.message.queue_uri,
    }
