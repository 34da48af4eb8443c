# SPDX-License-Identifier: Apache-2.0
"""The console's source of data: a broker over the wire, or an embedded broker in the same process."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import bmq
from bmq import _checks
from bmq.admin import Admin
from bmq.admin.explanation import objection
from bmq.wire.constants import PushFlags
from bmq.wire.control import DEFAULT_APP_ID
from bmq.wire.message import NO_PROPERTIES, read_beginning

__all__ = ["MOST_SHOWN", "Contents", "NotNow", "RemoteBroker"]

#: Limits for messages held at once to look inside: number, and bytes.
MOST_HELD = 1000
MOST_BYTES = 64 * 1024 * 1024
#: Bytes of a payload to show, and of its properties. Data beyond the limit is never decompressed.
MOST_SHOWN = 256 * 1024
#: Seconds without a message after which no more messages are expected.
_IDLE = 1.0


class NotNow(bmq.Error):
    """The request would do harm now; the text names the harm and the victim."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a message.

    Attributes:
        guid: 32 upper-case hexadecimal digits.
        properties: the message's properties.
        payload: the first bytes of the payload, decompressed; empty if the message cannot be read.
        size: bytes of the payload; None if only a full decompression would tell.
        error: reason why the message cannot be read; empty if readable.
    """

    guid: str
    properties: bmq.Properties
    payload: bytes
    size: int | None
    error: str = ""


class RemoteBroker:
    """A broker over the wire.

    Args:
        uri: as for :class:`bmq.connect`.
        credentials: as for :class:`bmq.connect`; likewise ``ssl`` and ``server_hostname``.
        timeout: seconds for connecting, and for each request.

    Attributes:
        name: the broker's address, for people.
        authenticates: whether the source has credentials; a page without a token would lend them to local
            users.
        looks_inside: whether contents are read from the broker's store, without an effect on consumers; False
            for a broker over the wire, where only a consumer can see the content of a message.
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
        bmq.connect(uri)  # raises if the address is malformed
        if credentials is not None:
            _checks.choice("credentials", credentials, bmq.Credentials)
        timeout = _checks.seconds("timeout", timeout, positive=True)
        if ssl is not None:
            _checks.instance("ssl", ssl, ssl_module.SSLContext, "an ssl.SSLContext")
        server_hostname = _checks.optional(_checks.text, "server_hostname", server_hostname)
        self.name = uri
        self.authenticates = credentials is not None
        self._access: dict[str, Any] = {
            "credentials": credentials,
            "ssl": ssl,
            "server_hostname": server_hostname,
            "process_name": "bmq console",
        }
        self._timeout = timeout

    async def admin(self) -> Admin:
        """Return a connected admin client."""
        return await bmq.admin.connect(self.name, timeout=self._timeout, **self._access)

    def connect(self) -> bmq.connect:
        """Return a connector for a session."""
        steps = ("connect", "open", "configure", "close", "reconnect")
        timeouts: dict[str, Any] = {f"{step}_timeout": self._timeout for step in steps}
        return bmq.connect(self.name, **self._access, **timeouts)

    def _check(self) -> None:
        """Raise an error if the broker cannot answer.

        Raises:
            ConnectionFailed: this process has stopped the broker.
        """

    async def contents(self, uri: str, app_id: str, guids: Sequence[str]) -> AsyncGenerator[Contents]:
        """Receive some messages without confirming any, and hand all back.

        A broker shows the content of a message to consumers only. Returned messages are delivered again,
        marked as redelivered; see :class:`NotNow` for the cases of harm.

        Raises:
            NotNow: a consumer reads the queue, or the broker does not say.
        """
        address = f"{uri}?id={app_id}" if app_id and app_id != DEFAULT_APP_ID else uri
        async with await self.admin() as admin:
            reason = await objection(admin.queue(address))
        if reason:
            raise NotNow(
                f"a broker shows the content of messages to consumers only, and the console would return the "
                f"messages: {reason}. Try again when the queue has no readers."
            )
        missing = set(guids)
        held = 0
        async with self.connect() as session:
            queue = await session.open_queue(
                address,
                read=True,
                max_unconfirmed_messages=MOST_HELD,
                max_unconfirmed_bytes=MOST_BYTES,
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
    _, _, _, flags, schema_id, compression, data = message._push
    try:
        beginning = read_beginning(
            data,
            has_properties=bool(flags & PushFlags.MESSAGE_PROPERTIES),
            schema_id=schema_id,
            compression=compression,
            most=MOST_SHOWN,
        )
        return Contents(message.guid, *beginning)
    except bmq.ProtocolError as error:
        return Contents(message.guid, NO_PROPERTIES, b"", 0, str(error))


class Embedded(RemoteBroker):
    """The embedded broker of this process: contents come from the broker's store.

    Args:
        broker: the broker.
        credentials: credentials of a user, if the broker has authentication.
    """

    looks_inside = True

    def __init__(self, broker: bmq.broker.Broker, *, credentials: bmq.Credentials | None = None) -> None:
        _checks.choice("broker", broker, bmq.broker.Broker)
        context = None
        if broker.uri.startswith("tcps"):
            # The broker is this process, and its certificate may be for any name.
            context = ssl_module.SSLContext(ssl_module.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl_module.CERT_NONE
        super().__init__(broker.uri, credentials=credentials, ssl=context)
        self._broker = broker

    def _check(self) -> None:
        """Raise an error if the broker was stopped.

        Raises:
            ConnectionFailed: the broker was stopped.
        """
        if not self._broker.running:
            raise bmq.ConnectionFailed(
                f"could not connect to {self.name}: this process has stopped the broker"
            )

    async def contents(self, uri: str, app_id: str, guids: Sequence[str]) -> AsyncGenerator[Contents]:
        """Read some messages from the broker's store, unnoticed by clients."""
        queue = self._broker.queues.get(uri)
        if queue is None:
            raise NotNow(f"the broker has no queue {uri}: a queue is created when a client opens it")
        for guid in guids:
            await asyncio.sleep(0)  # a turn for other clients, after at most one message
            try:
                found = queue.beginning(guid, MOST_SHOWN, app_id=app_id)
            except bmq.ProtocolError as error:
                yield Contents(guid, NO_PROPERTIES, b"", 0, str(error))
                continue
            if found is not None:
                yield Contents(guid, *found)
