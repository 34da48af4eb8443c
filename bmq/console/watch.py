# SPDX-License-Identifier: Apache-2.0
"""Looks at a broker again and again, and keeps what it saw for the plots."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import bmq
from bmq.admin import Admin, DomainInfo, QueueStatistics
from bmq.console.source import Source

__all__ = ["Watch"]

logger = logging.getLogger("bmq.console")

#: So many looks are kept: five minutes of one a second.
HISTORY = 300


@dataclass(slots=True)
class _Sight:
    """One queue, over time."""

    depth: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    posted: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    confirmed: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    now: dict[str, Any] = field(default_factory=dict[str, Any])


class Watch:
    """Asks a broker every ``interval`` seconds, whether it is there or not.

    Attributes:
        error: why the broker cannot be asked; empty while it can.
        broker: the broker that was asked last.
    """

    def __init__(self, source: Source, interval: float) -> None:
        self._source = source
        self._interval = interval
        self._admin: Admin | None = None
        self._queues: dict[str, _Sight] = {}
        self._before: dict[str, QueueStatistics] = {}
        self._at = 0.0
        self._looked = asyncio.Condition()
        self._ended = False
        self.number = 0
        self.error = "not asked yet"
        self.broker = source.name

    # asking

    async def admin(self) -> Admin:
        """Return the admin client; the first time, connect it.

        Raises:
            ConnectionFailed: it was never connected, and cannot be now.
        """
        if self._admin is None:
            self._admin = await self._source.admin()
            self.broker = self._admin.broker
        return self._admin

    async def run(self) -> None:
        """Look, until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                started = loop.time()
                await self._look_once()
                await asyncio.sleep(max(0.0, started + self._interval - loop.time()))
        finally:
            self._ended = True
            if self._admin is not None:
                await self._admin.close()
            async with self._looked:
                self._looked.notify_all()

    async def _look_once(self) -> None:
        try:
            await self._look(await self.admin())
        except bmq.Error as error:
            if not self.error:
                logger.warning("the broker cannot be asked: %s; trying again", error)
            self.error = str(error)
            self._before = {}
        else:
            if self.error and self.number:
                logger.warning("the broker answers again")
            self.error = ""
        async with self._looked:
            self.number += 1
            self._looked.notify_all()

    async def _look(self, admin: Admin) -> None:
        statistics = {each.uri: each for each in (await admin.statistics()).queues}
        now = time.monotonic()
        domains: list[DomainInfo] = []
        for summary in await admin.domains():
            try:
                domains.append(await admin.domain(summary.name))
            except bmq.AdminError:
                continue  # it has gone meanwhile
        self.broker = admin.broker
        elapsed = now - self._at
        seen: dict[str, _Sight] = {}
        for domain in domains:
            for queue in domain.queues:
                each = seen[queue.uri] = self._queues.get(queue.uri) or _Sight()
                counted, before = statistics.get(queue.uri), self._before.get(queue.uri)
                if counted is not None and before is not None and elapsed > 0:
                    each.posted.append(round(max(0, counted.posted - before.posted) / elapsed, 1))
                    each.confirmed.append(round(max(0, counted.confirmed - before.confirmed) / elapsed, 1))
                else:
                    each.posted.append(0.0)
                    each.confirmed.append(0.0)
                each.depth.append(queue.messages)
                each.now = {
                    "uri": queue.uri,
                    "domain": domain.name,
                    "mode": domain.mode,
                    "persistent": queue.persistent,
                    "messages": queue.messages,
                    "bytes": queue.bytes,
                    "producers": counted.producers if counted is not None else 0,
                    "consumers": counted.consumers if counted is not None else 0,
                    "posted": each.posted[-1],
                    "confirmed": each.confirmed[-1],
                }
        self._queues = seen
        self._before = statistics
        self._at = now

    # telling

    def _state(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "error": self.error,
            "time": time.time(),
            "interval": self._interval,
        }

    def _all(self) -> dict[str, Any]:
        queues = [
            each.now
            | {
                "history": {
                    "messages": list(each.depth),
                    "posted": list(each.posted),
                    "confirmed": list(each.confirmed),
                }
            }
            for each in self._queues.values()
        ]
        return self._state() | {"kept": HISTORY, "queues": queues}

    def _latest(self) -> dict[str, Any]:
        return self._state() | {"queues": [each.now for each in self._queues.values()]}

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """Iterate over what to show: first everything with its past, then what each look saw.

        A caller that misses a look gets everything again. It ends with the watch; cancelling it is safe.
        """
        told = -1
        while not self._ended:
            if self.number == told + 1 and told >= 0:
                told = self.number
                yield self._latest()
            elif self.number != told:
                told = self.number
                yield self._all()
            async with self._looked:
                await self._looked.wait_for(lambda: self.number != told or self._ended)  # noqa: B023
