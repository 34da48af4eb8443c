# SPDX-License-Identifier: Apache-2.0
"""``--output``: the same fields as JSON and as CSV, and nothing else on stdout; encodings."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from bmq import cli
from bmq.cli import (
    bench,
    check,
    contexts,
    decode,
    doctor,
    domains,
    explain,
    main,
    move,
    post,
    queues,
    top,
)
from bmq.cli.messages import MESSAGE_FIELDS
from bmq.cli.records import Form, Records
from tests.cli.conftest import Bmq
from tests.sweeps import sweep

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
QUEUE = "bmq://bmq.test.mem.fanout/orders"
FIELDS = {
    "bench": bench.FIELDS,
    "check": check.FIELDS,
    "contexts": contexts.FIELDS,
    "dead": MESSAGE_FIELDS,
    "decode": decode.FIELDS,
    "domains diff": domains.DIFFERENCE,
    "doctor": doctor.FIELDS,
    "domains plan": domains.FIELDS,
    "domains apply": domains.APPLIED,
    "explain": explain.FIELDS,
    "move": move.FIELDS,
    "peek": queues.PEEK_FIELDS,
    "post --guids": post.FIELDS,
    "purge": queues.PURGE_FIELDS,
    "queues": queues.FIELDS,
    "stat": queues.STAT_FIELDS,
    "tail": MESSAGE_FIELDS,
    "top": top.FIELDS,
}


@sweep("verb", FIELDS)
def test_fields_are_documented(verb: str) -> None:
    (line,) = [each for each in DOCUMENT.splitlines() if each.startswith(f"| `{verb}`")]
    assert line.split("|")[2].replace("`", "").replace(" ", "").split(",") == list(FIELDS[verb])


@sweep(
    "words, fields",
    [
        (["queues"], queues.FIELDS),
        (["queues", "--apps"], queues.APP_FIELDS),
        (["stat"], queues.STAT_FIELDS),
        (["peek", QUEUE], queues.PEEK_FIELDS),
        (["tail", f"{QUEUE}?id=foo", "--idle", "0.1"], MESSAGE_FIELDS),
        (["tail", f"{QUEUE}?id=foo", "--idle", "0.1", "--fields", "guid,n"], ("guid", "n")),
        (["dead", f"{QUEUE}?id=foo", "--idle", "0.1"], MESSAGE_FIELDS),
        (["top", "--count", "1"], top.FIELDS),
        (["doctor"], doctor.FIELDS),
        (["explain", QUEUE, "-p", "n=1"], explain.FIELDS),
        (["post", QUEUE, 'a,b\n"c"', "-p", "n=1", "-p", "text=x\ty", "--guids"], post.FIELDS),
        (["bench", "--messages", "10", "--rounds", "2"], bench.FIELDS),
        (["check", "x == 1 && y", "x = 1", "", "-p", "x=1"], check.FIELDS),
        (["decode", "00000008410b0200"], decode.FIELDS),
        (["decode", "00000008410b0200", "--brief"], decode.FIELDS),
    ],
)
def test_csv_has_the_fields_and_the_values_of_json(
    run: Bmq, offline: Bmq, words: list[str], fields: tuple[str, ...]
) -> None:
    without = words[0] in ("check", "decode")
    ask = offline if without else run
    if not without:
        ask("post", QUEUE, 'a,b\n"c"', "-p", "n=1", "-p", "text=x\ty")
    ran = ask(*words, "--output", "csv")
    assert ran.status == (1 if without else 0), ran.err
    assert ran.lines[0].split(",") == list(fields)
    records = list(csv.DictReader(io.StringIO(ran.out)))
    assert records
    assert all(None not in each for each in records)
    objects = ask(*words, "-o", "json").json
    assert {name for each in objects for name in each} <= {*fields, "apps"}
    if words[0] == "peek":
        assert [each["guid"] for each in records] == [each["guid"] for each in objects]
    if without:  # the same values each time
        assert objects == ask(*words, "--json").json
        for record, known in zip(records, objects, strict=True):
            for name, value in known.items():
                if isinstance(value, list | dict):
                    assert json.loads(record[name]) == value


def test_odd_values_stay_in_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Records(Form.CSV, ["a", "b"])
    for value in ("", "x,y", 'say "no"', "two\nlines", "\x1b[31m", None, True, 1.5, {"k": ["v"]}, b"\x00"):
        writer.write({"a": value, "other": 1})
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [each["a"] for each in rows] == [
        "", "x,y", 'say "no"', "two\\nlines", "\\x1b[31m", "", "true", "1.5", '{"k":["v"]}', "00"
    ]  # fmt: skip
    assert {each["b"] for each in rows} == {""}


# ---- encodings


def encoded(monkeypatch: pytest.MonkeyPatch, encoding: str, chosen: str, *words: str) -> bytes:
    """Return the output of a command to a file with an encoding."""
    file = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONIOENCODING", chosen)
        patch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding=encoding, write_through=True))
        assert main(["check", *words]) == 0
        return file.getvalue()


@sweep(
    "windows, chosen, expected",
    [(True, "", "Łódź"), (True, "cp1252", r"\u0141ód\u017a"), (False, "", r"\u0141ód\u017a")],
)
def test_a_character_outside_the_encoding_is_no_error(
    monkeypatch: pytest.MonkeyPatch, windows: bool, chosen: str, expected: str
) -> None:
    monkeypatch.setattr(cli, "_WINDOWS", windows)
    written = encoded(monkeypatch, "cp1252", chosen, 'city == "Łódź"')
    assert expected in written.decode("utf-8" if windows and not chosen else "cp1252")


@sweep("output", ["json", "csv"])
@sweep("encoding", ["cp1252", "ascii", "utf-16"])
@sweep("chosen", ["", "cp1252"])
def test_data_for_programs_is_utf8_whatever_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, output: str, encoding: str, chosen: str
) -> None:
    text = "Łódź \U0001f600"
    assert text in encoded(monkeypatch, encoding, chosen, f'city == "{text}"', "--output", output).decode(
        "utf-8"
    )
