# SPDX-License-Identifier: Apache-2.0
"""The base of :class:`bmq.Queue`: how modules recognise a queue that the queue's own module imports."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bmq.client._end import QueueEnd

__all__ = ["OpenQueue", "end_of"]


class OpenQueue:
    """Whether an object is a :class:`bmq.Queue`, for ``isinstance``."""

    #: The inner part of the queue.
    _end: QueueEnd


#: The inner part of a queue, for the modules of the client.
end_of: Callable[[OpenQueue], QueueEnd] = attrgetter("_end")
