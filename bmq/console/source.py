# SPDX-License-Identifier: Apache-2.0
"""What a console gets its data from: a broker over the wire, or an embedded one in the same process."""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import bmq
from bmq.admin import Admin

__all__ = ["Contents", "NotNow", "RemoteBroker", "Source"]

#: At most so many messages are held at once to look into them, and so many of their bytes.
MOST_HELD = 1000
_MOST_BYTES = 64 * 1024 * 1024
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
        payload: its payload, decompressed.
    """

    guid: str
    properties: bmq.Properties
    payload: bytes


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

    async def contents(self, uri: str, app_id: str, guids: Sequence[str]) -> list[Contents]:
        """Return what is in some messages, those that are there.

        Raises:
            NotNow: it would do harm.
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
        self.name = uri
        self._credentials = credentials
        self._ssl = ssl
        self._server_hostname = server_hostname
        self._timeout = timeout

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

    async def contents(self, uri: str, app_id: str, guids: Sequence[str]) -> list[Contents]:
        """Read some messages as a consumer that confirms none of them, and give them back.

        A broker shows what is in a message to consumers only. What goes back is delivered again, marked as
        delivered before; see :class:`NotNow` for when that does harm.

        Raises:
            NotNow: somebody reads the queue.
        """
        async with await self.admin() as admin:
            internals = await admin.queue(uri).internals()
        mine = [app for app in internals.apps if app.app_id == (app_id or "__default")]
        if any(app.consumers for app in mine):
            raise NotNow(
                "somebody reads this queue. A broker shows what is in a message to consumers only: to look "
                "inside, the console would take messages away from them, and give them back out of order. "
                "When nobody reads, it can be done."
            )
        wanted = dict.fromkeys(guids)
        found: dict[str, Contents] = {}
        held = 0
        address = f"{uri}?id={app_id}" if app_id and app_id != "__default" else uri
        async with self.connect() as session:
            queue = await session.open_queue(
                address,
                read=True,
                max_unconfirmed_messages=MOST_HELD,
                max_unconfirmed_bytes=_MOST_BYTES,
            )
            try:
                while held < MOST_HELD and len(found) < len(wanted):
                    for message in await queue.receive_many(MOST_HELD, _IDLE):
                        held += 1
                        if message.guid in wanted:
                            found[message.guid] = Contents(message.guid, message.properties, message.data)
            except TimeoutError:
                pass
        return [found[guid] for guid in wanted if guid in found]


class Embedded(RemoteBroker):
    """The embedded broker of this process: what is in a message is read from its store.

    Args:
        broker: the broker.
        credentials: of one of those it lets in, if it does not let in everybody.
    """

    looks_inside = True

    def __init__(self, broker: bmq.broker.Broker, *, credentials: bmq.Credentials | None = None) -> None:
        context = None
        if broker.uri.startswith("tcps"):
            # It is this process, and its certificate may be for any name.
            context = ssl_module.SSLContext(ssl_module.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl_module.CERT_NONE
        super().__init__(broker.uri, credentials=credentials, ssl=context)
        self._broker = broker

    async def contents(self, uri: str, app_id: str, guids: Sequence[str]) -> list[Contents]:
        """Read some messages from the broker's store; nobody notices."""
        queue = self._broker.queues[uri]
        found = [queue.message(guid) for guid in guids]
        return [
            Contents(each.guid, each.properties, each.payload)
            for each in found
            if each is not None and (not app_id or app_id in each.waiting_for)
        ]
