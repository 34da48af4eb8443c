# SPDX-License-Identifier: Apache-2.0
"""Received messages as batches of rows, for threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bmq.blocking._line import following

if TYPE_CHECKING:
    from bmq.blocking._queue import Queue
    from bmq.client.tables import Tables as _Tables

__all__ = ["Tables"]

#: A batch of pyarrow, which has no type hints.
RecordBatch = Any


class Tables:
    """What a queue delivers, as batches of rows, as :class:`bmq.arrow.Tables`.

    Created by :meth:`Queue.tables`; ``with`` activates it, and receiving does too. It is for one thread.

    Attributes:
        schema: the columns, a ``pyarrow.Schema``.
    """

    def __init__(self, queue: Queue, tables: _Tables) -> None:
        self.schema = tables.schema
        self._tables = tables
        self._portal = queue._portal
        # What the thread was to get when it was interrupted.
        self._left: deque[RecordBatch] = deque()

    @property
    def buffered(self) -> int:
        """How many messages wait for the application."""
        return self._tables.buffered + self._unseen

    @property
    def unconfirmed(self) -> int:
        """How many rows were handed out and are not confirmed."""
        return self._tables.unconfirmed - self._unseen

    @property
    def _unseen(self) -> int:
        return sum(int(batch.num_rows) for batch in self._left)

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._tables.closed

    def receive(self, timeout: float | None = None, *, max_rows: int | None = None) -> RecordBatch:
        """Wait until there is a message, then return all that are there, as :meth:`bmq.arrow.Tables.receive`.

        Returns:
            A ``pyarrow.RecordBatch`` with at least one row.

        Raises:
            TimedOut: nothing arrived in time.
            QueueClosed: this, the queue or the session was closed.
            ProtocolError: with ``on_invalid="fail"``: the next message is malformed; receiving again goes on
                behind it.

        Interrupting it loses nothing.
        """

        async def take() -> RecordBatch:
            return (
                self._left.popleft() if self._left else await self._tables.receive(timeout, max_rows=max_rows)
            )

        return self._portal.run(take, undo=self._left.appendleft)

    def __iter__(self) -> Iterator[RecordBatch]:
        return self

    def __next__(self) -> RecordBatch:
        async def take() -> RecordBatch:
            return self._left.popleft() if self._left else await anext(self._tables)

        return following(self._portal, take, self._left.appendleft)

    def confirm(self, rows: int | None = None) -> int:
        """Confirm rows that were handed out, as :meth:`bmq.arrow.Tables.confirm`; return how many.

        Args:
            rows: how many, those first that were handed out first; None for all.
        """
        return self._portal.call(self._confirm, rows)

    def _confirm(self, rows: int | None) -> int:
        # What had arrived when receiving was interrupted comes last, and was not handed out.
        return self._tables.confirm(self.unconfirmed if rows is None else min(rows, self.unconfirmed))

    def release(self) -> None:
        """Leave it to others to confirm the rows handed out, as :meth:`bmq.arrow.Tables.release`."""
        self._portal.call(self._tables.release)

    def open(self) -> Tables:
        """Tell the broker about the subscription, as :meth:`bmq.arrow.Tables.open`; ``with`` does the same.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is taken back.
        """
        self._portal.run(self._tables.open)
        return self

    def close(self) -> None:
        """Take the subscription back, as :meth:`bmq.arrow.Tables.close`. Idempotent.

        Raises:
            RequestTimeout: no answer in time; the subscription is taken back in the background.
        """
        if not (self._portal.forked or self._portal.over):
            self._portal.run(self._tables.close)

    def __enter__(self) -> Tables:
        return self.open()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._tables).replace("bmq.arrow.Tables", "bmq.blocking.Tables")
