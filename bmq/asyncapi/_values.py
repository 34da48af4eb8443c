# SPDX-License-Identifier: Apache-2.0
"""Tests for JSON values, with types for type checkers."""

from __future__ import annotations

from typing import Any, TypeGuard

__all__ = ["is_array", "is_object"]


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a value is an object of JSON."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Whether a value is an array of JSON."""
    return isinstance(value, list)
