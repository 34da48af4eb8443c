# SPDX-License-Identifier: Apache-2.0
"""The daemon of Spark's workers: modules are no part of the collections after tasks."""

from __future__ import annotations

import gc
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from pyspark import daemon as pyspark_daemon

from bmq.spark import daemon


def test_a_worker_freezes_what_its_tasks_have_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[Any, bool]] = []
    frozen: list[int] = []  # by number of the task

    def run_task(sock: Any, authenticated: bool) -> int:
        ran.append((sock, authenticated))
        return 7

    def manager() -> None:
        worker: Any = pyspark_daemon.worker
        for number in range(4):
            if number == 3:
                monkeypatch.setitem(sys.modules, "imported_by_a_task", ModuleType("imported_by_a_task"))
            assert worker("socket", number > 0) == 7

    monkeypatch.setattr(pyspark_daemon, "worker", run_task)
    monkeypatch.setattr(pyspark_daemon, "manager", manager)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # looks at all objects of pytest
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(ran)))
    daemon.main()
    assert ran == [("socket", False), ("socket", True), ("socket", True), ("socket", True)]
    assert frozen == [1, 4]


def test_spark_can_start_the_daemon_by_its_name() -> None:
    """As the JVM does: the daemon tells its port, and ends with its input."""
    command = [sys.executable, "-m", "bmq.spark.daemon", "pyspark.worker"]
    # pyspark's daemon ends with status 1 whenever Spark ends it.
    ran = subprocess.run(command, input=b"", capture_output=True, check=False)
    assert not ran.stderr
    assert len(ran.stdout) == 4
    assert 0 < int.from_bytes(ran.stdout, "big") < 65536
