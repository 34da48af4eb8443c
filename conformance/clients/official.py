# SPDX-License-Identifier: Apache-2.0
"""The official Python client as the client under test of ``python -m conformance client``.

Run it with ``python -m conformance client -- python conformance/clients/official.py``.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import blazingmq


class Harness:
    """Does what the commands ask for; callbacks of the client run in threads of its own."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._session: Any = None
        self._lock = threading.Lock()
        self._arrived: dict[str, deque[Any]] = defaultdict(deque)
        self._wanted: dict[str, deque[int]] = defaultdict(deque)
        self._handles: dict[str, Any] = {}

    def answer(self, number: int, *, ok: bool = True, **more: Any) -> None:
        line = json.dumps({"id": number, "ok": ok, **more})
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def do(self, command: dict[str, Any]) -> None:
        number = command.pop("id")
        verb: Callable[..., None] | None = getattr(self, f"do_{command.pop('do')}", None)
        if verb is None:
            self.answer(number, ok=False, unsupported=True)
            return
        try:
            verb(number, **command)
        except Exception as error:
            self.answer(number, ok=False, error=f"{type(error).__name__}: {error}")

    def do_hello(self, number: int) -> None:
        self.answer(number, name=f"blazingmq {blazingmq.__version__}")

    def do_start(self, number: int) -> None:
        timeouts = blazingmq.Timeouts(connect_timeout=8.0, open_queue_timeout=8.0, close_queue_timeout=8.0)
        self._session = blazingmq.Session(
            lambda event: None, self._on_message, broker=self._uri, timeout=timeouts
        )
        self.answer(number)

    def do_open(self, number: int, queue: str, read: bool = False, write: bool = False) -> None:
        self._session.open_queue(queue, read=read, write=write)
        self.answer(number)

    def do_post(self, number: int, queue: str, data: str, properties: dict[str, Any] | None = None) -> None:
        def acked(ack: Any) -> None:
            self.answer(number, status=ack.status.name)

        self._session.post(queue, base64.b64decode(data), properties=properties, on_ack=acked)

    def do_receive(self, number: int, queue: str) -> None:
        self._wanted[queue].append(number)
        self._match(queue)

    def _on_message(self, message: Any, handle: Any) -> None:
        guid = message.guid.hex().upper()
        self._handles[guid] = handle
        properties = {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for name, value in message.properties.items()
        }
        data = base64.b64encode(message.data or b"").decode()
        self._arrived[message.queue_uri].append({"guid": guid, "data": data, "properties": properties})
        self._match(message.queue_uri)

    def _match(self, queue: str) -> None:
        arrived, wanted = self._arrived[queue], self._wanted[queue]
        while arrived and wanted:
            self.answer(wanted.popleft(), **arrived.popleft())

    def do_confirm(self, number: int, guid: str) -> None:
        self._handles.pop(guid).confirm()
        self.answer(number)

    def do_close(self, number: int, queue: str) -> None:
        self._session.close_queue(queue)
        self.answer(number)

    def do_stop(self, number: int) -> None:
        self._session.stop()
        self.answer(number)


def main() -> None:
    harness = Harness(os.environ.pop("BMQ_BROKER_URI"))
    for line in sys.stdin:
        harness.do(json.loads(line))
    os._exit(0)  # a session without a broker does not stop


main()
