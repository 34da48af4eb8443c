# SPDX-License-Identifier: Apache-2.0
"""Text from a peer or of an error, made safe for a log, a terminal or a property."""

from __future__ import annotations

_LONGEST = 1000
_LONGEST_LINE = 300


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


def bounded(text: str, most: int = _LONGEST) -> str:
    """Return a text shortened to ``most`` characters, as a STRING property can hold."""
    return text[:most].encode("utf-8", "replace").decode()


def error_text(error: BaseException) -> str:
    """Return type and text of an error, at most 1,000 characters, as a property can hold."""
    return bounded(f"{type(error).__name__}: {_text(error)}")


def described(error: BaseException) -> str:
    """Return type and text of an error on one line of about 300 characters, for a log."""
    text = " ".join(_text(error)[: 4 * _LONGEST_LINE].split())
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__, _LONGEST_LINE)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an application's exception with a broken __str__
        return "(str() of the error failed)"
