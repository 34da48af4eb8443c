# SPDX-License-Identifier: Apache-2.0
"""Delayed messages: a queue of the broker keeps the messages until their due time.

``queue.post(..., delay=30)`` posts to a delay queue; a :class:`Mover` passes each message on in time.
:class:`DueMessages` is for consumers that evaluate ``bmq_due`` without a second queue. :func:`check` asks a
broker whether a delay queue can keep its messages, :func:`watch` repeats the check, and :func:`longest_delay`
returns the maximum delay.
"""

from bmq.delays._check import check, longest_delay, watch
from bmq.delays._due import DueMessages
from bmq.delays._due import check_due as check_due
from bmq.delays._mover import Mover

__all__ = ["DueMessages", "Mover", "check", "longest_delay", "watch"]
