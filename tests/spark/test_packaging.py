# SPDX-License-Identifier: Apache-2.0
"""Importing is silent, Spark finds the format, the daemon starts, and a missing Java gives a short error."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bmq
from bmq.spark import BmqDataSource, check_java
from bmq.spark.connection import ConnectionOptions
from bmq.spark.options import ReadOptions, StreamOptions, WriteOptions, parse
from tests import pages
from tests.spark.bench import WHOLE


def run(code: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(options or ("-c", code))]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def test_import_starts_no_thread_and_planning_a_write_imports_no_client() -> None:
    """Spark starts a process for each step of a write, and every import delays the write."""
    done = run("""
import asyncio, threading, sys
def refuse(*args, **kwargs):
    raise AssertionError("importing bmq.spark starts nothing")
threading.Thread.start = refuse
asyncio.new_event_loop = refuse
import bmq
assert not {"pyspark", "pyarrow", "pandas", "numpy"} & set(sys.modules)
import bmq.spark
from pyspark.sql.types import StringType, StructField, StructType
options = {"queue": "bmq://bmq.test.mem.priority/q"}
bmq.spark.BmqDataSource(options).writer(StructType([StructField("value", StringType())]), False)
print(sorted({"bmq.client.session", "bmq.protocol", "bmq.admin", "pandas"} & set(sys.modules)))
""")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("missing", ["numpy", "pyarrow", "pyspark"])
def test_missing_modules_are_named_with_the_extra(missing: str) -> None:
    done = run(f"import sys; sys.modules['{missing}'] = None\nfrom bmq.spark import write_partition")
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"bmq.spark needs {missing}, which is not installed: pip install 'bmq[spark]'")


def test_spark_finds_the_format_and_its_import_never_fails() -> None:
    import pyspark_bmq

    assert pyspark_bmq.DefaultSource is BmqDataSource
    assert BmqDataSource.name() == "bmq"
    done = run("import sys; sys.modules['pyarrow'] = None; import pyspark_bmq; print(dir(pyspark_bmq))")
    assert done.returncode == 0, done.stderr
    assert "DefaultSource" not in done.stdout


def test_spark_can_start_the_daemon_by_its_name() -> None:
    # pyspark's daemon ends with status 1 whenever Spark ends it.
    done = run("", "-m", "bmq.spark.daemon", "pyspark.worker", input="", encoding="latin-1")
    assert not done.stderr
    assert 0 < int.from_bytes(done.stdout.encode("latin-1"), "big") < 65536


def fake_java(folder: Path, version: str) -> str:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return str(folder)


def test_java_must_be_recent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "new", "21.0.2"))
    assert check_java() == 21
    for home, text in (
        (
            fake_java(tmp_path / "old", "1.8.0_392"),
            "needs Java 17 or newer, and .* is Java 8: install Java 17",
        ),
        (str(tmp_path), "has no 'bin/java': install Java 17"),
        ("", "PATH has no 'java': install Java 17"),
    ):
        monkeypatch.setenv("JAVA_HOME", home)
        with pytest.raises(bmq.StateError, match=text):
            check_java()


DATA = Path(__file__).parents[2] / "docs" / "data"
OPTIONS = (DATA / "spark-options.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("anchors", "kind"),
    [
        (["connection", "write"], WriteOptions),
        (["connection", "read", "read-batch"], ReadOptions),
        (["connection", "read", "read-stream"], StreamOptions),
    ],
)
def test_every_option_is_described_with_its_default(
    anchors: list[str], kind: type[ConnectionOptions]
) -> None:
    described: list[tuple[str, str]] = []
    for anchor in anchors:
        table = OPTIONS.split(f"{{#{anchor}}}\n", 1)[1].split("\n#", 1)[0]
        for row in re.findall(r"^\| `.*$", table, re.MULTILINE):  # a row may have several options
            names, defaults = (re.findall(r"`([^`]+)`", cell) for cell in row.split(" |")[:2])
            described += itertools.zip_longest(names, defaults, fillvalue="")
    fields = msgspec.structs.fields(kind)
    assert sorted(name for name, _ in described) == sorted(field.encode_name for field in fields)
    queue = {"queue": "bmq://d/q"}
    defaults = {name.lower(): default for name, default in described if default}
    assert parse(kind, {**defaults, **queue}) == parse(kind, queue)


def test_every_column_is_described() -> None:
    section = pages.section(DATA / "spark.md", "reading-a-queue-once")
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == WHOLE.fieldNames()
