# SPDX-License-Identifier: Apache-2.0
"""Whether messages of a queue may be received and returned without an effect on its consumers."""

from __future__ import annotations

from bmq.admin.client import QueueAdmin
from bmq.admin.results import Client, Internals
from bmq.errors import AdminError, ProtocolError
from bmq.wire.control import DEFAULT_APP_ID

__all__ = ["objection", "readers_of"]

# The words of a broker about a queue that no client has opened, or about an unknown domain.
_NO_QUEUE = ("not found", "doesn't exist")
_NAMED = 3
_HARM = (
    "a broker delivers returned messages before all others, and delivers nothing else while no consumer "
    "takes the returned messages"
)


async def objection(queue: QueueAdmin, *, may_be_new: bool = False) -> str:
    """Return why nobody should receive messages of a queue and return them; empty without an objection.

    A returned message goes to the broker's redelivery list. While no subscription matches the message, the
    broker delivers no later message of the application. An unknown answer is an objection.

    Args:
        queue: the queue, with the application in its URI.
        may_be_new: without an objection to a queue that no client has opened; an error otherwise.

    Raises:
        AdminError: no client has opened the queue.
        Error: the broker cannot be asked.
    """
    try:
        if gap := (await queue.standing()).gap:
            return f"{gap}, and does not show whether the queue has readers at other nodes"
        internals = await queue.internals()
    except AdminError as error:
        if any(words in error.broker_message for words in _NO_QUEUE):
            if may_be_new:
                return ""
            raise
        return f"the broker does not say who reads the queue: {error}"
    except ProtocolError as error:
        return f"who reads the queue is unknown: {error}"
    readers = readers_of(internals, queue.app_id or DEFAULT_APP_ID)
    if not readers:
        return ""
    more = f" and {len(readers) - _NAMED} more" if len(readers) > _NAMED else ""
    return f"this queue has readers ({', '.join(readers[:_NAMED])}{more}), and {_HARM}"


def readers_of(internals: Internals, app_id: str) -> list[str]:
    """Return the clients that may read an application.

    Each sign of a reader counts, the number of consumers foremost: a client chooses the text of its
    subscriptions, and may hide them in a printed answer.
    """
    found = [client.description for client in internals.clients if _may_read(client, app_id)]
    if not found and any(app.consumers for app in internals.apps if app.app_id == app_id):
        return ["a client that the broker does not name"]
    return found


def _may_read(client: Client, app_id: str) -> bool:
    return any(
        client.readers or stream.subscriptions or stream.windows or stream.unconfirmed
        for stream in client.streams
        if stream.app_id == app_id
    )
