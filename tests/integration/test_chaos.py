# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers on several queues while the network and the broker fail at random.

``BMQ_CHAOS_SECONDS`` is the time of each run with faults (5), ``BMQ_CHAOS_SEED`` the seed of their schedule.
Every run prints its seed, and the same seed makes the same schedule.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys

import pytest

from bmq.broker import Broker
from bmq.testing import FaultProxy
from tests.integration import chaos
from tests.integration.accounts import Moment, Recoveries, Result, recoveries

SECONDS = float(os.environ.get("BMQ_CHAOS_SECONDS", "5"))
# Few enough that a stall fills the window: posting has to wait, and goes on.
_WINDOW = 500
SEED = int(os.environ.get("BMQ_CHAOS_SEED") or secrets.randbelow(1_000_000))


@pytest.mark.timeout(SECONDS + 4 * chaos.DEADLINE)
async def test_nothing_is_lost_and_nothing_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = os.environ.get("BMQ_BROKER_URI")
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)  # it would lead sessions past the proxy
    # Connections that only one side has lost are noticed by their silence; the longest stall is shorter.
    broker = None if named else Broker(heartbeat_interval_ms=500, max_missed_heartbeats=3)
    steps = chaos.plan(SEED, SECONDS, restarts=broker is not None)
    try:
        if broker is not None:
            await broker.start()
        target = broker.uri if broker is not None else named
        assert target
        async with (
            FaultProxy(target, seed=SEED) as proxy,
            chaos.Load(proxy.uri, chaos.new_uris("chaos"), max_unacked_messages=_WINDOW) as load,
        ):
            async with asyncio.timeout(2 * SECONDS + chaos.DEADLINE):
                faults = await chaos.inject(steps, proxy, broker, load.accounts)
            result = await load.finish()
    finally:
        if broker is not None:
            await broker.stop()
    recovered = recoveries(faults, result.sessions.values())
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    with capsys.disabled():
        # The standard error: the output of a process of pytest-xdist goes nowhere.
        print(_report(loop, named or "the embedded broker", faults, result, recovered), file=sys.stderr)

    replay = f"replay it with BMQ_CHAOS_SEED={SEED} BMQ_CHAOS_SECONDS={SECONDS:g}"
    assert not result.lost, f"acknowledged and not delivered: {result.lost[:20]}; {replay}"
    assert not result.without_outcome, f"posts without outcome: {result.without_outcome}; {replay}"
    assert not result.more_than_one_outcome, replay
    assert not result.disorder, f"out of order: {result.disorder[:20]}; {replay}"
    # What was confirmed on the connection it came by is recognised when it comes again.
    assert not result.duplicates.get("confirmed here"), replay
    assert result.acknowledged > 10 * len(faults), f"posting did not go on; {replay}"


def _report(loop: str, broker: str, faults: list[Moment], result: Result, recovered: Recoveries) -> str:
    nacks = {status: count for status, count in result.outcomes.items() if status != "SUCCESS"}
    reconnects = sum(
        moment.what == "StateRestored" for moments in result.sessions.values() for moment in moments
    )
    duplicates = ", ".join(f"{count} {kind}" for kind, count in sorted(result.duplicates.items()))
    return f"""
chaos on {loop} with {broker}, BMQ_CHAOS_SEED={SEED}, {SECONDS:g} s
  faults survived  {chaos.count_faults(faults)}
  posts            {result.posts:,}: {result.acknowledged:,} acknowledged, others {nacks or "none"}
  deliveries       {result.deliveries:,}
  duplicates       {sum(result.duplicates.values()):,} reached an application ({duplicates or "none"}); \
{result.dropped:,} recognised and dropped
  buffer full      {result.refused:,} times
  recoveries       {recovered}; {reconnects} in all
  lost             {len(result.lost):,}
"""
