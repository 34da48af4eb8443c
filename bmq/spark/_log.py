# SPDX-License-Identifier: Apache-2.0
"""The log of a streaming read: what was handed to Spark and is not known to be committed.

A queue cannot be read twice, and Spark asks a source for the same range again after a crash. So a batch is
written here, in one file, before Spark hears of it. Rows are written as they arrive; a file is named by its
range of message numbers, counted from the start of the query, once it is complete.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, cast

from bmq.errors import StateError
from bmq.spark._arrow import RecordBatch, fs, pa, pc
from bmq.spark._checkpoint import filesystem
from bmq.spark._ledger import GuidSets
from bmq.spark._raw import Source, guid_keys, raw_schema, sources_of

__all__ = ["BatchLog", "LoggedBatch", "OpenBatch"]

_NAME = re.compile(r"(\d{20})-(\d{20})\.arrow\Z")
_PARTIAL = ".partial"
_LOCK_PATIENCE = 15.0
# What a file of GUIDs has.
_GUIDS = [pa.field("guid", pa.binary(16)), pa.field("source", pa.uint16())]
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
    """A batch that is being written. Created by :meth:`BatchLog.begin`; for one thread at a time.

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

    def finish(self, end: int | None = None) -> LoggedBatch:
        """Complete the file; once this returns, it survives a crash.

        Args:
            end: how many messages there are up to its end, if its rows do not tell.

        Raises:
            OSError: it cannot be written.
        """
        self._file.close()
        self._sink.close()
        return self._log.complete(self._path, self.start, self.start + self.rows if end is None else end)

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
        self.fs, self.root = filesystem(path)
        self.local = isinstance(self.fs, fs.LocalFileSystem)
        self._lock: Any = None

    def acquire(self, patience: float | None = None) -> None:
        """Make the folder, and make sure that no other query uses it (on local file systems).

        Args:
            patience: seconds to wait for another query; None for a few.

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
        deadline = time.monotonic() + (_LOCK_PATIENCE if patience is None else patience)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    lock.close()
                    raise StateError(
                        f"another query or source uses the log at {self.path}: give every query that reads "
                        "a queue a checkpointLocation (or logPath) of its own, and every source of a query "
                        "with several a sourceName. A stream that is joined with itself is two sources"
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

    def exists(self) -> bool:
        """Whether the folder is there."""
        found: bool = self.fs.get_file_info(self.root).type == fs.FileType.Directory
        return found

    def files(self, prefix: str) -> list[str]:
        """Return the names of the files whose names begin so, sorted."""
        return sorted(info.base_name for info in self._files() if info.base_name.startswith(prefix))

    def delete(self, name: str) -> None:
        """Remove a file."""
        self.fs.delete_file(f"{self.root}/{name}")

    def drop(self) -> None:
        """Remove the folder."""
        self.fs.delete_dir(self.root)

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

    def covering(self, start: int, end: int) -> tuple[list[LoggedBatch], bool]:
        """Return the batches within a range, and whether they make up all of it."""
        if start == end:
            return [], True
        found = [each for each in self.batches() if start <= each.start and each.end <= end]
        edges = [start, *(each.end for each in found)]
        whole = edges[-1] == end and all(each.start == edge for each, edge in zip(found, edges, strict=False))
        return found, whole

    def read(self, path: str) -> tuple[Iterator[RecordBatch], list[Source]]:
        """Return the rows of a batch, and the sources that they name by number.

        Raises:
            FileNotFoundError: it is not there.
        """
        source = pa.memory_map(path) if self.local else self.fs.open_input_file(path)
        file = pa.ipc.open_file(source)

        def batches() -> Iterator[RecordBatch]:
            with source:
                for number in range(file.num_record_batches):
                    yield file.get_batch(number)

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
        """Write a file of the GUIDs of batches of one schema."""
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
        """Return the GUIDs of such files.

        Raises:
            FileNotFoundError: one is not there.
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
        """Write a batch without messages in place of one that is lost."""
        file = self.begin(start, raw_schema([]))
        file.finish(end)

    def note(self, name: str, document: Any) -> None:
        """Write a small file, whole or not at all."""
        partial = f"{self.root}/{name}{_PARTIAL}"
        with self.fs.open_output_stream(partial) as sink:
            sink.write(json.dumps(document, indent=1).encode())
        self._name(partial, name)

    def noted(self, name: str) -> Any:
        """Return what :meth:`note` wrote; None if it is not there, or no such file."""
        try:
            with self.fs.open_input_stream(f"{self.root}/{name}") as source:
                return json.loads(source.read())
        except (FileNotFoundError, ValueError):
            return None

    def remove(self, batch: LoggedBatch) -> None:
        """Remove a batch."""
        self.fs.delete_file(batch.path)
