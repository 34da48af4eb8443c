# SPDX-License-Identifier: Apache-2.0
"""bmq as the client under test of ``python -m conformance client``."""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import bmq
from bmq._json import orjson

__all__ = ["Harness", "serve", "serve_standard_input"]


_VERBS = ("hello", "start", "open", "post", "receive", "confirm", "close", "stop")


class Harness:
    """Executes the commands of the suite with a session of bmq.

    Args:
        uri: address of the broker.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._session: bmq.Session | None = None
        self._queues: dict[str, bmq.Queue] = {}
        self._consumers: dict[str, bmq.Consumer] = {}
        self._messages: dict[str, bmq.Message] = {}

    async def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute a command, and return the answer."""
        arguments = {name: value for name, value in command.items() if name not in ("id", "do")}
        verb = getattr(self, f"_{command['do']}", None) if command["do"] in _VERBS else None
        if verb is None:
            return {"id": command["id"], "ok": False, "unsupported": True}
        try:
            return {"id": command["id"], "ok": True, **await verb(**arguments)}
        except Exception as error:
            text = str(error).partition("\n")[0] or type(error).__name__
            return {"id": command["id"], "ok": False, "error": text}

    async def end(self) -> None:
        """End the session in any state."""
        if self._session is not None:
            await self._session.close(timeout=0)

    async def _hello(self) -> dict[str, Any]:
        return {"name": f"bmq {bmq.__version__}"}

    async def _start(self) -> dict[str, Any]:
        self._session = await bmq.connect(self._uri, connect_timeout=60)
        return {}

    def _open_session(self) -> bmq.Session:
        if self._session is None:
            raise bmq.UsageError("the session is not started")
        return self._session

    async def _open(self, queue: str, read: bool = False, write: bool = False) -> dict[str, Any]:
        opened = await self._open_session().open_queue(queue, read=read, write=write)
        self._queues[queue] = opened
        if read:
            # The subscription starts with the answer to open, before the first command receive.
            self._consumers[queue] = await opened.subscribe()
        return {}

    async def _post(self, queue: str, data: str, properties: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            await self._queues[queue].post(base64.b64decode(data), properties=properties)
        except bmq.PostError as error:
            return {"status": error.status.name}
        return {"status": "SUCCESS"}

    async def _receive(self, queue: str) -> dict[str, Any]:
        message = await self._consumers[queue].receive()
        self._messages[message.guid] = message
        return {
            "data": base64.b64encode(message.data).decode(),
            "guid": message.guid,
            "properties": {name: _plain(value) for name, value in message.properties.items()},
        }

    async def _confirm(self, guid: str) -> dict[str, Any]:
        self._messages.pop(guid).confirm()
        return {}

    async def _close(self, queue: str) -> dict[str, Any]:
        await self._queues.pop(queue).close()
        return {}

    async def _stop(self) -> dict[str, Any]:
        await self._open_session().close()
        return {}


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


async def serve(uri: str, lines: AsyncIterator[bytes], write: Callable[[bytes], Any]) -> None:
    """Answer commands until their end.

    Args:
        uri: address of the broker.
        lines: the commands.
        write: writes an answer.
    """
    harness, tasks = Harness(uri), set[asyncio.Task[None]]()

    async def answer(command: dict[str, Any]) -> None:
        write(orjson.dumps(await harness.answer(command)) + b"\n")

    async for line in lines:
        task = asyncio.create_task(answer(orjson.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await harness.end()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve_standard_input(uri: str) -> None:
    """Answer the commands of standard input. A thread reads the lines, as Windows requires.

    Args:
        uri: address of the broker.
    """
    queue, loop = asyncio.Queue[bytes](), asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(queue.put_nowait, line)
        loop.call_soon_threadsafe(queue.put_nowait, b"")

    async def lines() -> AsyncIterator[bytes]:
        while line := await queue.get():
            yield line

    def write(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.flush()

    threading.Thread(target=read, daemon=True).start()
    await serve(uri, lines(), write)
