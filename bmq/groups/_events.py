# SPDX-License-Identifier: Apache-2.0
"""What a group tells: buckets that come, go, or hold too much."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Full", "Gained", "GroupEvent", "Lost", "Reason"]


class Reason(Enum):
    """Why a bucket went.

    Attributes:
        IDLE: nothing of it came for ``idle_after`` seconds: another member may have it.
        DISCONNECTED: the connection was lost, or the queue suspended: the broker gave it to another member.
        LEFT: this member left the group, or its queue was closed.
    """

    IDLE = "idle"
    DISCONNECTED = "disconnected"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """The base of what a group's ``on_event`` is called with.

    Attributes:
        bucket: which bucket.
    """

    bucket: int


@dataclass(frozen=True, slots=True)
class Gained(GroupEvent):
    """A bucket came: a message of it has arrived here, and is handed out after ``load``."""


@dataclass(frozen=True, slots=True)
class Lost(GroupEvent):
    """A bucket went, or may have gone.

    Attributes:
        reason: why.
        unconfirmed: how many of its messages this member has in hand.
    """

    reason: Reason
    unconfirmed: int


@dataclass(frozen=True, slots=True)
class Full(GroupEvent):
    """A bucket has nearly as many messages unconfirmed as its window allows.

    A real broker puts aside what comes once it is full, and order in the bucket may be lost.

    Attributes:
        unconfirmed: how many.
        window: how many it may have.
    """

    unconfirmed: int
    window: int
