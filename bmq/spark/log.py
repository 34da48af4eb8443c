# SPDX-License-Identifier: Apache-2.0
"""The log of a read: messages in the transmitted form, stored before Spark sees them.

A queue cannot be read twice, but after a crash Spark requests the same range from the source again. Therefore
each batch is written to a file in this log before the batch is reported to Spark. Rows are written as they
arrive. A complete file is named by its range of message numbers, counted from the start of the query. Tasks
decode the messages: the same batch can be decoded with another schema, and an undecodable message affects
only its own row.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import re
import socket
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pyspark.sql.datasource import InputPartition

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.arrow.decoding import Decoded, RecordBatch, TableDecoder, guid_texts, pa, pc, pieces, to_arrow
from bmq.arrow.push import PushColumns
from bmq.errors import ProtocolError, StateError, UsageError
from bmq.spark.schema import SOURCE_COLUMNS, TYPES, OnInvalidMessage, arrow_schema_of, check_readable
from bmq.wire.constants import PushFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.printable import printable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from bmq.arrow.consumer import Taken

fs: Any = importlib.import_module("pyarrow.fs")

__all__ = [
    "BatchLog",
    "Guids",
    "LogPartition",
    "LoggedBatch",
    "OpenBatch",
    "RowMaker",
    "Source",
    "cut",
    "filesystem",
    "guid_array",
    "guid_keys",
    "raw_rows",
    "raw_schema",
    "read_partition",
    "sizes_of",
]

#: Source of messages: URI of the queue, and name of the subscription (None for all messages).
Source = tuple[str, str | None]

_GUID = pa.binary(16)

_FIELDS = [
    pa.field("data", pa.binary(), nullable=False),
    pa.field("guid", _GUID, nullable=False),
    pa.field("flags", pa.uint8(), nullable=False),
    pa.field("schema", pa.uint16(), nullable=False),
    pa.field("compression", pa.uint8(), nullable=False),
    pa.field("source", pa.uint16(), nullable=False),
    pa.field("received", pa.timestamp("us", tz="UTC"), nullable=False),
]

_SOURCES = b"bmq.sources"


logger = Log("bmq.spark")
_NAME = re.compile(r"(\d{20})-(\d{20})\.arrow\Z")
_PARTIAL = ".partial"
_LOCK_PATIENCE = 15.0
# Columns of a file of GUIDs.
_GUIDS = [pa.field("guid", pa.binary(16)), pa.field("source", pa.uint16())]
_POSIX = os.name == "posix"
# Databricks mounts its file system here, on all machines.
_DATABRICKS = "/dbfs"
#: GUIDs by queue URI, because applications of a fanout queue share GUIDs. A GUID has 16 bytes, half the size
#: of the text.
Guids = dict[str, set[bytes]]


def raw_schema(sources: Sequence[Source]) -> Any:
    """Return the columns of a log with messages from these sources, to which the rows refer by number."""
    return pa.schema(_FIELDS, metadata={_SOURCES: json.dumps(list(sources)).encode()})


def sources_of(schema: Any) -> list[Source]:
    """Return the sources to which the rows of a log refer by number."""
    found: list[list[Any]] = json.loads(schema.metadata[_SOURCES])
    return [(uri, subscription) for uri, subscription in found]


def raw_rows(taken: Taken, clock: float, source: int, schema: Any) -> RecordBatch:
    """Return a row for each message.

    Args:
        taken: messages.
        clock: the present time of the event loop.
        source: number of the source.
        schema: result of :func:`raw_schema`.
    """
    columns = taken.columns
    count = columns.count
    guids = pa.py_buffer(np.ascontiguousarray(columns.guids))
    arrays = [
        pieces(columns.buffer, columns.starts, columns.stops),
        pa.Array.from_buffers(_GUID, count, [None, guids]),
        to_arrow(columns.flags),
        to_arrow(columns.schema_ids),
        to_arrow(columns.compressions),
        to_arrow(np.full(count, source, np.uint16)),
        to_arrow(taken.received_at(clock)).cast(_FIELDS[-1].type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def columns_of(rows: RecordBatch) -> PushColumns:
    """Return the messages of a log's rows, for a decoder."""
    data, count = rows.column(0), rows.num_rows
    offsets = _offsets(data)
    first, last = int(offsets[0]), int(offsets[-1])
    buffer = data.buffers()[2]
    bounds = offsets.astype(np.int64) - first
    return PushColumns(
        b"" if buffer is None else memoryview(buffer)[first:last].tobytes(),
        [()],
        bounds[:-1],
        bounds[1:],
        guid_array(rows),
        _numbers(rows.column(2), np.uint8),
        _numbers(rows.column(3), np.uint16),
        _numbers(rows.column(4), np.uint8),
        np.zeros(count, np.int32),
        np.zeros(count, np.int64),
    )


def guid_keys(rows: RecordBatch) -> list[bytes]:
    """Return the GUID of each row, as bytes."""
    keys: list[bytes] = guid_array(rows).tolist()
    return keys


def guid_array(rows: RecordBatch) -> Any:
    """Return the GUID of each row, as a numpy array."""
    return _guids(rows.column(1))


def sizes_of(rows: RecordBatch) -> Any:
    """Return the transmitted size of each message."""
    return np.diff(_offsets(rows.column(0)))


def _offsets(data: Any) -> Any:
    return np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]


def _guids(column: Any) -> Any:
    return np.frombuffer(column.buffers()[1], "V16", len(column), column.offset * 16)


def _numbers(column: Any, kind: Any) -> Any:
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


class LoggedBatch(NamedTuple):
    """A file of the log.

    Attributes:
        start: number of messages before the batch.
        end: number of messages up to the end of the batch.
        path: path within the file system.
    """

    start: int
    end: int
    path: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.start:020d}-{self.end:020d}.arrow"


class OpenBatch:
    """A batch that is being written. Created by :meth:`BatchLog.begin`; for use by one thread at a time.

    Attributes:
        start: number of messages before the batch.
        rows: number of written rows.
    """

    def __init__(self, log: BatchLog, start: int, schema: Any) -> None:
        self.start = start
        self.rows = 0
        self._log = log
        self._schema = schema
        self._path = f"{log.root}/{start:020d}{_PARTIAL}"
        self._sink = log.fs.open_output_stream(self._path)
        self._file = pa.ipc.new_file(self._sink, schema)

    def write(self, batches: Sequence[RecordBatch]) -> None:
        """Add rows.

        Raises:
            OSError: the rows cannot be written.
        """
        for batch in batches:
            self._file.write_batch(batch)
            self.rows += batch.num_rows

    def finish(self, end: int | None = None) -> LoggedBatch:
        """Complete the file, which then survives a crash.

        Args:
            end: number of messages up to the end of the batch, if different from the rows.

        Raises:
            OSError: the file cannot be written.
        """
        self._file.close()
        self._sink.close()
        return self._log.complete(self._path, self.start, self.start + self.rows if end is None else end)

    def abandon(self) -> None:
        """Remove the file if possible; the next run removes any remains."""
        with suppress(OSError):
            self._sink.close()
            self._log.fs.delete_file(self._path)


class BatchLog:
    """A folder with one Arrow file for each batch.

    Args:
        path: local path, or URI of any file system supported by pyarrow (``s3://``, ``hdfs://``, ...),
            reachable from the driver and all executors.

    Attributes:
        path: path as given.
        fs: pyarrow's file system.
        root: folder within the file system.
        local: whether the file system is local.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.fs, self.root = filesystem(path)
        self.local = isinstance(self.fs, fs.LocalFileSystem)
        self._lock: Any = None

    def acquire(self, patience: float | None = None) -> None:
        """Create the folder, and check that no other query uses the folder (on local file systems).

        Args:
            patience: seconds to wait for another query; None for a few seconds.

        Raises:
            StateError: another query uses the folder.
        """
        self.fs.create_dir(self.root, recursive=True)
        if not self.local or self._lock is not None:
            return
        try:
            import fcntl
        except ImportError:  # Windows has no such locks
            return
        lock = open(os.path.join(self.root, "lock"), "ab")  # noqa: SIM115 - held for the life of the process
        deadline = time.monotonic() + (_LOCK_PATIENCE if patience is None else patience)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    lock.close()
                    raise StateError(
                        f"another query or source uses the log at {self.path}: give each query a "
                        "checkpointLocation (or logPath) of its own, and each source of a query with "
                        "several sources a sourceName. A stream that is joined with itself counts as two "
                        "sources"
                    ) from None
            time.sleep(0.05)
        self._lock = lock

    def release(self) -> None:
        """Release the folder for other queries."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def batches(self) -> list[LoggedBatch]:
        """Return the batches in the log, in order."""
        found: list[LoggedBatch] = []
        for info in self._files():
            match = _NAME.match(info.base_name)
            if match:
                found.append(LoggedBatch(int(match[1]), int(match[2]), info.path))
        return sorted(found)

    def files(self, prefix: str) -> list[str]:
        """Return the names of all files with a prefix, sorted."""
        return sorted(info.base_name for info in self._files() if info.base_name.startswith(prefix))

    def delete(self, name: str) -> None:
        """Remove a file."""
        self.fs.delete_file(f"{self.root}/{name}")

    def drop(self) -> None:
        """Remove the folder, if it exists."""
        if self.fs.get_file_info(self.root).type == fs.FileType.Directory:
            self.fs.delete_dir(self.root)

    def clear(self) -> None:
        """Remove incomplete files of an earlier query."""
        for info in self._files():
            if info.base_name.endswith(_PARTIAL):
                self.fs.delete_file(info.path)

    def _files(self) -> list[Any]:
        files: list[Any] = self.fs.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        return files

    def begin(self, start: int, schema: Any) -> OpenBatch:
        """Begin to write a batch.

        Args:
            start: number of messages before the batch.
            schema: columns of the batch.

        Raises:
            OSError: the file cannot be written.
        """
        return OpenBatch(self, start, schema)

    def complete(self, partial: str, start: int, end: int) -> LoggedBatch:
        """Rename a written file to its final name, so that the batch survives a crash."""
        batch = LoggedBatch(start, end, "")
        return batch._replace(path=self._name(partial, batch.name))

    def _sync(self, path: str) -> None:
        # Windows flushes only writable files, and folders are read-only.
        descriptor = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def covering(self, start: int, end: int) -> tuple[list[LoggedBatch], bool]:
        """Return the batches within a range, and whether they cover the whole range."""
        if start == end:
            return [], True
        found = [each for each in self.batches() if start <= each.start and each.end <= end]
        edges = [start, *(each.end for each in found)]
        whole = edges[-1] == end and all(each.start == edge for each, edge in zip(found, edges, strict=False))
        return found, whole

    def read(self, path: str) -> tuple[Iterator[RecordBatch], list[Source]]:
        """Return the rows of a batch, and the sources to which the rows refer by number.

        Raises:
            FileNotFoundError: the file does not exist.
            StateError: the file is empty, incomplete or damaged; also raised while the rows are read.
        """
        with _reading(path):
            mapped = _mapped(path) if self.local else None
            source = (
                self.fs.open_input_file(path) if mapped is None else pa.BufferReader(pa.py_buffer(mapped))
            )
            file = pa.ipc.open_file(source)

        def part(number: int) -> RecordBatch:
            with _reading(path):
                return file.get_batch(number)

        def batches() -> Iterator[RecordBatch]:
            with source:
                for number in range(file.num_record_batches):
                    yield part(number)
                    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                        # Otherwise the read pages stay resident: a task's memory would grow with its rows.
                        mapped.madvise(mmap.MADV_DONTNEED)

        return batches(), sources_of(file.schema)

    def guids(self, name: str) -> Iterator[tuple[str, list[bytes]]]:
        """Return the GUIDs of a batch or of a file of GUIDs, with the URI of their queue."""
        path = f"{self.root}/{name}"
        with pa.memory_map(path) if self.local else self.fs.open_input_file(path) as source:
            file = pa.ipc.open_file(source)
            sources = sources_of(file.schema)
            for number in range(file.num_record_batches):
                rows = file.get_batch(number)
                keys, numbers = _guids(rows.column("guid")), _numbers(rows.column("source"), np.uint16)
                for at, (uri, _) in enumerate(sources):
                    yield uri, keys[numbers == at].tolist()

    def write_guids(self, name: str, guids: Mapping[str, Collection[bytes]]) -> None:
        """Write a file of GUIDs, by the URI of their queue."""
        schema = pa.schema(_GUIDS, metadata=raw_schema([(uri, None) for uri in guids]).metadata)
        partial = f"{self.root}/{name}{_PARTIAL}"
        with self.fs.open_output_stream(partial) as sink, pa.ipc.new_file(sink, schema) as file:
            for number, keys in enumerate(guids.values()):
                if not keys:
                    continue
                of_keys = pa.Array.from_buffers(_GUID, len(keys), [None, pa.py_buffer(b"".join(keys))])
                arrays = [of_keys, to_arrow(np.full(len(keys), number, np.uint16))]
                file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self._name(partial, name)

    def _name(self, partial: str, name: str) -> str:
        """Give a written file its final name, so that it survives a crash; return its path."""
        path = f"{self.root}/{name}"
        if self.local:
            self._sync(partial)
        self.fs.move(partial, path)
        if self.local and _POSIX:  # Windows cannot open a folder, and need not flush it
            self._sync(self.root)
        return path

    def read_guids(self, names: Iterable[str]) -> Guids:
        """Return the GUIDs of batches and of files of GUIDs.

        Raises:
            FileNotFoundError: a file does not exist.
        """
        found: Guids = {}
        for name in names:
            for uri, keys in self.guids(name):
                found.setdefault(uri, set()).update(keys)
        return found

    def mark(self, start: int, end: int) -> None:
        """Write a batch without messages instead of a lost batch."""
        self.begin(start, raw_schema([])).finish(end)

    def note(self, name: str, document: Any) -> None:
        """Write a small file atomically."""
        partial = f"{self.root}/{name}{_PARTIAL}"
        with self.fs.open_output_stream(partial) as sink:
            sink.write(json.dumps(document, indent=1).encode())
        self._name(partial, name)

    def noted(self, name: str) -> Any:
        """Return the document of :meth:`note`; None if the file does not exist, or has no valid JSON."""
        try:
            with self.fs.open_input_stream(f"{self.root}/{name}") as source:
                return json.loads(source.read())
        except (FileNotFoundError, ValueError):
            return None

    def remove(self, batch: LoggedBatch) -> None:
        """Remove a batch."""
        self.fs.delete_file(batch.path)


@contextmanager
def _reading(path: str) -> Generator[None]:
    """Report a file that is empty or incomplete after a crash, or has changed since."""
    try:
        yield
    except (ValueError, OSError) as error:  # ValueError for an empty file; pa.ArrowInvalid is another one
        if isinstance(error, OSError) and error.errno is not None:
            raise  # by the operating system; pyarrow's errors about the content have no number
        raise StateError(
            f"{path} is empty or damaged ({error}): stop the query, delete the file, and start the query "
            "once with failOnDataLoss=false. It then receives the messages that the broker still has"
        ) from error


def _mapped(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class RowMaker:
    """Builds Arrow batches with one schema from the rows of a log.

    Args:
        schema: requested columns.
        on_invalid: handling of undecodable messages. Dead letters were put aside before the log was written;
            an undecodable message in the log nevertheless becomes a row.

    Raises:
        UsageError: a column does not exist, or has a type that no property can have.

    Attributes:
        arrow_schema: columns.
        dropped: number of undecodable messages that were omitted.
    """

    def __init__(self, schema: StructType, on_invalid: OnInvalidMessage = OnInvalidMessage.ROW) -> None:
        unknown = [name for name in schema.fieldNames() if name not in SOURCE_COLUMNS]
        if unknown:
            raise UsageError(
                f"a queue has no column {', '.join(map(repr, unknown))}; its columns are: "
                f"{', '.join(SOURCE_COLUMNS)}"
            )
        has_properties = "properties" in schema.fieldNames()
        if has_properties:
            check_readable(schema)
        self.arrow_schema = arrow_schema_of(schema)
        self.dropped = 0
        self._on_invalid = on_invalid
        self._limit = LogLimit(logger)
        properties: dict[str, Any] | None = {}
        if has_properties:
            kind = self.arrow_schema.field("properties").type
            properties = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else None
        self._properties = properties
        self._decoder = TableDecoder(properties, payload="value" in schema.fieldNames(), types=TYPES)

    def make(self, rows: RecordBatch, sources: Sequence[Source]) -> Iterator[RecordBatch]:
        """Decode rows of a log into a single batch, unless the batch would be very large.

        Args:
            rows: rows.
            sources: sources of the log.

        Raises:
            ProtocolError: a message cannot be decoded, with ``fail``.
        """
        columns = columns_of(rows)
        while columns.count:
            decoded = self._decoder.decode(columns)
            count = decoded.rows
            yield self._batch(rows.slice(0, count), columns.part(0, count), decoded, sources)
            rows, columns = rows.slice(count), columns.part(count, columns.count)

    def _batch(
        self, rows: RecordBatch, columns: PushColumns, decoded: Decoded, sources: Sequence[Source]
    ) -> RecordBatch:
        arrays = [self._column(field, rows, columns, decoded, sources) for field in self.arrow_schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)
        if not decoded.errors or self._on_invalid in (OnInvalidMessage.ROW, OnInvalidMessage.DEAD_LETTERS):
            return batch
        row, error = min(decoded.errors.items())
        source: int = rows.column(5)[row].as_py()
        queue = sources[source][0]
        name = f"message {guid_to_text(columns.guids[row].tobytes())} of {queue} cannot be decoded"
        if self._on_invalid is OnInvalidMessage.FAIL:
            raise ProtocolError(
                f"{name}: {error.reason}. The message is in the log of this read, and not confirmed; with "
                "another onInvalidMessage (row, drop) the query continues with the same batch"
            ) from error
        self.dropped += len(decoded.errors)
        self._limit.warning("dropped", "%s, and is omitted: %s", name, printable(error.reason))
        return batch.filter(decoded.readable())

    def _column(
        self,
        field: Any,
        rows: RecordBatch,
        columns: PushColumns,
        decoded: Decoded,
        sources: Sequence[Source],
    ) -> Any:
        name, kind = field.name, field.type
        if name == "value":
            # All delivered bytes of undecodable messages.
            payload = decoded.payload
            if decoded.errors:
                payload = pc.if_else(decoded.readable(), payload, rows.column(0))
            return payload.cast(kind)
        if name == "properties":
            return self._properties_column(kind, decoded)
        if name == "guid":
            return guid_texts(columns.guids).cast(kind)
        if name == "redelivered":
            return to_arrow((columns.flags & PushFlags.OUT_OF_ORDER) != 0)
        if name == "receivedAt":
            return rows.column(6).cast(kind)
        if name == "error":
            return _reasons(decoded.errors, columns.count, kind)
        values = [uri if name == "queue" else subscription for uri, subscription in sources]
        if len(values) == 1:
            return pa.repeat(pa.scalar(values[0], kind), rows.num_rows)
        return pa.array(values, kind).take(rows.column(5))

    def _properties_column(self, kind: Any, decoded: Decoded) -> Any:
        if self._properties is None:
            return decoded.properties[0].cast(kind)
        if not decoded.properties:
            return pa.array([{}] * decoded.rows, kind)
        return pa.StructArray.from_arrays(decoded.properties, fields=list(kind))


def _reasons(errors: Mapping[int, ProtocolError], count: int, kind: Any) -> Any:
    if not errors:
        return pa.nulls(count, kind)
    return pa.array([errors[row].reason if row in errors else None for row in range(count)], kind)


@dataclass
class LogPartition(InputPartition):
    """A range of rows in a file of a log.

    Attributes:
        root: folder of the log, as for :class:`BatchLog`.
        path: file, within its file system.
        first: number of the first row.
        count: number of rows.
        without: names of files with the GUIDs of omitted rows.
        query: id of the partition's stream, "" if its checkpoint does not provide the id; None for any
            stream.
    """

    root: str
    path: str
    first: int
    count: int
    without: tuple[str, ...] = ()
    query: str | None = None


def cut(
    root: str,
    batches: Iterable[LoggedBatch],
    partitions: int,
    without: tuple[str, ...] = (),
    query: str | None = None,
) -> Iterator[LogPartition]:
    """Split each batch into the given number of partitions, of about the same number of rows."""
    for batch in batches:
        total = batch.end - batch.start
        size = max(1, -(-total // partitions))
        for first in range(0, total, size):
            yield LogPartition(root, batch.path, first, min(size, total - first), without, query)


def read_partition(
    partition: LogPartition, schema: StructType, on_invalid: OnInvalidMessage, gone: str = ""
) -> Iterator[Any]:
    """Return the rows of a partition.

    Args:
        partition: partition.
        schema: columns.
        on_invalid: handling of undecodable messages.
        gone: text of the error if the file is missing.

    Raises:
        StateError: the file is missing, empty or damaged.
        ProtocolError: a message cannot be decoded, with ``fail``.
    """
    log, maker = BatchLog(partition.root), RowMaker(schema, on_invalid)
    skip, left = partition.first, partition.count
    try:
        without = log.read_guids(partition.without)
        batches, sources = log.read(partition.path)
    except FileNotFoundError:
        where = f"{partition.path} does not exist on {socket.gethostname()}"
        raise StateError(
            f"{where}: {gone or 'the log was removed, or this machine cannot reach the log'}"
        ) from None
    for rows in batches:
        part = rows.slice(skip, left)
        skip = max(0, skip - rows.num_rows)
        left -= part.num_rows
        if part.num_rows and without:
            part = left_of(part, sources, without)
        if part.num_rows:
            yield from maker.make(part, sources)
        if not left:
            break
    if maker.dropped:
        logger.warning("%d undecodable messages are omitted", maker.dropped)


def left_of(rows: RecordBatch, sources: Sequence[Source], without: Guids) -> RecordBatch:
    """Return the rows whose GUIDs are not in ``without``, by the URI of their queue."""
    of_source = [without.get(uri, set[bytes]()) for uri, _ in sources]
    numbers = rows.column(5).to_pylist()
    places = [at for at, key in enumerate(guid_keys(rows)) if key not in of_source[numbers[at]]]
    return rows if len(places) == rows.num_rows else rows.take(pa.array(places, pa.int64()))


def filesystem(path: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a local path or a URI, and the path within the file system.

    Raises:
        UsageError: pyarrow does not support the file system.
    """
    path = re.sub(r"\As3[an]://", "s3://", re.sub(r"\Afile:/+", "file:///", path))
    if path.startswith("dbfs:/") and os.path.isdir(_DATABRICKS):
        path = _DATABRICKS + path.removeprefix("dbfs:").replace("//", "/")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path):
        try:
            found: tuple[Any, str] = fs.FileSystem.from_uri(path)
        except ValueError as error:
            raise UsageError(
                f"{path} is in no file system supported by pyarrow ({error}): give a local path or a URI "
                "such as s3:// or hdfs:// as checkpointLocation. If the checkpoint of a stream stays there, "
                "give readStream the option logPath, a folder in a supported file system, and no "
                "checkpointLocation"
            ) from None
        return found
    return fs.LocalFileSystem(), os.path.abspath(path)
