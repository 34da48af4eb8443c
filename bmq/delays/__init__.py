# SPDX-License-Identifier: Apache-2.0
"""Delayed messages: they wait in a queue of the broker until they are due.

``queue.post(..., delay=30)`` posts to a waiting queue; a :class:`Mover` passes each message on in time.
:class:`DueMessages` is for consumers that look at ``bmq_due`` themselves and need no second queue.
:func:`check` asks a broker whether a waiting queue can keep what waits, :func:`watch` goes on asking, and
:func:`longest_delay` says for how long a message may wait.
"""

from bmq.delays._check import check, longest_delay, watch
from bmq.delays._due import DueMessages
from bmq.delays._due import check_due as check_due
from bmq.delays._mover import Mover

__all__ = ["DueMessages", "Mover", "check", "longest_delay", "watch"]
