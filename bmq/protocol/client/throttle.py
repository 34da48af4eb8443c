# SPDX-License-Identifier: Apache-2.0
"""Deliveries to subscriptions with expressions: do not get throttled, and go on soon after a standstill.

Two habits of a real broker are the problem:

- It limits the evaluation of expressions while its dispatcher has ten or more events waiting. Every posted
  and every confirmed message is an event, also when one CONFIRM event carries a thousand. The limited broker
  delivers a few messages, and looks at the queue again after a second, unless a post, a configureStream, or
  a confirmation that takes a window from above to 80 %, the mark, makes it look earlier. Each look with a
  short dispatcher queue raises the limit, each look with a long one lowers the limit.
- It puts messages for a full subscription aside. A look for one subscription passes by the messages of all
  that are full then, and does not return to them before the next configureStream. With several expressions
  and small windows, a look delivers a few messages and passes by many.

Three rules follow, for queues with expressions only:

- **Confirmations end at the mark.** Above the mark, as many are sent as lead to it: the broker looks when
  the last one leaves its dispatcher queue, delivers into the room, and has an empty dispatcher queue until
  the next group. This group waits until as many messages have arrived as the group before has confirmed, or
  until nothing has come for two milliseconds. A confirmation below the mark makes no look: after such a
  silence, all of these are sent.
- **None while messages come and there is room.** A broker that goes through a backlog leaves confirmations
  in its dispatcher queue until the end, and looks there after every hundred messages. So no more than ten
  are sent until the windows are filled up to the mark, or nothing has come for eight times the usual time
  between two messages, or the first has waited for a tenth of a second. If requests take longer, the broker
  has put many messages aside, each repetition goes through all of these, and confirmations wait for four
  times the broker's time, at most five seconds. Small windows are filled too soon for this rule.
- **Repeat the subscriptions when delivery stands still.** A configureStream makes the broker look, also at
  what it has passed by. The limit of bytes differs by one from the last request: a proxy or replica answers
  an unchanged one by itself. The evidence: messages have flowed, the windows have room, and nothing has
  arrived for a pause, nor for eight times the usual time between two messages.

The pause follows the results. A flow sets it to the minimum. A repetition that brings messages divides the
pause by four, and so do messages after a long pause. A repetition that brings nothing multiplies it by four,
up to a minute: an idle queue costs at most a request a minute. A repetition waits for at least four times
the broker's time for the latest request: the broker spends at most a fifth of its time on repetitions, also
when an expensive expression takes seconds for a large backlog.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bmq.protocol.client.subscription import SubscriptionCore

__all__ = ["ThrottleWatch"]

# Messages in a row that are a flow; the sum of the windows, if smaller, is a flow too.
_FLOW: Final = 20
# Messages right after a repetition that are its result, or a full window; fewer may have come by chance.
_RESULT: Final = 10
# A longer silence in seconds ends a row of messages.
_ROW: Final = 0.1
# Least time in seconds after an answer in which messages are the result of a repetition.
_REACTION: Final = 0.005
# Time in seconds without messages after which the next group of confirmations is sent; the shortest pause.
_HELD: Final = 0.002
# Longest time in seconds without messages after which the broker has gone through its backlog, and this time
# in average times between two messages; the shortest is _HELD.
_IDLE: Final = 0.02
_GAPS: Final = 8
# Longest time in seconds for which confirmations wait although there is room: if requests are answered soon,
# and if they are not.
_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 5.0
# Longest pause in seconds; also the pause while the windows are full, when the broker owes no message.
_LONGEST: Final = 60.0
# Factor of the pause after a repetition.
_FACTOR: Final = 4
# Least pause, in times of the broker's time for the latest request.
_REST: Final = 4
# A group of confirmations, and the room with which a broker delivers again: one part in so many of the
# windows.
_PART: Final = 5
# So few confirmations never count as a busy dispatcher: one of them makes the broker look, nine wait.
_FEW: Final = 10
# A group of so many confirmations leaves the dispatcher queue before the broker looks again.
_BRIEF: Final = 100
# Seconds by which a timer of a process that runs is never late.
_SUSPENDED: Final = 1.0


class ThrottleWatch:
    """The deliveries of one queue.

    Args:
        after: first pause in seconds before a repetition; 0 for neither rule.

    Attributes:
        heard: time of the latest messages.
        deadline: time to call :meth:`due`, or None.
        odd: 1 after an odd number of repetitions, otherwise 0: a difference between two repetitions.
        revived: number of messages that arrived because of a repetition.
    """

    __slots__ = (
        "_after",
        "_arrived",
        "_asked",
        "_held_since",
        "_holding",
        "_moved",
        "_outstanding",
        "_pause",
        "_released",
        "_result",
        "_row",
        "_row_began",
        "_sent",
        "_took",
        "_unheard",
        "_unproven",
        "_until",
        "_watched",
        "_window",
        "deadline",
        "heard",
        "odd",
        "revived",
    )

    def __init__(self, after: float) -> None:
        self.heard = 0.0
        self.deadline: float | None = None
        self.odd = 0
        self.revived = 0
        self._after = after
        self._pause = after
        # The agreed subscriptions, and the sum of their windows; none without expressions.
        self._watched: list[SubscriptionCore] = []
        self._window = 0
        # Messages right after a repetition that are its result: a repetition may fill a single window only.
        self._result = 0
        # Messages received on this connection whose confirmation was not sent.
        self._outstanding = 0
        # Time of the latest messages, repetition, or new room in the windows; number of messages in a row.
        self._moved = 0.0
        self._row = 0
        self._row_began = 0.0
        # Confirmations of the group for which no message has arrived yet, their time; whether more wait, and
        # whether they have waited long enough.
        self._unheard = 0
        self._sent = 0.0
        # Confirmations since the latest silence: the broker may still have them in its dispatcher queue.
        self._unproven = 0
        self._holding = False
        self._held_since = 0.0
        self._released = False
        # Time of a configureStream without a reaction, seconds until the latest reaction, the time until
        # which messages may be the result of a repetition, and their number.
        self._asked: float | None = None
        self._took = 0.0
        self._until = 0.0
        self._arrived = 0

    def configured(self, subscriptions: Iterable[SubscriptionCore], now: float) -> None:
        """Watch these subscriptions from now on."""
        watched = list(subscriptions)
        if not self._after or not any(each.expression for each in watched):
            watched = []
        if watched != self._watched:
            self._until = 0.0  # messages of a new subscription are not the result of a repetition
            self._watched = watched
        windows = [each.options.max_unconfirmed_messages for each in watched]
        self._window = sum(windows)
        self._result = min(_RESULT, *windows) if windows else 0
        self._moved = now
        self._row = 0
        self._pause = self._after
        self.deadline = now + self._wait if self._window else None

    def asked(self, now: float) -> None:
        """Note the time of a configureStream."""
        self._asked = now

    def answered(self, now: float) -> None:
        """Note the answer to a configureStream."""
        self._reacted(now)
        if self._until:
            self._until = now + max(_REACTION, self._wait)

    def lost(self) -> None:
        """Forget the connection."""
        self._window = self._outstanding = self._unheard = self._unproven = 0
        self._holding = False
        self._until = 0.0
        self._asked = None
        self.deadline = None

    def delivered(self, count: int, now: float) -> bool:
        """Count messages; return whether no action follows."""
        before = self.heard
        if self._window and self._asked is None and now - before >= self._idle:
            self._unproven = 0
        self.heard = now
        if not self._window:
            return True
        self._reacted(now)
        self._outstanding += count
        if self._unheard:
            self._unheard = max(0, self._unheard - count)
            if not self._unheard:
                # The broker is as fast as this now, posts of others included.
                self._took = min(self._took, now - self._sent)
        self._moved = now
        earlier = self._row if now - before <= _ROW else 0
        if not earlier:
            self._row_began = now
        self._row = earlier + count
        if earlier < min(_FLOW, self._window) <= self._row:
            self._pause = _HELD
        elif self._pause > self._after:  # one message may be all that a limited broker delivers in a second
            self._pause = max(self._after, self._pause / _FACTOR)
        if now <= self._until:
            self._arrived += count
            if self._arrived >= self._result:
                self.revived += self._arrived
                self._until = 0.0
                self._pause = max(_HELD, self._pause / _FACTOR**2)  # the repetition has multiplied it
        return not (self._holding or self._hasten(now + self._wait))

    def may_confirm(self, count: int, *, everything: bool) -> int:
        """Return how many of the waiting confirmations may be sent now."""
        if everything or not self._window:
            self._holding = False
            return count
        excess = self._outstanding - self._mark
        if self._released and excess <= 0:
            allowed = count
        elif not self._crowded:
            allowed = _FEW - self._unproven
        elif self._unheard:
            allowed = _FEW - self._unheard
        else:
            allowed = max(_FEW, excess if excess > 0 else self._group)
        allowed = min(count, max(allowed, 0))
        if allowed < count:
            if not self._holding:
                self._held_since = max(self._sent, self.heard)
            self._hasten(self._release)
        self._holding = allowed < count
        return allowed

    def confirmed(self, count: int, now: float) -> None:
        """Count confirmations sent."""
        if not self._window:
            return
        full = self._full
        self._outstanding = max(0, self._outstanding - count)
        self._unheard += count
        self._unproven += count
        self._sent = now
        self._released = False
        if full and not self._full:
            self._moved = now
        if not self._full:
            self._hasten(self._moved + self._wait)
        if self._holding:
            self._hasten(self._release)

    def due(self, now: float, *, can_repeat: bool) -> bool:
        """Return whether to repeat the subscriptions now; let a late group of confirmations go."""
        if self._holding and self._release <= now:
            self._unheard = 0
            self._released = True
        quiet = self._moved + (_LONGEST if self._full else self._wait)
        if not can_repeat or quiet > now:
            deadlines = [quiet] if can_repeat else []
            if self._holding:
                deadlines.append(max(self._release, now + _HELD))
            self.deadline = min(deadlines, default=None)
            return False
        # If the timer is late, this process was suspended, and messages may have waited here.
        suspended = self.deadline is not None and now - self.deadline >= _SUSPENDED
        self._until = 0.0 if suspended else float("inf")
        self._arrived = 0
        self._moved = now
        self.odd ^= 1
        self._pause = min(_FACTOR * self._pause, _LONGEST)
        self.deadline = now + self._wait
        return True

    def _reacted(self, now: float) -> None:
        """Measure the broker's time: a broker that evaluates a backlog neither answers nor delivers.

        An answer alone would measure the posts of others, too, which the dispatcher processes before.
        """
        if self._asked is not None:
            self._took = now - self._asked
            self._asked = None

    @property
    def _group(self) -> int:
        """Number of confirmations sent at once."""
        return self._window // _PART

    @property
    def _mark(self) -> int:
        """Number of unconfirmed messages with which a broker looks again."""
        return self._window - self._group

    @property
    def _full(self) -> bool:
        """Whether the broker owes no message: it waits for confirmations."""
        return self._outstanding > self._mark or self._outstanding >= self._window > 0

    @property
    def _idle(self) -> float:
        """Time in seconds without messages after which the broker has gone through its backlog."""
        gap = (self.heard - self._row_began) / (self._row - 1) if self._row > 1 else _IDLE
        return min(max(_HELD, _GAPS * gap), _IDLE)

    @property
    def _crowded(self) -> bool:
        """Whether the broker may need room: the windows are small or filled up to the mark."""
        return self._group <= _BRIEF or self._outstanding > self._mark

    @property
    def _release(self) -> float:
        """Time at which confirmations are sent although the rules hold them."""
        quiet = max(self._sent, self.heard)
        if self._crowded:
            return quiet + _HELD
        latest = self._held_since + min(max(_DELAY, _REST * self._took), _LONGEST_DELAY)
        return latest if self._asked is not None else min(quiet + self._idle, latest)

    @property
    def _wait(self) -> float:
        """Time in seconds without messages until the next repetition."""
        return max(self._pause, self._idle, _REST * self._took)

    def _hasten(self, deadline: float) -> bool:
        """Bring the deadline forward if it is later; return whether it was."""
        if self.deadline is not None and self.deadline <= deadline:
            return False
        self.deadline = deadline
        return True
