"""A broker that does only what a test tells it, and is left out of what the test counts."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

from bmq.protocol.framing import Framer
from bmq.wire.ack import encode_acks
from bmq.wire.confirm import decode_confirms
from bmq.wire.constants import EventType, PutFlags
from bmq.wire.control import (
    BrokerResponse,
    ClientIdentity,
    ClientType,
    CloseQueueResponse,
    Codec,
    ConfigureStream,
    ConfigureStreamResponse,
    ControlMessage,
    DisconnectResponse,
    MessageKind,
    OpenQueue,
    OpenQueueResponse,
    RoutingConfiguration,
    Status,
    decode_event,
    encode_event,
)
from bmq.wire.event import HEADER_SIZE, Event, pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.properties import encode_properties
from bmq.wire.put import decode_puts
from tests.wire.messages import push_message


class Counter:
    """Counts the calls of Python and C functions in this thread."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self.calls += 1


@contextmanager
def counted() -> Iterator[Counter]:
    """Count calls inside the block, but not those the server makes, nor the finalizers of earlier garbage."""
    counter = Counter()
    gc.collect()
    gc.disable()
    sys.setprofile(counter)
    try:
        yield counter
    finally:
        sys.setprofile(None)
        gc.enable()


def uncounted(method: Callable[..., None]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        profiler = sys.getprofile()
        sys.setprofile(None)
        try:
            method(*args)
        finally:
            sys.setprofile(profiler)

    return call


class Server(asyncio.Protocol):
    """Opens whatever is asked for; acknowledges and delivers when told.

    Attributes:
        posted: how many messages arrived.
        confirmed: how many confirmations arrived.
        keep: whether GUIDs are kept, to be acknowledged.
        port: where it listens.
    """

    def __init__(self) -> None:
        self.posted = self.confirmed = 0
        self.keep = True
        self.port = 0
        self._guids: list[tuple[int, bytes]] = []
        self._s_ids: dict[int, int] = {}
        self._framer = Framer()
        self._negotiated = False
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    @uncounted
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @uncounted
    def data_received(self, data: bytes) -> None:
        events, error = self._framer.feed(data)
        assert error is None
        for event in events:
            if event.type == EventType.PUT:
                puts = decode_puts(event.data, event.body)
                self.posted += len(puts)
                if self.keep:
                    self._guids += [(put.queue_id, put.guid) for put in puts]
            elif event.type == EventType.CONFIRM:
                self.confirmed += len(decode_confirms(event.data, event.body))
            else:
                self._control(event)
        for reached, future in self._waiting:
            if reached() and not future.done():
                future.set_result(None)

    def _control(self, event: Event) -> None:
        if not self._negotiated:
            self._negotiated = True
            decode_event(event, MessageKind.NEGOTIATION)
            identity = ClientIdentity(
                client_type=ClientType.E_TCPBROKER,
                features="PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX;SUBSCRIPTIONS:CONFIGURE_STREAM",
            )
            answer = BrokerResponse(
                result=Status(),
                protocol_version=1,
                broker_version=999999,
                broker_identity=identity,
                max_missed_heartbeats=0,  # none are sent: on a slow machine the silence between steps is long
            )
            self._transport.write(encode_event(answer, Codec.JSON))
            return
        message = decode_event(event, MessageKind.CONTROL)
        body: Any = message.body
        response: Any
        if isinstance(body, OpenQueue):
            response = OpenQueueResponse(
                original_request=body, routing_configuration=RoutingConfiguration(flags=2)
            )
        elif isinstance(body, ConfigureStream):
            for subscription in body.stream_parameters.subscriptions:
                self._s_ids[body.q_id] = subscription.s_id
            response = ConfigureStreamResponse(request=body)
        else:
            response = DisconnectResponse() if type(body).__name__ == "Disconnect" else CloseQueueResponse()
        self._transport.write(encode_event(ControlMessage(r_id=message.r_id, body=response), Codec.JSON))

    async def until(self, reached: Callable[[], bool]) -> None:
        if not reached():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((reached, future))
            await future

    def acknowledge(self) -> None:
        """Acknowledge everything, a thousand in an event."""
        guids, self._guids = self._guids, []
        for start in range(0, len(guids), 1000):
            acks = [(0, 0, guid, q_id) for q_id, guid in guids[start : start + 1000]]
            self._transport.write(encode_acks(acks))

    def deliver(self, count: int, data: bytes, properties: dict[str, Any] | None = None) -> None:
        """Push messages to the first queue, two hundred in an event."""
        flags, schema = 0, 0
        if properties:
            data = encode_properties(properties, new=True) + data
            flags, schema = PutFlags.MESSAGE_PROPERTIES, 1
        options = encode_sub_queue_ids((self._s_ids[0],))
        for start in range(0, count, 200):
            body = b"".join(
                push_message(0, number.to_bytes(16, "big"), data, options, flags=flags, schema_id=schema)
                for number in range(start + 1, min(start + 200, count) + 1)
            )
            self._transport.write(pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body)
