# SPDX-License-Identifier: Apache-2.0
"""The public names of classes and objects."""

from __future__ import annotations

from typing import Any

__all__ = ["current"]


def current(thing: Any) -> set[str]:
    """The public names of a class or an object."""
    return {name for name in dir(thing) if not name.startswith("_")}
