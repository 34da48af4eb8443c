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
from typing import Annotated, Final, TypeVar

import typer
from rich.text import Text

import bmq
from bmq.cli.completion import queues
from bmq.cli.consoles import out, styled
from bmq.cli.output import note, printable
from bmq.cli.records import OUTPUT, Form, Records
from bmq.cli.status import ExitStatus
from bmq.cli.target import BrokerTarget, status_of, verb
from bmq.engine.address import Address, parse_addresses

__all__ = ["FIELDS", "command", "examine"]

#: Fields of the records; a step has either ``what`` or ``warning``, and ``advice`` stands alone.
FIELDS = ("step", "ok", "seconds", "what", "warning", "advice")
_NO_ANSWER: Final = (
    "The broker did not answer. In a cluster, the queue has no primary: fewer than half of the nodes are up, "
    "or an election is under way. Run bmq doctor for each node, and start the missing nodes."
)
T = TypeVar("T")

_PROPERTY = "bmqDoctor"
# Before every other consumer: no other consumer may receive the message.
_PRIORITY = 1_000_000
# Messages in front of the probe, at most; all of them return to the queue.
_MOST_TAKEN: Final = 10_000
# Seconds for taking the probe back when the command is interrupted.
_RETRIEVAL: Final = 5.0
_READ = "The broker refuses to read: a reader of a fanout queue names its application, ?id=APPID."


class _Stopped(Exception):
    """A step failed, and the failure was printed."""

    def __init__(self, status: ExitStatus) -> None:
        self.status = status


class _Steps:
    """Runs steps, and prints result and duration of each step."""

    def __init__(self, output: Form) -> None:
        self._records = None if output is Form.TABLE else Records(output, FIELDS, flush=True)
        self._console = out()

    async def do(self, name: str, step: Awaitable[T], tell: Callable[[T], str], advice: str) -> T:
        """Run one step.

        Raises:
            _Stopped: the step failed.
        """
        started = time.perf_counter()
        try:
            result = await step
        except (bmq.Error, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            self.show(name, time.perf_counter() - started, reason, ok=False)
            self._advise(_NO_ANSWER if isinstance(error, bmq.RequestTimeout) else advice)
            status = status_of(error)
            raise _Stopped(ExitStatus.UNREACHABLE if status is ExitStatus.USAGE else status) from None
        self.show(name, time.perf_counter() - started, tell(result), ok=True)
        return result

    def warn(self, name: str, what: str) -> None:
        """Print a problem of a successful step."""
        if self._records is not None:
            self._records.write({"step": name, "ok": False, "warning": what})
            return
        line = Text("WARN  ", style="bold yellow")
        line.append(f"{name:<13}", style="not bold default").append(printable(what), style="not bold default")
        self._console.print(line, soft_wrap=True)

    def show(self, name: str, seconds: float, what: str, *, ok: bool) -> None:
        """Print the result of a step."""
        if self._records is not None:
            self._records.write({"step": name, "ok": ok, "seconds": round(seconds, 6), "what": what})
            return
        line = Text("ok    " if ok else "FAIL  ", style="green" if ok else "bold red")
        line.append(f"{name:<13}", style="not bold default").append(
            f"{seconds * 1000:9.2f} ms  ", style="dim"
        )
        line.append(printable(what), style="default")
        self._console.print(line, soft_wrap=True)

    def _advise(self, advice: str) -> None:
        if self._records is not None:
            self._records.write({"advice": advice})
        else:
            self._console.print(styled(f"      {advice}"), soft_wrap=True)


@verb("doctor")
async def command(
    target: BrokerTarget,
    queue: Annotated[
        str | None,
        typer.Argument(
            autocompletion=queues,
            metavar="[QUEUE|BROKER]",
            help="A queue to post to and receive from, with ?id=APPID for a fanout queue; or a broker.",
            show_default=False,
        ),
    ] = None,
    output: OUTPUT = Form.TABLE,
) -> int:
    """Try each step from here to a broker, and print a remedy for the step that fails.

    The steps are name resolution, connection, TLS, authentication and negotiation. With a queue, the command
    also opens the queue, and posts, receives and confirms one marked message. No other consumer of a priority
    queue receives the marked message; the other applications of a fanout queue and all consumers of a
    broadcast queue receive a copy. The command always takes the marked message back, or prints the GUID.

    The exit status is 1 if the marked message did not arrive, or arrived only after the command had moved
    earlier messages out of the queue for a moment.

    [bold]Examples[/]

    $ bmq doctor
    $ bmq doctor tcp://broker.example:30114
    $ bmq doctor bmq://bmq.test.mem.priority/doctor --broker prod
    """
    return await examine(target, queue, output)


async def examine(target: BrokerTarget, queue: str | None, output: Form) -> ExitStatus:
    """Try each step, print the results, and return the exit status."""
    steps = _Steps(output)
    try:
        for address in parse_addresses(target.uri):
            await _reach(steps, target, address)
        async with AsyncExitStack() as stack:
            session = await _negotiate(steps, target, stack)
            if queue is not None:
                return await _use(steps, session, queue, target.timeout)
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
        f"No server accepts connections at {address}: check that the broker runs, that the port "
        "is right, and that no firewall blocks it.",
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
            "The certificate was refused, or this port has no TLS: --ca names the trusted "
            "authorities, --server-name the name in the certificate, --cert and --key this client's "
            "certificate.",
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
        lambda _: f"the broker accepted the session, {who}",
        "The port accepts connections, but no session begins: the broker hangs, the server is not a "
        "BlazingMQ broker, TLS is required (tcps://), or the credentials (--user) are missing or wrong.",
    )


async def _use(steps: _Steps, session: bmq.Session, uri: str, timeout: float) -> ExitStatus:
    plain, _, app_id = uri.partition("?id=")
    writer = await steps.do(
        "open",
        session.open_queue(plain, write=True, read=not app_id, priority=_PRIORITY),
        lambda opened: f"{opened.uri} for {'writing' if app_id else 'reading and writing'}",
        "The broker refused the queue, for the reason above. Check the domain's name, and that the broker "
        "has the domain's configuration. A reader of a fanout queue names its application (?id=APPID).",
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
        "The broker did not accept the message: LIMIT_MESSAGES and LIMIT_BYTES mean a full quota (bmq "
        "queues, bmq explain); for any other reason, see the broker's log.",
    )
    probe = _Probe(consumer, ack.guid)
    status = ExitStatus.OK
    try:
        if not await probe.comes(steps, timeout):
            # The only obstacle for the first consumer: a broker delivers no message behind
            # a returned message without a matching subscription. A consumer of everything takes this message.
            await steps.do(
                "move earlier messages",
                probe.clear_the_way(timeout),
                lambda taken: f"{taken} messages taken, and returned afterwards",
                "The message was accepted but not delivered, for no visible reason: see the broker's log,"
                f" and bmq explain {uri} {ack.guid} -p {_PROPERTY}={mark}",
            )
            steps.warn(
                "blocked",
                "returned messages (of bmq tail, or of a closed consumer) match no subscription, and the "
                "broker delivers no later messages until a consumer takes the returned messages: bmq "
                f"explain {plain}",
            )
            status = ExitStatus.FAILED
    finally:
        await probe.retrieve()

    await steps.do(
        "confirm",
        reader.close(),
        lambda _: "and closed",
        "The queue could not be closed: see the broker's log.",
    )
    return status


class _Probe:
    """The posted message: waits for the message, and always takes the message back.

    Args:
        consumer: receives the probe and nothing else.
        guid: the probe's GUID.
    """

    def __init__(self, consumer: bmq.Consumer, guid: str) -> None:
        self._consumer = consumer
        self._guid = guid
        self._retrieved = False

    async def comes(self, steps: _Steps, timeout: float) -> bool:
        """Return whether the probe arrives in time; confirm the probe."""

        started = time.perf_counter()
        try:
            message = await self._consumer.receive(timeout)
        except bmq.TimedOut:
            steps.warn("receive", f"the message was accepted, and did not arrive within {timeout:g} s")
            return False
        self._confirm(message)
        what = f"{message.guid}, {len(message.data)} bytes"
        steps.show("receive", time.perf_counter() - started, what, ok=True)
        return True

    async def clear_the_way(self, timeout: float) -> int:
        """Take every message until the probe arrives; return the number of other messages.

        Raises:
            TimedOut: the probe did not arrive.
        """
        await self._consumer.configure("", max_unconfirmed_messages=_MOST_TAKEN)
        taken = 0
        async with asyncio.timeout(timeout):
            while True:
                message = await self._consumer.receive(timeout)
                if message.guid == self._guid:
                    self._confirm(message)
                    return taken
                taken += 1

    def _confirm(self, message: bmq.Message) -> None:
        message.confirm()
        self._retrieved = True

    async def retrieve(self) -> None:
        """Take a posted probe back if the probe has not arrived."""
        if self._retrieved:
            return
        try:
            await asyncio.wait_for(self.clear_the_way(_RETRIEVAL), _RETRIEVAL)
        except (bmq.Error, TimeoutError):
            note(f"bmq doctor: the probe stays in the queue until it expires: GUID {self._guid}")
