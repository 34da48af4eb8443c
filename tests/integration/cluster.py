# SPDX-License-Identifier: Apache-2.0
"""A cluster on loopback with nodes to kill and restart, or an embedded broker in its place.

The configuration is that of ``docker/cluster`` with other addresses, folders and times. With the original
times, the nodes need half a minute to declare a leader dead, and half a minute to elect a
new leader; on loopback, seconds are enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import bmq
from bmq.broker import Broker

CONFIGURATION = Path(__file__).parents[2] / "docker" / "cluster" / "etc"
NODES = 3
PROXY = NODES
#: Seconds for a node to start, or to end after a request.
PATIENCE = 60.0

_ELECTOR = {
    "initialWaitTimeoutMs": 1000,
    "maxRandomWaitTimeoutMs": 500,
    "electionResultTimeoutMs": 1000,
    "heartbeatBroadcastPeriodMs": 500,
    "heartbeatCheckPeriodMs": 250,
    "leaderSyncDelayMs": 1000,
}
_OPERATIONS = {"reopenRetryIntervalMs": 1000, "stopTimeoutMs": 5000, "shutdownTimeoutMs": 5000}
_PRIMARY = re.compile(r"Cluster \[bmq\]: Setting primary of Partition \[0\] to \[\[node(\d)")


class RealCluster:
    """Three real nodes, and a proxy in front of them.

    ``ways`` has the addresses by name, ``nodes`` the number of nodes.

    Args:
        program: broker's executable.
        work: folder for configurations, logs and storage.
        authentication: ``authentication`` of the nodes' configuration, if the nodes ask for credentials.
        credentials: what the health check answers.
        heartbeats: missed heartbeats, every half a second, after which the nodes elect another leader. The
            end of a process is noticed at once. On a busy machine, a few are missed without a fault.

    Attributes:
        programs: executable of each node; a change counts from the node's next start.
    """

    nodes = NODES

    def __init__(
        self,
        program: str,
        work: Path,
        *,
        authentication: dict[str, Any] | None = None,
        credentials: bmq.Credentials | None = None,
        heartbeats: int = 4,
    ) -> None:
        self._work, self._heartbeats = work, heartbeats
        self._authentication, self._credentials = authentication, credentials
        self._names = [f"node{number}" for number in range(NODES)] + ["proxy"]
        self.programs = [program] * len(self._names)
        self._ports = _free_ports(len(self._names))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        addresses = [f"tcp://127.0.0.1:{port}" for port in self._ports]
        self.ways = {"nodes": addresses[:NODES], "proxy": addresses[NODES:]}

    async def start(self) -> None:
        """Start all nodes."""
        for number in range(len(self._names)):
            self._configure(number)
            await self.revive(number)
        await self.healthy()

    async def healthy(self) -> None:
        """Wait until messages can be posted through each node and the proxy."""
        async with asyncio.timeout(2 * PATIENCE):
            for address in [address for way in self.ways.values() for address in way]:
                async with bmq.connect(
                    address,
                    retry_first_connect=True,
                    process_name="health check",
                    credentials=self._credentials,
                ) as session:
                    queue = await session.open_queue("bmq://bmq.test.persistent.priority/health", write=True)
                    await queue.post(b"well?")

    async def primary(self) -> int:
        """Return the node named last in the others' logs."""
        last = ("", 0)
        for name in self._names[:NODES]:
            for line in self._log(name).read_text(errors="replace").splitlines():
                found = _PRIMARY.search(line)
                if found:
                    last = max(last, (line.split()[0], int(found[1])))
        return last[1]

    async def kill(self, node: int, number: signal.Signals) -> None:
        """End a node with a signal, and wait for its end."""
        process = self._running.pop(node)
        process.send_signal(number)
        try:
            await asyncio.to_thread(process.wait, PATIENCE)
        except subprocess.TimeoutExpired:
            print(f"{self._names[node]} did not end by {number.name}: killed", flush=True)
            process.kill()
            process.wait()

    async def revive(self, node: int) -> None:
        """Start a node with its stored messages."""
        name = self._names[node]
        self._running[node] = self._spawn(node)
        async with asyncio.timeout(PATIENCE):
            while True:
                if self._running[node].poll() is not None:
                    raise SystemExit(f"{name} ended by itself; its log is {self._log(name)}")
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._ports[node])
                except OSError:
                    await asyncio.sleep(0.1)
                else:
                    writer.close()
                    return

    def processes(self) -> list[int]:
        """Return the ids of the processes that run."""
        return [process.pid for process in self._running.values()]

    def folder(self, node: int) -> Path:
        """Return the folder of a node."""
        return self._work / self._names[node]

    def ask_for(self, node: int, authentication: dict[str, Any]) -> None:
        """Write another ``authentication`` into a node's configuration; it counts from the next start."""
        path = self.folder(node) / "etc" / "bmqbrkrcfg.json"
        broker = json.loads(path.read_text())
        broker["appConfig"]["authentication"] = authentication
        _write(path, broker)

    async def ended(self, node: int, *, start: bool = False) -> int:
        """Wait until a node ends by itself, and return its exit status: -N after signal N.

        Args:
            node: the node.
            start: whether the node is started before.
        """
        process = self._spawn(node) if start else self._running[node]
        self._running[node] = process
        status = await asyncio.to_thread(process.wait, PATIENCE)
        del self._running[node]
        return status

    async def stop(self) -> None:
        """Stop all nodes."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()

    def _spawn(self, node: int) -> subprocess.Popen[bytes]:
        name, work = self._names[node], self.folder(node)
        with self._log(name).open("ab") as log:
            return subprocess.Popen(
                [self.programs[node], "-h", name, str(work / "etc")], cwd=work, stdout=log, stderr=log
            )

    def _log(self, name: str) -> Path:
        return self._work / name / "stdout.log"

    def _configure(self, number: int) -> None:
        name, port = self._names[number], self._ports[number]
        work = self._work / name
        for folder in ("etc/domains", "logs", "storage/archive"):
            (work / folder).mkdir(parents=True)
        broker = _read("bmqbrkrcfg.json")
        broker["appConfig"] |= {"hostName": name, "brokerInstanceName": name, "etcDir": str(work / "etc")}
        broker["appConfig"]["networkInterfaces"]["tcpInterface"]["port"] = port
        if self._authentication is not None:
            broker["appConfig"]["authentication"] = self._authentication
        _write(work / "etc" / "bmqbrkrcfg.json", broker)
        _write(work / "etc" / "clusters.json", self._clusters(proxy=number >= NODES))
        write_domains(work / "etc" / "domains")

    def _clusters(self, *, proxy: bool) -> dict[str, Any]:
        (cluster,) = _read("clusters.json")["myClusters"]
        for node, name, address in zip(cluster["nodes"], self._names, self.ways["nodes"], strict=False):
            node |= {"name": name, "transport": {"tcp": {"endpoint": address}}}
        cluster["queueOperations"] |= _OPERATIONS
        cluster["elector"] |= _ELECTOR | {"heartbeatMissCount": self._heartbeats}
        if not proxy:
            return {"myClusters": [cluster], "proxyClusters": []}
        kept = ("name", "nodes", "queueOperations", "clusterMonitorConfig", "messageThrottleConfig")
        return {"myClusters": [], "proxyClusters": [{key: cluster[key] for key in kept}]}


class EmbeddedNode:
    """An embedded broker with messages that survive a kill, in place of nodes.

    Args:
        work: folder for the domains.
    """

    nodes = 1

    def __init__(self, work: Path) -> None:
        (work / "domains").mkdir()
        write_domains(work / "domains")
        self._broker = Broker(config_dir=work)
        self.ways: dict[str, list[str]] = {}

    async def start(self) -> None:
        """Start the broker."""
        await self._broker.start()
        self.ways = {"nodes": [self._broker.uri]}

    async def healthy(self) -> None:
        """Return at once: a running broker is healthy."""

    async def primary(self) -> int:
        """Return the only node."""
        return 0

    async def kill(self, node: int, number: signal.Signals) -> None:
        """Drop all connections, or close them in an orderly way."""
        await self._broker.stop(graceful=number is signal.SIGTERM)

    async def revive(self, node: int) -> None:
        """Listen again."""
        await self._broker.start()

    async def stop(self) -> None:
        """Stop the broker."""
        await self._broker.stop()


def write_domains(folder: Path) -> None:
    """Write the domain files; one file loses its limit of consumers."""
    for path in (CONFIGURATION / "domains").glob("*.json"):
        domain = json.loads(path.read_text())
        domain["definition"]["parameters"]["maxConsumers"] = 0
        _write(folder / path.name, domain)


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CONFIGURATION / name).read_text())
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _free_ports(count: int) -> list[int]:
    """Return ports below the ephemeral range: no connection takes such a port while a node is down."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(15_000, 32_000)
        if port not in ports:
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                ports.append(port)
    return ports
