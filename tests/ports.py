# SPDX-License-Identifier: Apache-2.0
"""Ports that no other program takes before the program under test listens there."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

__all__ = ["reserved_port"]


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port: the system gives it to nobody else, and a server with SO_REUSEADDR can listen there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port
