# SPDX-License-Identifier: Apache-2.0
"""Every verb after every other verb, on one queue: each works, and no message is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.cli.verbs import VERBS
from tests.cli.conftest import Aside, Bmq, Ran

PAYLOADS = [b"one", b"two", b"three"]
Step = Callable[["Scene"], None]
STEPS: dict[str, Step] = {}
#: Verbs without a queue, or with queues from an app, a page or a query.
WITHOUT_A_QUEUE = {
    "check",
    "decode",
    "console",
    "exporter",
    "run",
    "docs",
    "new",
    "broker",
    "contexts",
    "domains",
}
#: The first words of some steps: a verb may have several.
SEVERAL = {"tail and confirm": "tail"}


class Scene:
    """A queue and its content.

    Attributes:
        uri: of the queue.
        there: payloads of its messages.
        handed_back: whether messages were delivered and handed back. A broker delivers no later message until
            a consumer takes these messages.
        later: number of messages moved to another queue.
    """

    def __init__(self, run: Bmq, aside: Aside, broker: str, uri: str) -> None:
        self._run, self.aside, self.broker, self.uri = run, aside, broker, uri
        self.there = list(PAYLOADS)
        self.handed_back = False
        self.later = 0

    def run(self, *words: str, status: int = 0) -> Ran:
        ran = self._run(*words)
        assert ran.status == status, (words, ran)
        assert "Traceback" not in ran.err
        return ran

    def drained(self) -> list[bytes]:
        """Take all delivered messages."""

        async def drain() -> list[bytes]:
            queue = await self.aside.session.open_queue(self.uri, read=True)
            async with bmq.admin.connect(self.broker) as admin:
                depth = (await admin.queue(self.uri).depth()).messages
            found: list[bytes] = []
            for _ in range(depth):
                message = await queue.receive(30)
                message.confirm()
                found.append(message.data)
            await queue.close()
            return found

        return self.aside.do(drain())


def step(function: Step) -> Step:
    STEPS[function.__name__.replace("_", " ")] = function
    return function


@step
def post(scene: Scene) -> None:
    scene.run("post", scene.uri, "more")
    scene.there.append(b"more")


@step
def move(scene: Scene) -> None:
    """Moves to another queue, and back."""
    for words in ((scene.uri, scene.uri + "-moved"), (scene.uri + "-moved", scene.uri)):
        scene.run("move", *words, "--idle", "0.3")
    scene.handed_back = False


@step
def tail(scene: Scene) -> None:
    end = ("--count", str(len(scene.there))) if scene.there else ("--idle", "0.1")
    ran = scene.run("tail", scene.uri, *end)
    assert sorted(line.split()[-1].encode() for line in ran.lines) == sorted(scene.there)
    scene.handed_back = bool(scene.there)


@step
def tail_and_confirm(scene: Scene) -> None:
    end = ("--count", str(len(scene.there))) if scene.there else ("--idle", "0.1")
    ran = scene.run("tail", scene.uri, "--confirm", *end)
    assert sorted(line.split()[-1].encode() for line in ran.lines) == sorted(scene.there)
    scene.there.clear()
    scene.handed_back = False


@step
def peek(scene: Scene) -> None:
    ran = scene.run("peek", scene.uri, "--json")
    assert [line["size"] for line in ran.json] == [len(data) for data in scene.there]


@step
def dead(scene: Scene) -> None:
    scene.run("dead", scene.uri, "--idle", "0.1")
    scene.handed_back |= bool(scene.there)


@step
def mover(scene: Scene) -> None:
    other = f"{scene.uri}.later"

    async def post_and_interrupt() -> None:
        queue = await scene.aside.session.open_queue(other, write=True)
        await queue.post(b"later", delay=0.01)
        await queue.close()
        scene.later += 1
        async with bmq.admin.connect(scene.broker) as admin, asyncio.timeout(30):
            while (await admin.queue(other).depth()).messages < scene.later:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = asyncio.run_coroutine_threadsafe(post_and_interrupt(), scene.aside.loop)
    scene.run("mover", f"{other}.delayed", status=130)
    interrupting.result(30)


@step
def purge(scene: Scene) -> None:
    scene.run("purge", scene.uri, "--yes")
    scene.there.clear()
    scene.handed_back = False


@step
def queues(scene: Scene) -> None:
    [line] = [line for line in scene.run("queues", "--json").json if line["uri"] == scene.uri]
    assert line["messages"] == len(scene.there)


@step
def stat(scene: Scene) -> None:
    scene.run("stat", scene.uri, "--json")


@step
def top(scene: Scene) -> None:
    scene.run("top", "--count", "1", "--json")


@step
def explain(scene: Scene) -> None:
    scene.run("explain", scene.uri)


@step
def doctor(scene: Scene) -> None:
    blocked = scene.handed_back
    ran = scene.run("doctor", scene.uri, "--post", "--timeout", "2", status=1 if blocked else 0)
    assert ("returned" in ran.out) == blocked


@step
def bench(scene: Scene) -> None:
    ran = scene.run(
        "bench", scene.uri, "--messages", "10", "--rounds", "1", "--json", status=2 if scene.there else 0
    )
    assert ("other messages" in ran.err) == bool(scene.there)


@step
def admin(scene: Scene) -> None:
    scene.run("admin", "HELP")


def test_every_verb_has_its_place() -> None:
    assert {SEVERAL.get(name, name) for name in STEPS} == set(VERBS) - WITHOUT_A_QUEUE


@pytest.mark.parametrize("first", STEPS)
def test_each_verb_works_after_each_other(
    run: Bmq, aside: Aside, uri: str, bmq_new_queue_uri: Callable[[], str], first: str
) -> None:
    for second in STEPS:
        scene: Any = Scene(run, aside, uri, bmq_new_queue_uri())
        queue = aside.do(aside.session.open_queue(scene.uri, write=True))
        aside.do(queue.post_many(PAYLOADS))
        aside.do(queue.close())
        for name in (first, second):
            STEPS[name](scene)
        assert sorted(scene.drained()) == sorted(scene.there), f"{second} after {first}"
