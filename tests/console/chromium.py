# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over its DevTools protocol, as far as the tests of the page require."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
#: Load only the page, and report no data to anyone.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--remote-debugging-port=0",
    "--hide-scrollbars",
)


def find() -> str | None:
    """Return the path of an installed browser."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A tab of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        #: Errors of the page, and all requested addresses.
        self.complaints: list[str] = []
        self.asked_for: list[str] = []
        self.gone = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                answer = self._answers.pop(said["id"])
                if not answer.done():
                    answer.set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded":
                self.complaints.append(said["params"]["entry"]["text"])
            elif said["method"] == "Network.requestWillBeSent":
                self.asked_for.append(said["params"]["request"]["url"])

    async def do(self, method: str, **parameters: Any) -> Any:
        """Send a command; return the result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        said = await asyncio.wait_for(answer, 30)
        assert "error" not in said, said
        return said["result"]

    async def open(self, url: str) -> None:
        await self.do("Page.navigate", url=url)

    async def js(self, expression: str) -> Any:
        """Evaluate an expression in the page; return the value."""
        result = await self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, expression: str, seconds: float = 20) -> Any:
        """Wait until an expression is true in the page, for some seconds at most; return the value."""
        last: object = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        if value := await self.js(f"((v) => v instanceof Node || v)({expression})"):
                            return value
                        await self.js("new Promise((done) => requestAnimationFrame(done))")
                    except AssertionError as error:  # while another page is loaded
                        last = error
        except TimeoutError:
            pass
        raise AssertionError(f"never true: {expression}; {last}; the page: {await self.text()}")

    async def text(self) -> str:
        """The visible text of the page."""
        return str(await self.js("document.body.innerText"))

    async def click(self, selector: str) -> None:
        """Click on the first matching element, once present, at its position."""
        await self.until(f"document.querySelector({selector!r}) !== null")
        await self.js(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = await self.js(
            f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.do(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1
            )

    async def type(self, selector: str, text: str) -> None:
        """Type into an element."""
        await self.js(f"document.querySelector({selector!r}).focus()")
        await self.do("Input.insertText", text=text)

    async def press(self, key: str, text: str) -> None:
        """Press a key and release it."""
        for kind in ("keyDown", "keyUp"):
            code = ord(text.upper())
            await self.do("Input.dispatchKeyEvent", type=kind, key=key, text=text, windowsVirtualKeyCode=code)

    async def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.do("Emulation.setDeviceMetricsOverride", **metrics)

    async def scheme(self, name: str) -> None:
        """Have the reader prefer ``light`` or ``dark``."""
        await self.do(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}]
        )

    async def picture(self, path: Path) -> None:
        """Save a screenshot as a PNG."""
        shot = await self.do("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))


@asynccontextmanager
async def browse() -> AsyncIterator[Page]:
    """Start a browser with an empty tab."""
    program = find()
    assert program is not None, f"there is no browser here: install one of {', '.join(NAMES)}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program,
            *FLAGS,
            f"--user-data-dir={folder}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(60):
                while b"DevTools listening on" not in (line := await process.stderr.readline()):
                    assert line, "the browser has ended"
            port = line.decode().split("ws://127.0.0.1:")[1].partition("/")[0]
            draining = asyncio.create_task(process.stderr.read())
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                    (tab,) = [each for each in await response.json() if each["type"] == "page"]
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await page.do(f"{domain}.enable")
                    yield page
                await page.gone
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # and its child processes
            await process.wait()
        await draining
