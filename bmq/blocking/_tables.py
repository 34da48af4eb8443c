# SPDX-License-Identifier: Apache-2.0
"""Received messages as batches of rows, for threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bmq._live import live
from bmq.blocking._line import following

if TYPE_CHECKING:
    from bmq.arrow.tables import Tables as _Tables
    from bmq.blocking._portal import Portal

__all__ = ["Tables"]

#: A batch of pyarrow, which has no type hints.
RecordBatch = Any


@live
class Tables:
    """The messages of a queue as batches of rows, like :class:`bmq.arrow.Tables`.

    Created by :meth:`Queue.tables`; ``with`` activates the subscription, and so does receiving. For use by
    one thread.

    Attributes:
        schema: columns, a ``pyarrow.Schema``.
    """

    def __init__(self, portal: Portal, tables: _Tables) -> None:
        self.schema = tables.schema
        self._tables = tables
        self._portal = portal
        # Batches for the thread when it was interrupted.
        self._left: deque[RecordBatch] = deque()

    @property
    def buffered(self) -> int:
        """Number of messages waiting for the application."""
        return self._tables.buffered + self._unseen

    @property
    def unconfirmed(self) -> int:
        """Number of rows handed out and not yet confirmed."""
        return self._tables.unconfirmed - self._unseen

    @property
    def _unseen(self) -> int:
        return sum(int(batch.num_rows) for batch in self._left)

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive."""
        return self._tables.closed

    def receive(self, timeout: float | None = None, *, max_rows: int | None = None) -> RecordBatch:
        """Wait for the first message, then return all, as :meth:`bmq.arrow.Tables.receive` does.

        Returns:
            A ``pyarrow.RecordBatch`` with at least one row.

        Raises:
            TimedOut: no message arrived in time.
            QueueClosed: this object, the queue or the session was closed.
            ProtocolError: with ``on_invalid="fail"``: the next message is malformed; the next call continues
                after it.

        Interrupting the call loses no message.
        """

        async def take() -> RecordBatch:
            return (
                self._left.popleft() if self._left else await self._tables.receive(timeout, max_rows=max_rows)
            )

        return self._portal.run(take, timeout=timeout, undo=self._left.appendleft)

    def __iter__(self) -> Iterator[RecordBatch]:
        return self

    def __next__(self) -> RecordBatch:
        async def take() -> RecordBatch:
            return self._left.popleft() if self._left else await anext(self._tables)

        return following(self._portal, take, self._left.appendleft)

    def confirm(self, rows: int | None = None) -> int:
        """Confirm rows that were handed out, as :meth:`bmq.arrow.Tables.confirm` does; return their number.

        Args:
            rows: number of rows, the earliest first; None for all.
        """
        return self._portal.call(self._confirm, rows)

    def _confirm(self, rows: int | None) -> int:
        # Rows that arrived during an interruption come last, and were not handed out.
        return self._tables.confirm(self.unconfirmed if rows is None else min(rows, self.unconfirmed))

    def release(self) -> None:
        """Leave the confirmation of rows to other code, as :meth:`bmq.arrow.Tables.release` does."""
        self._portal.call(self._tables.release)

    def open(self) -> Tables:
        """Send the subscription to the broker, as :meth:`bmq.arrow.Tables.open` does; ``with`` does the same.

        Raises:
            ConfigureQueueError: the broker refused.
            QueueClosed: the queue is closed.
            RequestTimeout: no answer in time; the subscription is withdrawn.
        """
        self._portal.run(self._tables.open)
        return self

    def close(self) -> None:
        """Withdraw the subscription, as :meth:`bmq.arrow.Tables.close` does. Idempotent.

        Raises:
            RequestTimeout: no answer in time; the subscription is withdrawn in the background.
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
