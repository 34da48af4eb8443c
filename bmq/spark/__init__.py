# SPDX-License-Identifier: Apache-2.0
"""DataFrames to queues, and queues to DataFrames. Needs the extra ``bmq[spark]``.

:func:`write_partition` returns a function for ``foreachPartition``. :func:`write` posts a whole DataFrame and
returns a summary. :class:`BmqDataSource` is ``format("bmq")``. :class:`QueryMetrics` counts the work of
streaming queries.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from bmq._version import install

if TYPE_CHECKING:
    from bmq.spark.batch_reader import confirm
    from bmq.spark.datasource import BmqDataSource
    from bmq.spark.guids import GuidMode
    from bmq.spark.metrics import QueryMetrics, QueryStats
    from bmq.spark.summary import PartitionReport, Summary
    from bmq.spark.writer import summary_accumulator, write, write_partition

__all__ = [
    "BmqDataSource",
    "GuidMode",
    "PartitionReport",
    "QueryMetrics",
    "QueryStats",
    "Summary",
    "check_java",
    "confirm",
    "summary_accumulator",
    "write",
    "write_partition",
]


def _missing(name: str, cause: BaseException | None = None) -> ModuleNotFoundError:
    error = ModuleNotFoundError(
        f"bmq.spark needs {name}, which is not installed: {install('spark')}", name=name
    )
    error.__cause__ = cause
    return error


for _name in ("numpy", "pyarrow", "pyspark"):
    if find_spec(_name) is None:
        raise _missing(_name)

#: The oldest Java for Spark.
_JAVA = 17


def check_java() -> int:
    """Return the major version of the Java installation that Spark will use.

    Raises:
        StateError: Java is missing, or too old; the error says which version to install.
    """
    import os
    import re
    import shutil
    import subprocess

    from bmq.errors import StateError

    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = f"install Java {_JAVA} (such as the package openjdk-{_JAVA}-jre-headless)"
    if java is None:
        raise StateError(f"Spark runs on Java, and PATH has no 'java': {advice}")
    try:
        run = subprocess.run(
            [java, "-version"],
            capture_output=True, text=True, encoding="utf-8", errors="replace", check=False, timeout=60,
        )  # fmt: skip
    except OSError:
        raise StateError(f"Spark runs on Java, and JAVA_HOME={home} has no 'bin/java': {advice}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    version = int(found[1]) if found else 0
    if version < _JAVA:
        raise StateError(f"Spark needs Java {_JAVA} or newer, and {java} is Java {version or '?'}: {advice}")
    return version


# Spark starts a process for each of several steps. Each process imports only the parts that it needs.
if not TYPE_CHECKING:
    _MODULE_OF = {
        "BmqDataSource": "datasource",
        "GuidMode": "guids",
        "PartitionReport": "summary",
        "QueryMetrics": "metrics",
        "QueryStats": "metrics",
        "Summary": "summary",
        "confirm": "batch_reader",
        "summary_accumulator": "writer",
        "write": "writer",
        "write_partition": "writer",
    }

    def __getattr__(name):
        """Import public names on first access."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            value = getattr(import_module(f"bmq.spark.{_MODULE_OF[name]}"), name)
        except ModuleNotFoundError as error:
            missing = str(error.name).partition(".")[0]
            if missing not in ("numpy", "pandas", "pyarrow", "pyspark"):
                raise
            raise _missing(missing) from error
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
