"""``bmq broker`` as a process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bmq.broker.main import run
from bmq.wire.control_messages import OpenQueueResponse, Status
from tests.broker.core import PRIORITY
from tests.broker.wire import Wire, client

PROGRAM = "import sys; from bmq.broker.main import run; sys.exit(run(sys.argv[1:]))"


#: As on systems whose event loops take no signal handlers.
WITHOUT_SIGNAL_HANDLERS = """
import asyncio, sys
sys.modules["uvloop"] = None

def add_signal_handler(*_):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = add_signal_handler
"""


@asynccontextmanager
async def process(*arguments: str, before: str = "") -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """The broker as a process that is ready, and its port."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        before + PROGRAM,
        "--port",
        "0",
        *arguments,
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
        await peer.closed()
        await peer.close()
        out, log = await asyncio.wait_for(broker.communicate(), 20)
        assert broker.returncode == 0
        assert out == b""
        assert b"connected" in log
        assert b"Traceback" not in log


async def test_where_event_loops_take_no_signal_handlers() -> None:
    async with process(before=WITHOUT_SIGNAL_HANDLERS) as (broker, _):
        broker.send_signal(signal.SIGTERM)
        out, log = await asyncio.wait_for(broker.communicate(), 20)
        assert (broker.returncode, out, log) == (0, b"", b"")


async def test_credentials_and_domains_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "domains").mkdir()
    async with process("--config", str(tmp_path), "--auth", "user:secret") as (_, port):
        peer = await Wire.connect(port)
        with pytest.raises(ConnectionError):
            await peer.negotiate()
        await peer.close()
    async with process("--config", str(tmp_path)) as (_, port):
        peer = await client(port)
        assert isinstance(await peer.open(PRIORITY, write=True), Status)
        await peer.close()


def test_what_it_cannot_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["--config", str(tmp_path)]) == 1
    assert "domains" in capsys.readouterr().err
    assert run(["--port", "99999"]) == 1
    assert capsys.readouterr().err == "bmq broker: a port is 0 to 65535, not 99999\n"
    missing, wrong = tmp_path / "missing.pem", tmp_path / "wrong.pem"
    wrong.write_text("nothing of the kind")
    assert run(["--tls-cert", str(wrong), "--tls-key", str(missing)]) == 1
    assert f"No such file or directory: '{missing}'" in capsys.readouterr().err
    assert run(["--tls-cert", str(wrong), "--tls-key", str(wrong)]) == 1
    assert f"{wrong} and {wrong} are no certificate and its key" in capsys.readouterr().err
    for arguments in (["--auth", "nobody"], ["--tls-cert", "x"], ["--port", "x"]):
        with pytest.raises(SystemExit):
            run(arguments)
    assert "USER:PASSWORD" in capsys.readouterr().err
