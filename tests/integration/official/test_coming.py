"""The programs on the pages for those who come from elsewhere run as they stand, and do what is said."""

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

ROOT = Path(__file__).parents[3]
CODE_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ORDERS = "bmq://bmq.test.mem.priority/orders"
INVOICES = "bmq://bmq.test.mem.priority/invoices"


def programs(page: str) -> list[str]:
    return CODE_BLOCK.findall((ROOT / "docs" / "coming" / f"{page}.md").read_text(encoding="utf-8"))


@contextmanager
def running(code: str, broker: BackgroundBroker, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program in a process of its own, ended by SIGTERM if it does not end by itself."""
    program = folder / "program.py"
    program.write_text(code, encoding="utf-8")
    surroundings = os.environ | {
        "BMQ_BROKER_URI": broker.uri,
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
            with running(programs("blazingmq")[number], broker, tmp_path) as process:
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


def test_those_who_come_from_kafka(tmp_path: Path) -> None:
    consumer, producer = programs("kafka")
    with BackgroundBroker() as broker:
        with running(producer, broker, tmp_path) as process:
            assert process.wait(30) == 0
        with running(consumer, broker, tmp_path) as process:
            assert process.stdout is not None
            shown = [process.stdout.readline() for _ in range(10)]
        assert shown == [f"{number} b'an order'\n" for number in range(10)]


async def test_those_who_come_from_rabbitmq(tmp_path: Path) -> None:
    (consumer,) = programs("rabbitmq")
    with BackgroundBroker() as broker:
        async with bmq.connect(broker.uri) as session:
            orders = await session.open_queue(ORDERS, write=True)
            await orders.post(b"an order", properties={"OrderType": "EXPRESS"})
        with running(consumer, broker, tmp_path) as process:
            assert process.stdout is not None
            shown = await asyncio.to_thread(process.stdout.readline)
        assert shown == "EXPRESS b'an order'\n"
