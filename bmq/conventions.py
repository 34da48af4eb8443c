"""The names of the message properties that ``bmq`` itself sets and reads.

All of them are legal names in subscription expressions, which take letters, digits and underscores only, so
that messages can be selected by them. A service in another language takes part by setting the same
properties. The page *Conventions* of the documentation says what each of them holds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, TypeVar

__all__ = ["CONTENT_TYPE", "POSTED", "PREFIX", "post_time", "with_post_time"]

T = TypeVar("T")

PREFIX: Final = "bmq_"
"""How all of them begin. Names that begin like this are reserved for what may come."""

POSTED: Final = "bmq_posted"
"""INT64: when a message was first posted, in milliseconds since 1970 (UTC)."""

CONTENT_TYPE: Final = "bmq_content_type"
"""STRING: what the payload is, as a media type such as ``application/json``."""


def with_post_time(properties: Mapping[str, T] | None = None, at: float | None = None) -> dict[str, T | int]:
    """Return properties for a post that say when it was made.

    What has a post time keeps it: a message that is posted again, by whomever, does not get younger.

    Args:
        properties: the other properties.
        at: the time, in seconds since 1970; None for now.
    """
    posted = round((time.time() if at is None else at) * 1000)
    return {POSTED: posted, **(properties or {})}


def post_time(properties: Mapping[str, object]) -> float | None:
    """Return when a message was first posted, in seconds since 1970; None if it does not say so."""
    posted = properties.get(POSTED)
    return posted / 1000 if isinstance(posted, int) and not isinstance(posted, bool) else None
