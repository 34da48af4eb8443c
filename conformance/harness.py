# SPDX-License-Identifier: Apache-2.0
"""bmq as the client under test of ``python -m conformance client``."""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import bmq
from bmq._json import orjson
from conformance.program import Answers, Program

__all__ = ["Harness", "in_process", "serve"]


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
        self._verbs: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
            "hello": self._hello,
            "start": self._start,
            "open": self._open,
            "post": self._post,
            "receive": self._receive,
            "confirm": self._confirm,
            "close": self._close,
            "stop": self._stop,
        }

    async def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute a command, and return the answer."""
        arguments = {name: value for name, value in command.items() if name not in ("id", "do")}
        verb = self._verbs.get(command["do"])
        if verb is None:
            return {"id": command["id"], "ok": False, "unsupported": True}
        try:
            return {"id": command["id"], "ok": True, **await verb(**arguments)}
        except Exception as error:
            return {
                "id": command["id"],
                "ok": False,
                "error": str(error).partition("\n")[0] or type(error).__name__,
            }

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


class _InProcess:
    """The harness in this process and this event loop.

    Args:
        uri: address of the broker.
    """

    def __init__(self, uri: str) -> None:
        self._harness = Harness(uri)
        self._answers = Answers()
        self._tasks: dict[asyncio.Task[None], None] = {}

    def do(self, verb: str, **arguments: Any) -> asyncio.Future[dict[str, Any]]:
        """Execute a command."""
        number, future = self._answers.next()
        task = asyncio.create_task(self._do({"id": number, "do": verb, **arguments}))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return future

    async def _do(self, command: dict[str, Any]) -> None:
        self._answers.arrived(command["id"], await self._harness.answer(command))

    async def end(self) -> None:
        """End the session, and cancel the waiting commands."""
        await self._harness.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._answers.end("the end of the case")


async def serve(uri: str) -> None:
    """Answer the commands of standard input until the end of the input.

    Args:
        uri: address of the broker.
    """
    harness, tasks = Harness(uri), set[asyncio.Task[None]]()

    async def answer(command: dict[str, Any]) -> None:
        line = orjson.dumps(await harness.answer(command))
        sys.stdout.write(line.decode() + "\n")
        sys.stdout.flush()

    async for line in _lines():
        task = asyncio.create_task(answer(orjson.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await harness.end()


async def _lines() -> AsyncIterator[str]:
    """Yield the lines of standard input. A thread reads the lines, as Windows requires."""
    queue, loop = asyncio.Queue[str](), asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(queue.put_nowait, line)
        loop.call_soon_threadsafe(queue.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    while line := await queue.get():
        yield line


async def in_process(uri: str) -> Program:
    """Start the harness in this process and this event loop."""
    return _InProcess(uri)
