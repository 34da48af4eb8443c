# SPDX-License-Identifier: Apache-2.0
"""Runs cases against a broker: several at a time, each with a deadline, and stops if the broker dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bmq import _world
from bmq.errors import Error, UsageError
from conformance.bench import BASIC, Address, Bench, Domains, Opener
from conformance.case import Case, Level, Mismatch, Untested
from conformance.connection import Traced

__all__ = ["Outcome", "Report", "Result", "run_suite"]

#: Cases at the same time.
AT_ONCE = 16
#: Seconds to connect.
CONNECT = 5.0
_KEPT = 24


class Outcome(StrEnum):
    """The outcome of a case."""

    PASSED = "passed"
    #: The broker's reaction differs from the expected one.
    FAILED = "failed"
    #: The broker lacks a domain, or died before the case.
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a case.

    Attributes:
        case: the case.
        outcome: its outcome.
        seconds: duration.
        reason: why the case was not tested, or could not finish.
        expected: the expected reaction of a failed case.
        received: the broker's reaction in a failed case.
        trace: the last events of a failed case, in order, by connection.
    """

    case: Case
    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""
    expected: str = ""
    received: str = ""
    trace: tuple[Traced, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run, in the order of the numbers.

    Attributes:
        broker: address of the broker.
        version: name and version that the broker gives in the negotiation.
        results: the results.
        seconds: duration of the run.
        died: what happened if the broker stopped accepting connections; empty otherwise.
        missing: for each kind of domain that cannot be used, the reason.
    """

    broker: str
    version: str
    results: tuple[Result, ...]
    seconds: float
    died: str = ""
    missing: dict[str, str] = field(default_factory=dict[str, str])

    def count(self, outcome: Outcome, level: Level | None = None) -> int:
        """The number of results with an outcome, of one level or of all levels."""
        return sum(
            each.outcome is outcome and (level is None or each.case.level is level) for each in self.results
        )

    @property
    def conforms(self) -> bool:
        """Whether no ``must`` case failed, the broker survived, and no basic domain was missing."""
        return not self.died and not self.count(Outcome.FAILED, Level.MUST) and not self.lacking

    @property
    def lacking(self) -> list[str]:
        """The reasons why domains of the basic kinds cannot be used."""
        return [reason for kind, reason in self.missing.items() if kind in BASIC]

    @property
    def verdict(self) -> str:
        """The result in a sentence, with the share of the cases that were tested."""
        tested = len(self.results) - self.count(Outcome.NOT_TESTED)
        share = f"{tested} of {len(self.results)} cases were tested"
        if self.lacking:
            return f"does not conform: {'; '.join(self.lacking)}; {share}"
        return f"{'conforms' if self.conforms else 'does not conform'}; {share}"


async def run_suite(
    address: Address | Opener,
    cases: Sequence[Case],
    *,
    domains: Domains | None = None,
    user: bytes | None = None,
    slow: bool = False,
    at_once: int = AT_ONCE,
    name: str = "",
    on_result: Callable[[Result], None] | None = None,
) -> Report:
    """Run cases against a broker.

    Args:
        address: where the broker listens, or a function that opens a connection.
        cases: the cases.
        domains: names of the broker's domains; None for the usual names.
        user: user and password for the mechanism BASIC, with a colon between them; None leaves out the cases
            of credentials.
        slow: whether cases run that wait for minutes.
        at_once: cases at the same time, from 1.
        name: the broker in the report; by default its address.
        on_result: called after each case.

    Raises:
        UsageError: ``at_once`` is below 1, or there are no cases.
        OSError: the broker does not accept the first connection.
        Mismatch: the broker does not answer the first negotiation as the protocol requires.
    """
    if at_once < 1:
        raise UsageError(f"at_once must be at least 1, not {at_once}")
    if not cases:
        raise UsageError("a case was expected, none was given: name a group, a section or a case")
    if isinstance(address, Address):
        name = name or f"tcp://{address.host}:{address.port}"
        opener = _opener(address)
    else:
        opener = address
    run = _Run(opener, domains or Domains(), user, slow, on_result)
    return await run.work(sorted(cases, key=lambda each: each.key), at_once, name)


def _opener(address: Address) -> Opener:
    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(CONNECT):
            return await asyncio.open_connection(address.host, address.port, ssl=address.ssl)

    return dial


class _Run:
    """One run."""

    def __init__(
        self,
        opener: Opener,
        domains: Domains,
        user: bytes | None,
        slow: bool,
        on_result: Callable[[Result], None] | None,
    ) -> None:
        self._opener = opener
        self._domains = domains
        self._user = user
        self._slow = slow
        self._locks: dict[str, asyncio.Lock] = {}
        self._on_result = on_result
        self._missing: dict[str, str] = {}
        self._results: dict[str, Result] = {}
        self._running: dict[str, None] = {}
        self._died = ""

    async def work(self, cases: Sequence[Case], at_once: int, name: str) -> Report:
        began = _world.monotonic()
        version = await self._greet()
        for kind in dict.fromkeys(kind for case in cases for kind in case.domains):
            if reason := await self._lacks(kind):
                self._missing[kind] = reason
        waiting = iter([each for each in cases if not each.heavy])
        await asyncio.gather(*(self._one_after_another(waiting) for _ in range(at_once)))
        await self._one_after_another(iter([each for each in cases if each.heavy]))
        return Report(
            name,
            version,
            tuple(self._results[case.number] for case in cases),
            _world.monotonic() - began,
            self._died,
            self._missing,
        )

    async def _greet(self) -> str:
        bench = Bench(self._opener, self._domains)
        try:
            peer = await bench.dial()
            identity = (await peer.negotiate()).broker_identity
            return identity.user_agent or f"version {identity.sdk_version}"
        finally:
            bench.end()

    async def _lacks(self, kind: str) -> str:
        """Why a domain cannot be used; empty if it can."""
        bench = Bench(self._opener, self._domains)
        try:
            # One name, because a domain may have few queues.
            await (await bench.client()).open(bench.uri(kind, name="probe"), read=False)
        except Mismatch as error:
            return f"no domain {self._domains.name(kind)} ({error.received})"
        finally:
            bench.end()
        return ""

    async def _one_after_another(self, cases: Iterable[Case]) -> None:
        for case in cases:
            result = await self._run(case)
            self._results[case.number] = result
            if self._on_result is not None:
                self._on_result(result)

    async def _run(self, case: Case) -> Result:
        if self._died:
            return Result(case, Outcome.NOT_TESTED, reason=self._died)
        lacking = [self._missing[kind] for kind in case.domains if kind in self._missing]
        if lacking:
            return Result(case, Outcome.NOT_TESTED, reason="; ".join(lacking))
        if case.slow and not self._slow:
            reason = f"takes up to {case.seconds / 60:.0f} minutes: give --slow"
            return Result(case, Outcome.NOT_TESTED, reason=reason)
        began = _world.monotonic()
        bench = Bench(self._opener, self._domains, self._user, self._locks)
        self._running[case.number] = None
        expected = received = ""
        try:
            async with asyncio.timeout(case.seconds):
                await case.check(bench)
        except Untested as error:
            del self._running[case.number]
            return Result(case, Outcome.NOT_TESTED, reason=str(error))
        except Mismatch as error:
            expected, received = error.expected, error.received
        except TimeoutError:
            expected, received = case.expects, f"no result within {case.seconds:g} s"
        except OSError as error:
            expected, received = "a connection", f"{type(error).__name__}: {error}"
        except (Error, ValueError, KeyError, TypeError, AttributeError) as error:
            # The broker's data broke an assumption of the case.
            expected, received = case.expects, f"data that the case cannot read: {error!r}"
        finally:
            bench.end()
            seconds = _world.monotonic() - began
        if not received:
            del self._running[case.number]
            return Result(case, Outcome.PASSED, seconds)
        await self._check_alive()
        self._running.pop(case.number, None)
        trace = [each for peer in bench.peers for each in peer.trace[-_KEPT:]]
        return Result(case, Outcome.FAILED, seconds, "", expected, received, tuple(trace))

    async def _check_alive(self) -> None:
        """After a failure: whether the broker still negotiates."""
        if self._died:
            return
        try:
            await self._greet()
        except (OSError, TimeoutError, Mismatch) as error:
            culprits = ", ".join(sorted(self._running, key=lambda each: tuple(map(int, each.split(".")))))
            self._died = (
                f"the broker stopped accepting sessions during {culprits} ({type(error).__name__}: {error})"
            )
