# SPDX-License-Identifier: Apache-2.0
"""``bmq exporter``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer

import bmq
from bmq import _world
from bmq.admin import Admin
from bmq.cli.messages import BadInput
from bmq.cli.output import emit, note
from bmq.cli.target import BrokerTarget, verb
from bmq.engine.address import Address, parse_addresses

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    from bmq.cli.broker_metrics import families
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        "bmq exporter needs prometheus-client, which is not installed: pip install 'bmq[cli,prometheus]'",
        name=error.name,
    ) from error

from bmq.cli.broker_view import BrokerView, Labels, Watch

__all__ = ["Exporter", "command"]

_DEFAULT = "127.0.0.1:30190"


@verb("exporter")
async def command(
    target: BrokerTarget,
    addresses: Annotated[
        str | None,
        typer.Argument(
            metavar="[BROKER,...]",
            help="Addresses of all nodes of a cluster, and of proxies.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="ADDRESS:PORT", help="Address to serve; port 0 selects a free port."
        ),
    ] = _DEFAULT,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", "-i", metavar="SECONDS", min=1.0, help="Time between two rounds of commands."
        ),
    ] = 15.0,
    max_queues: Annotated[
        int,
        typer.Option(
            "--max-queues", metavar="N", min=0, help="Number of queues, and of domains, with series."
        ),
    ] = 1000,
    max_apps: Annotated[
        int,
        typer.Option("--max-apps", metavar="N", min=0, help="Number of applications of a queue with series."),
    ] = 20,
    max_details: Annotated[
        int,
        typer.Option(
            "--max-details",
            metavar="N",
            min=0,
            help="Number of queues that each round asks for consumers and the oldest message.",
        ),
    ] = 200,
    domain: Annotated[
        list[str] | None,
        typer.Option("--domain", metavar="DOMAIN", help="Only the queues of this domain. Repeatable."),
    ] = None,
) -> None:
    """Serve the metrics of brokers for Prometheus: queues, consumers, quotas, nodes and partitions.

    The command asks every broker over an admin connection, once each interval, and keeps the last answers for
    any number of scrapes. Give the addresses of all nodes of a cluster: a queue's figures come from the
    queue's primary. A broker that is down, or refuses, is reported as bmq_broker_up 0, and asked again.

    Each command leaves lines in the log of a broker. --max-details bounds the number of commands, and
    --max-queues and --max-apps bound the number of series; bmq_exporter_left_out_queues counts the rest.

    [bold]Examples[/]

    $ bmq exporter tcp://localhost:30114
    $ bmq exporter tcp://node1:30114,tcp://node2:30114,tcp://node3:30114 --listen 0.0.0.0:30190
    $ bmq exporter --broker prod --interval 30 --domain bmq.test.mem.priority
    """
    if addresses is not None:
        if target.named:
            raise BadInput(f"give the brokers once: {addresses} or --broker {target.uri}")
        target = replace(target, uri=addresses)
    host, port = _listen_address(listen)
    exporter = Exporter(
        target,
        parse_addresses(target.uri),
        interval=interval,
        max_queues=max_queues,
        max_apps=max_apps,
        max_details=max_details,
        only=frozenset(domain or ()),
    )
    try:
        await exporter.ask_all()
        registry = CollectorRegistry()
        registry.register(exporter)
        ProcessCollector(registry=registry)
        try:
            server, thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise BadInput(f"--listen {listen}: {error}; choose another address or port") from error
        try:
            shown = f"[{host}]" if ":" in host else host
            emit(f"http://{shown}:{server.server_port}/metrics", flush=True)
            await exporter.run()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    finally:
        await exporter.close()


def _listen_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"--listen must be ADDRESS:PORT, for example {_DEFAULT}, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Broker:
    """One broker, its connection, and its last view.

    Attributes:
        view: the answers of the last round; None after a failure.
        failures: failed rounds, by class of the error.
        seconds: duration of the last round.
    """

    def __init__(self, target: BrokerTarget, address: Address, watch: Watch) -> None:
        self._target = replace(target, uri=str(address))
        self._admin: Admin | None = None
        self._reported = ""
        self.address = str(address)
        self.watch = watch
        self.view: BrokerView | None = None
        self.failures: dict[str, int] = {}
        self.seconds = 0.0

    async def ask(self) -> None:
        """Ask for a new view. A failure is kept as a count and as a line on stderr."""
        started = _world.monotonic()
        try:
            if self._admin is None:
                self._admin = await self._target.admin()
            self.view = await self.watch.look(self._admin)
        except (bmq.Error, OSError) as error:
            self.view = None
            self.watch.forget()
            name = type(error).__name__
            self.failures[name] = self.failures.get(name, 0) + 1
            if self._reported != name:
                note(f"bmq exporter: {self.address} does not answer: {error}")
            self._reported = name
            await self.close()
        else:
            if self._reported:
                note(f"bmq exporter: {self.address} answers again")
            self._reported = ""
        self.seconds = _world.monotonic() - started

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()


class Exporter(Collector):
    """Asks the brokers, each in a loop of its own, and collects their last views."""

    def __init__(
        self,
        target: BrokerTarget,
        addresses: Iterable[Address],
        *,
        interval: float,
        max_queues: int,
        max_apps: int,
        max_details: int,
        only: frozenset[str],
    ) -> None:
        self._interval = interval
        self._queues, self._domains = Labels(max_queues), Labels(max_queues)
        self._brokers = [
            _Broker(
                target,
                address,
                Watch(
                    str(address),
                    queues=self._queues,
                    domains=self._domains,
                    only=only,
                    max_apps=max_apps,
                    max_details=max_details,
                ),
            )
            for address in dict.fromkeys(addresses)
        ]

    async def ask_all(self) -> None:
        """Ask all brokers once, at the same time."""
        await asyncio.gather(*(broker.ask() for broker in self._brokers))

    async def run(self) -> None:
        """Ask all brokers, until cancelled."""
        await asyncio.gather(*map(self._repeat, self._brokers))

    async def _repeat(self, broker: _Broker) -> None:
        while True:
            # A broker that is slow to answer has as much time for its other work.
            await asyncio.sleep(max(self._interval - broker.seconds, broker.seconds))
            await broker.ask()

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(*(broker.close() for broker in self._brokers))

    # in the thread of a scrape: a view is replaced, and never changed

    def describe(self) -> Iterable[Metric]:
        """Return no description, so that registering collects nothing."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the last views."""
        views = [broker.view for broker in self._brokers]
        yield from self._of_brokers()
        yield from families([view for view in views if view is not None], _world.now())

    def _of_brokers(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("bmq_broker_up", "Whether a broker answered the last round", labels=["broker"])
        info = GaugeMetricFamily(
            "bmq_broker_info",
            "1 for the name and role of a broker in a cluster",
            labels=["broker", "cluster", "node", "role"],
        )
        seconds = GaugeMetricFamily(
            "bmq_exporter_round_seconds", "Duration of the last round of commands", labels=["broker"]
        )
        at = GaugeMetricFamily(
            "bmq_exporter_last_success_timestamp_seconds", "Time of the last answers", labels=["broker"]
        )
        stale = GaugeMetricFamily(
            "bmq_exporter_oldest_details_seconds",
            "Age of the oldest answer about one queue",
            labels=["broker"],
        )
        commands = CounterMetricFamily(
            "bmq_exporter_commands", "Admin commands sent", labels=["broker", "command"]
        )
        failures = CounterMetricFamily(
            "bmq_exporter_failed_rounds", "Rounds without a complete answer", labels=["broker", "error"]
        )
        for broker in self._brokers:
            view = broker.view
            up.add_metric([broker.address], view is not None)
            seconds.add_metric([broker.address], broker.seconds)
            for name, count in list(broker.watch.commands.items()):
                commands.add_metric([broker.address, name], count)
            for name, count in list(broker.failures.items()):
                failures.add_metric([broker.address, name], count)
            if view is not None:
                at.add_metric([broker.address], view.time.timestamp())
                stale.add_metric([broker.address], view.stale)
                for each in view.clusters:
                    info.add_metric([broker.address, each.cluster, each.node, each.role], 1)
        yield from (up, info, seconds, at, stale, commands, failures)
        apps = sum(
            queue.details.left_out_apps
            for broker in self._brokers
            if broker.view is not None
            for queue in broker.view.queues
            if queue.details is not None
        )
        for name, count in (
            ("queues", self._queues.left_out),
            ("domains", self._domains.left_out),
            ("apps", apps),
        ):
            yield GaugeMetricFamily(
                f"bmq_exporter_left_out_{name}", f"Number of {name} without series", value=count
            )
