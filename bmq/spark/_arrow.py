# SPDX-License-Identifier: Apache-2.0
"""pyarrow, imported as Any because it has no type hints, for the other modules."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["RecordBatch", "fs", "pa", "pc"]

pa: Any = importlib.import_module("pyarrow")
fs: Any = importlib.import_module("pyarrow.fs")
pc: Any = importlib.import_module("pyarrow.compute")

RecordBatch = Any
