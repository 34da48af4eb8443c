# SPDX-License-Identifier: Apache-2.0
"""Explicit confirmation of batch reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from bmq import _checks
from bmq.errors import UsageError
from bmq.spark._options import READ_OPTIONS, Options, read_settings
from bmq.spark._reads import Reads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["confirm"]


def confirm(options: Mapping[str, Any], rows: DataFrame | None = None) -> int:
    """Remove the messages of a read from their queue, once the rows are stored at their destination.

    ::

        options = {"broker": ..., "queue": ..., "checkpointLocation": "/data/checkpoints/nightly"}
        orders = spark.read.format("bmq").options(**options).load()
        orders.write.mode("overwrite").parquet("/data/orders/today")
        bmq.spark.confirm(options)

    Confirms the unconfirmed read of this ``checkpointLocation``: all its rows, including rows removed by a
    filter or ``limit``. With ``rows``, only the listed GUIDs are confirmed, and the other messages are part
    of the next read.

    The confirmation is recorded in the folder of ``checkpointLocation`` before it is sent to the broker. So
    after any crash, the rows of a confirmed read are never read again. A confirmation that did not reach the
    broker is sent by the next call, or the next read.

    Args:
        options: options of the ``spark.read`` call.
        rows: DataFrame with a column ``guid``: the rows that were read, or written.

    Returns:
        Number of messages confirmed by this call; 0 if no read was unconfirmed.

    Raises:
        UsageError: an option is not legal, ``checkpointLocation`` is missing, or ``rows`` has no column
            ``guid``.
        StateError: the read belongs to other queues.
        ConnectionFailed: the broker cannot be reached; repeat the call.
        OpenQueueError, RequestTimeout: the queue cannot be opened; repeat the call.
    """
    given = {
        _checks.text("an option", name): _as_text(name, each)
        for name, each in _checks.mapping("options", options).items()
    }
    parsed = Options(given, READ_OPTIONS)
    settings, _ = read_settings(parsed)
    checkpoint: str = parsed["checkpointLocation"]
    if not checkpoint:
        raise UsageError(
            "option checkpointLocation is missing: a read without this option is never confirmed, and its "
            "messages stay in the queue"
        )
    guids: list[str] | None = None
    if rows is not None:
        if "guid" not in _columns(rows):
            raise UsageError(
                "rows must be a DataFrame with the messages to confirm, identified by a column guid"
            )
        guids = [str(each["guid"]) for each in rows.select("guid").collect()]
    return Reads(checkpoint).confirm(settings, guids)


def _as_text(name: str, value: object) -> str:
    """Return an option's value as text, in the form used by ``spark.read.options``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(_checks.integer(f"option {name}", value, -(1 << 63)))
    if isinstance(value, float):
        return str(float(value))
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    return _checks.text(f"option {name}", value)


def _columns(rows: object) -> list[str]:
    columns = getattr(rows, "columns", None)
    if not isinstance(columns, list | tuple):
        return []
    return [str(each) for each in cast("Sequence[object]", columns)]
