# SPDX-License-Identifier: Apache-2.0
"""``bmq doctor``."""

from __future__ import annotations

import asyncio
import socket
import ssl as ssl_module
import time
import uuid
from collections.abc import Generator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from rich.text import Text

import bmq
from bmq.admin import DomainInfo
from bmq.admin.explanation import objection
from bmq.admin.watch import DomainFigures, QueueFigures
from bmq.cli.consoles import out, styled
from bmq.cli.output import BadInput, ExitStatus, note, printable
from bmq.cli.records import Form, Records
from bmq.cli.taking import check_application
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import OUTPUT, argument, option, status_of, verb
from bmq.client.address import Address, parse_addresses
from bmq.conventions import derived_guid

#: Fields of the records: of a step, or the advice after a failure, which stands alone.
FIELDS = ("step", "ok", "seconds", "what", "advice")
_NO_ANSWER: Final = (
    "The broker did not answer. In a cluster, the queue has no primary: fewer than half of the nodes are up, "
    "or an election is under way. Run bmq doctor for each node, and start the missing nodes."
)
_PROPERTY = "bmqDoctor"
# Before every other consumer: no other consumer may receive the message.
_PRIORITY = 1_000_000
_READ = "The broker refuses to read: a reader of a fanout queue names its application, ?id=APPID."


class _Stopped(Exception):
    """A step failed, and the failure was printed."""

    def __init__(self, status: ExitStatus) -> None:
        self.status = status


class _Unfit(bmq.Error):
    """The broker answers, and the queue does not work: it is full, or the probe did not arrive."""


@dataclass(slots=True)
class _Step:
    """A step; its block sets the result, in words."""

    what: str = ""


class _Steps:
    """Prints result and duration of each step."""

    def __init__(self, output: Form) -> None:
        self._records = Records.of(output, FIELDS)
        self._console = out()

    @contextmanager
    def step(self, name: str, advice: str) -> Generator[_Step]:
        """Run one step: the block.

        Raises:
            _Stopped: the step failed.
        """
        started = time.perf_counter()
        step = _Step()
        try:
            yield step
        except (bmq.Error, BadInput, OSError) as error:
            self._show(name, time.perf_counter() - started, str(error) or type(error).__name__, ok=False)
            if isinstance(error, bmq.RequestTimeout):
                advice = _NO_ANSWER
            if self._records is not None:
                self._records.write({"advice": advice}, flush=True)
            else:
                self._console.print(styled(f"      {advice}"), soft_wrap=True)
            status = ExitStatus.FAILED if isinstance(error, _Unfit) else status_of(error)
            if status is ExitStatus.USAGE and not isinstance(error, BadInput | bmq.UsageError):
                status = ExitStatus.UNREACHABLE
            raise _Stopped(status) from None
        self._show(name, time.perf_counter() - started, step.what, ok=True)

    def _show(self, name: str, seconds: float, what: str, *, ok: bool) -> None:
        """Print the result of a step."""
        if self._records is not None:
            record = {"step": name, "ok": ok, "seconds": round(seconds, 6), "what": what}
            self._records.write(record, flush=True)
            return
        line = Text("ok    " if ok else "FAIL  ", style="green" if ok else "bold red")
        line.append(f"{name:<13}", style="not bold default")
        line.append(f"{seconds * 1000:9.2f} ms  ", style="dim")
        line.append(printable(what), style="default")
        self._console.print(line, soft_wrap=True)


@verb("doctor")
async def doctor(
    target: BrokerTarget,
    queue: str | None = argument(
        "[QUEUE|BROKER]", "A queue to open, with ?id=APPID for a fanout queue; or a broker."
    ),
    post: bool = option("--post", "Post a marked message to the queue, receive it, and confirm it."),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Try each step from here to a broker, and print a remedy for the step that fails.

    The steps are name resolution, connection, TLS, authentication and negotiation. With a queue, the command
    also asks for the queue's mode and applications, opens the queue, which creates a queue that does not
    exist, and compares the stored messages with the quota. The command posts and receives nothing, unless
    --post is given.

    With --post, the command posts one marked message, receives the message for each application of the queue,
    and confirms the message. No other consumer receives the message. The message is removed for all
    applications also if it does not arrive; the exit status is 1 then. On a broadcast queue with readers
    --post is refused, because all readers would receive the message.

    [bold]Examples[/]

    $ bmq doctor
    $ bmq doctor tcp://broker.example:30114
    $ bmq doctor bmq://bmq.test.mem.priority/orders --broker prod
    $ bmq doctor bmq://bmq.test.mem.priority/doctor --post
    """
    if post and queue is None:
        raise BadInput("--post needs a queue")
    steps = _Steps(output)
    try:
        for address in parse_addresses(target.uri):
            await _reach(steps, target, address)
        async with AsyncExitStack() as stack:
            who = "with credentials" if target.credentials else "without credentials"
            advice = (
                "The port accepts connections, but no session begins: the broker hangs, the server is not a "
                "BlazingMQ broker, TLS is required (tcps://), or the credentials (--user) are missing or "
                "wrong."
            )
            with steps.step("negotiate", advice) as step:
                session = await stack.enter_async_context(target.connect(reconnect=False))
                step.what = f"the broker accepted the session, {who}"
            if queue is not None:
                await _use(steps, session, target, queue, post=post)
    except _Stopped as stopped:
        return stopped.status
    return ExitStatus.OK


async def _reach(steps: _Steps, target: BrokerTarget, address: Address) -> None:
    advice = f"The name {address.host} does not resolve here: check its spelling, and this machine's DNS."
    with steps.step("resolve", advice) as step:
        loop = asyncio.get_running_loop()
        asked = loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        infos = await asyncio.wait_for(asked, target.timeout)
        step.what = f"{address.host} is {', '.join(dict.fromkeys(str(info[4][0]) for info in infos))}"
    with ExitStack() as closing:  # also if the output fails
        advice = (
            f"No server accepts connections at {address}: check that the broker runs, that the port "
            "is right, and that no firewall blocks it."
        )
        with steps.step("connect", advice) as step:
            opening = asyncio.open_connection(address.host, address.port)
            _, writer = await asyncio.wait_for(opening, target.timeout)
            closing.callback(writer.transport.abort)
            step.what = "TCP to {}:{}".format(*writer.get_extra_info("peername")[:2])
        if not address.tls:
            return
        advice = (
            "The certificate was refused, or this port has no TLS: --ca names the trusted "
            "authorities, --server-name the name in the certificate, --cert and --key this client's "
            "certificate."
        )
        with steps.step("TLS", advice) as step:
            context = target.ssl or ssl_module.create_default_context()
            name = target.server_hostname or address.host
            await asyncio.wait_for(writer.start_tls(context, server_hostname=name), target.timeout)
            cipher, version, _ = writer.get_extra_info("cipher")
            step.what = f"{version} with {cipher}"


async def _ask(target: BrokerTarget, uri: str, *, post: bool) -> DomainInfo | None:
    """Return a queue's domain; None if the broker does not say.

    Raises:
        BadInput: the application does not exist, or the readers of a broadcast queue would receive the probe.
        Error: the broker does not say, and a message is to be posted.
    """
    try:
        async with target.admin() as admin:
            asked = admin.queue(uri)
            domain = await admin.domain(asked.domain)
            if asked.app_id:
                check_application(uri, asked.app_id, domain.app_ids)
            if post and domain.mode == "broadcast" and await objection(asked, may_be_new=True):
                raise BadInput("each reader of a broadcast queue would receive the message of --post")
    except bmq.errors.AdminError:
        if post:
            raise
        return None  # the next step tells the reason
    if post and not domain.mode:
        raise bmq.ProtocolError("the broker does not say which applications would receive a message")
    return domain


async def _use(steps: _Steps, session: bmq.Session, target: BrokerTarget, uri: str, *, post: bool) -> None:
    plain, _, app_id = uri.partition("?id=")
    advice = (
        "Nothing was opened or posted. The name of a queue is bmq://DOMAIN/QUEUE, with ?id=APPID for a "
        "fanout queue."
    )
    with steps.step("ask", advice) as step:
        domain = await _ask(target, uri, post=post)
        mode, app_ids = (domain.mode, domain.app_ids) if domain else ("", ())
        applications = f", applications {', '.join(app_ids)}" if app_ids else ""
        step.what = f"{mode or 'unknown'} mode{applications}"
    # Each application receives a message, and each copy of the probe has to be removed.
    apps = list(app_ids) if mode == "fanout" and post else [app_id] if app_id or mode != "fanout" else []
    advice = (
        "The broker refused the queue, for the reason above. Check the domain's name, and that the broker "
        "has the domain's configuration."
    )
    with steps.step("open", advice) as step:
        writer = await session.open_queue(plain, write=True, read="" in apps, default_subscription=False)
        step.what = f"{writer.uri} for {'reading and ' if '' in apps else ''}writing"
    readers = {"": writer} if "" in apps else {}
    for app in filter(None, apps):
        with steps.step("open", _READ) as step:
            reader = await session.open_queue(f"{plain}?id={app}", read=True, default_subscription=False)
            readers[app] = reader
            step.what = f"{reader.uri} for reading"
    if domain is not None:
        advice = "Start or speed up the consumers, or raise the quota in the domain's configuration."
        with steps.step("quota", advice) as step:
            figures = QueueFigures(writer.uri, domain.name, domain=DomainFigures(domain, 0))
            share, whose, full = figures.use()
            if full:
                raise _Unfit(f"the {whose} has reached its quota: the broker refuses every post")
            step.what = f"{share:.0%} in use"
    if post:
        await _send(steps, session, target, writer, readers)
    else:
        note("bmq doctor: nothing was posted; --post posts, receives and confirms one marked message")
    with steps.step("close", "The session could not be closed: see the broker's log.") as step:
        await session.close()
        step.what = "the session"


async def _send(
    steps: _Steps,
    session: bmq.Session,
    target: BrokerTarget,
    writer: bmq.Queue,
    readers: dict[str, bmq.Queue],
) -> None:
    """Post the probe, receive it for each application, and remove it in any case."""
    mark = uuid.uuid4().hex
    guid = derived_guid(mark)
    left = dict(readers)
    consumers: dict[str, bmq.Consumer] = {}
    for app, reader in readers.items():
        with steps.step("subscribe", _READ) as step:
            consumer = reader.subscribe(f'{_PROPERTY} == "{mark}"', priority=_PRIORITY)
            consumers[app] = await consumer.open()
            step.what = f"to {consumers[app].expressions[0]}"
    try:
        advice = (
            "The broker did not accept the message: LIMIT_MESSAGES and LIMIT_BYTES mean a full quota (bmq "
            "queues, bmq explain); for any other reason, see the broker's log."
        )
        with steps.step("post", advice) as step:
            properties = {_PROPERTY: mark}
            ack = await writer.post(b"bmq doctor", properties=properties, guid=guid, timeout=target.timeout)
            step.what = f"accepted as {ack.guid}"
        advice = (
            f"If bmq explain {writer.uri} reports messages to be redelivered, these were returned (by "
            "bmq tail, or by a closed consumer) and match no subscription: the broker delivers nothing "
            "else until a consumer takes them. Otherwise see the broker's log."
        )
        for app, consumer in consumers.items():
            with steps.step("receive", advice) as step:
                try:
                    message = await consumer.receive(target.timeout)
                except bmq.TimedOut:
                    late = f"the message was accepted, and did not arrive within {target.timeout:g} s"
                    raise _Unfit(late) from None
                message.confirm()
                del left[app]
                step.what = f"{message.guid}, {len(message.data)} bytes" + (f", for {app}" if app else "")
    except _Stopped:
        if left and session.state is not bmq.SessionState.STARTED:
            note(f"bmq doctor: the message {guid} may stay in the queue until it expires")
        raise
    finally:
        # Nothing is printed here: output may have failed, and the probe has to go all the same.
        for reader in left.values():
            reader.confirm(guid)
