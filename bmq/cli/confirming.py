# SPDX-License-Identifier: Apache-2.0
"""The question before a dangerous command."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from bmq.cli.messages import BadInput
from bmq.cli.output import note

__all__ = ["confirmed"]


def confirmed(question: str, consequences: Iterable[str] = ()) -> bool:
    """Show the consequences and ask on the terminal; only ``y`` and ``yes`` confirm.

    Raises:
        BadInput: there is no terminal to ask on; the error has the consequences.
    """
    lines = list(consequences)
    if not _terminal():
        raise BadInput("\n".join(["--yes is required without a terminal", *lines]))
    note("\n".join([*lines, f"{question} [y/N]"]), end=" ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
