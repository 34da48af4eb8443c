# SPDX-License-Identifier: Apache-2.0
"""Limits for the clients of an embedded broker, besides the limits of the domains."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bmq import _checks

__all__ = ["Bounds"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a broker and of each connection.

    Attributes:
        connections: number of connections; further connections are closed at once.
        queues: number of queues in all domains together.
        idle_queues: number of empty queues without clients; beyond the limit the oldest are forgotten.
        queues_per_connection: number of open queues of a connection; each application counts separately.
        subscriptions: number of subscriptions of a consumer.
        listed: number of messages in the output of an admin command LIST.

    Raises:
        UsageError: a limit is not an integer, or less than 1.
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
