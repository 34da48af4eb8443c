# SPDX-License-Identifier: Apache-2.0
"""The actions that a broker authorizes, with the names of BlazingMQ's own actions (``mqbact``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Action", "ActionKind"]


class ActionKind(Enum):
    """The kinds of actions, with the names of a real broker's authorizer plugins.

    Attributes:
        CONNECT_CLIENT: a session connects.
        CONNECT_ADMIN: a client for admin commands connects.
        QUEUE_READ: a client opens a queue for reading.
        QUEUE_WRITE: a client opens a queue for writing.
        EXECUTE_ADMIN_COMMAND: an admin client sends a command.
    """

    CONNECT_CLIENT = "ConnectClient"
    CONNECT_ADMIN = "ConnectAdmin"
    QUEUE_READ = "QueueRead"
    QUEUE_WRITE = "QueueWrite"
    EXECUTE_ADMIN_COMMAND = "ExecuteAdminCommand"


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a client, for the function ``authorize`` of :class:`bmq.broker.Broker`.

    Attributes:
        kind: kind of the action.
        principal: name of the authenticated user; empty for an anonymous client.
        uri: URI of the queue, without appId; empty unless a queue is opened.
        app_id: appId of the reader of a fanout queue; empty otherwise.
        command: text of the admin command; empty for other kinds.
    """

    kind: ActionKind
    principal: str = ""
    uri: str = ""
    app_id: str = ""
    command: str = ""
