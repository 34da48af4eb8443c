# SPDX-License-Identifier: Apache-2.0
"""Settings of the sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bmq.conventions import BUCKET, DESTINATION, DUE
from bmq.errors import UsageError
from bmq.spark._columns import Columns, check_queue
from bmq.spark._guids import GuidMode
from bmq.spark._portal import ConnectionSettings

__all__ = ["OnInvalidRow", "SinkSettings", "name_row"]


class OnInvalidRow(StrEnum):
    """Handling of rows that cannot be posted."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTERS = "deadLetters"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Settings of the sink.

    Attributes:
        connection: connection to the broker.
        queue: target of all rows; "" if a column has the target.
        columns: roles of the columns.
        guid_mode: source of the GUIDs.
        write_name: name of the write in GUIDs: a repeated write of this name adds no messages.
        rate: maximum number of rows a second of each partition; None for no limit.
        on_invalid_row: handling of rows that cannot be posted.
        dead_letter_queue: queue for dead letters.
        max_retries: number of retries after a negative acknowledgement; a full queue does not count.
        retry_interval: seconds before the first retry, doubled each time.
        ack_timeout: seconds without an outcome, or with a full queue that accepts no row, until the task
            fails.
    """

    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    queue: str = ""
    columns: Columns = field(default_factory=Columns)
    guid_mode: GuidMode = GuidMode.CONTENT
    write_name: str = ""
    rate: float | None = None
    on_invalid_row: OnInvalidRow = OnInvalidRow.FAIL
    dead_letter_queue: str = ""
    max_retries: int = 5
    retry_interval: float = 0.2
    ack_timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.queue:
            check_queue(self.queue)
        if not self.queue and not self.columns.queue:
            raise UsageError("no target: name a queue (bmq://DOMAIN/QUEUE), or the column with the queue")
        taken = {BUCKET} if self.columns.key else set[str]()
        taken |= {DUE, DESTINATION} if self.columns.not_before else set[str]()
        if twice := taken.intersection(self.columns.properties):
            raise UsageError(
                f"{', '.join(sorted(twice))}: both a property column and made from another column"
            )
        if self.rate is not None and not self.rate > 0:
            raise UsageError(f"rate must be a number of rows a second, above 0, not {self.rate}")
        if (self.on_invalid_row is OnInvalidRow.DEAD_LETTERS) != bool(self.dead_letter_queue):
            raise UsageError("dead letters need both onInvalidRow=deadLetters and deadLetterQueue")
        if self.dead_letter_queue:
            check_queue(self.dead_letter_queue)
        if self.guid_mode is GuidMode.ID and not self.columns.id:
            raise UsageError("guidMode=id needs idColumn, the column with the id of each row")
        if self.guid_mode is GuidMode.SOURCE and not self.columns.guid:
            raise UsageError(
                "guidMode=source needs guidColumn, the column with the GUIDs of a queue that was read"
            )


def name_row(position: int) -> str:
    """Return the name of a row for errors."""
    return f"row {position} of the partition"
