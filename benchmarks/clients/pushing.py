# SPDX-License-Identifier: Apache-2.0
"""A peer that pushes encoded messages as fast as its socket takes them, and skips the confirmations.

    pushing.py COUNT SIZE [--zlib] [--bare] [--subscription N]

Serves one connection, and prints its address like ``bmq broker``. With ``--bare``, the peer sends to any
connection at once, without a handshake, and then ends the stream: the same bytes for a floor.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import threading
import zlib
from contextlib import suppress
from typing import Any

from acking import Peer

from bmq.wire.constants import Compression, EventType
from bmq.wire.control import ConfigureStream, ConfigureStreamResponse
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.padding import padding
from bmq.wire.push import encode_push

CHUNK = 512 * 1024
#: Bytes of confirmations that wake the peer while it pushes.
WOKEN = 64 * 1024


def payload_of(size: int) -> bytes:
    """Return a payload with the compression of JSON: to about a third of the size."""
    noise = os.urandom(max(1, size // 6)).hex().encode()
    return (noise + b" " * size)[:size]


def events(count: int, size: int, compressed: bool, subscription: int) -> list[bytes]:
    """Return encoded PUSH events of about half a megabyte, or of a single larger message."""
    data = payload_of(size)
    kind = Compression.NONE
    if compressed:
        data, kind = zlib.compress(data), Compression.ZLIB
    data += padding(len(data))
    options = encode_sub_queue_ids((subscription,))
    each = max(1, CHUNK // len(data))
    made = []
    for start in range(0, count, each):
        body = b"".join(
            encode_push(0, number.to_bytes(16, "big"), data, options, compression=kind)
            for number in range(start + 1, min(count, start + each) + 1)
        )
        made.append(pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body)
    return made


class Pusher(Peer):
    """Begins to push when the client has a window for the messages."""

    def __init__(self, connection: socket.socket, made: list[bytes], subscription: int) -> None:
        super().__init__(connection)
        self._made = made
        self._subscription = subscription
        self._writing = threading.Lock()

    def receive(self, into: memoryview) -> int:
        # A blocking read would keep the limit of SO_RCVLOWAT that was valid at its start.
        select.select([self.socket], [], [])
        try:
            return self.socket.recv_into(into, 0, socket.MSG_DONTWAIT)
        except ConnectionResetError:
            return 0  # the client has received enough messages, and has closed the connection

    def response(self, request: Any) -> Any:
        if isinstance(request, ConfigureStream):
            return ConfigureStreamResponse(request=request)
        return super().response(request)

    def answer(self, request: Any, answer: bytes) -> None:
        with self._writing:
            super().answer(request, answer)
        if not isinstance(request, ConfigureStream):
            return
        windows = {
            each.s_id: each.consumers[0].max_unconfirmed_messages
            for each in request.stream_parameters.subscriptions
        }
        if windows.get(self._subscription) and self._made:
            made, self._made = self._made, []
            threading.Thread(target=push, args=(self.socket, made, self._writing), daemon=True).start()


def push(connection: socket.socket, made: list[bytes], writing: threading.Lock) -> None:
    try:
        # On two cores, a thread that wakes up for every confirmation would take a core from the client.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WOKEN)
        for event in made:
            with writing:
                connection.sendall(event)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    except OSError:
        pass  # the client has received enough messages, and has closed the connection


def push_all(connection: socket.socket, made: list[bytes]) -> None:
    push(connection, made, threading.Lock())
    with suppress(OSError):  # the client may have closed the connection
        connection.shutdown(socket.SHUT_WR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("--zlib", action="store_true")
    parser.add_argument("--bare", action="store_true")
    # bmq's second one: its first one, of a queue without a consumer, has no window.
    parser.add_argument("--subscription", type=int, default=2, help="sId of the messages")
    options = parser.parse_args()
    made = events(options.count, options.size, options.zlib, options.subscription)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(f"peer ready on tcp://127.0.0.1:{server.getsockname()[1]}", flush=True)
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if options.bare:
            threading.Thread(target=push_all, args=(connection, made), daemon=True).start()
            made = []
        Pusher(connection, made, options.subscription).serve()


if __name__ == "__main__":
    main()
