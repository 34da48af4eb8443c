# SPDX-License-Identifier: Apache-2.0
"""``bmq broker`` as a process."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bmq.broker.main import run
from bmq.errors import StatusCategory
from bmq.wire.control import OpenQueueResponse
from tests.broker.core import PRIORITY
from tests.broker.wire import client, connect

PROGRAM = "import sys; from bmq.broker.main import run; sys.exit(run(sys.argv[1:]))"
#: Where uvloop is not installed.
PLAIN = "import sys; sys.modules['uvloop'] = None; " + PROGRAM


@asynccontextmanager
async def process(
    *arguments: str, program: str = PROGRAM, **environment: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A running broker process, and its port."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "--port", "0", *arguments),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert started.stdout is not None
        line = (await asyncio.wait_for(started.stdout.readline(), 20)).decode()
        assert line.startswith("bmq broker ready on tcp://127.0.0.1:")
        yield started, int(line.rpartition(":")[2])
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_ready_serves_and_ends_cleanly(number: signal.Signals) -> None:
    async with process("--verbose") as (broker, port):
        peer = await client(port)
        assert isinstance(await peer.open(PRIORITY, write=True), OpenQueueResponse)
        broker.send_signal(number)
        await peer.ended()
        await peer.close()
        out, log = await asyncio.wait_for(broker.communicate(), 20)
        assert broker.returncode == 0
        assert out == b""
        assert b"connected" in log
        assert b"Traceback" not in log


def test_impossible_options_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["--config", str(tmp_path)]) == 1
    assert "domains" in capsys.readouterr().err
    assert run(["--port", "99999"]) == 1
    assert capsys.readouterr().err == "bmq broker: port must be an integer from 0 to 65535, not 99999 (int)\n"
    missing, wrong = tmp_path / "missing.pem", tmp_path / "wrong.pem"
    wrong.write_text("nothing of the kind")
    assert run(["--tls-cert", str(wrong), "--tls-key", str(missing)]) == 1
    assert f"No such file or directory: '{missing}'" in capsys.readouterr().err
    assert run(["--tls-cert", str(wrong), "--tls-key", str(wrong)]) == 1
    assert f"{wrong} and {wrong} are not a certificate and its key" in capsys.readouterr().err
    for arguments in (["--auth", "nobody"], ["--tls-cert", "x"], ["--port", "x"]):
        with pytest.raises(SystemExit):
            run(arguments)
    assert "USER:PASSWORD" in capsys.readouterr().err


async def test_passwords_need_not_be_arguments(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# who may\n\nfile:with:colons\nboth:from the file\n")
    variable = "environment:secret\nboth:from the environment"
    sources = "--auth-file", str(file), "--auth", "argument:x"
    async with process(*sources, BMQ_BROKER_AUTH=variable) as (_, port):
        for credentials, right in (
            ("file:with:colons", True),
            ("environment:secret", True),
            ("argument:x", True),
            ("both:from the file", True),
            ("both:from the environment", False),
            ("# who may:", False),
            ("file:", False),
            (":", False),
            ("nobody:", False),
        ):
            peer = await connect(port)
            answer = await peer.authenticate("BASIC", credentials.encode())
            await peer.close()
            assert (answer.status.category is StatusCategory.E_SUCCESS) is right, credentials


@pytest.mark.parametrize("content", ["", "\n# nobody\n", "a line that is secret\n", ":secret\n"])
def test_password_source_without_users_admits_no_client(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users"
    file.write_text(content)
    with pytest.raises(SystemExit):
        run(["--auth-file", str(file)])
    monkeypatch.setenv("BMQ_BROKER_AUTH", content)
    with pytest.raises(SystemExit):
        run([])
    errors = capsys.readouterr().err
    assert "--auth-file" in errors
    assert "BMQ_BROKER_AUTH" in errors
    assert "secret" not in errors
    monkeypatch.delenv("BMQ_BROKER_AUTH")
    assert run(["--auth-file", str(tmp_path / "missing")]) == 1
    assert "missing" in capsys.readouterr().err


@pytest.mark.parametrize("program", [PROGRAM, PLAIN], ids=["fastest", "asyncio"])
async def test_broker_without_file_descriptors_waits_and_logs_once(program: str) -> None:
    async with process(program=program) as (broker, port):
        peer = await client(port)
        used = len(os.listdir(f"/proc/{broker.pid}/fd"))
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
        strangers = [await connect(port) for _ in range(50)]
        assert isinstance(await peer.open(PRIORITY, write=True), OpenQueueResponse)
        peer.put(b"m")
        assert len(await peer.acks(1)) == 1
        for stranger in strangers:
            await stranger.close()
        late = await client(port)
        assert isinstance(await late.open(PRIORITY, write=True), OpenQueueResponse)
        for each in (peer, late):
            await each.close()
        broker.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(broker.communicate(), 20)
        lines = log.decode().splitlines()
        assert len(lines) == 1, log
        assert "WARNING" in lines[0]
        assert "Too many open files" in lines[0]
