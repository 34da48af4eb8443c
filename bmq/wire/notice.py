# SPDX-License-Identifier: Apache-2.0
"""Notices: reports of input from a newer peer, skipped by this version.

A decoder has neither log nor session. The caller may pass a :data:`Notice`, which receives one text for each
skipped element. Equal elements have equal texts, so the caller can report each kind once. Texts may contain
names from the peer, which :func:`peers_word` makes short and printable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from bmq.wire.printable import printable

#: Receives the description of a skipped element.
Notice: TypeAlias = Callable[[str], None]

_SHOWN = 64
_MOST = 16


class FewNotices:
    """Passes on the first notices of a message: a message full of unknown members stays cheap.

    Args:
        notice: receives the first notices.
    """

    __slots__ = ("_left", "_notice")

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._left = _MOST

    def __call__(self, what: str) -> None:
        """Pass on a notice, unless the message already had many."""
        if self._left:
            self._left -= 1
            self._notice(what)


def peers_word(value: object) -> str:
    """Return a name or a number from a peer, short and printable."""
    return printable(f"{value!r:.{_SHOWN}}")
