# SPDX-License-Identifier: Apache-2.0
"""The log of a streaming read: batches handed to Spark that are not known to be committed.

The problem: a queue cannot be read twice, but after a crash Spark requests the same range from the source
again. Therefore each batch is written to a file in this log before the batch is reported to Spark. Rows are
written as they arrive. A complete file is named by its range of message numbers, counted from the start of
the query.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, cast

import numpy as np

from bmq.arrow.decoding import to_arrow
from bmq.errors import StateError
from bmq.spark._arrow import RecordBatch, fs, pa, pc
from bmq.spark._checkpoint import filesystem
from bmq.spark._ledger import GuidSets
from bmq.spark._raw import Source, guid_keys, raw_schema, sources_of

__all__ = ["BatchLog", "LoggedBatch", "OpenBatch"]

_NAME = re.compile(r"(\d{20})-(\d{20})\.arrow\Z")
_PARTIAL = ".partial"
_LOCK_PATIENCE = 15.0
# Columns of a file of GUIDs.
_GUIDS = [pa.field("guid", pa.binary(16)), pa.field("source", pa.uint16())]
_POSIX = os.name == "posix"


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

    def without(self, places: Any) -> OpenBatch:
        """Return this batch without some rows, as a batch that is being written.

        Args:
            places: numpy array of the rows' numbers, ascending.

        Raises:
            OSError: the rows cannot be read, or cannot be written.
        """
        self._file.close()
        self._sink.close()
        log, whole = self._log, f"{self._path[: -len(_PARTIAL)]}-whole{_PARTIAL}"
        log.fs.move(self._path, whole)
        batches, _ = log.read(whole)
        again = OpenBatch(log, self.start, self._schema)
        first = 0
        for batch in batches:
            wanted = np.ones(batch.num_rows, bool)
            here = places[(first <= places) & (places < first + batch.num_rows)]
            wanted[here - first] = False
            first += batch.num_rows
            rows = batch.filter(to_arrow(wanted))
            if rows.num_rows:
                again.write([rows])
        log.fs.delete_file(whole)
        return again

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

    def exists(self) -> bool:
        """Whether the folder exists."""
        found: bool = self.fs.get_file_info(self.root).type == fs.FileType.Directory
        return found

    def files(self, prefix: str) -> list[str]:
        """Return the names of all files with a prefix, sorted."""
        return sorted(info.base_name for info in self._files() if info.base_name.startswith(prefix))

    def delete(self, name: str) -> None:
        """Remove a file."""
        self.fs.delete_file(f"{self.root}/{name}")

    def drop(self) -> None:
        """Remove the folder."""
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
        path = f"{self.root}/{start:020d}-{end:020d}.arrow"
        if self.local:
            self._sync(partial)
        self.fs.move(partial, path)
        if self.local and _POSIX:  # Windows cannot open a folder, and need not flush it
            self._sync(self.root)
        return LoggedBatch(start, end, path)

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

    @contextmanager
    def _opened(self, path: str) -> Generator[Any]:
        with pa.memory_map(path) if self.local else self.fs.open_input_file(path) as source:
            yield pa.ipc.open_file(source)

    def guids(self, path: str) -> Iterator[tuple[str, list[bytes]]]:
        """Return the GUIDs of a batch, with the URI of their queue."""
        with self._opened(path) as file:
            sources = sources_of(file.schema)
            for number in range(file.num_record_batches):
                rows = file.get_batch(number)
                keys, numbers = guid_keys(rows), rows.column(5).to_pylist()
                for at, (uri, _) in enumerate(sources):
                    if len(sources) == 1:
                        yield uri, keys
                    else:
                        yield uri, [key for key, source in zip(keys, numbers, strict=True) if source == at]

    def write_guids(self, name: str, guids: Mapping[str, Sequence[bytes]]) -> None:
        """Write a file of GUIDs, by the URI of their queue."""
        schema = pa.schema(_GUIDS, metadata=raw_schema([(uri, None) for uri in guids]).metadata)
        partial = f"{self.root}/{name}{_PARTIAL}"
        with self.fs.open_output_stream(partial) as sink, pa.ipc.new_file(sink, schema) as file:
            for number, keys in enumerate(guids.values()):
                arrays = [pa.array(keys, pa.binary(16)), pa.array([number] * len(keys), pa.uint16())]
                file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self._name(partial, name)

    def copy_guids(self, name: str, batches: Sequence[LoggedBatch]) -> None:
        """Write a file of the GUIDs of batches with one schema."""
        partial = f"{self.root}/{name}{_PARTIAL}"
        with ExitStack() as stack:
            files = [stack.enter_context(self._opened(batch.path)) for batch in batches]
            schema = pa.schema(_GUIDS, metadata=files[0].schema.metadata)
            sink = stack.enter_context(self.fs.open_output_stream(partial))
            out = stack.enter_context(pa.ipc.new_file(sink, schema))
            for file in files:
                for number in range(file.num_record_batches):
                    rows = file.get_batch(number)
                    out.write_batch(
                        pa.RecordBatch.from_arrays([rows.column(1), rows.column(5)], schema=schema)
                    )
        self._name(partial, name)

    def _name(self, partial: str, name: str) -> None:
        if self.local:
            self._sync(partial)
        self.fs.move(partial, f"{self.root}/{name}")

    def read_guids(self, names: Iterable[str]) -> GuidSets:
        """Return the GUIDs of GUID files.

        Raises:
            FileNotFoundError: a file does not exist.
        """
        found: GuidSets = {}
        for name in names:
            with self._opened(f"{self.root}/{name}") as file:
                sources = sources_of(file.schema)
                for at in range(file.num_record_batches):
                    batch = file.get_batch(at)
                    numbers = batch.column(1)
                    for number in cast("list[int]", numbers.unique().to_pylist()):
                        keys = batch.column(0)
                        if len(sources) > 1:
                            keys = keys.filter(pc.equal(numbers, number))
                        found.setdefault(sources[number][0], set()).update(keys.to_pylist())
        return found

    def mark(self, start: int, end: int) -> None:
        """Write a batch without messages in place of a lost batch."""
        file = self.begin(start, raw_schema([]))
        file.finish(end)

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
            f"{path} is empty or damaged ({error}): stop the query, delete the file, and run bmq spark "
            "repair for the checkpoint. The query then receives the messages that the broker still has"
        ) from error


def _mapped(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
