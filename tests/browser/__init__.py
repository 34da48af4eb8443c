# SPDX-License-Identifier: Apache-2.0
"""Python in the browser: what docs/browser adds to the documentation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "browser"


def load(name: str) -> ModuleType:
    """Load a module of docs/browser, which is no package."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
