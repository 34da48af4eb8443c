# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of the command line and of the console, from a terminal and a browser.

usage: python docs/pictures.py [cli] [console]

Without an argument, the program draws all pictures. The extras cli and console are required, and
Chromium for the console. The program starts a broker of its own, and reads no configuration of its user.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import random
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

from rich.console import Console as Terminal
from rich.text import Text

import bmq
from bmq.console import Console, Embedded
from bmq.testing import BackgroundBroker

sys.path.insert(0, str(Path(__file__).parent.parent))  # the tests drive the browser too
from tests.console.chromium import browse

TARGET = Path(__file__).parent / "assets" / "cli"
CONSOLE = Path(__file__).parent / "assets" / "console"
WITH_HELP = (
    *("post", "tail", "top", "bench", "explain", "doctor", "console"),
    *("contexts", "contexts add", "move", "domains", "domains diff", "dead", "queues"),
)
COLUMNS = 100
LETTERS = "bmq://bmq.test.mem.priority/notes"
ORDERS = "bmq://bmq.test.mem.priority/orders"


# The folder of the contexts, and the folder in which the commands run.
SETTINGS = tempfile.TemporaryDirectory()


def terminal(*arguments: str, uri: str, columns: int = COLUMNS) -> str:
    """A command's output on a terminal, with colours."""
    surroundings = os.environ | {
        "COLUMNS": str(columns),
        "LINES": "40",
        "TERM": "xterm-256color",
        "BMQ_BROKER_URI": uri,
        "XDG_CONFIG_HOME": SETTINGS.name,
    }
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "bmq", *arguments]
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=surroundings, cwd=SETTINGS.name
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                data = os.read(leader, 65536)
            except OSError:  # marks the end of a terminal on Linux
                break
            if not data:
                break
            shown += data
        process.wait()
    os.close(leader)
    return shown.decode(errors="replace").replace("\r\n", "\n")


def picture(name: str, title: str, shown: str) -> None:
    """Write the terminal's content as SVG."""
    console = Terminal(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {title}\n" + shown.rstrip("\n")))
    TARGET.mkdir(parents=True, exist_ok=True)
    svg = console.export_svg(title="bmq", unique_id=f"bmq-{name}")
    # The pictures load no font from another host: they use the reader's own monospaced font.
    lines = svg.splitlines()
    start = next(i for i, line in enumerate(lines) if "@font-face" in line)
    end = max(i for i, line in enumerate(lines) if "font-weight: 700;" in line and i < start + 40)
    svg = "\n".join([*lines[:start], *lines[end + 2 :]])
    (TARGET / f"{name}.svg").write_text(svg.replace("Fira Code", "ui-monospace") + "\n", encoding="utf-8")


class Scene:
    """A queue with two consumers, one slow and one fast."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, coroutine: object) -> object:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)  # type: ignore[arg-type]

    async def begin(self) -> None:
        self._session = await bmq.connect(self._uri, process_name="billing")
        self._other = await bmq.connect(self._uri, process_name="express-desk")
        slow = await self._session.open_queue(ORDERS, read=True, write=True)
        self._slow = await slow.subscribe("CustomerId >= 1000", priority=5, max_unconfirmed_messages=3)
        fast = await self._other.open_queue(ORDERS, read=True)
        self._fast = await fast.subscribe('OrderType == "EXPRESS"', priority=10)
        self._orders = slow
        for number in range(6):
            await slow.post(b"{}", properties={"CustomerId": 1000 + number, "OrderType": "PLAIN"})
        for _ in range(3):
            await self._slow.receive(10)

    async def end(self) -> None:
        await self._session.close()
        await self._other.close()

    async def letters(self) -> None:
        """Messages worth looking into."""
        async with bmq.connect(self._uri, process_name="shop") as session:
            queue = await session.open_queue(LETTERS, write=True)
            order = b'{"order": 20260114, "lines": [{"sku": "A-17", "count": 2}, {"sku": "B-3", "count": 1}]}'
            await queue.post(order, properties={"CustomerId": 1234, "OrderType": "EXPRESS"})
            await queue.post(b"Dear customer,\nyour order is on its way.\n", properties={"sealed": True})
            await queue.post(bytes(range(64)), properties={"key": b"\x01\x02\xff"})

    async def plan(self) -> None:
        """Write a folder with a changed domain of the broker."""
        async with await bmq.admin.connect(self._uri) as admin:
            parameters = dict((await admin.domain("bmq.test.mem.priority")).configuration)
        parameters["messageTtl"] = 60
        parameters["maxConsumers"] = 2
        path = Path(SETTINGS.name) / "config"
        path.mkdir()
        file = {"definition": {"location": "local", "parameters": parameters}}
        (path / "bmq.test.mem.priority.json").write_text(json.dumps(file, indent=2))

    async def traffic(self, seconds: float) -> None:
        async with bmq.connect(self._uri, process_name="shop") as session:
            queue = await session.open_queue("bmq://bmq.test.mem.priority/shop", read=True, write=True)
            end = self._loop.time() + seconds
            while self._loop.time() < end:
                for _ in range(40):
                    queue.post_nowait(b"order")
                await queue.flush()
                for _ in range(random.randint(1, 9)):
                    self._orders.post_nowait(b"{}", properties={"OrderType": "EXPRESS"})
                for consumer in (queue, self._fast):
                    while (message := consumer.receive_nowait()) is not None:
                        message.confirm()
                await asyncio.sleep(random.uniform(0.03, 0.12))


async def screenshots(url: str) -> None:
    """Take pictures of the console in both themes."""
    CONSOLE.mkdir(parents=True, exist_ok=True)

    async def keep(name: str, height: int | None = None) -> None:
        """Take a picture of the upper part of a page, or without a height of the whole page."""
        await page.size(1200, height or 800)
        if height is None:
            await page.size(1200, await page.js("document.documentElement.scrollHeight"))
        for theme in ("light", "dark"):
            await page.scheme(theme)
            await page.picture(CONSOLE / f"{name}-{theme}.png")

    async with browse() as page:
        await page.open(url)
        await page.until("document.querySelectorAll('#queues tbody tr').length > 2")
        await keep("queues", 480)
        await page.open(f"{url}#/queue/{quote(ORDERS, safe='')}")
        await page.until("document.querySelector('td.guid') && document.querySelector('#routing td')")
        await page.click("#routing div > button")
        await page.type("#routing .property input", "CustomerId")
        await page.js("document.querySelector('#routing .property select').value = 'int64'")
        await page.type("#routing .property input:nth-of-type(2)", "1003")
        await page.click("#try")
        await page.until("document.querySelector('.verdicts table')")
        await page.js("document.activeElement.blur(); scrollTo(0, 0)")
        await keep("queue")
        await page.open(f"{url}#/queue/{quote(LETTERS, safe='')}")
        await page.until("document.querySelector('td.guid')")
        await page.click("#look")
        await page.until("document.querySelectorAll('.inside').length === 3")
        await page.size(1200, 760)
        await page.js("document.activeElement.blur(); document.querySelector('#messages').scrollIntoView()")
        await keep("messages", 760)


def folders() -> None:
    """Write two folders of domains that differ."""
    for folder, ttl in (("staging", 300), ("production", 86400)):
        path = Path(SETTINGS.name) / folder
        path.mkdir()
        domain = {
            "name": "shop.orders",
            "mode": {"priority": {}},
            "messageTtl": ttl,
            "consistency": {"eventual": {}},
            "storage": {
                "config": {"inMemory": {}},
                "domainLimits": {"messages": 100000, "bytes": 134217728},
                "queueLimits": {"messages": 10000, "bytes": 33554432},
            },
            "maxDeliveryAttempts": 0 if folder == "staging" else 5,
        }
        file = {"definition": {"location": "local", "parameters": domain}}
        (path / "shop.orders.json").write_text(json.dumps(file, indent=2))


def commands(uri: str, scene: Scene) -> None:
    """Draw the help and the output of the verbs."""
    queue = "bmq://bmq.test.mem.priority/letters"
    picture("help", "bmq --help", terminal("--help", uri=uri))
    for verb in WITH_HELP:
        words = verb.split()
        picture(f"{'-'.join(words)}-help", f"bmq {verb} --help", terminal(*words, "--help", uri=uri))

    def show(name: str, *arguments: str) -> None:
        picture(name, shlex.join(["bmq", *arguments]), terminal(*arguments, uri=uri))

    show("post", "post", queue, "hello", "world", "-p", "CustomerId=1234", "--tag", "express", "--guids")
    show("tail", "tail", queue)
    show("move", "move", queue, "bmq://bmq.test.mem.priority/archive", "--where", "CustomerId == 1234")
    terminal("contexts", "add", "local", uri, "--use", uri=uri)
    production = ["contexts", "add", "prod", "tcps://bmq1.example.com:30114,tcps://bmq2.example.com:30114"]
    terminal(
        *production, "--user", "operator", "--password-env", "BMQ_PROD", "--domain", "shop.orders", uri=uri
    )
    show("contexts", "contexts", "list")
    folders()
    show("diff", "domains", "diff", "staging", "production")
    scene.do(scene.plan())
    show("plan", "domains", "plan", "config")
    arguments = ["check", "x > 0 && exists(OrderType)", "x == 1", "-P", "5", "-P", "10", "-p", "x=1"]
    shown = terminal(*arguments, uri=uri) + "$ bmq check 'x = 1'\n" + terminal("check", "x = 1", uri=uri)
    picture("check", shlex.join(["bmq", *arguments]), shown)
    arguments = ["doctor", "bmq://bmq.test.mem.priority/doctor", "--post"]
    shown = terminal(*arguments, uri=uri) + "$ bmq doctor --broker tcp://127.0.0.1:9\n"
    shown += terminal("doctor", "--broker", "tcp://127.0.0.1:9", uri=uri)
    picture("doctor", " ".join(["bmq", *arguments]), shown)
    show("explain", "explain", ORDERS, "-p", "CustomerId=1003")
    running = asyncio.run_coroutine_threadsafe(scene.traffic(15), scene._loop)
    shown = terminal("top", "--count", "12", "--interval", "0.5", uri=uri)
    picture("top", "bmq top", shown[shown.rfind("\x1b[2K") + 4 :].lstrip("\r"))
    running.result(60)
    arguments = ["bench", "--messages", "50000", "--rounds", "1000"]
    shown = terminal(*arguments, uri=uri)
    shown = shown[shown.rfind("\x1b[2K") + 4 :] if "\x1b[2K" in shown else shown
    picture("bench", shlex.join(["bmq", *arguments]), shown)


def main() -> None:
    wanted = sys.argv[1:] or ["cli", "console"]
    if not set(wanted) <= {"cli", "console"}:
        sys.exit(__doc__)
    with SETTINGS, BackgroundBroker() as broker:
        scene = Scene(broker.uri)
        scene.do(scene.begin())
        if "cli" in wanted:
            commands(broker.uri, scene)
        if "console" in wanted:
            scene.do(scene.letters())
            running = asyncio.run_coroutine_threadsafe(scene.traffic(90), scene._loop)
            console = broker.call(lambda broker: Console(Embedded(broker)))
            broker.call(lambda _: console.start())
            time.sleep(60)  # the plots need a past
            asyncio.run(screenshots(console.url))
            broker.call(lambda _: console.close())
            running.result(90)
        scene.do(scene.end())


if __name__ == "__main__":
    main()
