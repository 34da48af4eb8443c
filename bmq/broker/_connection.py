# SPDX-License-Identifier: Apache-2.0
"""One connection of the embedded broker: bytes between a transport and a session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from bmq._logging import Log
from bmq.broker._output import BrokerOutput
from bmq.broker._session import BrokerSession

if TYPE_CHECKING:
    from bmq.broker._server import Broker

__all__ = ["BrokerConnection"]

_log = Log("bmq.broker")

#: Bytes read from one client in a turn of the event loop before other clients are served. An event loop may
#: read a busy socket many times in a turn: uvloop up to 32 times, 8 MB in all.
_READ_AT_ONCE = 256 * 1024
#: Reads of at most this many bytes have emptied the socket: not counted.
_SMALL = 32 * 1024
#: Seconds before the answer to wrong credentials.
_REFUSAL_PAUSE = 0.25


class BrokerConnection(asyncio.Protocol):
    """A client's connection.

    All output of one turn of the event loop is written at once, or in pieces of a megabyte. While a client
    does not read its data, the broker does not read from the client, and sends no messages. The broker reads
    a busy client in pieces of a quarter of a megabyte, and delivers each piece before the next read:
    otherwise queues would grow by megabytes before a consumer receives anything.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scheduler = broker._scheduler
        self.output = BrokerOutput(broker._settings.high_water, self._wake)
        self.session: BrokerSession | None = None
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        # Whether the answer to wrong credentials is held back for a while.
        self._withheld = False
        # Reading is paused by tests of failures (not _reading; _delayed at first), while the client does not
        # read its data (not _listening), while input waits in the session, and for the rest of a turn of the
        # event loop after much input (_taken).
        self._reading = True
        self._delayed = False
        self._listening = True
        self._paused = False
        # Bytes read in this turn of the event loop.
        self._taken = 0
        self._deadline: float | None = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a session."""
        self.transport = cast("asyncio.Transport", transport)
        high = self._broker._settings.high_water
        self.transport.set_write_buffer_limits(high=high, low=high // 4)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else "a client"
        self.session = self._broker._begin(self)
        delay = self._broker.faults.negotiation_delay
        if delay:
            self._delayed = True
            self._scheduler.do_later(delay, self._end_delay)
        self._broker.faults.apply_to(self)
        self._note_deadline(self.session)
        _log.info("%s connected", self.peer)

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the session."""
        session = self.session
        if session is None:
            return  # dropped
        session.receive(data, self._scheduler.clock())
        self._after_work(session)
        if len(data) > _SMALL:
            if not self._taken:
                self._scheduler.next_turn(self._end_turn)
            self._taken += len(data)
            self._update_reading()

    def _end_delay(self) -> None:
        self._delayed = False
        self._update_reading()

    def _end_turn(self) -> None:
        """Read again, after other clients were served."""
        self._taken = 0
        self._update_reading()

    def _note_deadline(self, session: BrokerSession) -> None:
        deadline = session.next_deadline()
        if deadline != self._deadline:
            self._deadline = deadline
            self._scheduler.timeouts.set(self, deadline)
        self._scheduler.update()

    def tick(self, now: float) -> None:
        """Do the due work of the session."""
        session = self.session
        assert session is not None
        session.tick(now)
        self._deadline = None
        self._after_work(session)

    def _after_work(self, session: BrokerSession) -> None:
        self._note_deadline(session)
        if session.closed and not self._withheld:
            if session.refused:
                # A wrong guess costs time. After the answer the connection ends.
                self._withheld = True
                host = self.peer.rpartition(":")[0]
                session.node.refusals.warning(host, "%s sent wrong credentials", self.peer)
                self._scheduler.do_later(_REFUSAL_PAUSE, self._refuse)
            else:
                self.close()
        elif session.events_left == 0 and not session.waiting:
            self.cut()
        elif session.waiting:
            self._update_reading()
            self._scheduler.soon(self._go_on)

    def _go_on(self) -> None:
        """Continue with waiting input after other clients, if the client reads the answers."""
        session = self.session
        if session is not None and session.waiting and self._listening:
            session.resume(self._scheduler.clock())
            self._after_work(session)
            self._update_reading()

    def _refuse(self) -> None:
        """Answer wrong credentials, and close."""
        self._withheld = False
        self.close()

    def pause_writing(self) -> None:
        """The client does not read: send no messages, and read nothing, until the client reads again."""
        assert self.transport is not None
        self.output.accept(False)
        self._listening = False
        self._update_reading()
        _log.info("%s does not read its data; waiting", self.peer)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._listening = True
        self._update_reading()
        if self.session is not None and self.session.waiting:
            self._scheduler.soon(self._go_on)
        self.output.accept(True)
        self._broker._deliver()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session, unless :meth:`drop` has ended it."""
        session, self.session = self.session, None
        if session is None:
            return
        _log.info("%s disconnected%s", self.peer, f": {exc}" if exc else "")
        self._broker._end(self)
        session.channel_down(self._scheduler.clock())
        self._scheduler.update()
        self.output.discard()

    def read(self, reading: bool) -> None:
        """Start or stop reading from the client, for tests of failures."""
        self._reading = reading
        self._update_reading()

    def _update_reading(self) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        waiting = self.session is not None and self.session.waiting
        sated = self._taken > _READ_AT_ONCE
        paused = waiting or sated or self._delayed or not (self._reading and self._listening)
        if paused is not self._paused:
            self._paused = paused
            if paused:
                transport.pause_reading()
            else:
                transport.resume_reading()

    # ---- output

    def _wake(self) -> None:
        self._scheduler.flush_later(self)

    def flush(self) -> None:
        """Write the pending output."""
        transport, output = self.transport, self.output
        if transport is None or transport.is_closing() or self._withheld:
            return
        for data in output.pieces():
            transport.write(data)
        if not output.accepting and self._listening and transport.get_write_buffer_size() < output.high_water:
            output.accept(True)
            self._broker._deliver()

    def cut(self) -> None:
        """Abort the connection; unwritten output is lost."""
        if self.transport is not None:
            self.transport.abort()

    def drop(self) -> None:
        """Abort the connection, and end the session without waiting for the transport."""
        self.cut()
        self.connection_lost(None)

    def close(self) -> None:
        """Write the pending output, then close."""
        self.flush()
        if self.transport is not None:
            self.transport.close()
