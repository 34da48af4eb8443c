# SPDX-License-Identifier: Apache-2.0
"""Retries that survive the worker: the message waits in a queue of its own until the next attempt."""

from __future__ import annotations

import logging

from bmq.client.dead_letters import Failure, error_text
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.conventions import ATTEMPTS, ERROR, ORIGIN, derived_guid
from bmq.errors import Error, ProtocolError, UsageError
from bmq.wire.constants import PropertyType
from bmq.wire.properties import PropertyInput, Typed
from bmq.wire.uri import QueueUri
from bmq.workers._outcomes import RetryAfter
from bmq.workers._retry import RetryPolicy

__all__ = ["Later", "attempts_so_far", "check_durable", "is_durable"]

logger = logging.getLogger("bmq.workers")


def is_durable(policy: RetryPolicy) -> bool:
    """Whether a message waits in the broker between two attempts."""
    return bool(getattr(policy, "durable", False))


def check_durable(policy: RetryPolicy, uri: QueueUri) -> None:
    """Check that the messages of a queue can come back to it.

    Raises:
        UsageError: they cannot.
    """
    if is_durable(policy) and uri.app_id:
        raise UsageError(
            f"a durable retry of {uri} would come back to every application of the queue, not to "
            f"{uri.app_id!r} alone: retry it in the worker, durable=False"
        )


def attempts_so_far(message: Message) -> int:
    """How often a message was tried before it came back."""
    try:
        attempts = message.properties.get(ATTEMPTS)
    except ProtocolError:
        return 0
    return attempts if isinstance(attempts, int) and attempts > 0 else 0


class Later:
    """Puts the messages of one queue off to a later attempt, by any worker.

    Args:
        queue: where they come from, and come back to.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._destination = QueueUri.parse(queue.uri).canonical

    async def put_off(self, failure: Failure) -> bool:
        """Post a message to the waiting queue, for the time of its next attempt, and confirm it.

        Returns:
            Whether that was done; if not, the log says why, and it is still here.

        Cancelling it leaves open whether the message waits there; doing it again posts the same one.
        """
        message = failure.message
        assert failure.retry_in is not None
        tried = failure.attempt - isinstance(failure.error, RetryAfter)
        try:
            origin = message.properties.get(ORIGIN)
            properties: dict[str, PropertyInput] = {
                **message.properties.typed(),
                ATTEMPTS: Typed(PropertyType.INT32, tried),
                ERROR: error_text(failure.error),
                ORIGIN: origin if isinstance(origin, str) else message.guid,
            }
            output = await self._queue.session.output(self._destination)
            await output.post(
                message.data,
                properties=properties,
                guid=derived_guid(message.guid, message.queue_uri, "attempt", str(failure.attempt)),
                delay=failure.retry_in,
            )
        except Error as error:
            logger.warning(
                "message %s of %s cannot wait in %s and waits here for its next attempt: %s",
                message.guid,
                message.queue_uri,
                self._queue.waiting,
                error,
            )
            return False
        message.confirm()
        return True
