# SPDX-License-Identifier: Apache-2.0
"""Blocking sessions in real programs: Ctrl-C, a forgotten close, forks, and child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BEGIN = """
import os, signal, sys, threading, time
PLAIN, BROKER, QUEUE = sys.argv[1:]
if PLAIN == "asyncio":
    sys.modules["uvloop"] = None
import bmq

def say(*what):
    print(*what, flush=True)
"""


@pytest.fixture(params=["asyncio", "uvloop"])
def program(request: pytest.FixtureRequest, tmp_path: Path, broker: str, bmq_queue_uri: str) -> Any:
    """Start a program, with its standard output read line by line."""
    running: list[subprocess.Popen[str]] = []

    def start(text: str, *options: str) -> subprocess.Popen[str]:
        path = tmp_path / "program.py"
        path.write_text(BEGIN + textwrap.dedent(text))
        process = subprocess.Popen(
            [sys.executable, *options, str(path), request.param, broker, bmq_queue_uri],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def loop_of_its_own() -> None:
    """Each program chooses its event loop."""


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_ctrl_c_ends_a_wait_at_once_and_the_session_stays_usable(program: Any) -> None:
    process = program(
        """
        session = bmq.blocking.connect(BROKER)
        queue = session.open_queue(QUEUE, read=True, write=True)
        outbound = session.open_queue(QUEUE + "-requests", write=True)
        waits = {
            "receive": queue.receive,
            "a loop": lambda: list(queue),
            "batches": lambda: list(queue.batches()),
            "a subscription": lambda: list(queue.subscribe("x == 1")),
            "a request": lambda: outbound.request(b"x", timeout=60),
            "events": lambda: list(session.events()),
            "a slow generator": lambda: queue.post_many(b"x" for _ in iter(threading.Event().wait, None)),
        }
        for name, wait in waits.items():
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                wait()
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError(f"{name} went on")
            queue.post(name.encode())
            with queue.receive(timeout=10) as message:
                assert message.data == name.encode()
            say(name)
        session.close()
        """
    )
    status, out, err = ended(process)
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 7


def test_ctrl_c_loses_no_message(program: Any) -> None:
    """Interrupted repeatedly while messages arrive, the program receives each message exactly once."""
    process = program(
        """
        session = bmq.blocking.connect(BROKER)
        queue = session.open_queue(QUEUE, read=True, write=True)
        queue.post(b"0")
        queue.receive(timeout=10).confirm()
        stop, armed = threading.Event(), False
        def feed():
            for number in range(300):
                queue.post(b"%d" % number)
        def interrupt():
            while not stop.wait(0.003):
                os.kill(os.getpid(), signal.SIGINT)
        def handler(number, frame):
            if armed:
                raise KeyboardInterrupt
        signal.signal(signal.SIGINT, handler)
        threads = [threading.Thread(target=each) for each in (feed, interrupt)]
        for thread in threads:
            thread.start()
        received, interrupted = [], 0
        while len(received) < 300:
            message = None
            try:
                armed = True
                message = queue.receive(timeout=10)
                armed = False
            except KeyboardInterrupt:
                armed = False
                interrupted += 1
            if message is not None:
                received.append(message)
        stop.set()
        for thread in threads:
            thread.join()
        say(len({message.guid for message in received}) == len(received), interrupted > 0)
        for message in received:
            message.confirm()
        session.close()
        """
    )
    assert ended(process) == (0, "True True\n", "")


def test_a_script_that_forgets_to_close_ends_with_a_warning(program: Any) -> None:
    process = program(
        """
        session = bmq.blocking.connect(BROKER)
        queue = session.open_queue(QUEUE, read=True, write=True)
        queue.post(b"1")
        queue.receive(timeout=10).confirm()
        def wait():
            try:
                queue.receive()
            except bmq.QueueClosed:
                pass
        threading.Thread(target=wait, daemon=True).start()
        """,
        "-W", "always",
    )  # fmt: skip
    status, out, err = ended(process)
    assert (status, out) == (0, "")
    assert "ResourceWarning: <bmq.blocking.Session with tcp://" in err
    assert "was never closed: use 'with bmq.blocking.connect(...)'" in err
    assert err.count("ResourceWarning: ") == 2, err  # the second line tells how to find the place of creation
    assert "exceeded its timeout" not in err
    assert "Traceback" not in err


def test_a_session_that_is_dropped_warns_and_ends(program: Any) -> None:
    process = program(
        """
        import gc, warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bmq.blocking.connect(BROKER)
            gc.collect()
        say([each.category.__name__ for each in caught])
        with bmq.blocking.connect(BROKER) as session:
            session.open_queue(QUEUE, write=True).post(b"the thread goes on")
        """,
        "-W", "error",
    )  # fmt: skip
    assert ended(process) == (0, "['ResourceWarning']\n", "")


FORK = """
    with bmq.blocking.connect(BROKER) as session:
        queue = session.open_queue(QUEUE, read=True, write=True)
        queue.post(b"1")
        message = queue.receive(timeout=10)
        pending = queue.post_nowait(b"2")
        number = session.fileno()
        child = os.fork()
        if not child:
            for use in [
                lambda: queue.post(b"x"), lambda: queue.post_nowait(b"x"), queue.receive, message.confirm,
                lambda: next(iter(queue)), lambda: session.open_queue(QUEUE), queue.flush, session.stats,
            ]:
                try:
                    use()
                except bmq.UsageError as error:
                    assert "belongs to the process that connected it" in str(error), error
                else:
                    raise AssertionError(use)
            assert os.readlink(f"/proc/self/fd/{number}") == "/dev/null"
            assert session.close() == bmq.CloseReport()
            with bmq.blocking.connect(BROKER) as own:
                own.open_queue(QUEUE, write=True).post(b"from the child")
            say("child done")
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        pending.result(timeout=10)
        message.confirm()
        queue.post(b"3")
        queue.flush()
        received = [queue.receive(timeout=10) for _ in range(3)]
        for message in received:
            message.confirm()
        say(sorted(message.data for message in received), session.health().ready)
"""


def test_fork_shares_no_session_and_may_connect(program: Any) -> None:
    options = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
    assert ended(program(FORK, *options)) == (
        0,
        "child done\n[b'2', b'3', b'from the child'] True\n",
        "",
    )


def test_the_broker_notices_that_the_parent_died_although_its_child_lives(program: Any) -> None:
    """The child does not keep the parent's connection open: messages go to other consumers at once."""
    process = program(
        """
        session = bmq.blocking.connect(BROKER)
        queue = session.open_queue(QUEUE, read=True, write=True)
        queue.post(b"1")
        queue.receive(timeout=10)
        if os.fork():
            say("forked")
            os.kill(os.getpid(), signal.SIGKILL)
        with bmq.blocking.connect(BROKER) as own:
            say(own.open_queue(QUEUE, read=True).receive(timeout=10).data)
        """,
        "-W", "ignore",
    )  # fmt: skip
    status, out, _ = ended(process)
    assert status == -signal.SIGKILL
    assert out == "forked\nb'1'\n"


def test_import_starts_no_thread() -> None:
    code = "import bmq.blocking, threading, sys; print(threading.active_count(), 'uvloop' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout == "1 False\n"
