# SPDX-License-Identifier: Apache-2.0
"""The pages on Spark match the code: the guarantees in the same words, and every option and column."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path

import msgspec
import pytest

from bmq.spark import write_partition
from bmq.spark.connection import ConnectionOptions
from bmq.spark.options import ReadOptions, StreamOptions, WriteOptions, parse
from bmq.spark.schema import source_ddl
from tests import pages

DATA = Path(__file__).parents[2] / "docs" / "data"
OPTIONS = (DATA / "spark-options.md").read_text(encoding="utf-8")


def words(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def described(anchor: str) -> list[tuple[str, str]]:
    """The options in the table behind an anchor, with their defaults; a row may have several options."""
    table = OPTIONS.split(f"{{#{anchor}}}\n", 1)[1].split("\n#", 1)[0]
    found: list[tuple[str, str]] = []
    for row in re.findall(r"^\| `.*$", table, re.MULTILINE):
        names, defaults = (re.findall(r"`([^`]+)`", cell) for cell in row.split(" |")[:2])
        found += itertools.zip_longest(names, defaults, fillvalue="")
    return found


def test_page_and_docstring_state_the_same_guarantees() -> None:
    docstring = inspect.getdoc(write_partition) or ""
    bullets = docstring.split("\n* ")[1:]
    bullets[-1] = bullets[-1].split("\n\n")[0]
    assert len(bullets) == 7
    for bullet in bullets:
        assert words(bullet) in words(pages.section(DATA / "spark.md", "repeated-tasks"))


@pytest.mark.parametrize(
    ("anchors", "kind"),
    [
        (["connection", "write"], WriteOptions),
        (["connection", "read", "read-batch"], ReadOptions),
        (["connection", "read", "read-stream"], StreamOptions),
    ],
    ids=["write", "read", "stream"],
)
def test_every_option_is_described_with_its_default(
    anchors: list[str], kind: type[ConnectionOptions]
) -> None:
    rows = [row for anchor in anchors for row in described(anchor)]
    assert sorted(name for name, _ in rows) == sorted(
        field.encode_name for field in msgspec.structs.fields(kind)
    )
    defaults = {name.lower(): default for name, default in rows if default}
    queue = {"queue": "bmq://d/q"}
    assert parse(kind, {**defaults, **queue}) == parse(kind, queue)


def test_every_column_is_described() -> None:
    section = pages.section(DATA / "spark.md", "reading-a-queue-once")
    columns = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert columns == re.findall(r"(?:^|, )(\w+) [A-Z]", source_ddl().replace("STRING, STRING", "STRING"))
