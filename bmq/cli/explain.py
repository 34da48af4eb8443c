"""``bmq explain``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

import bmq
from bmq.admin import (
    AppDepth,
    AppState,
    DomainInfo,
    Internals,
    QueueAdmin,
    StoredMessage,
    Stream,
    Subscription,
)
from bmq.cli.check import show_decision
from bmq.cli.messages import BadInput, parse_properties
from bmq.cli.output import age, emit, emit_json, number, out, size, table
from bmq.cli.status import ExitStatus
from bmq.cli.target import BrokerTarget, verb
from bmq.subscriptions import Decision, Expression, Route, RoutingTable
from bmq.wire.properties import PropertyInput

__all__ = ["command"]

_PAGE = 1000
_RESUMES = "delivery goes on when a fifth of the limit is free again"


@dataclass(frozen=True, slots=True)
class _Found:
    """A message, its place among those that wait for an application, and how many these are."""

    message: StoredMessage
    place: int
    total: int


@dataclass(frozen=True, slots=True)
class _ClientSubscription:
    """One subscription of one client."""

    client: str
    stream: Stream
    subscription: Subscription

    @property
    def full(self) -> bool:
        """Whether it is at its limit, as far as the broker tells."""
        window = self.subscription.window
        if window is not None:
            return window.full
        # Which window is whose is not known: are there as many full ones with these limits as subscriptions?
        limits = (self.subscription.max_messages, self.subscription.max_bytes)
        rivals = sum(1 for each in self.stream.subscriptions if (each.max_messages, each.max_bytes) == limits)
        return rivals <= sum(
            1 for each in self.stream.windows if each.full and (each.max_messages, each.max_bytes) == limits
        )


@verb("explain")
async def command(
    target: BrokerTarget,
    queue: Annotated[
        str,
        typer.Argument(metavar="QUEUE", help="bmq://DOMAIN/QUEUE, with ?id=APPID for one application of it"),
    ],
    guid: Annotated[
        str | None,
        typer.Argument(metavar="[GUID]", help="The message, as bmq peek lists it.", show_default=False),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "-p",
            metavar="NAME[:TYPE]=VALUE",
            help="A property of the message in question: who would get it is shown then.",
        ),
    ] = None,
    empty: Annotated[
        bool, typer.Option("--empty", help="The message in question has no properties.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", "-j", help="As one JSON object.")] = False,
) -> int:
    """Say why a message is still in its queue: what waits, who reads it, and what keeps them from it.

    All of it is asked of the live broker, and no message is taken for it. What properties a message has the
    broker does not tell this way: give them with --property, and the subscriptions are tried on them in the
    broker's order.

    [bold]Examples[/]

    $ bmq explain bmq://bmq.test.mem.priority/orders
    $ bmq explain bmq://bmq.test.mem.fanout/orders?id=foo -p CustomerId=1234
    $ bmq explain bmq://bmq.test.mem.priority/orders 4000000000048D9D0B59A7F0C8ED8C4C
    """
    message = parse_properties(properties) if properties or empty else None
    async with target.admin() as admin:
        asked = admin.queue(queue)
        internals = await asked.internals()
        chosen = [app for app in internals.depth.apps if asked.app_id in ("", app.app_id)]
        if asked.app_id and not chosen:
            known = ", ".join(app.app_id for app in internals.depth.apps)
            raise BadInput(f"{asked.uri} has no application {asked.app_id!r}; there are: {known}")
        domain = await admin.domain(asked.domain)
        oldest = (await asked.messages(0, 1)).messages
        found: dict[str, _Found] = {}
        if guid is not None:
            for app in internals.depth.apps or ():
                hit = await _find(asked, app.app_id, guid.upper())
                if hit is not None:
                    found[app.app_id] = hit
    gone = guid is not None and not found
    explanation = _Explanation(internals, domain, message)
    if json:
        emit_json(
            {
                "queue": asdict(internals),
                "oldest": asdict(oldest[0]) if oldest else None,
                "words": [*explanation.head(oldest), *_about(guid, found)],
                "applications": {
                    app.app_id: {
                        "words": list(explanation.words(app)),
                        "decision": _names(explanation.decide(app)),
                    }
                    for app in chosen
                },
            }
        )
        return ExitStatus.FAILED if gone else ExitStatus.OK
    console = out()
    for line in (*explanation.head(oldest), *_about(guid, found)):
        console.print(Text(line))
    for app in chosen:
        emit("")
        for line in explanation.words(app):
            console.print(Text(line))
        explanation.show_readers(app)
        decision = explanation.decide(app)
        if decision is not None:
            emit("")
            show_decision(decision)
    return ExitStatus.FAILED if gone else ExitStatus.OK


async def _find(queue: QueueAdmin, app_id: str, guid: str) -> _Found | None:
    offset = 0
    while True:
        page = await queue.messages(offset, _PAGE, app_id=app_id)
        for place, message in enumerate(page.messages, offset):
            if message.guid == guid:
                return _Found(message, place, page.total)
        offset += len(page.messages)
        if not page.messages or offset >= page.total:
            return None


def _about(guid: str | None, found: dict[str, _Found]) -> Iterator[str]:
    if guid is None:
        return
    if not found:
        yield (
            f"Message {guid} is not there: it was confirmed by all it was for, or it expired, or was purged, "
            "or never was accepted."
        )
        return
    message = next(iter(found.values())).message
    yield f"Message {message.guid} ({size(message.size)}) came {age(message.arrival)} ago."
    for app_id, hit in found.items():
        whose = "" if app_id == "__default" else f" for {app_id}"
        yield f"It is number {number(hit.place + 1)} of {number(hit.total)} that wait{whose}."


def _names(decision: Decision | None) -> dict[str, object] | None:
    if decision is None:
        return None
    return {
        "candidates": decision.names,
        "waits": decision.waits,
        "stops": decision.stops,
        "spills": tuple(route.name for route in decision.spills),
        "also": tuple(route.name for route in decision.also),
        "text": str(decision),
    }


class _Explanation:
    """Makes words of what the broker tells of a queue."""

    def __init__(
        self, internals: Internals, domain: DomainInfo, message: dict[str, PropertyInput] | None
    ) -> None:
        self._internals = internals
        self._domain = domain
        self._message = message

    def head(self, oldest: tuple[StoredMessage, ...]) -> Iterator[str]:
        """What the queue holds."""
        internals = self._internals
        depth = internals.depth
        writers = sum(client.writers for client in internals.clients)
        yield (
            f"{internals.uri} ({self._domain.mode}) holds {_messages(depth.messages)}, {size(depth.bytes)}; "
            f"{_clients(len(internals.clients))} it open, {number(writers)} for writing."
        )
        if oldest:
            came = oldest[0].arrival
            ttl = self._domain.configuration.get("messageTtl")
            ends = ""
            if isinstance(ttl, int) and ttl > 0:
                left = (came + timedelta(seconds=ttl) - datetime.now(UTC)).total_seconds()
                ends = f", and expires in {left:.0f} s" if left > 0 else ", and expires now"
            yield f"The oldest came {age(came)} ago{ends} (GUID {oldest[0].guid})."
        usage = internals.usage
        if usage is not None and (usage.messages > usage.message_limit or usage.bytes > usage.byte_limit):
            yield "The queue is at its quota: nothing is accepted before something is confirmed or expires."

    def words(self, app: AppDepth) -> Iterator[str]:
        """Why what waits for an application waits."""
        name = "the queue" if app.app_id == "__default" else f"application {app.app_id}"
        if self._domain.mode == "broadcast":
            yield "A broadcast queue keeps nothing: a message goes to whoever is there, or is dropped."
            return
        if not app.messages:
            yield f"Nothing waits in {name}." if app.app_id == "__default" else f"Nothing waits for {name}."
            return
        readers = self._readers(app)
        state = self._state(app)
        yield f"{_messages(app.messages)} {'waits' if app.messages == 1 else 'wait'} " + (
            "in the queue." if app.app_id == "__default" else f"for {name}."
        )
        unconfirmed = self._unconfirmed(app)
        if not readers:
            yield from self._nobody(unconfirmed)
            return
        if unconfirmed:
            whose = ", ".join(
                f"{client} ({number(count)})" for client, count in self._holders(app).items() if count
            )
            yield f"{number(unconfirmed)} of them {_are(unconfirmed)} delivered and not confirmed: {whose}."
        waiting = app.messages - unconfirmed
        if waiting <= 0:
            yield "Nothing is held back: what is missing is the confirmation."
            return
        yield from self._held_back(waiting, readers, state)

    def _nobody(self, unconfirmed: int) -> Iterator[str]:
        yield "Nobody reads: there is no consumer with a subscription."
        if unconfirmed:
            yield f"{number(unconfirmed)} are still counted as delivered to clients that no longer subscribe."

    def _held_back(
        self, waiting: int, readers: list[_ClientSubscription], state: AppState | None
    ) -> Iterator[str]:
        full = [reader for reader in readers if reader.full]
        rest = f"{number(waiting)} {_are(waiting)} delivered to nobody"
        if len(full) == len(readers):
            yield f"{rest}: every subscription is at its limit of unconfirmed messages; {_RESUMES}."
            return
        open_to_all = [reader for reader in readers if not reader.subscription.expression and not reader.full]
        if open_to_all:
            yield (
                f"{rest} although {open_to_all[0].client} takes everything and has room: they should be on "
                "their way; ask again."
            )
        elif full:
            yield (
                f"{rest}: they match no subscription, or only such as are at their limit ({_RESUMES}), or "
                "they stand behind one that waits for such a subscription, which can stop the whole "
                "application: subscriptions that do not compete should have one priority."
            )
        else:
            yield f"{rest} although there is room: they match no subscription."
        if state is not None and state.redelivery:
            count = state.redelivery
            yield (
                f"{number(count)} {_are(count)} to be delivered again. While a message that was handed back "
                "matches no subscription, a broker delivers nothing that came after it either: somebody has "
                "to take it."
            )
        if self._message is None:
            yield "To see who would get a message, give its properties: --property NAME=VALUE, or --empty."

    # looking

    def _readers(self, app: AppDepth) -> list[_ClientSubscription]:
        return [
            _ClientSubscription(client.description, stream, subscription)
            for client in self._internals.clients
            for stream in client.streams
            if stream.app_id == app.app_id
            for subscription in stream.subscriptions
        ]

    def _state(self, app: AppDepth) -> AppState | None:
        return next((each for each in self._internals.apps if each.app_id == app.app_id), None)

    def _holders(self, app: AppDepth) -> dict[str, int]:
        return {
            client.description: stream.unconfirmed or 0
            for client in self._internals.clients
            for stream in client.streams
            if stream.app_id == app.app_id
        }

    def _unconfirmed(self, app: AppDepth) -> int:
        return sum(self._holders(app).values())

    def decide(self, app: AppDepth) -> Decision | None:
        """Who would get the message in question."""
        if self._message is None:
            return None
        routes = [
            Route(
                Expression(reader.subscription.expression, strict=False)
                if reader.subscription.expression
                else None,
                reader.subscription.priority,
                f"{reader.client} #{reader.subscription.id}",
                reader.client,
                reader.full,
            )
            for reader in self._readers(app)
        ]
        return RoutingTable(routes, broadcast=self._domain.mode == "broadcast").route(self._message)

    def show_readers(self, app: AppDepth) -> None:
        """Print the subscriptions in the order of their priorities."""
        readers = sorted(self._readers(app), key=lambda reader: -reader.subscription.priority)
        rows = [
            (
                number(reader.subscription.priority),
                _expression(reader.subscription),
                _use(reader),
                f"{reader.client} #{reader.subscription.id}",
            )
            for reader in readers
        ]
        if rows:
            emit("")
            out().print(table(["priority>", "expression", "unconfirmed", "subscription"], rows))


def _expression(subscription: Subscription) -> str:
    if not subscription.expression:
        return "(everything)"
    error = bmq.Expression(subscription.expression, strict=False).error
    return subscription.expression + (" (not legal: takes everything)" if error is not None else "")


def _use(reader: _ClientSubscription) -> str:
    window = reader.subscription.window
    limit = reader.subscription.max_messages
    if window is None:
        used = sum(each.messages for each in reader.stream.windows)
        return f"{number(used)} in {len(reader.stream.windows)} subscriptions"
    return f"{number(window.messages)} of {number(limit)}" + (" (full)" if window.full else "")


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{number(count)} messages"


def _clients(count: int) -> str:
    return "1 client has" if count == 1 else f"{number(count)} clients have"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
