# SPDX-License-Identifier: Apache-2.0
"""Output of several processes: whole lines with labels, and nothing held but an unfinished line."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from bmq.cli.lines import Aside, copy_lines, locks


@dataclass
class Copying:
    """A process's output, and the reader of the supervisor's."""

    process: int
    reader: int
    done: threading.Event = field(default_factory=threading.Event)

    def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            os.write(self.process, piece)

    def end(self) -> bytes:
        """End the process, and return the remaining output."""
        os.close(self.process)
        return b"".join(iter(lambda: os.read(self.reader, 65536), b""))


@pytest.fixture
def copying() -> Iterator[Callable[[], Copying]]:
    opened: list[int] = []

    def begin() -> Copying:
        source, process = os.pipe()
        reader, output = os.pipe()
        opened.append(reader)

        def done() -> None:
            os.close(output)
            copy.done.set()

        copy = Copying(process, reader)
        copy_lines(source, output, "[2] ", threading.Lock(), done)
        return copy

    yield begin
    for each in opened:
        os.close(each)


def test_each_line_has_a_label_whatever_the_pieces_are(copying: Callable[[], Copying]) -> None:
    copy = copying()
    copy.write(b"one\ntw", b"o", b"\n\nfour\nfi", b"ve")
    assert copy.end() == b"[2] one\n[2] two\n[2] \n[2] four\n[2] five\n"


def test_line_waits_for_its_end(copying: Callable[[], Copying]) -> None:
    copy = copying()
    copy.write(b"half", b"\nnext")
    assert os.read(copy.reader, 100) == b"[2] half\n"
    assert copy.end() == b"[2] next\n"


def test_endless_line_is_broken(copying: Callable[[], Copying]) -> None:
    copy = copying()
    writer = threading.Thread(target=copy.write, args=(b"x" * 180_000,))
    writer.start()
    first = os.read(copy.reader, 65536)
    assert first.startswith(b"[2] xxx")
    pieces = [first]
    while b"".join(pieces).count(b"x") < 120_000:
        pieces.append(os.read(copy.reader, 65536))
    writer.join()
    lines = b"".join([*pieces, copy.end()]).splitlines()
    assert len(lines) > 1
    assert all(line.startswith(b"[2] x") for line in lines)
    assert b"".join(line.removeprefix(b"[2] ") for line in lines) == b"x" * 180_000


def test_process_notices_that_the_reader_has_gone(copying: Callable[[], Copying]) -> None:
    copy = copying()
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, copy.reader)  # closes the reader
    os.close(devnull)
    copy.write(b"one\n")
    assert copy.done.wait(60)
    with pytest.raises(BrokenPipeError):
        copy.write(b"two\n")
    os.close(copy.process)


def test_outputs_to_one_file_share_a_lock() -> None:
    reader, writer = os.pipe()
    other, again = os.pipe()[0], os.dup(writer)
    first, second, third = locks(writer, again, other)
    assert first is second
    assert first is not third
    for each in (reader, writer, other, again):
        os.close(each)


def test_log_lines_never_wait_for_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        lock = threading.Lock()
        aside = Aside(lock)
        lock.acquire()
        for number in range(3000):
            aside.emit(logging.makeLogRecord({"msg": f"line {number}"}))
        lock.release()
        aside.end(60)
    found = b"".join(iter(lambda: os.read(reader, 65536), b""))
    os.close(reader)
    assert found.startswith(b"line 0\nline 1\n")
    assert 1000 <= found.count(b"\n") <= 1001
