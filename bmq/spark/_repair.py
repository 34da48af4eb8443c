# SPDX-License-Identifier: Apache-2.0
"""Finds and repairs problems that stop a query or a read."""

from __future__ import annotations

from typing import Any, cast

from bmq import _checks
from bmq.errors import UsageError
from bmq.spark._checkpoint import Checkpoint, Planned, filesystem
from bmq.spark._log import BatchLog
from bmq.spark._reads import Reads
from bmq.spark._state import STATE

__all__ = ["repair"]


def repair(
    checkpoint: str, *, log_path: str | None = None, source_name: str | None = None, really: bool = False
) -> list[str]:
    """Find problems that stop a stream or a batch read, and repair them.

    A missing log is replaced by an empty log, so that the stream continues: unconfirmed messages arrive from
    the broker in later batches, and the last committed batch may be repeated. A log of another query becomes
    the log of this query. An unconfirmed batch read is abandoned, and its messages are part of the next read.
    The query must not run meanwhile.

    Args:
        checkpoint: option ``checkpointLocation``.
        log_path: option ``logPath``, if set.
        source_name: option ``sourceName``, if set.
        really: whether to repair the problems; if False, only report the problems.

    Returns:
        The problems and the repairs, a sentence for each; empty without problems.

    Raises:
        UsageError: the folder does not exist.
        OSError: the log cannot be read.
        StateError: the query is running; or a read cannot be abandoned, because only the read's folder has
            the messages.
    """
    checkpoint = _checks.text("checkpoint", checkpoint, empty=False)
    name = _checks.optional(_checks.text, "source_name", source_name) or ""
    path = _checks.optional(_checks.text, "log_path", log_path)
    really = _checks.boolean("really", really)
    try:
        files, root = filesystem(checkpoint)
        kind = files.get_file_info(root).type.name
    except (OSError, ValueError) as error:
        raise UsageError(f"checkpoint cannot be read: {error}") from None
    if kind != "Directory":
        raise UsageError(f"folder {checkpoint} does not exist")
    folder = path or f"{checkpoint.rstrip('/')}/bmq" + (f"/{name}" if name else "")
    return [*_stream(Checkpoint(checkpoint, name), BatchLog(folder), really), *_reads(checkpoint, really)]


def _stream(checkpoint: Checkpoint, log: BatchLog, really: bool) -> list[str]:
    planned, query = checkpoint.planned(), checkpoint.query()
    if planned is None and not log.exists():
        return []
    found: list[str] = []
    if really:
        log.acquire()
    try:
        state: Any = log.noted(STATE)
        owner = cast("dict[str, Any]", state).get("query", "") if isinstance(state, dict) else ""
        if query and owner and owner != query:
            found.append(
                f"The log at {log.path} belongs to query {owner}, and the checkpoint to query {query}: the "
                f"repair assigns the log to query {query}. The last commit of the other query may be "
                "delivered again."
            )
            if really:
                for batch in log.batches():
                    log.remove(batch)
                log.note(STATE, {**state, "query": query})
        if planned is not None:
            found += _gaps(planned, log, really)
    finally:
        log.release()
    return found


def _gaps(planned: Planned, log: BatchLog, really: bool) -> list[str]:
    """Replace batches requested by Spark and absent from the log."""
    start = planned.end if planned.committed or planned.start is None else planned.start
    batches, whole = log.covering(start, planned.end)
    known = {each.end for each in log.batches()}
    if planned.committed or start == planned.end:
        if planned.end in known or not planned.end:
            return []
        if really:
            log.mark(planned.end, planned.end)
        return [
            f"{planned.end} messages are committed, and the log at {log.path} does not have the last of "
            "these messages: the repair continues the log after them. The messages of the last commit may "
            "be delivered again."
        ]
    if whole:
        return []
    edge = start
    for batch in batches:
        if batch.start > edge and really:
            log.mark(edge, batch.start)
        edge = max(edge, batch.end)
    if edge < planned.end and really:
        log.mark(edge, planned.end)
    return [
        f"Batch {planned.batch} has messages {start} to {planned.end}, and the log at {log.path} does not "
        "have all of them: the batch continues with the messages in the log. A later batch has the "
        "missing messages, if the broker still has them."
    ]


def _reads(checkpoint: str, really: bool) -> list[str]:
    reads = Reads(checkpoint)
    unconfirmed = reads.describe()
    if unconfirmed is None:
        return []
    number, messages, stored = unconfirmed
    if stored:
        return [
            f"Read {number} of {messages} messages is not confirmed, and the messages exist only in its "
            "folder. The read stays: load and confirm it."
        ]
    if really:
        reads.give_up()
    return [
        f"Read {number} of {messages} messages is not confirmed: the repair gives up the read. The "
        "messages are in their queue."
    ]
