# SPDX-License-Identifier: Apache-2.0
"""The tests in the documentation pass unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs"
CODE_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["guides/simulation"])
def test_every_documented_test_passes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(PAGES.parent))
    shown = [code for code in CODE_BLOCK.findall((PAGES / f"{name}.md").read_text()) if "def test_" in code]
    for number, code in enumerate(shown):
        (tmp_path / f"test_{number}.py").write_text(code)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        "filterwarnings = error\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert f"{len(shown)} passed" in run.stdout, run.stdout
