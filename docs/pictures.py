"""Draw the pictures of the command line: runs each verb in a terminal and keeps what it shows.

usage: python docs/pictures.py [VERB...]   (with the extra cli; takes its own embedded broker)
"""

from __future__ import annotations

import asyncio
import io
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

from rich.console import Console
from rich.text import Text

import bmq
from bmq.testing import BackgroundBroker

TARGET = Path(__file__).parent / "assets" / "cli"
COLUMNS = 100
ORDERS = "bmq://bmq.test.mem.priority/orders"


def terminal(*arguments: str, uri: str, columns: int = COLUMNS) -> str:
    """What a command shows on a terminal, with its colours."""
    surroundings = os.environ | {
        "COLUMNS": str(columns),
        "LINES": "40",
        "TERM": "xterm-256color",
        "BMQ_BROKER_URI": uri,
    }
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "bmq", *arguments]
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=surroundings
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                data = os.read(leader, 65536)
            except OSError:  # how the end of a terminal shows itself on Linux
                break
            if not data:
                break
            shown += data
        process.wait()
    os.close(leader)
    return shown.decode(errors="replace").replace("\r\n", "\n")


def picture(name: str, title: str, shown: str) -> None:
    """Keep what was shown as an SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {title}\n" + shown.rstrip("\n")))
    TARGET.mkdir(parents=True, exist_ok=True)
    svg = console.export_svg(title="bmq", unique_id=f"bmq-{name}")
    # Nothing is fetched from elsewhere: the pictures use the reader's own monospaced font.
    lines = svg.splitlines()
    start = next(i for i, line in enumerate(lines) if "@font-face" in line)
    end = max(i for i, line in enumerate(lines) if "font-weight: 700;" in line and i < start + 40)
    svg = "\n".join([*lines[:start], *lines[end + 2 :]])
    (TARGET / f"{name}.svg").write_text(svg.replace("Fira Code", "ui-monospace") + "\n", encoding="utf-8")


class Scene:
    """A queue with two consumers, one of which is slow."""

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
        await fast.subscribe('OrderType == "EXPRESS"', priority=10)
        for number in range(6):
            await slow.post(b"{}", properties={"CustomerId": 1000 + number, "OrderType": "PLAIN"})
        for _ in range(3):
            await self._slow.receive(10)

    async def end(self) -> None:
        await self._session.close()
        await self._other.close()

    async def traffic(self, seconds: float) -> None:
        async with bmq.connect(self._uri, process_name="shop") as session:
            queue = await session.open_queue("bmq://bmq.test.mem.priority/shop", read=True, write=True)
            end = self._loop.time() + seconds
            while self._loop.time() < end:
                for _ in range(40):
                    queue.post_nowait(b"order")
                await queue.flush()
                while (message := queue.receive_nowait()) is not None:
                    message.confirm()
                await asyncio.sleep(0.05)


def main() -> None:
    with BackgroundBroker() as broker:
        uri = broker.uri
        picture("help", "bmq --help", terminal("--help", uri=uri))
        queue = "bmq://bmq.test.mem.priority/letters"
        arguments = ["post", queue, "hello", "world", "-p", "CustomerId=1234", "--tag", "express", "--guids"]
        picture("post", f"bmq {' '.join(arguments)}", terminal(*arguments, uri=uri))
        picture("tail", f"bmq tail {queue}", terminal("tail", queue, uri=uri))
        arguments = ["check", "x > 0 && exists(OrderType)", "x == 1", "-P", "5", "-P", "10", "-p", "x=1"]
        shown = terminal(*arguments, uri=uri) + "$ bmq check 'x = 1'\n" + terminal("check", "x = 1", uri=uri)
        picture("check", "bmq check 'x > 0 && exists(OrderType)' 'x == 1' -P 5 -P 10 -p x=1", shown)
        arguments = ["doctor", "bmq://bmq.test.mem.priority/doctor"]
        shown = terminal(*arguments, uri=uri) + "$ bmq doctor --broker tcp://127.0.0.1:9\n"
        shown += terminal("doctor", "--broker", "tcp://127.0.0.1:9", uri=uri)
        picture("doctor", " ".join(["bmq", *arguments]), shown)
        scene = Scene(uri)
        scene.do(scene.begin())
        arguments = ["explain", ORDERS, "-p", "CustomerId=1003"]
        picture("explain", f"bmq {' '.join(arguments)}", terminal(*arguments, uri=uri))
        running = asyncio.run_coroutine_threadsafe(scene.traffic(12), scene._loop)
        arguments = ["top", "--count", "12", "--interval", "0.5"]
        shown = terminal(*arguments, uri=uri)
        picture("top", "bmq top", shown[shown.rfind("\x1b[2K") + 4 :].lstrip("\r"))
        running.result(30)
        scene.do(scene.end())
        arguments = ["bench", "--messages", "50000", "--rounds", "1000"]
        shown = terminal(*arguments, uri=uri)
        picture(
            "bench",
            f"bmq {' '.join(arguments)}",
            shown[shown.rfind("\x1b[2K") + 4 :] if "\x1b[2K" in shown else shown,
        )


if __name__ == "__main__":
    main()
