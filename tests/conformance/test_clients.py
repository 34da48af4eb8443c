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
from bmq.wire.ack import decode_acks
from bmq.wire.control import ClientIdentity, ClientType, Codec
from bmq.wire.control_event import encode_event
from bmq.wire.put import DecodedPut
from conformance.client_cases import EVERY_GROUP
from conformance.client_suite import run_client_suite
from conformance.harness import Harness, serve
from conformance.program import Program, attached, started
from conformance.run import Outcome
from conformance.stage import Stage
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


async def test_a_client_that_reports_too_early_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def post(harness: Harness, queue: str, data: str, properties: Any = None) -> dict[str, Any]:
        return {"status": "SUCCESS"}

    monkeypatch.setattr(Harness, "_post", post)
    wrong = await failures("23.1.1", "23.3.10", "23.3.2", patience=0.1)
    assert set(wrong) == {"23.1.1", "23.3.10", "23.3.2"}


async def test_a_client_that_changes_payloads_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Harness.answer

    async def changed(harness: Harness, command: dict[str, Any]) -> dict[str, Any]:
        answered = await answer(harness, command)
        return {**answered, "data": "AAAA"} if "data" in answered else answered

    monkeypatch.setattr(Harness, "answer", changed)
    wrong = await failures("24.1.1", "24.1.7", "24.2.1")
    assert set(wrong) == {"24.1.1", "24.1.7"}
    assert "payload" in wrong["24.1.1"]


async def test_a_client_that_confirms_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def confirm(harness: Harness, guid: str) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(Harness, "_confirm", confirm)
    assert set(await failures("24.2.1", patience=0.1)) == {"24.2.1"}


async def test_what_a_client_cannot_do_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Harness.answer

    async def limited(harness: Harness, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "receive":
            return {"id": command["id"], "ok": False, "unsupported": True}
        return await answer(harness, command)

    monkeypatch.setattr(Harness, "answer", limited)
    report = await run_client_suite(in_process, chosen("24.1.1", "23.1.1"))
    outcomes = {each.case.number: each.outcome for each in report.results}
    assert outcomes == {"24.1.1": Outcome.NOT_TESTED, "23.1.1": Outcome.PASSED}
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


async def test_a_cancelled_run_leaves_no_process() -> None:
    running = asyncio.create_task(run_client_suite(started(HARNESS), chosen("25.1.1")))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_client_that_somebody_else_starts_is_tested(free_tcp_port: int) -> None:
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
        await harness.end()
        writer.close()

    running: list[asyncio.Task[None]] = []
    wait = attached(free_tcp_port)

    async def start(uri: str) -> Program:
        running.append(asyncio.create_task(elsewhere(uri)))
        return await wait(uri)

    report = await run_client_suite(start, chosen("23.1.1", "24.1.1"), at_once=1)
    assert report.count(Outcome.PASSED) == 2
    await asyncio.gather(*running)


async def test_a_client_that_leaves_is_reported_at_once(free_tcp_port: int) -> None:
    async def leave() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", free_tcp_port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0)
        await reader.readline()
        writer.write(b'{"id": 1, "ok": true}\n')
        await reader.readline()
        writer.close()

    running: list[asyncio.Task[None]] = []
    wait = attached(free_tcp_port)

    async def start(uri: str) -> Program:
        running.append(asyncio.create_task(leave()))
        return await wait(uri)

    report = await run_client_suite(start, chosen("23.1.1"))
    (result,) = report.results
    assert result.received == "the end of the program's connection"
    assert result.seconds < 5
    await asyncio.gather(*running)


async def test_a_post_that_the_client_cannot_do_ends_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Harness.answer

    async def limited(harness: Harness, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "post":
            return {"id": command["id"], "ok": False, "unsupported": True, "error": "no binary payloads"}
        return await answer(harness, command)

    monkeypatch.setattr(Harness, "answer", limited)
    (result,) = (await run_client_suite(in_process, chosen("23.1.3"), patience=20.0)).results
    assert result.outcome is Outcome.NOT_TESTED
    assert result.reason == "the program cannot do this: no binary payloads"
    assert result.seconds < 20.0, "the case waits for nothing"


async def test_a_client_without_guids_gets_its_correlation_ids_back() -> None:
    stage = Stage()
    await stage.listen()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stage.uri.rpartition(":")[2]))
    line = await stage.connection()
    identity = ClientIdentity(protocol_version=1, client_type=ClientType.E_TCPCLIENT)
    writer.write(encode_event(identity, Codec.JSON))
    await line.introduction()
    assert line.legacy
    field = b"\0" + (7).to_bytes(3, "big") + bytes(12)
    line.acknowledge([DecodedPut(0, field, 1, 0, 0, 0, b"hello")], 1)
    event = await reader.readexactly(36)
    (ack,) = decode_acks(event, 8)
    assert (ack.status, ack.correlation_id, any(ack.guid)) == (1, 7, True)
    writer.close()
    await stage.end()
