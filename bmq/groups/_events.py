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
    """A member's buckets, and its messages by state.

    ``handed_out`` is the sum of ``done``, ``in_hand`` and ``given_back``.

    Attributes:
        buckets: the buckets of the group.
        owned: the buckets this member owns, as in :attr:`Group.owned`. Shares are drawn, and differ: see
            :func:`bmq.groups.owners`.
        waiting: messages delivered and not yet taken by the application.
        in_hand: messages taken by the application and not confirmed.
        handed_out: messages taken by the application since the member joined.
        done: messages confirmed by the application.
        given_back: messages unconfirmed when the connection was lost or the member left.
        unusable: messages handed out whose key is in no bucket, by the kind of key.
        strays_held: strays this member holds unconfirmed, see :class:`GroupOptions`.
        strays_handled: strays that the function ``strays`` has handled.
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
