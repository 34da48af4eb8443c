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
    """The service of docs/migrate/faststream.md, of which the page shows a part."""

    DOCS = ROOT / "docs"

    def test_the_suite_of_the_service_passes(self, tmp_path: Path) -> None:
        shutil.copytree(self.DOCS / "migrate" / "faststream", tmp_path, dirs_exist_ok=True)
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=110,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout
        assert "7 passed" in run.stdout

    def test_the_page_shows_the_service(self) -> None:
        page = (self.DOCS / "migrate" / "faststream.md").read_text(encoding="utf-8")
        (block,) = re.findall(r'^```python title="bmq"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
        assert block in (self.DOCS / "migrate" / "faststream" / "orders_bmq.py").read_text(encoding="utf-8")
