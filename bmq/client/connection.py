# SPDX-License-Identifier: Apache-2.0
"""The connection of a session: a sequence of TCP or TLS channels, with a single core and timer.

The life cycle of the session is the table of :class:`ClientCore`; the connection repeats no state of it.
Its own facts belong to the transport and the event loop, and change independently of the table:

- ``writable``: whether the transport has space. A session in any state may find the transport full.
- ``scheduled``: whether the event loop has a pending callback for the output of this turn.
- ``_awake_until``: the end of busy polling; 0 while no polling callback is pending.

A bug in this library ends the session through the table: the session is CLOSED afterwards, without a flag.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from threading import get_ident
from typing import TYPE_CHECKING

from bmq import _world
from bmq._logging import Log
from bmq._loop import running_loop, weakly
from bmq.client.channel import Channel
from bmq.client.counting import Confirming
from bmq.errors import Error, UsageError
from bmq.protocol.client.core import ClientCore, SessionState
from bmq.protocol.client.handshake import Handshake

if TYPE_CHECKING:
    from bmq.client.driver import Driver
    from bmq.client.trace import Tracer

__all__ = ["Connection"]

logger = Log("bmq.client", later=True)

# A write of this size is not extended by further events. An event has at most a megabyte.
_WRITE = 512 * 1024
# A backlog below this size gives no information about the peer.
_SMALL_BACKLOG = 64 * 1024


class Connection:
    """A core on an event loop: the present channel, the output, and the timer.

    Neither the channel nor the timer keeps the connection alive.

    Args:
        core: the protocol.
        owner: receives the reports.
        busy_poll: seconds for which the event loop stays awake after traffic.

    Attributes:
        core: the protocol.
        loop: the event loop.
        thread: identifier of the event loop's thread.
        epoch: start of the session, in nanoseconds of the monotonic clock.
        writable: whether the transport accepts more data.
        scheduled: whether output is sent at the end of this turn of the event loop.
        confirming: collects confirmations within a turn.
        turn: the loop's time, and nanoseconds since the start of the session, as returned by the latest call
            of :meth:`clock`. A new object in every turn.
        close_reason: reason if this side closed the channel; otherwise "".
    """

    def __init__(self, core: ClientCore, owner: Driver, busy_poll: float) -> None:
        self.core = core
        self.loop = running_loop()
        self.thread = get_ident()
        self.writable = True
        self.scheduled = False
        self.close_reason = ""
        self._owner = owner
        self._busy_poll = busy_poll
        self._channel: Channel | None = None
        self.monotonic_ns = _world.current().monotonic_ns
        self.epoch = self.monotonic_ns()
        self.confirming = Confirming()
        core.before_confirms_change(self.confirming.close)
        self.turn = 0.0, 0
        self._sent_before = 0
        self._received_before = 0
        # Sizes of the backlog and of the data taken by the peer, at the last run of the timer.
        self._backlog = 0
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # Time until which the event loop is kept awake; 0 if it is not.
        self._awake_until = 0.0

    # the clock and the event loop

    def clock(self) -> tuple[float, int]:
        """Return the loop's time, and nanoseconds since the start of the session, for GUIDs.

        Both values stay the same while output waits for the end of a turn of the event loop.
        """
        if self.scheduled:
            return self.turn
        return self.loop.time(), self.monotonic_ns() - self.epoch

    def check_loop(self) -> None:
        """Raise unless the call comes from the session's event loop.

        Raises:
            UsageError: the call comes from another loop, or from outside any loop.
        """
        try:
            if get_running_loop() is self.loop:
                return
        except RuntimeError:
            pass
        raise UsageError(
            "a session, its queues and messages belong to the event loop the session was started in: use "
            "loop.call_soon_threadsafe() or asyncio.run_coroutine_threadsafe() in other threads, and "
            "bmq.connect() again in another loop"
        )

    # transmitting

    def transmit_soon(self) -> None:
        """Send the collected output at the end of this turn of the event loop."""
        if not self.scheduled:
            self.turn = self.clock()
            self.scheduled = True
            self.loop.call_soon(self._transmit_scheduled)

    def _transmit_scheduled(self) -> None:
        self.scheduled = False
        self.transmit()
        if self.confirming.open is not None:
            self.confirming.close()  # nothing could be sent

    def transmit(self) -> None:
        """Pass on the core's reports, send the output, and start the timer."""
        core = self.core
        try:
            self._hand_over()
            channel = self._channel  # the reports may have closed it
            if channel is not None:
                # Data not accepted by the transport now stays in the core, without a second copy of posts.
                now = self.loop.time()
                while self.writable and (data := core.data_to_send(now, _WRITE)):
                    if channel.write(data) < _WRITE:
                        break
                if self._busy_poll:
                    self._stay_awake()
            deadline = core.next_deadline()
            if deadline is not None and (self._timer is None or deadline < self._timer_at or core.relaxed):
                core.relaxed = False
                self._arm(deadline)
        except Exception as error:
            self._crash(error)

    def _hand_over(self) -> None:
        """Pass the core's reports to the owner."""
        core, handle = self.core, self._owner.handle
        while events := core.events():
            for event in events:
                handle(event)

    def _arm(self, deadline: float) -> None:
        """Run the timer at a deadline, earlier than before, or later after an answer to a heartbeat."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.loop.call_at(deadline, weakly(self.on_timer))

    def on_timer(self) -> None:
        """Perform due actions."""
        self._timer = None
        now = self.loop.time()
        try:
            if self._has_written():
                self.core.written(now)
            self.core.tick(now)
        except Exception as error:
            self._crash(error)
        self.transmit()

    def _has_written(self) -> bool:
        """Whether the peer's kernel has taken part of a backlog since the last call."""
        waiting = self._channel.backlog if self._channel is not None else 0
        taken = self.bytes_sent - waiting
        # The kernel of a hung process acknowledges small writes too, while its buffer has space.
        moved = self._backlog > _SMALL_BACKLOG and taken > self._taken
        self._backlog, self._taken = waiting, taken
        return moved

    def _stay_awake(self) -> None:
        """Keep the event loop awake for a while: a loop with a scheduled callback does not sleep."""
        # Not the loop's own time: uvloop's clock has a resolution of a millisecond, and stands still during
        # callbacks.
        if not self._awake_until:
            self.loop.call_soon(self._poll)
        self._awake_until = _world.monotonic() + self._busy_poll

    def _poll(self) -> None:
        if self._channel is not None and _world.monotonic() < self._awake_until:
            self.loop.call_soon(self._poll)
        else:
            self._awake_until = 0.0

    def _crash(self, error: Exception) -> None:
        """End the session because of a bug in this library; otherwise callers might wait forever."""
        logger.critical("internal error; the session ends", exc_info=error)
        self._owner.dialer.stop()
        self.core.give_up(f"internal error: {error!r}", self.loop.time())
        for event in self.core.events():
            try:
                self._owner.handle(event)
            except Exception:
                logger.critical("internal error, while ending the session", exc_info=True)

    # the channel (see Receiver)

    def adopt(self, channel: Channel, handshake: Handshake) -> None:
        """Use a negotiated channel from now on.

        Raises:
            SessionClosed: the session is over.
        """
        self.core.channel_opened(handshake, self.loop.time())
        self._channel = channel
        channel.hand_over(self)
        self.transmit()

    def channel_data(self, channel: Channel, data: bytes | memoryview) -> None:
        """Process received bytes."""
        if channel is self._channel:
            try:
                core, now = self.core, self.loop.time()
                quiet = core.receive(data, now)
                framer = core.framer
                if framer.bulky is not channel.filling:
                    channel.fill(framer.space if framer.bulky else None)
                if quiet:
                    self._hand_over()
                    if self._busy_poll:
                        self._stay_awake()
                    return
            except Exception as error:
                self._crash(error)
            self.transmit()

    def channel_lost(self, channel: Channel, error: Exception | None) -> None:
        """Process the loss of the channel."""
        if channel is self._channel:
            reason = (
                "the broker closed the connection" if error is None else str(error) or type(error).__name__
            )
            self._detach(self.close_reason or reason)
            self._owner.dialer.channel_lost()
            self._owner.send_window.wake()  # posts are kept for the next connection

    def channel_writable(self, channel: Channel, writable: bool) -> None:
        """Note that the transport's buffer is full, or has space again."""
        if channel is self._channel:
            self.writable = writable
            if writable:
                self.transmit()
                self._owner.send_window.wake()

    def _detach(self, reason: str) -> None:
        self._sent_before, self._received_before = self.bytes_sent, self.bytes_received
        self._backlog = 0
        self._channel = None
        self.writable = True
        self.close_reason = ""
        self.core.channel_closed(reason, self.loop.time())
        self.transmit()

    def trace(self, tracer: Tracer | None) -> None:
        """Log the events of the present channel from now on; None for no trace."""
        if self._channel is not None:
            self._channel.tracer = tracer

    def set_reading(self, reading: bool) -> None:
        """Pause or resume reading."""
        self.core.pause_reading(not reading, self.loop.time())
        self.transmit_soon()
        if self._channel is not None:
            self._channel.set_reading(reading)

    def rest(self) -> None:
        """Read no further bytes in this turn of the event loop."""
        if self._channel is not None:
            self._channel.rest()

    def close_channel(self, error: Error | None) -> None:
        """Close the channel: at once after an error, otherwise after all written data is sent."""
        if self._channel is None:
            return
        if error is None:
            self._channel.close()
        else:
            self.close_reason = str(error)
            self._channel.abort()

    # the end

    async def disconnect(self, deadline: float) -> None:
        """Disconnect from the broker, and wait until the channel is gone."""
        done: asyncio.Future[None] = self.loop.create_future()
        channel = self._channel
        self.core.stop(done, self.loop.time(), deadline)
        self.transmit()
        await done
        if channel is not None:
            await channel.wait_closed()

    def give_up(self, reason: str) -> None:
        """End the session at once, unless it has already ended; see :meth:`ClientCore.give_up`."""
        if self.core.state is not SessionState.CLOSED:
            self.core.give_up(reason, self.loop.time())
            self.transmit()

    def revive(self) -> None:
        """Continue after garbage collection, which clears weak references before it calls finalizers."""
        if self._channel is not None:
            self._channel.hand_over(self)
        if self._timer is not None:
            self._arm(self._timer_at)

    def finish(self) -> None:
        """Clean up after the end of the session: no timer or callback stays in the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._channel is not None:
            self._channel.close()

    def abort(self) -> None:
        """Close the channel without waiting for anything."""
        if self._channel is not None:
            self._channel.abort()

    # figures

    def fileno(self) -> int:
        """The file descriptor of the connection; -1 without a connection."""
        return self._channel.fileno() if self._channel else -1

    @property
    def write_buffer_size(self) -> int:
        """Number of bytes not yet accepted by the operating system."""
        return self._channel.write_buffer_size if self._channel else 0

    @property
    def bytes_sent(self) -> int:
        """Number of bytes sent, on all channels."""
        return self._sent_before + (self._channel.bytes_sent if self._channel else 0)

    @property
    def bytes_received(self) -> int:
        """Number of bytes received, on all channels."""
        return self._received_before + (self._channel.bytes_received if self._channel else 0)
