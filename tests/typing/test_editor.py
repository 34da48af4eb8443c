# SPDX-License-Identifier: Apache-2.0
"""Signatures, docstrings and completions in an editor, from pyright's language server.

The names are those of the quickstart and of the first handler of a service.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bmq

ROOT = Path(__file__).parents[2]
PROGRAM = """
import bmq

app = bmq.App("tcp://localhost:30114", health="127.0.0.1:8080")


@app.consumer("bmq://d/q", retry=bmq.Backoff(every=5.0, retries=3, then=bmq.DeadLetter("bmq://d/dead")))
async def handle(message: bmq.Message) -> None:
    message.confirm()
    print(message.data, message.properties, message.guid)
    outbox = await app.queue("bmq://d/out")
    await outbox.post(b"", properties={"a": 1})
    outbox.post_nowait(b"")


async def main() -> None:
    async with bmq.connect("tcp://localhost:30114") as session:
        queue = await session.open_queue("bmq://d/q", read=True, write=True)
        await queue.post_many([b""])
        await queue.flush()
        await queue.receive(timeout=1.0)
        queue.subscribe("a > 1")
        queue.typed(int)
        session.health()
        session.stats()
        await session.close()


bmq.run(main())
bmq.run(app.run())
"""
#: For each name: its place, a part of its signature, and words of its docstring with the unit of numbers.
HOVERS = [
    ("bmq.connect", "connect(", "session"),
    ("bmq.run", "def run(", "uvloop"),
    ("bmq.App", "class App(", "handlers"),
    ("bmq.Backoff", "every: float", "seconds"),
    ("bmq.DeadLetter", "class DeadLetter(", "queue"),
    ("bmq.Message", "class Message", "message"),
    ("app.consumer", "def consumer(", "handler"),
    ("app.queue", "def queue(", "queue"),
    ("app.run", "def run(", "signal"),
    ("message.confirm", "def confirm(", "broker"),
    ("message.data", "data: bytes", "payload"),
    ("message.properties", "properties: ", "properties"),
    ("message.guid", "guid: str", "GUID"),
    ("session.open_queue", "def open_queue(", "queue"),
    ("session.health", "def health(", "session"),
    ("session.close", "def close(", "seconds"),
    ("outbox.post", "def post(", "acknowledge"),
    ("outbox.post_nowait", "def post_nowait(", "without waiting"),
    ("queue.post_many", "def post_many(", "messages a second"),
    ("queue.flush", "def flush(", "seconds"),
    ("queue.receive", "def receive(", "seconds"),
    ("queue.subscribe", "def subscribe(", "expression"),
]
#: Completions behind the dot of each name.
COMPLETIONS = {
    "session": ["open_queue", "health", "stats", "close", "state"],
    "app": ["consumer", "queue", "run", "stop", "on_startup", "state"],
    "message": ["confirm", "data", "properties", "guid"],
    "queue": ["post", "post_many", "post_nowait", "receive", "subscribe", "flush", "typed"],
    "bmq": [each for each in bmq.__all__ if not each.startswith("_")],
}


class Server:
    """Pyright's language server, over its standard input and output."""

    def __init__(self, folder: Path) -> None:
        (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
        self.text, self.uri = PROGRAM, (folder / "program.py").as_uri()
        (folder / "program.py").write_text(PROGRAM)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pyright.langserver", "--stdio"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._number = 0
        capabilities = {"textDocument": {"hover": {"contentFormat": ["plaintext"]}}}
        root = folder.as_uri()
        self.ask(
            "initialize",
            processId=None,
            rootUri=root,
            capabilities=capabilities,
            workspaceFolders=[{"uri": root, "name": "program"}],
        )
        self._send(method="initialized", params={})
        document = {"uri": self.uri, "languageId": "python", "version": 1, "text": PROGRAM}
        self._send(method="textDocument/didOpen", params={"textDocument": document})

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _received(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the language server has ended"
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message

    def ask(self, method: str, **params: Any) -> Any:
        """Return the answer to a request; answer the questions of the server meanwhile."""
        self._number += 1
        self._send(id=self._number, method=method, params=params)
        while True:
            message = self._received()
            if "method" in message:
                if "id" in message:
                    configuration = message["method"] == "workspace/configuration"
                    items = message["params"]["items"] if configuration else []
                    self._send(id=message["id"], result=[{} for _ in items] if configuration else None)
            elif message["id"] == self._number:
                assert "error" not in message, message
                return message["result"]

    def position(self, offset: int) -> dict[str, Any]:
        before = self.text[:offset]
        place = {"line": before.count("\n"), "character": offset - before.rfind("\n") - 1}
        return {"textDocument": {"uri": self.uri}, "position": place}

    def hover(self, name: str) -> str:
        """Return the hover text of the last part of a name, at its first place."""
        called = f"{name}("
        offset = self.text.index(called if called in self.text else name) + len(name) - 1
        found = self.ask("textDocument/hover", **self.position(offset))
        return str(found["contents"]["value"]) if found else ""

    def completions(self, name: str) -> set[str]:
        """Return the completions behind a name and a dot."""
        offset = self.text.index(f"{name}.") + len(name) + 1
        found = self.ask("textDocument/completion", **self.position(offset))
        return {item["label"] for item in found["items"]}

    def close(self) -> None:
        self.ask("shutdown")
        self._send(method="exit")
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("editor"))
    yield server
    server.close()


@pytest.mark.parametrize(("name", "signature", "words"), HOVERS, ids=[each[0] for each in HOVERS])
def test_hover_shows_signature_and_docstring(server: Server, name: str, signature: str, words: str) -> None:
    shown = server.hover(name)
    assert signature in shown
    assert words in shown.partition("\n\n")[2], "the docstring is below the signature"


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completion_offers_the_names(server: Server, name: str) -> None:
    assert set(COMPLETIONS[name]) <= server.completions(name)
