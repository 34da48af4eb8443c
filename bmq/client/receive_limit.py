# SPDX-License-Identifier: Apache-2.0
"""The account of all received messages in a session.

The problem: the broker decides how much to send, so each place for messages needs a limit, whether its
consumer is slow, has closed, or never existed. A single account for the session covers all places. Each place
adds and removes its messages here.

Beyond the limits reading pauses, and TCP slows the broker down: no message is lost. But a pause also delays
acknowledgements and answers. The delay is right while a consumer can free space, and wrong if no consumer
matches the messages filling the limits: the pause would never end. The session therefore waits a few seconds
for a consumer, and resumes reading. From this time on, the session keeps no further messages without a
consumer. The broker still has dropped messages, unconfirmed, and redelivers them when the queue is closed or
the connection is lost.

The same problem arises if all handlers wait for an acknowledgement: the acknowledgement is behind unread
messages, and no handler takes a message before its arrival. While posts or requests are unanswered and the
application has taken no message for a moment, the limits are doubled, repeatedly, until the answer arrives.
Memory grows only in a proven standstill, and a broker never sends more than the windows of the subscriptions
allow.

Long before the limits, a turn of the event loop has one read. Otherwise the application would find megabytes
of messages that have left the caches and need new memory. Unread messages wait in the kernel's buffers.

Rejected: never pausing for messages without a consumer. A program replacing a consumer would lose the order
of delivery. Also rejected: never pausing while posts are unanswered. A continuously posting session would
have no limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bmq._loop import weakly
from bmq.protocol.client.events import SlowConsumer, SlowConsumerRecovered

if TYPE_CHECKING:
    from bmq.client.connection import Connection

__all__ = ["ReceiveLimit"]

# Duration in seconds of a pause for messages without a matching consumer.
_PATIENCE = 3.0
# Seconds after which a pause is a standstill, if the application has taken no message.
_STANDSTILL = 0.25
# Waiting messages, and bytes, beyond which a turn of the event loop has one read. With fewer bytes, messages
# of 1 MiB would come in more turns, and each turn costs; with more, they would leave the caches.
_AHEAD = 256
_AHEAD_BYTES = 4 * 1024 * 1024


class ReceiveLimit:
    """Counts the messages in a session, and pauses reading from the connection.

    Args:
        connection: connection of the session.

    Attributes:
        messages: number of held messages.
        bytes: bytes of the held messages.
        sheds: whether messages without a consumer are left to the broker while the limits are reached.
        slow: whether the limits are reached; reading may continue for an answer.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._max_messages = connection.options.max_buffered_messages
        self._max_bytes = connection.options.max_buffered_bytes
        self.messages = 0
        self.bytes = 0
        self.sheds = False
        self._unclaimed_messages = 0
        self._unclaimed_bytes = 0
        self.slow = False
        self._patience: asyncio.TimerHandle | None = None
        # Multiple of the limits allowed while an answer is awaited; the timer for the detection of a
        # standstill, and the number of messages in line at the timer's last run.
        self._times = 2
        self._watch: asyncio.TimerHandle | None = None
        self._seen = 0
        self._moving = 0

    @contextmanager
    def moving(self) -> Generator[None]:
        """Move messages between places without resuming and pausing in between."""
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            self._look(True)

    def count(self, messages: int, size: int) -> None:
        """Count messages in the line of a consumer; negative numbers remove messages."""
        held = self.messages = self.messages + messages
        held_bytes = self.bytes = self.bytes + size
        if messages > 0 and (held > _AHEAD or held_bytes > _AHEAD_BYTES):
            channel = self._connection.channel
            if channel is not None:
                channel.rest()
        # Decide the common case, once for each arrival and each taken message, without a call.
        if self.slow or self.sheds or held > self._max_messages or held_bytes > self._max_bytes:
            self._look(messages > 0)

    def count_unclaimed(self, messages: int, size: int) -> None:
        """Count messages without a matching consumer; negative numbers remove messages."""
        self._unclaimed_messages += messages
        self._unclaimed_bytes += size
        self.count(messages, size)

    def has_room(self, messages: int, size: int) -> bool:
        """Whether a queue may keep a number of further messages without a matching consumer."""
        return not self.sheds or not self._exceeds(
            self._unclaimed_messages + messages, self._unclaimed_bytes + size
        )

    def finish(self) -> None:
        """Stop at the end of the session."""
        self._be_patient(False)
        self._end_watch()

    def _look(self, more: bool) -> None:
        """Pause or resume reading; pause if too many messages are here."""
        if self._moving:
            return
        if self.sheds and self._half(self._unclaimed_messages, self._unclaimed_bytes):
            self.sheds = False
        messages, size = self._decisive
        if not self.slow:
            if not self._exceeds(messages, size):
                return
            self.slow = True
            self._read()
            self._connection.publish(SlowConsumer(self.messages, self.bytes))
        elif self._half(messages, size):
            self.slow = False
            self._times = 2
            self._read()
            self._connection.publish(SlowConsumerRecovered(self.messages, self.bytes))
        elif more and self._exceeds(messages, size, self._times):
            self._read()
        self._be_patient(self._in_vain)

    @property
    def _decisive(self) -> tuple[int, int]:
        """The number of messages and bytes relevant for a pause, without shed messages."""
        if self.sheds:
            return self.messages - self._unclaimed_messages, self.bytes - self._unclaimed_bytes
        return self.messages, self.bytes

    def reconsider(self) -> None:
        """Resume or pause reading if the limits are reached: an answer is requested or has arrived."""
        if self.slow:
            self._read()

    def _read(self) -> None:
        """Resume or pause reading."""
        # Answers for callers, or for queues being reopened, arrive behind messages: allow twice the limits.
        core = self._connection.core
        answers = core.awaited or not core.restored or self._times > 2
        paused = self.slow and not (answers and not self._exceeds(*self._decisive, self._times))
        self._connection.set_reading(not paused)
        if not paused:
            self._end_watch()
        elif self._watch is None:
            self._begin_watch()

    def _in_line(self) -> int:
        """Return the number of messages in line; consumers report here only occasionally."""
        return sum(queue._buffered[0] for queue in self._connection.queues.values())

    def _begin_watch(self) -> None:
        self._seen = self._in_line()
        self._watch = self._connection.loop.call_later(_STANDSTILL, weakly(self._look_again))

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look_again(self) -> None:
        """Resume reading if a handler waits for a reply that cannot arrive while reading is paused."""
        self._watch = None
        core = self._connection.core
        if self._in_line() < self._seen or not (len(core.posts) or core.awaited):
            self._begin_watch()
            return
        self._times *= 2
        while self._exceeds(*self._decisive, self._times):
            self._times *= 2
        self._read()

    @property
    def _in_vain(self) -> bool:
        """Whether reading is paused for messages without a matching consumer."""
        return (
            self.slow
            and not self.sheds
            and self._half(self.messages - self._unclaimed_messages, self.bytes - self._unclaimed_bytes)
        )

    def _be_patient(self, wanted: bool) -> None:
        """Start or stop waiting for a consumer."""
        if wanted and self._patience is None:
            self._patience = self._connection.loop.call_later(_PATIENCE, weakly(self._give_up))
        elif not wanted and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        """Resume reading without a consumer, and keep no further unmatched messages."""
        self._patience = None
        if self._in_vain:
            self.sheds = True
            self._look(False)

    def _exceeds(self, messages: int, size: int, times: int = 1) -> bool:
        return messages > times * self._max_messages or size > times * self._max_bytes

    def _half(self, messages: int, size: int) -> bool:
        return messages * 2 <= self._max_messages and size * 2 <= self._max_bytes
