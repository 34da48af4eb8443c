# SPDX-License-Identifier: Apache-2.0
"""The operating system's own checks of a TCP connection: probes when idle, a limit for unacknowledged bytes.

The session's heartbeats detect a silent broker. The options here detect a dead path while the event loop is
blocked, and close sockets abandoned by the session. On a platform without the options, heartbeats still
detect the same failures. Each option is set separately, because platforms differ.
"""

from __future__ import annotations

import array
import math
import socket

try:
    from fcntl import ioctl as _ioctl
    from termios import TIOCOUTQ as _UNSENT
except ImportError:  # a system without the modules, or without the query
    _can_ask = False
else:
    _can_ask = True

__all__ = ["limit_unacknowledged", "probe", "unacknowledged"]

# Probes without an answer after which a connection is lost.
_PROBES = 3
# Unacknowledged bytes end a connection after this multiple of the tolerated silence. A broker sending, but
# not reading for a while, is slow and not dead; the kernel cannot distinguish the two.
_PATIENCE = 2


def probe(raw: socket.socket, liveness: float | None) -> None:
    """Enable the kernel's probes of an idle connection.

    Args:
        raw: the socket.
        liveness: tolerated silence in seconds; None for the system's defaults.
    """
    _set(raw, socket.SOL_SOCKET, "SO_KEEPALIVE", 1)
    if liveness is None:
        return
    part = max(1, min(32767, math.ceil(liveness / _PROBES)))
    # macOS calls the first option TCP_KEEPALIVE.
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    _set(raw, socket.IPPROTO_TCP, idle, part)
    _set(raw, socket.IPPROTO_TCP, "TCP_KEEPINTVL", part)
    _set(raw, socket.IPPROTO_TCP, "TCP_KEEPCNT", _PROBES)
    limit_unacknowledged(raw, liveness)


def limit_unacknowledged(raw: socket.socket, liveness: float | None) -> None:
    """Limit the time for which written bytes may stay unacknowledged.

    Args:
        raw: the socket.
        liveness: tolerated silence in seconds; None for the system's limit.
    """
    milliseconds = 0 if liveness is None else max(1, min(2**31 - 1, int(_PATIENCE * liveness * 1000)))
    _set(raw, socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", milliseconds)


def unacknowledged(raw: socket.socket) -> int:
    """Return the number of written bytes not acknowledged by the peer's kernel; 0 if unknown."""
    if not _can_ask:
        return 0
    count = array.array("i", [0])
    try:
        _ioctl(raw.fileno(), _UNSENT, count)  # pyright: ignore[reportPossiblyUnboundVariable]
    except OSError:
        return 0  # the socket is closed
    return count[0]


def _set(raw: socket.socket, level: int, name: str, value: int) -> None:
    option = getattr(socket, name, None)
    if option is not None:
        try:
            raw.setsockopt(level, option, value)
        except OSError:
            pass  # already closed by the peer, or this system refuses the value
