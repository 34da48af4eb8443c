# SPDX-License-Identifier: Apache-2.0
"""What a group tells: buckets that come, go, or hold too much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

__all__ = ["Full", "Gained", "GroupEvent", "GroupStats", "Lost", "Reason"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """What one member has of its group, and has done.

    ``handed_out`` is the sum of ``done``, ``in_hand`` and ``given_back``.

    Attributes:
        buckets: the buckets of the group.
        owned: the buckets that this member owns, as far as it knows. Members draw their buckets, and shares
            differ: see :func:`bmq.groups.owners`.
        waiting: messages delivered and not yet taken by the application.
        in_hand: messages that the application has taken and not confirmed.
        handed_out: messages that the application has taken since the member joined.
        done: those that it has confirmed.
        given_back: those that it had not confirmed when the connection was lost or this member left.
        unusable: messages handed out whose key is in no bucket, by what the key is.
        strays_held: messages that the group does not hand out, and that this member holds unconfirmed.
        strays_handled: those that the function ``strays`` has taken.
    """

    buckets: int
    owned: int = 0
    waiting: int = 0
    in_hand: int = 0
    handed_out: int = 0
    done: int = 0
    given_back: int = 0
    unusable: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    strays_held: int = 0
    strays_handled: int = 0
