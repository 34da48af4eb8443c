# SPDX-License-Identifier: Apache-2.0
"""Spark's checkpoint of a streaming query, and whether the log beside it belongs to the query.

A log belongs to a query, regardless of the query's options. A change of the options is either compensated, or
refused with an error and a remedy.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, cast

import msgspec

from bmq._logging import Log
from bmq.errors import StateError
from bmq.spark.log import BatchLog, filesystem
from bmq.spark.options import StreamOptions

fs: Any = importlib.import_module("pyarrow.fs")

__all__ = [
    "DROPPED_ADVICE",
    "OWN_CHECKPOINT",
    "STATE",
    "Checkpoint",
    "check_checkpoint",
    "check_log",
    "check_owner",
    "note_state",
    "refuse",
]

_NUMBER = re.compile(r"\d+\Z")


logger = Log("bmq.spark")
#: File beside a log with the options of its start.
STATE = "state.json"
DROPPED_ADVICE = (
    "The messages are lost. Restart the query to continue; with failOnDataLoss=false this error is a warning"
)
OWN_CHECKPOINT = (
    "readStream has the checkpointLocation of another query. Give readStream and writeStream the same "
    "checkpointLocation, and each query its own readStream"
)


class _Metadata(msgspec.Struct):
    id: str


class _Offset(msgspec.Struct, forbid_unknown_fields=True):
    messages: int
    source: str = ""


class Checkpoint:
    """The checkpoint of a streaming query. Read-only.

    Args:
        path: option ``checkpointLocation``.
        source: name of the source in the query; "" for the only source.
    """

    def __init__(self, path: str, source: str = "") -> None:
        self._fs, self._root = filesystem(path)
        self._source = source

    def query(self) -> str:
        """Return the id of the query; "" before the first batch is planned."""
        try:
            return msgspec.json.decode(self._text("metadata"), type=_Metadata).id
        except (OSError, msgspec.DecodeError):
            return ""

    def committed(self) -> int | None:
        """Return the number of certainly committed messages of this source; None if unknown."""
        try:
            numbers = self._numbers("commits")
            return self._end(max(numbers)) if numbers else None
        except OSError:
            return None

    def planned(self) -> int | None:
        """Return the end of the newest batch planned by Spark; None if no batch is readable."""
        try:
            numbers = self._numbers("offsets")
            return self._end(max(numbers)) if numbers else None
        except OSError:
            return None

    def _numbers(self, folder: str) -> set[int]:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        names = [info.base_name for info in self._fs.get_file_info(selector)]
        return {int(name) for name in names if _NUMBER.match(name)}

    def _end(self, batch: int) -> int | None:
        """Return this source's offset in a batch; None unless exactly one offset can belong to the source."""
        found: list[int] = []
        for line in self._text(f"offsets/{batch}").splitlines()[1:]:
            try:
                offset = msgspec.json.decode(line, type=_Offset)
            except msgspec.DecodeError:
                continue  # of a different kind of source
            if offset.source == self._source:
                found.append(offset.messages)
        return found[0] if len(found) == 1 else None

    def _text(self, name: str) -> str:
        with self._fs.open_input_stream(f"{self._root}/{name}") as file:
            text: str = file.read().decode()
        return text


def refuse(what: str, goes_on: str, *, strict: bool) -> None:
    """Raise an error, or warn if the option failOnDataLoss allows.

    Args:
        what: problem.
        goes_on: continuation of the query in spite of the problem.
        strict: whether to raise an error.

    Raises:
        StateError: the query must not continue.
    """
    if not strict:
        logger.warning("%s; the query continues %s, because of failOnDataLoss=false", what, goes_on)
        return
    raise StateError(f"{what}. With failOnDataLoss=false, the query continues {goes_on}")


def check_log(log: BatchLog, options: StreamOptions, start: int | None) -> bool:
    """Check whether a log matches the query.

    Args:
        log: log.
        options: options of the stream.
        start: number of messages that are certainly committed; None if unknown.

    Returns:
        True if the log was started with other queues or subscriptions: committed messages must be confirmed
        before the new subscriptions.

    Raises:
        StateError: the log does not match, or cannot be checked.
    """
    state: Any = log.noted(STATE)
    check_owner(log, options, state)
    if start and not any(batch.end == start for batch in log.batches()):
        refuse(
            f"{start:,} messages of this query are committed, but the log at {log.path} does not have the "
            "last of them: the log was removed or replaced. The broker may still hold these messages, and "
            "the query would read them again. Restore the log",
            "and may duplicate the last commit",
            strict=options.fail_on_data_loss,
        )
        log.mark(start, start)
    now = options.described()
    if state is None or {name: state.get(name) for name in now} == now:
        return False
    if start is None:
        raise StateError(
            "queue or subscription of this query changed, and pyspark before 4.2 does not report the "
            "committed batches: start the query with its old options, let the query read all messages and "
            "end, and begin a new checkpoint"
        )
    logger.info("queue or subscription changed: committed messages are confirmed first")
    return True


def check_checkpoint(options: StreamOptions, start: int | None) -> None:
    """Check that the query's checkpoint is the option ``checkpointLocation`` of its source.

    Args:
        options: options of the stream.
        start: number of messages that the query has read; None if the engine does not provide the number.

    Raises:
        StateError: the checkpoint belongs to another query, or to none.
    """
    if not options.checkpoint_location:
        return
    checkpoint = Checkpoint(options.checkpoint_location, options.source_name)
    if not checkpoint.query():
        raise StateError(
            f"no query has its checkpoint in {options.checkpoint_location}, the checkpointLocation of "
            "readStream: give readStream and writeStream the same checkpointLocation. Where pyarrow does not "
            "reach Spark's checkpoint, give readStream the option logPath and no checkpointLocation"
        )
    planned = checkpoint.planned()
    if planned is not None and start is not None and planned != start:
        raise StateError(
            f"this query has read {start:,} messages, and the query of checkpoint "
            f"{options.checkpoint_location} has read {planned:,}: {OWN_CHECKPOINT}"
        )


def check_owner(log: BatchLog, options: StreamOptions, state: Any) -> None:
    """Check that the log belongs to this query.

    Raises:
        StateError: the log belongs to another query.
    """
    query = Checkpoint(options.checkpoint_location).query() if options.checkpoint_location else ""
    owner = cast("dict[str, Any]", state).get("query", "") if isinstance(state, dict) else ""
    if query and owner and query != owner:
        refuse(
            f"the log at {log.path} belongs to query {owner}, and the checkpoint to query {query}: the "
            "checkpoint was removed or replaced. The last commit of the other query would be read again. "
            "Give the new query a logPath of its own, or restore the checkpoint",
            "with this log, and may duplicate the last commit",
            strict=options.fail_on_data_loss,
        )


def note_state(log: BatchLog, options: StreamOptions) -> None:
    """Record the options that the log is used with from now on."""
    query = Checkpoint(options.checkpoint_location).query() if options.checkpoint_location else ""
    wanted = {"query": query, **options.described()}
    if log.noted(STATE) != wanted:
        log.note(STATE, wanted)
