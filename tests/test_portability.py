# SPDX-License-Identifier: Apache-2.0
"""No code path requires Linux: all features work without the names missing on other systems.

On other systems, the tests remove names missing on Windows and macOS, and raise errors that occur only
    there.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.testing import FaultProxy, _proxy

ROOT = Path(__file__).parent.parent
#: `bmq run --processes` ends with an error on other systems, before these modules do anything.
POSIX = {"child.py", "processes.py"}

#: Modules, attributes and methods of POSIX systems, or of Linux, only.
MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
ATTRIBUTES = {
    *("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "setsid", "killpg", "mkfifo", "sendfile"),
    *("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
    *("AF_UNIX", "SO_REUSEPORT", "TCP_KEEPIDLE", "TCP_QUICKACK", "TCP_USER_TIMEOUT", "MSG_NOSIGNAL"),
    *("add_signal_handler", "remove_signal_handler", "add_reader", "add_writer"),
    *("open_unix_connection", "create_unix_server", "create_unix_connection", "start_unix_server"),
}


#: Runs a program without the names missing on Windows.
ELSEWHERE = """
import asyncio, os, runpy, signal, socket, sys, time, warnings

for name in {modules}:
    sys.modules[name] = None
sys.modules["uvloop"] = None
for home in (os, signal, socket):
    for name in {attributes}:
        if hasattr(home, name) and name not in ("AF_UNIX", "SIGCHLD"):  # asyncio's own needs these here
            delattr(home, name)

def missing(*args, **kwargs):
    raise NotImplementedError

class Loop(asyncio.SelectorEventLoop):
    add_signal_handler = remove_signal_handler = create_unix_server = create_unix_connection = missing
    add_reader = add_writer = missing

exact = time.monotonic
time.monotonic = lambda: int(exact() * 64) / 64  # how finely Windows tells the time
asyncio.new_event_loop = Loop
with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # from Python 3.14 on
    asyncio.DefaultEventLoopPolicy._loop_factory = Loop
sys.argv = sys.argv[1:]
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> list[str]:
    program = tmp_path / "elsewhere.py"
    program.write_text(ELSEWHERE.format(modules=sorted(MODULES), attributes=sorted(ATTRIBUTES)), "utf-8")
    return [sys.executable, str(program)]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "BMQ_BROKER_URI"} | {"PYTHONPATH": str(ROOT)}


def test_demo_runs_without_posix_only_modules(elsewhere: list[str]) -> None:
    run = subprocess.run(
        [*elsewhere, str(ROOT / "examples" / "demo.py"), "--fast", "--count", "600"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "nothing was lost" in run.stdout


def test_broker_and_command_line_run_without_posix_only_modules(elsewhere: list[str]) -> None:
    queue = "bmq://bmq.test.mem.priority/elsewhere"
    with subprocess.Popen(
        [*elsewhere, "-m", "bmq", "broker", "--port", "0"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as broker:  # fmt: skip
        try:
            assert broker.stdout is not None
            uri = broker.stdout.readline().split()[-1]

            def verb(*arguments: str) -> str:
                run = subprocess.run(
                    [*elsewhere, "-m", "bmq", *arguments, "--broker", uri],
                    env=environment(), capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert run.returncode == 0, run.stderr
                return run.stdout

            verb("doctor", queue)
            verb("post", queue, "hello")
            assert "hello" in verb("tail", queue, "--confirm", "--count", "1")
        finally:
            broker.terminate()
        assert broker.wait(30) == 0
        assert broker.stderr is not None
        assert broker.stderr.read() == ""


class Closed:
    """A socket in the state of macOS after its peer has closed the connection."""

    def setsockopt(self, *args: Any) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


async def test_options_of_a_closed_socket_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    monkeypatch.setattr("asyncio.trsock.TransportSocket.setsockopt", Closed.setsockopt)
    async with (
        bmq.broker.Broker() as broker,
        FaultProxy(broker.uri) as proxy,
        bmq.connect(proxy.uri) as session,
    ):
        queue = await session.open_queue("bmq://bmq.test.mem.priority/q", read=True, write=True)
        proxy.cut(reset=True)
        await queue.post(b"1", timeout=30)
        assert (await queue.receive(timeout=30)).data == b"1"


async def test_a_port_is_kept_and_taken_again_without_address_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    monkeypatch.setattr(_proxy, "_POSIX", False)
    monkeypatch.setattr(_proxy, "_linger", lambda posix: struct.pack("ii", 1, 0))  # the kernel's here
    async with bmq.broker.Broker() as broker, FaultProxy(broker.uri) as proxy:
        proxy.refuse()
        with pytest.raises(bmq.ConnectionFailed):
            await bmq.connect(proxy.uri)
        await proxy.accept()
        async with bmq.connect(proxy.uri):
            pass
