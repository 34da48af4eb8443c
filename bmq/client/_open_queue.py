# SPDX-License-Identifier: Apache-2.0
"""The base class of :class:`bmq.Queue`: modules recognise a queue without importing the queue's module."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bmq.client._end import QueueEnd

__all__ = ["OpenQueue"]


class OpenQueue:
    """Base class of :class:`bmq.Queue`, for ``isinstance``."""

    #: The inner part of the queue.
    _end: QueueEnd
