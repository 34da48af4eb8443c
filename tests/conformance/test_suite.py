# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: the catalogue, the results of the embedded broker, and the forms of results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import bmq
from bmq.broker import Authentication
from bmq.errors import UsageError
from bmq.testing import BackgroundBroker
from conformance import (
    Bench,
    Case,
    Domains,
    Level,
    Outcome,
    Report,
    all_cases,
    choose,
    client_cases,
    connection,
    run_suite,
)
from conformance.bench import Address
from conformance.case import fail
from conformance.command import main
from conformance.pages import catalogue_page
from conformance.report import record

ROOT = Path(__file__).parent.parent.parent

#: Cases of the level ``observed`` in which the embedded broker differs from a real one, explained in
#: conformance/brokers.md.
DIFFERENT = {"2.2.10", "3.1.23", "3.3.28", "3.4.13", "12.4.13"}


@pytest.fixture(scope="module")
def aside() -> Iterator[BackgroundBroker]:
    """A broker in a thread, for the command."""
    with BackgroundBroker() as broker:
        yield broker


@pytest.fixture
async def embedded() -> AsyncIterator[bmq.broker.Broker]:
    async with bmq.broker.Broker() as broker:
        yield broker


async def judged(uri: str, cases: tuple[Case, ...], **how: object) -> Report:
    return await run_suite(Address.parse(uri), cases, **how)  # type: ignore[arg-type]


# ---- the catalogue


def test_the_page_of_the_cases_is_current() -> None:
    page = (ROOT / "conformance" / "reports" / "cases.md").read_text(encoding="utf-8")
    assert page == catalogue_page((*all_cases(), *client_cases())), "run make conform"


def test_cases_are_chosen_by_number_and_level() -> None:
    assert choose() == all_cases()
    assert {case.section for case in choose(["2.3"])} == {"2.3"}
    assert [case.number for case in choose(["2.3.1"])] == ["2.3.1"]
    assert {(case.key[0], case.level) for case in choose(["1", "must"])} == {(1, Level.MUST)}
    assert len(choose(["must"])) + len(choose(["should", "observed"])) == len(all_cases())
    for text in ("0", "2.", "2.3.", "MUST", "", "1.1.99", "-1"):
        with pytest.raises(UsageError, match="a group, a section, a case or a level was expected"):
            choose([text])


# ---- the embedded broker


async def test_the_embedded_broker_conforms(
    embedded: bmq.broker.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine is slow.
    monkeypatch.setattr(connection, "ANSWER", 60.0)
    assert {case.level for case in all_cases() if case.number in DIFFERENT} == {Level.OBSERVED}
    # Without cases that need much memory, or wait until a message expires.
    cases = tuple(
        case
        for case in all_cases()
        if not case.heavy and case.seconds <= 20 and case.number not in DIFFERENT and case.key[0] != 10
    )
    report = await judged(embedded.uri, cases, at_once=32)
    failed = [each for each in report.results if each.outcome is Outcome.FAILED]
    assert [(each.case.number, each.expected, each.received) for each in failed] == []
    assert report.count(Outcome.NOT_TESTED) == 0
    assert report.conforms


async def test_the_embedded_broker_checks_credentials_and_heartbeats() -> None:
    users = Authentication(users={"alice": "secret"}, anonymous=True, lifetime_ms=3000)
    async with bmq.broker.Broker(auth=users, heartbeat_interval_ms=500, max_missed_heartbeats=2) as broker:
        report = await judged(broker.uri, choose(["10"]), user=b"alice:secret", slow=True)
    assert [each.case.number for each in report.results if each.outcome is not Outcome.PASSED] == []
    assert "secret" not in json.dumps([record(each) for each in report.results])


async def test_credentials_are_not_in_a_report(embedded: bmq.broker.Broker) -> None:
    report = await judged(embedded.uri, choose(["10.1.1"]), user=b"alice:secret")
    assert report.count(Outcome.FAILED) == 1
    assert b"secret".hex() not in json.dumps([record(each) for each in report.results])
    assert "alice" not in json.dumps([record(each) for each in report.results])


async def test_a_case_without_its_domain_is_not_tested(embedded: bmq.broker.Broker) -> None:
    report = await judged(embedded.uri, choose(["3.2"]), domains=Domains({"fanout": "no.such"}))
    found = {each.case.number: each for each in report.results}
    assert found["3.2.2"].outcome is Outcome.NOT_TESTED
    assert "no domain no.such" in found["3.2.2"].reason
    assert found["3.2.1"].outcome is Outcome.PASSED
    assert not report.conforms  # a mode was not tested at all
    report = await judged(embedded.uri, choose(["4.6"]), domains=Domains({"small": "no.such"}))
    assert report.conforms
    assert f" of {len(report.results)} cases were tested" in report.verdict


async def test_a_broker_that_dies_is_reported() -> None:
    async with bmq.broker.Broker() as broker:
        uri = broker.uri

        async def kill(bench: Bench) -> None:
            await bench.client()
            await broker.stop()
            raise fail("a broker", "none")

        first = choose(["2.3.1"])[0]
        cases = (replace(first, number="2.3.0", check=kill), first)
        report = await judged(uri, cases, at_once=1)
    assert "stopped accepting sessions during 2.3.0" in report.died
    assert not report.conforms
    assert [each.outcome for each in report.results] == [Outcome.FAILED, Outcome.NOT_TESTED]
    assert report.results[1].reason == report.died


async def test_no_case_passes_with_a_broker_that_says_nothing() -> None:
    """The peer accepts connections, and closes each connection at the first bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AssertionError, match="the end of the connection"):
            await judged(f"tcp://127.0.0.1:{port}", choose(["1.1"]))
    with pytest.raises(OSError, match=r"."):
        await judged(f"tcp://127.0.0.1:{port}", choose(["1.1"]))


async def test_a_case_that_cannot_read_the_data_or_takes_too_long_has_failed(
    embedded: bmq.broker.Broker,
) -> None:
    async def odd(bench: Bench) -> None:
        raise KeyError("x")

    async def slow(bench: Bench) -> None:
        await asyncio.Event().wait()

    first = choose(["2.3.1"])[0]
    cases = replace(first, check=odd), replace(first, number="2.3.2", check=slow, seconds=0.05)
    report = await judged(embedded.uri, cases)
    assert [each.received for each in report.results] == [
        "data that the case cannot read: KeyError('x')",
        "no result within 0.05 s",
    ]


# ---- the command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "use tcp://HOST:PORT"),
        (["tcp://localhost:1", "--only", "99"], "a group, a section, a case or a level was expected"),
        (["tcp://localhost:1", "--only", "1.1.1", "--only", "observed"], "no case belongs to all of"),
        (["tcp://localhost:1", "--domain", "priority"], "--domain needs KIND=NAME"),
        (["tcp://localhost:1", "--domain", "big=x"], "--domain needs KIND=NAME"),
        (["tcp://localhost:1", "--user", "a:b"], "without a colon"),
        (["tcp://localhost:1", "--user", "nobody"], "set BMQ_PASSWORD"),
    ],
)
def test_the_command_explains_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["broker", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_command_judges_a_broker(aside: BackgroundBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", aside.uri, "--only", "2.3"]) == 0
    out = capsys.readouterr().out
    cases = len(choose(["2.3"]))
    assert f"the broker conforms; {cases} of {cases} cases were tested" in out


def test_a_difference_is_explained_and_counts_only_when_strict(
    aside: BackgroundBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", aside.uri, "--only", "3.4.13"]) == 0
    out = capsys.readouterr().out
    assert "3.4.13 observed differs" in out
    assert "statement: 15.6 (docs/protocol/protocol.md#s-15-6)" in out
    assert "1> CONTROL" in out
    assert main(["broker", aside.uri, "--only", "3.4.13", "--strict", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["outcome"] == "failed"


def test_no_broker_is_a_status_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "tcp://localhost:1"]) == 3
    assert "start the broker, or correct the address" in capsys.readouterr().err
