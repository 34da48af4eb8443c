# SPDX-License-Identifier: Apache-2.0
"""A peer that only acknowledges posts: the maximum speed of a client.

Serves one connection; prints its address, like ``bmq broker``.
"""

from __future__ import annotations

import socket
from typing import Any

from bmq.wire.ack import encode_acks
from bmq.wire.codec import PUT_HEADER
from bmq.wire.constants import EventType
from bmq.wire.control import (
    BrokerResponse,
    ClientIdentity,
    ClientType,
    CloseQueue,
    CloseQueueResponse,
    Codec,
    ControlMessage,
    DisconnectResponse,
    MessageKind,
    OpenQueue,
    OpenQueueResponse,
    Status,
    decode_event,
    encode_event,
)
from bmq.wire.event import HEADER_SIZE, read_event

# The event type follows the protocol version, in six bits.
_TYPE = 0x3F
_PUT, _CONTROL = int(EventType.PUT), int(EventType.CONTROL)
#: The answer of the peers to the negotiation.
IDENTITY = BrokerResponse(
    result=Status(),
    protocol_version=1,
    broker_version=999999,
    broker_identity=ClientIdentity(
        client_type=ClientType.E_TCPBROKER,
        features="PROTOCOL_ENCODING:JSON;SUBSCRIPTIONS:CONFIGURE_STREAM;MPS:MESSAGE_PROPERTIES_EX",
    ),
)


class Peer:
    """Takes a stream apart, the data of posts unread."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._negotiated = False

    def serve(self) -> None:
        buffer = bytearray(1 << 20)
        view = memoryview(buffer)
        kept = 0  # bytes of an incomplete event at the start of the buffer
        skip = 0  # missing bytes of data
        event = 0  # missing bytes of the present PUT event, including the data of the present post
        unpack, header = PUT_HEADER.unpacker("messageGUID", "queueId", "messageWords"), PUT_HEADER.size
        while True:
            read = self.receive(view[kept:])
            if not read:
                return
            end, at = kept + read, 0
            acks: list[tuple[int, int, bytes, int]] = []
            while at < end:
                if skip:
                    step = min(skip, end - at)
                    at, skip, event = at + step, skip - step, event - step
                elif event:
                    if end - at < header:
                        break
                    guid, queue, words = unpack(buffer, at)
                    acks.append((0, 0, guid, queue))
                    skip = words * 4
                elif end - at < HEADER_SIZE:
                    break
                else:
                    length = int.from_bytes(buffer[at : at + 4], "big")
                    if buffer[at + 4] & _TYPE == _PUT:
                        at, event = at + HEADER_SIZE, length - HEADER_SIZE
                    elif end - at < length:
                        break
                    else:
                        self._other(bytes(buffer[at : at + length]))
                        at += length
            kept = end - at
            buffer[:kept] = buffer[at:end]
            if acks:
                self.socket.sendall(encode_acks(acks))

    def receive(self, into: memoryview) -> int:
        """Wait for bytes; return their number, 0 at the end of the stream."""
        return self.socket.recv_into(into)

    def _other(self, raw: bytes) -> None:
        if raw[4] & _TYPE != _CONTROL:
            return
        event = read_event(raw)
        if not self._negotiated:
            self._negotiated = True
            decode_event(event, MessageKind.NEGOTIATION)
            self.socket.sendall(encode_event(IDENTITY, Codec.JSON))
            return
        message = decode_event(event, MessageKind.CONTROL)
        answer = ControlMessage(r_id=message.r_id, body=self.response(message.body))
        self.answer(message.body, encode_event(answer, Codec.JSON))

    def answer(self, request: Any, answer: bytes) -> None:
        """Send the answer to a request."""
        self.socket.sendall(answer)

    def response(self, request: Any) -> Any:
        """Return the answer to a request."""
        if isinstance(request, OpenQueue):
            return OpenQueueResponse(original_request=request)
        if isinstance(request, CloseQueue):
            return CloseQueueResponse()
        return DisconnectResponse()


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(f"peer ready on tcp://127.0.0.1:{server.getsockname()[1]}", flush=True)
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Peer(connection).serve()


if __name__ == "__main__":
    main()
