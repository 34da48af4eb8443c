"""Text from elsewhere, as it may stand in a log line or on a terminal."""

from __future__ import annotations

__all__ = ["printable"]

_LIMIT = 1000


def printable(text: str) -> str:
    """Return a peer's text with everything escaped that does not print, and bounded in length.

    Line breaks would forge log lines, escape codes would reach a terminal.
    """
    if len(text) > _LIMIT:
        text = f"{text[:_LIMIT]}... ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
