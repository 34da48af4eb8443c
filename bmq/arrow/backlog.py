# SPDX-License-Identifier: Apache-2.0
"""The messages in some queues at the start of a read, which ends with them although producers go on."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from bmq import admin
from bmq._logging import Log
from bmq.admin import Admin
from bmq.arrow.columns import Array
from bmq.client.queue import Queue
from bmq.errors import Error
from bmq.protocol.client.queue import QueueState
from bmq.wire.guid import guid_to_text
from bmq.wire.uri import QueueUri

logger = Log("bmq.arrow")

#: Timeout of a question, in seconds.
ANSWER_TIMEOUT = 2.0
# Seconds between two comparisons of a queue's last messages with the broker's list; number of these messages,
# and of listed messages.
_PERIOD = 1.0
_RECENT = 10_000
_LISTED = 1000

#: Prepares a connection for admin commands.
ConnectAdmin = Callable[[], admin.connect]


@asynccontextmanager
async def asking(connect: ConnectAdmin) -> AsyncGenerator[Admin]:
    """Connect for admin commands, with a short timeout for the connection and all commands together.

    Raises:
        Error: the broker cannot be reached, or does not answer.
        TimeoutError: no answer in time.
    """
    async with asyncio.timeout(ANSWER_TIMEOUT), connect() as asked:
        yield asked


class InitialBacklog:
    """Counts the messages of the start.

    A read ends as soon as each queue has delivered as many messages as the broker counted at the start. Fewer
    of them arrive if a subscription selects some, or if there are other readers. So the read also ends once a
    message has arrived that the broker lists behind the counted ones: a queue delivers in order. Without
    figures of the broker, silence alone is the end.

    Args:
        connect: prepares a connection for admin commands.
        queues: URIs of the queues; for a fanout queue with the application.
        selects: whether the subscriptions select some of the messages.
    """

    def __init__(self, connect: ConnectAdmin, queues: Sequence[str], *, selects: bool) -> None:
        self._connect = connect
        self._selects = selects
        # Messages at the start, by queue; None before the first question.
        self._counted: dict[str, int] | None = None
        self._delivered = dict.fromkeys(queues, 0)
        self._confirmed = dict.fromkeys(queues, 0)
        self._recent: dict[str, deque[bytes]] = {uri: deque(maxlen=_RECENT) for uri in queues}
        self._passed: set[str] = set()
        self._next = 0.0

    def arrived(self, uri: str, guids: Array) -> None:
        """Note delivered messages."""
        if self._counted is not None:
            self._delivered[uri] += len(guids)
            self._recent[uri].extend(guids[-_RECENT:].tolist())

    def confirmed(self, uri: str, count: int) -> None:
        """Note confirmed messages."""
        self._confirmed[uri] += count

    def taken(self, reconnected: bool) -> bool:
        """Whether all messages of the start have been delivered; a reconnect delivers messages again."""
        return self._counted is not None and not reconnected and not self._left()

    def _left(self) -> list[str]:
        assert self._counted is not None
        return [
            uri
            for uri, delivered in self._delivered.items()
            if uri not in self._passed and delivered < self._counted.get(uri, math.inf)
        ]

    def report(self, reconnected: bool) -> None:
        """Log which messages of the start were not delivered before the silence that ends the read."""
        counted = self._counted or {}
        for uri in self._left() if counted and not reconnected else ():
            if uri in counted:
                logger.log(
                    logging.INFO if self._selects else logging.WARNING,
                    "%s: the broker counted %d messages at the start, and delivered %d before it was silent. "
                    "The rest is not selected, or other consumers have it, or it waits behind a returned "
                    "message that no consumer selects",
                    uri,
                    counted[uri],
                    self._delivered[uri],
                )

    async def ask(self, wait: float) -> None:
        """Count the messages at the start; later look for messages behind them, once a second.

        Args:
            wait: seconds from the count to the first look.
        """
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return
        try:
            if self._counted is None:
                self._next, self._counted = now + wait, {}
                self._counted = await self._depths()
            else:
                self._next = now + _PERIOD
                await self._look()
        except (Error, TimeoutError) as error:
            logger.info("the broker does not count the messages of the queues: %r", error)

    async def _depths(self) -> dict[str, int]:
        """Return the number of unconfirmed messages in each queue.

        Queues that keep no messages (broadcast) are omitted, and queues of other nodes of a cluster: a node
        that only forwards a queue does not know its messages.
        """
        found: dict[str, int] = {}
        async with asking(self._connect) as asked:
            for uri in self._delivered:
                known = await asked.queue(uri).internals()
                if known.mode not in ("priority", "fanout"):
                    continue
                app = QueueUri.parse(uri).app_id
                of_app = [each.messages for each in known.depth.apps if each.app_id == app]
                found[uri] = of_app[0] if of_app else known.depth.messages
        return found

    async def _look(self) -> None:
        """Find the queues that have delivered a message behind the counted ones."""
        assert self._counted is not None
        async with asking(self._connect) as asked:
            for uri in self._left():
                if uri not in self._counted:
                    continue
                # Messages behind the counted ones have moved up by the number of confirmed ones.
                offset = max(0, self._counted[uri] - self._confirmed[uri])
                newer = await asked.queue(uri).messages(offset, _LISTED)
                recent = set(map(guid_to_text, self._recent[uri]))
                if any(each.guid in recent for each in newer.messages):
                    self._passed.add(uri)


class Drained:
    """Decides whether queues are drained after a time without a message.

    Time without a connection does not count. A restored connection delivers messages only after its queues
    are open again. So a wait during which a connection was restored does not count either.

    Args:
        queues: queues to read.
    """

    def __init__(self, *queues: Queue) -> None:
        self._queues = queues
        self._first = self._reconnects = self._restored()

    @property
    def reconnected(self) -> bool:
        """Whether a connection was ever restored, so that messages may have been delivered twice."""
        return self._restored() > self._first

    def _restored(self) -> int:
        sessions = dict.fromkeys(queue.session for queue in self._queues)
        return sum(session.stats().reconnects for session in sessions)

    def after_silence(self) -> bool:
        """Return whether the wait that has just ended without a message counts; otherwise wait again."""
        if any(queue.state is not QueueState.OPEN for queue in self._queues):
            return False
        before, self._reconnects = self._reconnects, self._restored()
        return before == self._reconnects
