# SPDX-License-Identifier: Apache-2.0
"""Reads Spark's own checkpoint of a streaming query: the query's identity, and the committed batches."""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple, cast

from bmq.errors import UsageError
from bmq.spark._arrow import fs

__all__ = ["Checkpoint", "Planned", "filesystem"]

_NUMBER = re.compile(r"\d+\Z")
# Databricks mounts its file system here, on all machines.
_DATABRICKS = "/dbfs"


def filesystem(path: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a local path or a URI, and the path within the file system.

    Raises:
        UsageError: pyarrow does not support the file system.
    """
    path = re.sub(r"\As3[an]://", "s3://", re.sub(r"\Afile:/+", "file:///", path))
    if path.startswith("dbfs:/") and os.path.isdir(_DATABRICKS):
        path = _DATABRICKS + path.removeprefix("dbfs:").replace("//", "/")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path):
        try:
            found: tuple[Any, str] = fs.FileSystem.from_uri(path)
        except ValueError as error:
            raise UsageError(
                f"{path} is in no file system supported by pyarrow ({error}): give a local path or a URI "
                "such as s3:// or hdfs:// as checkpointLocation. If the checkpoint of a stream stays there, "
                "give readStream the option logPath, a folder in a supported file system, and no "
                "checkpointLocation"
            ) from None
        return found
    return fs.LocalFileSystem(), os.path.abspath(path)


class Planned(NamedTuple):
    """A batch in Spark's log of offsets.

    Attributes:
        batch: number of the batch.
        start: number of this source's messages before the batch; None if the log lacks the number.
        end: number of this source's messages up to the end of the batch.
        committed: whether Spark's log of commits has the batch.
    """

    batch: int
    start: int | None
    end: int
    committed: bool


class Checkpoint:
    """The checkpoint of a streaming query. Read-only.

    Args:
        path: option ``checkpointLocation``.
        source: name of the source in the query; "" for the only source.
    """

    def __init__(self, path: str, source: str = "") -> None:
        self._fs, self._root = filesystem(path)
        self._source = source

    def query(self) -> str:
        """Return the id of the query; "" before the first batch is planned."""
        try:
            document: Any = json.loads(self._text("metadata"))
            return str(document["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def committed(self) -> int | None:
        """Return the number of certainly committed messages of this source; None if unknown."""
        try:
            numbers = self._numbers("commits")
            return self._end(max(numbers)) if numbers else None
        except OSError:
            return None

    def planned(self) -> Planned | None:
        """Return the newest batch planned by Spark; None if no batch is readable."""
        try:
            numbers = sorted(self._numbers("offsets"))
            if not numbers:
                return None
            end = self._end(numbers[-1])
            if end is None:
                return None
            before = [number for number in numbers if number < numbers[-1]]
            start = self._end(before[-1]) if before else (0 if numbers[-1] == 0 else None)
            return Planned(numbers[-1], start, end, numbers[-1] in self._numbers("commits"))
        except OSError:
            return None

    def _numbers(self, folder: str) -> set[int]:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        names = [info.base_name for info in self._fs.get_file_info(selector)]
        return {int(name) for name in names if _NUMBER.match(name)}

    def _end(self, batch: int) -> int | None:
        """Return this source's offset in a batch; None unless exactly one offset can belong to the source."""
        found: list[int] = []
        for line in self._text(f"offsets/{batch}").splitlines()[1:]:
            try:
                offset: Any = json.loads(line)
            except ValueError:
                continue
            if not isinstance(offset, dict):
                continue
            given = cast("dict[str, Any]", offset)
            wanted = {"messages", "source"} if self._source else {"messages"}
            if set(given) == wanted and given.get("source", "") == self._source:
                found.append(int(given["messages"]))
        return found[0] if len(found) == 1 else None

    def _text(self, name: str) -> str:
        with self._fs.open_input_stream(f"{self._root}/{name}") as file:
            text: str = file.read().decode()
        return text
