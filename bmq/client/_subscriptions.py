# SPDX-License-Identifier: Apache-2.0
"""The subscriptions of a queue: consumers, state at the broker, and unclaimed messages."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from bmq._logging import Log
from bmq._loop import weakly
from bmq._turn import look_at
from bmq.client._definition import Definition, Numbered, properties_of
from bmq.client.buffer import ConsumerInput, ConsumerState, InHand, ReceiveBuffer
from bmq.client.counting import size_of
from bmq.errors import ConfigureQueueError, QueueClosed, RequestTimeout, UsageError
from bmq.protocol.client.events import UnclaimedMessages
from bmq.protocol.client.ports import Arrival, QueueOwner
from bmq.protocol.client.subscription import SubscriptionCore
from bmq.wire.push import DATA, GUID, Push

if TYPE_CHECKING:
    from bmq.client.queue import Queue
    from bmq.subscriptions import Complement

__all__ = ["Subscriptions"]

logger = Log("bmq.client", later=True)

_I = ConsumerInput
_OPENING, _OPEN = ConsumerState.OPENING, ConsumerState.OPEN
_number = itemgetter(0)

# Unclaimed messages are reported after this time in seconds: not during the replacement of a consumer, nor
# during a shutdown.
_MENTION_UNCLAIMED_AFTER = 3.0


# The discarding consumers of the process, in all sessions and threads, with the broker and the queue.
_discarding: weakref.WeakKeyDictionary[ReceiveBuffer, tuple[str, str]] = weakref.WeakKeyDictionary()
_discarding_lock = threading.Lock()


class Subscriptions(QueueOwner):
    """The started consumers of one queue.

    The protocol receives a single set of subscriptions. :meth:`configured` processes the result, and is the
    only place to undo failed changes.

    Attributes:
        members: started consumers, including paused consumers, in the order of the start.
        unclaimed: messages without a matching consumer in the queue. They are appended on arrival, and sorted
            into the order of delivery on taking. Sorting on arrival would move all messages for each event.
        unclaimed_bytes: bytes of these messages.
        in_hand: messages in the hands of handlers.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._connection = connection = queue._connection
        self.members: dict[ReceiveBuffer, None] = {}
        self._receive_limit = connection.receive_limit
        self.unclaimed: list[Numbered] = []
        self.unclaimed_bytes = 0
        self.in_hand = InHand()
        self._mention: asyncio.TimerHandle | None = None

    @property
    def active(self) -> list[ReceiveBuffer]:
        """The consumers with an accepted or requested subscription, in the order of the start."""
        return [buffer for buffer in self.members if buffer.state is _OPEN or buffer.state is _OPENING]

    @property
    def committed(self) -> list[ReceiveBuffer]:
        """The consumers with an accepted subscription."""
        has = _definitions(self._queue._core.subscriptions.committed)
        return [buffer for buffer in self.active if buffer in has]

    def wanted(self) -> list[SubscriptionCore]:
        """The intended subscriptions at the broker."""
        return [each for buffer in self.active for each in buffer.definition.subscriptions]

    # changes

    def add(self, buffer: ReceiveBuffer) -> None:
        """Add a consumer before the queue is opened.

        Raises:
            UsageError: the consumer and another one would confirm each other's messages.
        """
        try:
            self._check_discarding(buffer, buffer.definition)
        except UsageError:
            for each in self.members:
                each.fire(_I.SHUT)
            raise
        buffer.fire(_I.BEGIN)
        self.members[buffer] = None

    def begin(self, buffer: ReceiveBuffer) -> asyncio.Future[None]:
        """Add a consumer; return a future for the broker's answer.

        Raises:
            QueueClosed, SessionClosed: no consumers can be added any more.
            UsageError: the consumer and another one would confirm each other's messages.
        """
        self._queue._check_open()
        if buffer.over:
            raise QueueClosed(f"{buffer.consumer!r} is closed; subscribe again")
        self._check_discarding(buffer, buffer.definition)
        self.members.pop(buffer, None)
        buffer.fire(_I.BEGIN)
        self.members[buffer] = None
        resting = self._rest(buffer)
        try:
            asked = self._ask()
        except QueueClosed:
            self._drop(buffer, _I.FAILED)
            raise
        with self._receive_limit.moving():
            if resting is not None:
                self.place(resting.take_back())
            self._place_unclaimed()
        return asked

    def _check_discarding(self, buffer: ReceiveBuffer, definition: Definition) -> None:
        """Check that no other discarding consumer of this process wants other messages of the application.

        Raises:
            UsageError: each of the two would confirm the messages of the other.
        """
        if definition.discard is None:
            return
        uri = str(self._queue._parsed_uri)
        key = self._connection.dialer.target, uri
        selected = set(definition.discard.wanted)
        with _discarding_lock:
            for other, where in _discarding.items():
                theirs = None if other is buffer else other.definition.discard
                differ = theirs is not None and set(theirs.wanted) != selected
                # A killed process of a simulation is disowned.
                if where == key and differ and other.active and not other.queue._connection.disowned:
                    raise UsageError(
                        f"two consumers of {uri} with discard_unmatched=True would confirm each other's "
                        f"messages unseen, because their filters differ: {_shown(theirs)}, and "
                        f"{_shown(definition.discard)}. Use the same filter, different appIds, or "
                        "discard_unmatched=False"
                    )
            _discarding[buffer] = key

    def _drop(self, buffer: ReceiveBuffer, because: ConsumerInput) -> None:
        """Remove a consumer from the set; the broker must still be asked."""
        buffer.fire(because)
        del self.members[buffer]

    def _rest(self, newcomer: ReceiveBuffer) -> ReceiveBuffer | None:
        """Withdraw a default subscription no longer used by the program; return the consumer.

        Leaving a loop over the queue sends no signal to the queue. An unused default subscription would
        continue to receive messages for the new consumer, up to the limits. The next receiving call on the
        queue activates the default subscription again, like any consumer.
        """
        default = self._queue._default
        if default is None or default is newcomer or not default.active:
            return None
        # A broadcast queue keeps the subscription that began with it only once the program has received.
        broadcast = self._queue._core.at_most_once
        unused = self._queue._eager and not default.used if broadcast else default.idle
        if not unused:
            return None
        self._drop(default, _I.REST)
        return default

    async def begun(self, buffer: ReceiveBuffer, asked: asyncio.Future[None]) -> None:
        """Wait for the broker's acceptance; after a refusal, remove the consumer. A new start is possible."""
        try:
            await asked
        except BaseException as error:
            removed = self._is_latest(buffer) and buffer.active
            if removed:
                self._drop(buffer, _I.FAILED)
            refused = isinstance(error, ConfigureQueueError)
            if self._has_left() if refused else removed:
                self._ask_again()
            if not buffer.active:
                with self._receive_limit.moving():
                    self.place(buffer.take_back())  # the consumer may have received messages nevertheless
            raise
        if buffer.state is _OPENING and self._is_latest(buffer):
            buffer.fire(_I.AGREED)  # without a connection, a change agreed before is agreed at once

    def _is_latest(self, buffer: ReceiveBuffer) -> bool:
        """Whether the consumer was not paused and restarted since the asking task was created."""
        return buffer.opening is None or buffer.opening is asyncio.current_task()

    async def end(self, buffer: ReceiveBuffer) -> None:
        """Remove a consumer; see :meth:`bmq.Consumer.close`."""
        self._connection.check_loop()
        try:
            await self._remove(buffer, _I.CLOSE)
        finally:
            buffer.fire(_I.GONE)

    async def pause(self, buffer: ReceiveBuffer) -> None:
        """Withdraw a consumer's subscription for a time; see :meth:`bmq.Consumer.pause`."""
        self._connection.check_loop()
        await self._remove(buffer, _I.PAUSE)

    async def _remove(self, buffer: ReceiveBuffer, because: ConsumerInput) -> None:
        was_active = buffer.active
        buffer.fire(because)
        if buffer.over:
            self.members.pop(buffer, None)
        else:
            self.members[buffer] = None
        if not was_active:
            return
        # Before the broker's answer: messages still to arrive come later in the order of delivery.
        with self._receive_limit.moving():
            self.place(buffer.take_back())
        try:
            await self._ask()
        except QueueClosed:
            pass
        except ConfigureQueueError:
            self._ask_again()  # refused because of another change; this change is still pending
        except RequestTimeout:
            self._ask_again()
            raise

    async def redefine(self, buffer: ReceiveBuffer, definition: Definition) -> None:
        """Change a consumer's definition; after a failure, restore the definition agreed with the broker.

        Raises:
            UsageError: the consumer and another one would confirm each other's messages.
        """
        self._check_discarding(buffer, definition)
        buffer.definition = definition
        if buffer.state is not _OPEN and buffer.state is not _OPENING:
            return
        if self.unclaimed_bytes:
            with self._receive_limit.moving():
                self._place_unclaimed()
        try:
            await self._ask()
        except Exception as error:
            if not isinstance(error, ConfigureQueueError):
                agreed = _definitions(self._queue._core.subscriptions.agreed)
                buffer.definition = agreed.get(buffer, buffer.definition)
                self._ask_again()
            raise

    def configured(self, failed: bool) -> None:
        """Process the broker's answer: after a refusal, restore the last accepted definitions.

        Consumers that have closed since stay closed.
        """
        agreed = _definitions(self._queue._core.subscriptions.agreed)
        for buffer in self.active:
            if buffer not in agreed:
                if failed:
                    self._drop(buffer, _I.FAILED)
            elif failed:
                buffer.definition = agreed[buffer]
            elif buffer.state is _OPENING:
                buffer.fire(_I.AGREED)

    def _has_left(self) -> bool:
        """Whether the broker still has the subscription of a closed consumer."""
        return any(not buffer.active for buffer in _definitions(self._queue._core.subscriptions.agreed))

    def _ask(self) -> asyncio.Future[None]:
        """Request the present subscriptions of the consumers, at the end of this turn of the event loop."""
        connection = self._connection
        done: asyncio.Future[None] = connection.loop.create_future()
        deadline = connection.loop.time() + connection.options.configure_timeout
        connection.core.configure_queue(self._queue._core, self.wanted(), done, deadline)
        connection.transmit_soon()
        connection.receive_limit.reconsider()
        self._queue._hooks.watch("queue.configure", self._queue.session, self._queue.uri, done)
        return done

    def _ask_again(self) -> None:
        """Request the subscriptions of the consumers again, after a failed attempt."""
        if not self._queue.closed:
            self._ask().add_done_callback(look_at)  # an error shows at the next change

    # messages without a consumer (see QueueOwner)

    def deliver(self, pushes: list[Push], numbers: Sequence[int], arrival: Arrival) -> None:
        """Accept newly arrived messages for a closed or unknown consumer."""
        self._queue._counts.arrived(pushes, size_of(pushes))
        self.place(list(zip(numbers, pushes, strict=True)))

    def again(self, count: int) -> None:
        """Count redelivered confirmed messages."""
        self._queue._counts.again(count)

    def place(
        self, messages: list[Numbered], besides: ReceiveBuffer | None = None, *, again: bool = False
    ) -> None:
        """Pass messages to matching consumers, in the order of delivery; keep unmatched messages.

        The protocol cannot return a single message. Closing the reading side returns all messages, but a
        broker delivers returned messages first, and no further messages until a consumer takes them:
        consumers without a match would starve. Unmatched messages therefore stay here, unconfirmed, until a
        matching consumer starts or the queue closes.

        Args:
            messages: the messages, with their delivery numbers.
            besides: a consumer that is not to receive them, or None.
            again: whether the messages matched no consumer before, and are counted.
        """
        if self._queue.closed or not messages:
            return
        shares: dict[ReceiveBuffer, list[Numbered]] = {}
        unwanted: list[bytes] = []
        left: list[Numbered] = []
        definitions = [buffer.definition for buffer in self.active if buffer is not besides]
        definitions.sort(key=lambda each: -each.options.priority)
        unread = not definitions or definitions[0].everything
        for each in messages:
            properties = None if unread else properties_of(each[1])
            for definition in definitions:
                if definition.takes(properties):
                    shares.setdefault(definition.buffer, []).append(each)
                    break
            else:
                if any(definition.discards(properties) for definition in definitions):
                    unwanted.append(each[1][GUID])
                else:
                    left.append(each)
        for buffer, share in shares.items():
            buffer.take_over(share)
        if unwanted:
            self._queue._confirm_many(unwanted)
            self._queue._counts.discarded(len(unwanted))
        if left and not again:
            self._queue._counts.match_nobody(len(left))
        if left and not self._queue._core.at_most_once:
            self._keep(left)
        self._watch_unclaimed()

    def _keep(self, messages: list[Numbered]) -> None:
        """Keep messages, only the first ones if space is short."""
        size = 0
        kept: list[Numbered] = []
        for each in messages:
            more = len(each[1][DATA])
            if not self._receive_limit.has_room(len(kept) + 1, size + more):
                break
            kept.append(each)
            size += more
        if kept:
            self.unclaimed += kept
            self.unclaimed_bytes += size
            self._receive_limit.count_unclaimed(len(kept), size)
        if len(kept) < len(messages):
            self._connection.lines.warning(
                (Subscriptions, self._queue.uri),
                "%s: %d messages that match no consumer here were not kept, because max_buffered_messages or "
                "max_buffered_bytes is reached. The messages stay unconfirmed; the broker redelivers them "
                "when the queue is closed or the connection is lost",
                self._queue.uri,
                len(messages) - len(kept),
            )

    def _take_unclaimed(self) -> list[Numbered]:
        """Take out all unclaimed messages, in the order of delivery."""
        messages, self.unclaimed = self.unclaimed, []
        size, self.unclaimed_bytes = self.unclaimed_bytes, 0
        if messages:
            self._receive_limit.count_unclaimed(-len(messages), -size)
            messages.sort(key=_number)
        return messages

    def _place_unclaimed(self) -> None:
        """Offer the unclaimed messages to the present consumers."""
        self.place(self._take_unclaimed(), again=True)

    def _watch_unclaimed(self) -> None:
        """Schedule a single report of unclaimed messages; cancel it if there are none."""
        if self.unclaimed:
            if self._mention is None:
                self._mention = self._connection.loop.call_later(
                    _MENTION_UNCLAIMED_AFTER, weakly(self._mention_now)
                )
        elif self._mention is not None:
            self._mention.cancel()
            self._mention = None

    def _mention_now(self) -> None:
        """Report unclaimed messages to the application."""
        uri, count = self._queue.uri, len(self.unclaimed)
        if count:
            logger.warning(
                "%s holds %d messages (%s bytes) that match no consumer here. The messages stay "
                "unconfirmed, and no other session receives them, until a consumer of this queue matches "
                "them or the queue is closed",
                uri,
                count,
                f"{self.unclaimed_bytes:,}",
                extra={"queue": uri, "broker": self._connection.address},
            )
            self._connection.publish(UnclaimedMessages(uri, count))

    # the connection, and the end

    def forget_delivered(self) -> None:
        """Drop messages in buffer after the loss of the connection: the broker redelivers them."""
        if not self._queue._core.at_most_once:
            for buffer in self.members:
                buffer.clear()
            self.forget_unclaimed()

    def forget_unclaimed(self) -> None:
        """Drop unclaimed messages, also of a queue that is closing or closed."""
        self._take_unclaimed()
        self._watch_unclaimed()


def _definitions(subscriptions: Iterable[SubscriptionCore]) -> dict[ReceiveBuffer, Definition]:
    """Return the definition of each consumer among subscriptions."""
    found: dict[ReceiveBuffer, Definition] = {}
    for subscription in subscriptions:
        definition = subscription.context
        if isinstance(definition, Definition):
            found[definition.buffer] = definition
    return found


def _shown(discard: Complement | None) -> str:
    return " | ".join(str(each or "everything") for each in discard.wanted) if discard else ""
