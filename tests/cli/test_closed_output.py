# SPDX-License-Identifier: Apache-2.0
"""A closed or full output ends every command with one line at most, and with a status."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bmq.cli import main


class _Full(io.FileIO):
    """A file on a full disk; the null device, which takes its place, is never full."""

    def write(self, data: Any) -> int:
        if os.path.samestat(os.fstat(self.fileno()), os.stat(os.devnull)):
            return super().write(data) or 0
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def run(arguments: list[str], output: io.TextIOWrapper, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command with this standard output, and write the rest at the end as the interpreter does."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        status = main(arguments)
        output.flush()
    return status


@pytest.fixture
def closed_pipe() -> Iterator[io.TextIOWrapper]:
    """A pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        yield output


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[io.TextIOWrapper]:
    """A file on a disk that is full until the command drops its output."""
    with io.TextIOWrapper(io.BufferedWriter(_Full(tmp_path / "out", "w"))) as output:
        yield output


HELPS = [["--version"], ["--help"], ["post", "--help"], ["contexts", "--help"], ["broker", "--help"]]


@pytest.mark.parametrize("arguments", [*HELPS, ["check", "x == 1"]], ids=" ".join)
def test_a_closed_pipe_is_the_end(
    arguments: list[str],
    closed_pipe: io.TextIOWrapper,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in ``bmq --help | true``."""
    assert run(arguments, closed_pipe, monkeypatch) == 141
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_a_full_disk_is_an_error(
    arguments: list[str],
    full_disk: io.TextIOWrapper,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(arguments, full_disk, monkeypatch) == 2
    expected = f"bmq: the output cannot be written: [Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}\n"
    assert capfd.readouterr().err == expected


def test_a_verb_reports_a_full_disk_once(
    full_disk: io.TextIOWrapper, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["check", "x == 1"], full_disk, monkeypatch) == 2
    assert capfd.readouterr().err == f"bmq check: [Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}\n"
