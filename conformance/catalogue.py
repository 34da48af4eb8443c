# SPDX-License-Identifier: Apache-2.0
"""All cases, and the choice of some of them by number or level."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from bmq.errors import UsageError
from conformance.case import Case, Cases, Level
from conformance.cases import EVERY_GROUP
from conformance.client_cases import EVERY_GROUP as EVERY_CLIENT_GROUP

__all__ = ["GROUPS", "all_cases", "choose", "client_cases"]

#: Titles of the groups, by number.
GROUPS: Final[dict[int, str]] = {group.group: group.title for group in (*EVERY_GROUP, *EVERY_CLIENT_GROUP)}


@cache
def all_cases() -> tuple[Case, ...]:
    """All cases for brokers, in the order of their numbers."""
    return _sorted(EVERY_GROUP)


@cache
def client_cases() -> tuple[Case, ...]:
    """All cases for clients, in the order of their numbers."""
    return _sorted(EVERY_CLIENT_GROUP)


def _sorted(groups: tuple[Cases, ...]) -> tuple[Case, ...]:
    return tuple(sorted((case for group in groups for case in group.cases), key=lambda case: case.key))


def choose(only: Sequence[str] = (), cases: Sequence[Case] | None = None) -> tuple[Case, ...]:
    """Return the cases of groups (``5``), sections (``5.2``), numbers (``5.2.1``) and levels (``must``).

    With levels and numbers, a case has to match both. Without arguments, all cases for brokers are returned.

    Args:
        only: the texts.
        cases: the cases to choose from; None for those for brokers.

    Raises:
        UsageError: a text names no case.
    """
    cases = all_cases() if cases is None else cases
    levels = [each for each in only if each in list(Level)]
    numbers = [each for each in only if each not in levels]
    for text in numbers:
        if not any(_belongs(case, text) for case in cases):
            groups = ", ".join(dict.fromkeys(str(case.key[0]) for case in cases))
            raise UsageError(
                f"a group, a section, a case or a level was expected, not {text!r}: "
                f"use a number such as 5, 5.2 or 5.2.1 (groups {groups}), or {', '.join(Level)}"
            )
    return tuple(
        case
        for case in cases
        if (not levels or case.level in levels) and (not numbers or any(_belongs(case, n) for n in numbers))
    )


def _belongs(case: Case, text: str) -> bool:
    return case.number == text or case.number.startswith(f"{text}.")
