# SPDX-License-Identifier: Apache-2.0
"""bmq post and bmq tail: what goes in comes out, and what cannot go in is named; templates, and streams."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq import _world
from bmq.cli import tail
from bmq.cli.template import Template
from tests.cli.conftest import Aside, Bmq, Ran
from tests.integration.steps import NewUri
from tests.sweeps import sweep


@pytest.fixture
def ndjson(run: Bmq, bmq_queue_uri: str, tmp_path: Path) -> Callable[[str], Ran]:
    """Post lines of JSON."""

    def post(lines: str) -> Ran:
        (tmp_path / "lines").write_text(lines)
        return run("post", bmq_queue_uri, "--ndjson", "--file", str(tmp_path / "lines"))

    return post


def posted(run: Bmq, queue: str) -> list[dict[str, Any]]:
    return run("tail", queue, "--json").json


def test_payloads_with_properties_and_tags(run: Bmq, bmq_queue_uri: str) -> None:
    arguments = ["-p", "CustomerId=1234", "-p", "ok=true", "-p", "small:short=-3", "-p", "raw:binary=00ff"]
    ran = run("post", bmq_queue_uri, "hello", "world", *arguments, "-p", "zip:string=0123", "--guids")
    assert ran.status == 0
    assert "2 messages accepted" in ran.err
    first, second = posted(run, bmq_queue_uri)
    assert [first["guid"], second["guid"]] == ran.lines
    assert (first["data"], second["data"]) == ("hello", "world")
    assert first["properties"] == {"CustomerId": 1234, "ok": True, "small": -3, "raw": "00ff", "zip": "0123"}
    types = {"CustomerId": "int64", "ok": "bool", "small": "short", "raw": "binary", "zip": "string"}
    assert first["types"] == types


@sweep(
    "content, options, field, values",
    [
        (b"\0\xff\n\n", ["--count", "2"], "base64", ["AP8KCg==", "AP8KCg=="]),
        (b"one\r\ntwo\nthree", ["--lines"], "data", ["one", "two", "three"]),
        (b"x" * 100_000, ["--compress"], "data", ["x" * 100_000]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_file_is_one_message_or_one_for_each_line(
    run: Bmq,
    bmq_queue_uri: str,
    tmp_path: Path,
    content: bytes,
    options: list[str],
    field: str,
    values: list[str],
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert run("post", bmq_queue_uri, "--file", str(tmp_path / "file"), *options).status == 0
    if "--compress" in options:
        assert run("peek", bmq_queue_uri, "--json").json[0]["size"] < 2000
    assert [message[field] for message in posted(run, bmq_queue_uri)] == values
    run("purge", bmq_queue_uri, "--yes")


def test_output_of_tail_can_be_posted(
    run: Bmq, aside: Aside, bmq_queue_uri: str, ndjson: Callable[[str], Ran]
) -> None:
    run("post", bmq_queue_uri, "x", "-p", "c:char=41", "-p", "n:int32=7", "-p", "s=text", "--tag", "express")
    # Other clients post texts that are not UTF-8: a line of JSON has them as lone surrogates.
    queue = aside.do(aside.session.open_queue(bmq_queue_uri, write=True))
    aside.do(queue.post(b"\xff\xfe", properties={"city": "M\udcfcnchen", "raw": b"\xff", "n": 7}))
    printed = run("tail", bmq_queue_uri, "--json", "--confirm")
    assert ndjson(printed.out).status == 0
    before, after = printed.json, posted(run, bmq_queue_uri)
    assert {each.pop("guid") for each in after}.isdisjoint(each.pop("guid") for each in before)
    assert after == before
    assert [each["types"]["n"] for each in before] == ["int32", "int64"]
    reader = aside.do(aside.session.open_queue(bmq_queue_uri, read=True))
    message = [aside.do(reader.receive(20)) for _ in range(2)][1]
    assert (message.data, message.properties["city"]) == (b"\xff\xfe", "M\udcfcnchen")


@sweep(
    "line, words",
    [
        (r'{"data": "\udcff"}', "data is not UTF-8"),
        (r'{"json": {"a": "\udcff"}}', "json is not UTF-8"),
        (r'{"data": "\ud83d\ude00"}', ""),
    ],
)
def test_a_payload_that_is_not_utf8_needs_base64(ndjson: Callable[[str], Ran], line: str, words: str) -> None:
    ran = ndjson(line + "\n")
    assert ran.status == (1 if words else 0)
    assert words in ran.err
    assert not words or "use base64" in ran.err


def test_invalid_lines_are_listed_and_valid_lines_posted(
    run: Bmq, bmq_queue_uri: str, ndjson: Callable[[str], Ran]
) -> None:
    lines = [
        '{"data": "good"}',
        '{"data": "x", "colour": 1}',
        "[1]",
        '{"data": "x", "properties": {"a": 1.5}}',
        '{"data": "x", "base64": "eA=="}',
        '{"json": {"a": [1]}, "properties": {"a": 5}, "types": {"a": "short"}, "tags": ["t"]}',
        '{"data": "cut',
    ]
    ran = ndjson("\n".join(lines))
    assert ran.status == 1
    for said in (*(f"line {line}: " for line in (2, 3, 4, 5, 7)), "ends in the middle of this line"):
        assert said in ran.err
    assert "2 messages accepted" in ran.err
    assert "5 not accepted" in ran.err
    good, value = posted(run, bmq_queue_uri)
    assert good["data"] == "good"
    assert json.loads(value["data"]) == {"a": [1]}


def test_refused_and_empty_messages_are_listed(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    queue = bmq_new_queue_uri("bmq.test.small.priority")
    ran = run("post", queue, "a", "", *"bcdefghijklmno")
    assert (ran.status, ran.out) == (1, "")
    assert "payload 2: " in ran.err
    assert "payload 13: LIMIT_MESSAGES" in ran.err
    assert "11 messages accepted" in ran.err
    assert "5 not accepted" in ran.err
    assert [message["data"] for message in posted(run, queue)] == [*"abcdefghijk"]
    run("purge", queue, "--yes")


def test_tail_confirms_only_with_the_option(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, "a", "b")
    for options in ([], ["--confirm"]):
        ran = run("tail", bmq_queue_uri, *options)
        assert ran.status == 0
        assert [line.split()[-1] for line in ran.lines] == ["a", "b"]
    assert run("tail", bmq_queue_uri, "--idle", "0.2").lines == []


def test_tail_ends_after_the_count(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, *"abcde")
    ran = run("tail", bmq_queue_uri, "--count", "3", "--follow", "--confirm", "--fields", "data")
    assert (ran.status, ran.lines) == (0, ["a", "b", "c"])
    ran = run("tail", bmq_queue_uri, "--count", "3", "--fields", "data")
    assert (ran.status, ran.lines) == (1, ["d", "e"])


def test_tail_selects_by_expression_or_tag_and_prints_fields(run: Bmq, bmq_queue_uri: str) -> None:
    for number in "123":
        run("post", bmq_queue_uri, f"m{number}", "-p", f"n={number}")
    run("post", bmq_queue_uri, "tagged", "--tag", "express")
    ran = run("tail", bmq_queue_uri, "-e", "n >= 2", "--fields", "data,n,nothing,size")
    assert ran.lines == ["m2\t2\t\t2", "m3\t3\t\t2"]
    ran = run("tail", bmq_queue_uri, "-e", "n == 1", "--fields", "n,redelivered", "--json", "--count", "1")
    assert ran.json[0]["n"] == 1
    assert run("tail", bmq_queue_uri, "--tag", "express", "--fields", "data").lines == ["tagged"]


@sweep(
    "value, noted",
    [
        *((value, True) for value in ("1.5", "-2e3", str(2**63), "+7")),
        *((value, False) for value in ("7", "-7", "true", "x", "", "nan", "1.2.3")),
    ],
)
def test_a_number_posted_as_a_string_causes_a_warning(offline: Bmq, value: str, noted: bool) -> None:
    ran = offline("check", "exists(CustomerId)", "-p", f"CustomerId={value}")
    assert ran.status == 0
    assert (f"CustomerId is posted as the string {value!r}" in ran.err) is noted
    assert offline("check", "exists(x)", "-p", f"x:string={value}").err == ""


def test_tail_reports_a_full_window(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, *"abcde")
    ran = run("tail", bmq_queue_uri, "--max-unconfirmed", "2", "--fields", "data")
    assert ran.lines == ["a", "b"]
    assert "--max-unconfirmed" in ran.err


WITH_QUEUE: list[list[str]] = [
    ["post", "QUEUE", "x"],
    ["move", "bmq://bmq.test.mem.priority/q", "QUEUE"],
    ["tail", "QUEUE"],
    ["peek", "QUEUE"],
    ["purge", "QUEUE", "--yes"],
    ["explain", "QUEUE"],
    ["bench", "QUEUE", "--messages", "1", "--rounds", "1"],
]


def check_refusal(ran: Ran, status: int, said: str) -> None:
    assert (ran.status, ran.out) == (status, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


@sweep("verb", WITH_QUEUE)
def test_unknown_domain_is_an_error(run: Bmq, verb: list[str]) -> None:
    ran = run(*["bmq://no.such.domain/q" if word == "QUEUE" else word for word in verb])
    check_refusal(ran, 4, "no.such.domain")


@sweep("verb", [*WITH_QUEUE, ["queues"], ["stat"], ["admin", "HELP"], ["top", "--count", "1"]])
def test_missing_broker_is_an_error(
    offline: Bmq, verb: list[str], closed_port: int, bmq_queue_uri: str
) -> None:
    arguments = [bmq_queue_uri if word == "QUEUE" else word for word in verb]
    ran = offline(*arguments, "--broker", f"tcp://127.0.0.1:{closed_port}")
    check_refusal(ran, 3, f"127.0.0.1:{closed_port}")


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


def test_template_posts_a_message_for_each_row(run: Bmq, bmq_queue_uri: str, tmp_path: Path) -> None:
    rows, template = tmp_path / "rows.csv", tmp_path / "order.json"
    rows.write_text('\ufeffcustomer,note\n7,a\n8,"b ""c"""\n', encoding="utf-8")
    template.write_text('{"id": {{counter}}, "note": {{row.note|json}}}', encoding="utf-8")
    words = ["--template", f"@{template}", "--data", str(rows), "-p", "CustomerId={{row.customer}}"]
    assert run("post", bmq_queue_uri, *words, "-n", "2").status == 0
    ran = run("tail", bmq_queue_uri, "--json", "--idle", "0.2", "--confirm")
    assert [json.loads(each["data"]) for each in ran.json] == [
        {"id": number, "note": note} for number, note in enumerate(("a", 'b "c"') * 2, 1)
    ]
    assert [each["properties"]["CustomerId"] for each in ran.json] == [7, 8, 7, 8]


def test_since_prints_later_messages_only(
    run: Bmq, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for payload in ("old", "new"):
        run("post", bmq_queue_uri, payload)
    stored = run("peek", bmq_queue_uri, "--json").json
    first, second = (datetime.fromisoformat(each["arrival"]).timestamp() for each in stored)
    tail = ["tail", bmq_queue_uri, "--json", "--idle", "0.2", "--confirm", "--since"]
    with monkeypatch.context() as patch:
        # "One second" before this moment: after the first arrival and before the second.
        patch.setattr(_world, "time", lambda: (first + second) / 2 + 1)
        ran = run(*tail, "1s")
    assert [each["data"] for each in ran.json] == ["new"]
    assert "1 message returned" in ran.err
    assert [each["data"] for each in run(*tail, "1d").json] == ["old"]


@sweep("text, seconds", [("90s", 90), ("1h30m", 5400), ("2d", 172_800), ("2026-04-30", 86_400)])
def test_times(text: str, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    monkeypatch.setattr(_world, "time", now.timestamp)
    assert (now - tail._time(text)).total_seconds() == seconds  # pyright: ignore[reportPrivateUsage]


COUNT = 5000
DEAD = {"bmq_dead_queue": "bmq://bmq.test.mem.priority/origin", "bmq_dead_guid": "0" * 32}

#: Command lines, how many lines they print, and how many messages are left in QUEUE.
STREAMS: list[tuple[str, int, int]] = [
    ("tail QUEUE --confirm", COUNT, 0),
    ("tail QUEUE --confirm --json", COUNT, 0),
    ("tail QUEUE --confirm --json --follow --idle 2", COUNT, 0),
    ("tail QUEUE --confirm --output csv", COUNT + 1, 0),
    ("tail QUEUE --confirm --fields guid,size --count 4500", 4500, COUNT - 4500),
    ("tail QUEUE --max-unconfirmed 10000", COUNT, COUNT),
    ("tail QUEUE --max-unconfirmed 10000 --since 1h --count 4500", 4500, COUNT),
    ("peek QUEUE --count 10000 --json", COUNT, COUNT),
    ("dead QUEUE --json", COUNT, COUNT),
    ("dead QUEUE --all --back --to OTHER", COUNT, 0),
    ("move QUEUE OTHER --json", 1, 0),
    ("post OTHER --lines --file LINES --guids", COUNT, COUNT),
    ("post OTHER --ndjson --file LINES --guids --json", COUNT, COUNT),
    ("purge QUEUE --yes --json", 1, 0),
]


@pytest.mark.parametrize(("line", "printed", "left"), STREAMS, ids=[each[0] for each in STREAMS])
def test_five_thousand_messages(
    run: Bmq, aside: Aside, bmq_new_queue_uri: NewUri, tmp_path: Path, line: str, printed: int, left: int
) -> None:
    names = {"QUEUE": bmq_new_queue_uri(), "OTHER": bmq_new_queue_uri(), "LINES": str(tmp_path / "lines")}
    (tmp_path / "lines").write_text('{"data": "x"}\n' * COUNT)
    queue = aside.do(aside.session.open_queue(names["QUEUE"], write=True))
    aside.do(queue.post_many([bmq.PutMessage(b"x", dict(DEAD)) for _ in range(COUNT)]))
    ran = run(*(names.get(word, word) for word in line.split()))
    assert ran.status == 0, ran.err[-300:]
    assert len(ran.lines) == printed
    if "json" in line.split()[-1]:
        assert len(ran.json) == printed
    (stored,) = [each for each in run("queues", "--json").json if each["uri"] == names["QUEUE"]]
    assert stored["messages"] == left
    for name in ("QUEUE", "OTHER"):
        run("purge", names[name], "--yes")
