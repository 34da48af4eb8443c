# SPDX-License-Identifier: Apache-2.0
"""bmq run --processes: apps in several processes, their signals, restarts, health and output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bmq
from bmq.testing import BackgroundBroker
from tests.cli.test_run import run, start
from tests.waiting import eventually

APP = """
import os
import bmq
from bmq.prometheus import SessionCollector

number = os.environ["BMQ_PROCESS"]
collector = SessionCollector()
app = bmq.App({uri!r}, health="127.0.0.1:0", metrics=collector.exposition, grace={grace})
collector.add(lambda: app.session)

@app.on_startup
def begin():
    print(f"[{{number}}] begun", number, os.getpid(), flush=True)

@app.on_shutdown
def end():
    print(f"[{{number}}] ended", number, flush=True)
    with open(os.path.join({folder!r}, "ended-" + number), "w"):
        pass

@app.consumer({queue!r}, max_unconfirmed_messages=1)
async def handle(message):
    {handle}
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with BackgroundBroker() as broker:
        yield broker.uri


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)[:40]
    return f"bmq://bmq.test.mem.priority/{name}"


def write(folder: Path, uri: str, queue: str, handle: str = "pass", grace: float = 30.0) -> None:
    text = APP.format(uri=uri, queue=queue, handle=handle, grace=grace, folder=str(folder))
    (folder / "shop.py").write_text(text)


@contextmanager
def running(folder: Path, *arguments: str, detached: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run the command; kill the supervisor if the block fails."""
    with start(folder, *arguments, detached=detached) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


def lines_until(process: subprocess.Popen[str], count: int, pattern: str) -> list[str]:
    """Return the lines of the output up to the given number of lines with a pattern."""
    assert process.stdout is not None
    found: list[str] = []
    while count:
        line = process.stdout.readline()
        assert line, found
        found.append(line.rstrip("\n"))
        count -= re.search(pattern, line) is not None
    return found


def error_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Return the first match in the lines on standard error."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found
    raise AssertionError(pattern)


def ask(uri: str, path: str, timeout: float = 60.0) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(uri + path, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ready(uri: str) -> list[int]:
    """Wait until all processes are ready; return their numbers in the operating system."""
    while (answer := ask(uri, "/readyz"))[0] != 200:
        pass
    return [each["pid"] for each in json.loads(answer[1])["processes"]]


async def post(uri: str, queue: str, count: int) -> None:
    async with bmq.connect(uri) as session:
        await (await session.open_queue(queue, write=True)).post_many([b"%d" % each for each in range(count)])


async def test_processes_share_a_queue_and_an_address(tmp_path: Path, broker: str, queue: str) -> None:
    write(tmp_path, broker, queue, "print(f'[{number}] handled', message.data.decode(), flush=True)")
    with running(tmp_path, "shop", "--processes", "2") as process:
        begun = lines_until(process, 2, "begun")
        assert sorted(line[:11] for line in begun) == ["[1] begun 1", "[2] begun 2"]
        uri = error_until(process, r"http://\S+")[0]
        assert sorted(ready(uri)) == sorted(int(line.split()[-1]) for line in begun)
        await post(broker, queue, 20)
        handled = lines_until(process, 20, "handled")
        assert {line[:11] for line in handled} == {"[1] handled", "[2] handled"}
        assert {line[12:] for line in handled} == {str(each) for each in range(20)}
        label = f'{{process="[12]",queue="{queue}"}}'

        confirmed = re.compile(rf"bmq_confirmed_messages_total{label} (\S+)")
        while sum(map(float, confirmed.findall(ask(uri, "/metrics")[1]))) != 20:
            pass
        assert ask(uri, "/livez") == (200, "alive\n")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert sorted(output.splitlines()) == ["[1] ended 1", "[2] ended 2"]
    assert process.returncode == 0, errors


async def test_killed_process_starts_again_under_its_number(tmp_path: Path, broker: str, queue: str) -> None:
    write(tmp_path, broker, queue, "print(f'[{number}] handled', flush=True)")
    with running(tmp_path, "shop", "-n", "2") as process:
        lines_until(process, 2, "begun")
        uri = error_until(process, r"http://\S+")[0]
        first, second = ready(uri)
        os.kill(second, signal.SIGKILL)
        (again,) = lines_until(process, 1, "begun")
        assert again.startswith("[2] begun 2 ")
        error_until(process, rf"process 2 \(pid {second}\) was ended by SIGKILL; restarting now")
        pids = ready(uri)
        assert pids[0] == first
        assert pids[1] == int(again.split()[-1])
        assert 'bmq_process_restarts_total{process="2"} 1\n' in ask(uri, "/metrics")[1]
        await post(broker, queue, 4)
        lines_until(process, 4, "handled")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


async def test_processes_end_when_the_supervisor_is_killed(tmp_path: Path, broker: str, queue: str) -> None:
    write(tmp_path, broker, queue)
    with running(tmp_path, "shop", "-n", "2") as process:
        lines_until(process, 2, "begun")
        process.kill()
        process.communicate(timeout=60)
        await eventually(lambda: all((tmp_path / f"ended-{each}").exists() for each in (1, 2)))


async def test_hanging_process_ends_too_when_the_supervisor_is_killed(
    tmp_path: Path, broker: str, queue: str
) -> None:
    hang = (
        f"import time; print('[' + number + '] hangs', flush=True); open({str(tmp_path / 'fifo')!r}).read()"
    )
    write(tmp_path, broker, queue, hang, grace=0.0)
    os.mkfifo(tmp_path / "fifo")
    text = (tmp_path / "shop.py").read_text()
    (tmp_path / "shop.py").write_text(
        "import bmq.cli.processes\nbmq.cli.processes.FORCED_AFTER = 0.1\n" + text
    )
    with running(tmp_path, "shop", "-n", "2") as process:
        lines_until(process, 2, "begun")
        await post(broker, queue, 2)
        pids = [int(line[1]) for line in lines_until(process, 2, "hangs")]
        assert sorted(pids) == [1, 2]
        process.kill()
        process.communicate(timeout=60)
        # Each process held a message, and the broker delivers both again.
        async with bmq.connect(broker) as session:
            again = await session.open_queue(queue, read=True)
            for _ in range(2):
                (await again.receive()).confirm()


def test_hang_up_restarts_one_process_after_another(tmp_path: Path, broker: str, queue: str) -> None:
    write(tmp_path, broker, queue)
    with running(tmp_path, "shop", "-n", "2", detached=True) as process:
        lines_until(process, 2, "begun")
        process.send_signal(signal.SIGHUP)
        lines = [line[:11] for line in lines_until(process, 2, "begun")]
        assert lines == ["[1] ended 1", "[1] begun 1", "[2] ended 2", "[2] begun 2"]
        error_until(process, "all processes have restarted")
        write(tmp_path, broker, queue, "syntax error")
        process.send_signal(signal.SIGHUP)
        error_until(process, "process 1 does not start again; the other processes stay")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert output.splitlines() == ["[1] ended 1", "[2] ended 2"]
    assert process.returncode == 0


@pytest.mark.parametrize("arguments", [["-n", "2"], ["--reload"]])
def test_address_in_use_ends_the_run_before_a_process_starts(
    tmp_path: Path, broker: str, queue: str, arguments: list[str]
) -> None:
    write(tmp_path, broker, queue)
    (tmp_path / "shop.py").write_text("raise AssertionError('imported')")
    address = broker.removeprefix("tcp://")
    status, output, errors = run(tmp_path, "shop", *arguments, "--health", address)
    assert (status, output) == (1, "")
    why = f"bmq run: the address for health, {address}, cannot be used: address already in use. Give another"
    assert errors.splitlines()[1].startswith(why)
    assert len(errors.splitlines()) == 2


def test_address_of_the_app_in_use_ends_the_run_with_all_processes(
    tmp_path: Path, broker: str, queue: str
) -> None:
    write(tmp_path, broker, queue)
    address = broker.removeprefix("tcp://")
    text = (tmp_path / "shop.py").read_text().replace("127.0.0.1:0", address)
    with_pids = "import os, sys\nprint('pid', os.getpid(), file=sys.stderr, flush=True)\n" + text
    (tmp_path / "shop.py").write_text(with_pids)
    status, _, errors = run(tmp_path, "shop", "-n", "2")
    assert status == 1
    assert f"ERROR bmq.run: the address for health, {address}, cannot be used: address already" in errors
    assert "Traceback" not in errors
    for pid in re.findall(r"\] pid (\d+)", errors):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


async def test_app_that_stops_itself_is_not_restarted(tmp_path: Path, broker: str, queue: str) -> None:
    write(tmp_path, broker, queue, "app.stop()")
    with running(tmp_path, "shop", "-n", "2") as process:
        lines_until(process, 2, "begun")
        await post(broker, queue, 2)
        output, errors = process.communicate(timeout=60)
    assert sorted(output.splitlines()) == ["[1] ended 1", "[2] ended 2"]
    assert process.returncode == 0
    assert errors.count("has finished") == 2


PARTS = """
import bmq
one = bmq.App({uri!r}, health="127.0.0.1:0")
two = bmq.App({uri!r}, health="localhost:0", metrics=lambda: "part_total 1\\n")
one.include(two)

@one.consumer({queue!r})
async def handle(message):
    pass
"""


def test_included_app_with_an_address_has_its_own_server(tmp_path: Path, broker: str, queue: str) -> None:
    (tmp_path / "shop.py").write_text(PARTS.format(uri=broker, queue=queue))
    with running(tmp_path, "shop:one", "-n", "2") as process:
        uris = {error_until(process, r"http://\S+")[0] for _ in range(2)}
        (one,) = [each for each in uris if "127.0.0.1" in each]
        (two,) = uris - {one}
        assert len(ready(one)) == 2
        assert len(ready(two)) == 2
        assert ask(two, "/metrics")[1].count("part_total{") == 2
        assert "part_total" not in ask(one, "/metrics")[1]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
