# SPDX-License-Identifier: Apache-2.0
"""Routes of delivered messages: from (qId, sId) to a subscription."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from bmq.protocol.client.subscription import Numbered, SubscriptionCore

__all__ = ["Routes"]

# Number of configurations of a queue to keep: messages routed by the previous configuration may still arrive.
_GENERATIONS = 2


class _Numbered(Protocol):
    """A queue with a number."""

    q_id: int

    def __hash__(self) -> int: ...


Q = TypeVar("Q", bound=_Numbered)


class Routes(Generic[Q]):
    """Assigns subscription ids, and keeps the subscription of each id.

    Attributes:
        by_queue: for each qId, the queue and the subscription of each sId.
    """

    __slots__ = ("_generations", "_next_s_id", "by_queue")

    def __init__(self) -> None:
        self._next_s_id = 1
        self._generations: dict[Q, deque[list[int]]] = {}
        self.by_queue: dict[int, dict[int, tuple[Q, SubscriptionCore]]] = {}

    def number(self, queue: Q, subscriptions: Sequence[SubscriptionCore]) -> Numbered:
        """Return subscriptions with sIds: the existing id, or an id never used in this session.

        A broker counts unconfirmed messages for each sId: with a new sId, an unchanged subscription would get
        all its room once more.
        """
        known = {sub: s_id for s_id, (_, sub) in self.by_queue.get(queue.q_id, {}).items()}
        numbered: Numbered = []
        for sub in subscriptions:
            s_id = known.get(sub)
            if s_id is None:
                s_id = self._next_s_id
                self._next_s_id += 1
            numbered.append((s_id, sub))
        return numbered

    def add(self, queue: Q, numbered: Numbered) -> None:
        """Add the routes of a configuration before sending: messages may arrive together with the answer."""
        if numbered:
            routes = self.by_queue.setdefault(queue.q_id, {})
            routes.update((s_id, (queue, sub)) for s_id, sub in numbered)

    def doubt(self, queue: Q, numbered: Numbered) -> None:
        """Keep the routes of two configurations while the broker may have either."""
        generations = self._generations.setdefault(queue, deque([[]]))
        generations[-1] += [s_id for s_id, _ in numbered]

    def settle(self, queue: Q, numbered: Numbered) -> None:
        """Forget older routes: a configuration has replaced the previous one."""
        generations = self._generations.setdefault(queue, deque())
        generations.append([s_id for s_id, _ in numbered])
        while len(generations) > _GENERATIONS:
            kept = {s_id for generation in list(generations)[1:] for s_id in generation}
            self._forget(queue, [s_id for s_id in generations.popleft() if s_id not in kept])

    def drop(self, queue: Q, numbered: Numbered) -> None:
        """Remove the routes of a refused configuration: no message will have the new sIds."""
        kept = {s_id for generation in self._generations.get(queue, ()) for s_id in generation}
        self._forget(queue, [s_id for s_id, _ in numbered if s_id not in kept])

    def remove(self, queue: Q) -> None:
        """Remove all routes of a queue when closed, or when the connection is lost."""
        self._generations.pop(queue, None)
        routes = self.by_queue.get(queue.q_id)
        if routes is not None:
            self._forget(queue, [s_id for s_id, (of, _) in routes.items() if of is queue])

    def _forget(self, queue: Q, s_ids: list[int]) -> None:
        routes = self.by_queue.get(queue.q_id)
        if routes is not None:
            for s_id in s_ids:
                routes.pop(s_id, None)
            if not routes:
                del self.by_queue[queue.q_id]
