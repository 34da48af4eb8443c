# SPDX-License-Identifier: Apache-2.0
"""Session events: what :meth:`bmq.Session.events` yields and ``on_event`` is called with."""

from bmq.protocol.client.events import (
    ClientDeprecated,
    Connected,
    ConnectionLost,
    DeliveryRevived,
    Disconnected,
    HostHealthRestored,
    HostUnhealthy,
    QueueReopened,
    QueueReopenFailed,
    QueueResumed,
    QueueSuspended,
    Reconnected,
    Reconnecting,
    SessionEvent,
    SlowConsumer,
    SlowConsumerRecovered,
    StateRestored,
    UnclaimedMessages,
)

__all__ = [
    "ClientDeprecated",
    "Connected",
    "ConnectionLost",
    "DeliveryRevived",
    "Disconnected",
    "HostHealthRestored",
    "HostUnhealthy",
    "QueueReopenFailed",
    "QueueReopened",
    "QueueResumed",
    "QueueSuspended",
    "Reconnected",
    "Reconnecting",
    "SessionEvent",
    "SlowConsumer",
    "SlowConsumerRecovered",
    "StateRestored",
    "UnclaimedMessages",
]
