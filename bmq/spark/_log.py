# SPDX-License-Identifier: Apache-2.0
"""The log of a streaming read: what was handed to Spark and is not known to be committed.

A queue cannot be read twice, and Spark asks a source for the same range again after a crash. So a batch is
written here, in one file, before Spark hears of it. Rows are written as they arrive; a file is named by its
range of message numbers, counted from the start of the query, once it is complete.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from bmq.errors import StateError, UsageError
from bmq.spark._arrow import RecordBatch, fs, pa

__all__ = ["BatchLog", "LoggedBatch", "OpenBatch"]

_NAME = re.compile(r"(\d{20})-(\d{20})\.arrow\Z")
_PARTIAL = ".partial"
_LOCK_PATIENCE = 15.0
_POSIX = os.name == "posix"


class LoggedBatch(NamedTuple):
    """One file.

    Attributes:
        start: how many messages came before.
        end: how many there are up to its end.
        path: where it is, within its file system.
    """

    start: int
    end: int
    path: str


class OpenBatch:
    """A batch that is being written. Made by :meth:`BatchLog.begin`; for one thread at a time.

    Attributes:
        start: how many messages came before.
        rows: how many were written.
    """

    def __init__(self, log: BatchLog, start: int, schema: Any) -> None:
        self.start = start
        self.rows = 0
        self._log = log
        self._path = f"{log.root}/{start:020d}{_PARTIAL}"
        self._sink = log.fs.open_output_stream(self._path)
        self._file = pa.ipc.new_file(self._sink, schema)

    def write(self, batches: Sequence[RecordBatch]) -> None:
        """Add rows.

        Raises:
            OSError: they cannot be written.
        """
        for batch in batches:
            self._file.write_batch(batch)
            self.rows += batch.num_rows

    def finish(self) -> LoggedBatch:
        """Complete the file; once this returns, it survives a crash.

        Raises:
            OSError: it cannot be written.
        """
        self._file.close()
        self._sink.close()
        return self._log.complete(self._path, self.start, self.start + self.rows)

    def abandon(self) -> None:
        """Remove it again, as far as that is possible; the next run removes the rest."""
        with suppress(OSError):
            self._sink.close()
            self._log.fs.delete_file(self._path)


class BatchLog:
    """A folder with one Arrow file a batch.

    Args:
        path: a local path, or a URI of any file system that pyarrow knows (``s3://``, ``hdfs://``, ...);
            reachable from the driver and all executors.

    Attributes:
        path: the same.
        fs: the file system, of pyarrow.
        root: the folder there.
        local: whether that is this machine's.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path):
            uri = re.sub(r"\Afile:/+", "file:///", path)
            self.fs, self.root = fs.FileSystem.from_uri(uri)
        else:
            self.fs, self.root = fs.LocalFileSystem(), os.path.abspath(path)
        self.local = isinstance(self.fs, fs.LocalFileSystem)
        self._lock: Any = None

    def acquire(self) -> None:
        """Make the folder, and make sure that no other query uses it (on local file systems).

        Raises:
            StateError: another one does.
        """
        self.fs.create_dir(self.root, recursive=True)
        if not self.local or self._lock is not None:
            return
        try:
            import fcntl
        except ImportError:  # no such locks on Windows
            return
        lock = open(os.path.join(self.root, "lock"), "a")  # noqa: SIM115 - held as long as the process lives
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    lock.close()
                    raise StateError(
                        f"another query uses the log at {self.path}: give every query that reads a queue "
                        "a checkpointLocation (or logPath) of its own"
                    ) from None
            time.sleep(0.05)
        self._lock = lock

    def release(self) -> None:
        """Let another query use it."""
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

    def clear(self) -> None:
        """Remove what a query has begun to write that is no more."""
        for info in self._files():
            if info.base_name.endswith(_PARTIAL):
                self.fs.delete_file(info.path)

    def _files(self) -> list[Any]:
        files: list[Any] = self.fs.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        return files

    def begin(self, start: int, schema: Any) -> OpenBatch:
        """Start to write a batch.

        Args:
            start: how many messages came before.
            schema: its columns.

        Raises:
            OSError: it cannot be written.
        """
        return OpenBatch(self, start, schema)

    def complete(self, partial: str, start: int, end: int) -> LoggedBatch:
        """Give a file that is written its name, so that it is there after a crash."""
        path = f"{self.root}/{start:020d}-{end:020d}.arrow"
        if self.local:
            self._sync(partial)
        self.fs.move(partial, path)
        if self.local and _POSIX:  # a folder cannot be opened on Windows, and needs not be written out there
            self._sync(self.root)
        return LoggedBatch(start, end, path)

    def _sync(self, path: str) -> None:
        # Windows writes out only what may be written to, and folders can only be read.
        descriptor = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def covering(self, start: int, end: int) -> list[LoggedBatch]:
        """Return the batches that make up a range.

        Raises:
            UsageError: some of it is not there.
        """
        if start == end:
            return []
        found = [each for each in self.batches() if start <= each.start and each.end <= end]
        edges = [start, *(each.end for each in found)]
        if edges[-1] != end or any(each.start != edge for each, edge in zip(found, edges, strict=False)):
            raise UsageError(
                f"messages {start} to {end} of this query are in its checkpoint, but not in the log at "
                f"{self.path}: it was removed, or the path is not the same on every machine"
            )
        return found

    def read(self, path: str, columns: list[str] | None = None) -> Iterator[RecordBatch]:
        """Read a batch again."""
        with pa.memory_map(path) if self.local else self.fs.open_input_file(path) as source:
            file = pa.ipc.open_file(source)
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                yield batch if columns is None else batch.select(columns)

    def remove(self, batch: LoggedBatch) -> None:
        """Remove a batch."""
        self.fs.delete_file(batch.path)
