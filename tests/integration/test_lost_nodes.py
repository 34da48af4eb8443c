# SPDX-License-Identifier: Apache-2.0
"""Groups, delayed messages, requests and durable retries while nodes of a cluster are killed.

``BMQ_CLUSTER_PROGRAM`` names the program of a real broker, for three nodes and a proxy on loopback. Without
the variable, an embedded broker is killed and restarted with its stored messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import bmq
from bmq.conventions import DELAY_QUEUE_SUFFIX, delay_queue_of
from bmq.delays import Mover
from bmq.testing import fresh_queue_uri
from tests.integration.cluster import EmbeddedNode, RealCluster
from tests.waiting import eventually

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "run.py"
PROGRAM = os.environ.get("BMQ_CLUSTER_PROGRAM")
KILLS = 3 if PROGRAM else 1
DOMAIN = "bmq.test.persistent.priority.sc"
#: Seconds without the node that was killed.
DOWN = 5.0 if PROGRAM else 1.0
#: Messages a second.
RATE = 200
#: Messages that make the result worth something.
FEWEST = 500
#: Maximum time in seconds until all nodes have a confirmation.
CONFIRMING = 0.2


@dataclass(slots=True)
class Life:
    """The history of one message, in seconds since 1970.

    Attributes:
        due: when it may arrive.
        posted: times at which movers posted it.
        came: times at which the consumer received it.
    """

    due: float = 0.0
    posted: list[float] = field(default_factory=list[float])
    came: list[float] = field(default_factory=list[float])


class Watch(bmq.Interceptor):
    """Records the histories of delayed messages, in the sessions of movers and of the consumer.

    Attributes:
        lives: the histories, by payload.
        kills: times at which a primary was killed.
    """

    def __init__(self) -> None:
        self.lives: dict[bytes, Life] = defaultdict(Life)
        self.kills: list[float] = []

    async def post(self, queue: bmq.Queue, seconds: float) -> None:
        """Post 200 messages a second that are due in 1 to 4 seconds; on a slow machine for longer."""
        until = time.time() + seconds
        async with asyncio.TaskGroup() as group:
            while (now := time.time()) < until or len(self.lives) <= FEWEST:
                number = len(self.lives)
                data = b"%d" % number
                self.lives[data].due = now + 1 + number % 31 / 10
                group.create_task(queue.post(data, not_before=self.lives[data].due))
                await asyncio.sleep(1 / RATE)

    def on_receive(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
        if not consumer.queue.uri.endswith(DELAY_QUEUE_SUFFIX):
            for message in messages:
                self.lives[message.data].came.append(time.time())

    def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> None:
        for post in posts:
            self.lives[bytes(post.data)].posted.append(time.time())

    def unexplained(self) -> list[Life]:
        """Return the messages that arrived twice although no kill explains it."""

        def explained(life: Life) -> bool:
            first, second = life.came[:2]
            if len(life.posted) < 2 or second < life.posted[1]:
                return True  # it came again before a mover had posted it again
            # Its consumer confirmed it in the moment of a kill.
            return any(kill - CONFIRMING < first < kill < second for kill in self.kills)

        return [life for life in self.lives.values() if len(life.came) > 1 and not explained(life)]


async def confirm_all(queue: bmq.Queue) -> None:
    async for message in queue:
        message.confirm()


async def patiently(condition: Callable[[], bool]) -> None:
    """Wait at most a minute; the assertions below say what is missing."""
    with suppress(TimeoutError):
        await eventually(condition, 60)


async def mover(stack: AsyncExitStack, broker: str, uri: str, watch: Watch) -> None:
    """Start a mover in a separate session."""
    session = await stack.enter_async_context(bmq.connect(broker, interceptors=[watch]))
    made = Mover(await session.open_queue(delay_queue_of(uri), read=True, default_subscription=False))
    task = asyncio.create_task(made.run())

    async def end() -> None:
        task.cancel()
        await asyncio.wait([task])

    stack.push_async_callback(end)


async def answers_and_retries(
    nodes: str, until: asyncio.Task[None]
) -> tuple[int, Counter[str], Counter[bytes]]:
    """Make requests, and let messages fail once and return, while a task runs.

    Returns:
        The number of requests and of messages, the outcomes of the requests, and the handled messages.
    """
    asked, retried = (fresh_queue_uri(DOMAIN, each) for each in ("asked", "again"))
    app = bmq.App(nodes)
    handled: Counter[bytes] = Counter()

    @app.responder(asked, concurrency=5)
    async def double(message: bmq.Message) -> bytes:
        return b"%d" % (2 * int(message.data))

    @app.consumer(retried, concurrency=5, retry=bmq.Backoff(1.0, retries=1000, durable=True))
    async def handle(message: bmq.Message) -> None:
        if "bmq_attempts" not in message.properties:
            raise OSError("not now")
        handled[message.data] += 1

    serving = asyncio.create_task(app.run(signals=False))
    outcomes: Counter[str] = Counter()
    posted = 0
    async with bmq.connect(nodes) as session:
        questions = await session.open_queue(asked, write=True)
        output = await session.open_queue(retried, write=True)

        async def ask(number: int) -> None:
            try:
                reply = await questions.request(b"%d" % number, timeout=60)
            except bmq.Error as error:
                outcomes[type(error).__name__] += 1
            else:
                outcomes["right" if int(reply.data) == 2 * number else "wrong"] += 1

        async with asyncio.TaskGroup() as group:
            while not until.done():
                group.create_task(ask(posted))
                group.create_task(output.post(b"%d" % posted))
                posted += 1
                await asyncio.sleep(0.05)
        await patiently(lambda: len(handled) == posted)
    app.stop()
    await serving
    return posted, outcomes, handled


@pytest.mark.timeout(600 if PROGRAM else 100)
async def test_delayed_messages_survive_and_are_never_early(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only messages confirmed at the moment of a kill arrive twice."""
    caplog.set_level(logging.ERROR, "bmq.workers")  # each message fails once
    uri, watch = fresh_queue_uri(DOMAIN, "delays"), Watch()
    cluster = RealCluster(PROGRAM, tmp_path) if PROGRAM else EmbeddedNode(tmp_path)
    try:
        await cluster.start()
        nodes = ",".join(cluster.ways["nodes"])
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(bmq.connect(nodes, max_unacked_messages=100_000))
            consumers = await stack.enter_async_context(bmq.connect(nodes, interceptors=[watch]))
            queue = await session.open_queue(uri, write=True)
            for _ in range(2):
                await mover(stack, nodes, uri, watch)
            consuming = asyncio.create_task(confirm_all(await consumers.open_queue(uri, read=True)))
            posting = asyncio.create_task(watch.post(queue, KILLS * (2 * DOWN + 8)))
            others = asyncio.create_task(answers_and_retries(nodes, posting))
            for _ in range(KILLS):
                await asyncio.sleep(DOWN)
                victim = await cluster.primary()
                await cluster.kill(victim, signal.SIGKILL)
                watch.kills.append(time.time())
                await asyncio.sleep(DOWN)
                await cluster.revive(victim)
                await cluster.healthy()
            await posting
            await patiently(lambda: all(life.came for life in watch.lives.values()))
            consuming.cancel()
            posted, outcomes, handled = await others
    finally:
        await cluster.stop()
    lives = watch.lives.values()
    assert len(lives) > FEWEST
    assert [life for life in lives if not life.came or life.came[0] < life.due] == []
    assert sum(len(life.came) - 1 for life in lives) <= 0.01 * len(lives)
    assert watch.unexplained() == []
    assert outcomes == {"right": posted}
    assert len(handled) == posted


@pytest.mark.timeout(900)
def test_group_loses_no_message_and_keeps_each_bucket_in_order() -> None:
    """The program ends with an error otherwise; members leave, are killed or stopped, or lose the network."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS), "groups", "--quick", "--rounds", str(KILLS)],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "| the leader killed | s of pause | " in done.stdout
    assert ("| the primary killed | s of pause | " in done.stdout) == bool(PROGRAM)
