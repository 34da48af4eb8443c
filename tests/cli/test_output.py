# SPDX-License-Identifier: Apache-2.0
"""``--output``: the same fields as JSON and as CSV, and nothing else on stdout."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from bmq.cli import (
    bench,
    check,
    contexts,
    decode,
    doctor,
    domains,
    explain,
    move,
    post,
    queues,
    top,
)
from bmq.cli.messages import MESSAGE_FIELDS
from bmq.cli.output import BadInput
from bmq.cli.records import Form, Records, form_of
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Bmq
from tests.sweeps import sweep

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
QUEUE = "bmq://bmq.test.mem.fanout/orders"
#: Fields of the verbs, in a line of the documentation each.
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


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def broker() -> Any:
    with BackgroundBroker() as broker:
        yield broker


@pytest.mark.parametrize(
    ("words", "fields"),
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
        (["post", QUEUE, "more", "--guids"], post.FIELDS),
        (["bench", "--messages", "10", "--rounds", "2"], bench.FIELDS),
    ],
)
def test_csv_has_the_fields_and_the_values_of_json(
    offline: Bmq, broker: BackgroundBroker, words: list[str], fields: tuple[str, ...]
) -> None:
    if not offline("queues", "-j", "--broker", broker.uri).out:
        offline("post", QUEUE, 'a,b\n"c"', "-p", "n=1", "-p", "text=x\ty", "--broker", broker.uri)
    ran = offline(*words, "--output", "csv", "--broker", broker.uri)
    assert ran.status == 0, ran.err
    assert ran.lines[0].split(",") == list(fields)
    records = read(ran.out)
    assert records
    assert all(None not in each for each in records)
    objects = offline(*words, "-o", "json", "--broker", broker.uri).json
    assert {name for each in objects for name in each} <= {*fields, "apps"}
    if words[0] == "peek":
        assert [each["guid"] for each in records] == [each["guid"] for each in objects]


def test_odd_values_stay_in_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Records(Form.CSV, ["a", "b"])
    odd = ["", "x,y", 'say "no"', "two\nlines", "\x1b[31m", None, True, 1.5, {"k": ["v"]}, b"\x00"]
    for value in odd:
        writer.write({"a": value, "other": 1})
    rows = read(capsys.readouterr().out)
    assert [each["a"] for each in rows] == [
        "", "x,y", 'say "no"', "two\\nlines", "\\x1b[31m", "", "true", "1.5", '{"k":["v"]}', "00"
    ]  # fmt: skip
    assert {each["b"] for each in rows} == {""}


def test_contradicting_forms_are_refused(offline: Bmq) -> None:
    with pytest.raises(BadInput, match="exclude each other"):
        form_of(Form.CSV, json=True)
    assert offline("queues", "-o", "csv", "--json").status == 2
    assert offline("queues", "-o", "yaml").status == 2
    assert form_of(Form.TABLE, json=True) is Form.JSON


@sweep(
    "words, fields, status",
    [
        (["check", "x == 1 && y", "x = 1", "", "-p", "x=1"], check.FIELDS, 1),
        (["decode", "00000008410b0200"], decode.FIELDS, 1),
        (["decode", "00000008410b0200", "--brief"], decode.FIELDS, 1),
    ],
)
def test_nested_values_are_json_in_a_cell(
    offline: Bmq, words: list[str], fields: tuple[str, ...], status: int
) -> None:
    ran = offline(*words, "-o", "csv")
    assert ran.status == status
    assert ran.lines[0].split(",") == list(fields)
    objects = offline(*words, "-o", "json").json
    for record, known in zip(read(ran.out), objects, strict=True):
        assert set(known) <= set(fields)
        for name, value in known.items():
            if isinstance(value, list | dict):
                assert json.loads(record[name]) == value
    assert objects == offline(*words, "--json").json


def test_csv_without_columns_and_records_without_guids_are_refused(offline: Bmq) -> None:
    refused = offline("admin", "HELP", "-o", "csv")
    assert (refused.status, refused.out) == (2, "")
    assert "--output json" in refused.err
    refused = offline("post", QUEUE, "x", "-o", "json")
    assert refused.status == 2
    assert "--guids" in refused.err


@sweep(
    "words",
    [
        ("tail", QUEUE, "--idle", "inf"),
        ("move", QUEUE, "bmq://bmq.test.mem.priority/other", "--rate", "inf"),
        ("queues", "--timeout", "inf"),
        ("domains", "diff", "a", "b", "--timeout", "inf"),
    ],
)
def test_no_option_takes_infinity(offline: Bmq, words: tuple[str, ...]) -> None:
    ran = offline(*words)
    assert ran.status == 2
    assert f"{words[-2]} must be a finite number, not inf" in ran.err


def test_empty_names_of_fields_are_refused(offline: Bmq, broker: BackgroundBroker) -> None:
    ran = offline("tail", QUEUE, "--fields", ",", "--broker", broker.uri)
    assert (ran.status, ran.out) == (2, "")
    assert "--fields needs names" in ran.err
