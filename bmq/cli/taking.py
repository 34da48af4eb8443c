# SPDX-License-Identifier: Apache-2.0
"""Receiving messages without harm to the other consumers of the queue.

A broker delivers a returned message before all others, and nothing else while no subscription matches the
message. A verb therefore confirms all the messages that it receives, or asks first who reads the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, Final

import bmq
from bmq._words import several
from bmq.admin.explanation import objection
from bmq.cli.output import BadInput, note
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import option

# Matches no message.
_NOTHING: Final = "exists(bmq) && !exists(bmq)"

FORCE = Annotated[
    bool,
    option(
        "--force",
        "Receive and return messages also if the queue has readers. The broker may then deliver nothing "
        "to these readers.",
    ),
]


async def refuse_to_take(target: BrokerTarget, queue: str, instead: str, *, may_be_new: bool = True) -> None:
    """Refuse to receive messages and return them while other clients read the queue.

    Args:
        target: the broker.
        queue: the queue, with its application.
        instead: what the user may do without messages.
        may_be_new: whether the queue may be one that no client has opened, and that receiving creates.

    Raises:
        BadInput: the queue has readers, the broker does not say, or the application does not exist.
        ConnectionFailed: no broker.
        AdminError: no client has opened the queue.
    """
    try:
        async with target.admin() as admin:
            asked = admin.queue(queue)
            reason = await objection(asked, may_be_new=may_be_new)
            if not reason and asked.app_id:
                check_application(queue, asked.app_id, (await admin.domain(asked.domain)).app_ids)
    except (bmq.AuthenticationError, bmq.UsageError):
        raise
    except bmq.errors.AdminError:
        if not may_be_new:
            raise
        return  # of the domain, which the broker refuses by itself
    except bmq.Error as error:
        if isinstance(error, bmq.ConnectionFailed) and not isinstance(error, bmq.NegotiationError):
            raise
        reason = f"who reads the queue is unknown: {error}"
    if reason:
        raise BadInput(f"nothing was received: {reason}. {instead}; --force receives messages all the same")


def check_application(queue: str, app_id: str, known: tuple[str, ...]) -> None:
    """Refuse an application that the domain does not have: a broker opens the queue, and delivers nothing.

    Raises:
        BadInput: the application is unknown.
    """
    if known and app_id not in known:
        raise BadInput(f"{queue} has no application {app_id!r}; its applications: {', '.join(known)}")


async def open_consumer(
    session: bmq.Session, queue: str, wanted: Any, *, window: int, priority: int = 0
) -> bmq.Consumer:
    """Open a queue with one subscription: of an expression, of tags, or None for all messages."""
    subscription = bmq.Subscription(wanted, priority=priority, max_unconfirmed_messages=window)
    opened = await session.open_queue(
        queue, read=True, default_subscription=False, subscriptions=[subscription]
    )
    return opened.consumers[0]


async def take(
    verb: str,
    consumer: bmq.Consumer,
    receive: Callable[[], Awaitable[Iterable[bmq.Message]]],
    handle: Callable[[list[bmq.Message]], Awaitable[list[bmq.Message]]],
    left: Callable[[], int | None],
    *,
    all_delivered: bool = True,
) -> None:
    """Handle messages until enough are handled, no more arrive, or the verb is cancelled.

    The broker never delivers more messages than are wanted: the window shrinks to the wanted number before
    messages are confirmed, and at the end all delivered messages are handled. Only the messages that cannot
    be handled return to the queue, with a note.

    Args:
        verb: name of the verb, for the note.
        consumer: the consumer; its window must not exceed the number of wanted messages.
        receive: returns the next messages of the consumer, or raises a TimeoutError at the end.
        handle: returns the messages to confirm.
        left: returns the number of messages still wanted; None without a limit.
        all_delivered: if False, messages in line at the end are not handled.

    Cancelling the call ends the delivery; the delivered messages are still handled.
    """
    nothing = bmq.Expression(_NOTHING, strict=False)
    handling: asyncio.Task[None] | None = None
    held = 0

    async def step(messages: list[bmq.Message]) -> None:
        nonlocal held
        held += len(messages)
        done = await handle(messages)
        held -= len(done)
        wanted = left()
        try:
            if wanted == 0:
                await consumer.configure(nothing)
            elif wanted is not None and wanted + held < consumer.options.max_unconfirmed_messages:
                await consumer.configure(max_unconfirmed_messages=wanted + held)
        finally:
            for message in done:
                message.confirm()

    async def end() -> None:
        if not all_delivered:
            return
        await consumer.configure(nothing)
        while left() != 0 and consumer.buffered:
            await step(list(await consumer.receive_many()))

    def tell() -> None:
        if returned := held + consumer.buffered:
            tell_returned(verb, returned)

    try:
        while left() != 0:
            try:
                messages = list(await receive())
            except TimeoutError:
                await end()
                break
            handling = asyncio.create_task(step(messages))
            await asyncio.shield(handling)
        tell()
    except BaseException as error:
        if all_delivered:
            if isinstance(error, asyncio.CancelledError):
                if handling is not None:
                    await handling
                await end()
            tell()
        raise


def tell_returned(verb: str, returned: int) -> None:
    """Report messages returned to the queue."""
    note(
        f"bmq {verb}: {several(returned, 'message')} returned to the queue. The broker delivers them before "
        "all others, and nothing else until a consumer takes them; bmq peek takes no messages"
    )
