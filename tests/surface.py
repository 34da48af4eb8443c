# SPDX-License-Identifier: Apache-2.0
"""The public names of classes and objects."""

from __future__ import annotations

import inspect
from typing import Any

from bmq._renamed import Renamed

__all__ = ["current"]


def current(thing: Any) -> set[str]:
    """The public names of a class or an object, without old ones, which only raise an error."""
    return {
        name
        for name in dir(thing)
        if not name.startswith("_") and not isinstance(inspect.getattr_static(thing, name), Renamed)
    }
