# SPDX-License-Identifier: Apache-2.0
"""The test suites of the example services pass in a separate folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

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

    def test_the_suite_of_the_service_passes(self, tmp_path: Path) -> None:
        for name in ("orders_bmq.py", "test_orders_bmq.py", "pytest.ini"):
            shutil.copy(self.FOLDER / name, tmp_path / name)
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=110,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout
        assert "7 passed" in run.stdout

    def test_the_page_shows_both_services(self) -> None:
        page = (ROOT / "docs" / "faststream.md").read_text(encoding="utf-8")
        blocks = re.findall(r'^```python title="[^"]*"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
        files = ["orders_bmq.py", "orders_faststream.py"]
        assert len(blocks) == len(files)
        for block, file in zip(blocks, files, strict=True):
            assert block in (self.FOLDER / file).read_text(encoding="utf-8")
