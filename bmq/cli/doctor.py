# SPDX-License-Identifier: Apache-2.0
"""``bmq doctor``."""

from __future__ import annotations

import asyncio
import socket
import ssl as ssl_module
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, TypeVar

import typer
from rich.text import Text

import bmq
from bmq.cli.output import emit_json, out, printable, styled
from bmq.cli.status import ExitStatus
from bmq.cli.target import BrokerTarget, status_of, verb
from bmq.client._address import Address, parse_addresses

__all__ = ["command"]

T = TypeVar("T")

_PROPERTY = "bmqDoctor"
# Before every other consumer: nobody else is to see the message.
_PRIORITY = 1_000_000
_READ = "The broker refuses to read: a reader of a fanout queue names its application, ?id=APPID."


class _Stopped(Exception):
    """A step failed, and that was printed."""

    def __init__(self, status: ExitStatus) -> None:
        self.status = status


class _Steps:
    """Runs steps, and says how each went and how long it took."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._console = out()

    async def do(self, name: str, step: Awaitable[T], tell: Callable[[T], str], advice: str) -> T:
        """Run one step.

        Raises:
            _Stopped: it failed.
        """
        started = time.perf_counter()
        try:
            result = await step
        except (bmq.Error, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            self._show(name, time.perf_counter() - started, reason, ok=False)
            self._advise(advice)
            status = status_of(error)
            raise _Stopped(ExitStatus.UNREACHABLE if status is ExitStatus.USAGE else status) from None
        self._show(name, time.perf_counter() - started, tell(result), ok=True)
        return result

    def _show(self, name: str, seconds: float, what: str, *, ok: bool) -> None:
        if self._json:
            emit_json({"step": name, "ok": ok, "seconds": round(seconds, 6), "what": what})
            return
        line = Text("ok    " if ok else "FAIL  ", style="green" if ok else "bold red")
        line.append(f"{name:<13}", style="not bold default").append(
            f"{seconds * 1000:9.2f} ms  ", style="dim"
        )
        line.append(printable(what), style="default")
        self._console.print(line, soft_wrap=True)

    def _advise(self, advice: str) -> None:
        if self._json:
            emit_json({"advice": advice})
        else:
            self._console.print(styled(f"      {advice}"), soft_wrap=True)


@verb("doctor")
async def command(
    target: BrokerTarget,
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUEUE]",
            help="A queue to post to and receive from, with ?id=APPID if it is fanout.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", "-j", help="One JSON object a step.")] = False,
) -> int:
    """Try everything between here and a broker, one step at a time, and say what to do where it stops.

    Resolving, connecting, TLS, authenticating and negotiating; with a queue also opening, posting, receiving
    and confirming one message of its own, which is marked and goes to no other consumer of a priority queue.
    The other applications of a fanout queue get it, though, and all consumers of a broadcast queue.

    [bold]Examples[/]

    $ bmq doctor
    $ bmq doctor bmq://bmq.test.mem.priority/doctor --broker prod
    """
    steps = _Steps(json=json)
    try:
        for address in parse_addresses(target.uri):
            await _reach(steps, target, address)
        async with AsyncExitStack() as stack:
            session = await _negotiate(steps, target, stack)
            if queue is not None:
                await _use(steps, session, queue, target.timeout)
    except _Stopped as stopped:
        return stopped.status
    return ExitStatus.OK


async def _reach(steps: _Steps, target: BrokerTarget, address: Address) -> None:
    loop = asyncio.get_running_loop()
    found = await steps.do(
        "resolve",
        asyncio.wait_for(
            loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM), target.timeout
        ),
        lambda infos: f"{address.host} is {', '.join(dict.fromkeys(str(info[4][0]) for info in infos))}",
        f"The name {address.host} does not resolve here: check its spelling, and this machine's DNS.",
    )
    where = dict.fromkeys(str(info[4][0]) for info in found)
    _, writer = await steps.do(
        "connect",
        asyncio.wait_for(_first(list(where), address.port), target.timeout),
        lambda pair: "TCP to {}:{}".format(*pair[1].get_extra_info("peername")[:2]),
        f"Nobody accepts connections at {address}: is the broker running, is the port right, is there a "
        "firewall in between?",
    )
    if address.tls:
        context = target.ssl or ssl_module.create_default_context()
        name = target.server_hostname or address.host
        await steps.do(
            "TLS",
            asyncio.wait_for(writer.start_tls(context, server_hostname=name), target.timeout),
            lambda _: "{} with {}".format(
                writer.get_extra_info("cipher")[1], writer.get_extra_info("cipher")[0]
            ),
            "The certificate was not accepted, or there is no TLS at this port: --ca names whom to trust, "
            "--server-name the name in the certificate, --cert and --key this client's own certificate.",
        )
    writer.transport.abort()


async def _first(hosts: list[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for host in hosts[:-1]:
        try:
            return await asyncio.open_connection(host, port)
        except OSError:
            continue
    return await asyncio.open_connection(hosts[-1], port)


async def _negotiate(steps: _Steps, target: BrokerTarget, stack: AsyncExitStack) -> bmq.Session:
    async def connect() -> bmq.Session:
        return await stack.enter_async_context(target.connect(reconnect=False))

    who = "with credentials" if target.credentials else "without credentials"
    return await steps.do(
        "negotiate",
        connect(),
        lambda _: f"the broker took the session, {who}",
        "Somebody answers, but takes no session: is it a BlazingMQ broker, does it want TLS (tcps://), and "
        "if it wants credentials (--user), are these right?",
    )


async def _use(steps: _Steps, session: bmq.Session, uri: str, timeout: float) -> None:
    plain, _, app_id = uri.partition("?id=")
    writer = await steps.do(
        "open",
        session.open_queue(plain, write=True, read=not app_id, priority=_PRIORITY),
        lambda opened: f"{opened.uri} for {'writing' if app_id else 'reading and writing'}",
        "The broker refused the queue: is the domain's name right, does the broker have its configuration? "
        "Of a fanout queue an application reads (?id=APPID). The reason above is the broker's.",
    )
    reader = writer
    if app_id:
        reader = await steps.do(
            "open",
            session.open_queue(uri, read=True, priority=_PRIORITY),
            lambda opened: f"{opened.uri} for reading",
            _READ,
        )
    mark = uuid.uuid4().hex
    consumer = await steps.do(
        "subscribe",
        reader.subscribe(f'{_PROPERTY} == "{mark}"', priority=_PRIORITY).open(),
        lambda each: f"to {each.expressions[0]}",
        _READ,
    )
    ack = await steps.do(
        "post",
        writer.post(b"bmq doctor", properties={_PROPERTY: mark}, timeout=timeout),
        lambda ack: f"accepted as {ack.guid}",
        "The broker did not accept the message: a quota that is used up says LIMIT_MESSAGES or LIMIT_BYTES "
        "(bmq queues, bmq explain); anything else is in the broker's log.",
    )
    message = await steps.do(
        "receive",
        consumer.receive(timeout),
        lambda message: f"{message.guid}, {len(message.data)} bytes",
        "The message was accepted and does not come: it stays in the queue until it expires. Perhaps others "
        "wait before it that were handed back, by bmq tail, for one: "
        f"bmq explain {uri} {ack.guid} -p {_PROPERTY}={mark}",
    )

    async def confirm() -> None:
        message.confirm()
        await reader.close()

    await steps.do(
        "confirm",
        confirm(),
        lambda _: "and closed",
        "The queue could not be closed: look at the broker's log.",
    )
