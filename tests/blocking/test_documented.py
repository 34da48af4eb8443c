# SPDX-License-Identifier: Apache-2.0
"""The programs in docs/guides/blocking.md run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.testing import BackgroundBroker
from tests.pages import at_broker

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "blocking.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def loop_of_its_own() -> None:
    """Each program has its own."""


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_every_documented_program_runs(tmp_path: Path, number: int) -> None:
    path = tmp_path / "program.py"
    with BackgroundBroker() as broker:
        path.write_text(at_broker(PROGRAMS[number], broker.uri))
        run = subprocess.run(
            [sys.executable, "-W", "error", str(path)],
            env={**os.environ, "PYTHONPATH": str(PAGE.parents[1])},
            input="first\n\nsecond\n",
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        posted = broker.call(lambda embedded: sum(bool(queue.posted) for queue in embedded.queues.values()))
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert "exceeded its timeout" not in run.stderr
    assert posted
    assert ("2 lines posted" in run.stdout) == ("sys.stdin" in PROGRAMS[number])
