# SPDX-License-Identifier: Apache-2.0
"""How much clients may ask of an embedded broker, apart from what its domains say."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bmq import _checks

__all__ = ["Bounds"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one broker and of each of its connections.

    Attributes:
        connections: connections; further ones are closed at once.
        queues: queues of all domains together.
        idle_queues: empty queues that nobody has open; when there are more, the oldest are forgotten.
        queues_per_connection: queues that one connection has open; each appId counts as one.
        subscriptions: subscriptions that one consumer configures.
        listed: messages that one admin command LIST shows.

    Raises:
        InvalidArgument: one of them is no integer, or less than 1.
    """

    connections: int = 20_000
    queues: int = 100_000
    idle_queues: int = 10_000
    queues_per_connection: int = 20_000
    subscriptions: int = 1_000
    listed: int = 10_000

    def __post_init__(self) -> None:
        for each in fields(self):
            value = _checks.integer(f"a broker's limit of {each.name}", getattr(self, each.name), 1)
            object.__setattr__(self, each.name, value)
