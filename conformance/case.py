# SPDX-License-Identifier: Apache-2.0
"""A case: number, level, sent input, expected reaction, and the function that checks the reaction."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bmq.errors import UsageError

__all__ = ["Case", "Cases", "Check", "Level", "Mismatch", "Untested", "check", "fail"]

#: Checks a case, with a :class:`~conformance.bench.Bench` for brokers or a
#: :class:`~conformance.stage.Stage` for clients.
Check = Callable[[Any], Awaitable[object]]


class Level(StrEnum):
    """The weight of a case."""

    #: The protocol requires the behaviour: a client relies on it.
    MUST = "must"
    #: The protocol recommends the behaviour: a client works without it.
    SHOULD = "should"
    #: A broker of BlazingMQ behaves in this way; the protocol permits other behaviour.
    OBSERVED = "observed"


class Mismatch(AssertionError):
    """The broker's reaction differs from the expected reaction.

    Attributes:
        expected: the reaction that the case expects.
        received: the reaction of the broker.
    """

    def __init__(self, expected: str, received: str) -> None:
        self.expected = expected
        self.received = received
        super().__init__(f"expected {expected}, received {received}")


class Untested(Exception):
    """The broker is not configured for the case; the text names the missing setting."""


def fail(expected: object, received: object) -> Mismatch:
    """Return the error of an unexpected reaction."""
    return Mismatch(_shown(expected), _shown(received))


def check(received: object, expected: object, what: str = "") -> None:
    """Compare a value of the broker with the expected value.

    Raises:
        Mismatch: the values differ.
    """
    if received != expected:
        name = f"{what} " if what else ""
        raise Mismatch(name + _shown(expected), name + _shown(received))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


_LONGEST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case.

    Attributes:
        number: stable number, for example ``3.2.7``: group, section, place.
        title: the behaviour, in a sentence.
        level: the weight.
        statement: the number of the statement of ``docs/protocol/protocol.md`` that the case checks.
        sends: the input.
        expects: the expected reaction.
        check: the function; raises :class:`Mismatch`.
        domains: kinds of domains that the case needs.
        heavy: whether the case runs alone, because it needs much memory.
        seconds: time limit; a case that takes longer has failed.
        slow: whether the case waits for minutes, and runs only on request.
    """

    number: str
    title: str
    level: Level
    statement: str
    sends: str
    expects: str
    check: Check
    domains: tuple[str, ...] = ()
    heavy: bool = False
    seconds: float = 20.0
    slow: bool = False

    @property
    def key(self) -> tuple[int, ...]:
        """The number, for sorting."""
        return tuple(map(int, self.number.split(".")))

    @property
    def section(self) -> str:
        """Group and section of the number."""
        return self.number.rpartition(".")[0]


class Cases:
    """The cases of one group, in order of declaration.

    Args:
        group: number of the group.
        title: its title.
        domains: kinds of domains that a case needs if it does not name others.
    """

    def __init__(self, group: int, title: str, domains: tuple[str, ...] = ()) -> None:
        self.group = group
        self.title = title
        self.domains = domains
        self.cases: list[Case] = []

    def add(
        self,
        number: str,
        statement: str,
        level: Level,
        title: str,
        sends: str,
        expects: str,
        check: Callable[..., Awaitable[object]],
        *arguments: Any,
        **more: Any,
    ) -> None:
        """Add a case; see :class:`Case`. The check receives the arguments behind the bench or the stage.

        Raises:
            UsageError: the number does not belong to the group, or is in use.
        """
        if number.count(".") != 2 or not number.startswith(f"{self.group}."):
            raise UsageError(
                f"a number of group {self.group} was expected, not {number}: use {self.group}.x.y"
            )
        if any(each.number == number for each in self.cases):
            raise UsageError(f"the number {number} is in use: use the next free number of its section")

        async def run(bench: Any) -> None:
            await check(bench, *arguments)

        more = {"domains": self.domains, **more}
        self.cases.append(
            Case(
                number=number,
                title=title,
                level=level,
                statement=statement,
                sends=sends,
                expects=expects,
                check=run,
                **more,
            )
        )

    def case(
        self, number: str, statement: str, level: Level = Level.MUST, **more: Any
    ) -> Callable[[Check], Check]:
        """Declare the case that a function checks.

        The docstring of the function has the title, and behind ``Sends:`` and ``Expects:`` the input and the
        expected reaction.
        """

        def decorate(function: Check) -> Check:
            found = _DOCSTRING.fullmatch(" ".join((function.__doc__ or "").split()))
            if found is None:
                raise UsageError(f"the case {number} needs a docstring with a title, Sends: and Expects:")
            title, sends, expects = found.groups()
            self.add(number, statement, level, title, sends, expects, function, **more)
            return function

        return decorate

    def rows(
        self,
        check: Callable[..., Awaitable[object]],
        rows: Iterable[tuple[Any, ...]],
        sends: str = "{}",
        expects: str = "{}",
        **more: Any,
    ) -> None:
        """Add a case for each row: number, statement, level, title, input, expected reaction, arguments.

        Args:
            check: checks each of the cases.
            rows: the rows.
            sends: the words around the input of each row.
            expects: the words around the expected reaction of each row.
            more: further attributes of the cases.
        """
        for number, statement, level, title, sent, expected, *arguments in rows:
            sent, expected = sends.format(sent), expects.format(expected)
            self.add(number, statement, level, title, sent, expected, check, *arguments, **more)

    def reactions(
        self, check: Callable[..., Awaitable[object]], rows: Iterable[tuple[Any, ...]], **more: Any
    ) -> None:
        """Add a case for each row, as :meth:`rows` does; the check receives the reaction as last argument."""
        self.rows(
            check, ((*row[:5], _MEANINGS.get(row[5], row[5]), *row[6:], row[5]) for row in rows), **more
        )


_DOCSTRING = re.compile(r"(.+)\. Sends: (.+)\. Expects: (.+)\.")
#: What a reaction means, where its name is short.
_MEANINGS = {"closed": "the connection is closed", "no answer": "no answer; the session works"}
