# SPDX-License-Identifier: Apache-2.0
"""Puts undecodable messages aside before they enter the log of a read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.arrow.decoding import TableDecoder
from bmq.client.dead_letters import DeadLetter, Failure
from bmq.client.session import Session
from bmq.spark._receiving import Arrived, SourceSettings
from bmq.wire.printable import printable

__all__ = ["PutAside"]

logger = Log("bmq.spark")


class PutAside:
    """Posts unreadable messages to the queue for dead letters, if the settings name one.

    Args:
        settings: settings of the read.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._decoder = TableDecoder(None, payload=False)
        self._session: Session | None = None
        self._letters: DeadLetter | None = None
        self._limit = LogLimit(logger)

    async def take(self, arrived: Arrived, places: Sequence[int] | None) -> set[int]:
        """Put undecodable messages aside; return their positions after the broker's acknowledgement.

        Args:
            arrived: messages.
            places: positions of the messages to examine; None for all.

        Raises:
            PostError: the broker refused a dead letter for good.
            OpenQueueError: the queue for dead letters cannot be opened.
            SessionClosed: the connection is permanently lost.
        """
        uri = self._settings.dead_letters
        if not uri:
            return set()
        columns = arrived.received.columns
        found: set[int] = set()
        wanted = range(columns.count) if places is None else set(places)
        first = 0
        while first < columns.count:
            decoded = self._decoder.decode(columns.part(first, columns.count))
            for row, error in decoded.errors.items():
                place = first + row
                if place in wanted:
                    message = arrived.message(place)
                    self._limit.warning(
                        "aside",
                        "message %s of %s cannot be decoded, and is put aside in %s: %s",
                        message.guid,
                        arrived.queue.uri,
                        uri,
                        printable(error.reason),
                    )
                    await self._post(Failure(message, error, 0, None, "bmq.spark"))
                    found.add(place)
            first += decoded.rows
        return found

    async def _post(self, failure: Failure) -> None:
        if self._session is None or self._letters is None:
            self._session = await self._settings.connection.open()
            queue = await self._session.open_queue(self._settings.dead_letters, write=True)
            self._letters = DeadLetter(queue)
        letters = self._letters
        assert not isinstance(letters.queue, str)
        await letters.post(failure, letters.queue, asyncio.sleep)

    async def close(self) -> None:
        """Disconnect."""
        if self._session is not None:
            await self._session.close(timeout=10)
