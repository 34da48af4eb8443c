# SPDX-License-Identifier: Apache-2.0
"""The events of a group: buckets gained, lost, or nearly full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class Reason(Enum):
    """Why a bucket was lost.

    Attributes:
        DISCONNECTED: the connection was lost, or the queue suspended.
        MOVED: the leader of the group gave the bucket to another member.
        LEFT: this member left the group, or its queue was closed.
    """

    DISCONNECTED = "disconnected"
    MOVED = "moved"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """The base class of events for a group's ``on_event``.

    Attributes:
        bucket: number of the bucket.
    """

    bucket: int


@dataclass(frozen=True, slots=True)
class Gained(GroupEvent):
    """A bucket was gained, and ``on_assigned`` has ended: messages of the bucket are handed out."""


@dataclass(frozen=True, slots=True)
class Lost(GroupEvent):
    """A bucket was lost, or may have been lost.

    Attributes:
        reason: the reason.
        unconfirmed: messages of the bucket in hand.
    """

    reason: Reason
    unconfirmed: int


@dataclass(frozen=True, slots=True)
class Full(GroupEvent):
    """The unconfirmed messages of a bucket nearly reach ``max_unconfirmed_messages``.

    The bucket continues: its messages stay in order, and are bounded by the limits of the session.

    Attributes:
        unconfirmed: unconfirmed messages.
        window: ``max_unconfirmed_messages`` of the group.
    """

    unconfirmed: int
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """A member's buckets, and its messages by state.

    ``handed_out`` is the sum of ``done``, ``in_hand`` and ``given_back``.

    Attributes:
        buckets: the buckets of the group.
        owned: the buckets this member owns, as in :attr:`Group.owned`. Shares are random, and differ: see
            :func:`bmq.groups.owners`.
        settled: whether the member gets the messages of its share: the leader answers, and every bucket is
            here. False after a lost connection, until the member has its buckets again.
        waiting: messages delivered and not yet taken by the application.
        in_hand: messages taken by the application and not confirmed.
        handed_out: messages taken by the application since the member joined.
        done: messages confirmed by the application.
        given_back: messages unconfirmed when the connection was lost or the member left.
        unusable: messages handed out with a key in no bucket, by the kind of key.
        strays_held: strays this member holds unconfirmed, see :class:`GroupOptions`.
        strays_handled: strays handled by the function ``strays``.
        behind: buckets of this member that may have to wait for a silent former owner: no message has
            arrived in them since, and the broker delivers none while this former owner is connected.
        silent: members that report no more and may be connected; 0 unless this member leads the group.
        granted: seconds since the leader answered this member last; None before the first answer, and without
            a connection.
    """

    buckets: int
    owned: int = 0
    settled: bool = False
    waiting: int = 0
    in_hand: int = 0
    handed_out: int = 0
    done: int = 0
    given_back: int = 0
    unusable: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    strays_held: int = 0
    strays_handled: int = 0
    behind: int = 0
    silent: int = 0
    granted: float | None = None
