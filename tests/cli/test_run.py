# SPDX-License-Identifier: Apache-2.0
"""bmq run and bmq docs: apps in one or several processes, signals, restarts, health and output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
import yaml

import bmq
from bmq.testing import BackgroundBroker
from tests.sweeps import sweep
from tests.waiting import eventually

APP = '''
"""Orders of a shop."""

import bmq

__version__ = "2.3"
app = bmq.App({uri!r})

@app.on_startup
def begin():
    print("begun", flush=True)

@app.on_shutdown
def end():
    print("ended", flush=True)

@app.consumer("bmq://bmq.test.mem.priority/orders")
async def handle(message):
    """Ship an order, caf\\u00e9 \\x1b[2J."""

def make():
    return app

def with_argument(name):
    return app
'''


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with BackgroundBroker() as broker:
        yield broker.uri


def start(folder: Path, *arguments: str, detached: bool = False, verb: str = "run") -> subprocess.Popen[str]:
    """Start the command, without a controlling terminal if detached."""
    # Without a buffer, print writes a line in pieces, and the lines of several processes would mix.
    left_out = {"BMQ_BROKER_URI", "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "bmq", verb, "--dir", str(folder), *arguments],
        text=True,
        encoding="utf-8",
        env={name: value for name, value in os.environ.items() if name not in left_out},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=detached,
    )


def run(folder: Path, *arguments: str, verb: str = "run") -> tuple[int, str, str]:
    with start(folder, *arguments, verb=verb) as process:
        output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


@pytest.fixture
def shop(tmp_path: Path, broker: str) -> Path:
    """A folder with the module shop.py."""
    (tmp_path / "shop.py").write_text(APP.format(uri=broker))
    return tmp_path


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


@pytest.mark.parametrize(
    ("target", "number"),
    [("shop", signal.SIGTERM), ("shop:app", signal.SIGINT), ("shop:make", signal.SIGTERM)],
)
def test_app_runs_under_its_name_until_a_signal(
    shop: Path, broker: str, target: str, number: signal.Signals
) -> None:
    async def clients() -> list[str]:
        async with bmq.admin.connect(broker) as admin:
            internals = await admin.queue("bmq://bmq.test.mem.priority/orders").internals()
            return [client.description for client in internals.clients]

    with start(shop, target) as process:
        assert line_of(process.stdout) == "begun\n"
        assert line_of(process.stderr) == f"bmq run: {target}, until Ctrl-C\n"
        assert line_of(process.stderr) == f"bmq run: {target} is ready and receives messages\n"
        (client,) = bmq.run(clients())
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "ended\n", "")
    assert client.startswith(target)


@pytest.mark.parametrize("arguments", [[], ["-n", "2"], ["--reload"]])
def test_a_health_address_in_use_is_named_in_a_line(shop: Path, broker: str, arguments: list[str]) -> None:
    if arguments:
        (shop / "shop.py").write_text("raise AssertionError('imported')")
    address = broker.removeprefix("tcp://")
    status, output, errors = run(shop, "shop", *arguments, "--health", address)
    assert (status, output) == (1, "")
    why = f"bmq run: the address for health, {address}, cannot be used: address already in use. Give another"
    assert errors.splitlines()[1].startswith(why)
    assert "--health" in errors
    assert len(errors.splitlines()) == 2


MISSING = {
    "shoop": "cannot import shoop: No module named 'shoop'",
    "shop:ap": "shop has no bmq.App with the name 'ap'; known apps: shop:app",
    "shop:bmq": "shop has no bmq.App with the name 'bmq'",
    "": "the app is MODULE or MODULE:APP, for example shop.orders:app, not ''",
    "../x": "the app is MODULE or MODULE:APP",
    "shop:a b": "the app is MODULE or MODULE:APP",
    "os:system": "os has no bmq.App with the name 'system'",
    "shop:with_argument": "shop has no bmq.App with the name 'with_argument'; known apps: shop:app",
}


@sweep("target", MISSING)
def test_missing_app_is_an_error(shop: Path, target: str) -> None:
    for verb in ("run", "docs") if target in ("shoop", "shop:ap") else ("run",):
        status, output, errors = run(shop, target, verb=verb)
        assert (status, output) == (2, "")
        assert errors.startswith(f"bmq {verb}: {MISSING[target]}")
        assert len(errors.splitlines()) == 1


@sweep(
    "old, new, status, output, said",
    [
        ("{uri!r}", "'tcp://127.0.0.1:1'", 3, None, "could not connect to tcp://127.0.0.1:1"),
        ("bmq.test.mem.priority", "no.domain", 4, None, "no.domain"),
        ('print("begun", flush=True)', "1 / 0", 1, "ended\n", "ZeroDivisionError"),
    ],
)
def test_exit_statuses_are_as_documented(
    shop: Path, broker: str, old: str, new: str, status: int, output: str | None, said: str
) -> None:
    (shop / "shop.py").write_text(APP.replace(old, new).format(uri=broker))
    found = run(shop, "shop")
    assert (found[0], found[1]) == (status, found[1] if output is None else output)
    assert said in found[2]


def test_an_unknown_level_of_the_log_is_refused(shop: Path) -> None:
    assert run(shop, "shop", "--log-level", "loud")[0] == 2


def test_reload_restarts_the_app_after_a_change(shop: Path, broker: str) -> None:
    module = shop / "shop.py"
    with start(shop, "shop", "--reload") as process:
        assert line_of(process.stdout) == "begun\n"
        module.write_text("no Python")
        assert line_of(process.stdout) == "ended\n"
        while "waiting for a change" not in line_of(process.stderr):
            pass
        module.write_text(APP.format(uri=broker).replace('"begun"', '"begun again"'))
        assert line_of(process.stdout) == "begun again\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert output == "ended\n"
    assert process.returncode == 0, errors


def test_module_that_cannot_be_imported_is_shown_without_the_frames_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import other")
    (tmp_path / "other.py").write_text("1 / 0")
    status, _, errors = run(tmp_path, "shop")
    assert status == 1
    assert "ERROR bmq: shop cannot be imported" in errors
    assert re.findall(r'File ".*/(\w+\.py)"', errors) == ["shop.py", "other.py"]
    assert "ZeroDivisionError" in errors


LOGS = """
import logging
import bmq

logging.basicConfig(format='MINE %(message)s')
app = bmq.App({uri!r})

@app.on_startup
def begin():
    logging.getLogger("shop").info("informed")
    logging.getLogger("shop").warning("warned")
    raise RuntimeError

@app.consumer("bmq://bmq.test.mem.priority/orders")
async def handle(message):
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], ["MINE warned"]), (["--log-level", "info"], ["MINE informed", "MINE warned"])],
)
def test_run_keeps_the_programs_logging_configuration(
    tmp_path: Path, broker: str, arguments: list[str], expected: list[str]
) -> None:
    (tmp_path / "shop.py").write_text(LOGS.format(uri=broker))
    errors = run(tmp_path, "shop", *arguments)[2]
    assert [line for line in errors.splitlines() if line.endswith(("informed", "warned"))] == expected


def test_the_document_of_an_app_is_json_or_yaml(shop: Path) -> None:
    status, printed, errors = run(shop, "shop", verb="docs")
    assert (status, errors) == (0, "")
    assert "\x1b" not in printed
    document = json.loads(printed)
    assert document["asyncapi"] == "3.0.0"
    assert document["info"] == {"title": "shop", "version": "2.3", "description": "Orders of a shop."}
    assert [*document["operations"]] == ["handle"]
    assert yaml.safe_load(run(shop, "shop:app", "--yaml", verb="docs")[1]) == document
    named = json.loads(run(shop, "shop", "--title", "Shop", "--release", "3", verb="docs")[1])["info"]
    assert (named["title"], named["version"]) == ("Shop", "3")


COUNTED = """
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


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)[:40]
    return f"bmq://bmq.test.mem.priority/{name}"


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, broker: str, queue: str) -> Write:
    """Write the module shop.py; return its folder."""

    def write(
        handle: str = "pass", grace: float = 30.0, begin: str = "", health: str = "127.0.0.1:0"
    ) -> Path:
        text = begin + COUNTED.format(
            uri=broker, queue=queue, handle=handle, grace=grace, folder=str(tmp_path)
        )
        (tmp_path / "shop.py").write_text(text.replace("127.0.0.1:0", health))
        return tmp_path

    return write


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


async def test_processes_share_a_queue_and_an_address(write: Write, broker: str, queue: str) -> None:
    folder = write("print(f'[{number}] handled', message.data.decode(), flush=True)")
    with running(folder, "shop", "--processes", "2") as process:
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


async def test_killed_process_starts_again_under_its_number(write: Write, broker: str, queue: str) -> None:
    with running(write("print(f'[{number}] handled', flush=True)"), "shop", "-n", "2") as process:
        lines_until(process, 2, "begun")
        uri = error_until(process, r"http://\S+")[0]
        first, second = ready(uri)
        os.kill(second, signal.SIGKILL)
        (again,) = lines_until(process, 1, "begun")
        assert again.startswith("[2] begun 2 ")
        error_until(process, rf"process 2 \(pid {second}\) was ended by SIGKILL; restarting now")
        assert ready(uri) == [first, int(again.split()[-1])]
        assert 'bmq_process_restarts_total{process="2"} 1\n' in ask(uri, "/metrics")[1]
        await post(broker, queue, 4)
        lines_until(process, 4, "handled")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


async def test_processes_end_when_the_supervisor_is_killed(write: Write) -> None:
    folder = write()
    with running(folder, "shop", "-n", "2") as process:
        lines_until(process, 2, "begun")
        process.kill()
        process.communicate(timeout=60)
        await eventually(lambda: all((folder / f"ended-{each}").exists() for each in (1, 2)))


async def test_hanging_process_ends_too_when_the_supervisor_is_killed(
    write: Write, tmp_path: Path, broker: str, queue: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    hang = f"print('[' + number + '] hangs', flush=True); open({str(tmp_path / 'fifo')!r}).read()"
    impatient = "import bmq.cli.processes\nbmq.cli.processes.FORCED_AFTER = 0.1\n"
    with running(write(hang, grace=0.0, begin=impatient), "shop", "-n", "2") as process:
        lines_until(process, 2, "begun")
        await post(broker, queue, 2)
        assert sorted(line[1] for line in lines_until(process, 2, "hangs")) == ["1", "2"]
        process.kill()
        process.communicate(timeout=60)
        # Each process held a message, and the broker delivers both again.
        async with bmq.connect(broker) as session:
            again = await session.open_queue(queue, read=True)
            for _ in range(2):
                (await again.receive()).confirm()


def test_hang_up_restarts_one_process_after_another(write: Write) -> None:
    with running(write(), "shop", "-n", "2", detached=True) as process:
        lines_until(process, 2, "begun")
        process.send_signal(signal.SIGHUP)
        lines = [line[:11] for line in lines_until(process, 2, "begun")]
        assert lines == ["[1] ended 1", "[1] begun 1", "[2] ended 2", "[2] begun 2"]
        error_until(process, "all processes have restarted")
        write("syntax error")
        process.send_signal(signal.SIGHUP)
        error_until(process, "process 1 does not start again; the other processes stay")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert output.splitlines() == ["[1] ended 1", "[2] ended 2"]
    assert process.returncode == 0


def test_address_of_the_app_in_use_ends_the_run_with_all_processes(write: Write, broker: str) -> None:
    address = broker.removeprefix("tcp://")
    with_pids = "import os, sys\nprint('pid', os.getpid(), file=sys.stderr, flush=True)\n"
    status, _, errors = run(write(begin=with_pids, health=address), "shop", "-n", "2")
    assert status == 1
    assert f"ERROR bmq.run: the address for health, {address}, cannot be used: address already" in errors
    assert "Traceback" not in errors
    for pid in re.findall(r"\] pid (\d+)", errors):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


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
