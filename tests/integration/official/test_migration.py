# SPDX-License-Identifier: Apache-2.0
"""The service on the migration page for users of the official client: both versions do the same."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bmq
from bmq.testing import BackgroundBroker
from tests.pages import at_broker

ROOT = Path(__file__).parents[3]
PROGRAMS = re.compile(r'^```python title="service_\w+.py"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ORDERS = "bmq://bmq.test.mem.priority/orders"
INVOICES = "bmq://bmq.test.mem.priority/invoices"


def programs() -> list[str]:
    return PROGRAMS.findall((ROOT / "docs" / "migrate" / "blazingmq.md").read_text(encoding="utf-8"))


@contextmanager
def running(code: str, broker: BackgroundBroker, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program in a process of its own, ended by SIGTERM if it does not end by itself."""
    program = folder / "program.py"
    program.write_text(at_broker(code, broker.uri), encoding="utf-8")
    surroundings = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        [sys.executable, str(program)], env=surroundings, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [0, 1], ids=["before", "after"])
async def test_a_program_before_and_after_does_the_same(number: int, tmp_path: Path) -> None:
    count = 30
    with BackgroundBroker() as broker:
        async with bmq.connect(broker.uri) as session:
            orders = await session.open_queue(ORDERS, write=True)
            invoices = await session.open_queue(INVOICES, read=True)
            with running(programs()[number], broker, tmp_path) as process:
                for customer in range(count):
                    await orders.post(json.dumps({"customer": customer, "cents": 100 * customer}).encode())
                found = []
                async for message in invoices:
                    async with message:
                        found.append((message.properties["CustomerId"], json.loads(message.data)))
                    if len(found) == count:
                        break
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(process.wait, 30)
            assert sorted(found, key=lambda pair: pair[0]) == [
                (customer, {"to": customer, "cents": 100 * customer}) for customer in range(count)
            ]
            left = await asyncio.to_thread(broker.call, lambda b: (len(b.queues[ORDERS]), process.returncode))
            assert left == (0, 0)
