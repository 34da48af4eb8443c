# SPDX-License-Identifier: Apache-2.0
"""The reader of a stream with illegal options: each call raises the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from bmq.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

__all__ = ["RefusedReader"]


class RefusedReader(DataSourceStreamReader):
    """Replaces a reader with illegal options.

    When a query fails, Spark stops the reader. Without a reader, a second error hides the first error.

    Args:
        error: reason.
    """

    def __init__(self, error: UsageError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, int]:
        """Raise the reason."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise the reason."""
        self._refuse()

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Raise the reason."""
        self._refuse()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Raise the reason."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the reason."""
        self._refuse()

    def commit(self, end: dict[str, int]) -> None:
        """Raise the reason."""
        self._refuse()

    def stop(self) -> None:
        """Do not stop: the reader holds no resources."""
