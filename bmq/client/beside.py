# SPDX-License-Identifier: Apache-2.0
"""A further session beside the application's, for messages that must not wait behind the application's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from bmq.errors import ConnectionFailed
from bmq.protocol.client.events import CloseChannel

if TYPE_CHECKING:
    from bmq.client.session import Session
    from bmq.engine.driver import Driver

__all__ = ["connect_beside", "drop_connection", "give_up"]

_driver_of: Callable[[Session], Driver[Any]] = attrgetter("_driver")
_maker_of: Callable[[Session], Callable[..., Session]] = attrgetter("_again")


async def connect_beside(session: Session) -> Session:
    """Connect a further session with the addresses and options of a session, without any interceptors.

    Raises:
        ConnectionFailed, NegotiationError, AuthenticationError: as for :class:`bmq.connect`.
    """
    options = replace(session.options, log_stats_every=0.0, busy_poll=0.0)
    beside = _maker_of(session)(options, interceptors=None)
    await _driver_of(beside).connect()
    return beside


def drop_connection(session: Session, why: str) -> None:
    """Drop the connection, if any, so that the session reconnects."""
    _driver_of(session).handle(CloseChannel(ConnectionFailed(why)))


def give_up(session: Session) -> None:
    """End a session at once, unless already ended."""
    _driver_of(session).give_up()
