"""The names of the message properties that ``bmq`` itself sets and reads.

All of them are legal names in subscription expressions, which take letters, digits and underscores only:
what travels in a message can be selected on. A service in another language takes part by setting the same
properties. The page *Conventions* of the documentation says what each of them holds.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BUCKET"]

PREFIX: Final = "bmq_"
"""How all of them begin. Names that begin like this are reserved for what may come."""

BUCKET: Final = "bmq_bucket"
"""The bucket of the message's key: 0 to 2**31 - 1. Consumer groups share the work by it."""
