# SPDX-License-Identifier: Apache-2.0
"""A daemon for Spark's Python workers, for cheaper small tasks: ``spark.python.daemon.module``.

After each task, a worker of Spark runs the garbage collector, which scans every object of every imported
module. With pandas, pyarrow and this client, a scan takes tens of milliseconds, for any number of rows. The
workers of this daemon exclude these objects from the collection (:func:`gc.freeze`) after the first task, and
again after a task that has imported further modules. Otherwise, the daemon is pyspark's own.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Run pyspark's daemon until the end of the Spark application."""
    from pyspark import daemon

    pyspark_daemon: Any = daemon
    run_task = pyspark_daemon.worker
    modules = 0

    def worker(sock: Any, authenticated: bool) -> Any:
        nonlocal modules
        code = run_task(sock, authenticated)
        if len(sys.modules) != modules:
            modules = len(sys.modules)
            gc.collect()
            gc.freeze()
        return code

    pyspark_daemon.worker = worker
    pyspark_daemon.manager()


if __name__ == "__main__":
    main()
