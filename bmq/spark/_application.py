# SPDX-License-Identifier: Apache-2.0
"""The Spark application that a read belongs to, known by the process of the driver's Java."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, NamedTuple, cast

__all__ = ["Application", "alive", "application_of_planner", "application_of_program"]

# How far a planning process is below the driver's Java at most.
_DEPTH = 8


class Application(NamedTuple):
    """A Spark application.

    Attributes:
        host: the machine of its driver.
        process: the driver's Java.
        started: when that process started, in ticks since the machine did.
    """

    host: str
    process: int
    started: int

    @classmethod
    def of(cls, process: int) -> Application:
        """Return the application of a process of this machine."""
        return cls(socket.gethostname(), process, _started(process))

    @classmethod
    def noted(cls, document: object) -> Application | None:
        """Return the application of a stored :meth:`_asdict`; None for anything else."""
        if not isinstance(document, dict):
            return None
        given = cast("dict[str, Any]", document)
        try:
            return cls(str(given["host"]), int(given["process"]), int(given["started"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def runs(self) -> bool:
        """Whether the process runs on this machine; False for applications of other machines."""
        return self.host == socket.gethostname() and 0 <= self.started == _started(self.process)


def application_of_planner() -> Application | None:
    """Return the application whose read this process plans; None if no Java is above the process.

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

    context: Any = SparkContext._active_spark_context  # pyright: ignore[reportPrivateUsage]
    if context is None or _stat(os.getpid()) is None:  # only Linux tells when a process started
        return None
    return Application.of(int(context._jvm.java.lang.ProcessHandle.current().pid()))


def alive(process: int) -> bool:
    """Whether there is such a process on this machine; True where asking would send a signal."""
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
    """What Linux says of a process: its command, and the fields behind it."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 1 :].split()
    except (OSError, ValueError):
        return None


def _started(process: int) -> int:
    """When a process started; -1 if it has ended, or that is not known."""
    stat = _stat(process)
    return -1 if stat is None or stat[1][0] in "ZX" else int(stat[1][19])
