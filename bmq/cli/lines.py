# SPDX-License-Identifier: Apache-2.0
"""Output of several processes on one terminal or pipe: whole lines with a label.

Each stream of a process has a thread, which reads the stream and writes to the output of this process. A slow
reader of the output therefore slows the processes down, and never the event loop of the supervisor. A thread
holds at most the bytes of one read and of one unfinished line.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["Aside", "copy_lines", "locks"]

_READ: Final = 64 * 1024
# Bytes of a line. The rest of a longer line begins another line.
_LONGEST: Final = 64 * 1024
# Log records of the supervisor that wait for a slow reader. Further records are lost.
_RECORDS: Final = 1000


def locks(*outputs: int) -> list[threading.Lock]:
    """Return a lock for each file descriptor; descriptors of one file, pipe or terminal share a lock."""
    known: dict[tuple[int, int], threading.Lock] = {}
    found: list[threading.Lock] = []
    for output in outputs:
        status = os.fstat(output)
        found.append(known.setdefault((status.st_dev, status.st_ino), threading.Lock()))
    return found


def copy_lines(source: int, output: int, label: str, lock: threading.Lock, done: Callable[[], None]) -> None:
    """Copy lines with a label in front, until the end of the source. Runs in a daemon thread.

    If the reader of the output has gone, the source is closed: its writers notice, as without a supervisor.

    Args:
        source: file descriptor to read from; closed at the end.
        output: file descriptor to write to.
        label: text in front of each line.
        lock: held while lines are written.
        done: called at the end, in the thread.
    """

    def copy() -> None:
        prefix, kept = label.encode(), b""
        try:
            while data := os.read(source, _READ):
                kept += data
                end = kept.rfind(b"\n") + 1
                if not end and len(kept) >= _LONGEST:
                    kept += b"\n"
                    end = len(kept)
                if end:
                    write(prefix, kept[: end - 1])
                    kept = kept[end:]
            if kept:
                write(prefix, kept)
        except OSError:
            pass  # the reader of the output has gone
        finally:
            os.close(source)
            done()

    def write(prefix: bytes, lines: bytes) -> None:
        rest = memoryview(prefix + lines.replace(b"\n", b"\n" + prefix) + b"\n")
        with lock:
            while rest:
                rest = rest[os.write(output, rest) :]

    threading.Thread(target=copy, name=f"copy {label}", daemon=True).start()


class Aside(logging.Handler):
    """Writes log records to standard error in a thread, so that a slow reader does not block the caller."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self._lock = lock
        self._records: queue.Queue[str | None] = queue.Queue(_RECORDS)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; a full queue loses the record."""
        try:
            self._records.put_nowait(self.format(record) + "\n")
        except queue.Full:
            pass

    def end(self, timeout: float) -> None:
        """Wait until all records are written, at most this number of seconds, and once more as long."""
        try:
            self._records.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _write(self) -> None:
        while (line := self._records.get()) is not None:
            try:
                with self._lock:
                    sys.stderr.write(line)
                    sys.stderr.flush()
            except OSError:
                return
