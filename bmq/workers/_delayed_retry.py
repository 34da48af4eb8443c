# SPDX-License-Identifier: Apache-2.0
"""Durable retries: the message waits in the delay queue until the next attempt."""

from __future__ import annotations

from bmq._checks import INT32_MAX
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.client.dead_letters import Failure, described, error_text, origin_of
from bmq.client.message import Message
from bmq.client.poison import Poison, guid_of, integer_of
from bmq.client.queue import Queue
from bmq.conventions import ATTEMPTS, ERROR, ORIGIN, derived_guid
from bmq.errors import Error, UsageError
from bmq.wire.constants import PropertyType
from bmq.wire.properties import PropertyInput, PropertyValue
from bmq.wire.uri import QueueUri
from bmq.workers._outcomes import RetryAfter
from bmq.workers._retry import RetryPolicy

__all__ = ["DelayedRetries", "attempts_so_far", "check_durable", "is_durable"]

logger = Log("bmq.workers")


def is_durable(policy: RetryPolicy) -> bool:
    """Whether messages wait in the broker between attempts."""
    return bool(getattr(policy, "durable", False))


def check_durable(policy: RetryPolicy, uri: QueueUri) -> None:
    """Check whether the messages of a queue can return to the queue.

    Raises:
        UsageError: messages cannot return.
    """
    if is_durable(policy) and uri.app_id:
        raise UsageError(
            f"a durable retry of {uri} would reach every application of the queue, not "
            f"{uri.app_id!r} alone: retry it in the worker, durable=False"
        )


def attempts_so_far(message: Message, policy: RetryPolicy) -> int:
    """Return the number of attempts before a message came back.

    A delayed message has several properties that agree. The number is trusted up to the policy's number of
    retries. A number without the other properties, as a producer might set it, is ignored.
    """
    try:
        attempts = integer_of(message, ATTEMPTS, 1, INT32_MAX)
        if attempts is None or guid_of(message, ORIGIN) is None or ERROR not in message.properties:
            return 0
    except Poison:
        return 0
    most: int | None = getattr(policy, "retries", None)
    return attempts if most is None else min(attempts, int(most))


class DelayedRetries:
    """Delays the messages of one queue until a later attempt, by any worker.

    Args:
        queue: source and destination of the messages.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._log = LogLimit(logger)
        self._destination = QueueUri.parse(queue.uri).canonical

    async def put_off(self, failure: Failure) -> bool:
        """Post a message to the delay queue, due at its next attempt, and confirm the message.

        Returns:
            True if the message was posted and confirmed. If False, the message is still here, and the log has
            the reason.

        After a cancellation the message may or may not be in the delay queue; a repeated call posts the same
        message.
        """
        message = failure.message
        assert failure.retry_in is not None
        tried = failure.attempt - isinstance(failure.error, RetryAfter)
        try:
            properties: dict[str, PropertyInput] = {
                **message.properties.typed(),
                ATTEMPTS: PropertyValue(PropertyType.INT32, tried),
                ERROR: error_text(failure.error),
                ORIGIN: origin_of(message),
            }
            output = await self._queue.session.open_output(self._destination)
            await output.post(
                message.data,
                properties=properties,
                guid=derived_guid(message.guid, message.queue_uri, "attempt", str(failure.attempt)),
                delay=failure.retry_in,
            )
        except Error as error:
            self._log.warning(
                type(error).__name__,
                "message %s of %s cannot wait in %s, and waits in the worker for its next attempt: %s",
                message.guid,
                message.queue_uri,
                self._queue.delay_queue_uri,
                described(error),
            )
            return False
        message.confirm()
        return True
