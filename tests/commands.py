# SPDX-License-Identifier: Apache-2.0
"""Programs: run to their end, or imported by their paths."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

__all__ = ["ROOT", "completed", "loaded"]

ROOT = Path(__file__).parent.parent


def completed(
    *command: object,
    cwd: Path = ROOT,
    status: int = 0,
    timeout: float = 280.0,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program that must end with a status; return its output.

    Args:
        command: program and arguments.
        cwd: working directory.
        status: expected exit status.
        timeout: a guard.
        env: changed variables of the environment; the program never sees BMQ_BROKER_URI otherwise.
    """
    outside = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
    variables = outside | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"} | dict(env or {})
    run = subprocess.run(
        [str(each) for each in command],
        cwd=cwd, env=variables, capture_output=True, encoding="utf-8", timeout=timeout, check=False,
    )  # fmt: skip
    assert run.returncode == status, run.stdout + run.stderr
    return run


def loaded(path: Path) -> ModuleType:
    """Import a program by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
