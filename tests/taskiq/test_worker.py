# SPDX-License-Identifier: Apache-2.0
"""`taskiq worker` as a process: the program of docs/guides/taskiq.md, and the shutdown of a busy worker."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bmq.taskiq import BmqBroker
from tests.pages import at_broker
from tests.waiting import eventually, until_depth

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "taskiq.md").read_text(encoding="utf-8")
TASKS = "bmq://bmq.test.mem.priority/tasks"

#: A task that reports its start, takes a while, and reports its end to another queue.
SERVICE = """
import asyncio

import bmq
from bmq.taskiq import BmqBroker
from taskiq import TaskiqEvents, TaskiqState

broker = BmqBroker(None, "{uri}", max_unconfirmed_messages=20)


@broker.task("count")
async def count(number: int) -> None:
    await asyncio.sleep(0.02)
    done = await broker.session.open_output("{uri}.done")
    await done.post(b"%d" % number)
"""


@asynccontextmanager
async def running(
    folder: Path, broker_uri: str, *arguments: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `taskiq worker`, with its output in a file."""
    environment = os.environ | {"BMQ_BROKER_URI": broker_uri, "PYTHONPATH": f"{folder}:{ROOT}"}
    with (folder / "log").open("a") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "taskiq", "worker", "service:broker", *arguments,
            cwd=folder, env=environment, start_new_session=True, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def test_the_documented_program_runs(
    tmp_path: Path, broker_uri: str, fresh: Callable[..., str]
) -> None:
    shown = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "service.py").write_text(at_broker(shown, broker_uri).replace(TASKS, fresh()))
    log = tmp_path / "log"
    async with running(tmp_path, broker_uri, "--workers", "1") as worker:
        before = time.monotonic()
        client = await asyncio.create_subprocess_exec(
            sys.executable, "service.py",
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert await asyncio.wait_for(client.wait(), 30) == 0
        await eventually(lambda: {"3", "7"} <= set(log.read_text().splitlines()), 30)
        assert time.monotonic() - before >= 2
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), 30) == 0, log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()


async def test_the_documented_worker_runs_the_documented_task(
    broker_uri: str, fresh: Callable[..., str]
) -> None:
    shown = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    names: dict[str, Any] = {"__name__": __name__}
    exec(at_broker(shown, broker_uri).replace(TASKS, fresh()), names)
    broker = names["broker"]
    await broker.startup()
    await names["render"].kiq(1)
    listening = broker.listen()
    message = await asyncio.wait_for(anext(listening), 10)
    assert broker.formatter.loads(message.data).args == [1]
    await listening.aclose()
    await broker.shutdown()


async def test_ending_workers_lose_no_task_and_repeat_none(
    tmp_path: Path, broker_uri: str, fresh: Callable[..., str]
) -> None:
    """Two processes end in the middle of the work, and two more do the rest: each task runs once."""
    uri, log = fresh(), tmp_path / "log"
    service = SERVICE.format(uri=uri)
    # The ending workers have more tasks than they can finish, however late the signal arrives.
    (tmp_path / "service.py").write_text(service.replace("0.02", "0.02 if number < 300 else 0.5"))
    found: Counter[int] = Counter()
    count = 1000
    client = BmqBroker(broker_uri, uri)
    task = client.register_task(lambda number: None, "count")
    await client.startup()
    done = await client.session.open_queue(f"{uri}.done", read=True, default_subscription=True)

    async def look() -> None:
        async for message in done:
            found[int(message.data)] += 1
            message.confirm()

    looking = asyncio.create_task(look())
    for number in range(count):
        await task.kiq(number)
    workers = ("--workers", "2", "--max-async-tasks", "10")
    async with running(tmp_path, broker_uri, *workers) as worker:
        await eventually(lambda: sum(found.values()) > 100, 60)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), 60) == 0, log.read_text()
    assert len(found) < count, "it was to end in the middle"
    (tmp_path / "service.py").write_text(service)
    async with running(tmp_path, broker_uri, *workers) as worker:
        await eventually(lambda: len(found) == count, 60)
        await until_depth(broker_uri, uri, 0)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), 60) == 0, log.read_text()
    looking.cancel()
    await asyncio.wait([looking])
    await client.shutdown()
    assert set(found.values()) == {1}
    assert "Traceback" not in log.read_text(), log.read_text()
