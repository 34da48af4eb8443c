# SPDX-License-Identifier: Apache-2.0
"""bmqtool, the program with the C++ client, as the client under test of ``python -m conformance client``.

Run it with ``python -m conformance client -- python conformance/clients/bmqtool.py``; ``BMQTOOL`` names the
program if it is not on the PATH. The harness writes commands of bmqtool's interactive mode, and reads its
log. bmqtool posts texts, with string and integer properties; the answer to others is ``unsupported``.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

_COMMAND = (os.environ.get("BMQTOOL", "bmqtool"), "--mode", "cli", "--dumpmsg", "-v", "debug")
#: Marks the first line of a record of the log.
_MARK = "@@ "
_TEXT = re.compile(rb"[A-Za-z0-9 _.-]+")
_DONE = re.compile(
    r"<-- session\.(?P<call>start|stop|openQueueAsync|closeQueueAsync)\(.*?\)(?: => (?P<result>\w+))?"
)
_URI = re.compile(r"uri = (?P<uri>\S+)")
_POSTED = re.compile(r"PUT'ing msg with corrId: (?P<id>\[ autoValue = \d+ \])")
_ACK = re.compile(
    r"ACK #\d+: \[ type = ACK status = (?P<status>\S+) correlationId = (?P<id>\[ autoValue = \d+ \])"
)
_PUSH = re.compile(
    r"PUSH #\d+: \[ type = PUSH queue = \[ uri = (?P<uri>\S+) .*? GUID = (?P<guid>[0-9A-F]{32})"
)
_BYTES = re.compile(r"^ *\d+: +((?:[0-9A-F]+ )+) *\|", re.MULTILINE)
_PROPERTY = re.compile(r'(\S+) \((\w+)\) = ("[^"]*"|\S+)')


class Harness:
    """Translates commands into those of bmqtool, and records of its log into answers."""

    def __init__(self, uri: str) -> None:
        self._lock = threading.RLock()
        self._waiting: dict[str, deque[tuple[int, str]]] = defaultdict(deque)
        self._posting: deque[int] = deque()
        self._posted: dict[str, int] = {}
        self._arrived: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self._wanted: dict[str, deque[int]] = defaultdict(deque)
        self._queue_of: dict[str, str] = {}
        pipe = subprocess.PIPE
        self._tool = subprocess.Popen(
            [*_COMMAND, "--broker", uri, "--logFormat", f"{_MARK}%m\n"], stdin=pipe, stdout=pipe, bufsize=0
        )
        threading.Thread(target=self._read, daemon=True).start()

    # ---- commands

    def do(self, command: dict[str, Any]) -> None:
        """Execute a command."""
        number, verb = command.pop("id"), command.pop("do")
        call = getattr(self, f"do_{verb}", None)
        if call is None:
            self._unsupported(number, verb)
            return
        with self._lock:
            call(number, **command)

    def _tell(self, line: str) -> None:
        assert self._tool.stdin is not None
        self._tool.stdin.write(line.encode() + b"\n")

    def _answer(self, number: int, *, ok: bool = True, **more: Any) -> None:
        sys.stdout.write(json.dumps({"id": number, "ok": ok, **more}) + "\n")
        sys.stdout.flush()

    def _unsupported(self, number: int, what: str) -> None:
        self._answer(number, ok=False, unsupported=True, error=f"bmqtool cannot do {what}")

    def do_hello(self, number: int) -> None:
        self._answer(number, name="bmqtool")

    def do_start(self, number: int) -> None:
        self._waiting["start"].append((number, ""))
        self._tell("start")

    def do_open(self, number: int, queue: str, read: bool = False, write: bool = False) -> None:
        flags = ",".join(["read"] * read + ["write", "ack"] * write)
        self._waiting["openQueueAsync"].append((number, queue))
        self._tell(f'open uri="{queue}" flags="{flags}" async=true')

    def do_post(self, number: int, queue: str, data: str, properties: dict[str, Any] | None = None) -> None:
        payload = base64.b64decode(data)
        if not _TEXT.fullmatch(payload):
            self._unsupported(number, "binary payloads")
            return
        more = ""
        if properties:
            types = {str: "E_STRING", int: "E_INT"}
            each = [
                {"name": name, "value": str(value), "type": types[type(value)]}
                for name, value in properties.items()
            ]
            more = f" messageProperties={json.dumps(each)}"
        self._posting.append(number)
        self._tell(f'post uri="{queue}" payload=["{payload.decode()}"]{more}')

    def do_receive(self, number: int, queue: str) -> None:
        self._wanted[queue].append(number)
        self._match(queue)

    def do_confirm(self, number: int, guid: str) -> None:
        self._tell(f'confirm uri="{self._queue_of[guid]}" guid="{guid}"')
        self._answer(number)

    def do_close(self, number: int, queue: str) -> None:
        self._waiting["closeQueueAsync"].append((number, queue))
        self._tell(f'close uri="{queue}" async=true')

    def do_stop(self, number: int) -> None:
        self._waiting["stop"].append((number, ""))
        self._tell("stop")

    # ---- the log

    def _records(self) -> Iterator[str]:
        """Yield the records of the log; a record may have several lines."""
        assert self._tool.stdout is not None
        record = ""
        for raw in self._tool.stdout:
            line = raw.decode(errors="replace").removeprefix("> ")
            if line.startswith(_MARK):
                record = line.removeprefix(_MARK)
            else:
                record += line
            # A message is complete with the line of its closing bracket.
            if "PUSH #" not in record or line.startswith(" ]") or line.rstrip().endswith("]"):
                yield record
                record = ""

    def _read(self) -> None:
        for record in self._records():
            with self._lock:
                self._take(record)
        status = self._tool.wait()
        print(f"bmqtool ended with status {status}", file=sys.stderr, flush=True)
        os._exit(status & 0xFF)

    def _take(self, record: str) -> None:
        if found := _POSTED.search(record):
            self._posted[found["id"]] = self._posting.popleft()
        elif found := _ACK.search(record):
            if (number := self._posted.pop(found["id"], None)) is not None:
                self._answer(number, status=found["status"])
        elif found := _PUSH.search(record):
            self._push(found["uri"], found["guid"], record)
        elif found := _DONE.search(record):
            self._done(found["call"], found["result"] or "SUCCESS", record)
        elif record.startswith("unknown queue") and self._posting:
            self._answer(self._posting.popleft(), ok=False, error=record.strip())

    def _done(self, call: str, result: str, record: str) -> None:
        waiting = self._waiting[call]
        uri = _URI.search(record)
        for at, (number, queue) in enumerate(waiting):
            if uri is None or queue in ("", uri["uri"]):
                del waiting[at]
                self._answer(number, ok=result == "SUCCESS", error=result)
                return

    def _push(self, queue: str, guid: str, record: str) -> None:
        body, _, properties = record.partition(" with properties: ")
        self._queue_of[guid] = queue
        found = {name: _value(kind, text) for name, kind, text in _PROPERTY.findall(properties)}
        data = bytes.fromhex("".join(_BYTES.findall(body)))
        message: dict[str, Any] = {"guid": guid, "data": base64.b64encode(data).decode(), "properties": found}
        if "more bytes" in body:
            message = {"ok": False, "unsupported": True, "error": "bmqtool shows 256 bytes of a message"}
        self._arrived[queue].append(message)
        self._match(queue)

    def _match(self, queue: str) -> None:
        arrived, wanted = self._arrived[queue], self._wanted[queue]
        while arrived and wanted:
            self._answer(wanted.popleft(), **arrived.popleft())

    def end(self) -> None:
        """End bmqtool."""
        self._tool.kill()


def _value(kind: str, text: str) -> Any:
    if kind == "STRING":
        return text[1:-1]
    return text == "true" if kind == "BOOL" else int(text)


def main() -> None:
    """Answer the commands of standard input."""
    harness = Harness(os.environ["BMQ_BROKER_URI"])
    for line in sys.stdin:
        harness.do(json.loads(line))
    harness.end()


main()
