# SPDX-License-Identifier: Apache-2.0
"""The log of a streaming read: what was handed to Spark and is not known to be committed.

A queue cannot be read twice, and Spark asks a source for the same range again after a crash. So a batch is
written here, in one file, before Spark hears of it. A file is named by its range of message numbers,
counted from the start of the query.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bmq.errors import StateError, UsageError
from bmq.spark._arrow import RecordBatch, fs, pa

__all__ = ["BatchLog", "LoggedBatch"]

_NAME = re.compile(r"(\d{20})-(\d{20})\.arrow\Z")
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


class BatchLog:
    """A folder with one Arrow file a batch.

    Args:
        path: a local path, or a URI of any file system that pyarrow knows (``s3://``, ``hdfs://``, ...);
            reachable from the driver and all executors.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path):
            uri = re.sub(r"\Afile:/+", "file:///", path)
            self._fs, self._root = fs.FileSystem.from_uri(uri)
        else:
            self._fs, self._root = fs.LocalFileSystem(), os.path.abspath(path)
        self._local = isinstance(self._fs, fs.LocalFileSystem)
        self._lock: Any = None

    def acquire(self) -> None:
        """Make the folder, and make sure that no other query uses it (on local file systems).

        Raises:
            StateError: another one does.
        """
        self._fs.create_dir(self._root, recursive=True)
        if not self._local or self._lock is not None:
            return
        try:
            import fcntl
        except ImportError:  # no such locks on Windows
            return
        lock = open(os.path.join(self._root, "lock"), "a")  # noqa: SIM115 - held as long as the process lives
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
        for info in self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True)):
            match = _NAME.match(info.base_name)
            if match:
                found.append(LoggedBatch(int(match[1]), int(match[2]), info.path))
        return sorted(found)

    def append(self, start: int, batches: Sequence[RecordBatch]) -> LoggedBatch:
        """Write a batch, in one or more parts; once this returns, it survives a crash."""
        end = start + sum(batch.num_rows for batch in batches)
        path = f"{self._root}/{start:020d}-{end:020d}.arrow"
        partial = f"{path}.partial"
        with self._fs.open_output_stream(partial) as sink, pa.ipc.new_file(sink, batches[0].schema) as file:
            for batch in batches:
                file.write_batch(batch)
        if self._local:
            self._sync(partial)
        self._fs.move(partial, path)
        if self._local and _POSIX:  # a folder cannot be opened on Windows, and needs not be written out there
            self._sync(self._root)
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
        with self._fs.open_input_file(path) as source:
            file = pa.ipc.open_file(source)
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                yield batch if columns is None else batch.select(columns)

    def remove(self, batch: LoggedBatch) -> None:
        """Remove a batch."""
        self._fs.delete_file(batch.path)
