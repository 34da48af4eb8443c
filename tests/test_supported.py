# SPDX-License-Identifier: Apache-2.0
"""The page of supported versions agrees with metadata, matrix, environments of Spark, and recorded runs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests import spark_versions

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "supported.md").read_text(encoding="utf-8")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def rows(section: str, page: str = PAGE) -> list[list[str]]:
    """Return the cells of the table in a section, without its head."""
    text = page.partition(f"{{#{section}}}")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def matrix() -> dict[str, list[str]]:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = workflow["jobs"]["tests"]["strategy"]["matrix"]
    return found


def test_versions_of_python_are_those_of_the_metadata_and_the_matrix() -> None:
    project = pyproject()["project"]
    claimed = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert [row[0] for row in rows("python")] == claimed == matrix()["python"]
    assert project["requires-python"] == f">={claimed[0]}"
    assert pyproject()["tool"]["mypy"]["python_version"] == claimed[0]


def test_systems_are_those_of_the_matrix() -> None:
    names = {"Linux": "ubuntu", "macOS": "macos", "Windows": "windows"}
    assert [f"{names[row[0]]}-latest" for row in rows("systems")] == matrix()["os"]


def test_lines_of_spark_are_those_of_the_environments_and_the_metadata() -> None:
    assert tuple(row[0] for row in rows("spark")) == spark_versions.LINES
    restricted = [row[0] for row in rows("spark") if "restrictions" in row[1]]
    assert restricted == list(spark_versions.LACKING)
    extra = pyproject()["project"]["optional-dependencies"]["spark"]
    assert f"pyspark>={spark_versions.LINES[0]}" in extra
    guide = (ROOT / "docs" / "data" / "spark.md").read_text(encoding="utf-8")
    assert f"| | {' | '.join(spark_versions.LINES)} |" in guide
    assert "Java is missing or older than 17" in guide


def test_brokers_come_from_the_recorded_runs() -> None:
    runs = json.loads((ROOT / "docs" / "works-with.json").read_text(encoding="utf-8"))
    assert all(run["release"] and run["date"] for run in runs)
    columns = dict(zip(*(row[1:] for row in rows("brokers") if row[0] in {"commit", "date"}), strict=True))
    assert columns == {run["commit"] or "-": run["date"] for run in runs}
