# SPDX-License-Identifier: Apache-2.0
"""bmq run --threads: an app in several threads, its signals, restarts, health and metrics."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bmq
from bmq.cli.supervisor import Pauses
from bmq.cli.threads import ThreadSupervisor, sharing
from bmq.prometheus import SessionCollector
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Bmq
from tests.waiting import eventually
from tests.workers.test_probe import ask

QUICK = Pauses(first=0.01, longest=0.04, forced=0.1)


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with BackgroundBroker() as broker:
        yield broker.uri


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", str(request.node.name))[:40]
    return f"bmq://bmq.test.mem.priority/{name}"


@pytest.fixture
def log(supervisor_lines: list[str]) -> list[str]:
    """The lines of the supervisor so far."""
    return supervisor_lines


def service(
    broker: str, queue: str, handle: Callable[[bmq.App[Any], bmq.Message], Any], **options: Any
) -> Any:
    """Return an app, and the threads in which its startup and shutdown functions and handler ran."""
    app: bmq.App[Any] = bmq.App(broker, health="127.0.0.1:0", **options)
    ran = SimpleNamespace(app=app, begun=[], handled=[], ended=[])

    @app.on_startup
    def begin() -> None:
        app.state.thread = threading.current_thread()
        ran.begun.append((app.state.thread, app.session))

    @app.on_shutdown
    def end() -> None:
        ran.ended.append(app.state.thread)

    @app.consumer(queue, max_unconfirmed_messages=1)
    async def receive(message: bmq.Message) -> None:
        ran.handled.append((app.state.thread, threading.current_thread()))
        await handle(app, message)

    return ran


async def nothing(app: bmq.App[Any], message: bmq.Message) -> None:
    pass


@asynccontextmanager
async def running(app: bmq.App[Any], log: list[str], status: int = 0) -> AsyncGenerator[str]:
    """Run two threads until the end of the block; the value is the address of the server."""
    task = asyncio.create_task(ThreadSupervisor(app, 2, pauses=QUICK).run())

    def told() -> bool:
        """Whether both threads are ready, and the address is known, in either order."""
        return sum("is ready and receives" in line for line in log) == 2 and "http://" in "".join(log)

    try:
        await eventually(lambda: told() or task.done())
        yield re.findall(r"http://\S+", "\n".join(log))[0]
        if not task.done():
            signal.raise_signal(signal.SIGTERM)
        assert await task == status
    finally:
        task.cancel()
        await asyncio.wait([task])


async def get(uri: str, path: str) -> tuple[int, str]:
    status, _, body = await ask(uri, f"GET {path} HTTP/1.1\r\nHost: me\r\n\r\n")
    return status, body


async def post(uri: str, queue: str, *payloads: bytes) -> None:
    async with bmq.connect(uri) as session:
        await (await session.open_queue(queue, write=True)).post_many(payloads)


async def test_threads_share_a_queue_and_an_address(broker: str, queue: str, log: list[str]) -> None:
    async def handle(app: bmq.App[Any], message: bmq.Message) -> None:
        await (await app.queue(f"{queue}-copies")).post(message.data)

    collector = SessionCollector()
    ran = service(broker, queue, handle, metrics=collector.exposition)
    collector.add(lambda: ran.app.session)
    async with running(ran.app, log) as uri:
        await post(broker, queue, *(b"%d" % number for number in range(40)))
        await eventually(lambda: len(ran.handled) == 40)
        status, body = await get(uri, "/readyz")
        found = json.loads(body)
        assert (status, found["ready"], found["troubles"]) == (200, True, [])
        assert [(each["thread"], each["state"]) for each in found["threads"]] == [
            (1, "running"),
            (2, "running"),
        ]
        assert await get(uri, "/livez") == (200, "alive\n")
        confirmed = f'bmq_confirmed_messages_total{{queue="{queue}"}} 40.0\n'
        posted = f'bmq_acknowledged_messages_total{{queue="{queue}-copies"}} 40.0\n'
        async with asyncio.timeout(30):
            while confirmed not in (metrics := (await get(uri, "/metrics"))[1]) or posted not in metrics:
                pass
        assert 'bmq_threads{state="running"} 2\n' in metrics
        assert re.search(r'bmq_sessions\{state="\w+"\} 2\.0\n', metrics)
        assert (await get(uri, "/"))[0] == 404
    assert sorted(each.name for each in ran.ended) == ["thread-1", "thread-2"]
    assert len({id(session) for _, session in ran.begun}) == 2
    assert all(mine is here for mine, here in ran.handled)
    assert {mine.name for mine, _ in ran.handled} == {"thread-1", "thread-2"}
    assert not hasattr(ran.app.state, "thread")  # the state of the main thread is untouched


async def test_thread_that_fails_starts_again(broker: str, queue: str, log: list[str]) -> None:
    failing = iter([False, True])

    async def handle(app: bmq.App[Any], message: bmq.Message) -> None:
        if next(failing, False):
            raise SystemExit(3)

    ran = service(broker, queue, handle, grace=0.0)
    async with running(ran.app, log) as uri:
        await post(broker, queue, b"fine", b"fail")
        await eventually(lambda: sum("is ready and receives" in line for line in log) == 3)
        assert any(re.fullmatch(r"thread \d ended with status 3; restarting now", line) for line in log)
        assert re.search(r'bmq_thread_restarts_total\{thread="\d"\} 1\n', (await get(uri, "/metrics"))[1])
        await post(broker, queue, b"fine")
        await eventually(lambda: len(ran.handled) >= 3)


async def test_threads_that_cannot_start_end_the_run(
    log: list[str], queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = service("tcp://127.0.0.1:1", queue, nothing).app
    assert await ThreadSupervisor(app, 2, pauses=QUICK).run() == 3
    assert any(line.endswith("ended with status 3; no thread could start, giving up") for line in log)
    assert re.search(r"bmq run: thread \d: could not connect to tcp://127.0.0.1:1", capsys.readouterr().err)


async def test_state_that_cannot_be_copied_is_refused(
    log: list[str], broker: str, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Single:
        thread: object = None

        def __copy__(self) -> Single:
            raise TypeError("only one")

    app = service(broker, queue, nothing, state=Single()).app
    assert await ThreadSupervisor(app, 2, pauses=QUICK).run() != 0
    assert "Single cannot be copied: only one" in capsys.readouterr().err


async def test_app_that_stops_itself_ends_its_thread_only(broker: str, queue: str, log: list[str]) -> None:
    async def handle(app: bmq.App[Any], message: bmq.Message) -> None:
        app.stop()

    ran = service(broker, queue, handle)
    async with running(ran.app, log):
        await post(broker, queue, b"one")
        await eventually(lambda: any("has finished" in line for line in log))
        assert len(ran.ended) == 1
        await post(broker, queue, b"two")
        await eventually(lambda: sum("has finished" in line for line in log) == 2)


async def test_second_signal_cancels_the_handlers(broker: str, queue: str, log: list[str]) -> None:
    cancelled: list[str] = []

    async def handle(app: bmq.App[Any], message: bmq.Message) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(app.state.thread.name)
            raise

    ran = service(broker, queue, handle, grace=1000.0)
    async with running(ran.app, log) as uri:
        await post(broker, queue, b"one", b"two")
        await eventually(lambda: len(ran.handled) == 2)
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            while json.loads((await get(uri, "/readyz"))[1])["threads"][1]["state"] != "stopping":
                pass
    assert sorted(cancelled) == ["thread-1", "thread-2"]


async def test_thread_that_hangs_is_left_behind(broker: str, queue: str, log: list[str]) -> None:
    hold = threading.Event()

    async def handle(app: bmq.App[Any], message: bmq.Message) -> None:
        hold.wait()

    ran = service(broker, queue, handle, grace=0.0)
    try:
        async with running(ran.app, log, status=1):
            await post(broker, queue, b"one")
            await eventually(lambda: ran.handled)
        assert any("the run ends without it" in line for line in log)
    finally:
        hold.set()
        ran.handled[0][0].join()


async def test_sweepers_of_the_threads_count_together(broker: str, queue: str, log: list[str]) -> None:
    app = bmq.App(broker, health="127.0.0.1:0")
    sweeper = app.sweeper(queue, put_aside=f"{queue}-aside", by="Kind")
    async with running(app, log):
        async with bmq.connect(broker) as session:
            out = await session.open_queue(queue, write=True)
            for _ in range(10):
                await out.post(b"x", properties={"Kind": "none"})
        await eventually(lambda: sweeper.stats().put_aside == 10)
    assert sweeper.stats().by == {"none": 10}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--threads", "2", "--processes", "2"], "--threads or --processes, not both"),
        (["--threads", "2", "--reload"], "--reload restarts a process"),
        (["--threads", "0"], "should be greater than or equal to 1"),
        (["--threads", "-1"], "should be greater than or equal to 1"),
        (["--threads", "1e3"], "should be a valid integer"),
        (["--threads", "257"], "should be less than or equal to 256"),
        (["--threads", ""], "should be a valid integer"),
    ],
)
def test_wrong_numbers_and_combinations_are_refused(
    offline: Bmq, tmp_path: Path, arguments: list[str], why: str
) -> None:
    ran = offline("run", "shop", "--dir", str(tmp_path), *arguments)
    assert ran.status == 2
    assert why in " ".join(ran.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("enabled", "built", "expected"),
    [
        (None, 0, "this Python has a GIL"),
        (True, 0, "this Python has a GIL"),
        (True, 1, "the GIL is enabled, by PYTHON_GIL=1"),
        (False, 1, None),
    ],
)
def test_shared_core_is_explained(
    monkeypatch: pytest.MonkeyPatch, enabled: bool | None, built: int, expected: str | None
) -> None:
    if enabled is None:
        monkeypatch.delattr("sys._is_gil_enabled", raising=False)
    else:
        monkeypatch.setattr("sys._is_gil_enabled", lambda: enabled, raising=False)

    def variable(name: str) -> int:
        return built

    monkeypatch.setattr("sysconfig.get_config_var", variable)
    why = sharing()
    assert why == expected if expected is None else (why is not None and why.startswith(expected))
