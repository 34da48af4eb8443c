# SPDX-License-Identifier: Apache-2.0
"""The account of all received messages that a session holds.

The problem: a broker decides what it sends, so every place that keeps a message needs a bound, whoever the
message is for: a consumer that is slow, one that has left, one that never was. One account for the whole
session knows all of them. A place that keeps messages adds them here and takes them off again.

Beyond the limits reading pauses, and TCP holds the broker back: nothing is lost. But paused reading stops
acknowledgements and answers too. That is right while a consumer can make room, and wrong where no consumer
wants the messages that take the room: the pause would never end. So the session waits a few seconds for a
consumer, and then reads on. From then on it keeps no more messages without a consumer. The broker still has
them, unconfirmed, and delivers them again when their queue is closed or the connection is lost.

The same holds where every handler waits for an acknowledgement: it comes behind messages that are not read,
and no handler takes a message before it comes. So while posts or requests have no answer, and the application
has taken nothing for a moment, the limits are doubled, again and again, until the answer is there. Memory
grows in a proven standstill only, and a broker sends no more than the windows of the subscriptions allow.

Rejected: never to pause for messages without a consumer. A program that closes one consumer and begins the
next one would lose the order of delivery. Never to pause while posts have no answer: a session that posts all
the time would have no limits.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager

from bmq.engine.connection import Connection
from bmq.engine.options import SessionOptions
from bmq.protocol.client.events import SessionEvent, SlowConsumer, SlowConsumerRecovered

__all__ = ["Backlog"]

# How long reading pauses for messages that no consumer wants, in seconds.
_PATIENCE = 3.0
# After how long a pause is a standstill, in seconds, if the application has taken no message.
_STANDSTILL = 0.25


class Backlog:
    """What a session holds for the application, and whether its connection is read.

    Args:
        connection: the session's connection.
        options: the limits.
        publish: hands an event to the application.
        in_line: returns how many messages no consumer has taken; consumers count here only now and then.

    Attributes:
        messages: messages held.
        bytes: bytes of them.
        sheds: whether messages without a consumer are left to the broker, as far as the limits are reached.
    """

    def __init__(
        self,
        connection: Connection,
        options: SessionOptions,
        publish: Callable[[SessionEvent], None],
        in_line: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._max_messages = options.max_buffered_messages
        self._max_bytes = options.max_buffered_bytes
        self._publish = publish
        self._in_line = in_line
        self.messages = 0
        self.bytes = 0
        self.sheds = False
        self._unclaimed_messages = 0
        self._unclaimed_bytes = 0
        self._slow = False
        self._patience: asyncio.TimerHandle | None = None
        # How many times the limits may be held while an answer is awaited; the timer that looks for a
        # standstill, and the number of messages in line when it looked last.
        self._times = 2
        self._watch: asyncio.TimerHandle | None = None
        self._seen = 0
        self._moving = 0
        self._expected = 0

    @contextmanager
    def moving(self) -> Generator[None]:
        """Move messages from one place to another: reading does not resume and pause again meanwhile."""
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            self._look(True)

    def count(self, messages: int, size: int) -> None:
        """Count messages in the line of a consumer; negative numbers take them off."""
        held = self.messages = self.messages + messages
        held_bytes = self.bytes = self.bytes + size
        # The common case, once for each arrival and each message taken, is decided without a call.
        if self._slow or self.sheds or held > self._max_messages or held_bytes > self._max_bytes:
            self._look(messages > 0)

    def count_unclaimed(self, messages: int, size: int) -> None:
        """Count messages that no consumer wants; negative numbers take them off."""
        self._unclaimed_messages += messages
        self._unclaimed_bytes += size
        self.count(messages, size)

    def has_room(self, messages: int, size: int) -> bool:
        """Whether a queue may keep that many more messages that no consumer wants."""
        return not self.sheds or not self._exceeds(
            self._unclaimed_messages + messages, self._unclaimed_bytes + size
        )

    def expect(self, answer: asyncio.Future[None]) -> None:
        """A caller waits for an answer, which comes behind messages: read up to twice as much."""
        self._expected += 1
        answer.add_done_callback(self._answered)
        if self._slow:
            self._read()

    def _answered(self, _: asyncio.Future[None]) -> None:
        self._expected -= 1
        if self._slow and not self._expected:
            self._read()

    def restored(self) -> None:
        """Every queue is reopened: no more answers have to be read for that."""
        if self._slow:
            self._read()

    def finish(self) -> None:
        """The session is over."""
        self._be_patient(False)
        self._end_watch()

    def _look(self, more: bool) -> None:
        """Pause or resume reading; pause when there are too many messages."""
        if self._moving:
            return
        if self.sheds and self._half(self._unclaimed_messages, self._unclaimed_bytes):
            self.sheds = False
        messages, size = self._decisive
        if not self._slow:
            if not self._exceeds(messages, size):
                return
            self._slow = True
            self._read()
            self._publish(SlowConsumer(self.messages, self.bytes))
        elif self._half(messages, size):
            self._slow = False
            self._times = 2
            self._read()
            self._publish(SlowConsumerRecovered(self.messages, self.bytes))
        elif more and self._exceeds(messages, size, self._times):
            self._read()
        self._be_patient(self._in_vain)

    @property
    def _decisive(self) -> tuple[int, int]:
        """How many messages and bytes decide whether reading pauses: not what is kept no more of."""
        if self.sheds:
            return self.messages - self._unclaimed_messages, self.bytes - self._unclaimed_bytes
        return self.messages, self.bytes

    def _read(self) -> None:
        """Read from the connection, or pause."""
        # The answers that callers, or queues being reopened, wait for come behind messages.
        answers = self._expected or not self._connection.core.restored or self._times > 2
        paused = self._slow and not (answers and not self._exceeds(*self._decisive, self._times))
        self._connection.set_reading(not paused)
        if not paused:
            self._end_watch()
        elif self._watch is None:
            self._begin_watch()

    def _begin_watch(self) -> None:
        self._seen = self._in_line()
        self._watch = self._connection.loop.call_later(_STANDSTILL, _look_again, weakref.ref[Backlog](self))

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def look_again(self) -> None:
        """Reading has been paused for a moment: read on if nothing can move before an answer comes."""
        self._watch = None
        core = self._connection.core
        if self._in_line() < self._seen or not (len(core.posts) or self._expected):
            self._begin_watch()
            return
        self._times *= 2
        while self._exceeds(*self._decisive, self._times):
            self._times *= 2
        self._read()

    @property
    def _in_vain(self) -> bool:
        """Whether reading has paused for messages that no consumer wants."""
        return (
            self._slow
            and not self.sheds
            and self._half(self.messages - self._unclaimed_messages, self.bytes - self._unclaimed_bytes)
        )

    def _be_patient(self, wanted: bool) -> None:
        """Wait for a consumer from now on, or not any more."""
        if wanted and self._patience is None:
            self._patience = self._connection.loop.call_later(_PATIENCE, _give_up, weakref.ref[Backlog](self))
        elif not wanted and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def give_up(self) -> None:
        """No consumer came: read on, and keep no more messages without one."""
        self._patience = None
        if self._in_vain:
            self.sheds = True
            self._look(False)

    def _exceeds(self, messages: int, size: int, times: int = 1) -> bool:
        return messages > times * self._max_messages or size > times * self._max_bytes

    def _half(self, messages: int, size: int) -> bool:
        return messages * 2 <= self._max_messages and size * 2 <= self._max_bytes


def _look_again(backlog: weakref.ref[Backlog]) -> None:
    if (alive := backlog()) is not None:
        alive.look_again()


def _give_up(backlog: weakref.ref[Backlog]) -> None:
    if (alive := backlog()) is not None:
        alive.give_up()
