# SPDX-License-Identifier: Apache-2.0
"""How much waits in the broker, for the progress of a stream."""

from __future__ import annotations

import asyncio
import logging
import time

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader

from bmq import admin
from bmq.errors import Error, UsageError
from bmq.spark._portal import ConnectionSettings, portal
from bmq.spark._stream_reader import StreamReader
from bmq.wire.uri import QueueUri

__all__ = ["LaggingReader", "check_progress", "queue_depths"]

logger = logging.getLogger("bmq.spark")

# Seconds between two questions; after one without an answer it is longer, and nobody waits long for one.
_OFTEN, _SELDOM, _PATIENCE = 5.0, 60.0, 2.0


class LaggingReader(StreamReader):
    """A stream whose progress says how many messages the broker holds: ``lag`` in ``latestOffset``."""

    _asked: float | None = None
    _pause = _OFTEN
    _depths: dict[str, int] | None = None

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Return how far it would go with what has arrived, and what the queues hold."""
        latest = super().reportLatestOffset()
        depths = self._now()
        if latest is None or depths is None:
            return latest
        more: dict[str, dict[str, int]] = {"lag": depths}
        return latest | more  # type: ignore[return-value] # it is JSON, whatever the type of its values

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
                        "no lag in the progress: %s", str(error) or f"no answer in {_PATIENCE:g} s"
                    )
                self._pause, self._depths = _SELDOM, None
            self._asked = time.monotonic()
        return self._depths


async def queue_depths(connection: ConnectionSettings, queues: tuple[str, ...]) -> dict[str, int]:
    """Ask the broker how many messages it holds in each queue that are not confirmed.

    Args:
        connection: the broker.
        queues: their URIs; of a fanout queue with the application.

    Raises:
        Error: the broker is not there, or does not answer the question.
        TimeoutError: not in time.
    """
    security = connection.security
    found: dict[str, int] = {}
    async with (
        asyncio.timeout(_PATIENCE),
        admin.connect(
            connection.broker,
            credentials=security.source(),
            ssl=security.context(),
            server_hostname=security.tls_server_name or None,
            timeout=_PATIENCE,
            process_name="bmq.spark",
        ) as asked,
    ):
        for uri in queues:
            depth = await asked.queue(uri).depth()
            app = QueueUri.parse(uri).app_id
            of_app = [each.messages for each in depth.apps if each.app_id == app]
            found[uri] = of_app[0] if of_app else depth.messages
    return found


def check_progress() -> None:
    """Raise unless the progress of this pyspark has a place for what a source says of itself.

    Raises:
        UsageError: it has not.
    """
    if not hasattr(DataSourceStreamReader, "reportLatestOffset"):
        raise UsageError(
            f"option lag needs pyspark 4.2 or newer, and this is {pyspark.__version__}: the progress of an "
            "older one has no place for it. `bmq stat` and bmq.admin say how much a queue holds"
        )
