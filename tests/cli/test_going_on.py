# SPDX-License-Identifier: Apache-2.0
"""doctor, bench; and the interruption of commands."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import bmq
from bmq.broker import Action, ActionKind, DomainConfig, Limits, Mode
from bmq.cli import main
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Aside, Bmq, Terminal
from tests.integration.steps import HasUri, NewUri
from tests.sweeps import sweep

FANOUT = "bmq.test.mem.fanout"
PRIORITY = "bmq://bmq.test.mem.priority"


# ---- doctor


def test_doctor_tests_every_step(run: Bmq, bmq_queue_uri: str) -> None:
    ran = run("doctor", bmq_queue_uri, "--post", "--json")
    assert ran.status == 0
    steps = [
        "resolve",
        "connect",
        "negotiate",
        "ask",
        "open",
        "quota",
        "subscribe",
        "post",
        "receive",
        "close",
    ]
    assert [step["step"] for step in ran.json] == steps
    assert all(step["ok"] and step["seconds"] >= 0 for step in ran.json)
    assert run("tail", bmq_queue_uri, "--idle", "0.2").lines == [], "its message is gone"
    assert [line.split()[:2] for line in run("doctor").lines] == [["ok", step] for step in steps[:3]]


def test_doctor_on_one_application(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    queue = bmq_new_queue_uri(FANOUT)
    for arguments in ([f"{queue}?id=foo"], [f"{queue}?id=foo", "--post"], [queue, "--post"]):
        assert run("doctor", *arguments).status == 0
    (found,) = [each for each in run("queues", "--json").json if each["uri"] == queue]
    assert found["messages"] == 0, "no application keeps the message"
    ran = run("doctor", f"{queue}?id=typo", "--post")
    assert ran.status == 2
    assert ran.lines[3].startswith("FAIL  ask")
    assert "its applications: foo, bar, baz" in ran.lines[3]


def test_doctor_tells_a_missing_answer_from_a_refusal(offline: Bmq) -> None:
    released = threading.Event()

    def hang(action: Action) -> bool:
        return action.kind is not ActionKind.QUEUE_READ or released.wait()

    with BackgroundBroker(authorize=hang) as broker:
        ran = offline("doctor", f"{PRIORITY}/q", "--broker", broker.uri, "--timeout", "0.2")
        released.set()
    assert ran.status == 3
    assert ran.lines[4].startswith("FAIL  open")
    assert "the queue has no primary" in ran.lines[5]


def test_doctor_finds_a_full_queue(offline: Bmq) -> None:
    with BackgroundBroker(
        domains=[DomainConfig("full", Mode.PRIORITY, queue_limits=Limits(messages=3))]
    ) as broker:
        at = ("--broker", broker.uri)
        for _ in range(4):  # a broker checks before it adds a message
            assert offline("post", "bmq://full/q", "x", *at).status == 0
        ran = offline("doctor", "bmq://full/q", *at)
    assert ran.status == 1
    assert ran.lines[-2].startswith("FAIL  quota")
    assert "the broker refuses every post" in ran.lines[-2]
    assert "raise the quota" in ran.lines[-1]


def test_doctor_reports_the_failed_step_and_the_remedy(run: Bmq, offline: Bmq, closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # accepts, and says nothing
        silent = listening.getsockname()[1]
        for where, status, line, step, remedy in (
            ("tcp://no-such-host.invalid", 3, 0, "resolve", ""),
            (f"tcp://127.0.0.1:{closed_port}", 3, 1, "connect", "check that the broker runs"),
            (f"tcp://127.0.0.1:{silent}", 3, 2, "negotiate", "the broker hangs"),
        ):
            ran = offline("doctor", "--timeout", "0.5", "--broker", where)
            assert ran.status == status, ran
            assert ran.lines[line].startswith(f"FAIL  {step}")
            assert remedy in ran.out
    ran = run("doctor", "bmq://no.such.domain/q")
    assert ran.status == 4
    assert ran.lines[4].startswith("FAIL  open")
    assert "no.such.domain" in ran.lines[4]


def test_doctor_distinguishes_blocked_delivery_from_a_missing_answer(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, "one")
    run("tail", bmq_queue_uri, "--idle", "0.2")
    ran = run("doctor", bmq_queue_uri, "--post", "--timeout", "1")
    assert ran.status == 1, "neither done nor unreachable"
    assert "FAIL  receive" in ran.out
    assert "returned" in ran.out
    assert [line.split("  ")[-1] for line in run("tail", bmq_queue_uri, "--idle", "0.2").lines] == ["one"]


# ---- bench


def test_bench_measures_producing_and_consuming(run: Bmq, bmq_queue_uri: str) -> None:
    options = "--messages 500 --size 100 --properties 2 --rounds 20"
    arguments = ["bench", bmq_queue_uri, *options.split()]
    ran = run(*arguments, "--json")
    assert ran.status == 0
    (result,) = ran.json
    assert result["produce"]["messages"] == result["consume"]["messages"] == 500
    assert result["produce"]["messages_per_second"] > 0
    for name in ("ack_seconds", "push_seconds"):
        found = [result[name][each] for each in ("p50", "p90", "p99", "p99.9", "max")]
        assert found[0] > 0
        assert found == sorted(found)
    ran = run(*arguments)
    assert "messages/s" in ran.out
    assert "post to delivery" in ran.out
    assert (run("peek", bmq_queue_uri).status, run("peek", bmq_queue_uri).out) == (0, "")


def test_bench_by_a_schedule_counts_from_the_time_at_which_each_message_was_due(run: Bmq) -> None:
    ran = run("bench", "--phase", "roundtrip", "--rounds", "40", "--rate", "400", "--json")
    assert ran.status == 0, ran.err
    (result,) = ran.json
    for name in ("ack_seconds", "push_seconds"):
        assert 0 < result[name]["p50"] <= result[name]["max"]
    # A rate that no machine reaches: the last messages are late by nearly the whole time that posting takes.
    ran = run("bench", "--phase", "roundtrip", "--rounds", "4000", "--rate", "100000000", "--json")
    assert ran.json[0]["push_seconds"]["max"] > 4000 / 100_000_000


@sweep("rate", ["0", "100"])
def test_bench_of_a_refused_queue_ends_with_one_line(run: Bmq, rate: str) -> None:
    ran = run("bench", "bmq://bmq.no.such.domain/q", "--phase", "roundtrip", "--rate", rate)
    assert (ran.status, len(ran.err.splitlines())) == (4, 1)


# ---- processes


@asynccontextmanager
async def process(
    *arguments: str, module: str = "bmq", **options: object
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command as a process."""
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE} | options
    command = [sys.executable, "-m", module, *arguments]
    started = await asyncio.create_subprocess_exec(*command, **pipes)  # type: ignore[arg-type]
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def ended(started: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, err = await asyncio.wait_for(started.communicate(), 60)
    return started.returncode, out.decode(), err.decode()


async def line_of(started: asyncio.subprocess.Process, error: bool = False) -> bytes:
    """Wait for a line on standard output, or on standard error."""
    stream = started.stderr if error else started.stdout
    assert stream is not None
    return await asyncio.wait_for(stream.readline(), 60)


@pytest.mark.parametrize(
    ("words", "number", "status"),
    [
        ("tail QUEUE --follow --json", signal.SIGINT, 130),
        ("tail QUEUE --follow --json", signal.SIGTERM, 143),
        ("top --interval 0.1", signal.SIGTERM, 143),
        ("exporter --listen 127.0.0.1:0", signal.SIGTERM, 0),
        ("console --port 0", signal.SIGTERM, 0),
        ("mover QUEUE.delayed --longest 1e9", signal.SIGTERM, 0),
    ],
)
async def test_a_signal_closes_the_session_cleanly(
    uri: str, bmq_queue_uri: str, words: str, number: signal.Signals, status: int
) -> None:
    async with bmq.connect(uri) as session:
        await (await session.open_queue(bmq_queue_uri, write=True)).post(b"one")
        line = words.replace("QUEUE", bmq_queue_uri).split()
        async with process(*line, "--broker", uri) as started:
            shown = await line_of(started, error=words.startswith("mover"))
            if words.startswith("exporter"):
                page = await asyncio.to_thread(lambda: urllib.request.urlopen(shown.decode()).read())
                assert b'bmq_broker_up{broker="' in page
            assert b'"one"' in shown or not words.startswith("tail")
            started.send_signal(number)
            returned, _, err = await ended(started)
            assert (returned, "Traceback" in err) == (status, False)
            assert err == "" or not words.startswith("tail")
    async with bmq.admin.connect(uri) as admin:
        internals = await admin.queue(bmq_queue_uri).internals()
        assert (internals.depth.messages, sum(client.readers for client in internals.clients)) == (1, 0)


@sweep("columns", [20, 40, 100])
def test_output_fits_the_width_of_the_terminal(
    aside: Aside, uri: str, bmq_queue_uri: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is wider than the terminal; names and GUIDs are complete, on several lines if needed.

    Numbers are complete, or their column is left out and the table says so.
    """
    for name, value in {"COLUMNS": str(columns), "LINES": "40", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    queue = aside.do(aside.session.open_queue(bmq_queue_uri, write=True))
    guid = aside.do(queue.post(b"m")).guid
    aside.do(queue.post_many([b"m"] * 19_999))
    for arguments, shown in (
        (["peek", bmq_queue_uri], guid),
        (["queues"], bmq_queue_uri),
        (["top", bmq_queue_uri, "--count", "1"], bmq_queue_uri),
    ):
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            assert main([*arguments, "--broker", uri]) == 0
        lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()).splitlines()
        assert max(len(line) for line in lines if " of 20,000 " not in line) <= columns
        told = "left out" in re.sub(r"\s+", " ", " ".join(lines))
        assert told or columns > 30, lines
        assert not told or columns < 100, lines
        numbers = re.findall(r"(?m)(?<=\s)20(?:,\S*)?(?=\s)", "\n".join(lines))
        assert set(numbers) <= {"20,000", "20"}, lines
        assert "20,000" in numbers or told
        assert shown in _joined(lines)
    assert main(["purge", bmq_queue_uri, "--yes", "--broker", uri]) == 0
    aside.do(queue.close())


def _joined(lines: list[str]) -> str:
    """The cells of a table, each with the lines it goes over."""
    columns: dict[int, str] = {}
    for line in lines:
        for cell in re.finditer(r"\S+", line):
            columns[cell.start()] = columns.get(cell.start(), "") + cell[0]
    return " ".join(columns.values())


async def test_post_reads_standard_input_as_it_arrives(uri: str, bmq_queue_uri: str) -> None:
    """Lines are posted on arrival, not at the end of the input; Ctrl-C ends the command without input."""
    async with bmq.connect(uri) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True)
        pipe = asyncio.subprocess.PIPE
        async with process("post", bmq_queue_uri, "--lines", "--broker", uri, stdin=pipe) as started:
            assert started.stdin is not None
            for line in (b"one", b"two"):
                started.stdin.write(line + b"\n")
                async with await queue.receive(60) as message:
                    assert message.data == line
            started.send_signal(signal.SIGINT)
            await asyncio.wait_for(started.wait(), 60)
            assert started.returncode == 130


async def test_credentials_come_from_files_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    file = ["--user", "operator", "--password-file", str(tmp_path / "password")]
    async with bmq.broker.Broker(auth={"operator": "open sesame"}) as broker:
        for arguments, variables, status in [
            (file, {}, 0),
            ([], {"BMQ_USER": "operator", "BMQ_PASSWORD": "open sesame"}, 0),
            (["--user", "operator"], {"BMQ_PASSWORD": "wrong"}, 4),
            (["--user", "operator"], {}, 2),
            ([], {}, 3),  # such a broker hangs up on who does not say who he is
        ]:
            line = ["queues", "--broker", broker.uri, *arguments]
            nothing = asyncio.subprocess.DEVNULL
            async with process(*line, env=os.environ | variables, stdin=nothing) as started:
                returned, _, err = await ended(started)
                assert returned == status, err
                assert "sesame" not in err


# ---- mover


async def test_mover_passes_delayed_messages_on(bmq_broker: HasUri, bmq_queue_uri: str) -> None:
    waiting = bmq_queue_uri + ".delayed"
    async with bmq.connect(bmq_broker.uri) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
        async with process("mover", waiting, "--broker", bmq_broker.uri, "--longest", "1e9") as mover:
            await queue.post(b"later", delay=0.5)
            assert (await queue.receive(60)).data == b"later"
            mover.send_signal(signal.SIGTERM)
            status, out, err = await ended(mover)
    assert (status, out) == (0, "")
    assert "messageTtl" in err
    assert err.endswith("1 message passed on\n")


async def test_mover_waits_for_a_broker_that_is_away(unused_tcp_port: int, bmq_queue_uri: str) -> None:
    address = f"tcp://127.0.0.1:{unused_tcp_port}"
    async with process("mover", f"{bmq_queue_uri}.delayed", "--broker", address, "--wait") as mover:
        async with bmq.broker.Broker(port=unused_tcp_port), bmq.connect(address) as session:
            queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
            await queue.post(b"later", delay=0)
            assert (await queue.receive(timeout=20)).data == b"later"
        mover.send_signal(signal.SIGTERM)
        await ended(mover)
