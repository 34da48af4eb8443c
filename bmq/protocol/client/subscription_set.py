# SPDX-License-Identifier: Apache-2.0
"""The subscriptions of a queue: wanted by the application, and known to the broker.

The problem: a broker takes all subscriptions of a queue in one request, and may refuse, answer late, or lose
the request with the connection. Meanwhile the application may want a different set. Four sets can differ: the
set wanted by the application, the set in the outstanding request, the set last accepted by the broker, and
the set at the broker at this moment. This object owns all four, and one table defines the changes.

Invariants:

- ``wanted`` changes by WANT alone, and returns to ``agreed`` by REFUSE alone: a refusal is undone in one
  place.
- At most one request with subscriptions is outstanding. Later changes wait for the answer (OVERTAKEN), and go
  out together.
- A timed-out request may still be accepted, and replaces the agreed set at the broker (``astray``). Only the
  next accepted request ends this: a refused request leaves the broker as before.
- A lost connection needs no action by the application: the wanted set is requested again.
- ``committed`` is empty while the queue is suspended, closing or closed, regardless of ``wanted``.

Rejected designs: the sets as fields of the queue, moved by any method with an answer, with the rollback
spread over three methods; a state of the queue for each state of the set, which multiplies the queue's table
by four.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from bmq.protocol.client.subscription import Numbered, SubscriptionCore
from bmq.protocol.machine import Machine, Transition

__all__ = ["SetInput", "SetState", "SubscriptionSet"]


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

    Attributes:
        state: relation of the wanted set to the broker's.
        wanted: the subscriptions wanted by the application.
        asked: the subscriptions of the latest request.
        agreed: the subscriptions last accepted by the broker.
        committed: the subscriptions at the broker.
        astray: whether the broker accepted a request after the timeout. The broker has that request's
            subscriptions, until the broker accepts a later request.
    """

    __slots__ = ("agreed", "asked", "astray", "committed", "wanted")

    state: SetState

    def __init__(self) -> None:
        self.state = SetState.AGREED
        self.wanted: Sequence[SubscriptionCore] = ()
        self.asked: Sequence[SubscriptionCore] = ()
        self.agreed: Sequence[SubscriptionCore] = ()
        self.committed: Sequence[SubscriptionCore] = ()
        self.astray = False

    @property
    def removes_only(self) -> bool:
        """Whether the broker has already accepted every subscription of the wanted set."""
        return set(map(id, self.wanted)) <= set(map(id, self.agreed))

    def clear(self) -> None:
        """Record an empty set at the broker: the stream is empty, or the queue is closed."""
        self.committed = ()

    def stray(self) -> None:
        """Record that the broker accepted a request that had already timed out."""
        self.astray = True

    # actions

    def _want(self, subscriptions: Sequence[SubscriptionCore]) -> None:
        self.wanted = subscriptions

    def _ask(self) -> None:
        self.asked = self.wanted

    def _agree(self, numbered: Numbered) -> None:
        self.agreed = self.asked
        self.committed = [subscription for _, subscription in numbered]
        self.astray = False

    def _take_back(self) -> None:
        self.wanted = self.agreed

    def _lose(self) -> None:
        self.astray = False

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
        (_S.ASKED, _I.DELAY): Transition(None, _S.CHANGED),
        (_S.ASKED, _I.LOSE): Transition(_lose, _S.CHANGED),
        (_S.OVERTAKEN, _I.WANT): Transition(_want, _S.OVERTAKEN),
        (_S.OVERTAKEN, _I.AGREE): Transition(_agree, _S.CHANGED),
        (_S.OVERTAKEN, _I.REFUSE): Transition(_take_back, _S.AGREED),
        (_S.OVERTAKEN, _I.DELAY): Transition(None, _S.CHANGED),
        (_S.OVERTAKEN, _I.LOSE): Transition(_lose, _S.CHANGED),
    }
