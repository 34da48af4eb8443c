# SPDX-License-Identifier: Apache-2.0
"""A connection up to the end of the negotiation. A session may have several candidates at a time.

The kernel of a hung broker still accepts connections: a client with several addresses negotiates with the
next address concurrently. The session's core takes no part: the dialer hands the first finished candidate to
:meth:`bmq.protocol.client.core.ClientCore.channel_opened`, with the events behind the broker's answer, and
closes the other candidates.
"""

from __future__ import annotations

from bmq.errors import Error
from bmq.protocol.client.handshake import Credentials, Handshake, HandshakeState, not_a_broker
from bmq.protocol.framing import Framer
from bmq.wire.constants import EventType
from bmq.wire.control import ClientIdentity
from bmq.wire.event import HEARTBEAT_RSP, Event

__all__ = ["Greeting"]


# Maximum number of distinct skipped elements to report.
_MOST_SKIPPED = 100


class Greeting:
    """Authentication and negotiation on one connection: bytes in, bytes out.

    Args:
        identity: client's identity in the negotiation.
        max_incoming_event: largest event accepted, in bytes.

    Attributes:
        handshake: state and results of the handshake.
        framer: splits the stream into events; belongs to the connection.
        error: failure of the handshake, or None.
        rest: events after the broker's answer.
        skipped: elements sent only by newer brokers, each once.
    """

    __slots__ = ("error", "framer", "handshake", "rest", "skipped")

    def __init__(self, identity: ClientIdentity, max_incoming_event: int) -> None:
        self.handshake = Handshake(identity)
        self.framer = Framer(max_incoming_event)
        self.error: Error | None = None
        self.rest: list[Event] = []
        self.skipped: dict[str, None] = {}

    @property
    def done(self) -> bool:
        """Whether the connection is negotiated."""
        return self.error is None and self.handshake.state is HandshakeState.DONE

    def begin(self, credentials: Credentials | None) -> bytes:
        """Return the event to send first."""
        return self.handshake.connected(credentials)

    def receive(self, data: bytes) -> bytes:
        """Process bytes from the broker; return bytes to send. Never raises: see :attr:`error`."""
        if self.error is not None:
            return b""
        events, broken = self.framer.feed(data)
        answers = b""
        for event in events:
            if self.handshake.state is HandshakeState.DONE:
                self.rest.append(event)
            elif event.type == EventType.HEARTBEAT_REQ:
                answers = answers or HEARTBEAT_RSP
            else:
                try:
                    answers += self.handshake.receive(event, self._notice)
                except Error as error:
                    self.error = error
                self.error = self.error or self.handshake.error
                if self.error is not None:
                    return b""
        if broken is not None and not self.done:
            self.error = not_a_broker(broken)
        return answers

    def _notice(self, what: str) -> None:
        if len(self.skipped) < _MOST_SKIPPED:
            self.skipped[what] = None
