# SPDX-License-Identifier: Apache-2.0
"""The cases for clients: bmq passes all of them, and a client that errs fails those of its errors."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bmq._json import orjson
from conformance.client_cases import EVERY_GROUP
from conformance.client_suite import run_client_suite
from conformance.harness import Harness, serve
from conformance.program import Program, attached, started
from conformance.run import Outcome
from tests.ports import reserved_port

CASES = [case for group in EVERY_GROUP for case in group.cases]
HARNESS = [sys.executable, "-m", "conformance", "harness"]


async def in_process(uri: str) -> Program:
    """Start the harness in this process and this event loop."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs, limit=8 * 1024 * 1024)
    serving = asyncio.create_task(serve(uri, reader, writer.write))

    class InProcess(Program):
        async def end(self) -> None:
            await super().end()
            await serving
            writer.close()

    return InProcess(*await asyncio.open_connection(sock=ours, limit=8 * 1024 * 1024))


def chosen(*numbers: str) -> list[Any]:
    found = [case for case in CASES if case.number in numbers]
    assert len(found) == len(numbers)
    return found


async def failures(*numbers: str, command: list[str] | None = None, patience: float = 20.0) -> dict[str, str]:
    report = await run_client_suite(
        in_process if command is None else started(command), chosen(*numbers), patience=patience
    )
    return {each.case.number: each.received for each in report.results if each.outcome is Outcome.FAILED}


@pytest.fixture
def free_tcp_port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_bmq_passes_every_case() -> None:
    report = await run_client_suite(in_process, CASES, at_once=8, patience=60.0)
    different = {
        each.case.number: (each.expected, each.received)
        for each in report.results
        if each.outcome is not Outcome.PASSED
    }
    assert different == {}
    assert report.conforms
    assert len(report.results) == len(CASES)
    assert report.count(Outcome.PASSED) == len(CASES)


RECEIVE = Harness._receive


async def reports_too_early(
    harness: Harness, queue: str, data: str, properties: Any = None
) -> dict[str, Any]:
    return {"status": "SUCCESS"}


async def changes_payloads(harness: Harness, queue: str) -> dict[str, Any]:
    return {**await RECEIVE(harness, queue), "data": "AAAA"}


async def confirms_nothing(harness: Harness, guid: str) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("verb", "errs", "patience", "cases", "wrong"),
    [
        ("_post", reports_too_early, 0.1, ["23.1.1", "23.3.10", "23.3.2"], {"23.1.1", "23.3.10", "23.3.2"}),
        ("_receive", changes_payloads, 20.0, ["24.1.1", "24.1.7", "24.2.1"], {"24.1.1", "24.1.7"}),
        ("_confirm", confirms_nothing, 0.1, ["24.2.1"], {"24.2.1"}),
    ],
)
async def test_a_client_that_errs_fails(
    monkeypatch: pytest.MonkeyPatch, verb: str, errs: Any, patience: float, cases: list[str], wrong: set[str]
) -> None:
    monkeypatch.setattr(Harness, verb, errs)
    assert set(await failures(*cases, patience=patience)) == wrong


@pytest.mark.parametrize(("verb", "number"), [("receive", "24.1.1"), ("post", "23.1.3")])
async def test_what_a_client_cannot_do_is_not_tested(
    monkeypatch: pytest.MonkeyPatch, verb: str, number: str
) -> None:
    answer = Harness.answer

    async def limited(harness: Harness, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == verb:
            return {"id": asked["id"], "ok": False, "unsupported": True, "error": "no binary payloads"}
        return await answer(harness, asked)

    monkeypatch.setattr(Harness, "answer", limited)
    report = await run_client_suite(in_process, chosen(number, "21.1.1"))
    result, other = sorted(report.results, key=lambda each: each.case.number == "21.1.1")
    assert (result.outcome, other.outcome) == (Outcome.NOT_TESTED, Outcome.PASSED)
    assert result.reason == "the program cannot do this: no binary payloads"
    assert result.seconds < 20.0, "the case waits for nothing"
    assert report.conforms


async def test_the_harness_is_a_program() -> None:
    assert await failures("23.1.1", command=HARNESS) == {}


async def test_a_program_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "print('no answer', flush=True)\n"
        "print('{\"id\": 9}', flush=True)\n"
        "sys.stdin.readline()\n"
        "sys.exit('the driver is missing')\n"
    )
    wrong = await failures("21.1.1", command=[sys.executable, "-S", str(program)])
    assert wrong == {"21.1.1": "the end of the program (status 1): the driver is missing"}


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_client_that_somebody_else_starts_is_tested(free_tcp_port: int, leaves: bool) -> None:
    async def elsewhere(uri: str) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", free_tcp_port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0)
        harness = Harness(uri)
        async for line in reader:
            writer.write(orjson.dumps(await harness.answer(orjson.loads(line))) + b"\n")
            if leaves:
                break
        await harness.end()
        writer.close()

    running: list[asyncio.Task[None]] = []
    wait = attached(free_tcp_port)

    async def start(uri: str) -> Program:
        running.append(asyncio.create_task(elsewhere(uri)))
        return await wait(uri)

    report = await run_client_suite(start, chosen("23.1.1"))
    (result,) = report.results
    assert result.outcome is (Outcome.FAILED if leaves else Outcome.PASSED)
    if leaves:
        assert result.received == "the end of the program's connection"
        assert result.seconds < 5
    await asyncio.gather(*running)
