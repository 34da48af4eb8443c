# SPDX-License-Identifier: Apache-2.0
"""A stream's records beside its log, and the checks when the query restarts.

A log belongs to a query, regardless of the query's options. A change of the options is either compensated, or
refused with an error and a remedy.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from bmq._logging import Log
from bmq.errors import Error, StateError
from bmq.spark._checkpoint import Checkpoint
from bmq.spark._log import BatchLog
from bmq.spark._receiving import SourceSettings
from bmq.spark._standing import (
    PATIENCE,
    Counted,
    dropped_totals,
    newly_dropped,
    other_readers,
)

__all__ = [
    "DROPPED_ADVICE",
    "OWN_CHECKPOINT",
    "STATE",
    "LogPlace",
    "check_checkpoint",
    "check_log",
    "described_settings",
    "dropped_since",
    "look_for_others",
    "note_state",
    "refuse",
]

logger = Log("bmq.spark")

#: Files beside a log: the options of its start, and the last counts of dropped messages.
STATE, _DROPPED = "state.json", "dropped.json"
DROPPED_ADVICE = (
    "The messages are lost. Restart the query to continue; with failOnDataLoss=false this error is a warning"
)
OWN_CHECKPOINT = (
    "readStream has the checkpointLocation of another query. Give readStream and writeStream the same "
    "checkpointLocation, and each query its own readStream"
)
# Seconds for other readers to leave an exclusive queue: a dead driver may still be registered.
_LEAVING = 5.0
_PAUSE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Location of a stream's log, and the checkpoint to compare it with.

    Attributes:
        path: folder.
        checkpoint: checkpoint of the query; "" if unknown.
        source: name of the source in the query; "" for the only source.
        strict: whether lost data is an error.
    """

    path: str
    checkpoint: str = ""
    source: str = ""
    strict: bool = True


def described_settings(settings: SourceSettings) -> dict[str, Any]:
    """Return the settings that determine which messages are read."""
    return {"queues": list(settings.queues), "subscriptions": [list(each) for each in settings.subscriptions]}


def refuse(what: str, goes_on: str, *, strict: bool, checkpoint: str = "") -> None:
    """Raise an error, or warn if the option failOnDataLoss allows.

    Args:
        what: problem.
        goes_on: continuation of the query in spite of the problem.
        strict: whether to raise an error.
        checkpoint: checkpoint, for the advice.

    Raises:
        StateError: the query must not continue.
    """
    if not strict:
        logger.warning("%s; the query continues %s, because of failOnDataLoss=false", what, goes_on)
        return
    repair = f"; `bmq spark repair {checkpoint}` permits the same once" if checkpoint else ""
    raise StateError(f"{what}. With failOnDataLoss=false, the query continues {goes_on}{repair}")


def check_log(log: BatchLog, place: LogPlace, settings: SourceSettings, start: int | None) -> bool:
    """Check whether a log matches the query.

    Args:
        log: log.
        place: location of the log.
        settings: settings of the source.
        start: number of messages that are certainly committed; None if unknown.

    Returns:
        True if the log was started with other queues or subscriptions: committed messages must be confirmed
        before the new subscriptions.

    Raises:
        StateError: the log does not match, or cannot be checked.
    """
    state: Any = log.noted(STATE)
    check_owner(log, place, state)
    if start and not any(batch.end == start for batch in log.batches()):
        refuse(
            f"{start:,} messages of this query are committed, but the log at {log.path} does not have the "
            "last of them: the log was removed or replaced. The broker may still hold these messages, and "
            "the query would read them again. Restore the log",
            "and may duplicate the last commit",
            strict=place.strict,
            checkpoint=place.checkpoint,
        )
        log.mark(start, start)
    now = described_settings(settings)
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


def check_checkpoint(place: LogPlace, start: int | None) -> None:
    """Check that the query's checkpoint is the option ``checkpointLocation`` of its source.

    Args:
        place: location of the log.
        start: number of messages that the query has read; None if the engine does not provide the number.

    Raises:
        StateError: the checkpoint belongs to another query, or to none.
    """
    if not place.checkpoint:
        return
    checkpoint = Checkpoint(place.checkpoint, place.source)
    if not checkpoint.query():
        raise StateError(
            f"no query has its checkpoint in {place.checkpoint}, the checkpointLocation of readStream: "
            "give readStream and writeStream the same checkpointLocation. Where pyarrow does not reach "
            "Spark's checkpoint, give readStream the option logPath and no checkpointLocation"
        )
    planned = checkpoint.planned()
    if planned is not None and start is not None and planned.end != start:
        raise StateError(
            f"this query has read {start:,} messages, and the query of checkpoint {place.checkpoint} has "
            f"read {planned.end:,}: {OWN_CHECKPOINT}"
        )


def check_owner(log: BatchLog, place: LogPlace, state: Any) -> None:
    """Check that the log belongs to this query.

    Raises:
        StateError: the log belongs to another query.
    """
    query = Checkpoint(place.checkpoint).query() if place.checkpoint else ""
    owner = cast("dict[str, Any]", state).get("query", "") if isinstance(state, dict) else ""
    if query and owner and query != owner:
        refuse(
            f"the log at {log.path} belongs to query {owner}, and the checkpoint to query {query}: the "
            "checkpoint was removed or replaced. The last commit of the other query would be read again. "
            "Give the new query a logPath of its own, or restore the checkpoint",
            "with this log, and may duplicate the last commit",
            strict=place.strict,
            checkpoint=place.checkpoint,
        )


def note_state(log: BatchLog, place: LogPlace, settings: SourceSettings) -> None:
    """Record the settings that the log is used with from now on."""
    query = Checkpoint(place.checkpoint).query() if place.checkpoint else ""
    wanted = {"query": query, **described_settings(settings)}
    if log.noted(STATE) != wanted:
        log.note(STATE, wanted)


async def look_for_others(settings: SourceSettings) -> None:
    """Log other readers of the queues; for exclusive queues, wait until there are none.

    Raises:
        StateError: another reader uses an exclusive queue, or the broker does not answer the query.
    """
    deadline = asyncio.get_running_loop().time() + _LEAVING
    while True:
        try:
            others = await other_readers(settings.connection, settings.queues)
        except (Error, TimeoutError) as error:
            why = str(error) or f"no answer in {PATIENCE:g} s"
            if settings.exclusive:
                raise StateError(f"option exclusive: other readers are unknown: {why}") from None
            logger.info("the broker does not report other readers: %s", why)
            return
        if not others or not settings.exclusive or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(_PAUSE)
    listed = "; ".join(f"{uri}: {', '.join(readers)}" for uri, readers in others.items())
    if others and settings.exclusive:
        raise StateError(f"option exclusive: other consumers read the same queue: {listed}")
    if others:
        logger.warning(
            "other consumers read the same queue, and each message goes to only one reader: %s. To give "
            "each reader a copy, read a fanout queue with separate applications",
            listed,
        )


async def dropped_since(log: BatchLog, settings: SourceSettings) -> dict[str, int]:
    """Return the number of messages dropped since the last call, by queue.

    Args:
        log: log beside which the counts are recorded.
        settings: settings of the source.
    """
    given: Any = log.noted(_DROPPED)
    noted = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    before = {uri: Counted(**each) for uri, each in noted.items()}
    try:
        now = await dropped_totals(settings.connection, settings.queues)
    except (Error, TimeoutError) as error:
        logger.debug("the broker does not report dropped messages: %s", error)
        return {}
    merged = {**before, **now}
    if merged != before:
        document = {uri: each._asdict() for uri, each in merged.items()}
        await asyncio.to_thread(log.note, _DROPPED, document)
    return newly_dropped(before, now)
