# SPDX-License-Identifier: Apache-2.0
"""A closed or full output ends every command with one line at most, and with a status."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bmq.cli import main
from tests.cli.conftest import Bmq
from tests.sweeps import sweep

HELPS = [["--version"], ["--help"], ["post", "--help"], ["contexts", "--help"], ["broker", "--help"]]
VERB = ["check", "x == 1"]


class _Full(io.FileIO):
    """A file on a full disk; the null device, which takes its place, is never full."""

    def write(self, data: Any) -> int:
        if os.path.samestat(os.fstat(self.fileno()), os.stat(os.devnull)):
            return super().write(data) or 0
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def run(arguments: list[str], output: io.TextIOWrapper, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command with this standard output, and write the rest at the end as the interpreter does."""
    with monkeypatch.context() as patch, output:
        patch.setattr(sys, "stdout", output)
        return main(arguments)


@sweep("arguments", [*HELPS, VERB])
def test_a_closed_pipe_is_the_end(
    arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``bmq --help | true``."""
    reading, writing = os.pipe()
    os.close(reading)
    assert run(arguments, os.fdopen(writing, "w"), monkeypatch) == 141
    assert capfd.readouterr().err == ""


@sweep(
    "arguments, said",
    [*((each, "bmq: the output cannot be written: ") for each in HELPS), (VERB, "bmq check: ")],
)
def test_a_full_disk_is_an_error(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = io.TextIOWrapper(io.BufferedWriter(_Full(tmp_path / "out", "w")))
    assert run(arguments, full, monkeypatch) == 2
    assert capfd.readouterr().err == f"{said}[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_descriptor_is_no_number_for_a_socket(
    run: Bmq, uri: str, bmq_queue_uri: str, closed: str
) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "bmq", *words, "--broker", uri]
        shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *line]
        return subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)

    posted = command("post", bmq_queue_uri, "hi")
    assert posted.returncode == 0, posted
    assert run("peek", bmq_queue_uri, "--json").lines != []
    taken = command("tail", bmq_queue_uri, "--confirm", "--fields", "data")
    if ">&-" in closed.replace("2>&-", ""):
        assert taken.returncode == 2, "what nobody could read is not confirmed"
        assert run("tail", bmq_queue_uri, "--confirm", "--fields", "data").lines == ["hi"]
    else:
        assert (taken.returncode, taken.stdout) == (0, "hi\n")
