# SPDX-License-Identifier: Apache-2.0
"""The test suites of the example services pass in a separate folder."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


# The suite of orders_service runs in the tutorial: test_pages.py.
@pytest.mark.parametrize("name", ["testing_your_service", "orders_worker", "batch_loader", "orders_api"])
def test_the_example_suites_pass_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    for path in (ROOT / "examples" / name).iterdir():
        if path.is_file():
            (tmp_path / path.name).write_text(path.read_text())
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert "passed" in run.stdout


def test_the_django_project_passes_with_its_own_test_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    project = shutil.copytree(
        ROOT / "examples" / "orders_django",
        tmp_path / "project",
        ignore=shutil.ignore_patterns("*.sqlite3", "__pycache__"),
    )
    for arguments in (["makemigrations", "--check"], ["check"], ["test"]):
        run = subprocess.run(
            [sys.executable, "-W", "error", "manage.py", *arguments],
            cwd=project, capture_output=True, text=True, check=False, timeout=110,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
    assert "Ran 6 tests" in run.stderr


class TestBesideFastStream:
    """The service of docs/faststream.md."""

    FOLDER = ROOT / "benchmarks" / "beside_faststream"

    @pytest.fixture
    def benchmark(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
        """Import a module of the folder, as the programs in the folder do."""
        monkeypatch.syspath_prepend(str(self.FOLDER))
        return importlib.import_module

    @pytest.mark.parametrize("framework", ["bmq", "faststream"])
    def test_the_suite_of_the_service_passes(self, tmp_path: Path, framework: str) -> None:
        for name in (f"orders_{framework}.py", f"test_orders_{framework}.py", "pytest.ini"):
            shutil.copy(self.FOLDER / name, tmp_path / name)
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=110,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout
        assert "7 passed" in run.stdout

    def test_the_page_has_the_sizes_of_both_services(self, benchmark: Callable[[str], Any]) -> None:
        measure = benchmark("run")
        for label, prefix in (("service", ""), ("its seven tests", "test_")):
            sizes = [measure.lines(prefix + file) for file in measure.FRAMEWORKS.values()]
            assert f"| lines of code, {label} | {sizes[0]} | {sizes[1]} |" in self.page()

    @pytest.mark.timeout(600)  # both checkers, over 22 programs
    def test_the_checkers_find_the_mistakes_of_the_page(self, benchmark: Callable[[str], Any]) -> None:
        planted = benchmark("planted")
        found = planted.results()
        rows = [row.strip("|").split("|") for row in self.page().splitlines() if row.startswith("| ")]
        cells = {row[0].strip(): [each.strip() for each in row[1:]] for row in rows}
        for number, (mistake, *_) in enumerate(planted.MISTAKES):
            for cell, by in zip(cells[mistake], found.values(), strict=True):
                both = [by[checker][number] for checker in ("mypy", "pyright")]
                assert both == ["both checkers" in cell] * 2, (mistake, cell, by)
                assert by["registration"][number] == ("at registration" in cell), (mistake, cell)

    def page(self) -> str:
        return (ROOT / "docs" / "faststream.md").read_text(encoding="utf-8")

    def test_the_page_shows_both_services(self) -> None:
        blocks = re.findall(r'^```python title="[^"]*"\n(.*?)^```$', self.page(), re.MULTILINE | re.DOTALL)
        files = ["orders_bmq.py", "orders_faststream.py"]
        assert len(blocks) == len(files)
        for block, file in zip(blocks, files, strict=True):
            assert block in (self.FOLDER / file).read_text(encoding="utf-8")
