"""The names of the message properties that ``bmq`` itself sets and reads.

All of them are legal names in subscription expressions, which take letters, digits and underscores only, so
that messages can be selected by them. A service in another language takes part by setting the same
properties. The page *Conventions* of the documentation says what each of them holds.
"""

from __future__ import annotations

from typing import Final

__all__: list[str] = []

PREFIX: Final = "bmq_"
"""How all of them begin. Names that begin like this are reserved for what may come."""
