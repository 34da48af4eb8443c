# SPDX-License-Identifier: Apache-2.0
"""Why a message is still in its queue: the broker's answers in words."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from bmq import _world
from bmq._words import age, listed, number, several, size
from bmq.admin.results import (
    AppDepth,
    Client,
    DomainInfo,
    Internals,
    QueueStatistics,
    ReaderSubscription,
    StoredMessage,
    Stream,
    Usage,
    Window,
    ttl_of,
)
from bmq.conventions import DELAY_QUEUE_SUFFIX, DUE
from bmq.errors import AdminError, ProtocolError
from bmq.subscriptions import Decision, Expression, Route, RoutingTable
from bmq.wire.control import DEFAULT_APP_ID
from bmq.wire.properties import PropertyInput

if TYPE_CHECKING:
    from bmq.admin.client import QueueAdmin

__all__ = ["Explanation", "Obstacle", "QueueReader", "explain", "is_mover", "objection"]

# The name of a client ends with the number of its process, that of a node does not.
_PROCESS = re.compile(r":\d+")
# Clients named in a sentence.
_NAMED = 8
_RESUMES = "delivery resumes when a fifth of the limit is free again"


class Obstacle(StrEnum):
    """Why messages are not delivered.

    Attributes:
        NO_CONSUMER: the application has no subscription.
        FULL: every subscription is at its limit of unconfirmed messages.
        PARTLY_FULL: some subscriptions are at their limit, and the other subscriptions do not match.
        UNMATCHED: the consumers have room, and no subscription matches.
        IN_PROGRESS: a consumer of all messages has room.
    """

    NO_CONSUMER = "no_consumer"
    FULL = "full"
    PARTLY_FULL = "partly_full"
    UNMATCHED = "unmatched"
    IN_PROGRESS = "in_progress"


@dataclass(frozen=True, slots=True)
class QueueReader:
    """One subscription of one client.

    Attributes:
        client: the client, for people.
        stream: the client's open stream.
        subscription: the subscription.
    """

    client: str
    stream: Stream
    subscription: ReaderSubscription

    @property
    def name(self) -> str:
        """The client, and the client's number of the subscription."""
        return f"{self.client} #{self.subscription.id}"

    @property
    def expression(self) -> str:
        """The expression; in words if empty."""
        text = self.subscription.expression
        if not text:
            return "(everything)"
        legal = Expression(text, strict=False).error is None
        return text if legal else f"{text} (not legal: matches every message)"

    @property
    def use(self) -> str:
        """Use of the limit of unconfirmed messages, as far as known from the broker."""
        window = self.subscription.window
        if window is None:
            used = sum(each.messages for each in self.stream.windows)
            return f"{number(used)} in {len(self.stream.windows)} subscriptions"
        limit = self.subscription.max_messages
        return f"{number(window.messages)} of {number(limit)}" + (" (full)" if window.full else "")

    @property
    def full(self) -> bool:
        """Whether the limit is reached, as far as known from the broker."""
        window = self.subscription.window
        if window is not None:
            return window.full
        # The window of a subscription is unknown. So count: are there as many full windows with these limits
        # as subscriptions with these limits?
        limits = _limits(self.subscription)
        rivals = sum(_limits(each) == limits for each in self.stream.subscriptions)
        return rivals <= sum(each.full and _limits(each) == limits for each in self.stream.windows)

    @property
    def takes_all(self) -> bool:
        """Whether the subscription has room and no expression."""
        return not self.subscription.expression and not self.full

    def outranks(self, other: QueueReader) -> bool:
        """Whether another client's subscription has a lower priority for the same messages."""
        return (
            self.client != other.client
            and self.subscription.priority > other.subscription.priority
            and not self.full
            and self.subscription.expression in ("", other.subscription.expression)
        )


def _limits(limited: ReaderSubscription | Window) -> tuple[int, int]:
    return limited.max_messages, limited.max_bytes


@dataclass(frozen=True)
class Explanation:
    """A broker's answers about a queue, in words.

    Attributes:
        internals: the queue.
        domain: the queue's domain.
        oldest: the oldest message; None for an empty queue.
        message: properties of a message to evaluate the subscriptions for; None for no message.
        hint: a sentence to add if the properties of a message would help.
        at: time of the answers, on the event loop's clock.
    """

    internals: Internals
    domain: DomainInfo
    oldest: StoredMessage | None = None
    message: Mapping[str, PropertyInput] | None = None
    hint: str = ""
    at: float = 0.0

    def head(self, counted: QueueStatistics | None = None) -> Iterator[str]:
        """The depth of the queue, and the losses that the broker counted."""
        internals, oldest = self.internals, self.oldest
        depth = internals.depth
        each = [one for client in internals.clients for one in client.behind or (client,)]
        nodes = [one.description for one in each if not _PROCESS.search(one.description)]
        count = len(each) - len(nodes)
        yield (
            f"{internals.uri} ({self.domain.mode}) holds {several(depth.messages, 'message')}, "
            f"{size(depth.bytes)}; {several(count, 'client')} {_one(count, 'has', 'have')} it open, "
            f"{number(sum(one.writers for one in each))} for writing."
        )
        if nodes:
            yield (
                f"More clients may have it open behind {', '.join(nodes[:_NAMED])}: --broker with the "
                "addresses of all nodes counts them."
            )
        ttl = ttl_of(self.domain)
        if oldest is not None:
            ends = ""
            if ttl is not None:
                left = ttl - (_world.now() - oldest.arrival).total_seconds()
                ends = f", and expires in {left:.0f} s" if left > 0 else ", and expires now"
            yield f"The oldest message arrived {age(oldest.arrival)} ago{ends} (GUID {oldest.guid})."
        if counted is not None and counted.expired:
            time = "" if ttl is None else f" (now {number(ttl)} s)"
            yield (
                f"{several(counted.expired, 'message')} expired since the broker began to count: the time to "
                f"live{time} ended before every application had confirmed."
            )
        if counted is not None and counted.rejected:
            were = _one(counted.rejected, "was", "were")
            yield (
                f"{several(counted.rejected, 'message')} {were} deleted after too many deliveries: consumers "
                "disconnected while they held the messages."
            )
        for whose, usage in (("queue", internals.usage), ("domain", self.domain.usage)):
            if usage is not None and _over(usage):
                by_count = usage.messages > usage.message_limit > 0
                quota = several(usage.message_limit, "message") if by_count else size(usage.byte_limit)
                yield (
                    f"The {whose} is at its quota of {quota}: the broker accepts no messages until messages "
                    "are confirmed or expire."
                )
                break
        if counted is not None and counted.refused:
            were = _one(counted.refused, "was", "were")
            yield f"{several(counted.refused, 'post')} {were} refused since the broker began to count."

    def words(self, app: AppDepth) -> Iterator[str]:
        """Why the messages of an application wait."""
        if self.domain.mode == "broadcast":
            yield (
                "A broadcast queue stores no messages: the broker delivers a message to the connected "
                "consumers, or drops the message."
            )
            return
        place = "in the queue" if app.app_id == DEFAULT_APP_ID else f"for application {app.app_id}"
        if app.messages:
            yield f"{several(app.messages, 'message')} {_one(app.messages, 'waits', 'wait')} {place}."
            yield from self._reasons(app)
        else:
            yield f"No messages wait {place}."
            if full := dict.fromkeys(reader.client for reader in self.readers(app) if reader.full):
                yield (
                    f"{', '.join(full)} {_one(len(full), 'has', 'have')} as many unconfirmed messages as "
                    "allowed, which the queue no longer holds: they expired or were purged. New messages "
                    "wait until they are confirmed, or the connection ends."
                )
        for busy, text in self.outranked(app):
            yield f"{text} If {busy.client.partition(' (behind')[0]} does not belong here, stop it."

    def _reasons(self, app: AppDepth) -> Iterator[str]:
        readers = self.readers(app)
        holders = self._holders(app)
        unconfirmed = sum(holders.values())
        waiting = app.messages - unconfirmed
        if not readers:
            yield from self._unread(app)
            if unconfirmed:
                yield (
                    f"{number(unconfirmed)} are still counted as delivered to clients that no longer "
                    "subscribe."
                )
            yield from self._returned(app)
            return
        if unconfirmed:
            whose = ", ".join(f"{client} ({number(count)})" for client, count in holders.items() if count)
            yield f"{number(unconfirmed)} of them {_are(unconfirmed)} delivered and not confirmed: {whose}."
        if waiting <= 0:
            yield "No message is held back: only confirmations are missing."
            if any(is_mover(reader.subscription) for reader in readers):
                yield "A mover of delayed messages holds a message until the message is due."
            else:
                yield (
                    "A consumer that holds messages for long hangs, is stopped, retries a message or omits "
                    "confirm(): compare its log with the age of the oldest message."
                )
            return
        obstacle = _obstacle(readers)
        returned = [*self._returned(app)]
        rest = f"{number(waiting)} {_are(waiting)} not delivered"
        if obstacle is Obstacle.UNMATCHED and returned:
            yield f"{rest} although the consumers have room: no subscription matches at least one of them."
        else:
            yield from _held_back(rest, obstacle, readers)
        if obstacle is not Obstacle.FULL:
            yield from returned
            if self.message is None and self.hint:
                yield self.hint

    def _returned(self, app: AppDepth) -> Iterator[str]:
        count = sum(each.redelivery for each in self.internals.apps if each.app_id == app.app_id)
        if count:
            yield (
                f"{number(count)} {_are(count)} to be redelivered. While a returned message matches no "
                "subscription, a broker delivers no later messages either, whatever they match: a "
                "consumer has to take the returned message."
            )

    def _unread(self, app: AppDepth) -> Iterator[str]:
        if app.app_id == DEFAULT_APP_ID:
            yield "The queue has no consumers: no client has a subscription."
            if self.internals.uri.endswith(DELAY_QUEUE_SUFFIX):
                yield f"A mover passes delayed messages on when they are due: bmq mover {self.internals.uri}."
            return
        yield f"Application {app.app_id} has no consumers: no client has a subscription."
        others = sorted(
            {
                f"{each.description} ({stream.app_id})"
                for client in self.internals.clients
                for each in client.behind or (client,)
                for stream in each.streams
                if stream.subscriptions and stream.app_id != app.app_id
            }
        )
        if others:
            yield (
                f"A consumer of {app.app_id} opens {self.internals.uri}?id={app.app_id}. Clients that "
                f"read other applications: {listed(others, _NAMED)}."
            )

    def outranked(self, app: AppDepth) -> Iterator[tuple[QueueReader, str]]:
        """Find the clients whose every subscription is below another one for the same messages with room.

        Each client appears once, with the subscription above its first one.
        """
        readers = self.readers(app)
        above: dict[str, list[tuple[QueueReader, QueueReader | None]]] = {}
        for reader in readers:
            rival = next((other for other in readers if other.outranks(reader)), None)
            above.setdefault(reader.client, []).append((reader, rival))
        for (idle, busy), *others in above.values():
            if busy is not None and all(rival is not None for _, rival in others):
                higher, lower = busy.subscription.priority, idle.subscription.priority
                yield (
                    busy,
                    f"{idle.client} receives nothing: {busy.client} has room, and the higher priority "
                    f"({number(higher)} instead of {number(lower)}).",
                )

    def undelivered(self, app: AppDepth) -> tuple[int, Obstacle]:
        """Return the number of messages that wait for a delivery, and the obstacle if the number is not 0."""
        unconfirmed = sum(self._holders(app).values())
        return max(0, app.messages - unconfirmed), _obstacle(self.readers(app))

    def readers(self, app: AppDepth) -> list[QueueReader]:
        """Return the subscriptions of an application, in the broker's order."""
        found = [
            QueueReader(_name(client, stream, subscription), stream, subscription)
            for client in self.internals.clients
            for stream in client.streams
            if stream.app_id == app.app_id
            for subscription in stream.subscriptions
        ]
        return sorted(found, key=lambda reader: -reader.subscription.priority)

    def _holders(self, app: AppDepth) -> dict[str, int]:
        return {
            each.description + ("" if each is client else _via(client)): stream.unconfirmed or 0
            for client in self.internals.clients
            for each in (_beneath(client, app.app_id) or (client,))
            for stream in each.streams
            if stream.app_id == app.app_id
        }

    def decide(self, app: AppDepth) -> Decision | None:
        """The consumer for the given message."""
        if self.message is None:
            return None
        routes: list[Route] = []
        for reader in self.readers(app):
            text, priority = reader.subscription.expression, reader.subscription.priority
            expression = Expression(text, strict=False) if text else None
            routes.append(Route(expression, priority, reader.name, reader.client, reader.full))
        return RoutingTable(routes, broadcast=self.domain.mode == "broadcast").route(self.message)


def _obstacle(readers: list[QueueReader]) -> Obstacle:
    """Return the obstacle of the messages without a delivery."""
    full = sum(1 for reader in readers if reader.full)
    if not readers:
        return Obstacle.NO_CONSUMER
    if full == len(readers):
        return Obstacle.FULL
    if any(reader.takes_all for reader in readers):
        return Obstacle.IN_PROGRESS
    return Obstacle.PARTLY_FULL if full else Obstacle.UNMATCHED


async def explain(queue: QueueAdmin, domain: DomainInfo) -> Explanation:
    """Ask for the clients and subscriptions of a queue: two commands.

    Raises:
        AdminError: the queue has gone.
        ProtocolError: an answer cannot be read.
    """
    internals = await queue.internals()
    oldest = next(iter((await queue.messages(0, 1)).messages), None)
    return Explanation(internals, domain, oldest, at=asyncio.get_running_loop().time())


def _held_back(rest: str, obstacle: Obstacle, readers: list[QueueReader]) -> Iterator[str]:
    if obstacle is Obstacle.FULL:
        yield f"{rest}: every subscription is at its limit of unconfirmed messages; {_RESUMES}."
    elif obstacle is Obstacle.IN_PROGRESS:
        client = next(reader.client for reader in readers if reader.takes_all)
        yield (
            f"{rest} although {client} receives all messages and has room: delivery "
            "should be in progress; repeat the command."
        )
    elif obstacle is Obstacle.PARTLY_FULL:
        yield (
            f"{rest}. The possible reasons: the messages match no subscription; or they match only "
            f"subscriptions at their limit ({_RESUMES}); or they are behind a message that waits for a "
            "subscription at its limit, which can stop the whole application: subscriptions that do "
            "not compete should have the same priority."
        )
    else:
        yield f"{rest} although the consumers have room: no subscription matches."
        if any(is_mover(reader.subscription) for reader in readers):
            yield "The subscription of a mover of delayed messages matches a message once it is due."
        if any(reader.stream.unconfirmed for reader in readers):
            yield (
                "If the number falls when the command is repeated, the broker is busy and limits the "
                "evaluation of expressions: it delivers in bursts, one a second. Consumers of bmq make "
                "it go on; other clients need windows of 1,000 messages or more, and fewer properties "
                "in their expressions."
            )


def _beneath(client: Client, app_id: str) -> tuple[Client, ...]:
    """Return the clients of a node with a stream of an application."""
    return tuple(each for each in client.behind if any(stream.app_id == app_id for stream in each.streams))


def _via(node: Client) -> str:
    return f" (behind {node.description})"


def _name(client: Client, stream: Stream, subscription: ReaderSubscription) -> str:
    """Name the clients of a subscription; clients of a node share expression and priority."""
    whose = {
        each.description: None
        for each in _beneath(client, stream.app_id)
        for own in each.streams
        if own.app_id == stream.app_id
        and any(
            (it.expression, it.priority) == (subscription.expression, subscription.priority)
            for it in own.subscriptions
        )
    }
    return ", ".join(whose) + _via(client) if whose else client.description


def _over(usage: Usage) -> bool:
    return usage.messages > usage.message_limit > 0 or usage.bytes > usage.byte_limit > 0


def is_mover(subscription: ReaderSubscription) -> bool:
    """Whether a subscription is of a mover of delayed messages."""
    return f"{DUE} <=" in subscription.expression


def _one(count: int, singular: str, plural: str) -> str:
    return singular if count == 1 else plural


def _are(count: int) -> str:
    return _one(count, "is", "are")


# ---- who reads a queue

# The words of a broker about a queue that no client has opened, or about an unknown domain.
_NO_QUEUE = ("not found", "doesn't exist")
_MOST_READERS = 3
_HARM = (
    "a broker delivers returned messages before all others, and delivers nothing else while no consumer "
    "takes the returned messages"
)


async def objection(queue: QueueAdmin, *, may_be_new: bool = False) -> str:
    """Return why nobody should receive messages of a queue and return them; empty without an objection.

    A returned message goes to the broker's redelivery list. While no subscription matches the message, the
    broker delivers no later message of the application. An unknown answer is an objection.

    Args:
        queue: the queue, with the application in its URI.
        may_be_new: without an objection to a queue that no client has opened; an error otherwise.

    Raises:
        AdminError: no client has opened the queue.
        Error: the broker cannot be asked.
    """
    try:
        if gap := (await queue.standing()).gap:
            return f"{gap}, and does not show whether the queue has readers at other nodes"
        internals = await queue.internals()
    except AdminError as error:
        if any(words in error.broker_message for words in _NO_QUEUE):
            if may_be_new:
                return ""
            raise
        return f"the broker does not say who reads the queue: {error}"
    except ProtocolError as error:
        return f"who reads the queue is unknown: {error}"
    app_id = queue.app_id or DEFAULT_APP_ID
    # Each sign of a reader counts, the number of consumers foremost: a client chooses the text of its
    # subscriptions, and may hide them in a printed answer.
    readers = [
        client.description
        for client in internals.clients
        for stream in client.streams
        if stream.app_id == app_id
        if client.readers or stream.subscriptions or stream.windows or stream.unconfirmed
    ]
    if not readers and any(app.consumers for app in internals.apps if app.app_id == app_id):
        readers = ["a client that the broker does not name"]
    if not readers:
        return ""
    return f"this queue has readers ({listed(readers, _MOST_READERS)}), and {_HARM}"
