# SPDX-License-Identifier: Apache-2.0
"""A further session beside the application's, for messages that must not wait behind the application's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bmq.errors import ConnectionFailed
from bmq.protocol.client.events import CloseChannel

if TYPE_CHECKING:
    from bmq.client.session import Session

__all__ = ["connect_beside", "drop_connection", "give_up"]


async def connect_beside(session: Session) -> Session:
    """Connect a further session with the addresses and options of a session, without any interceptors.

    Raises:
        ConnectionFailed, NegotiationError, AuthenticationError: as for :class:`bmq.connect`.
    """
    options = replace(session.options, log_stats_every=0.0, busy_poll=0.0)
    beside = session._again(options, interceptors=None)
    await beside._driver.connect()
    return beside


def drop_connection(session: Session, why: str) -> None:
    """Drop the connection, if any, so that the session reconnects."""
    session._driver.handle(CloseChannel(ConnectionFailed(why)))


def give_up(session: Session) -> None:
    """End a session at once, unless already ended."""
    session._driver.give_up()
