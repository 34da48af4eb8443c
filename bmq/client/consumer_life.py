# SPDX-License-Identifier: Apache-2.0
"""The life of a consumer's subscription: a table, and the callers waiting in its states."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import ClassVar

from bmq._waiting import WaitingLine
from bmq.errors import Error
from bmq.protocol.machine import Machine, Transition

__all__ = ["ConsumerInput", "ConsumerLife", "ConsumerState"]


class ConsumerState(Enum):
    """The states of a consumer."""

    NEW = "its subscription was not requested yet, or was refused"
    OPENING = "its subscription was requested from the broker"
    OPEN = "the broker has its subscription"
    PAUSED = "its subscription is withdrawn for a time"
    CLOSING = "its subscription is being withdrawn for good"
    CLOSED = "no more messages arrive"


class ConsumerInput(Enum):
    """The inputs of a consumer's state machine."""

    BEGIN = "open, resume, or the first receive"
    AGREED = "the broker has accepted the subscriptions"
    FAILED = "the broker has refused, the caller was cancelled, or no answer came in time"
    REST = "another consumer of the queue takes over from the default subscription"
    PAUSE = "pause"
    CLOSE = "close"
    GONE = "the subscription is taken back"
    SHUT = "the queue is closing or closed"


_S, _I = ConsumerState, ConsumerInput
# States are compared individually: the hash of an enumerator is a call, and this runs for each event.
_OPENING, _OPEN, _CLOSING, _CLOSED = _S.OPENING, _S.OPEN, _S.CLOSING, _S.CLOSED


class ConsumerLife(Machine):
    """The life cycle of a consumer, and the waiting callers.

    Attributes:
        state: state of the consumer.
        opening: running task that opens the consumer, or None.
        resumed: future that is done on resume; None unless the consumer is paused.
        waiting: callers waiting for a message.
    """

    __slots__ = ("_error", "opening", "resumed", "waiting")

    state: ConsumerState

    def __init__(self) -> None:
        self.state = ConsumerState.NEW
        self.opening: asyncio.Task[None] | None = None
        self.resumed: asyncio.Future[None] | None = None
        self.waiting = WaitingLine()
        self._error: Error | None = None

    @property
    def active(self) -> bool:
        """Whether the broker has the subscription, or a request for it is pending."""
        return self.state is _OPEN or self.state is _OPENING

    @property
    def over(self) -> bool:
        """Whether no more messages will arrive."""
        return self.state is _CLOSED or self.state is _CLOSING

    # actions

    def _hold(self, error: Error | None = None) -> None:
        self.resumed = asyncio.get_running_loop().create_future()

    def _go_on(self, error: Error | None = None) -> None:
        resumed, self.resumed = self.resumed, None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)

    def _end(self, error: Error | None = None) -> None:
        """End the receiving calls, with ``error`` if not None."""
        self._error = error
        self.waiting.wake(len(self.waiting))
        self._go_on()

    TRANSITIONS: ClassVar = {
        (_S.NEW, _I.BEGIN): Transition(None, _S.OPENING),
        (_S.NEW, _I.PAUSE): Transition(_hold, _S.PAUSED),
        (_S.NEW, _I.CLOSE): Transition(_end, _S.CLOSING),
        (_S.NEW, _I.SHUT): Transition(_end, _S.CLOSED),
        (_S.OPENING, _I.AGREED): Transition(None, _S.OPEN),
        (_S.OPENING, _I.FAILED): Transition(None, _S.NEW),
        (_S.OPENING, _I.REST): Transition(None, _S.NEW),
        (_S.OPENING, _I.PAUSE): Transition(_hold, _S.PAUSED),
        (_S.OPENING, _I.CLOSE): Transition(_end, _S.CLOSING),
        (_S.OPENING, _I.SHUT): Transition(_end, _S.CLOSED),
        (_S.OPEN, _I.FAILED): Transition(None, _S.NEW),
        (_S.OPEN, _I.REST): Transition(None, _S.NEW),
        (_S.OPEN, _I.PAUSE): Transition(_hold, _S.PAUSED),
        (_S.OPEN, _I.CLOSE): Transition(_end, _S.CLOSING),
        (_S.OPEN, _I.SHUT): Transition(_end, _S.CLOSED),
        (_S.PAUSED, _I.BEGIN): Transition(_go_on, _S.OPENING),
        (_S.PAUSED, _I.CLOSE): Transition(_end, _S.CLOSING),
        (_S.PAUSED, _I.SHUT): Transition(_end, _S.CLOSED),
        (_S.CLOSING, _I.CLOSE): Transition(None, _S.CLOSING),
        (_S.CLOSING, _I.GONE): Transition(None, _S.CLOSED),
        (_S.CLOSING, _I.SHUT): Transition(None, _S.CLOSED),
        (_S.CLOSED, _I.CLOSE): Transition(None, _S.CLOSED),
        (_S.CLOSED, _I.GONE): Transition(None, _S.CLOSED),
        (_S.CLOSED, _I.SHUT): Transition(None, _S.CLOSED),
    }
