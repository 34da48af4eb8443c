# SPDX-License-Identifier: Apache-2.0
"""Importing is silent, Spark finds the format, and a missing Java gives a short error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import bmq
from bmq.spark import BmqDataSource, check_java

QUIET = """
import asyncio, threading, sys
def refuse(*args, **kwargs):
    raise AssertionError("importing bmq.spark starts nothing")
threading.Thread.start = refuse
asyncio.new_event_loop = refuse
import bmq
assert not {"pyspark", "pyarrow", "pandas", "numpy"} & set(sys.modules)
import bmq.spark
"""


def test_import_starts_no_thread_and_bmq_needs_no_spark() -> None:
    run = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_process_that_plans_a_write_imports_no_client() -> None:
    """Spark starts a process for each step of a write, and every import delays the write."""
    code = """
import sys
from bmq.spark.datasource import BmqDataSource
from pyspark.sql.types import StringType, StructField, StructType
options = {"queue": "bmq://bmq.test.mem.priority/q"}
BmqDataSource(options).writer(StructType([StructField("value", StringType())]), False)
print(sorted({"bmq.client.session", "bmq.protocol", "bmq.admin", "pandas"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("missing", ["numpy", "pyarrow", "pyspark"])
def test_missing_modules_are_named_with_the_extra(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None\nfrom bmq.spark import write_partition"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = run.stderr.splitlines()[-1]
    assert last == (
        f"ModuleNotFoundError: bmq.spark needs {missing}, which is not installed: pip install 'bmq[spark]'"
    )


def test_spark_finds_the_format() -> None:
    import pyspark_bmq

    assert pyspark_bmq.DefaultSource is BmqDataSource
    assert BmqDataSource.name() == "bmq"


def test_the_module_spark_imports_never_fails() -> None:
    code = "import sys; sys.modules['pyarrow'] = None; import pyspark_bmq; print(dir(pyspark_bmq))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "DefaultSource" not in run.stdout


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return folder


def test_a_recent_java_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, "21.0.2")))
    assert check_java() == 21


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, "1.8.0_392")))
    with pytest.raises(bmq.StateError, match=r"needs Java 17 or newer, and .* is Java 8: install Java 17"):
        check_java()


def test_a_missing_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bmq.StateError, match="PATH has no 'java': install Java 17"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(bmq.StateError, match="has no 'bin/java': install Java 17"):
        check_java()
