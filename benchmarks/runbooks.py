# SPDX-License-Identifier: Apache-2.0
"""Execute the runbooks of ``docs/runbooks``: cause each problem, find it and repair it, and write the output.

    python benchmarks/runbooks.py                                      # all, against an embedded broker
    python benchmarks/runbooks.py poisoned-queue --port 43500
    python benchmarks/runbooks.py rolling-restart --broker /usr/local/bin/bmqbrkr   # three real nodes

Each runbook has traffic beside the problem: a producer with numbered messages and a consumer. At the end, the
books are balanced: lost and repeated messages are printed, and a lost message fails the run. The output of
the commands is written into the page, between two marks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cluster import RealCluster

import bmq

PAGES = Path(__file__).resolve().parent.parent / "docs" / "runbooks"
BEGIN, END = "<!-- begin: written by benchmarks/runbooks.py -->", "<!-- end -->"
DOMAIN = "bmq://bmq.test.persistent.priority"
#: Timeout of a single step, in seconds.
DEADLINE = 90.0


class Place:
    """The brokers of a run, the commands of the operator, and the transcript.

    Attributes:
        addresses: addresses of the brokers.
        kind: description of the brokers.
        lines: the transcript.
    """

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self._program = arguments.broker
        self._port = arguments.port or _free_port()
        self._work = work
        self._process: asyncio.subprocess.Process | None = None
        self._options: tuple[str, ...] = ()
        self.cluster: RealCluster | None = None
        self.addresses = ""
        self.kind = "an embedded broker in a process of its own"
        self.environment: dict[str, str] = {}
        self.lines: list[str] = []

    async def start(self, *options: str) -> None:
        """Start three real nodes and a proxy, or the embedded broker with options of its command."""
        if self._program is not None:
            self.kind = "three real nodes on loopback"
            self.cluster = RealCluster(self._program, self._work)
            await self.cluster.start()
            self.addresses = ",".join(self.cluster.ways["nodes"])
            return
        self._options = options
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bmq", "broker", "--port", str(self._port), *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), DEADLINE)).decode()
        self.addresses = line.split()[-1]

    async def stop(self) -> None:
        """Stop all brokers."""
        if self.cluster is not None:
            await self.cluster.stop()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def restart(self, *options: str) -> None:
        """Restart the embedded broker with other options; its messages are lost."""
        await self.stop()
        await self.start(*(options or self._options))

    def say(self, line: str) -> None:
        """Add a line to the transcript."""
        line = line.rstrip()
        print(line, flush=True)
        self.lines.append(line)

    async def run(self, *words: str, title: str | None = None) -> str:
        """Run a command of ``bmq``, and add command and output to the transcript."""
        shown = title or "bmq " + " ".join(
            f"'{word}'" if re.search(r"[ *?=]", word) else word for word in words
        )
        self.say(f"$ {shown}")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bmq", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={
                **os.environ,
                "COLUMNS": "110",
                "NO_COLOR": "1",
                "BMQ_BROKER_URI": self.addresses.split(",")[0],
                **self.environment,
            },
        )
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE)
        text = output.decode().rstrip()
        for line in text.splitlines():
            self.say(line)
        self.say("")
        return text

    async def joined(self, uri: str, address: str) -> None:
        """Repeat ``bmq doctor QUEUE`` until the command succeeds on a node; add the last output only."""
        before = len(self.lines)
        async with asyncio.timeout(DEADLINE):
            while "FAIL" in await self.run("doctor", uri, "--broker", address):
                del self.lines[before:]
                await asyncio.sleep(0.5)


class Traffic:
    """A producer with numbered messages, and a consumer that confirms each message.

    Attributes:
        posted: numbers of the acknowledged messages.
        received: how often each number arrived.
        refused: number of posts that the broker did not accept, by status.
        longest: longest time between two acknowledgements, in seconds.
    """

    def __init__(self, place: Place, uri: str, **options: Any) -> None:
        self._place, self._uri, self._options = place, uri, options
        self._numbers = itertools.count()
        self._end = asyncio.Event()
        self.posted: list[int] = []
        self.received: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        self.longest = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Traffic]:
        """Post and consume; at the end wait until all acknowledged messages have arrived."""
        async with (
            bmq.connect(self._place.addresses, **self._options) as producer,
            bmq.connect(self._place.addresses, **self._options) as consumer,
        ):
            incoming = await consumer.open_queue(self._uri, read=True)
            outgoing = await producer.open_queue(self._uri, write=True)
            receiving = asyncio.create_task(self._receive(incoming))
            posting = asyncio.create_task(self._post(outgoing))
            try:
                yield self
            finally:
                self._end.set()
                await asyncio.wait_for(posting, DEADLINE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DEADLINE):
                        while set(self.posted) - set(self.received):  # noqa: ASYNC110
                            await asyncio.sleep(0.05)
                receiving.cancel()

    async def _post(self, queue: bmq.Queue) -> None:
        last = time.monotonic()
        while not self._end.is_set():
            number = next(self._numbers)
            data = json.dumps({"number": number}).encode()
            while True:
                try:
                    await queue.post(data)
                except bmq.PostError as error:
                    # The broker did not accept the message: a producer posts it again.
                    self.refused[error.status.name] += 1
                    await asyncio.sleep(0.1)
                else:
                    break
            self.posted.append(number)
            self.longest, last = max(self.longest, time.monotonic() - last), time.monotonic()
            await asyncio.sleep(0.01)

    async def _receive(self, queue: bmq.Queue) -> None:
        async for message in queue:
            async with message:
                self.received[json.loads(message.data)["number"]] += 1

    async def flows(self, count: int = 20) -> None:
        """Wait until so many more messages were acknowledged."""
        wanted = len(self.posted) + count
        async with asyncio.timeout(DEADLINE):
            while len(self.posted) < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def report(self) -> None:
        """Balance the books; a lost message fails the run."""
        lost = set(self.posted) - set(self.received)
        twice = sum(count - 1 for count in self.received.values())
        self._place.say(
            f"# traffic: {len(self.posted)} messages acknowledged, {len(lost)} lost, {twice} twice, "
            f"longest pause {self.longest:.1f} s"
        )
        if self.refused:
            self._place.say(f"# refused by the broker and posted again: {dict(self.refused)}")
        assert not lost, sorted(lost)[:10]


def _free_port() -> int:
    """Return a port below the ephemeral range: no connection takes the port during a restart."""
    while True:
        port = random.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(DEADLINE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


# ---- the runbooks


async def wrong_expression(place: Place) -> None:
    """A consumer is deployed with a misspelt property: its messages wait and match nothing."""
    await place.start()
    uri = f"{DOMAIN}/orders"
    traffic = Traffic(place, f"{DOMAIN}/other")
    async with traffic.running(), bmq.connect(place.addresses) as session:
        producer = await session.open_queue(uri, write=True)
        consumer_session = await bmq.connect(place.addresses, process_name="kitchen")
        queue = await consumer_session.open_queue(uri, read=True)
        wrong = await queue.subscribe('order_typ == "EXPRESS"')
        for number in range(20):
            await producer.post(b"%d" % number, properties={"order_type": "EXPRESS"})
        place.say("# symptom: the queue grows, and the consumer is connected and idle")
        await place.run("queues")
        place.say("# confirm: the properties of the waiting messages, and the expressions of the readers")
        await place.run("explain", uri)
        await place.run("peek", uri, "--count", "1")
        place.say("# the right expression, tried before it is deployed")
        await place.run("check", 'order_type == "EXPRESS"', "-p", "order_type=EXPRESS")
        place.say("# remedy: deploy the right expression (here: consumer.configure)")
        await wrong.configure('order_type == "EXPRESS"')
        got = [await wrong.receive(timeout=DEADLINE) for _ in range(20)]
        for message in got:
            message.confirm()
        await consumer_session.close()
        place.say("# verify: the queue is empty")
        await place.run("explain", uri)
        assert sorted(int(message.data) for message in got) == list(range(20))
    traffic.report()


async def poisoned_queue(place: Place) -> None:
    """A message fails in every attempt; dead letters take it out of the way."""
    await place.start()
    uri, dead = f"{DOMAIN}/payments", f"{DOMAIN}/payments.dead"
    traffic = Traffic(place, f"{DOMAIN}/other")
    async with traffic.running(), bmq.connect(place.addresses) as session:
        producer = await session.open_queue(uri, write=True)
        for number in range(10):
            await producer.post(b"not a number" if number == 3 else b"%d" % number)
        handled: Counter[bytes] = Counter()

        async def charge(message: bmq.Message) -> None:
            handled[message.data] += 1
            int(message.data)

        place.say("# symptom: one message fails in every attempt and is never confirmed")
        reader = await bmq.connect(place.addresses, process_name="billing")
        stuck = await reader.open_queue(uri, read=True, max_unconfirmed_messages=1)
        while True:
            message = await stuck.receive(timeout=DEADLINE)
            try:
                await charge(message)
            except ValueError:
                break
            message.confirm()
        await place.run("explain", uri)
        await reader.close()
        place.say("# remedy: let the worker put messages aside that keep failing (a DeadLetter policy)")
        app = bmq.App(place.addresses)
        policy = bmq.Backoff(every=0.05, retries=3, then=bmq.DeadLetter(dead))
        app.consumer(uri, retry=policy)(charge)
        running = asyncio.create_task(app.run())

        async def done() -> bool:
            return len(handled) == 10 and handled[b"not a number"] == 5  # once by hand, four times by the app

        await eventually(done)
        await asyncio.sleep(1)  # the dead letter is posted after the last attempt
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        place.say("# verify: the queue is empty, and the dead letter has the reason")
        await place.run("explain", uri)
        await place.run("dead", dead)
    traffic.report()


async def moving_a_queue(place: Place) -> None:
    """Move the waiting messages of a queue to another queue, with their properties and GUIDs."""
    await place.start()
    old, new = f"{DOMAIN}/orders", f"{DOMAIN}/orders-v2"
    traffic = Traffic(place, f"{DOMAIN}/other")
    async with traffic.running(), bmq.connect(place.addresses) as session:
        producer = await session.open_queue(old, write=True)
        for number in range(50):
            await producer.post(b"%d" % number, properties={"order_type": "EXPRESS"})
        await producer.close()
        place.say("# before: 50 messages in the old queue")
        await place.run("queues")
        place.say("# move: each message is confirmed only after the new queue has accepted it")
        await place.run("move", old, new)
        place.say("# verify: depth and content of both queues")
        await place.run("queues")
        await place.run("peek", new, "--count", "2")
        reader = await session.open_queue(new, read=True)
        got = [await reader.receive(timeout=DEADLINE) for _ in range(50)]
        for message in got:
            message.confirm()
        place.say(f"# {len({message.guid for message in got})} of 50 messages arrived, each once")
        assert [int(message.data) for message in got] == list(range(50))
    traffic.report()


async def rotating_credentials(place: Place) -> None:
    """Replace a password without downtime: the program reads the password at each authentication."""
    folder = Path(tempfile.mkdtemp())
    users, secret = folder / "users", folder / "password"
    users.write_text("shop:old\n")
    secret.write_text("old")
    await place.start("--auth-file", str(users))
    place.environment = {"BMQ_USER": "shop", "BMQ_PASSWORD": "old"}

    def credentials() -> bmq.Credentials:
        return bmq.Credentials.basic("shop", secret.read_text())

    seen: list[str] = []
    traffic = Traffic(
        place,
        f"{DOMAIN}/orders",
        credentials=credentials,
        on_event=lambda event: seen.append(type(event).__name__),
    )
    async with traffic.running():
        await traffic.flows()
        await place.run("doctor")
        place.say("# 1. the program's source of the password has the new password")
        secret.write_text("new")
        place.say("# 2. the broker has the new password, and forgets the old one (a restart of the broker)")
        users.write_text("shop:new\n")
        await place.restart("--auth-file", str(users))
        await traffic.flows()
        place.say(f"# the sessions reconnected with the new password: {sorted(set(seen))}")
        place.say("# 3. verify: the old password is refused, the new one works")
        await place.run("doctor", title="BMQ_PASSWORD=old bmq doctor")
        place.environment["BMQ_PASSWORD"] = "new"
        await place.run("doctor", title="BMQ_PASSWORD=new bmq doctor")
    traffic.report()


async def rolling_restart(place: Place) -> None:
    """Restart node after node under traffic, each after the one before has joined."""
    await place.start()
    if place.cluster is None:
        raise SystemExit("rolling-restart needs three real nodes: --broker PROGRAM")
    uri = f"{DOMAIN}.sc/orders"
    own = f"{DOMAIN}.sc/doctor"
    traffic = Traffic(place, uri)
    async with traffic.running():
        await traffic.flows()
        for node, address in enumerate(place.cluster.ways["nodes"]):
            await place.run("doctor", own, "--broker", address)
            place.say(f"# node {node}: stop it in an orderly way, and start it")
            await place.cluster.kill(node, signal.SIGTERM)
            await traffic.flows()
            await place.cluster.revive(node)
            place.say(f"# wait until node {node} answers")
            await place.joined(own, address)
            await traffic.flows()
    traffic.report()


async def lost_quorum(place: Place) -> None:
    """Two of three nodes are down: no node accepts posts, and no acknowledged message is lost."""
    await place.start()
    if place.cluster is None:
        raise SystemExit("lost-quorum needs three real nodes: --broker PROGRAM")
    uri = f"{DOMAIN}.sc/orders"
    traffic = Traffic(place, uri)
    async with traffic.running():
        await traffic.flows()
        for node in (0, 1):
            await place.cluster.kill(node, signal.SIGKILL)
        place.environment["BMQ_BROKER_URI"] = place.cluster.ways["nodes"][2]
        place.say("# symptom: posts are not acknowledged; confirm on the remaining node")
        await place.run("doctor", uri, "--timeout", "3")
        place.say("# remedy: start the nodes; traffic continues by itself")
        began = time.monotonic()
        for node in (0, 1):
            await place.cluster.revive(node)
        await traffic.flows()
        place.say(
            f"# acknowledgements arrive again {time.monotonic() - began:.1f} s after the start of the nodes"
        )
        await place.run("doctor", uri, "--timeout", "3")
    traffic.report()


RUNBOOKS: dict[str, Callable[[Place], Awaitable[None]]] = {
    "wrong-expression": wrong_expression,
    "poisoned-queue": poisoned_queue,
    "moving-a-queue": moving_a_queue,
    "rotating-credentials": rotating_credentials,
    "rolling-restart": rolling_restart,
    "lost-quorum": lost_quorum,
}


#: Runbooks that need several nodes.
_REAL = ("rolling-restart", "lost-quorum")


async def execute(name: str, arguments: argparse.Namespace) -> None:
    """Execute a runbook, and write its output into its page."""
    print(f"---- {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(arguments, Path(folder))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(place.stop)
            began = time.monotonic()
            await RUNBOOKS[name](place)
        page = PAGES / f"{name}.md"
        if page.exists() and not arguments.dry:
            text = page.read_text(encoding="utf-8")
            before, _, rest = text.partition(BEGIN)
            _, _, after = rest.partition(END)
            said = "\n".join(place.lines).replace(folder, "WORK").rstrip()
            told = f"Executed on {place.kind}, in {time.monotonic() - began:.0f} s:"
            page.write_text(
                f"{before}{BEGIN}\n\n{told}\n\n```text\n{said}\n```\n\n{END}{after}", encoding="utf-8"
            )


def main() -> None:
    """Parse the command line, and execute runbooks."""
    parser = argparse.ArgumentParser(description="Execute the runbooks.")
    parser.add_argument("names", nargs="*", help="runbooks; all that the brokers allow if omitted")
    parser.add_argument(
        "--broker", help="a real broker's program, for three nodes; an embedded broker if omitted"
    )
    parser.add_argument("--port", type=int, default=0, help="port of the embedded broker")
    parser.add_argument("--dry", action="store_true", help="leave the pages as they are")
    arguments = parser.parse_args()
    for name in arguments.names or [each for each in RUNBOOKS if arguments.broker or each not in _REAL]:
        asyncio.run(execute(name, arguments))


if __name__ == "__main__":
    main()
