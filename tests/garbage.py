# SPDX-License-Identifier: Apache-2.0
"""Collect garbage without scanning objects that live as long as the process."""

from __future__ import annotations

import gc

__all__ = ["collect"]

# More objects than this are modules imported late, and caches: the collector ignores them from then on.
_MANY = 10_000


def collect() -> None:
    """Collect all garbage. A look at every module and every test takes 300 ms, and is taken once."""
    gc.collect()
    if len(gc.get_objects()) > _MANY:
        gc.freeze()
