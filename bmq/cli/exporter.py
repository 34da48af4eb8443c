# SPDX-License-Identifier: Apache-2.0
"""``bmq exporter``."""

from __future__ import annotations

from dataclasses import replace

from bmq._version import install
from bmq.cli.completion import domains
from bmq.cli.messages import BadInput
from bmq.cli.options import argument, option
from bmq.cli.output import emit
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import verb
from bmq.client.address import parse_addresses

__all__ = ["command"]

_DEFAULT = "127.0.0.1:30190"


@verb("exporter", service=True)
async def command(
    target: BrokerTarget,
    addresses: str | None = argument(
        "[BROKER,...]", "Addresses of all nodes of a cluster, and of proxies.", None
    ),
    listen: str = option("--listen ADDRESS:PORT", "Address to serve; port 0 selects a free port.", _DEFAULT),
    interval: float = option("--interval -i SECONDS", "Time between two rounds of commands.", 15.0, min=1.0),
    max_queues: int = option("--max-queues N", "Number of queues, and of domains, with series.", 1000, min=0),
    max_apps: int = option("--max-apps N", "Number of applications of a queue with series.", 20, min=0),
    max_details: int = option(
        "--max-details N",
        "Number of queues that each round asks for consumers and the oldest message.",
        200,
        min=0,
    ),
    domain: list[str] | None = option(
        "--domain DOMAIN", "Only the queues of this domain. Repeatable.", None, autocompletion=domains
    ),
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
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

        from bmq.cli.broker_export import Exporter
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "prometheus_client":
            raise
        raise BadInput(f"the metrics need an extra: {install('cli,prometheus')}") from None
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
