# SPDX-License-Identifier: Apache-2.0
"""The client role: one session as a state machine without I/O.

The interface is :class:`ClientCore`; ``examples/sans_io_client.py`` builds a blocking client on top.
"""

from __future__ import annotations

from bmq.protocol.client.core import ClientCore, CoreOptions, SessionState
from bmq.protocol.client.handshake import Credentials
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.protocol.client.subscription import SubscriptionCore, SubscriptionOptions

__all__ = [
    "ClientCore",
    "CoreOptions",
    "Credentials",
    "QueueCore",
    "QueueState",
    "SessionState",
    "SubscriptionCore",
    "SubscriptionOptions",
]
