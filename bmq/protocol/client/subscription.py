# SPDX-License-Identifier: Apache-2.0
"""The subscriptions of a queue: wanted by the application, known to the broker, and the routes of messages.

The problem: a broker takes all subscriptions of a queue in one request, and may refuse, answer late, or lose
the request with the connection. Meanwhile the application may want a different set. Four sets can differ: the
set wanted by the application, the set in the outstanding request, the set last accepted by the broker, and
the set at the broker at this moment. A :class:`SubscriptionSet` owns all four, and one table defines the
changes. It also owns the queue's routes, from the number of a subscription (sId) to the subscription:
messages may arrive under the numbers of an earlier set, or of one that the broker may have.

Invariants:

- ``wanted`` changes by WANT alone, and returns to ``agreed`` by REFUSE alone: a refusal is undone in one
  place.
- At most one request with subscriptions is outstanding. Later changes wait for the answer (OVERTAKEN), and go
  out together.
- A timed-out request may still be accepted, and replaces the agreed set at the broker (``accepted_late``).
  Only the next accepted request ends this: a refused request leaves the broker as before. The routes of a
  request without an answer stay, until a later request is accepted.
- A lost connection needs no action by the application: the wanted set is requested again.
- ``committed`` is empty while the queue is suspended, closing or closed, regardless of ``wanted``.

Rejected designs: the sets as fields of the queue, moved by any method with an answer, with the rollback
spread over three methods; a state of the queue for each state of the set, which multiplies the queue's table
by four.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from bmq.protocol.client.ports import Sink
from bmq.protocol.machine import Machine, Transition

if TYPE_CHECKING:
    from bmq.protocol.client.queue import QueueCore

__all__ = [
    "Numbered",
    "Routes",
    "SetInput",
    "SetState",
    "SubscriptionCore",
    "SubscriptionOptions",
    "SubscriptionSet",
]

# Number of accepted sets with routes: messages routed by the previous set may still arrive.
_GENERATIONS = 2


class SubscriptionOptions(NamedTuple):
    """The limits and the priority of a subscription.

    Attributes:
        max_unconfirmed_messages: largest number of unconfirmed messages.
        max_unconfirmed_bytes: largest number of bytes of unconfirmed messages.
        priority: consumer priority; the broker serves the highest first.
    """

    max_unconfirmed_messages: int
    max_unconfirmed_bytes: int
    priority: int


@dataclass(slots=True, eq=False)
class SubscriptionCore:
    """A subscription of a queue; never moved to another queue.

    Attributes:
        expression: text of the expression; "" selects every message.
        options: limits and priority.
        owner: receiver of the messages.
        context: an object of the caller, opaque to the core.
        columns: whether to deliver messages as columns, see
            :class:`bmq.protocol.client.events.PushedColumns`.
    """

    expression: str
    options: SubscriptionOptions
    owner: Sink
    context: object = None
    columns: bool = False


#: Subscriptions with their sIds in one configuration.
Numbered: TypeAlias = list[tuple[int, SubscriptionCore]]


class Routes:
    """The routes of all queues of a session.

    Attributes:
        by_queue: for each qId, the queue and the subscription of each sId. Queues with a common URI share a
            qId.
        next_s_id: the next number; never used twice in a session.
    """

    __slots__ = ("by_queue", "next_s_id")

    def __init__(self) -> None:
        self.by_queue: dict[int, dict[int, tuple[QueueCore, SubscriptionCore]]] = {}
        self.next_s_id = 1


class SetState(Enum):
    """How the application's set relates to the broker's."""

    AGREED = "the broker has accepted the set that the application wants"
    CHANGED = "the application wants another set, which was not sent"
    ASKED = "the wanted set is in an outstanding request"
    OVERTAKEN = "a request is outstanding, and the application wants another set than that"


class SetInput(Enum):
    """The inputs of a set's table."""

    WANT = "the application wants a set"
    ASK = "a request with the wanted set is sent"
    AGREE = "the broker has accepted the request"
    REFUSE = "the broker has refused the request, or has not answered in time"
    DELAY = "the broker refuses for now while the queue is restored: the request is repeated"
    LOSE = "the connection is lost"


_S, _I = SetState, SetInput


class SubscriptionSet(Machine):
    """The subscriptions of a queue.

    Args:
        queue: the queue.
        routes: the routes of the session.

    Attributes:
        state: relation of the wanted set to the broker's.
        wanted: the subscriptions wanted by the application.
        asked: the subscriptions of the latest request.
        agreed: the subscriptions last accepted by the broker.
        committed: the subscriptions at the broker.
        accepted_late: whether the broker accepted a request after the timeout. The broker has that request's
            subscriptions, until the broker accepts a later request.
    """

    __slots__ = (
        "_generations",
        "_queue",
        "_routes",
        "accepted_late",
        "agreed",
        "asked",
        "committed",
        "wanted",
    )

    state: SetState

    def __init__(self, queue: QueueCore, routes: Routes) -> None:
        self.state = SetState.AGREED
        self._queue = queue
        self._routes = routes
        # The sIds of accepted sets. The latest also has those of later requests that the broker may have.
        self._generations: deque[list[int]] = deque()
        self.wanted: Sequence[SubscriptionCore] = ()
        self.asked: Sequence[SubscriptionCore] = ()
        self.agreed: Sequence[SubscriptionCore] = ()
        self.committed: Sequence[SubscriptionCore] = ()
        self.accepted_late = False

    @property
    def removes_only(self) -> bool:
        """Whether the broker has already accepted every subscription of the wanted set."""
        return set(map(id, self.wanted)) <= set(map(id, self.agreed))

    # routes

    def number(self, subscriptions: Sequence[SubscriptionCore]) -> Numbered:
        """Return subscriptions with sIds: the existing id, or an id never used in this session.

        A broker counts unconfirmed messages for each sId: with a new sId, an unchanged subscription would get
        all its room once more.
        """
        known = {sub: s_id for s_id, (_, sub) in self._routes.by_queue.get(self._queue.q_id, {}).items()}
        numbered: Numbered = []
        for sub in subscriptions:
            s_id = known.get(sub)
            if s_id is None:
                s_id = self._routes.next_s_id
                self._routes.next_s_id += 1
            numbered.append((s_id, sub))
        return numbered

    def add_routes(self, numbered: Numbered) -> None:
        """Add the routes of a request before sending: messages may arrive together with the answer."""
        if numbered:
            routes = self._routes.by_queue.setdefault(self._queue.q_id, {})
            routes.update((s_id, (self._queue, sub)) for s_id, sub in numbered)

    def remove_routes(self) -> None:
        """Remove all routes when the queue is closed."""
        self._generations.clear()
        routes = self._routes.by_queue.get(self._queue.q_id, {})
        self._forget([s_id for s_id, (queue, _) in routes.items() if queue is self._queue])

    def _failed(self, numbered: Numbered, in_doubt: bool) -> None:
        """Remove the routes of a failed request, unless the broker may have its subscriptions."""
        s_ids = [s_id for s_id, _ in numbered]
        if in_doubt:
            if not self._generations:
                self._generations.append([])
            self._generations[-1] += s_ids
        else:
            kept = {s_id for generation in self._generations for s_id in generation}
            self._forget(s_id for s_id in s_ids if s_id not in kept)

    def _forget(self, s_ids: Iterable[int]) -> None:
        routes = self._routes.by_queue.get(self._queue.q_id)
        if routes is not None:
            for s_id in s_ids:
                routes.pop(s_id, None)
            if not routes:
                del self._routes.by_queue[self._queue.q_id]

    # actions

    def _want(self, subscriptions: Sequence[SubscriptionCore]) -> None:
        self.wanted = subscriptions

    def _ask(self) -> None:
        self.asked = self.wanted

    def _agree(self, numbered: Numbered) -> None:
        self.agreed = self.asked
        self.committed = [subscription for _, subscription in numbered]
        self.accepted_late = False
        self._generations.append([s_id for s_id, _ in numbered])
        while len(self._generations) > _GENERATIONS:
            oldest = self._generations.popleft()
            kept = {s_id for generation in self._generations for s_id in generation}
            self._forget(s_id for s_id in oldest if s_id not in kept)

    def _take_back(self, numbered: Numbered, in_doubt: bool) -> None:
        self.wanted = self.agreed
        self._failed(numbered, in_doubt)

    def _lose(self) -> None:
        self.accepted_late = False
        self.remove_routes()

    TRANSITIONS: ClassVar = {
        (_S.AGREED, _I.WANT): Transition(_want, _S.CHANGED),
        (_S.AGREED, _I.ASK): Transition(_ask, _S.ASKED),
        (_S.AGREED, _I.LOSE): Transition(_lose, _S.AGREED),
        (_S.CHANGED, _I.WANT): Transition(_want, _S.CHANGED),
        (_S.CHANGED, _I.ASK): Transition(_ask, _S.ASKED),
        (_S.CHANGED, _I.LOSE): Transition(_lose, _S.CHANGED),
        (_S.ASKED, _I.WANT): Transition(_want, _S.OVERTAKEN),
        (_S.ASKED, _I.AGREE): Transition(_agree, _S.AGREED),
        (_S.ASKED, _I.REFUSE): Transition(_take_back, _S.AGREED),
        (_S.ASKED, _I.DELAY): Transition(_failed, _S.CHANGED),
        (_S.ASKED, _I.LOSE): Transition(_lose, _S.CHANGED),
        (_S.OVERTAKEN, _I.WANT): Transition(_want, _S.OVERTAKEN),
        (_S.OVERTAKEN, _I.AGREE): Transition(_agree, _S.CHANGED),
        (_S.OVERTAKEN, _I.REFUSE): Transition(_take_back, _S.AGREED),
        (_S.OVERTAKEN, _I.DELAY): Transition(_failed, _S.CHANGED),
        (_S.OVERTAKEN, _I.LOSE): Transition(_lose, _S.CHANGED),
    }
