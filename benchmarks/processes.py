# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of a benchmark's child processes.

Spark starts and ends its own, so all are observed.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

__all__ = ["Watch"]


class Watch:
    """CPU time and memory of the JVM and of Spark's Python processes.

    Attributes:
        cpu: seconds used since the start of the observation, by role: ``jvm``, ``source`` (the driver's
            process that receives a stream) and ``worker``. Includes the start of the processes.
        memory: maximum resident bytes of a process, by role.
    """

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self.memory: dict[str, int] = {}
        self._roles: dict[int, str] = {}
        self._resident: dict[int, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._first = self._look()
        self._last = dict(self._first)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._last |= self._look()
        for process, ticks in self._last.items():
            used = (ticks - self._first.get(process, 0)) / os.sysconf("SC_CLK_TCK")
            role = self._roles[process]
            self.cpu[role] = self.cpu.get(role, 0.0) + used
            if used > 0.05:  # exclude older processes
                self.memory[role] = max(self.memory.get(role, 0), self._resident[process])

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            self._last |= self._look()

    def _look(self) -> dict[int, int]:
        """Return the ticks of each process below this one."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
                ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
        found: dict[int, int] = {}
        for process, used in ticks.items():
            at = process
            while at in parents and at != os.getpid():
                at = parents[at]
            if at == os.getpid() and process != at:
                with suppress(OSError, IndexError):
                    self._roles.setdefault(process, _role(process))
                    resident = int(Path(f"/proc/{process}/statm").read_text().split()[1])
                    resident *= os.sysconf("SC_PAGE_SIZE")
                    self._resident[process] = max(self._resident.get(process, 0), resident)
                    found[process] = used
        return found


def _role(process: int) -> str:
    command = Path(f"/proc/{process}/cmdline").read_text()
    if "java" in command.split("\0")[0]:
        return "jvm"
    return "source" if "python_streaming_source_runner" in command else "worker"
