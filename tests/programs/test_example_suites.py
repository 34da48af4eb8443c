# SPDX-License-Identifier: Apache-2.0
"""The test suites of the example services pass in a separate folder."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, completed

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
#: The service of docs/migrate/faststream.md, of which the page shows a part.
FASTSTREAM = ROOT / "docs" / "migrate" / "faststream"


# The suite of orders_service runs in the tutorial: test_pages.py.
@pytest.mark.parametrize("name", ["testing_your_service", "orders_worker", "batch_loader", "orders_api"])
def test_the_example_suites_pass_as_they_are(tmp_path: Path, name: str) -> None:
    for path in (ROOT / "examples" / name).iterdir():
        if path.is_file():
            (tmp_path / path.name).write_text(path.read_text())
    assert "passed" in completed(*PYTEST, cwd=tmp_path, timeout=110).stdout


def test_the_django_project_passes_with_its_own_test_runner(tmp_path: Path) -> None:
    project = shutil.copytree(
        ROOT / "examples" / "orders_django",
        tmp_path / "project",
        ignore=shutil.ignore_patterns("*.sqlite3", "__pycache__"),
    )
    manage = (sys.executable, "-W", "error", "manage.py")
    completed(*manage, "makemigrations", "--check", cwd=project)
    completed(*manage, "check", cwd=project)
    assert "Ran 6 tests" in completed(*manage, "test", cwd=project).stderr


def test_the_suite_beside_faststream_passes_and_is_shown_on_its_page(tmp_path: Path) -> None:
    shutil.copytree(FASTSTREAM, tmp_path, dirs_exist_ok=True)
    assert "7 passed" in completed(*PYTEST, cwd=tmp_path, timeout=110).stdout
    page = FASTSTREAM.with_suffix(".md").read_text(encoding="utf-8")
    (block,) = re.findall(r'^```python title="bmq"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    assert block in (FASTSTREAM / "orders_bmq.py").read_text(encoding="utf-8")
