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
from bmq.testing import FaultProxy, History, Verdict, examine
from tests.integration import chaos

SECONDS = float(os.environ.get("BMQ_CHAOS_SECONDS", "5"))
# Few enough that a stall fills the window: posting has to wait, and goes on.
_WINDOW = 500
SEED = int(os.environ.get("BMQ_CHAOS_SEED") or secrets.randbelow(1_000_000))


@pytest.mark.timeout(SECONDS + 4 * chaos.DEADLINE)
async def test_chaos_loses_no_message_and_hangs_no_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = os.environ.get("BMQ_BROKER_URI")
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)  # it would lead sessions past the proxy
    # Connections that only one side has lost are noticed by their silence; the longest stall is shorter.
    broker = None if named else Broker(heartbeat_interval_ms=500, max_missed_heartbeats=3)
    steps = chaos.plan(SEED, SECONDS, restarts=broker is not None)
    history = History()
    try:
        if broker is not None:
            await broker.start()
        target = broker.uri if broker is not None else named
        assert target
        async with (
            FaultProxy(target, seed=SEED) as proxy,
            chaos.Load(proxy.uri, chaos.new_uris("chaos"), history, max_unacked_messages=_WINDOW) as load,
        ):
            async with asyncio.timeout(2 * SECONDS + chaos.DEADLINE):
                faults = await chaos.inject(steps, proxy, broker, history)
            await load.finish()
    finally:
        if broker is not None:
            await broker.stop()
    verdict = examine(history)
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    with capsys.disabled():
        # The standard error: the output of a process of pytest-xdist goes nowhere.
        print(_report(loop, named or "the embedded broker", history, verdict), file=sys.stderr)

    replay = f"replay it with BMQ_CHAOS_SEED={SEED} BMQ_CHAOS_SECONDS={SECONDS * 2:g}"
    assert verdict.ok, f"{verdict}\n{replay}"
    assert verdict.acknowledged > 10 * faults, f"posting did not go on; {replay}"


def _report(loop: str, broker: str, history: History, verdict: Verdict) -> str:
    restored = len(list(history.events(op="connection", event="StateRestored")))
    duplicates = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.duplicates.items()))
    (counts,) = history.events(op="counts")
    return f"""
chaos on {loop} with {broker}, BMQ_CHAOS_SEED={SEED}, {SECONDS:g} s
  faults survived  {chaos.count_faults(history)}
  posts            {verdict.posted:,}: {verdict.acknowledged:,} acknowledged, others \
{verdict.refused or "none"}
  deliveries       {verdict.delivered:,}
  duplicates       {sum(verdict.duplicates.values()):,} reached an application ({duplicates or "none"}); \
{counts["dropped"]:,} recognised and dropped
  buffer full      {counts["buffer_full"]:,} times
  recoveries       {chaos.recoveries(history, history)}; {restored} in all
  lost             {verdict.broken.get("lost", 0):,}
"""
