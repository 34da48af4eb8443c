"""pyarrow, which has no types to check against: here is the one place where it is anything."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["RecordBatch", "fs", "pa"]

pa: Any = importlib.import_module("pyarrow")
fs: Any = importlib.import_module("pyarrow.fs")

RecordBatch = Any
