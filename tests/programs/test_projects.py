# SPDX-License-Identifier: Apache-2.0
"""The projects of ``bmq new`` pass their own tests, linters and type checkers, and their commands run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.cli.new import Kind, files, module_of
from bmq.testing import BackgroundBroker

ROOT = Path(__file__).parents[2]
NAME = "Shop.Orders-2"

# Spark starts slowly on a busy machine.
pytestmark = pytest.mark.timeout(300)


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=outside | paths | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.fixture(params=list(Kind))
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def make(kind: Kind, folder: Path) -> Path:
    for path, text in files(kind, NAME, module_of(NAME)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def project(kind: Kind, tmp_path: Path) -> Path:
    return make(kind, tmp_path)


def test_the_tests_of_a_project_pass(project: Path) -> None:
    done = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_linters_and_type_checkers_find_nothing(tmp_path: Path) -> None:
    projects = [make(kind, tmp_path / kind) for kind in Kind]
    environments = [{"root": each.name, "extraPaths": [str(ROOT)]} for each in projects]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"executionEnvironments": environments}))
    for command in (
        ["ruff", "check", "--no-cache", "."],
        ["ruff", "format", "--no-cache", "--check", "."],
        ["pyright", "--pythonpath", sys.executable],
    ):
        done = run(tmp_path, "-m", *command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", [Kind.TEST], indirect=True)
def test_the_tests_for_any_broker_use_the_named_one(project: Path) -> None:
    with BackgroundBroker() as broker:
        done = run(project, "-m", "pytest", "-q", "tests/test_any_broker.py", BMQ_BROKER_URI=broker.uri)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", [Kind.SERVICE, Kind.PIPELINE], indirect=True)
def test_the_command_of_a_project_runs(project: Path, kind: Kind) -> None:
    module = module_of(NAME)
    command = (
        ["-m", "bmq", "docs", f"{module}.app"] if kind is Kind.SERVICE else ["-m", f"{module}.job", "--help"]
    )
    done = run(project, *command)
    assert done.returncode == 0, done.stderr
    assert {Kind.SERVICE: f"{NAME}.orders.dead", Kind.PIPELINE: "--checkpoint"}[kind] in done.stdout
