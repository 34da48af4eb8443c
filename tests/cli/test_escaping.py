# SPDX-License-Identifier: Apache-2.0
"""Text of a broker or of a message never controls the terminal, with any verb."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import sys
import termios
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.cli import main
from bmq.cli.decode import TO_BROKER, TO_CLIENT, Recorded
from bmq.cli.output import LogFormatter, emit_json
from bmq.protocol.framing import Framer
from bmq.testing import BackgroundBroker
from bmq.wire.constants import EventType
from bmq.wire.control import Codec
from bmq.wire.event import Event, pack_schema_event
from conformance.record import line_of
from tests.cli.conftest import Aside

# Sets the title, clears the screen; CSI as one character; turns the direction of writing.
HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b2J\u202egnp\u2066\x7f\x85"
DOMAIN = "bmq://bmq.test.mem.priority"
QUEUE, DEAD, DELAYED, OTHER = (f"{DOMAIN}/{name}" for name in ("orders", "dead", "late.delayed", "other"))

# Permitted sequences of rich: colours, position and visibility of the cursor, cleared lines, the alternate
# screen.
_OWN = re.compile(r"\r?\x1b\[(?:[0-9;]*m|\?(?:25|1049)[hl]|[0-9]*[ABCDGHK])")

# ---- a broker with hostile words

Rewrite = Callable[[dict[str, Any]], None]

# Members interpreted by the client; unchanged in "free".
_NAMES = {
    *("uri", "queueUri", "name", "clusterName", "queueName", "domain", "appId", "GUID", "guid", "encoding"),
    *("arrivalTimestamp", "mode", "version", "locality", "text"),
}


def _every(value: Any, spared: set[str], name: str = "") -> Any:
    """Append hostile words to every text, including texts inside JSON."""
    match value:
        case dict():
            return {key: _every(each, spared, key) for key, each in value.items()}
        case list():
            return [_every(each, spared, name) for each in value]
        case str() if value[:1] == "{":
            return json.dumps(_every(json.loads(value), spared))
        case str() if name not in spared and not value.startswith("E_"):
            return value + HOSTILE
        case _:
            return value


def _rewrite_free(message: dict[str, Any]) -> None:
    if "adminCommandResponse" in message:
        answer = message["adminCommandResponse"]
        answer["text"] = _every(answer["text"], _NAMES)
    message.update(_every({key: message[key] for key in message if key != "adminCommandResponse"}, _NAMES))


def _rewrite_every(message: dict[str, Any]) -> None:
    message.update(_every(message, set()))


def _rewrite_error(message: dict[str, Any]) -> None:
    if "adminCommandResponse" in message:
        message["adminCommandResponse"]["text"] = json.dumps({"error": {"message": HOSTILE}})


class HostileBroker:
    """A broker behind a proxy with rewritten output."""

    def __init__(self, uri: str, rewrite: Rewrite) -> None:
        self._port = int(uri.rpartition(":")[2])
        self.rewrite = rewrite
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.events: list[Recorded] = []
        self._connections = 0
        self._thread.start()
        self.uri = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)

    async def _start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        async def stop() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        broker = await asyncio.open_connection("127.0.0.1", self._port)
        ways = [
            asyncio.ensure_future(self._pass(self._connections, TO_BROKER, reader, broker[1])),
            asyncio.ensure_future(self._pass(self._connections, TO_CLIENT, broker[0], writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()
            broker[1].transport.abort()

    async def _pass(
        self, connection: int, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        framer = Framer()
        while data := await reader.read(65536):
            for event in framer.feed(data)[0]:
                sent = self._rewritten(event) if way == TO_CLIENT else event.data
                self.events.append(Recorded(connection, 0.0, way, sent))
                writer.write(sent)

    def _rewritten(self, event: Event) -> bytes:
        if event.type not in (EventType.CONTROL, EventType.AUTHENTICATION):
            return event.data
        message = json.loads(event.data[event.body :].rstrip(b"\x01\x02\x03\x04\0"))
        self.rewrite(message)
        return pack_schema_event(EventType(event.type), Codec.JSON, json.dumps(message).encode())


# ---- the verbs

# The expected words of each verb; a long-running verb is cancelled once its output contains the words.
COMMANDS: dict[str, list[tuple[list[str], str]]] = {
    "post": [(["post", OTHER, "x", "-p", f"s={HOSTILE}", "--guids"], "")],
    "tail": [
        (["tail", QUEUE, "--idle", "0.02"], ""),
        (["tail", QUEUE, "--idle", "0.02", "--json"], ""),
        (["tail", QUEUE, "--idle", "0.02", "--fields", "data,properties,s"], ""),
        (["tail", QUEUE, "--idle", "0.02", "-e", f's == "{HOSTILE}"'], ""),
    ],
    "peek": [(["peek", QUEUE], ""), (["peek", QUEUE, "--json"], "")],
    "dead": [
        (["dead", DEAD, "--idle", "0.02"], ""),
        (["dead", DEAD, "LETTER", "--idle", "0.02"], ""),
        (["dead", DEAD, "--all", "--back", "--idle", "0.02"], ""),
    ],
    "mover": [(["mover", DELAYED], "mover")],
    "purge": [
        (["purge", OTHER, "--yes"], ""),
        (["purge", OTHER], ""),
    ],
    "queues": [(["queues"], ""), (["queues", "--apps"], ""), (["queues", "--json"], "")],
    "stat": [(["stat"], ""), (["stat", "--json"], "")],
    "top": [(["top", QUEUE, "-n", "1"], ""), (["top", "-n", "1", "--json"], "")],
    "console": [(["console", "--port", "0"], "http://")],
    "exporter": [(["exporter", "--listen", "127.0.0.1:0"], "http://")],
    "explain": [
        (["explain", QUEUE, "-p", f"s={HOSTILE}"], ""),
        (["explain", QUEUE, "GUID"], ""),
    ],
    "check": [(["check", f's == "{HOSTILE}"', f"{HOSTILE}", "-p", f"s={HOSTILE}"], "")],
    "doctor": [(["doctor", OTHER], ""), (["doctor", OTHER, "--json"], "")],
    "decode": [
        (["decode", "--file", "RECORDING"], ""),
        (["decode", "--file", "RECORDING", "--brief"], ""),
    ],
    "new": [(["new", "service", HOSTILE], ""), (["new", "test", "shop", "-d", HOSTILE], "")],
    "bench": [(["bench", f"{DOMAIN}/bench", "--messages", "1", "--rounds", "1"], "")],
    "docs": [
        (["docs", "hostile_app", "--dir", "DIRECTORY"], "1"),
        (["docs", "hostile_app", "--yaml", "--dir", "DIRECTORY"], "1"),
    ],
    "run": [(["run", "hostile_app", "--dir", "DIRECTORY"], "ValueError")],
    "domains": [
        (["domains", "plan", "DIRECTORY", "--offline"], ""),
    ],
    "domains diff": [
        (["domains", "diff", "DIRECTORY", "DIRECTORY"], ""),
        (["domains", "diff", "DIRECTORY", HOSTILE], ""),
    ],
    "contexts": [
        (["contexts", "add", "a", "URI"], ""),
        (["contexts", "add", HOSTILE, HOSTILE], ""),
        (["contexts", "list"], ""),
        (["contexts", "show", "a"], ""),
        (["contexts", "remove", "a"], ""),
    ],
    "move": [(["move", OTHER, f"{DOMAIN}/moved", "--idle", "0.02", "--output", "csv"], "")],
    "admin": [
        (["admin", "HELP"], ""),
        (["admin", "CLUSTERS", "LIST"], ""),
        (["admin", "--json", "CLUSTERS", "LIST"], ""),
    ],
}
#: Verbs whose output contains nothing of a broker, nor of a recorded conversation.
_ALONE = {"check", "domains diff", "docs", "new", "run"}
# Seconds until a long-running verb without its words is cancelled.
_PATIENCE = 0.5
# Seconds until a verb fails the test because it does not end.
_LONGEST = 60
_OFFLINE = {"check", "contexts", "decode", "domains diff", "docs", "new", "run"}
_DOMAIN = {
    "definition": {
        "location": "local",
        "parameters": {
            "mode": {"priority": {}},
            "storage": {
                "domainLimits": {"messages": 1, "bytes": 1},
                "queueLimits": {"messages": 1, "bytes": 1},
                "config": {"inMemory": {}},
            },
            "messageTtl": 1,
            HOSTILE: HOSTILE,
        },
    }
}
_APP = f"""
import bmq
app = bmq.App()
@app.consumer({QUEUE!r})
async def handle(message):
    raise ValueError({HOSTILE!r})
handle.__doc__ = "1 " + {HOSTILE!r}
"""


class _Screen:
    """Standard output and error of a verb, on a terminal or in a pipe."""

    def __init__(self, *, terminal: bool) -> None:
        if terminal:
            self._reading, writing = pty.openpty()
            termios.tcsetwinsize(writing, (40, 100))
        else:
            self._reading, writing = os.pipe()
        # As Python's own streams: a terminal may take a part of a write, and the buffer writes the rest.
        self.file = os.fdopen(writing, "w", 1, "utf-8")
        self._shown = b""
        self._until = b""
        self._seen: Callable[[], object] = lambda: None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while more := os.read(self._reading, 65536):
                self._shown += more
                if self._until and self._until in self._shown:
                    self._seen()
        except OSError:
            pass  # the end of a terminal on Linux

    def run(self, arguments: list[str], until: str, monkeypatch: pytest.MonkeyPatch) -> str:
        """Run a verb to its end, or until the output contains some words; return all output."""
        self._until = until.encode()
        run = bmq.run

        async def limited(verb: Coroutine[Any, Any, int | None]) -> int | None:
            loop, seen = asyncio.get_running_loop(), asyncio.Event()
            self._seen = lambda: loop.call_soon_threadsafe(seen.set)
            task, waiting = asyncio.ensure_future(verb), asyncio.ensure_future(seen.wait())
            patience = _PATIENCE if until else _LONGEST
            await asyncio.wait({task, waiting}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            self._until = b""
            waiting.cancel()
            assert task.done() or until, f"{arguments} still runs"
            task.cancel()
            await asyncio.wait({task, waiting}, timeout=_LONGEST)
            assert task.done(), f"{arguments} ignores its cancellation"
            return None if task.cancelled() else task.result()

        with monkeypatch.context() as streams:
            streams.setattr(sys, "stdout", self.file)
            streams.setattr(sys, "stderr", self.file)
            streams.setattr(logging.root, "handlers", [])
            streams.setattr(bmq, "run", lambda verb: run(limited(verb)))
            main(arguments)
        self.file.close()
        self._reader.join(30)
        os.close(self._reading)
        return self._shown.decode()


@pytest.fixture
def hostile(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[HostileBroker, dict[str, str]]]:
    """A hostile broker with hostile messages and a hostile client."""
    monkeypatch.setenv("TERM", "xterm")
    (tmp_path / "hostile_app.py").write_text(_APP)
    (tmp_path / "bmq.test.mem.priority.json").write_text(json.dumps(_DOMAIN))
    monkeypatch.delitem(sys.modules, "hostile_app", raising=False)
    properties = {"s": HOSTILE, "n": 1, "bmq_due": 0, "bmq_destination": HOSTILE}
    died = {f"bmq_dead_{name}": HOSTILE for name in ("queue", "guid", "attempts", "error", "properties")}
    with BackgroundBroker() as broker:
        aside = Aside(broker.uri)

        async def prepare() -> tuple[bmq.Session, str, str]:
            guids: list[str] = []
            queues = {QUEUE: properties, DEAD: died | properties, DELAYED: properties, OTHER: {}}
            for uri, own in queues.items():
                queue = await aside.session.open_queue(uri, write=True)
                guids.append((await queue.post(HOSTILE.encode(), properties=own)).guid)
            other = await bmq.connect(broker.uri, process_name=HOSTILE)
            reader = await other.open_queue(QUEUE, read=True, default_subscription=False)
            expression = f's == "{HOSTILE}" && n == 2'
            await reader.subscribe(expression).open()
            return other, guids[0], guids[1]

        other, guid, letter = aside.do(prepare())
        proxy = HostileBroker(broker.uri, request.param)
        try:
            yield proxy, {"GUID": guid, "LETTER": letter}
        finally:
            proxy.close()
            aside.do(other.close())
            aside.close()


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize(
    "hostile",
    [_rewrite_free, _rewrite_every, _rewrite_error],
    indirect=True,
)
def test_no_verb_prints_a_control_character_of_a_broker(
    hostile: tuple[HostileBroker, dict[str, str]],
    terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, words = hostile
    monkeypatch.chdir(tmp_path)  # "new" creates a project there
    words |= {"URI": broker.uri}
    words |= {"FILE": str(tmp_path / "new"), "RECORDING": str(tmp_path / "made"), "DIRECTORY": str(tmp_path)}
    told = 0
    # The words of a broker make no difference to the verbs without one: the first broker is enough for them.
    verbs = [verb for verb in COMMANDS if verb not in _ALONE or broker.rewrite is _rewrite_free]
    for verb in sorted(verbs, key=lambda verb: verb == "decode"):  # reads what the others have recorded
        for arguments, until in COMMANDS[verb]:
            (tmp_path / "new").unlink(missing_ok=True)
            (tmp_path / "made").write_bytes(b"".join(map(line_of, broker.events[:40])))
            at = [] if verb in _OFFLINE else ["--broker", broker.uri, "--timeout", "0.5"]
            monkeypatch.setenv("BMQ_BROKER_URI", broker.uri)
            screen = _Screen(terminal=terminal)
            given = [*(words.get(word, word) for word in arguments), *at]
            shown = screen.run(given, until, monkeypatch)
            plain = _OWN.sub("", shown.replace("\r\n", "\n")) if terminal else shown
            raw = {c for c in plain if not c.isprintable() and c not in "\n\t"}
            assert not raw, (arguments, raw, shown)
            told += "pwned" in shown
    assert told > 4, "the hostile words were there, as escapes"


# ---- the means


@pytest.mark.parametrize(
    "text", [HOSTILE, "\udc80\ud800", "\u00e9t\u00e9 \u6f22 \U0001f600", 'a"b\\c\x00', "\u2028\xa0"]
)
def test_json_stays_json_with_escapes(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"text": text, text: [text]})
    line = capsys.readouterr().out
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert json.loads(line) == {"text": text, text: [text]}
    assert ("\u00e9t\u00e9" in line) is ("\u00e9t\u00e9" in text)


def test_a_log_line_cannot_look_like_two() -> None:
    formatter = LogFormatter("bmq tail: %(message)s")
    words = "a\nbmq tail: all is well\x1b[2J"
    record = logging.LogRecord("bmq", logging.WARNING, "", 0, "lost: %s", (words,), None)
    assert formatter.format(record).splitlines() == ["bmq tail: lost: a", "  bmq tail: all is well\\x1b[2J"]
