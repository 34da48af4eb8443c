# SPDX-License-Identifier: Apache-2.0
"""The services of docs/guides/frameworks.md and of two examples on real servers."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import bmq
from bmq.testing import Direction, FaultProxy
from tests.ports import reserved_port
from tests.waiting import eventually, until_depth

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "frameworks.md").read_text(encoding="utf-8")
(MODULE,) = re.findall(r'^```python title="orders.py"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
#: The program of each framework; a section with a title of one word, and no anchor, has one.
SHOWN = {
    name: program
    for name, text in re.findall(r"^## (\w+)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    if name != "Tests"
    for program in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
}
ORDERS = "bmq://bmq.test.mem.priority/orders"
AT_ONCE = 16


def test_every_framework_has_a_program() -> None:
    assert list(SHOWN) == ["FastAPI", "Starlette", "Litestar", "aiohttp", "Django", "Flask"]


class Service:
    """A service in separate processes, and the outcomes of its requests."""

    #: The commands; PORT is replaced.
    commands: tuple[str, ...] = ()

    def __init__(self, port: int, broker: str, folder: Path) -> None:
        self.port = port
        self.broker = broker
        self.folder = folder
        self.processes: list[asyncio.subprocess.Process] = []
        self.answered: set[int] = set()
        self.refused: set[int] = set()

    @property
    def log(self) -> str:
        return "".join(each.read_text() for each in self.folder.glob("*.log"))

    @property
    def running(self) -> bool:
        return all(process.returncode is None for process in self.processes)

    async def place(self, number: int) -> None:
        """Send an order over a new connection."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client,
                self.request(client, number) as answer,
            ):
                assert answer.status == 202, await answer.text()
                assert len((await answer.json())["guid"]) == 32
        except aiohttp.ClientConnectionError:
            self.refused.add(number)
        else:
            self.answered.add(number)

    def request(self, client: aiohttp.ClientSession, number: int) -> Any:
        order = {"number": number, "address": "1 Main Street"}
        return client.post(f"http://127.0.0.1:{self.port}/orders", json=order)

    def shipped(self, message: bmq.Message) -> int:
        """The number of a shipped order."""
        return int(message.data)

    @property
    def accepts(self) -> bool:
        """Whether the server still accepts requests."""
        return listening(self.port)

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)

    async def ended(self) -> None:
        for process in self.processes:
            await asyncio.wait_for(process.wait(), 60)
            # After a clean shutdown, uvicorn ends by the received signal.
            assert process.returncode in (0, -signal.SIGTERM), self.log
        assert "Traceback" not in self.log, self.log

    async def __aenter__(self) -> Service:
        for number, command in enumerate(self.commands):
            with (self.folder / f"{number}.log").open("w") as output:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, *command.replace("PORT", str(self.port)).split(), cwd=self.folder,
                    env=os.environ | {"BMQ_BROKER_URI": self.broker, "PYTHONPATH": str(ROOT)},
                    stdout=output, stderr=asyncio.subprocess.STDOUT,
                )  # fmt: skip
            self.processes.append(process)
        while not listening(self.port):
            assert self.running, self.log
            await asyncio.sleep(0.02)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


GUNICORN = "-m gunicorn --threads 32 --no-control-socket --bind 127.0.0.1:PORT"


class Shown(Service):
    """A program of the page, in uvicorn."""

    commands = ("-m uvicorn service:api --port PORT",)


class ShownAlone(Service):
    """A program of the page with a server of its own."""

    commands = ("service.py",)


class ShownThreaded(Service):
    """A program of the page with threads: gunicorn, and the handlers in another process."""

    commands = ("-m bmq run orders:worker", f"{GUNICORN} service:api")

    @property
    def accepts(self) -> bool:
        """Whether gunicorn has not begun to shut down: its port stays open until the last request."""
        return "Handling signal: term" not in self.log


class Example(Service):
    """The example, with its handler in the same process."""

    commands = ("-m uvicorn api:api --port PORT",)

    def request(self, client: aiohttp.ClientSession, number: int) -> Any:
        order = {"customer": number % 7, "address": "1 Main Street"}
        return client.put(f"http://127.0.0.1:{self.port}/orders/{number}", json=order)

    def shipped(self, message: bmq.Message) -> int:
        number = message.properties["OrderNumber"]
        assert isinstance(number, int)
        return number


class DjangoProject(Example):
    """The Django project: plain views in gunicorn, and the management command."""

    commands = ("manage.py worker", f"{GUNICORN} wsgi")

    async def is_shipped(self, number: int) -> bool:
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{self.port}/orders/{number}") as answer,
        ):
            return bool((await answer.json())["shipped"])


class ExampleInTwo(Example):
    """The example, with its handler in another process."""

    commands = ("-m bmq run orders", "-m uvicorn api:front --port PORT")


def listening(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as free:
        yield free


async def ends_in_order(run: Callable[[str], Service], broker: str, orders: str) -> None:
    """End a service while requests and handlers are running; count the outcome of every order."""
    numbers = iter(range(1, 100_000))
    found: Counter[int] = Counter()
    async with FaultProxy(broker) as proxy, bmq.connect(broker) as session:
        service = run(proxy.uri)

        async def look() -> None:
            async for message in seen:
                found[service.shipped(message)] += 1
                message.confirm()

        seen = await session.open_queue(f"{orders}.shipped", read=True, default_subscription=True)
        looking = asyncio.create_task(look())
        async with service:
            while len(service.answered) < 10 * AT_ONCE:
                await asyncio.gather(*(service.place(next(numbers)) for _ in range(AT_ONCE)))
                assert not service.refused, service.log
            await eventually(lambda: set(found) == service.answered, 30)
            await until_depth(broker, orders, 0)
            # Posts arrive, and their acknowledgements do not: these requests are certainly in flight.
            proxy.stall(Direction.TO_CLIENT)
            first = next(numbers)
            in_flight = [asyncio.create_task(service.place(first))]
            in_flight += [asyncio.create_task(service.place(next(numbers))) for _ in range(AT_ONCE - 1)]
            await until_depth(broker, orders, AT_ONCE)
            service.end()
            late: list[asyncio.Task[None]] = []
            while service.accepts:
                late.append(asyncio.create_task(service.place(next(numbers))))
                await asyncio.sleep(0.02)
            assert service.running, service.log
            assert first not in service.answered
            proxy.resume()
            proxy.delay(0.05)  # posting handlers are running when the last request is answered
            await asyncio.gather(*in_flight, *late)
            assert set(range(first, first + AT_ONCE)) <= service.answered, "in flight, and not answered"
            await service.ended()
        # The next process handles the messages left in the queue.
        async with run(broker):
            await eventually(lambda: set(found) >= service.answered, 30)
            await until_depth(broker, orders, 0)
        looking.cancel()
        await asyncio.wait([looking])
    assert set(found) == service.answered, "shipped is what was answered, nothing else"
    assert set(found.values()) == {1}, "and once"


@pytest.mark.parametrize("framework", SHOWN)
async def test_no_request_is_lost_and_no_message_handled_twice(
    framework: str, tmp_path: Path, broker_uri: str, fresh: Callable[..., str], port: int
) -> None:
    uri = fresh()
    (tmp_path / "orders.py").write_text(MODULE.replace(ORDERS, uri))
    program = SHOWN[framework].replace("port=8000", f"port={port}")
    (tmp_path / "service.py").write_text(program)
    alone = ShownAlone if "__main__" in program else Shown
    kind = ShownThreaded if framework == "Flask" else alone
    await ends_in_order(lambda broker: kind(port, broker, tmp_path), broker_uri, uri)


async def test_the_django_project_ships_orders_and_ends_in_order(
    tmp_path: Path, broker_uri: str, fresh: Callable[..., str], port: int
) -> None:
    uri = fresh()
    folder = tmp_path / "project"
    shutil.copytree(
        ROOT / "examples" / "orders_django", folder, ignore=shutil.ignore_patterns("*.sqlite3", "__pycache__")
    )
    worker = folder / "shop" / "worker.py"
    worker.write_text(worker.read_text().replace(ORDERS, uri))
    migrated = await asyncio.create_subprocess_exec(
        sys.executable, "manage.py", "migrate",
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await migrated.wait() == 0
    async with DjangoProject(port, broker_uri, folder) as service:
        assert isinstance(service, DjangoProject)
        await asyncio.gather(*(service.place(number) for number in range(1, 21)))
        assert service.answered == set(range(1, 21))
        await until_depth(broker_uri, uri, 0)
        assert all([await service.is_shipped(number) for number in range(1, 21)])
        service.end()
        await service.ended()


@pytest.mark.parametrize("kind", [Example, ExampleInTwo])
async def test_example_loses_no_message_and_handles_each_once(
    kind: type[Service], tmp_path: Path, broker_uri: str, fresh: Callable[..., str], port: int
) -> None:
    uri = fresh()
    for name in ("orders.py", "api.py"):
        code = (ROOT / "examples" / "orders_api" / name).read_text()
        (tmp_path / name).write_text(code.replace(ORDERS, uri))
    await ends_in_order(lambda broker: kind(port, broker, tmp_path), broker_uri, uri)
