# SPDX-License-Identifier: Apache-2.0
"""The result of a write: one report for each partition, and their sum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from bmq._logging import Log
from bmq.errors import UsageError

__all__ = ["PartitionReport", "Summary"]

logger = Log("bmq.spark")

_Sample = bytes  # a field of the report has this name


@dataclass(slots=True, kw_only=True)
class Counts:
    """What became of rows.

    Attributes:
        rows: rows read.
        acknowledged: messages acknowledged by the broker: stored now, or stored before under the same GUID.
        repeated: rows not posted because an earlier row of the partition had the same id.
        dropped: rows that could not be posted and were dropped.
        dead_letters: rows that could not be posted and whose dead letters the broker acknowledged.
        retried: posts repeated after a negative acknowledgement, except for a full queue.
        waited: seconds for which rows waited for space in a full queue.
        bytes: posted payload bytes.
        reconnects: number of restored connections.
    """

    rows: int = 0
    acknowledged: int = 0
    repeated: int = 0
    dropped: int = 0
    dead_letters: int = 0
    retried: int = 0
    waited: float = 0.0
    bytes: int = 0
    reconnects: int = 0


@dataclass(slots=True, kw_only=True)
class PartitionReport(Counts):
    """Report about the rows of a partition.

    Attributes:
        partition: number of the partition.
        attempt: number of Spark's earlier attempts.
        seconds: time from the first row to the last acknowledgement.
        by_id: whether an id column is the identity of the messages.
        sample: eight bytes for each sampled row, with ``guidMode=source`` and ``id``: equal bytes mean equal
            messages.
    """

    partition: int = 0
    attempt: int = 0
    seconds: float = 0.0
    by_id: bool = False
    sample: _Sample = field(default=b"", repr=False)

    @property
    def rows_per_second(self) -> float:
        """Rows a second of this partition."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def incomplete(self) -> bool:
        """Whether rows became no message of their own."""
        return bool(self.repeated or self.dropped or self.dead_letters)

    def __str__(self) -> str:
        return f"partition {self.partition}: {_counts(self)} in {self.seconds:.2f} s, {_rates(self)}"


@dataclass(slots=True)
class Summary(Counts):
    """Sum of the reports of a write.

    Attributes:
        reports: reports of the partitions, in the order of arrival.
        wall_seconds: duration of the whole write, if measured; 0 otherwise.
    """

    reports: list[PartitionReport] = field(default_factory=list["PartitionReport"])
    wall_seconds: float = 0.0

    def __post_init__(self) -> None:
        given, self.reports = self.reports, []
        self.add(given)

    def add(self, reports: Iterable[PartitionReport]) -> Summary:
        """Add reports; return this summary."""
        for report in reports:
            self.reports.append(report)
            for each in fields(Counts):
                setattr(self, each.name, getattr(self, each.name) + getattr(report, each.name))
        return self

    @property
    def partitions(self) -> int:
        """Number of written partitions."""
        return len(self.reports)

    @property
    def seconds(self) -> float:
        """Duration: measured, or else the duration of the slowest partition."""
        return self.wall_seconds or max((each.seconds for each in self.reports), default=0.0)

    @property
    def rows_per_second(self) -> float:
        """Rows a second of the whole write."""
        return self.rows / self.seconds if self.seconds else 0.0

    def check(self) -> None:
        """Check that no rows of different partitions had the same GUID, so that the broker lost none of them.

        The check uses a sample of the rows, and almost certainly finds frequent cases. Equal ids
        (``id_column``) are a warning in the log.

        Raises:
            UsageError: rows of one message (``guid_column``) are equal.
        """
        seen: dict[int, int] = {}
        merged = 0
        for report in self.reports:
            for key in memoryview(report.sample).cast("Q"):
                merged += seen.setdefault(key, report.partition) != report.partition
        if any(report.by_id for report in self.reports):
            repeated = self.repeated
            if merged or repeated:
                logger.warning(
                    "rows with equal ids are one message, and the broker keeps the first: %s rows of a "
                    "partition, and %s rows of a sample of %s in different partitions",
                    f"{repeated:,}",
                    f"{merged:,}",
                    f"{len(seen) + merged:,}",
                )
        elif merged:
            raise UsageError(
                "rows of one message (guidColumn) in different partitions are equal in value and "
                f"properties: {merged} of a sample of {len(seen) + merged} rows. The broker has kept only "
                "one row of each set of equal rows, and all other rows. Add a number (posexplode) to the "
                "value or to a property, drop duplicates (dropDuplicates) if one row is enough, or use "
                "guidMode=content, with which a repeated write or batch may post rows again"
            )

    def __str__(self) -> str:
        word = "partition" if self.partitions == 1 else "partitions"
        return f"{_counts(self)} in {self.partitions} {word}, {self.seconds:.2f} s, {_rates(self)}"


def _counts(of: PartitionReport | Summary) -> str:
    parts = [
        (of.repeated, f"{of.repeated:,} with a repeated id"),
        (of.dropped, f"{of.dropped:,} invalid and dropped"),
        (of.dead_letters, f"{of.dead_letters:,} invalid and posted as dead letters"),
        (of.retried, f"{of.retried:,} retried"),
        (of.waited, f"{of.waited:.1f} s of waiting for room"),
        (of.reconnects, f"{of.reconnects} reconnects"),
    ]
    first = f"{of.rows:,} rows, {of.acknowledged:,} acknowledged"
    return ", ".join([first, *(text for count, text in parts if count)])


def _rates(of: PartitionReport | Summary) -> str:
    megabytes = of.bytes / of.seconds / 1e6 if of.seconds else 0.0
    return f"{of.rows_per_second:,.0f} rows/s, {megabytes:.1f} MB/s"
