# SPDX-License-Identifier: Apache-2.0
"""The explicit acknowledgement of a batch read."""

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
    """Take the messages of a read out of their queue, once its rows are where they belong.

    ::

        options = {"broker": ..., "queue": ..., "checkpointLocation": "/data/checkpoints/nightly"}
        orders = spark.read.format("bmq").options(**options).load()
        orders.write.mode("overwrite").parquet("/data/orders/today")
        bmq.spark.confirm(options)

    It confirms the read of this ``checkpointLocation`` that is not confirmed yet: all rows of it, also those
    that a filter or ``limit`` left out. With ``rows`` it confirms those of its rows whose ``guid`` is there,
    and the others come again with the next read.

    That the rows are confirmed is noted in the folder of ``checkpointLocation`` before the broker is told. So
    whatever ends the program, the rows of a confirmed read do not come again: where the broker was not told,
    the next call or the next read does so.

    Args:
        options: the same as given to ``spark.read``.
        rows: a DataFrame with a column ``guid``: what was read, or what was written.

    Returns:
        How many messages were confirmed by this call; 0 if there was nothing to confirm.

    Raises:
        UsageError: an option is not legal, there is no ``checkpointLocation``, or ``rows`` has no column
            ``guid``.
        StateError: the read is of other queues.
        ConnectionFailed: the broker cannot be reached; call it again.
        OpenQueueError, RequestTimeout: the queue cannot be opened; call it again.
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
            "option checkpointLocation is missing: a read without it is never confirmed, and its messages "
            "stay in the queue"
        )
    guids: list[str] | None = None
    if rows is not None:
        if "guid" not in _columns(rows):
            raise UsageError("rows is a DataFrame with a column guid, which says what is to be confirmed")
        guids = [str(each["guid"]) for each in rows.select("guid").collect()]
    return Reads(checkpoint).confirm(settings, guids)


def _as_text(name: str, value: object) -> str:
    """Return the text of an option's value, as ``spark.read.options`` passes the value on."""
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
