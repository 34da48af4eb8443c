# SPDX-License-Identifier: Apache-2.0
"""Removes one message from a queue: a dead letter to post again, or a delayed message to cancel."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import bmq
from bmq.admin import Stream
from bmq.admin.explanation import objection
from bmq.console.source import MOST_BYTES, MOST_HELD, NotNow, RemoteBroker
from bmq.conventions import DEAD_GUID, DUE, is_guid
from bmq.subscriptions import Expression
from bmq.workers import original_of

__all__ = ["cancel", "post_again"]

# Seconds without a message after which the message is held by somebody else, or gone.
_IDLE = 2.0
# Above the subscriptions of all usual consumers.
_FIRST = 2**30
_NOTHING = (
    "message {} cannot be taken: a reader may hold the message, or the message is gone. Nothing was changed."
)


async def post_again(
    source: RemoteBroker,
    uri: str,
    guid: str,
    first: str,
    *,
    to: str = "",
    edited: tuple[bytes, dict[str, bmq.PropertyValue]] | None = None,
) -> tuple[str, str]:
    """Post a dead letter again, and confirm the letter after the destination's acknowledgement.

    The GUID of the post is derived from the letter: within the deduplication window of the destination, a
    repeated call makes no second message. A cancelled or failed call leaves the letter in its queue.

    Args:
        source: the broker.
        uri: the queue of the dead letter.
        guid: the dead letter.
        first: GUID of the original message; only letters of this message are taken.
        to: the destination; empty for the original queue.
        edited: payload and properties instead of the original's.

    Returns:
        The destination, and the GUID of the post.

    Raises:
        NotNow: the queue has readers, or the letter is gone.
        UsageError: the message is not a dead letter, or cannot be posted.
    """
    for name, each in (("guid", guid), ("first", first)):
        if not is_guid(each):
            raise bmq.UsageError(f"{name} must be the GUID of a message, not {each!r}")
    async with _taken(source, uri, guid, f'{DEAD_GUID} == "{first}"') as (session, letter):
        destination, original = original_of(letter, to or None)
        if edited is not None:
            original = bmq.PutMessage(edited[0], edited[1] or None, original.guid)
        output = await session.open_queue(destination, write=True)
        result = await output.post_many([original])
        result.raise_for_failures()
        letter.confirm()
    return destination, str(original.guid)


async def cancel(source: RemoteBroker, uri: str, guid: str, due: int) -> None:
    """Confirm a delayed message by its GUID, so that the message is never passed on. No message is received.

    Args:
        source: the broker.
        uri: the delay queue.
        guid: the message.
        due: due time in milliseconds since 1970; a mover whose subscription matches the time may hold the
            message already.

    Raises:
        NotNow: the message may be held by a mover, or is gone.
    """
    async with await source.admin() as admin:
        queue = admin.queue(uri)
        if gap := (await queue.standing()).gap:
            raise NotNow(gap)
        internals = await queue.internals()
        held = any(_may_hold(stream, due) for client in internals.clients for stream in client.streams)
        if held or not any([each.guid == guid async for each in queue.all_messages()]):
            raise NotNow(_NOTHING.format(guid))
    async with source.connect() as session:
        opened = await session.open_queue(uri, read=True, default_subscription=False)
        opened.confirm(guid)
        await opened.close()


def _may_hold(stream: Stream, due: int) -> bool:
    """Whether a client has unconfirmed messages, and the due time matches one of its subscriptions."""
    expressions = [each.expression for each in stream.subscriptions] or [""]
    return stream.unconfirmed != 0 and any(
        not text or bool(Expression(text, strict=False).matches({DUE: due})) for text in expressions
    )


@asynccontextmanager
async def _taken(
    source: RemoteBroker, uri: str, guid: str, expression: str
) -> AsyncGenerator[tuple[bmq.Session, bmq.Message]]:
    """Take a message with an expression for few messages; all others of these are returned at the end."""
    async with await source.admin() as admin:
        if reason := await objection(admin.queue(uri)):
            raise NotNow(f"{reason}. Nothing was changed.")
    async with source.connect() as session:
        queue = await session.open_queue(uri, read=True, default_subscription=False)
        async with queue.subscribe(
            expression,
            priority=_FIRST,
            max_unconfirmed_messages=MOST_HELD,
            max_unconfirmed_bytes=MOST_BYTES,
        ) as consumer:
            for _ in range(MOST_HELD):
                try:
                    message = await consumer.receive(_IDLE)
                except TimeoutError:
                    break
                if message.guid == guid:
                    yield session, message
                    return
    raise NotNow(_NOTHING.format(guid))
