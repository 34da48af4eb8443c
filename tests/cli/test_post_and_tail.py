# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Aside, Bmq
from tests.sweeps import sweep

FANOUT = "bmq.test.mem.fanout"


def posted(run: Bmq, queue: str) -> list[dict[str, object]]:
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


def test_a_file_is_posted_as_one_message(run: Bmq, bmq_queue_uri: str, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\0\xff\n\n")
    assert run("post", bmq_queue_uri, "--file", str(tmp_path / "image"), "--count", "2").status == 0
    assert [message["base64"] for message in posted(run, bmq_queue_uri)] == ["AP8KCg==", "AP8KCg=="]


def test_a_last_line_without_a_line_feed_is_posted(run: Bmq, bmq_queue_uri: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\r\ntwo\nthree")
    assert run("post", bmq_queue_uri, "--file", str(tmp_path / "lines"), "--lines").status == 0
    assert [message["data"] for message in posted(run, bmq_queue_uri)] == ["one", "two", "three"]


def test_output_of_tail_can_be_posted(
    run: Bmq, bmq_queue_uri: str, bmq_new_queue_uri: object, tmp_path: Path
) -> None:
    run("post", bmq_queue_uri, "x", "-p", "c:char=41", "-p", "n:int32=7", "-p", "s=text", "--tag", "express")
    printed = run("tail", bmq_queue_uri, "--json", "--confirm").out
    (tmp_path / "messages").write_text(printed)
    assert run("post", bmq_queue_uri, "--ndjson", "--file", str(tmp_path / "messages")).status == 0
    (before,), (after,) = [json.loads(printed)], posted(run, bmq_queue_uri)
    assert after.pop("guid") != before.pop("guid")
    assert after == before
    assert before["types"]["n"] == "int32"


def test_text_that_is_not_utf8_makes_the_round_trip(
    run: Bmq, aside: Aside, bmq_queue_uri: str, tmp_path: Path
) -> None:
    """Other clients post such texts, and a line of JSON has them as lone surrogates."""
    queue = aside.do(aside.session.open_queue(bmq_queue_uri, read=True, write=True))
    properties = {"city": "M\udcfcnchen", "raw": b"\xff", "n": 7}
    aside.do(queue.post(b"\xff\xfe", properties=properties))
    (tmp_path / "saved").write_text(run("tail", bmq_queue_uri, "--json", "--confirm").out)
    assert run("post", bmq_queue_uri, "--ndjson", "--file", str(tmp_path / "saved")).status == 0
    message = aside.do(queue.receive(20))
    assert (message.data, dict(message.properties)) == (b"\xff\xfe", properties)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r'{"data": "\udcff"}', "data is not UTF-8"),
        (r'{"json": {"a": "\udcff"}}', "json is not UTF-8"),
        (r'{"data": "\ud83d\ude00"}', ""),
    ],
)
def test_a_payload_that_is_not_utf8_needs_base64(
    run: Bmq, bmq_queue_uri: str, tmp_path: Path, line: str, words: str
) -> None:
    (tmp_path / "lines").write_text(line + "\n")
    ran = run("post", bmq_queue_uri, "--ndjson", "--file", str(tmp_path / "lines"))
    assert ran.status == (1 if words else 0)
    assert words in ran.err
    assert not words or "use base64" in ran.err


def test_a_payload_argument_that_is_not_utf8_is_named(run: Bmq, bmq_queue_uri: str) -> None:
    ran = run("post", bmq_queue_uri, "price \udce9")
    assert ran.status == 2
    assert "is not UTF-8: give such data in a file (--file)" in ran.err
    assert "codec" not in ran.err


def test_invalid_lines_are_listed_and_valid_lines_posted(
    run: Bmq, bmq_queue_uri: str, tmp_path: Path
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
    (tmp_path / "messages").write_text("\n".join(lines))
    ran = run("post", bmq_queue_uri, "--ndjson", "--file", str(tmp_path / "messages"))
    assert ran.status == 1
    for line in (2, 3, 4, 5, 7):
        assert f"line {line}: " in ran.err
    assert "ends in the middle of this line" in ran.err
    assert "2 messages accepted" in ran.err
    assert "5 not accepted" in ran.err
    good, value = posted(run, bmq_queue_uri)
    assert good["data"] == "good"
    assert json.loads(str(value["data"])) == {"a": [1]}


def test_refused_messages_are_listed(run: Bmq, bmq_new_queue_uri: object) -> None:
    queue = bmq_new_queue_uri("bmq.test.small.priority")  # type: ignore[operator]
    ran = run("post", queue, *"abcdefghijklmno")
    assert ran.status == 1
    assert "payload 12: LIMIT_MESSAGES" in ran.err
    assert "11 messages accepted" in ran.err
    assert "4 not accepted" in ran.err
    assert ran.out == ""
    run("purge", queue, "--yes")


def test_empty_payloads_are_listed(run: Bmq, bmq_queue_uri: str) -> None:
    ran = run("post", bmq_queue_uri, "a", "", "b")
    assert ran.status == 1
    assert "payload 2: " in ran.err
    assert [message["data"] for message in posted(run, bmq_queue_uri)] == ["a", "b"]


def test_post_compresses_on_request(run: Bmq, bmq_queue_uri: str, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 100_000)
    assert run("post", bmq_queue_uri, "--file", str(tmp_path / "long"), "--compress").status == 0
    (listed,) = run("peek", bmq_queue_uri, "--json").json
    assert listed["size"] < 2000
    assert posted(run, bmq_queue_uri)[0]["data"] == "x" * 100_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--file", "y"], "not both"),
        (["--lines", "--ndjson"], "give one"),
        (["x", "--lines"], "each PAYLOAD is one message"),
        (["x", "-p", "novalue"], "NAME=VALUE"),
        (["x", "-p", "a:real=1"], "unknown type 'real'"),
        (["x", "-p", "a:short=one"], "a whole number"),
        (["x", "-p", "a:bool=yes"], "true or false"),
        (["--count", "2"], "only once"),
        (["--file", "/no/such/file"], "No such file"),
    ],
)
def test_wrong_arguments_are_refused(run: Bmq, bmq_queue_uri: str, arguments: list[str], words: str) -> None:
    ran = run("post", bmq_queue_uri, *arguments)
    assert ran.status == 2
    assert words in ran.err
    assert "Traceback" not in ran.err


def test_tail_confirms_only_with_the_option(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, "a", "b")
    for _ in range(2):
        ran = run("tail", bmq_queue_uri)
        assert ran.status == 0
        assert [line.split()[-1] for line in ran.lines] == ["a", "b"]
    run("tail", bmq_queue_uri, "--confirm")
    assert run("tail", bmq_queue_uri, "--idle", "0.2").lines == []


def test_tail_ends_after_the_count(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, *"abcde")
    ran = run("tail", bmq_queue_uri, "--count", "3", "--follow", "--confirm", "--fields", "data")
    assert (ran.status, ran.lines) == (0, ["a", "b", "c"])
    ran = run("tail", bmq_queue_uri, "--count", "3", "--fields", "data")
    assert (ran.status, ran.lines) == (1, ["d", "e"])


def test_tail_selects_by_expression_and_prints_fields(run: Bmq, bmq_queue_uri: str) -> None:
    for number in "123":
        run("post", bmq_queue_uri, f"m{number}", "-p", f"n={number}")
    ran = run("tail", bmq_queue_uri, "-e", "n >= 2", "--fields", "data,n,nothing,size")
    assert ran.lines == ["m2\t2\t\t2", "m3\t3\t\t2"]
    ran = run("tail", bmq_queue_uri, "-e", "n == 1", "--fields", "n,redelivered", "--json", "--count", "1")
    assert ran.json[0]["n"] == 1


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


def test_tail_selects_by_tags(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, "plain")
    run("post", bmq_queue_uri, "tagged", "--tag", "express")
    assert run("tail", bmq_queue_uri, "--tag", "express", "--fields", "data").lines == ["tagged"]


def test_tail_reports_a_full_window(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, *"abcde")
    ran = run("tail", bmq_queue_uri, "--max-unconfirmed", "2", "--fields", "data")
    assert ran.lines == ["a", "b"]
    assert "--max-unconfirmed" in ran.err


def test_invalid_expression_is_refused(run: Bmq, bmq_queue_uri: str) -> None:
    ran = run("tail", bmq_queue_uri, "-e", "x = 1")
    assert ran.status == 2
    assert "Equality is written `==`" in ran.err


WITH_QUEUE: list[list[str]] = [
    ["post", "QUEUE", "x"],
    ["tail", "QUEUE"],
    ["peek", "QUEUE"],
    ["purge", "QUEUE", "--yes"],
    ["explain", "QUEUE"],
    ["bench", "QUEUE", "--messages", "1", "--rounds", "1"],
]


@pytest.mark.parametrize("verb", WITH_QUEUE, ids=lambda verb: verb[0])
def test_unknown_domain_is_an_error(run: Bmq, verb: list[str]) -> None:
    ran = run(*["bmq://no.such.domain/q" if word == "QUEUE" else word for word in verb])
    assert ran.status == 4
    assert "no.such.domain" in ran.err
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "verb",
    [*WITH_QUEUE, ["queues"], ["stat"], ["admin", "HELP"], ["top", "--count", "1"]],
    ids=lambda verb: verb[0],
)
def test_missing_broker_is_an_error(
    offline: Bmq, verb: list[str], closed_port: int, bmq_queue_uri: str
) -> None:
    arguments = [bmq_queue_uri if word == "QUEUE" else word for word in verb]
    ran = offline(*arguments, "--broker", f"tcp://127.0.0.1:{closed_port}")
    assert ran.status == 3
    assert f"127.0.0.1:{closed_port}" in ran.err
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("verb", WITH_QUEUE, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    "uri", ["orders", "bmq://", "bmq://domain", "tcp://127.0.0.1:1/q", "bmq://a b/q", "bmq:///q"]
)
def test_invalid_queue_uri_is_refused(run: Bmq, verb: list[str], uri: str) -> None:
    if verb[0] == "purge" and "://" not in uri:
        uri = "two words"  # what is no URI is a domain there
    ran = run(*[uri if word == "QUEUE" else word for word in verb])
    assert ran.status == 2
    assert ran.out == ""
    assert "Traceback" not in ran.err
