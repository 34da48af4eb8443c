# SPDX-License-Identifier: Apache-2.0
"""The backlog in the broker, for the progress of a stream."""

from __future__ import annotations

import time

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader

from bmq._logging import Log
from bmq.errors import Error, UsageError
from bmq.spark._portal import portal
from bmq.spark._standing import PATIENCE, queue_depths
from bmq.spark._stream_reader import StreamReader

__all__ = ["LaggingReader", "check_progress"]

logger = Log("bmq.spark")

# Seconds between two queries; longer after a query without an answer.
_OFTEN, _SELDOM = 5.0, 60.0


class LaggingReader(StreamReader):
    """A stream whose progress contains the number of messages in the broker: ``lag`` in ``latestOffset``."""

    _asked: float | None = None
    _pause = _OFTEN
    _depths: dict[str, int] | None = None

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Return the offset of all arrived messages, and the number of messages in the queues."""
        latest = super().reportLatestOffset()
        depths = self._now()
        if latest is None or depths is None:
            return latest
        more: dict[str, dict[str, int]] = {"lag": depths}
        return latest | more  # type: ignore[return-value]  # JSON, with values of any type

    def _now(self) -> dict[str, int] | None:
        now = time.monotonic()
        if self._asked is None or now >= self._asked + self._pause:
            settings = self._settings
            try:
                with portal() as here:
                    self._depths = here.run(queue_depths(settings.connection, settings.queues))
                self._pause = _OFTEN
            except (Error, TimeoutError) as error:
                if self._pause == _OFTEN:
                    logger.warning(
                        "the progress has no lag: %s", str(error) or f"no answer in {PATIENCE:g} s"
                    )
                self._pause, self._depths = _SELDOM, None
            self._asked = time.monotonic()
        return self._depths


def check_progress() -> None:
    """Check that the progress of this pyspark can carry a source's own fields.

    Raises:
        UsageError: the installed pyspark cannot.
    """
    if not hasattr(DataSourceStreamReader, "reportLatestOffset"):
        raise UsageError(
            f"option lag needs pyspark 4.2 or newer, and this is {pyspark.__version__}: older versions "
            "cannot report the lag in the progress. `bmq stat` and bmq.admin show the depth of a queue"
        )
