# SPDX-License-Identifier: Apache-2.0
"""One admin connection: the handshake, then commands and the broker's printed answers."""

from __future__ import annotations

import asyncio
import itertools
import ssl as ssl_module
from typing import Any, cast

import msgspec

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._loop import create_connection, running_loop
from bmq.client.address import Address, BrokerAccess
from bmq.client.options import introduce
from bmq.errors import AdminError, ConnectionFailed, ProtocolError
from bmq.protocol.client.handshake import Handshake, not_a_broker
from bmq.wire.constants import EventType
from bmq.wire.control import (
    AdminCommand,
    AdminCommandResponse,
    ClientType,
    Codec,
    ControlMessage,
    MessageKind,
    Status,
)
from bmq.wire.control_event import decode_event, encode_event, request_id
from bmq.wire.event import HEARTBEAT_RSP, Event

__all__ = ["AdminConnection"]

logger = Log("bmq.admin")

# Credentials are renewed when this part of their lifetime has passed.
_RENEW = 0.8


class AdminConnection(asyncio.Protocol):
    """A connection negotiated as an admin client.

    Attributes:
        address: the broker's address.
        lost: the reason for the loss of the connection; None while connected.
        expires: time on the loop's clock at which to connect anew with credentials; None for never.
    """

    def __init__(self, address: Address, process_name: str) -> None:
        self.address = address
        identity, _ = introduce(process_name)
        self._loop = running_loop()
        self._handshake = Handshake(msgspec.structs.replace(identity, client_type=ClientType.E_TCPADMIN))
        self._transport: asyncio.Transport | None = None
        self._negotiated: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        # After a cancelled connect, a loop may not report the loss to the protocol: uvloop does not.
        self._established = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._lines = LogLimit(logger)
        self.lost: ConnectionFailed | None = None
        self.expires: float | None = None

    @classmethod
    async def open(
        cls, address: Address, access: BrokerAccess, process_name: str, timeout: float
    ) -> AdminConnection:
        """Connect and negotiate.

        Raises:
            ConnectionFailed: the address does not answer, does not answer in time, or is not a broker.
            NegotiationError, AuthenticationError: the broker refused the client.
        """
        connection = cls(address, process_name)
        ssl = access.ssl
        if ssl is None and address.tls:
            ssl = ssl_module.create_default_context()
        try:
            async with asyncio.timeout(timeout):
                credentials = await access.get_credentials()
                await create_connection(
                    lambda: connection,
                    address.host,
                    address.port,
                    ssl=ssl,
                    server_hostname=(access.server_hostname or address.host) if ssl is not None else None,
                )
                connection._established = True
                connection._send(connection._handshake.begin(credentials))
                await connection._negotiated
        except BaseException as error:
            await connection.close()
            if isinstance(error, ConnectionFailed):
                raise type(error)(f"{address}: {error}") from error
            if isinstance(error, TimeoutError):
                raise ConnectionFailed(f"{address} did not answer within {timeout:.2g} s") from None
            if isinstance(error, OSError):
                reason = error.strerror or str(error) or type(error).__name__
                raise ConnectionFailed(f"could not connect to {address}: {reason}") from error
            raise
        return connection

    async def ask(self, command: str) -> str:
        """Send a command and return the broker's printed answer, without a timeout.

        Raises:
            ConnectionFailed: the connection was lost during the call; the command may have been carried out.
            AdminError: the broker sent a message that is not an answer.

        Cancelling the call drops the answer; the broker may still carry out the command.
        """
        if self.lost is not None:
            raise self.lost
        number = next(self._numbers)
        answer: asyncio.Future[str] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            body = AdminCommand(command=command)
            self._send(encode_event(ControlMessage(r_id=number, body=body), Codec.JSON))
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Close the connection; idempotent."""
        self._fail(ConnectionFailed("the admin connection was closed"))
        if self._transport is not None:
            self._transport.abort()
            if self._established:
                await self._gone

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        handshake = self._handshake
        if handshake.done:
            events, error = handshake.framer.feed(data)
        else:
            self._shake_hands(data)
            events, error = handshake.rest, handshake.framer.feed(b"")[1]
        for event in events:
            self._take(event)
        failure = handshake.error or (not_a_broker(error) if error is not None else None)
        if failure is not None:
            assert isinstance(failure, ConnectionFailed)
            self._fail(failure)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        why = f": {exc}" if exc else ""
        what = "admin connection" if self._handshake.done else "connection during the handshake"
        self._fail(ConnectionFailed(f"the broker closed the {what}{why}"))
        if not self._gone.done():
            self._gone.set_result(None)

    # inside

    def _send(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _take(self, event: Event) -> None:
        if event.type == EventType.HEARTBEAT_REQ:
            self._send(HEARTBEAT_RSP)
        elif event.type == EventType.CONTROL:
            self._answered(event)
        elif event.type not in (EventType.HEARTBEAT_RSP, EventType.AUTHENTICATION):
            self._notice(f"events of type {event.type}")

    def _notice(self, what: str) -> None:
        """Log content of a newer broker, once for each kind."""
        self._lines.warning(
            what,
            "the broker sent an element that this version of bmq does not know. bmq ignores the element: %s",
            what,
        )

    def _shake_hands(self, data: bytes) -> None:
        handshake = self._handshake
        self._send(handshake.receive(data))
        if handshake.done and not self._negotiated.done():
            for what in handshake.skipped:
                self._notice(what)
            if handshake.lifetime is not None:
                self.expires = self._loop.time() + handshake.lifetime * _RENEW
            self._negotiated.set_result(None)

    def _answered(self, event: Event) -> None:
        unread: ProtocolError | None = None
        try:
            message = decode_event(event, MessageKind.CONTROL, self._notice)
        except ProtocolError as error:
            unread = error
            message = ControlMessage(r_id=request_id(event))
            self._notice(f"a control message that cannot be read ({error.field})")
        answer = self._waiting.get(message.r_id) if message.r_id is not None else None
        if answer is None or answer.done():
            return
        if isinstance(message.body, AdminCommandResponse):
            answer.set_result(message.body.text)
        elif isinstance(message.body, Status):
            answer.set_result(message.body.message)
        else:
            what = unread or "a message of another kind"
            failure = AdminError(f"the answer to the admin command is malformed: {what}")
            failure.__cause__ = unread
            answer.set_exception(failure)

    def _fail(self, error: ConnectionFailed) -> None:
        if self.lost is None:
            self.lost = error
        futures: list[asyncio.Future[Any]] = [self._negotiated, *self._waiting.values()]
        for waiting in futures:
            if not waiting.done():
                waiting.set_exception(error)
                # The waiting caller may be gone: without this line asyncio would log the error.
                waiting.exception()
