# SPDX-License-Identifier: Apache-2.0
"""Text from a peer, made safe for a log or a terminal."""

from __future__ import annotations

__all__ = ["printable"]

_LONGEST = 1000


def printable(text: object, limit: int = _LONGEST) -> str:
    r"""Return a text without characters that move the cursor, end the line or cannot be encoded.

    Control characters, line and paragraph separators, characters that change the direction of writing and
    lone surrogates are written as escapes, as in ``\n`` and ``\x1b``.

    Args:
        text: the text, or any object with a ``str()``.
        limit: largest number of characters shown; "..." replaces the rest.

    >>> printable("no such queue\n\x1b[2J")
    'no such queue\\n\\x1b[2J'
    """
    shown = str(text)
    if len(shown) > limit:
        shown = shown[:limit] + "..."
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)
