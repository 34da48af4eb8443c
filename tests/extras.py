# SPDX-License-Identifier: Apache-2.0
"""Which extras are installed: tables need PyArrow, which the smallest test environment does not have."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TypeVar

__all__ = ["TABLES", "with_tables"]

T = TypeVar("T")

#: Whether tables can be received here.
TABLES = find_spec("pyarrow") is not None


def with_tables(*cases: T) -> list[T]:
    """Return test cases that receive tables; none if tables are unavailable."""
    return list(cases) if TABLES else []
