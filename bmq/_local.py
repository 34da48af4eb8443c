# SPDX-License-Identifier: Apache-2.0
"""What listens in this process: embedded brokers, and proxies in front of brokers.

A connection to one of them goes to exactly that one, whatever BMQ_BROKER_URI says.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakValueDictionary

__all__ = ["is_loopback", "listens_here", "note_listener"]


class _Listener(Protocol):
    host: str


# By port. What is stopped stays: it may be started again, on the same port.
_listeners: WeakValueDictionary[int, _Listener] = WeakValueDictionary()


def note_listener(listener: _Listener, port: int) -> None:
    """Remember what listens on a port, for as long as it exists."""
    _listeners[port] = listener


def listens_here(host: str, port: int) -> bool:
    """Whether something in this process listens, or has listened, at an address."""
    listener = _listeners.get(port)
    return listener is not None and (host == listener.host or is_loopback(host))


def is_loopback(host: str) -> bool:
    """Whether an address, or its usual name, always means this machine."""
    return host in ("localhost", "::1", "0.0.0.0", "::") or host.startswith("127.")
