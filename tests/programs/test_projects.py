# SPDX-License-Identifier: Apache-2.0
"""The projects of ``bmq new`` pass their own tests, linters and type checkers, and their commands run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from bmq.cli.new import Kind, files, module_of
from bmq.testing import BackgroundBroker
from tests.commands import ROOT, completed

NAME = "Shop.Orders-2"

# Spark starts slowly on a busy machine.
pytestmark = pytest.mark.timeout(300)


def run(folder: Path, *arguments: str, **environment: str) -> str:
    """Run a module of Python in a project; return what it printed."""
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PYSPARK_PYTHON": sys.executable}
    return completed(sys.executable, "-m", *arguments, cwd=folder, env=paths | environment).stdout


def make(kind: Kind, folder: Path) -> Path:
    for path, text in files(kind, NAME, module_of(NAME)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", Kind)
def test_the_tests_of_a_project_pass(kind: Kind, tmp_path: Path) -> None:
    printed = run(make(kind, tmp_path), "pytest", "-q", "-p", "no:cacheprovider")
    assert "passed" in printed
    assert "skipped" not in printed


def test_linters_and_type_checkers_find_nothing(tmp_path: Path) -> None:
    projects = [make(kind, tmp_path / kind) for kind in Kind]
    environments = [{"root": each.name, "extraPaths": [str(ROOT)]} for each in projects]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"executionEnvironments": environments}))
    run(tmp_path, "ruff", "check", "--no-cache", ".")
    run(tmp_path, "ruff", "format", "--no-cache", "--check", ".")
    run(tmp_path, "pyright", "--pythonpath", sys.executable)


def test_the_tests_for_any_broker_use_the_named_one(tmp_path: Path) -> None:
    with BackgroundBroker() as broker:
        project = make(Kind.TEST, tmp_path)
        run(project, "pytest", "-q", "tests/test_any_broker.py", BMQ_BROKER_URI=broker.uri)


def test_the_commands_of_projects_run(tmp_path: Path) -> None:
    module = module_of(NAME)
    shown = run(make(Kind.SERVICE, tmp_path / "service"), "bmq", "docs", f"{module}.app")
    assert f"{NAME}.orders.dead" in shown
    assert "--checkpoint" in run(make(Kind.PIPELINE, tmp_path / "pipeline"), f"{module}.job", "--help")
