# SPDX-License-Identifier: Apache-2.0
"""Runs cases against a client: each case has a scripted broker and a new process of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from bmq import _world
from bmq.errors import UsageError
from conformance.case import Case, Mismatch
from conformance.connection import ANSWER
from conformance.program import Start, Unsupported
from conformance.run import Outcome, Report, Result
from conformance.stage import Stage

__all__ = ["run_client_suite"]

#: Cases at the same time.
AT_ONCE = 4
#: Seconds for the program to start.
_START = 60.0
#: Events that a failed case shows for each connection.
_KEPT = 24


async def run_client_suite(
    start: Start,
    cases: Sequence[Case],
    *,
    name: str = "",
    port: int = 0,
    at_once: int = AT_ONCE,
    patience: float = ANSWER,
    on_result: Callable[[Result], None] | None = None,
) -> Report:
    """Run cases against a client.

    Args:
        start: starts the client; receives the address of the scripted broker, and returns the program.
        cases: the cases.
        name: the client in the report.
        port: where the scripted broker listens, for one case at a time; 0 for a free port for each case.
        at_once: cases at the same time, from 1.
        patience: seconds to wait for the client's next step; above 8, the limits of the cases grow, too.
        on_result: called after each case.

    Raises:
        UsageError: ``at_once`` is below 1, or there are no cases.
        OSError: the program cannot be started.
    """
    if port:
        at_once = 1
    if at_once < 1:
        raise UsageError(f"at_once must be at least 1, not {at_once}")
    if not cases:
        raise UsageError("a case was expected, none was given: name a group, a section or a case")
    began, results = _world.monotonic(), dict[str, Result]()
    waiting = iter(sorted(cases, key=lambda each: each.key))

    async def one_after_another(cases: Iterator[Case]) -> None:
        for case in cases:
            result = results[case.number] = await _run(start, case, patience, port)
            if on_result is not None:
                on_result(result)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one_after_another(waiting))
    return Report(
        name,
        "",
        tuple(results[case.number] for case in sorted(cases, key=lambda each: each.key)),
        _world.monotonic() - began,
    )


async def _run(start: Start, case: Case, patience: float, port: int) -> Result:
    began, stage = _world.monotonic(), Stage(patience)
    expected = received = reason = ""
    playing = False
    try:
        await stage.listen(port)
        stage.use(await start(stage.uri))
        await stage.done(stage.do("hello"), _START)
        playing = True
        async with asyncio.timeout(case.seconds * max(1.0, patience / ANSWER)):
            await case.check(stage)
    except Unsupported as error:
        reason = f"the program cannot do this: {error}".rstrip(": ")
    except Mismatch as error:
        expected, received = error.expected, error.received
    except TimeoutError:
        expected, received = case.expects, f"no result within {case.seconds:g} s"
    except Exception as error:
        if not playing:
            raise
        # The client's data broke an assumption of the case.
        expected, received = case.expects, f"data that the case cannot read: {error!r}"
    finally:
        await stage.end()
    seconds = _world.monotonic() - began
    if reason:
        return Result(case, Outcome.NOT_TESTED, seconds, reason)
    if not received:
        return Result(case, Outcome.PASSED, seconds)
    trace = [each for line in stage.peers for each in line.trace[-_KEPT:]]
    return Result(case, Outcome.FAILED, seconds, "", expected, received, tuple(trace))
