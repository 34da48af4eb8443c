# SPDX-License-Identifier: Apache-2.0
"""bmq run: an app from a module, signals, exit statuses, and a restart after a changed file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.testing import BackgroundBroker

APP = """
import bmq

app = bmq.App({uri!r})

@app.on_startup
def begin():
    print("begun", flush=True)

@app.on_shutdown
def end():
    print("ended", flush=True)

@app.consumer("bmq://bmq.test.mem.priority/orders")
async def handle(message):
    pass

def make():
    return app

def with_argument(name):
    return app
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with BackgroundBroker() as broker:
        yield broker.uri


def start(folder: Path, *arguments: str, detached: bool = False) -> subprocess.Popen[str]:
    """Start the command, without a controlling terminal if detached."""
    command = [sys.executable, "-W", "error", "-m", "bmq", "run", "--dir", str(folder), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Without a buffer, print writes a line in pieces, and the lines of several processes would mix.
    left_out = {"BMQ_BROKER_URI", "PYTHONUNBUFFERED"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    more: dict[str, Any] = {**pipes, "start_new_session": detached}
    return subprocess.Popen(command, text=True, env=environment, **more)


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    with start(folder, *arguments) as process:
        output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("target", ["shop", "shop:app", "shop:make"])
def test_app_runs_until_a_signal(tmp_path: Path, broker: str, number: signal.Signals, target: str) -> None:
    (tmp_path / "shop.py").write_text(APP.format(uri=broker))
    with start(tmp_path, target) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert process.stderr is not None
        first, ready = process.stderr.readline(), process.stderr.readline()
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "ended\n"), errors
    errors = first + ready + errors
    assert errors == f"bmq run: {target}, until Ctrl-C\nbmq run: {target} is ready and receives messages\n"


def test_the_broker_knows_the_app_by_its_name(tmp_path: Path, broker: str) -> None:
    (tmp_path / "shop.py").write_text(APP.format(uri=broker))

    async def clients() -> list[str]:
        async with bmq.admin.connect(broker) as admin:
            internals = await admin.queue("bmq://bmq.test.mem.priority/orders").internals()
            return [client.description for client in internals.clients]

    with start(tmp_path, "shop:app") as process:
        assert process.stderr is not None
        process.stderr.readline(), process.stderr.readline()
        (client,) = bmq.run(clients())
        process.terminate()
        process.communicate(timeout=60)
    assert client.startswith("shop:app")


def test_a_health_address_in_use_is_named_in_a_line(tmp_path: Path, broker: str) -> None:
    address = broker.removeprefix("tcp://")
    (tmp_path / "shop.py").write_text(APP.format(uri=broker))
    status, output, errors = run(tmp_path, "shop", "--health", address)
    assert (status, output) == (1, "")
    why = f"the address for health, {address}, cannot be used: address already in use"
    assert errors.splitlines()[1].startswith(f"bmq run: {why}")
    assert "--health" in errors
    assert len(errors.splitlines()) == 2


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("shoop", "cannot import shoop: No module named 'shoop'"),
        ("shop:ap", "shop has no bmq.App with the name 'ap'; known apps: shop:app"),
        ("shop:bmq", "shop has no bmq.App with the name 'bmq'"),
        ("", "the app is MODULE or MODULE:APP, for example shop.orders:app, not ''"),
        ("../x", "the app is MODULE or MODULE:APP"),
        ("shop:a b", "the app is MODULE or MODULE:APP"),
        ("os:system", "os has no bmq.App with the name 'system'"),
        ("sys:exit", "sys has no bmq.App with the name 'exit'"),
        ("shop:with_argument", "shop has no bmq.App with the name 'with_argument'; known apps: shop:app"),
    ],
)
def test_missing_app_is_an_error(tmp_path: Path, broker: str, target: str, why: str) -> None:
    (tmp_path / "shop.py").write_text(APP.format(uri=broker))
    status, output, errors = run(tmp_path, target)
    assert (status, output) == (2, "")
    assert errors.startswith(f"bmq run: {why}")
    assert len(errors.splitlines()) == 1


def test_exit_statuses_are_as_documented(tmp_path: Path, broker: str) -> None:
    (tmp_path / "away.py").write_text(APP.format(uri="tcp://127.0.0.1:1"))
    status, _, errors = run(tmp_path, "away")
    assert status == 3
    assert "could not connect to tcp://127.0.0.1:1" in errors
    (tmp_path / "refused.py").write_text(APP.format(uri=broker).replace("bmq.test.mem.priority", "no.domain"))
    assert run(tmp_path, "refused")[0] == 4
    (tmp_path / "broken.py").write_text(APP.format(uri=broker).replace('print("begun", flush=True)', "1 / 0"))
    status, output, errors = run(tmp_path, "broken")
    assert (status, output) == (1, "ended\n")
    assert "ZeroDivisionError" in errors
    assert run(tmp_path, "broken", "--log-level", "loud")[0] == 2


def test_reload_restarts_the_app_after_a_change(tmp_path: Path, broker: str) -> None:
    module = tmp_path / "shop.py"
    module.write_text(APP.format(uri=broker))
    with start(tmp_path, "shop", "--reload") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        module.write_text("no Python")
        assert process.stdout.readline() == "ended\n"
        assert process.stderr is not None
        for line in process.stderr:
            if "waiting for a change" in line:
                break
        module.write_text(APP.format(uri=broker).replace('"begun"', '"begun again"'))
        assert process.stdout.readline() == "begun again\n"
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

{configuration}
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
    ("configuration", "arguments", "expected"),
    [
        (
            "logging.basicConfig(level='INFO', format='MINE %(levelname)s %(message)s')",
            (),
            ["MINE INFO informed", "MINE WARNING warned"],
        ),
        ("logging.basicConfig(format='MINE %(message)s')", (), ["MINE warned"]),
        (
            "logging.basicConfig(format='MINE %(message)s')",
            ("--log-level", "info"),
            ["MINE informed", "MINE warned"],
        ),
    ],
)
def test_run_keeps_the_programs_logging_configuration(
    tmp_path: Path, broker: str, configuration: str, arguments: tuple[str, ...], expected: list[str]
) -> None:
    (tmp_path / "shop.py").write_text(LOGS.format(uri=broker, configuration=configuration))
    errors = run(tmp_path, "shop", *arguments)[2]
    assert [line for line in errors.splitlines() if line.endswith(("informed", "warned"))] == expected
