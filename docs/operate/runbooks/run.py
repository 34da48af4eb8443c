# SPDX-License-Identifier: Apache-2.0
"""Execute the runbooks of this folder: cause each problem, find it and repair it, and print the output.

    python docs/operate/runbooks/run.py                                      # all, against an embedded broker
    python docs/operate/runbooks/run.py poisoned-queue --port 43500
    python docs/operate/runbooks/run.py rolling-restart --broker /usr/local/bin/bmqbrkr   # three real nodes
    python docs/operate/runbooks/run.py upgrade --broker /opt/new/bmqbrkr --old-broker /opt/old/bmqbrkr

``full-disk`` mounts a small file system for each node, and needs root and the loop devices of Linux.

Each runbook has traffic beside the problem: a producer with numbered messages and a consumer. At the end, the
books are balanced: lost and repeated messages are printed, and a lost message fails the run. The commands and
their output are printed; a run on real nodes also updates the table in the index.
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
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import bmq
from tests.integration.cluster import NODES, RealCluster

PAGES = Path(__file__).resolve().parent
DOMAIN = "bmq://bmq.test.persistent.priority"
#: Lines of the answer to STATUS that tell whether a cluster is healthy.
_HEALTH = "Is Healthy|Node Status|Leader Node|Primary (Node|Status) *:"
#: Number of messages in the queue without a consumer.
_WAITING = 100
#: Row of the table in the index: what caused the problem, and the remedy.
_ROW = "| [{title}]({name}.md) | {cause} | {remedy} | {verified:.1f} s |"
#: Size of the file system of a node whose disk becomes full, in bytes; the files of the broker are sparse.
_DISK = 1 << 30
#: Timeout of a single step, in seconds.
DEADLINE = 90.0


class Place:
    """The brokers of a run, and the commands of the operator.

    Attributes:
        addresses: addresses of the brokers.
        row: values of the row of this runbook in the table of all runbooks.
    """

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self._program = arguments.broker
        self.old = arguments.old_broker or arguments.broker
        self._releases = {self.old: arguments.old_release, self._program: arguments.release}
        self._port = arguments.port or _free_port()
        self.work = work
        self._process: asyncio.subprocess.Process | None = None
        self._options: tuple[str, ...] = ()
        self.cluster: RealCluster | None = None
        self.addresses = ""
        self.environment: dict[str, str] = {}
        self.row: dict[str, Any] = {}

    def prepare(
        self,
        authentication: dict[str, Any] | None = None,
        credentials: bmq.Credentials | None = None,
    ) -> RealCluster:
        """Return the real nodes before their start; the program ends without ``--broker``."""
        if self._program is None:
            raise SystemExit("this runbook needs three real nodes: --broker PROGRAM")
        self.cluster = RealCluster(
            self._program, self.work, authentication=authentication, credentials=credentials
        )
        return self.cluster

    @property
    def real(self) -> bool:
        """Whether the runbook is executed on real nodes."""
        return self._program is not None

    async def start(self, *options: str) -> None:
        """Start three real nodes and a proxy, or the embedded broker with options of its command."""
        if self._program is not None:
            if self.cluster is None:
                self.cluster = RealCluster(self._program, self.work)
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
        """Print a line of the transcript."""
        print(line.rstrip(), flush=True)

    def shell(self, *words: str) -> None:
        """Run another command, and print command and output."""
        self.say(f"$ {shlex.join(words)}")
        for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines():
            self.say(line)
        self.say("")

    async def run(self, *words: str, title: str | None = None, grep: str = "") -> str:
        """Run a command of ``bmq``, and print command and output; ``grep`` chooses lines."""
        shown = title or shlex.join(["bmq", *words])
        self.say(f"$ {shown}" + (f" | grep -E '{grep}'" if grep else ""))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bmq", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self.work,
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
            if re.search(grep, line):
                self.say(line)
        self.say("")
        return text

    async def status(self, address: str) -> bool:
        """Print the health of the cluster as one node sees it; return whether every node is available."""
        text = await self.run(
            *("admin", "CLUSTERS", "CLUSTER", "bmq", "STATUS", "--broker", address), grep=_HEALTH
        )
        return re.search(r"Is Healthy\s*: Yes", text) is not None and text.count("E_AVAILABLE") == NODES

    def release(self, program: str) -> str:
        """Return the release of a broker's program; by default what the program says of its version."""
        return self._releases.get(program) or _version(program)

    async def stored(self, address: str) -> None:
        """Print what one node has stored of the waiting messages; a missing message fails the run."""
        domain = f"{DOMAIN}.sc".removeprefix("bmq://")
        text = await self.run(
            *("admin", "CLUSTERS", "CLUSTER", "bmq", "STORAGE", "DOMAIN", domain, "QUEUE_STATUS"),
            *("--broker", address),
            grep="QueueUri|/waiting",
        )
        assert re.search(rf" {_WAITING} .*/waiting", text), text

    async def joined(self, uri: str, address: str) -> None:
        """Repeat both checks of a node until both succeed."""
        began, attempts = time.monotonic(), 1
        async with asyncio.timeout(DEADLINE):
            while "FAIL" in await self.run(
                "doctor", uri, "--post", "--broker", address
            ) or not await self.status(address):
                attempts += 1
                await asyncio.sleep(0.5)
        self.say(f"# both checks succeeded after {time.monotonic() - began:.1f} s, in attempt {attempts}")


class Traffic:
    """A producer with numbered messages, and a consumer that confirms each message.

    With ``kind``, each message has this property ``order_type``, and the consumer subscribes to no other
    message: a bystander on a queue with a problem.

    Attributes:
        posted: numbers of the acknowledged messages.
        received: how often each number arrived.
        refused: number of posts that the broker did not accept, by status.
        longest: longest time between two acknowledgements, in seconds.
    """

    def __init__(self, place: Place, uri: str, *, kind: str = "", **options: Any) -> None:
        self._place, self._uri, self._options = place, uri, options
        self._properties = {"order_type": kind} if kind else None
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
                    await queue.post(data, properties=self._properties)
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
        kind = self._properties
        text = f'order_type == "{kind["order_type"]}"' if kind else None
        async with queue.subscribe(text) as consumer:
            async for message in consumer:
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
    """A consumer is deployed with a misspelt property: its messages wait and match nothing.

    The bystander's consumer reads other messages of the same queue, and must receive them all the time.
    """
    await place.start()
    uri = f"{DOMAIN}/orders"
    traffic = Traffic(place, uri, kind="STANDARD")
    async with bmq.connect(place.addresses) as session:
        producer = await session.open_queue(uri, write=True)
        consumer_session = await bmq.connect(place.addresses, process_name="kitchen")
        queue = await consumer_session.open_queue(uri, read=True)
        wrong = await queue.subscribe('order_typ == "EXPRESS"')
        async with traffic.running():
            began = time.monotonic()
            for number in range(20):
                await producer.post(b"%d" % number, properties={"order_type": "EXPRESS"})
            place.say("# symptom: the queue grows, and the consumer is connected and idle")
            await place.run("queues")
            place.say("# confirm: what the readers want, and who would get an EXPRESS order")
            assert "no subscription matches" in await place.run("explain", uri)
            after = time.monotonic() - began
            express = ("-p", "order_type=EXPRESS")
            assert "No subscription matches" in await place.run("explain", uri, *express)
            place.say("# the right expression, tried before it is deployed")
            await place.run("check", 'order_type == "EXPRESS"', *express)
            await traffic.flows()
            place.say("# remedy: deploy the right expression (here: consumer.configure)")
            began = time.monotonic()
            await wrong.configure('order_type == "EXPRESS"')
            got = [await wrong.receive(timeout=DEADLINE) for _ in range(20)]
            for message in got:
                message.confirm()
        await consumer_session.close()
        place.say("# verify: the queue is empty")
        assert "No messages wait" in await place.run("explain", uri)
        place.row = {
            "cause": "20 messages with a property that the consumer's expression misspells",
            "sign": "`bmq explain`: no subscription matches",
            "after": after,
            "remedy": "the right expression",
            "verified": time.monotonic() - began,
        }
        assert sorted(int(message.data) for message in got) == list(range(20))
    traffic.report()


async def poisoned_queue(place: Place) -> None:
    """A message fails in every attempt; dead letters take it out of the way."""
    await place.start()
    uri, dead = f"{DOMAIN}/payments", f"{DOMAIN}/payments.dead"
    traffic = Traffic(place, f"{DOMAIN}/other")
    async with traffic.running(), bmq.connect(place.addresses) as session:
        producer = await session.open_queue(uri, write=True)
        began = time.monotonic()
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
        assert "(full)" in await place.run("explain", uri)
        after = time.monotonic() - began
        await place.run("peek", uri, "--count", "1")
        await reader.close()
        place.say("# remedy: let the worker put messages aside that keep failing (a DeadLetter policy)")
        app = bmq.App(place.addresses)
        policy = bmq.Backoff(every=0.05, retries=3, then=bmq.DeadLetter(dead))
        app.consumer(uri, retry=policy)(charge)
        began = time.monotonic()
        running = asyncio.create_task(app.run())

        async def done() -> bool:
            return len(handled) == 10 and handled[b"not a number"] == 5  # once by hand, four times by the app

        await eventually(done)
        await asyncio.sleep(1)  # the dead letter is posted after the last attempt
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        place.say("# verify: the queue is empty, and the dead letter has the reason")
        assert "No messages wait" in await place.run("explain", uri)
        assert "ValueError" in await place.run("dead", dead)
        place.row = {
            "cause": "one of ten messages fails in every attempt, and its consumer has room for one message",
            "sign": "`bmq explain`: every subscription is at its limit",
            "after": after,
            "remedy": "a `DeadLetter` policy",
            "verified": time.monotonic() - began,
        }
        place.say("# after a repair of the handler: put the message back")
        await place.run("dead", dead, "--all", "--back")
        repaired = await session.open_queue(uri, read=True)
        back = await repaired.receive(timeout=DEADLINE)
        assert back.data == b"not a number"
        back.confirm()
        await repaired.close()
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
        began = time.monotonic()
        await place.run("move", old, new, "--limit", "20")
        place.say("# the same command continues: here after 20 messages")
        await place.run("move", old, new)
        took = time.monotonic() - began
        place.say("# verify: depth and content of both queues")
        await place.run("queues")
        place.row = {
            "cause": "50 messages in a queue",
            "sign": "`bmq queues`: all are in the other queue",
            "after": took,
            "remedy": "`bmq move`, in two runs",
            "verified": time.monotonic() - began,
        }
        await place.run("peek", new, "--count", "2")
        reader = await session.open_queue(new, read=True)
        got = [await reader.receive(timeout=DEADLINE) for _ in range(50)]
        for message in got:
            message.confirm()
        place.say(f"# {len({message.guid for message in got})} of 50 messages arrived, each once")
        assert [int(message.data) for message in got] == list(range(50))
    traffic.report()


async def rotating_credentials(place: Place) -> None:
    """Replace a name and its password without downtime: the program reads both at each authentication."""
    await (_rotate_real(place) if place.real else _rotate_embedded(place))


def _asking(**users: str) -> dict[str, Any]:
    """Return the configuration of a node that knows these users.

    The nodes connect to each other without credentials, so that connections without credentials stay allowed.
    """
    settings = [{"key": user, "value": {"stringVal": password}} for user, password in users.items()]
    return {"authenticators": [{"name": "BasicAuthenticator", "settings": settings}]}


async def _rotate_real(place: Place) -> None:
    """Two rolling restarts: the first adds the new name to each node, the second removes the old name."""
    cluster = place.prepare(_asking(**{"shop-a": "old"}), bmq.Credentials.basic("shop-a", "old"))
    await place.start()
    nodes, own = cluster.ways["nodes"], f"{DOMAIN}.sc/doctor"
    for name, password in (("shop-a", "old"), ("shop-b", "new")):
        (place.work / f"{name}.password").write_text(password)
    asked: Counter[str] = Counter()
    current = "shop-a"

    def credentials() -> bmq.Credentials:
        asked[current] += 1
        return bmq.Credentials.basic(current, (place.work / f"{current}.password").read_text())

    async def doctor(address: str, name: str) -> str:
        words = ("--user", name, "--password-file", f"{name}.password")
        return await place.run("doctor", own, "--broker", address, *words)

    began = time.monotonic()
    traffic = Traffic(place, f"{DOMAIN}.sc/orders", credentials=credentials)
    async with traffic.running():
        await traffic.flows()
        place.say("# 1. rolling restart: each node gets the new user shop-b beside shop-a")
        for node in await _replicas_first(place, cluster):
            place.say(f"# node {node}: new configuration, SIGTERM, start, both checks")
            cluster.ask_for(node, _asking(**{"shop-a": "old", "shop-b": "new"}))
            await _replace(place, cluster, traffic, node, own)
        place.say("# verify before the next step: each node accepts shop-b")
        for address in nodes:
            assert "FAIL" not in await doctor(address, "shop-b")
        place.say("# 2. the program's source has shop-b; sessions use it at their next authentication")
        current = "shop-b"
        place.say("# 3. rolling restart: each node forgets shop-a")
        for node in await _replicas_first(place, cluster):
            place.say(f"# node {node}: new configuration, SIGTERM, start, both checks")
            cluster.ask_for(node, _asking(**{"shop-b": "new"}))
            await _replace(place, cluster, traffic, node, own)
        place.say(f"# the two sessions authenticated {asked['shop-b']} times as shop-b")
        place.say("# 4. verify: each node refuses shop-a")
        for address in nodes:
            assert "FAIL  negotiate" in await doctor(address, "shop-a")
        place.say("# a connection without credentials is accepted: the nodes need this themselves")
        assert "without credentials" in await place.run("doctor", "--broker", nodes[0])
    place.row = {
        "cause": "two rolling restarts under traffic",
        "sign": "longest pause of the producer",
        "after": traffic.longest,
        "remedy": "a second user, then the removal of the first",
        "verified": time.monotonic() - began,
    }
    traffic.report()


async def _rotate_embedded(place: Place) -> None:
    """Replace a password of the embedded broker: the program reads the password at each authentication."""
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


async def _wait_for_later(place: Place) -> None:
    """Post messages to a queue without a consumer: each node must have them at the end."""
    place.say(f"# {_WAITING} messages wait in the queue {DOMAIN}.sc/waiting, which has no consumer")
    async with bmq.connect(place.addresses) as session:
        queue = await session.open_queue(f"{DOMAIN}.sc/waiting", write=True)
        for number in range(_WAITING):
            await queue.post(b"%d" % number)


async def _replace(place: Place, cluster: RealCluster, traffic: Traffic, node: int, own: str) -> None:
    """Stop a node in an orderly way, start it, and wait until it has joined the cluster."""
    await cluster.kill(node, signal.SIGTERM)
    await traffic.flows()
    await cluster.revive(node)
    await place.joined(own, cluster.ways["nodes"][node])
    await traffic.flows()


async def _replicas_first(place: Place, cluster: RealCluster) -> list[int]:
    """Return the nodes in the order of a rolling restart: the primary is the last."""
    primary = await cluster.primary()
    place.say(f"# node {primary} is the primary: the last to be restarted")
    return [*(node for node in range(NODES) if node != primary), primary]


async def rolling_restart(place: Place) -> None:
    """Restart node after node under traffic, each after the one before has joined."""
    cluster = place.prepare()
    await place.start()
    own = f"{DOMAIN}.sc/doctor"
    began = time.monotonic()
    traffic = Traffic(place, f"{DOMAIN}.sc/orders")
    async with traffic.running():
        await traffic.flows()
        await _wait_for_later(place)
        place.say("# before: each node is examined")
        for address in cluster.ways["nodes"]:
            await place.joined(own, address)  # a broker accepts sessions before its cluster is healthy
        for node in await _replicas_first(place, cluster):
            place.say(f"# node {node}: stop it with SIGTERM, start it, repeat both checks until they succeed")
            await _replace(place, cluster, traffic, node, own)
            await place.stored(cluster.ways["nodes"][node])
    place.row = {
        "cause": "SIGTERM and start of each node under traffic",
        "sign": "longest pause of the producer",
        "after": traffic.longest,
        "remedy": "both checks before the next node",
        "verified": time.monotonic() - began,
    }
    traffic.report()


def _version(program: str) -> str:
    """Return what a broker's program says of its version."""
    return subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout.strip()


async def upgrade(place: Place) -> None:
    """Replace the program of node after node under traffic; one node is set back on the way."""
    cluster = place.prepare()
    new = cluster.programs[0]
    cluster.programs[:] = [place.old] * len(cluster.programs)
    await place.start()
    own = f"{DOMAIN}.sc/doctor"
    began = time.monotonic()
    traffic = Traffic(place, f"{DOMAIN}.sc/orders")
    place.say(f"# old: {place.release(place.old)}")
    place.say(f"# new: {place.release(new)}")
    if place.old == new:
        place.say("# both are the same program: this run shows the procedure, and nothing about two versions")
    async with traffic.running():
        await traffic.flows()
        for address in cluster.ways["nodes"]:
            await place.joined(own, address)
        order = await _replicas_first(place, cluster)
        for position, node in enumerate(order):
            place.say(f"# node {node}: stop it with SIGTERM, and start the new program")
            cluster.programs[node] = new
            await _replace(place, cluster, traffic, node, own)
            if position == 0:
                place.say(f"# the way back is tried while it is cheap: node {node} with the old program")
                cluster.programs[node] = place.old
                await _replace(place, cluster, traffic, node, own)
                place.say(f"# node {node}: the new program again")
                cluster.programs[node] = new
                await _replace(place, cluster, traffic, node, own)
        place.say("# the proxies follow when all nodes have the new program; verify: each node is examined")
        for address in cluster.ways["nodes"]:
            await place.joined(own, address)  # a broker accepts sessions before its cluster is healthy
    place.row = {
        "cause": ("the same program again" if place.old == new else "a new program")
        + " for each node under traffic, one node set back on the way",
        "sign": "longest pause of the producer",
        "after": traffic.longest,
        "remedy": "both checks before the next node",
        "verified": time.monotonic() - began,
    }
    traffic.report()


def _mount(cluster: RealCluster, work: Path, stack: AsyncExitStack) -> None:
    """Mount a file system of its own for the storage of each node."""
    for node in range(NODES):
        image, storage = work / f"disk{node}.img", cluster.folder(node) / "storage"
        storage.mkdir(parents=True)
        with image.open("wb") as file:
            file.truncate(_DISK)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(storage)], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", str(storage)], check=True)


def _fill(storage: Path) -> Path:
    """Take all the space of a file system with one file, and return its path."""
    path = storage / "somebody-elses.log"
    with path.open("wb", buffering=0) as file:
        free = os.statvfs(storage)
        with contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, (free.f_bavail - 64) * free.f_frsize)
        file.seek(0, os.SEEK_END)
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
    return path


def _ending(status: int) -> str:
    """Describe the exit status of a process."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


async def full_disk(place: Place) -> None:
    """Fill the disk of a replica, then that of the primary; free the space, and start the node."""
    cluster = place.prepare()
    own = f"{DOMAIN}.sc/doctor"
    async with AsyncExitStack() as stack:
        _mount(cluster, place.work, stack)
        stack.push_async_callback(place.stop)
        await place.start()
        exporter = await _exporter(place, stack)
        traffic = Traffic(place, f"{DOMAIN}.sc/orders")
        async with traffic.running():
            await traffic.flows()
            await _wait_for_later(place)
            for role in ("replica", "primary"):
                primary = await cluster.primary()
                node = primary if role == "primary" else (primary + 1) % NODES
                address = cluster.ways["nodes"][node]
                other = cluster.ways["nodes"][(node + 1) % NODES]
                storage = cluster.folder(node) / "storage"
                place.say(f"# the disk of node {node}, the {role}, becomes full")
                began = time.monotonic()
                file = _fill(storage)
                how = _ending(await cluster.ended(node))
                place.say(f"# the process ended by itself after {time.monotonic() - began:.1f} s: {how}")
                await traffic.flows()
                place.say(f"# messages are acknowledged again after {time.monotonic() - began:.1f} s")
                await exporter(address, 0)
                after = time.monotonic() - began
                place.say(f"# bmq exporter says bmq_broker_up 0 after {after:.1f} s")
                place.say("# confirm: the node refuses connections, the others miss it, and df tells why")
                await place.run("doctor", own, "--broker", address)
                await place.status(other)
                place.shell("df", "--output=size,used,avail,pcent", str(storage))
                place.say("# a start of the node while the disk is still full")
                began = time.monotonic()
                how = _ending(await cluster.ended(node, start=True))
                place.say(f"# the process ended by itself after {time.monotonic() - began:.1f} s: {how}")
                place.shell(
                    "grep", "-o", "INSUFFICIENT_DISK_SPACE.*", str(cluster.folder(node) / "stdout.log")
                )
                place.say("# remedy: free the space, then start the node with its stored data")
                file.unlink()
                place.shell("df", "--output=size,used,avail,pcent", str(storage))
                began = time.monotonic()
                await cluster.revive(node)
                await place.joined(own, address)
                await exporter(address, 1)
                await traffic.flows()
                await place.stored(address)
                place.row = {
                    "cause": f"the disk of the {role} has no free block",
                    "sign": "SIGBUS ends the process; `bmq_broker_up` is 0",
                    "after": after,
                    "remedy": "free the space, start the node",
                    "verified": time.monotonic() - began,
                }
        traffic.report()


async def _exporter(place: Place, stack: AsyncExitStack) -> Callable[[str, int], Awaitable[None]]:
    """Start ``bmq exporter``; return a function that waits until ``bmq_broker_up`` of a node has a value."""
    port = _free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bmq", "exporter", place.addresses),
        *("--listen", f"127.0.0.1:{port}", "--interval", "1"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )

    async def end() -> None:
        process.terminate()
        await process.wait()

    stack.push_async_callback(end)

    def metrics() -> str:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text: str = page.read().decode()
            return text
        return ""

    async def wait(address: str, value: int) -> None:
        wanted = re.compile(rf"bmq_broker_up{{[^}}]*{re.escape(address)}[^}}]*}} {value}\b")

        async def seen() -> bool:
            return wanted.search(await asyncio.to_thread(metrics)) is not None

        await eventually(seen)

    return wait


async def lost_quorum(place: Place) -> None:
    """Two of three nodes are down: no node accepts posts, and no acknowledged message is lost."""
    cluster = place.prepare()
    await place.start()
    nodes, own = cluster.ways["nodes"], f"{DOMAIN}.sc/doctor"
    traffic = Traffic(place, f"{DOMAIN}.sc/orders")
    async with traffic.running():
        await traffic.flows()
        await _wait_for_later(place)
        began = time.monotonic()
        for node in (0, 1):
            await cluster.kill(node, signal.SIGKILL)
        place.say("# symptom: posts are not acknowledged; confirm on each node")
        for address in nodes:
            assert "FAIL" in await place.run("doctor", own, "--broker", address, "--timeout", "3")
        after = time.monotonic() - began
        await place.status(nodes[2])
        place.say("# remedy: start the nodes; traffic continues by itself")
        began = time.monotonic()
        for node in (0, 1):
            await cluster.revive(node)
        await traffic.flows()
        place.say(
            f"# acknowledgements arrive again {time.monotonic() - began:.1f} s after the start of the nodes"
        )
        place.say("# verify: each node is examined")
        for address in nodes:
            await place.joined(own, address)
            await place.stored(address)
        place.row = {
            "cause": "two of three nodes are killed",
            "sign": "`bmq doctor QUEUE` fails at `open`",
            "after": after,
            "remedy": "both nodes start",
            "verified": time.monotonic() - began,
        }
    traffic.report()


RUNBOOKS: dict[str, Callable[[Place], Awaitable[None]]] = {
    "wrong-expression": wrong_expression,
    "poisoned-queue": poisoned_queue,
    "moving-a-queue": moving_a_queue,
    "rotating-credentials": rotating_credentials,
    "rolling-restart": rolling_restart,
    "upgrade": upgrade,
    "full-disk": full_disk,
    "lost-quorum": lost_quorum,
}


#: Runbooks that need several nodes.
_REAL = ("rolling-restart", "upgrade", "full-disk", "lost-quorum")


def _write_row(name: str, title: str, values: dict[str, Any]) -> None:
    """Replace the row of a runbook in the table of all runbooks."""
    page, row = PAGES / "index.md", _ROW.format(name=name, title=title, **values)
    lines = page.read_text(encoding="utf-8").splitlines()
    lines = [row if f"]({name}.md) |" in line else line for line in lines]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


async def execute(name: str, arguments: argparse.Namespace) -> None:
    """Execute a runbook, and print its output."""
    print(f"---- {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(arguments, Path(folder))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(place.stop)
            await RUNBOOKS[name](place)
        if place.row and place.cluster is not None and not arguments.dry:
            title = (PAGES / f"{name}.md").read_text(encoding="utf-8").splitlines()[0]
            _write_row(name, title.removeprefix("# "), place.row)


def main() -> None:
    """Parse the command line, and execute runbooks."""
    parser = argparse.ArgumentParser(description="Execute the runbooks.")
    parser.add_argument("names", nargs="*", help="runbooks; all that the brokers allow if omitted")
    parser.add_argument(
        "--broker", help="a real broker's program, for three nodes; an embedded broker if omitted"
    )
    parser.add_argument("--old-broker", help="program of an older release, for the upgrade")
    parser.add_argument("--release", default="", help="name of the program's release")
    parser.add_argument("--old-release", default="", help="name of the older release")
    parser.add_argument("--port", type=int, default=0, help="port of the embedded broker")
    parser.add_argument("--dry", action="store_true", help="leave the table in the index as it is")
    arguments = parser.parse_args()
    for name in arguments.names or [each for each in RUNBOOKS if arguments.broker or each not in _REAL]:
        asyncio.run(execute(name, arguments))


if __name__ == "__main__":
    main()
