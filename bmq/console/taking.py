# SPDX-License-Identifier: Apache-2.0
"""Takes one message out of a queue: a dead letter to post again, or a delayed message to cancel."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import bmq
from bmq.console.source import MOST_HELD, NotNow, Source
from bmq.conventions import DEAD_GUID, DUE, is_guid
from bmq.workers import original_of

__all__ = ["cancel", "post_again"]

_MOST_BYTES = 64 * 1024 * 1024
# Seconds without a message after which the message is held by somebody else, or gone.
_IDLE = 2.0
# Above the subscriptions of all usual consumers.
_FIRST = 2**30


async def post_again(
    source: Source,
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
        edited: payload and properties in place of the original's.

    Returns:
        The destination, and the GUID of the post.

    Raises:
        NotNow: the letter is held by a reader, or gone.
        UsageError: the message is not a dead letter, or cannot be posted.
    """
    if not is_guid(first):
        raise bmq.UsageError(f"first must be the GUID of the original message, not {first!r}")
    async with _taken(source, uri, guid, f'{DEAD_GUID} == "{first}"') as (session, letter):
        destination, original = original_of(letter, to or None)
        if edited is not None:
            original = bmq.PutMessage(edited[0], edited[1] or None, original.guid)
        output = await session.open_queue(destination, write=True)
        result = await output.post_many([original])
        result.raise_for_failures()
        letter.confirm()
    return destination, str(original.guid)


async def cancel(source: Source, uri: str, guid: str, due: int) -> None:
    """Confirm a delayed message, so that the message is never passed on.

    Args:
        source: the broker.
        uri: the delay queue.
        guid: the message.
        due: due time in milliseconds since 1970; only messages with this time are taken.

    Raises:
        NotNow: the message is held by a mover, or gone.
    """
    async with _taken(source, uri, guid, f"{DUE} == {due}") as (_, message):
        message.confirm()


@asynccontextmanager
async def _taken(
    source: Source, uri: str, guid: str, expression: str
) -> AsyncGenerator[tuple[bmq.Session, bmq.Message]]:
    """Take a message with an expression for few messages; all others of these are returned at the end."""
    async with source.connect() as session:
        queue = await session.open_queue(uri, read=True, default_subscription=False)
        async with queue.subscribe(
            expression,
            priority=_FIRST,
            max_unconfirmed_messages=MOST_HELD,
            max_unconfirmed_bytes=_MOST_BYTES,
        ) as consumer:
            for _ in range(MOST_HELD):
                try:
                    message = await consumer.receive(_IDLE)
                except TimeoutError:
                    break
                if message.guid == guid:
                    yield session, message
                    return
    raise NotNow(
        f"message {guid} was not delivered: a reader holds the message, or the message is gone. Nothing was "
        "changed."
    )
