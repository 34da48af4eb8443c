# SPDX-License-Identifier: Apache-2.0
"""The quickstart, command by command, in a clean checkout: the installation line works today.

Like ``make setup``, the installation takes bmq's dependencies from the package index.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from bmq._version import install
from tests import pages
from tests.ports import reserved_port

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(900)
def test_the_quickstart_works_literally_in_a_new_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "bmq"
    checkout.mkdir()
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout  # fmt: skip
    subprocess.run(["cp", "--parents", "-t", checkout, *existing(files)], cwd=ROOT, check=True)
    monkeypatch.setattr(pages, "PATIENCE", 300.0)
    # No environment is active at first: the only bmq is the one that the page installs.
    base = Path(getattr(sys, "_base_executable", sys.executable)).parent
    variables = {"PATH": f"{base}:/usr/bin:/bin", "PYTHONPATH": "", "PIP_QUIET": "3"}
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(reserved_port()) for _ in pages.PORTS]
        done = pages.run(ROOT / "docs" / "start" / "quickstart.md", checkout, ports, variables)
    assert [each for each in done if "pip install" in each] == ["pip install '.[cli]'"]

    # The command in errors about a missing package works in the same environment.
    used = f".venv/bin/{install('prometheus')} --quiet && .venv/bin/python -c 'import bmq.prometheus'"
    ran = subprocess.run(
        ["/bin/bash", "-c", used],
        cwd=checkout, env=variables, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def existing(files: bytes) -> list[str]:
    return [name for name in files.decode().split("\0") if name and (ROOT / name).exists()]
