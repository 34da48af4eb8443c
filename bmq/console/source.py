# SPDX-License-Identifier: Apache-2.0
"""What a console gets its data from: a broker over the wire, or an embedded one in the same process."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

import bmq
from bmq import _checks
from bmq.admin import Admin, DomainInfo
from bmq.client.message import beginning_of
from bmq.wire.message import NO_PROPERTIES

__all__ = ["MOST_SHOWN", "Contents", "Figures", "NotNow", "RemoteBroker", "Source"]

#: At most so many messages are held at once to look into them, and so many of their bytes.
MOST_HELD = 1000
_MOST_BYTES = 64 * 1024 * 1024
#: So many bytes of a payload are shown, and properties may take so many. Nothing beyond is decompressed.
MOST_SHOWN = 256 * 1024
# The figures of so many queues are read in one turn of the event loop.
_TURN = 200
#: When no message has come for so many seconds, no more are expected.
_IDLE = 1.0


class NotNow(bmq.Error):
    """The request would do harm now; the text says what harm, and to whom."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a message.

    Attributes:
        guid: 32 upper-case hexadecimal digits.
        properties: its properties.
        payload: the first bytes of its payload, decompressed; nothing of a message that cannot be read.
        size: bytes of the payload; None where only decompressing all of it would tell.
        error: why the message cannot be read; empty when it can.
    """

    guid: str
    properties: bmq.Properties
    payload: bytes
    size: int | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a look at one queue finds.

    Attributes:
        uri: the queue.
        domain: its domain.
        mode: how its messages are handed out; empty when the domain is another broker's.
        messages: messages stored.
        bytes: their bytes.
        producers: how often the queue is open for writing.
        consumers: how often it is open for reading.
        posted: messages posted so far; None before the broker counts the queue.
        confirmed: deliveries confirmed so far; None likewise.
    """

    uri: str
    domain: str
    mode: str
    messages: int
    bytes: int
    producers: int = 0
    consumers: int = 0
    posted: int | None = None
    confirmed: int | None = None


class Source(Protocol):
    """What a console needs of a broker."""

    @property
    def name(self) -> str:
        """The broker's address, for people."""
        ...

    @property
    def looks_inside(self) -> bool:
        """Whether contents are read from the broker's store, with no effect on anybody."""
        ...

    async def admin(self) -> Admin:
        """Return a connected admin client."""
        ...

    def connect(self) -> bmq.connect:
        """Return what connects a session."""
        ...

    @property
    def authenticates(self) -> bool:
        """Whether it asks with credentials; a page without a token would lend them to every local user."""
        ...

    async def figures(self, admin: Admin) -> list[Figures]:
        """Return the figures of every queue."""
        ...

    def contents(self, uri: str, app_id: str, guids: Sequence[str]) -> AsyncGenerator[Contents]:
        """Iterate over what is in some messages, those that are there; one is decompressed at a time.

        Raises:
            NotNow: it would do harm, or there is no such queue.
        """
        ...


class RemoteBroker:
    """A broker over the wire.

    Args:
        uri: as for :class:`bmq.connect`.
        credentials: as for :class:`bmq.connect`, also of ``ssl`` and ``server_hostname``.
        timeout: seconds for connecting, and for each request.

    Attributes:
        looks_inside: False: what is in a message can only be seen by consuming it for a while.
    """

    looks_inside = False

    def __init__(
        self,
        uri: str,
        *,
        credentials: bmq.Credentials | None = None,
        ssl: ssl_module.SSLContext | None = None,
        server_hostname: str | None = None,
        timeout: float = 10.0,
    ) -> None:
        bmq.connect(uri)  # an address that is none is an error here
        if credentials is not None:
            _checks.choice("credentials", credentials, bmq.Credentials)
        timeout = _checks.seconds("timeout", timeout, positive=True)
        if ssl is not None:
            _checks.instance("ssl", ssl, ssl_module.SSLContext, "an ssl.SSLContext")
        server_hostname = _checks.optional(_checks.text, "server_hostname", server_hostname)
        self.name = uri
        self._credentials = credentials
        self._ssl = ssl
        self._server_hostname = server_hostname
        self._timeout = timeout

    @property
    def authenticates(self) -> bool:
        """Whether it asks with credentials."""
        return self._credentials is not None

    async def admin(self) -> Admin:
        """Return a connected admin client."""
        return await bmq.admin.connect(
            self.name,
            credentials=self._credentials,
            ssl=self._ssl,
            server_hostname=self._server_hostname,
            timeout=self._timeout,
            process_name="bmq console",
        )

    def connect(self) -> bmq.connect:
        """Return what connects a session."""
        return bmq.connect(
            self.name,
            credentials=self._credentials,
            ssl=self._ssl,
            server_hostname=self._server_hostname,
            process_name="bmq console",
            connect_timeout=self._timeout,
            open_timeout=self._timeout,
            configure_timeout=self._timeout,
            close_timeout=self._timeout,
            reconnect_timeout=self._timeout,
        )

    async def figures(self, admin: Admin) -> list[Figures]:
        """Return the figures of every queue: three commands for a broker, and one for each domain."""
        counted = {each.uri: each for each in (await admin.statistics()).queues}
        domains: list[DomainInfo] = []
        for summary in await admin.domains():
            try:
                domains.append(await admin.domain(summary.name))
            except bmq.AdminError:
                continue  # it has gone meanwhile
        found: list[Figures] = []
        for domain in domains:
            for queue in domain.queues:
                known = counted.get(queue.uri)
                figures = (known.producers, known.consumers, known.posted, known.confirmed) if known else ()
                found.append(
                    Figures(queue.uri, domain.name, domain.mode, queue.messages, queue.bytes, *figures)
                )
                if not len(found) % _TURN:
                    await asyncio.sleep(0)
        return found

    async def contents(self, uri: str, app_id: str, guids: Sequence[str]) -> AsyncGenerator[Contents]:
        """Read some messages as a consumer that confirms none of them, and give them back.

        A broker shows what is in a message to consumers only. What goes back is delivered again, marked as
        delivered before; see :class:`NotNow` for when that does harm.

        Raises:
            NotNow: somebody reads the queue.
        """
        async with await self.admin() as admin:
            queue_admin = admin.queue(uri)
            standing = await queue_admin.standing()
            if standing.gap:
                raise NotNow(f"{standing.gap}, and cannot tell whether somebody reads the queue elsewhere")
            internals = await queue_admin.internals()
        mine = [app for app in internals.apps if app.app_id == (app_id or "__default")]
        if any(app.consumers for app in mine):
            raise NotNow(
                "somebody reads this queue. A broker shows what is in a message to consumers only: to look "
                "inside, the console would take messages away from them, and give them back out of order. "
                "When nobody reads, it can be done."
            )
        missing = set(guids)
        held = 0
        address = f"{uri}?id={app_id}" if app_id and app_id != "__default" else uri
        async with self.connect() as session:
            queue = await session.open_queue(
                address,
                read=True,
                max_unconfirmed_messages=MOST_HELD,
                max_unconfirmed_bytes=_MOST_BYTES,
            )
            while held < MOST_HELD and missing:
                try:
                    batch = await queue.receive_many(MOST_HELD, _IDLE)
                except TimeoutError:
                    return
                held += len(batch)
                for message in batch:
                    if message.guid in missing:
                        missing.discard(message.guid)
                        yield _read(message)
                        await asyncio.sleep(0)


def _read(message: bmq.Message) -> Contents:
    try:
        return Contents(message.guid, *beginning_of(message, MOST_SHOWN))
    except bmq.ProtocolError as error:
        return Contents(message.guid, NO_PROPERTIES, b"", 0, str(error))


class Embedded(RemoteBroker):
    """The embedded broker of this process: what is in a message is read from its store.

    Args:
        broker: the broker.
        credentials: of one of those it lets in, if it does not let in everybody.
    """

    looks_inside = True

    def __init__(self, broker: bmq.broker.Broker, *, credentials: bmq.Credentials | None = None) -> None:
        _checks.choice("broker", broker, bmq.broker.Broker)
        context = None
        if broker.uri.startswith("tcps"):
            # It is this process, and its certificate may be for any name.
            context = ssl_module.SSLContext(ssl_module.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl_module.CERT_NONE
        super().__init__(broker.uri, credentials=credentials, ssl=context)
        self._broker = broker

    async def figures(self, admin: Admin) -> list[Figures]:
        """Return the figures of every queue, read a few hundred at a time from this process's broker.

        Raises:
            ConnectionFailed: the broker was stopped.
        """
        if not self._broker.running:
            raise bmq.ConnectionFailed(f"could not connect to {self.name}: this process has stopped it")
        found: list[Figures] = []
        for number, (uri, queue) in enumerate(self._broker.queues.items()):
            if not number % _TURN:
                await asyncio.sleep(0)
            counted = queue.stats()
            found.append(
                Figures(
                    uri,
                    queue.domain,
                    queue.mode,
                    counted.messages,
                    counted.bytes,
                    counted.producers,
                    counted.consumers,
                    counted.posted,
                    counted.confirmed,
                )
            )
        return found

    async def contents(self, uri: str, app_id: str, guids: Sequence[str]) -> AsyncGenerator[Contents]:
        """Read some messages from the broker's store; nobody notices."""
        queue = self._broker.queues.get(uri)
        if queue is None:
            raise NotNow(f"the broker has no queue {uri}: a queue begins when a client opens it")
        for guid in guids:
            await asyncio.sleep(0)  # another client's turn, after at most one message
            try:
                found = queue.beginning(guid, MOST_SHOWN, app_id=app_id)
            except bmq.ProtocolError as error:
                yield Contents(guid, NO_PROPERTIES, b"", 0, str(error))
                continue
            if found is not None:
                yield Contents(guid, *found)
