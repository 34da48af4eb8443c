# SPDX-License-Identifier: Apache-2.0
"""Notices: decoders report input that only a newer peer sends and this version skips.

A decoder has neither log nor session. The caller may pass a :data:`Notice`, and receives one text for each
skipped thing. Equal things have equal texts, so the caller can report each kind once. Texts may contain names
from the peer, which :func:`peers_word` makes short and printable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from bmq.wire.printable import printable

__all__ = ["FewNotices", "Notice", "peers_word"]

#: Takes the description of a thing that was skipped.
Notice: TypeAlias = Callable[[str], None]

_SHOWN = 64
_MOST = 16


class FewNotices:
    """Passes on the first notices of a message: a message of nothing but unknown members costs no more.

    Args:
        notice: receives the first ones.
    """

    __slots__ = ("_left", "_notice")

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._left = _MOST

    def __call__(self, what: str) -> None:
        """Pass on a notice, unless the message had many."""
        if self._left:
            self._left -= 1
            self._notice(what)


def peers_word(value: object) -> str:
    """Return a name or a number that a peer chose, short and printable."""
    return printable(f"{value!r:.{_SHOWN}}")
