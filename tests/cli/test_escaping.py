# SPDX-License-Identifier: Apache-2.0
"""Text of a broker or of a message never controls the terminal, with any verb."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.cli import main
from bmq.cli.decode import TO_CLIENT, Recorded
from bmq.cli.output import LogFormatter, emit_json
from bmq.cli.verbs import VERBS
from bmq.protocol.framing import Framer
from bmq.testing import BackgroundBroker
from bmq.wire.constants import EventType
from bmq.wire.control import Codec
from bmq.wire.control_event import encode_event
from bmq.wire.event import pack_schema_event
from conformance.record import line_of
from tests.cli.conftest import Aside
from tests.sweeps import sweep

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


Encode = Callable[..., bytes]


def hostile_encoder(rewrite: Rewrite, sent: list[bytes]) -> Encode:
    """Encode the control messages of a broker after a change; keep the events."""

    def encode(message: Any, codec: Codec, **options: Any) -> bytes:
        ((event, *_), _) = Framer().feed(encode_event(message, Codec.JSON, **options))
        words = json.loads(event.data[event.body :].rstrip(b"\x01\x02\x03\x04\0"))
        rewrite(words)
        sent.append(pack_schema_event(EventType(event.type), Codec.JSON, json.dumps(words).encode()))
        return sent[-1]

    return encode


# ---- the verbs

LINES = """
post OTHER x -p s=HOSTILE --guids
tail QUEUE --idle 0.02
tail QUEUE --idle 0.02 --json
tail QUEUE --idle 0.02 --fields data,properties,s
tail QUEUE --idle 0.02 -e s=="HOSTILE"
peek QUEUE
peek QUEUE --json
dead DEAD --idle 0.02
dead DEAD LETTER --idle 0.02
dead DEAD --all --back --idle 0.02
mover LATE
purge OTHER --yes
purge OTHER
queues
queues --apps
queues --json
stat
stat --json
top QUEUE -n 1
top -n 1 --json
console --port 0
exporter --listen 127.0.0.1:0
explain QUEUE -p s=HOSTILE
explain QUEUE GUID
check s=="HOSTILE" HOSTILE -p s=HOSTILE
doctor OTHER
doctor OTHER --json
new service HOSTILE
new test shop -d HOSTILE
bench DOMAIN/bench --messages 1 --rounds 1
docs hostile_app --dir FOLDER
docs hostile_app --yaml --dir FOLDER
run hostile_app --dir FOLDER
domains plan FOLDER --offline
domains diff FOLDER FOLDER
domains diff FOLDER HOSTILE
contexts add a URI
contexts add HOSTILE HOSTILE
contexts list
contexts show a
contexts remove a
move OTHER DOMAIN/moved --idle 0.02 --output csv
admin HELP
admin CLUSTERS LIST
admin --json CLUSTERS LIST
decode --file RECORDING
decode --file RECORDING --brief
"""
#: Long-running verbs, each cancelled once its output contains some words.
UNTIL = {"mover": "mover", "console": "http://", "exporter": "http://", "run": "ValueError", "docs": "1"}
_OFFLINE = ("check", "domains diff", "docs", "new", "run", "contexts", "decode")
# Seconds until a long-running verb without its words is cancelled.
_PATIENCE = 0.5
# Seconds until a verb fails the test because it does not end.
_LONGEST = 60
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


class _Screen(io.StringIO):
    """Standard output and error of a verb, on a terminal or in a pipe."""

    def __init__(self, until: str, *, terminal: bool) -> None:
        super().__init__()
        self._until, self._terminal = until, terminal
        self._seen: Callable[[], object] = lambda: None

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._until and self._until in self.getvalue():
            self._seen()
        return count

    def run(self, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
        """Run a verb to its end, or until the output contains some words; return all output."""
        run = bmq.run

        async def limited(verb: Coroutine[Any, Any, int | None]) -> int | None:
            loop, seen = asyncio.get_running_loop(), asyncio.Event()
            self._seen = lambda: loop.call_soon_threadsafe(seen.set)
            task, waiting = asyncio.ensure_future(verb), asyncio.ensure_future(seen.wait())
            patience = _PATIENCE if self._until else _LONGEST
            await asyncio.wait({task, waiting}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            self._seen = lambda: None
            waiting.cancel()
            assert task.done() or self._until, f"{arguments} still runs"
            task.cancel()
            await asyncio.wait({task, waiting}, timeout=_LONGEST)
            assert task.done(), f"{arguments} ignores its cancellation"
            return None if task.cancelled() else task.result()

        with monkeypatch.context() as streams:
            streams.setattr(sys, "stdout", self)
            streams.setattr(sys, "stderr", self)
            streams.setattr(logging.root, "handlers", [])
            streams.setattr(bmq, "run", lambda verb: run(limited(verb)))
            main(arguments)
        return self.getvalue()


@pytest.fixture
def hostile(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[list[bytes], dict[str, str]]]:
    """A hostile broker, messages and client: what the broker has sent, and names for the verbs."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
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
            await reader.subscribe(f's == "{HOSTILE}" && n == 2').open()
            return other, guids[0], guids[1]

        other, guid, letter = aside.do(prepare())
        sent: list[bytes] = []
        with monkeypatch.context() as patch:
            patch.setattr("bmq.broker._session.encode_event", hostile_encoder(request.param, sent))
            yield sent, {"GUID": guid, "LETTER": letter, "URI": broker.uri}
        aside.do(other.close())
        aside.close()


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("hostile", [_rewrite_free, _rewrite_every, _rewrite_error], indirect=True)
def test_no_verb_prints_a_control_character_of_a_broker(
    hostile: tuple[list[bytes], dict[str, str]],
    terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent, words = hostile
    monkeypatch.chdir(tmp_path)  # "new" creates a project there
    monkeypatch.setenv("BMQ_BROKER_URI", words["URI"])
    recording = tmp_path / "made"
    words |= {"QUEUE": QUEUE, "DEAD": DEAD, "LATE": DELAYED, "OTHER": OTHER, "DOMAIN": DOMAIN}
    words |= {"HOSTILE": HOSTILE, "RECORDING": str(recording), "FOLDER": str(tmp_path)}
    lines = LINES.strip().splitlines()
    assert {line.split()[0] for line in lines} | {"broker"} == set(VERBS)
    told = 0
    for line in lines:  # "decode" reads what the others have received
        recording.write_bytes(b"".join(line_of(Recorded(1, 0.0, TO_CLIENT, each)) for each in sent[:40]))
        arguments = [re.sub("[A-Z]{3,}", lambda name: words.get(name[0], name[0]), w) for w in line.split()]
        if not line.startswith(_OFFLINE):
            arguments += ["--broker", words["URI"], "--timeout", "0.5"]
        shown = _Screen(UNTIL.get(line.split()[0], ""), terminal=terminal).run(arguments, monkeypatch)
        plain = _OWN.sub("", shown.replace("\r\n", "\n")) if terminal else shown
        raw = {c for c in plain if not c.isprintable() and c not in "\n\t"}
        assert not raw, (arguments, raw, shown)
        told += "pwned" in shown
    assert told > 4, "the hostile words were there, as escapes"


# ---- the means


@sweep("text", [HOSTILE, "\udc80\ud800", "\u00e9t\u00e9 \u6f22 \U0001f600", 'a"b\\c\x00', "\u2028\xa0"])
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
