# SPDX-License-Identifier: Apache-2.0
"""Templates of messages, checked before the first post; and messages since a time."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bmq import _world
from bmq.cli import tail
from bmq.cli.output import BadInput
from bmq.cli.template import Template, read_rows
from tests.cli.conftest import Bmq
from tests.sweeps import sweep


@sweep(
    "text, form",
    [
        ("plain", "plain"),
        ("{one} }} {", "{one} }} {"),
        ("{{counter}}", "8"),
        ("{{ counter:0 }}-{{counter:-5}}", "7-2"),
        ("{{row.a}}", 'x"y'),
        ("{{row.a|json}}", r'"x\\"y"'),
        ("{{row.b}} {{row.c}} {{row.d|json}}", r"true null \[1\]"),
        ("{{uuid}}", "[0-9a-f]{8}-[0-9a-f-]{27}"),
        ("{{now}}", r"20\d\d-\d\d-\d\dT.*\+00:00"),
        ("{{now:ms}}", r"\d{13}"),
        ("{{now:s}}", r"\d{10}"),
        ("{{random:3:3}}", "3"),
        ("{{random:-2:9}}", r"-?\d"),
    ],
)
def test_placeholders(text: str, form: str) -> None:
    row = {"a": 'x"y', "b": True, "c": None, "d": [1]}
    made = Template(text, "here").fill(7, row)
    assert re.fullmatch(form, made, re.DOTALL) or made == form


@sweep(
    "text",
    [
        "{{", "{{x}}", "{{}}", "{{counter", "{{counter:x}}", "{{counter:1:2}}", "{{random}}",
        "{{random:2:1}}",
        "{{random:1:99999999999999999999}}", "{{now:y}}", "{{uuid|upper}}", "{{row.a:1}}", "{{counter:²}}",
    ],
)  # fmt: skip
def test_wrong_placeholders_are_errors(text: str) -> None:
    with pytest.raises(BadInput, match=r"^here: "):
        Template(text, "here")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.csv", "", "no rows"),
        ("a.csv", "x\n", "no rows"),
        ("a.csv", "x,x\n1,2\n", "same name"),
        ("a.csv", "x\n1,2\n", "line 2: 2 cells"),
        ("a.csv", "y\n1\n", "line 2: no column 'x'; the columns are y"),
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.jsonl", '{"x": 1}\n\n{"y": 1}\n', "line 3: no column 'x'"),
        ("a.jsonl", "[1]", "must be a JSON object"),
    ],
)
def test_wrong_rows_are_errors(tmp_path: Path, name: str, content: str, error: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(BadInput, match=re.escape(error)):
        read_rows(str(tmp_path / name), ["x"])


def test_template_posts_a_message_for_each_row(run: Bmq, bmq_queue_uri: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text('\ufeffcustomer,note\n7,a\n8,"b ""c"""\n', encoding="utf-8")
    template = tmp_path / "order.json"
    template.write_text('{"id": {{counter}}, "note": {{row.note|json}}}', encoding="utf-8")
    words = [
        "--template",
        f"@{template}",
        "--data",
        str(rows),
        "-p",
        "CustomerId={{row.customer}}",
        "-n",
        "2",
    ]
    assert run("post", bmq_queue_uri, *words).status == 0
    ran = run("tail", bmq_queue_uri, "--json", "--idle", "0.2", "--confirm")
    assert [json.loads(each["data"]) for each in ran.json] == [
        {"id": 1, "note": "a"}, {"id": 2, "note": 'b "c"'},
        {"id": 3, "note": "a"}, {"id": 4, "note": 'b "c"'},
    ]  # fmt: skip
    assert [each["properties"]["CustomerId"] for each in ran.json] == [7, 8, 7, 8]


@sweep(
    "words",
    [
        ["--template", "{{x}}"],
        ["--template", "{{row.a}}"],
        ["--template", "x", "--data", "/nowhere"],
        ["--template", "@/nowhere"],
        ["--template", "x", "-p", "a={{x}}"],
        ["--template", "x", "-p", "a:int32={{uuid}}"],
        ["--template", "x", "payload"],
        ["--template", "x", "--lines"],
        ["x", "--data", "/nowhere"],
    ],
)
def test_nothing_is_posted_with_a_wrong_template(offline: Bmq, words: list[str]) -> None:
    ran = offline("post", "bmq://bmq.test.mem.priority/q", *words, "--broker", "tcp://127.0.0.1:1")
    assert (ran.status, ran.out) == (2, ""), ran.err


# ---- tail --since


def test_since_prints_later_messages_only(
    run: Bmq, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("post", bmq_queue_uri, "old")
    peeked = run("peek", bmq_queue_uri, "--json").json
    arrival = datetime.fromisoformat(peeked[0]["arrival"]).timestamp()
    run("post", bmq_queue_uri, "new")
    # "One second" before this moment: after the first arrival and before the second.
    second = datetime.fromisoformat(run("peek", bmq_queue_uri, "--json").json[1]["arrival"]).timestamp()
    monkeypatch.setattr(_world, "time", lambda: (arrival + second) / 2 + 1)
    ran = run("tail", bmq_queue_uri, "--since", "1s", "--json", "--idle", "0.2", "--confirm")
    monkeypatch.undo()
    assert [each["data"] for each in ran.json] == ["new"]
    assert "1 message returned" in ran.err
    ran = run("tail", bmq_queue_uri, "--since", "1d", "--json", "--idle", "0.2", "--confirm")
    assert [each["data"] for each in ran.json] == ["old"]


@sweep("text", ["", "5", "10x", "m", "yesterday", "2026-13-01", "-5m", "1m1h"])
def test_wrong_times_are_errors(offline: Bmq, text: str) -> None:
    ran = offline("tail", "bmq://bmq.test.mem.priority/q", "--since", text, "--broker", "tcp://127.0.0.1:1")
    assert (ran.status, "--since takes" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("2d", 172_800), ("2026-01-01", None)]
)
def test_times(text: str, seconds: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    monkeypatch.setattr(_world, "time", now.timestamp)
    found = tail._time(text)  # pyright: ignore[reportPrivateUsage]
    assert (
        found == datetime(2026, 1, 1, tzinfo=UTC)
        if seconds is None
        else (now - found).total_seconds() == seconds
    )
