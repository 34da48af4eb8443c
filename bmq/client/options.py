# SPDX-License-Identifier: Apache-2.0
"""The arguments of :func:`bmq.connect`, for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ssl import SSLContext

from bmq.client.interceptors import Interceptor
from bmq.engine.health import HostHealthMonitor
from bmq.engine.options import CredentialsSource, SessionFields, SessionOptions
from bmq.protocol.client.events import SessionEvent

__all__ = ["ConnectOptions"]


class ConnectOptions(SessionFields, total=False):
    """The keyword arguments of :func:`bmq.connect` besides the address, for type checkers."""

    credentials: CredentialsSource | None
    ssl: SSLContext | None
    server_hostname: str | None
    on_event: Callable[[SessionEvent], None] | None
    host_health: HostHealthMonitor | None
    interceptors: Iterable[Interceptor]
    options: SessionOptions | None
