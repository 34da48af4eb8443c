# SPDX-License-Identifier: Apache-2.0
"""The verbs that run until they are stopped: ``bmq console``, ``bmq exporter`` and ``bmq mover``."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from http import HTTPStatus

from bmq._words import number, several
from bmq.cli.output import BadInput, emit, needing, note
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import argument, option, verb
from bmq.client.address import parse_addresses

_DEFAULT = "127.0.0.1:30190"
# Seconds for a request with its answer: Prometheus itself gives up after ten by default.
_PATIENCE = 30.0


@verb("console", service=True)
async def console(
    target: BrokerTarget,
    host: str = option("--host", "Address to listen on.", "127.0.0.1"),
    port: int = option("--port", "Port to listen on; 0 selects a free port.", 30180, min=0, max=65535),
    allow_host: list[str] | None = option(
        "--allow-host NAME", "A host name under which browsers may open the page. Repeatable."
    ),
    read_only: bool = option("--read-only", "Refuse to post, to purge, and to take messages for display."),
    dead_letters: list[str] | None = option(
        "--dead-letters PATTERN",
        "Queues with dead letters, as bmq://DOMAIN/*.failed. Repeatable. Default: *.dead.",
    ),
    interval: float = option("--interval -i SECONDS", "Time between two queries.", 1.0, min=0.1),
) -> None:
    """Serve a web page: queues over time, one queue with its consumers and subscriptions, messages.

    The command prints the page's address. The page is for this machine only, unless --host has another
    address. With --host, the address contains a token: BMQ_CONSOLE_TOKEN, or a new token.

    [bold]Examples[/]

    $ bmq console
    $ bmq console --broker prod --read-only
    $ bmq broker --console
    """
    with needing("aiohttp", "the page needs", "console"):
        from bmq.console import Console, RemoteBroker
    page = Console(
        RemoteBroker(target.uri, **target.access, timeout=target.timeout),
        host=host,
        port=port,
        names=allow_host or (),
        token=os.environ.get("BMQ_CONSOLE_TOKEN") or None,
        read_only=read_only,
        interval=interval,
        dead_letters=dead_letters or ("*.dead",),
    )
    async with page:
        emit(page.url, flush=True)
        await asyncio.Event().wait()


@verb("exporter", service=True)
async def exporter(
    target: BrokerTarget,
    addresses: str | None = argument("[BROKER,...]", "Addresses of all nodes of a cluster, and of proxies."),
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
    domain: list[str] | None = option("--domain DOMAIN", "Only the queues of this domain. Repeatable."),
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
    with needing("prometheus_client", "the metrics need", "cli,prometheus"):
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        from bmq.cli.exporter import Exporter
    from bmq.workers.probe import METRICS_TYPE, TEXT_TYPE, HealthAddressError, Page, PageServer

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
    async with AsyncExitStack() as stack:
        stack.push_async_callback(exporter.close)
        await exporter.ask_all()
        registry = CollectorRegistry()
        registry.register(exporter)
        ProcessCollector(registry=registry)

        async def page(path: str) -> Page:
            if path not in ("/", "/metrics"):
                return HTTPStatus.NOT_FOUND, "the path is /metrics\n", TEXT_TYPE
            return HTTPStatus.OK, await asyncio.to_thread(generate_latest, registry), METRICS_TYPE

        server = PageServer(host, port, page, patience=_PATIENCE)
        try:
            await stack.enter_async_context(server.serving())
        except (HealthAddressError, OverflowError) as error:
            why = getattr(error, "why", error)
            raise BadInput(f"--listen {listen}: {why}; choose another address or port") from error
        emit(f"{server.uri}/metrics", flush=True)
        await exporter.run()


def _listen_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"--listen must be ADDRESS:PORT, for example {_DEFAULT}, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


@verb("mover", service=True)
async def mover(
    target: BrokerTarget,
    queues: list[str] = argument("QUEUE...", "The delay queue: bmq://DOMAIN/NAME.delayed"),
    longest: float | None = option(
        "--longest SECONDS", "Warn if the broker does not keep messages for this long.", min=0
    ),
    lookahead: float = option(
        "--lookahead SECONDS",
        "Maximum time before the due time at which the mover takes a message from the broker and holds it.",
        3600.0,
        min=0.5,
    ),
    max_held: int = option("--max-held", "Maximum number of held messages of a queue.", 10_000, min=1),
    allow: list[str] | None = option(
        "--allow PATTERN",
        "Permitted destination queues, as bmq://DOMAIN/*. Default: the queue's own domain.",
        show_default=False,
    ),
    dead_letters: str | None = option(
        "--dead-letters QUEUE",
        "Queue for messages without a possible destination. Default: such messages stay in the delay queue.",
    ),
    wait: bool = option("--wait", "Wait for an unreachable broker, instead of ending with status 3."),
    quiet: bool = option("--quiet -q", "Print no summary."),
) -> None:
    """Pass delayed messages on at the due time, until interrupted.

    Any number of movers may share the work of a queue, and the remaining movers continue if a mover dies. The
    command prints problems of a queue, such as messages with an expiry before the due time, or a nearly
    exhausted quota.

    [bold]Examples[/]

    $ bmq mover bmq://bmq.test.mem.priority/orders.delayed
    $ bmq mover bmq://bmq.test.mem.priority/orders.delayed --longest 86400
    $ bmq mover QUEUE --wait --dead-letters bmq://bmq.test.mem.priority/orders.dead
    """
    from bmq.delays import Mover

    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(target.connect(retry_first_connect=wait))
        admin = await stack.enter_async_context(target.admin())
        letters = await session.open_queue(dead_letters, write=True) if dead_letters is not None else None
        movers: list[Mover] = []
        for uri in queues:
            queue = await session.open_queue(uri, read=True, default_subscription=False)
            movers.append(
                Mover(
                    queue,
                    allow=allow or None,
                    dead_letters=letters,
                    admin=admin,
                    longest=longest,
                    lookahead=lookahead,
                    tick=min(0.5, lookahead),
                    max_held=max_held,
                )
            )
        try:
            async with asyncio.TaskGroup() as group:  # a failure ends the other movers, too
                for mover in movers:
                    group.create_task(mover.run())
        finally:
            if not quiet:
                moved = sum(mover.moved for mover in movers)
                aside = sum(mover.put_aside for mover in movers)
                lost = "" if not aside else f", {number(aside)} not"
                note(f"{several(moved, 'message')} passed on{lost}")
