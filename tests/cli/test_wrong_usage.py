# SPDX-License-Identifier: Apache-2.0
"""Wrong usage of any verb: status 2 and the reason, and nothing on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Bmq, Ran
from tests.sweeps import sweep

DOMAIN = "bmq://bmq.test.mem.priority"
Q = f"{DOMAIN}/q"
WITH_QUEUE = ["bench Q", "dead Q", "explain Q", "peek Q", "post Q x", "purge Q --yes", "tail Q"]
NO_QUEUES = ["orders", "bmq://", "bmq://domain", "tcp://127.0.0.1:1/q", "bmq://a b/q", "bmq:///q"]
WRONG_PLACEHOLDERS = """
{{ {{x}} {{}} {{counter {{counter:x}} {{counter:1:2}} {{counter:²}} {{random}} {{random:2:1}}
{{random:1:99999999999999999999}} {{now:y}} {{uuid|upper}} {{row.a:1}}
"""
WRONG_TIMES = ["", "5", "10x", "m", "yesterday", "2026-13-01", "-5m", "1m1h"]

#: Command lines, and words of the reason.
USAGES: list[tuple[list[str], str]] = [
    (["explode"], "explode"),
    (["check", "x > 1", "--nope"], "--nope"),
    (["check", "x > 0", "--full", "2", "-p", "x=1"], "--full"),
    (["check", "x > 0", "-P", "1", "-P", "2"], "priorit"),
    (["decode"], "give hexadecimal digits"),
    (["decode", "0g"], "hexadecimal"),
    (["decode", "digits"], "--file digits"),
    (["decode", "--file", "bad.jsonl"], "line 1"),
    # the choice of the broker, and of the output
    (["queues", "--broker", "tcp://localhost", "--ca", "none.pem"], "certificates cannot be used"),
    (["queues", "--broker", "tcps://localhost", "--key", "k"], "certificate"),
    (["queues", "--timeout", "inf"], "--timeout must be a finite number, not inf"),
    (["domains", "diff", "a", "b", "--timeout", "inf"], "--timeout must be a finite number, not inf"),
    (["queues", "-o", "csv", "--json"], "exclude each other"),
    (["queues", "-o", "yaml"], "yaml"),
    (["admin", "HELP", "-o", "csv"], "--output json"),
    (["post", Q, "x", "-o", "json"], "--guids"),
    # post
    (["post", Q, "x", "--file", "y"], "not both"),
    (["post", Q, "--lines", "--ndjson"], "give one"),
    (["post", Q, "x", "--lines"], "each PAYLOAD is one message"),
    (["post", Q, "x", "-p", "novalue"], "NAME=VALUE"),
    (["post", Q, "x", "-p", "a:real=1"], "unknown type 'real'"),
    (["post", Q, "x", "-p", "a:short=one"], "a whole number"),
    (["post", Q, "x", "-p", "a:bool=yes"], "true or false"),
    (["post", Q, "--count", "2"], "only once"),
    *((["post", Q, "--template", text], "--template: ") for text in WRONG_PLACEHOLDERS.split()),
    (["post", Q, "--template", "x", "--data", "/nowhere"], "/nowhere"),
    (["post", Q, "--template", "@/nowhere"], "/nowhere"),
    (["post", Q, "--template", "{{row.a}}"], "--data"),
    (["post", Q, "--template", "x", "-p", "a={{x}}"], "{{x}}"),
    (["post", Q, "--template", "x", "-p", "a:int32={{uuid}}"], "a"),
    (["post", Q, "--template", "x", "payload"], "template"),
    (["post", Q, "--template", "x", "--lines"], "template"),
    (["post", Q, "x", "--data", "/nowhere"], "template"),
    # tail, dead, move
    (["tail", Q, "--fields", ","], "--fields needs names"),
    (["tail", Q, "--idle", "inf"], "--idle must be a finite number, not inf"),
    *((["tail", Q, "--since", text], "--since takes") for text in WRONG_TIMES),
    (["dead", Q, "--back"], "--all"),
    (["dead", Q, "--all"], "--back"),
    (["dead", Q, "A" * 32, "--all", "--back"], "GUID"),
    (["dead", Q, "--to", f"{DOMAIN}/other"], "--to"),
    (["move", Q, Q], "the same queue"),
    (["move", Q, f"{DOMAIN}/other?id=foo"], "without ?id="),
    (["move", Q, "nothing"], "bmq://"),
    (["move", "", Q], "bmq://"),
    (["move", Q, f"{DOMAIN}/other", "--where", "x =="], "x =="),
    (["move", Q, f"{DOMAIN}/other", "--limit", "0"], "limit"),
    *((["move", Q, f"{DOMAIN}/other", "--rate", rate], "--rate") for rate in ("0", "nan", "inf")),
    (["move", "tcp://127.0.0.1:1", Q], "is a broker, not a queue"),
    # exporter
    *((["exporter", "--listen", where], "--listen") for where in ("30190", ":30190", "localhost:70000")),
    (["exporter", "--interval", "0"], "--interval"),
    (["exporter", "--interval", "nan"], "--interval"),
    (["exporter", "--max-queues", "-1"], "--max-queues"),
    (["exporter", "--max-apps", "x"], "--max-apps"),
    (["exporter", "http://localhost"], "tcp://"),
    (["exporter", "tcp://localhost:1", "--broker", "tcp://localhost:2"], "--broker"),
    *(
        ([verb, "tcp://127.0.0.1:1", *(["--yes"] if verb == "purge" else [])], "is a broker, not a queue: ")
        for verb in ("bench", "dead", "explain", "peek", "post", "purge", "queues", "stat", "tail", "top")
    ),
]
#: Those that are found while the broker is asked.
ASKED: list[tuple[list[str], str]] = [
    (["post", Q, "--file", "/no/such/file"], "No such file"),
    (["post", Q, "price \udce9"], "is not UTF-8: give such data in a file (--file)"),
    (["tail", Q, "-e", "x = 1"], "Equality is written `==`"),
    (["move", Q, f"{DOMAIN}/other", "--to-broker", "nobody"], "nobody"),
    *(
        ([where if word == "Q" else word for word in verb.split()], "")
        for verb in WITH_QUEUE
        for where in ([*NO_QUEUES[1:], "two words"] if verb.startswith("purge") else NO_QUEUES)
    ),
]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BMQ_BROKER_URI", "tcp://127.0.0.1:1")
    Path("digits").write_text("00 00 00 08 4c 02\n00 00\n")
    Path("bad.jsonl").write_text('{"conn": 1}\n')


def check(ran: Ran, reason: str) -> None:
    assert (ran.status, ran.out) == (2, ""), ran
    assert reason in " ".join(ran.err.split())
    for alien in ("Traceback", "codec"):
        assert alien not in ran.err


@sweep("words, reason", USAGES)
def test_wrong_usage_is_refused_before_a_broker_is_asked(offline: Bmq, words: list[str], reason: str) -> None:
    check(offline(*words), reason)


@sweep("words, reason", ASKED)
def test_wrong_usage_is_refused(run: Bmq, words: list[str], reason: str) -> None:
    check(run(*words), reason)


@sweep(
    "name, content, reason",
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
def test_wrong_rows_are_refused(offline: Bmq, name: str, content: str, reason: str) -> None:
    Path(name).write_text(content, encoding="utf-8")
    check(offline("post", Q, "--template", "{{row.x}}", "--data", name), reason)
