# SPDX-License-Identifier: Apache-2.0
"""The supervisor of several processes, with small programs in place of apps: failing, silent, hostile."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bmq.cli.processes import Pauses, Supervisor
from tests.sweeps import sweep
from tests.waiting import eventually
from tests.workers.test_probe import ask

# A process without bmq, so that a start takes milliseconds.
PROGRAM = """
import json, os, signal, socket, sys
channel = socket.socket(fileno=int(os.environ["_BMQ_SUPERVISOR"]))
number = os.environ["BMQ_PROCESS"]
server = socket.create_server(("127.0.0.1", 0))
def hello(**more):
    uri = "http://127.0.0.1:%d" % server.getsockname()[1]
    line = {{"addresses": [["127.0.0.1", 0]], "uri": uri, "grace": 0, **more}}
    channel.sendall(json.dumps(line).encode() + b"\\n")
def started():
    channel.sendall(b"started\\n")
READY = b'{{"ready": true, "degraded": false, "since": "2026-01-01T00:00:00.000+00:00", "troubles": []}}'
ANSWERS = {{"/0/livez": b"alive\\n", "/0/readyz": READY, "/0/metrics": b"handled_total 5\\n"}}
def serve():
    while True:
        peer, _ = server.accept()
        path = peer.recv(4096).split()[1].decode()
        head = "HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(ANSWERS[path])
        peer.sendall(head.encode() + ANSWERS[path])
        peer.close()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
{code}
"""
SERVE = "hello(); started(); serve()"
QUICK = Pauses(first=0.01, longest=0.04, forced=60.0)
Log = Callable[[], str]


def supervisor(code: str, processes: int = 2, **options: Any) -> Supervisor:
    program = PROGRAM.format(code=code)
    health = ("127.0.0.1", 0)
    return Supervisor(["-S", "-c", program], processes, **{"health": health, "pauses": QUICK, **options})


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    """The lines of the supervisor so far."""
    caplog.set_level("INFO", "bmq.run")
    return lambda: "\n".join(
        re.sub(r" \(pid \d+\)", "", each.getMessage()) for each in caplog.records if each.name == "bmq.run"
    )


def failing(folder: Path, times: int) -> str:
    """A program that fails so often, in each process, before it ends in order."""
    return f"""
print("a line from", number, flush=True)
hello(); started()
with open({str(folder / "starts")!r} + number, "ab") as starts:
    starts.write(b".")
    count = starts.tell()
sys.exit(0 if count > {times} else 9)
"""


@asynccontextmanager
async def running(log: Log, code: str, processes: int = 2, **options: Any) -> AsyncIterator[str]:
    """Run a supervisor until the end of the block; the value is the address of its server."""
    task = asyncio.create_task(supervisor(code, processes, **options).run())
    try:
        found = await eventually(lambda: re.search(r"http://\S+", log()) or task.done())
        yield found[0]
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task == 0
    finally:
        task.cancel()
        await asyncio.wait([task])


async def get(uri: str, path: str) -> tuple[int, str]:
    status, _, body = await ask(uri, f"GET {path} HTTP/1.1\r\nHost: me\r\n\r\n")
    return status, body


async def until(uri: str, path: str, wanted: Callable[[int, str], bool]) -> tuple[int, str]:
    """Return the first answer that is wanted."""
    async with asyncio.timeout(30):
        while not wanted(*(answer := await get(uri, path))):
            pass
    return answer


async def until_ready(uri: str) -> None:
    await until(uri, "/readyz", lambda status, _: status == 200)


async def test_worst_process_decides_and_is_named(log: Log) -> None:
    code = """
if number == "2":
    trouble = {"what": "the connection was lost", "since": "2026-02-01T00:00:00.000+00:00"}
    worse = {"ready": False, "degraded": False, "since": trouble["since"], "troubles": [trouble]}
    ANSWERS["/0/readyz"] = json.dumps(worse).encode()
hello(); started(); serve()
"""

    def running_both(status: int, body: str) -> bool:
        late = "the process does not answer" in body
        return [each["state"] for each in json.loads(body)["processes"]] == ["running"] * 2 and not late

    async with running(log, code) as uri:
        status, body = await until(uri, "/readyz", running_both)
    found = json.loads(body)
    assert (status, found["ready"]) == (503, False)
    assert found["troubles"] == [
        {"process": 2, "what": "the connection was lost", "since": "2026-02-01T00:00:00.000+00:00"}
    ]
    assert found["since"] == "2026-02-01T00:00:00.000+00:00"


async def test_silent_process_is_named_and_delays_no_other_answer(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.cli.processes.LONGEST_ANSWER", 0.3)
    code = """
hello(); started()
if number == "1":
    signal.pause()
serve()
"""
    both = ('state="running"} 2', 'handled_total{process="2"} 5\n')
    async with running(log, code) as uri:
        await until(uri, "/metrics", lambda _, text: all(each in text for each in both))
        assert await get(uri, "/livez") == (503, "process 1 does not answer\n")
        status, body = await get(uri, "/readyz")
    found = json.loads(body)
    assert (status, found["troubles"][0]["process"]) == (503, 1)
    assert found["troubles"][0]["what"] == "the process does not answer"
    assert [each["ready"] for each in found["processes"]] == [False, True]


@sweep(
    "pauses, restarts",
    [
        (QUICK, ["now", "in 0.01 s", "in 0.02 s", "in 0.04 s", "in 0.04 s"]),
        (Pauses(first=100, stable=0), ["now"] * 5),  # each process was stable
    ],
)
async def test_restarts_pause_longer_after_each_failure_of_an_unstable_process(
    log: Log, tmp_path: Path, pauses: Pauses, restarts: list[str]
) -> None:
    (tmp_path / "starts1").unlink(missing_ok=True)
    assert await supervisor(failing(tmp_path, 5), 1, pauses=pauses).run() == 0
    reasons = re.findall(r"process 1 ended with status 9; restarting (.*)", log())
    assert reasons[-5:] == restarts
    assert log().endswith("process 1 has finished")


async def test_processes_that_cannot_start_end_the_run(log: Log) -> None:
    assert await supervisor("sys.exit(4)", 3, pauses=Pauses(first=100)).run() == 4
    # The others may end after the decision, by themselves or by the signal, and are not started again.
    before, _, after = log().partition("; no process could start, giving up")
    assert re.search(r"process \d ended with status 4$", before)
    ended = r"in the shutdown: (ended with status 4|was ended by SIGTERM)$"
    assert all(re.search(ended, line) for line in after.splitlines()[1:])


async def test_one_process_that_cannot_start_does_not_end_the_others(log: Log) -> None:
    code = "sys.exit(4) if number == '1' else None; hello(); started(); serve()"
    async with running(log, code) as uri:
        restarts = 'bmq_process_restarts_total{process="1"} 3'
        await until(uri, "/metrics", lambda _, text: restarts in text)
        found = json.loads((await get(uri, "/readyz"))[1])
        assert [each["ready"] for each in found["processes"]] == [False, True]
        assert (await get(uri, "/livez"))[0] == 200


async def test_restarts_leave_no_descriptor_thread_or_task(log: Log, tmp_path: Path) -> None:
    def used() -> tuple[int, int, int]:
        return len(os.listdir("/dev/fd")), threading.active_count(), len(asyncio.all_tasks())

    before = used()
    assert await supervisor(failing(tmp_path, 9), 2, pauses=Pauses(first=0)).run() == 0
    assert log().count("restarting") == 18
    await eventually(lambda: used() == before)


async def test_metrics_of_processes_have_a_label_and_their_lines_stand_together(log: Log) -> None:
    code = """
lines = ["# HELP size_bytes Sizes", "# TYPE size_bytes histogram", 'size_bytes_bucket{le="+Inf"} ' + number]
lines += ["size_bytes_count " + number, "# a comment", "%% no line", 'other{queue="a b"} 7', ""]
lines = ["bare 1", "plain 2", *lines]
ANSWERS["/0/metrics"] = "\\n".join(lines).encode()
hello(); started(); serve()
"""
    async with running(log, code) as uri:
        await until_ready(uri)
        metrics = (await get(uri, "/metrics"))[1]
    assert metrics.partition('restarts_total{process="2"} 0\n')[2].splitlines() == [
        'bare{process="1"} 1',
        'bare{process="2"} 1',
        'plain{process="1"} 2',
        'plain{process="2"} 2',
        "# HELP size_bytes Sizes",
        "# TYPE size_bytes histogram",
        'size_bytes_bucket{process="1",le="+Inf"} 1',
        'size_bytes_count{process="1"} 1',
        'size_bytes_bucket{process="2",le="+Inf"} 2',
        'size_bytes_count{process="2"} 2',
        'other{process="1",queue="a b"} 7',
        'other{process="2",queue="a b"} 7',
    ]


async def test_process_that_ignores_the_signal_is_killed(log: Log) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); hello(); started(); serve(); signal.pause()"
    run = asyncio.create_task(supervisor(code, 1, pauses=replace(QUICK, forced=0.1)).run())
    await eventually(lambda: "http://" in log())
    uri = re.findall(r"http://\S+", log())[0]
    await until_ready(uri)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await run == 1
    assert log().splitlines()[-2:] == [
        "process 1 has not ended within 0.1 s, and is killed",
        "process 1, in the shutdown: was ended by SIGKILL",
    ]


async def test_each_signal_is_passed_on_once_and_the_third_kills(
    log: Log, capfd: pytest.CaptureFixture[str]
) -> None:
    code = """
def note(number, _):
    print(signal.Signals(number).name, flush=True)
for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, note)
hello(grace=1000); started(); serve(); signal.pause()
"""
    run = asyncio.create_task(supervisor(code, 1).run())
    await eventually(lambda: "http://" in log())
    await until_ready(re.findall(r"http://\S+", log())[0])
    printed = ""

    def has(text: str) -> bool:
        nonlocal printed
        printed += capfd.readouterr().out
        return text in printed

    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: has("SIGTERM\n"))
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: has("SIGINT\n"))  # equal signals could be received as one
    assert printed == "SIGTERM\nSIGINT\n"
    os.kill(os.getpid(), signal.SIGINT)
    assert await run == 130


async def test_only_the_first_address_of_a_probe_is_served(log: Log) -> None:
    code = 'hello(addresses=[["127.0.0.1", int(number)]]); started(); serve()'
    async with running(log, code, health=("127.0.0.1", 0)) as uri:
        await until_ready(uri)
    assert log().count("http://") == 1
    for number in (1, 2):
        assert (
            f"process {number} names 127.0.0.1:{number} for health, and another process 127.0.0.1:0: "
            "the first counts"
        ) in log()
