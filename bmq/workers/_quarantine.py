# SPDX-License-Identifier: Apache-2.0
"""Quarantine: finds messages that kill the handling process, by counts kept in the broker.

The problem: after the death of a process, the broker redelivers and marks its messages. The broker cannot
know the deadly message among a thousand. Two steps find the message:

1. A marked message is not handled. The message is posted to the same queue again, with ``bmq_deaths`` raised
   by one, and afterwards confirmed. The broker has the count before the message can kill again.
2. Messages with ``bmq_deaths`` are suspects. A separate subscription with a limit of one message delivers
   them. Now a dying process has a single suspect, and only this suspect's count rises.

A harmless message counts a single death, is handled alone, and is finished. A deadly message counts one more
death each time, and goes to the quarantine at the limit.

Rejected: counts in memory, lost with the process; a limit of one message for all messages, at the cost of a
round trip for each; and a marker in another queue, because the marker outlives the message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bmq._checks import INT32_MAX
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.client.consumer import Consumer
from bmq.client.dead_letters import DeadLetter, Failure, described, origin_of
from bmq.client.message import Message
from bmq.client.poison import Poison, guid_of, integer_of
from bmq.client.queue import Queue
from bmq.conventions import DEATHS, ORIGIN, derived_guid
from bmq.errors import Error
from bmq.wire.constants import PropertyType
from bmq.wire.properties import PropertyInput, PropertyValue
from bmq.wire.uri import QueueUri

__all__ = ["Died", "Quarantine", "suspects_of"]

logger = Log("bmq.workers")


class Died(Exception):
    """The error of a message in quarantine: processes died or lost the connection while handling it."""


def suspects_of(consumer: Consumer) -> Consumer:
    """Return a consumer for the suspects among another consumer's messages, with a limit of one message."""
    expressions = consumer.expressions
    suspected = f"exists({DEATHS})"
    if "" not in expressions:
        suspected = f"({' || '.join(f'({each})' for each in expressions)}) && {suspected}"
    return consumer.queue.subscribe(
        suspected, priority=min(consumer.options.priority + 1, INT32_MAX), max_unconfirmed_messages=1
    )


class Quarantine:
    """Counts the deaths of messages, and moves messages with too many deaths to the quarantine.

    Args:
        letters: posts to the quarantine, with an open queue.
        after: number of deaths.
        queue: source of the messages, and destination of the repeated posts.
        handler: name of the handler.
    """

    def __init__(self, letters: DeadLetter, after: int, queue: Queue, handler: str) -> None:
        assert isinstance(letters.queue, Queue)
        self._letters = letters
        self._aside = letters.queue
        self._after = after
        self._queue = queue
        self._destination = QueueUri.parse(queue.uri).canonical
        self._handler = handler
        self._log = LogLimit(logger)

    async def took(self, message: Message, pause: Callable[[float], Awaitable[None]]) -> bool:
        """Count a death of a redelivered message; return False if the message is to be handled nevertheless.

        After a cancellation the message may or may not be posted; a repeated call posts the same message.
        """
        try:
            count = self._deaths(message) + 1
            if count >= self._after:
                await self._put_aside(message, count, pause)
            else:
                await self._again(message, count)
        except (Error, Poison) as error:
            self._log.warning(
                type(error).__name__,
                "message %s of %s was redelivered, and its number of deaths could not be recorded; the "
                "message is handled: %s",
                message.guid,
                message.queue_uri,
                described(error),
            )
            return False
        message.confirm()
        return True

    def _deaths(self, message: Message) -> int:
        """Return the deaths so far. A count set by a producer is capped one below the limit."""
        deaths = integer_of(message, DEATHS, 1, INT32_MAX)
        if deaths is None or guid_of(message, ORIGIN) is None:
            return 0
        return min(deaths, self._after - 1)

    async def _again(self, message: Message, count: int) -> None:
        properties: dict[str, PropertyInput] = {
            **message.properties.typed(),
            DEATHS: PropertyValue(PropertyType.INT32, count),
            ORIGIN: origin_of(message),
        }
        output = await self._queue.session.open_output(self._destination)
        guid = derived_guid(message.guid, message.queue_uri, "death", str(count))
        await output.post(message.data, properties=properties, guid=guid)
        self._log.warning(
            "suspect",
            "message %s of %s was being handled when a process died or lost its connection, %d times so "
            "far. The message was posted again, and is now handled alone",
            message.guid,
            message.queue_uri,
            count,
        )

    async def _put_aside(
        self, message: Message, count: int, pause: Callable[[float], Awaitable[None]]
    ) -> None:
        died = Died(f"{count} processes died or lost their connection while handling it")
        failure = Failure(message, died, count, None, self._handler)
        await self._letters.post(failure, self._aside, pause)
        self._log.error(
            "quarantine",
            "message %s of %s is in quarantine in %s: %s",
            message.guid,
            message.queue_uri,
            self._letters.uri,
            died,
        )
