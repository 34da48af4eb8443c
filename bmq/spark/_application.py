# SPDX-License-Identifier: Apache-2.0
"""The Spark application of a read, identified by the process of the driver's Java."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, NamedTuple, cast

__all__ = ["Application", "alive", "application_of_planner", "application_of_program"]

# Maximum depth of a planning process below the driver's Java.
_DEPTH = 8


class Application(NamedTuple):
    """A Spark application.

    Attributes:
        host: machine of the driver.
        process: process id of the driver's Java.
        started: start time of the Java process, in ticks since the machine's boot.
    """

    host: str
    process: int
    started: int

    @classmethod
    def of(cls, process: int) -> Application:
        """Return the application of a process on this machine."""
        return cls(socket.gethostname(), process, _started(process))

    @classmethod
    def noted(cls, document: object) -> Application | None:
        """Return the application of a stored :meth:`_asdict`; None for a different document."""
        if not isinstance(document, dict):
            return None
        given = cast("dict[str, Any]", document)
        try:
            return cls(str(given["host"]), int(given["process"]), int(given["started"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def runs(self) -> bool:
        """Whether the process runs on the local machine; False for applications of a different machine."""
        return self.host == socket.gethostname() and 0 <= self.started == _started(self.process)


def application_of_planner() -> Application | None:
    """Return the application whose read this process plans; None without a Java process among the ancestors.

    Spark plans a read in a child of a child of the driver's Java.
    """
    process = os.getppid()
    for _ in range(_DEPTH):
        stat = _stat(process)
        if stat is None:
            break
        command, fields = stat
        if command == "java":
            return Application.of(process)
        process = int(fields[1])
    return None


def application_of_program() -> Application | None:
    """Return the application of this program; None without a Spark context, as with Spark Connect."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is None or _stat(os.getpid()) is None:  # only Linux provides the start time of a process
        return None
    return Application.of(int(context._jvm.java.lang.ProcessHandle.current().pid()))


def alive(process: int) -> bool:
    """Whether a process exists on this machine; True on systems where the test would send a signal."""
    if os.name == "nt":  # signal 0 is Ctrl-C on Windows
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _stat(process: int) -> tuple[str, list[str]] | None:
    """Return the command of a process and the following fields of its Linux stat file."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 1 :].split()
    except (OSError, ValueError):
        return None


def _started(process: int) -> int:
    """Return the start time of a process; -1 if the process has ended, or the time is unknown."""
    stat = _stat(process)
    return -1 if stat is None or stat[1][0] in "ZX" else int(stat[1][19])
