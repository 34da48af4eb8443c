# SPDX-License-Identifier: Apache-2.0
"""Runs a page of the documentation as a reader would: writes files, runs commands, compares output.

The blocks of a page, in order:

- ``python title="kitchen.py"`` (or any language): the file is written.
- ``console``: each line after ``$`` is run, with the lines after a backslash at its end, and must print the
  lines below it.
- ``console title="another terminal"``: the command runs in the background; first it must print the lines
  below it.
- ``text title="kitchen.py prints"``: the command with this name must print these lines next.

``<!-- example: orders_service/orders.py -->`` is a block with the file's name and text: docs/included.py.

A command such as ``. .venv/bin/activate`` holds for the later commands of the page.

``...`` stands for any text, including lines. A block after ``<!-- not run: why -->`` is ignored. The ports in
the pages, 30114 and 8080, are replaced by free ports.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

BLOCK = re.compile(
    r'^(<!-- not run: [^\n]+ -->\n\n)?^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE
)
PORTS = ("30114", "8080")
#: The broker's address in documented programs.
SHOWN_BROKER = "tcp://localhost:30114"
PATIENCE = 60.0
INCLUDED = Path(__file__).parent.parent / "docs" / "included.py"
#: The text of a page with the files of its examples, as MkDocs shows it.
include: Callable[[str], str] = runpy.run_path(str(INCLUDED))["include"]


def section(page: Path, anchor: str) -> str:
    """Return the text of a section of the second level, with its headings, as a page of its own."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^(## [^\n]* \{{#{anchor}\}}\n.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no section {anchor}"
    return re.sub(r"^#(#+ )", r"\1", found[1], flags=re.MULTILINE)


def matches(expected: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def at_broker(code: str, uri: str) -> str:
    """Return a program of the documentation with the address of another broker."""
    return code.replace(SHOWN_BROKER, uri)


class Running:
    """A command in a separate terminal."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str]) -> None:
        self.command = command
        self.printed: list[str] = []
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        # Variables may precede the command; the command replaces the shell and receives its signals.
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f"exec env {command}"],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def prints(self, lines: list[str]) -> None:
        """Wait for these lines in the output; log lines may occur in between."""
        for expected in lines:
            while True:
                try:
                    line = self._lines.get(timeout=PATIENCE)
                except Empty:
                    raise AssertionError(f"{self.command}: no {expected!r} after {self.printed}") from None
                assert line is not None, f"{self.command} ended before {expected!r}: {self.printed}"
                self.printed.append(line)
                if matches(expected, line):
                    break

    def end(self) -> int:
        """End the process as an operator would; return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()


def run(
    page: Path | str, folder: Path, ports: Sequence[int], variables: Mapping[str, str] | None = None
) -> list[str]:
    """Follow a page in a folder; return the executed commands.

    Args:
        page: page.
        folder: empty folder, or the folder of the previous pages.
        ports: replacements of 30114 and 8080, equal for pages that share files.
        variables: further variables of the environment.

    Raises:
        AssertionError: a command printed other output.
    """
    text = include(page if isinstance(page, str) else page.read_text(encoding="utf-8"))
    for wanted, free in zip(PORTS, ports, strict=True):
        text = text.replace(wanted, str(free))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("BMQ_", "PYTEST_"))}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "XDG_CONFIG_HOME": str(folder / ".config"),
        **(variables or {}),
    }
    # The default port of the command line, 30114, is a different port here.
    port = re.search(r"ready on tcp://127.0.0.1:(\d+)", text)
    if port is not None:
        here = {"uri": f"tcp://127.0.0.1:{port[1]}"}
        contexts = folder / ".config" / "bmq" / "contexts.json"
        contexts.parent.mkdir(parents=True, exist_ok=True)
        contexts.touch(0o600)
        contexts.write_text(json.dumps({"version": 1, "current": "here", "contexts": {"here": here}}))
        text = re.sub(r"^\$ bmq broker\b", f"$ bmq broker --port {port[1]}", text, flags=re.MULTILINE)
    running: list[Running] = []
    done: list[str] = []
    try:
        for skipped, language, title, body in BLOCK.findall(text):
            if skipped:
                continue
            if language == "console":
                for entry in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                    command, _, expected = entry.replace("\\\n", "").partition("\n")
                    done.append(command)
                    if title:
                        running.append(Running(command, folder, environment))
                        running[-1].prints(expected.splitlines())
                        continue
                    result = subprocess.run(
                        ["/bin/bash", "-c", command],
                        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                        text=True, timeout=PATIENCE, check=False,
                    )  # fmt: skip
                    assert matches(expected, result.stdout), (
                        f"$ {command}\n--- expected\n{expected}--- printed\n{result.stdout}"
                    )
                    if activated := re.fullmatch(r"\. (\S+)/bin/activate", command):
                        environment["PATH"] = f"{folder / activated[1] / 'bin'}:{environment['PATH']}"
            elif title.endswith(" prints"):
                name = title.removesuffix(" prints")
                next(each for each in running if name in each.command).prints(body.splitlines())
            elif title:
                (folder / title).parent.mkdir(exist_ok=True)
                (folder / title).write_text(body, encoding="utf-8")
                done.append(title)
    finally:
        # In reverse order, brokers after their users.
        running.sort(key=lambda each: "bmq broker" not in each.command)
        statuses = {each.command: each.end() for each in reversed(running)}
    assert set(statuses.values()) <= {0, 128 + signal.SIGTERM}, statuses  # in order, both of them
    return done
