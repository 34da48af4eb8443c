# SPDX-License-Identifier: Apache-2.0
"""What a stream notes beside its log, and what is found out from it when the query starts again.

A log belongs to a query, whatever the options of the query are. A change is either made up for, or refused
with an error that says what to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

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
    with_balance,
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
    "look_for_balance",
    "look_for_others",
    "note_state",
    "refuse",
]

logger = logging.getLogger("bmq.spark")

#: The files beside a log: what it was begun with, and what the broker had dropped when it was asked last.
STATE, _DROPPED = "state.json", "dropped.json"
DROPPED_ADVICE = "They are gone. Start the query again to go on; failOnDataLoss=false makes a warning of it"
OWN_CHECKPOINT = (
    "readStream has the checkpointLocation of another query. Give readStream and writeStream the same one, "
    "and each query a readStream of its own"
)
# Seconds that others have to leave an exclusive queue: a driver that died may not have left it yet.
_LEAVING = 5.0
_PAUSE = 0.25
# Seconds after which the broker's statistics count all that it had done.
_SETTLED = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Where the log of a stream is, and what it is checked against.

    Attributes:
        path: the folder.
        checkpoint: the checkpoint of the query; "" if that is not known.
        source: the name of the source in the query; "" for the only one.
        strict: whether lost data is an error.
    """

    path: str
    checkpoint: str = ""
    source: str = ""
    strict: bool = True


def described_settings(settings: SourceSettings) -> dict[str, Any]:
    """Return what of the options decides which messages are read."""
    return {"queues": list(settings.queues), "subscriptions": [list(each) for each in settings.subscriptions]}


def refuse(what: str, goes_on: str, *, strict: bool, checkpoint: str = "") -> None:
    """Raise, or warn where the option failOnDataLoss says so.

    Args:
        what: what is wrong.
        goes_on: how the query would go on.
        strict: whether to raise.
        checkpoint: the checkpoint, for the advice.

    Raises:
        StateError: it is not to go on.
    """
    if not strict:
        logger.warning("%s; the query goes on %s, since failOnDataLoss=false", what, goes_on)
        return
    repair = f", and so does `bmq spark repair {checkpoint}` once" if checkpoint else ""
    raise StateError(f"{what}. Option failOnDataLoss=false goes on {goes_on}{repair}")


def check_log(log: BatchLog, place: LogPlace, settings: SourceSettings, start: int | None) -> bool:
    """Find out whether a log fits the query.

    Args:
        log: the log.
        place: where it is.
        settings: what is to be read.
        start: up to where everything is committed; None if that is not known.

    Returns:
        Whether the log was begun with other queues or subscriptions: what is committed has to be confirmed
        before these are subscribed to.

    Raises:
        StateError: it does not fit, or that is not to be known.
    """
    state: Any = log.noted(STATE)
    check_owner(log, place, state)
    if start and not any(batch.end == start for batch in log.batches()):
        refuse(
            f"{start:,} messages of this query are committed, but the log at {log.path} does not have the "
            "last of them: it was removed, or is another one. The broker may still hold these messages, and "
            "they would be read once more. Put the log back",
            "and may double what was committed last",
            strict=place.strict,
            checkpoint=place.checkpoint,
        )
        log.mark(start, start)
    now = described_settings(settings)
    if state is None or {name: state.get(name) for name in now} == now:
        return False
    if start is None:
        raise StateError(
            "queue or subscription of this query changed, and pyspark before 4.2 does not tell what is "
            "committed: start the query as it was, let it end with nothing left to read, and begin a new "
            "checkpoint"
        )
    logger.info("queue or subscription changed: what is committed is confirmed first")
    return True


def check_checkpoint(place: LogPlace, start: int | None) -> None:
    """Raise if the query has another checkpoint than the option ``checkpointLocation`` of its source.

    Args:
        place: where the log is.
        start: the number of messages that the query has read; None for an engine that does not tell.

    Raises:
        StateError: the checkpoint is another query's, or nobody's.
    """
    if not place.checkpoint:
        return
    checkpoint = Checkpoint(place.checkpoint, place.source)
    if not checkpoint.query():
        raise StateError(
            f"no query has its checkpoint in {place.checkpoint}, the checkpointLocation of readStream: give "
            "readStream and writeStream the same one. Where pyarrow does not reach Spark's checkpoint, give "
            "readStream the option logPath and no checkpointLocation"
        )
    planned = checkpoint.planned()
    if planned is not None and start is not None and planned.end != start:
        raise StateError(
            f"this query has read {start:,} messages, and the query of checkpoint {place.checkpoint} "
            f"{planned.end:,}: {OWN_CHECKPOINT}"
        )


def check_owner(log: BatchLog, place: LogPlace, state: Any) -> None:
    """Raise if the log is another query's.

    Raises:
        StateError: it is.
    """
    query = Checkpoint(place.checkpoint).query() if place.checkpoint else ""
    owner = cast("dict[str, Any]", state).get("query", "") if isinstance(state, dict) else ""
    if query and owner and query != owner:
        refuse(
            f"the log at {log.path} is of query {owner}, and the checkpoint of query {query}: the checkpoint "
            "was removed or replaced. What the other query had committed last would be read once more. Give "
            "the new query a logPath of its own, or put the checkpoint back",
            "with this log, and may double what was committed last",
            strict=place.strict,
            checkpoint=place.checkpoint,
        )


def note_state(log: BatchLog, place: LogPlace, settings: SourceSettings) -> None:
    """Note what the log is used with from now on."""
    query = Checkpoint(place.checkpoint).query() if place.checkpoint else ""
    wanted = {"query": query, **described_settings(settings)}
    if log.noted(STATE) != wanted:
        log.note(STATE, wanted)


async def look_for_others(settings: SourceSettings) -> None:
    """Log who else reads the queues, or wait until nobody does, where they are to be exclusive.

    Raises:
        StateError: somebody reads an exclusive queue, or the broker does not say.
    """
    deadline = asyncio.get_running_loop().time() + _LEAVING
    while True:
        try:
            others = await other_readers(settings.connection, settings.queues)
        except (Error, TimeoutError) as error:
            why = str(error) or f"no answer in {PATIENCE:g} s"
            if settings.exclusive:
                raise StateError(f"option exclusive: the broker does not say who else reads: {why}") from None
            logger.info("the broker does not say who else reads: %s", why)
            return
        if not others or not settings.exclusive or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(_PAUSE)
    listed = "; ".join(f"{uri}: {', '.join(readers)}" for uri, readers in others.items())
    if others and settings.exclusive:
        raise StateError(f"option exclusive: others read the same queue: {listed}")
    if others:
        logger.warning(
            "others read the same queue, and each message goes to one reader only: %s. For a copy each, read "
            "a fanout queue with an application of one's own",
            listed,
        )


async def look_for_balance(settings: SourceSettings) -> frozenset[str]:
    """Return the queues of which a purge can be told."""
    try:
        return await with_balance(settings.connection, settings.queues)
    except (Error, TimeoutError) as error:
        logger.debug("the broker does not say how its domains are: %s", error)
        return frozenset()


async def dropped_since(
    log: BatchLog, settings: SourceSettings, balanced: frozenset[str], in_hand: Callable[[], int]
) -> dict[str, int]:
    """Return how many messages the broker has dropped since the last call, by queue.

    Args:
        log: the log, beside which it is noted.
        settings: what is read.
        balanced: what :func:`look_for_balance` found.
        in_hand: says how many messages are received and not confirmed.
    """
    given: Any = log.noted(_DROPPED)
    noted = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    before = {uri: Counted(**each) for uri, each in noted.items()}
    try:
        now = await dropped_totals(settings.connection, settings.queues, balanced)
        more, known = newly_dropped(before, now, in_hand())
        if more:
            # Statistics are made once a second, and not of all counters at the same moment.
            await asyncio.sleep(_SETTLED)
            now = await dropped_totals(settings.connection, settings.queues, balanced)
            more, known = newly_dropped(before, now, in_hand())
    except (Error, TimeoutError) as error:
        logger.debug("the broker does not say what it dropped: %s", error)
        return {}
    merged = {**before, **known}
    if merged != before:
        document = {uri: each._asdict() for uri, each in merged.items()}
        await asyncio.to_thread(log.note, _DROPPED, document)
    return more
