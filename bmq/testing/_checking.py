# SPDX-License-Identifier: Apache-2.0
"""Checks of histories: from memory, from a file, or from several files."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

from bmq import _checks
from bmq.testing._checker import Checker, Verdict
from bmq.testing._history import History, parsed

__all__ = ["check", "examine"]

#: The source of events: a history, a file, or several of these.
HistorySource: TypeAlias = History | str | os.PathLike[str] | Iterable["History | str | os.PathLike[str]"]


def check(
    history: HistorySource,
    *,
    rules: Iterable[str] | None = None,
    without: Iterable[str] = (),
    queues: Iterable[str] | None = None,
    within: float | None = None,
    clock_error: float = 0.0,
) -> Verdict:
    """Check a history, and raise if it breaks a rule.

    ::

        bmq.testing.check(history, without=["order"], within=60)

    Args:
        history: a :class:`History`, the path of a file, or several of these, merged by time.
        rules: the names of the rules to check; None for the rules of every priority and fanout queue:
            all but ``key-order``, ``one-owner``, ``one-at-a-time`` and ``late``.
        without: rules to leave out.
        queues: the queues to judge, by URI without ``?id=``; None for all.
        within: seconds from a message's acknowledgement, its due time or the last ``healed`` mark, whichever
            is last, to its arrival; adds the rule ``late``.
        clock_error: seconds by which the clocks of processes may differ, for ``early``.

    Returns:
        The counts.

    Raises:
        BrokenPromise: the history breaks a rule.
        UsageError: an argument is out of its range, or a line of a file is no event.
        OSError: a file cannot be read.
    """
    verdict = examine(
        history, rules=rules, without=without, queues=queues, within=within, clock_error=clock_error
    )
    verdict.raise_for_problems()
    return verdict


def examine(
    history: HistorySource,
    *,
    rules: Iterable[str] | None = None,
    without: Iterable[str] = (),
    queues: Iterable[str] | None = None,
    within: float | None = None,
    clock_error: float = 0.0,
) -> Verdict:
    """Check a history like :func:`check`, and return the result instead of raising.

    Args:
        history: as for :func:`check`, like all further arguments.
        rules: names.
        without: names.
        queues: URIs.
        within: seconds.
        clock_error: seconds.

    Raises:
        UsageError: an argument is out of its range, or a line of a file is no event.
        OSError: a file cannot be read.
    """
    checker = Checker(rules=rules, without=without, queues=queues, within=within, clock_error=clock_error)
    torn: list[str] = []
    for source, line, event in _merged(history, torn):
        checker.read(source, line, event)
    return checker.verdict(torn)


def _merged(source: HistorySource, torn: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the events of histories, ordered by time: the source's name, the line, the event.

    The events of a source stay in order.

    Args:
        source: the histories.
        torn: receives the places of lines without JSON.

    Raises:
        UsageError: the source is none, or a line is no event.
        OSError: a file cannot be read.
    """
    if isinstance(source, History | str | os.PathLike):
        return _events(source, torn)
    several: list[object] = list(_checks.items("history", source, "histories or paths"))
    if len(several) == 1:
        return _events(several[0], torn)
    return heapq.merge(*(_events(each, torn) for each in several), key=lambda found: found[2]["at"])


def _events(source: object, torn: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    if isinstance(source, History) and source.path is None:
        yield from parsed("", source._lines, torn)
        return
    kinds: tuple[type[Any], ...] = (History, str, os.PathLike)
    _checks.instance("history", source, kinds, "a bmq.testing.History or a path")
    path = (
        source.path
        if isinstance(source, History)
        else Path(_checks.text("history", os.fspath(cast("str", source))))
    )
    assert path is not None
    with path.open("rb") as lines:
        yield from parsed(path.name, lines, torn)
