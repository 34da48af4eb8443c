# SPDX-License-Identifier: Apache-2.0
"""One admin connection: the handshake, then commands and the broker's printed answers."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

from msgspec.structs import replace

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._loop import running_loop
from bmq.client.address import Address, BrokerAccess, race
from bmq.client.channel import Channel
from bmq.client.negotiation import Negotiation
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
# Seconds after which the next address is tried beside one that does not answer.
_HEAD_START = 2.0


class AdminConnection:
    """A connection negotiated as an admin client. Created by :meth:`open`.

    Attributes:
        address: the broker's address.
        lost: the reason for the loss of the connection; None while connected.
        expires: time on the loop's clock at which to connect anew with credentials; None for never.
    """

    def __init__(self, address: Address, channel: Channel, handshake: Handshake) -> None:
        self.address = address
        self._channel = channel
        self._framer = handshake.framer
        self._loop = running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._lines = LogLimit(logger)
        self.lost: ConnectionFailed | None = None
        self.expires: float | None = None
        if handshake.lifetime is not None:
            self.expires = self._loop.time() + handshake.lifetime * _RENEW
        channel.hand_over(self)
        for what in handshake.skipped:
            self._notice(what)
        self._process(handshake.rest, self._framer.feed(b"")[1])

    @classmethod
    async def open(cls, access: BrokerAccess, process_name: str, timeout: float) -> AdminConnection:
        """Connect to the first address that answers; all addresses together have the time of one.

        A silent address with an accepted connection delays the next address by a head start only.

        Raises:
            ConnectionFailed: no address answers, or none in time, or none is a broker.
            NegotiationError, AuthenticationError: the broker refused the client.
        """
        deadline = running_loop().time() + timeout
        identity, _ = introduce(process_name)
        identity = replace(identity, client_type=ClientType.E_TCPADMIN)
        opened: list[AdminConnection] = []

        def adopt(address: Address, channel: Channel, handshake: Handshake) -> bool:
            if opened:
                return False  # another address was faster
            opened.append(cls(address, channel, handshake))
            return True

        runners = [
            Negotiation(access, address, address.host, Handshake(identity), partial(adopt, address)).run
            for address in access.addresses
        ]
        head_start = min(_HEAD_START, timeout / (len(runners) + 1))
        try:
            await race([partial(run, deadline) for run in runners], head_start, {})
        except BaseException:
            for connection in opened:
                await connection.close()
            raise
        return opened[0]

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
            self._channel.write([encode_event(ControlMessage(r_id=number, body=body), Codec.JSON)])
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Close the connection; idempotent."""
        self._fail(ConnectionFailed("the admin connection was closed"))
        self._channel.abort()
        await self._channel.wait_closed()

    # the channel (see Receiver)

    def channel_data(self, channel: Channel, data: bytes | memoryview) -> None:
        """Process received bytes."""
        self._process(*self._framer.feed(data))

    def channel_lost(self, channel: Channel, error: Exception | None) -> None:
        """Fail the pending commands."""
        why = f": {error}" if error else ""
        self._fail(ConnectionFailed(f"the broker closed the admin connection{why}"))

    def channel_writable(self, channel: Channel, writable: bool) -> None:
        """Ignore the state of the transport's buffer: commands are short."""

    # inside

    def _process(self, events: list[Event], error: ProtocolError | None) -> None:
        for event in events:
            self._take(event)
        if error is not None:
            self._fail(not_a_broker(error))
            self._channel.abort()

    def _take(self, event: Event) -> None:
        if event.type == EventType.HEARTBEAT_REQ:
            self._channel.write([HEARTBEAT_RSP])
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
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
                # The waiting caller may be gone: without this line asyncio would log the error.
                waiting.exception()
