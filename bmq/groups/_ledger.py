# SPDX-License-Identifier: Apache-2.0
"""The one owner of the state of each message of a bucket, in one member.

A message is in one state at a time:

- *waiting*: delivered, and in the line of the bucket's consumer until the application takes the message. A
  message taken out earlier would have no owner when the bucket goes.
- *in hand*: handed out to the application, not confirmed.
- *done*: handed out and confirmed.
- *given back*: handed out and not confirmed when the connection or the membership ended. The broker delivers
  the message again, here or to another member; the application may still be at work on it.
- *unseen*: delivered, and no longer waiting when the connection or the membership ended. Nobody has seen the
  message, and the broker delivers it again.

The numbers of all states add up to the number of messages delivered: :meth:`Ledger.check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.message import Message

__all__ = ["Ledger"]

# Confirmed messages are removed at this length of the list, and later at twice the remaining length.
_SOME = 64


class Ledger:
    """The messages of one bucket, by state.

    Args:
        consumer: the bucket's subscription.

    Attributes:
        handed_out: messages taken by the application.
        done: messages handed out and confirmed, as of the last look at :attr:`in_hand`.
        given_back: messages handed out and unconfirmed at the end of the connection or the membership.
        unseen: messages waiting at that end.
    """

    __slots__ = (
        "_consumer",
        "_in_hand",
        "_sweep_at",
        "done",
        "given_back",
        "handed_out",
        "unseen",
    )

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._in_hand: list[Message] = []
        self._sweep_at = _SOME
        self.handed_out = self.done = self.given_back = self.unseen = 0

    @property
    def waiting(self) -> int:
        """How many messages wait for the application."""
        return self._consumer.buffered

    @property
    def most_in_hand(self) -> int:
        """At least :attr:`in_hand`, and found without looking at each message."""
        return len(self._in_hand)

    @property
    def in_hand(self) -> int:
        """How many messages were handed out under the present ownership and are not confirmed."""
        before = len(self._in_hand)
        self._in_hand = [message for message in self._in_hand if not message.confirmed]
        self.done += before - len(self._in_hand)
        return len(self._in_hand)

    def take(self) -> Message | None:
        """Hand out the next message; None if no message waits."""
        message = self._consumer.receive_nowait()
        if message is not None:
            self.handed_out += 1
            self._in_hand.append(message)
            if len(self._in_hand) >= self._sweep_at:
                self._sweep_at = 2 * self.in_hand + _SOME
        return message

    def lose(self) -> int:
        """Give back all unconfirmed messages; return how many were in hand."""
        lost = self.in_hand
        self.given_back += lost
        self._in_hand = []
        self._sweep_at = _SOME
        self.unseen = self._delivered - self.handed_out - self.waiting
        return lost

    def check(self, *, losing: bool = False) -> str:
        """Return the wrong sum, for people; "" if every delivered message is in one state.

        Args:
            losing: whether the connection was lost and :meth:`lose` is due: the line may be empty already.
        """
        in_hand, waiting = self.in_hand, self.waiting
        if self.handed_out != self.done + in_hand + self.given_back:
            return (
                f"{self.handed_out} handed out, but {self.done} done, {in_hand} in hand and "
                f"{self.given_back} given back"
            )
        if not losing and self._delivered != self.handed_out + waiting + self.unseen:
            return (
                f"{self._delivered} delivered, but {self.handed_out} handed out, {waiting} waiting and "
                f"{self.unseen} unseen"
            )
        return ""

    @property
    def _delivered(self) -> int:
        return self._consumer.stats().received
