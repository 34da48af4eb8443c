# SPDX-License-Identifier: Apache-2.0
"""Commands without a broker: check, decode, help, configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bmq
from bmq.cli.verbs import VERBS
from tests.cli.conftest import Bmq
from tests.sweeps import sweep
from tests.transcripts import DIRECTORY, RECORDINGS, recorded, stream

# ---- help


@sweep("verb", [verb for verb in VERBS if verb != "broker"])
def test_every_verb_explains_itself(offline: Bmq, verb: str) -> None:
    ran = offline(verb, "--help")
    assert ran.status == 0
    assert "Examples" in ran.out
    assert f"$ bmq {verb}" in ran.out


def test_help_lists_every_verb(offline: Bmq) -> None:
    ran = offline("--help")
    assert ran.status == 0
    assert all(f" {verb} " in ran.out for verb in VERBS)
    assert offline("--version").out.startswith("bmq ")


def test_missing_extra_is_named() -> None:
    script = "import sys; sys.modules['typer'] = None; from bmq.cli import main; sys.exit(main(['queues']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "bmq[cli]" in done.stderr
    assert "Traceback" not in done.stderr


@sweep("place", ["bmq.cli.app.run_app", "importlib.import_module"])
def test_ctrl_c_during_an_import_is_an_interrupt(
    offline: Bmq, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, interrupted)
        ran = offline("check", "x > 1")
    assert (ran.status, ran.out, ran.err) == (130, "", "")


# ---- check


def test_check_marks_the_mistake(offline: Bmq) -> None:
    ran = offline("check", "x > 1", "x = 1")
    assert ran.status == 1
    assert "legal" in ran.out
    assert "^ column 3" in ran.out
    good, bad = offline("check", "x > 1", "x = 1", "--json").json
    assert (good["legal"], bad["legal"], bad["offset"]) == (True, False, 2)


@sweep(
    "properties, status, words",
    [
        (["-p", "x=5"], 0, "matches"),
        (["-p", "x=1"], 1, "does not match"),
        (["-p", "x=a"], 1, "TYPE error"),
        (["--empty"], 1, "NAME error"),
    ],
)
def test_check_evaluates_properties(offline: Bmq, properties: list[str], status: int, words: str) -> None:
    ran = offline("check", "x > 1", *properties)
    assert (ran.status, words in ran.out) == (status, True)


def test_check_warns_of_unintended_meanings(offline: Bmq) -> None:
    ran = offline("check", "x == 1 && x == 2")
    assert ran.status == 0
    assert "  warning: this condition never matches. Join alternatives with `||`" in ran.lines
    found = [each["warnings"] for each in offline("check", "--json", "x == 1 && x == 2", "x == 1").json]
    assert [[each["offset"] for each in warnings] for warnings in found] == [[7], []]


def test_check_shows_several_expressions_as_a_routing_table(offline: Bmq) -> None:
    arguments = ["check", "x > 0", "x == 1", "", "-P", "5", "-P", "10", "-p", "x=1"]
    ran = offline(*arguments)
    assert (ran.status, ran.lines[-1]) == (0, "The message goes to #2.")
    assert "delivery to this application stops" in offline(*arguments, "--full", "2").lines[-1]
    ran = offline("check", LONG, "-p", "x=11")
    beyond = "  beyond the limits of a broker: the client sends 4 subscriptions"
    assert (ran.status, ran.lines[:2]) == (0, [LONG, beyond])
    assert ran.lines[-1] == "The message goes to #1.4."


LONG = " || ".join(f"x == {number}" for number in range(12))


@sweep(
    "text", ["", "x > 1", "x = 1", LONG, LONG.replace("||", "&&"), f'x == "{"a" * 200}"', "1 == 1", "x > 1\0"]
)
def test_check_and_subscribe_agree(offline: Bmq, uri: str, bmq_queue_uri: str, text: str) -> None:
    ran = offline("check", text, "--json")
    with bmq.blocking.connect(uri) as session, session.open_queue(bmq_queue_uri, read=True) as queue:
        try:
            wanted = (0, "expression", queue.subscribe(text).expressions)
        except bmq.InvalidExpression as error:
            wanted = (1, "code", [error.code])
    status, field, values = wanted
    assert (ran.status, [each[field] for each in ran.json]) == (status, values)


# ---- decode


@sweep("recording", RECORDINGS)
def test_every_recorded_conversation_decodes(offline: Bmq, recording: str) -> None:
    ran = offline("decode", "--file", str(DIRECTORY / f"{recording}.jsonl"), "--json")
    wrong = [part for event in ran.json for part in event["parts"] if part["error"]]
    assert ran.json
    # A recorded client used E_PYTHON, an unknown enumerator.
    assert {part["name"] for part in wrong} <= {"clientIdentity.sdkLanguage"}


def test_decode_shows_every_field(offline: Bmq) -> None:
    recording = str(DIRECTORY / "official-props.jsonl")
    ran = offline("decode", "--file", recording)
    for words in ("PutHeader", "messageGUID", "numProperties", "property b", "ACK_REQUESTED", "crc32c"):
        assert words in ran.out
    ran = offline("decode", "--file", recording, "--brief")
    assert "clientIdentity" in ran.out
    assert "!!" not in ran.out


def test_decode_reads_hexadecimal_digits(offline: Bmq, tmp_path: Path) -> None:
    ran = offline("decode", "000000084b020000")
    assert (ran.status, "11 (HEARTBEAT_REQ)" in ran.out) == (0, True)
    (tmp_path / "digits").write_text("00 00 00 08 4c 02\n00 00\n")
    assert "HEARTBEAT_RSP" in offline("decode", "--file", str(tmp_path / "digits")).out


@sweep(
    "name, change, status, said",
    [
        ("bytes", lambda bytes_, text: bytes_[:-3], 1, "ends in the middle of an event"),
        ("bytes", lambda bytes_, text: bytes_ + b"\0\0\0\1HTTP", 1, "the input is not BlazingMQ's protocol"),
        ("cut.jsonl", lambda bytes_, text: text[: len(text) // 2], 0, "ends in the middle of line"),
    ],
)
def test_decode_reports_errors_after_what_is_readable(
    offline: Bmq, tmp_path: Path, name: str, change: Callable[[bytes, bytes], bytes], status: int, said: str
) -> None:
    text = (DIRECTORY / "official-basic.jsonl").read_bytes()
    (tmp_path / name).write_bytes(change(stream("official-basic", 1, "c2b"), text))
    ran = offline("decode", "--file", str(tmp_path / name), "--brief")
    assert (ran.status, said in ran.err, "openQueue" in ran.out) == (status, True, True)


def test_decode_never_crashes(offline: Bmq, tmp_path: Path) -> None:
    """Every event of a conversation, with each fifth byte changed in turn."""
    lines: list[str] = []
    for event in recorded(recording="json-session"):
        for at in range(0, len(event.data), 5):
            changed = bytearray(event.data)
            changed[at] ^= 0xFF
            lines.append(json.dumps({"conn": 1, "t": 0, "dir": event.direction, "hex": changed.hex()}))
    (tmp_path / "changed.jsonl").write_text("\n".join(lines) + "\n")
    ran = offline("decode", "--file", str(tmp_path / "changed.jsonl"), "--json")
    assert ran.status == 1
    assert len(ran.lines) == len(lines)
