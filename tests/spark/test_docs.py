# SPDX-License-Identifier: Apache-2.0
"""docs/data/spark.md matches the code: the guarantees in the same words, and every option."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from bmq.spark import write_partition
from bmq.spark.connection import ConnectionOptions
from bmq.spark.options import ReadOptions, StreamOptions, WriteOptions, names_of, parse
from bmq.spark.schema import source_ddl

PAGE = (Path(__file__).parents[2] / "docs" / "data" / "spark.md").read_text(encoding="utf-8")


def words(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def test_page_and_docstring_state_the_same_guarantees() -> None:
    docstring = inspect.getdoc(write_partition) or ""
    bullets = docstring.split("\n* ")[1:]
    bullets[-1] = bullets[-1].split("\n\n")[0]
    assert len(bullets) == 7
    for bullet in bullets:
        assert words(bullet) in words(section("Repeated tasks"))


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ('Writing with format("bmq")', WriteOptions),
        ("Reading a queue once", ReadOptions),
        ("Reading a queue as a stream", StreamOptions),
    ],
    ids=["write", "read", "stream"],
)
def test_every_option_is_described_with_its_default(heading: str, kind: type[ConnectionOptions]) -> None:
    table = section(heading).split("| option | default | |\n", 1)[1]
    rows = re.findall(r"^\| `(\w+)` \| (?:`(.+?)`)? *\| (.+) \|$", table, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(names_of(kind))
    defaults = {name.lower(): default for name, default, _ in rows if default}
    queue = {"queue": "bmq://d/q"}
    assert parse(kind, {**defaults, **queue}) == parse(kind, queue)


def test_every_column_is_described() -> None:
    described = re.findall(
        r"^\| `(\w+)` \|", section("Reading a queue once").split("| option |")[0], re.MULTILINE
    )
    assert described == re.findall(r"(?:^|, )(\w+) [A-Z]", source_ddl().replace("STRING, STRING", "STRING"))
