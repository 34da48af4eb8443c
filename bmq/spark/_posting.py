"""A partition's rows to the broker: slices in flight, every acknowledgement awaited.

The task's thread pulls rows and converts them; the loop of the portal posts. Only a few slices are between
the two, so memory stays flat however large the partition is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from bmq._backoff import backoff
from bmq.client.message import FailedPost, PostReport, PutMessage
from bmq.client.queue import Queue
from bmq.errors import AckStatus, Error, PostError, RequestTimeout, UsageError
from bmq.spark._columns import BoundColumns, Columns, RowData, check_queue
from bmq.spark._guids import GuidMaker, GuidMode, guid_maker
from bmq.spark._portal import ConnectionSettings, Lease, Portal, portal
from bmq.spark._summary import PartitionReport

__all__ = ["Scope", "SinkSettings", "post_partition"]

logger = logging.getLogger("bmq.spark")

#: A slice has at most this many rows, and about this many bytes.
SLICE_ROWS = 1000
SLICE_BYTES = 1024 * 1024
_SLICES_IN_FLIGHT = 8
_LONGEST_PAUSE = 30.0

# After these the same post will never succeed.
_FINAL = frozenset({AckStatus.INVALID_ARGUMENT, AckStatus.NOT_SUPPORTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """How rows are posted.

    Attributes:
        connection: the broker.
        queue: the target of every row; "" when a column names it.
        columns: which column is what.
        guid_mode: where GUIDs come from.
        job_id: names the job in GUIDs, instead of what Spark says.
        write_name: tells writes apart that share job and batch.
        max_retries: how often a negatively acknowledged message is posted again.
        retry_interval: seconds before the first such retry, doubled each time.
        ack_timeout: seconds without any outcome for a slice of rows after which the task fails.
    """

    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    queue: str = ""
    columns: Columns = field(default_factory=Columns)
    guid_mode: GuidMode = GuidMode.CONTENT
    job_id: str = ""
    write_name: str = ""
    max_retries: int = 5
    retry_interval: float = 0.2
    ack_timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.queue:
            check_queue(self.queue)
        if not self.queue and not self.columns.queue:
            raise UsageError("no target: name a queue (bmq://DOMAIN/QUEUE), or the column that has it")
        if self.guid_mode is GuidMode.ID and not self.columns.id:
            raise UsageError("guidMode=id needs an id column")


class Scope(NamedTuple):
    """What identifies a task in GUIDs made of content, and in reports.

    Attributes:
        job: the job, or query and batch.
        partition: the partition's number.
        attempt: how often it was tried before; not part of GUIDs.
    """

    job: str
    partition: int = 0
    attempt: int = 0


class _Slice(NamedTuple):
    """Some rows on their way: messages by queue, and each one's row."""

    messages: dict[str, tuple[list[PutMessage], list[int]]]
    size: int


def post_partition(
    slices: Iterator[tuple[int, RowData]], columns: BoundColumns, settings: SinkSettings, scope: Scope
) -> PartitionReport:
    """Post a partition's rows and wait for every acknowledgement.

    Args:
        slices: rows with the position of the first of them.
        columns: where they come from, for errors.
        settings: how to post.
        scope: what tells this partition's write from others.

    Raises:
        ConnectionFailed: the broker could not be reached, or not again after the connection was lost.
        PostError: a message was not accepted, despite the retries; the error names the row.
        UsageError: a row cannot be posted.
        RequestTimeout: no outcome in time.
    """
    report = PartitionReport(partition=scope.partition, attempt=scope.attempt)
    with portal() as here:
        _Partition(here, columns, settings, scope, report).run(slices)
    logger.info("%s", report)
    return report


class _Partition:
    """One partition being posted."""

    def __init__(
        self,
        here: Portal,
        columns: BoundColumns,
        settings: SinkSettings,
        scope: Scope,
        report: PartitionReport,
    ) -> None:
        self._portal = here
        self._columns = columns
        self._settings = settings
        self._scope = scope
        self._report = report
        self._makers: dict[str, GuidMaker] = {}
        self._flight: deque[Future[None]] = deque()
        self._turn = asyncio.Lock()
        self._lease: Lease

    def run(self, slices: Iterator[tuple[int, RowData]]) -> None:
        """Post everything."""
        context = self._portal.lease(self._settings.connection)
        self._lease = self._portal.run(context.__aenter__())
        try:
            self._feed(slices)
        finally:
            while self._flight:
                self._flight.popleft().cancel()
            self._portal.run(context.__aexit__(None, None, None))

    def _feed(self, slices: Iterator[tuple[int, RowData]]) -> None:
        started = time.monotonic()
        report = self._report
        reconnects = self._lease.session.stats().reconnects
        for first, data in slices:
            prepared = self._prepare(first, data)
            report.rows += len(data.payloads)
            report.bytes += prepared.size
            if len(self._flight) >= _SLICES_IN_FLIGHT:
                self._land()
            self._flight.append(self._portal.submit(self._post(prepared, first, data)))
        while self._flight:
            self._land()
        report.seconds = time.monotonic() - started
        report.reconnects = self._lease.session.stats().reconnects - reconnects

    def _land(self) -> None:
        """Wait for the oldest slice."""
        future = self._flight.popleft()
        try:
            future.result(self._settings.ack_timeout)
        except TimeoutError as error:
            if isinstance(error, Error):
                raise
            future.cancel()
            raise RequestTimeout(
                f"partition {self._scope.partition}: no outcome for rows posted "
                f"{self._settings.ack_timeout:g} s ago; broker {self._settings.connection.broker}, "
                f"{self._report.acknowledged} rows acknowledged before"
            ) from None

    def _prepare(self, first: int, data: RowData) -> _Slice:
        """Give every row its GUID."""
        settings = self._settings
        if settings.queue or data.queues is None:
            rows: dict[str, list[int]] = {settings.queue: list(range(len(data.payloads)))}
        else:
            rows = {}
            for at, uri in enumerate(data.queues):
                rows.setdefault(uri, []).append(at)
        messages: dict[str, tuple[list[PutMessage], list[int]]] = {}
        size = 0
        for uri, indexes in rows.items():
            maker = self._makers.get(uri)
            if maker is None:
                maker = self._makers[uri] = self._maker(uri, first + indexes[0])
            whole = len(rows) == 1
            contents = data.contents if whole else [data.contents[at] for at in indexes]
            ids = data.ids if whole or data.ids is None else [data.ids[at] for at in indexes]
            posts: list[PutMessage] = []
            positions: list[int] = []
            for at, guid in zip(indexes, maker.make(contents, ids), strict=True):
                if guid is None:
                    self._report.repeated += 1
                    continue
                payload = data.payloads[at]
                size += len(payload)
                posts.append(PutMessage(payload, data.properties[at], guid.hex().upper()))
                positions.append(first + at)
            messages[uri] = (posts, positions)
        return _Slice(messages, size)

    def _maker(self, uri: str, row: int) -> GuidMaker:
        try:
            check_queue(uri)
        except UsageError as error:
            raise type(error)(f"row {row} of the partition: {error}") from None
        settings, scope = self._settings, self._scope
        # Contents are values without column names, so the names are added here.
        what = (scope.job, str(scope.partition), settings.write_name, *settings.columns.properties)
        return guid_maker(settings.guid_mode, uri, what)

    # on the loop

    async def _post(self, prepared: _Slice, first: int, data: RowData) -> None:
        for uri, (posts, positions) in prepared.messages.items():
            queue = await self._lease.writer(uri)
            try:
                await self._post_all(queue, posts, positions)
            except UsageError as error:
                raise self._columns.locate(data, first) or error from None

    async def _post_all(self, queue: Queue, posts: list[PutMessage], positions: list[int]) -> None:
        """Post until every message is acknowledged, or one has been refused too often."""
        settings = self._settings
        for attempt in range(settings.max_retries + 1):
            outcome = await self._post_in_turn(queue, posts)
            self._report.acknowledged += outcome.acknowledged
            if not outcome.failures:
                return
            failures = sorted(outcome.failures, key=lambda each: each.index)
            self._raise_if_final(failures, positions, attempt)
            delay = backoff(attempt + 1, settings.retry_interval, _LONGEST_PAUSE)
            logger.warning(
                "%d messages to %s were not accepted (%s), posting them again in %g s",
                len(failures),
                queue.uri,
                failures[0].error.status.name,
                delay,
            )
            await asyncio.sleep(delay)
            self._report.retried += len(failures)
            posts = [posts[each.index] for each in failures]
            positions = [positions[each.index] for each in failures]
            if queue.closed:
                queue = await self._lease.writer(queue.uri)

    async def _post_in_turn(self, queue: Queue, posts: list[PutMessage]) -> PostReport:
        """Post, without mixing with other slices: messages keep the order of the rows."""
        posted = asyncio.Event()

        def items() -> Iterator[PutMessage]:
            yield from posts
            posted.set()

        async with self._turn:
            task = asyncio.ensure_future(queue.post_many(items()))
            task.add_done_callback(lambda _: posted.set())
            try:
                await posted.wait()
            except asyncio.CancelledError:
                task.cancel()
                raise
        return await task

    def _raise_if_final(self, failures: list[FailedPost], positions: list[int], attempt: int) -> None:
        settings = self._settings
        final = next((each for each in failures if each.error.status in _FINAL), None)
        if final is None and not self._lease.usable:
            final = failures[0]  # the session gave up: retrying cannot help
        if final is None and attempt < settings.max_retries:
            return
        failed = final or failures[0]
        error = failed.error
        tries = f" after {attempt} retries" if attempt else ""
        raise PostError(
            f"row {positions[failed.index]} of partition {self._scope.partition} was not accepted by "
            f"{error.queue_uri}{tries}: {error.status.name} ({error}); {len(failures)} rows near it failed",
            status=error.status,
            guid=error.guid,
            queue_uri=error.queue_uri,
        )
